"""Reading the table of `tidelog spark bootstrap`: its format, and options of Spark for it."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tidelog.cli.jobs.bootstrap import Request, read_table
from tidelog.cli.surroundings import UsageProblem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

URL = "jdbc:postgresql://db/shop"
DATABASE = ("dbtable=orders", "user=reader")


class FakeReader:
    """Stand-in for Spark's DataFrameReader; `load` returns the calls instead of a table."""

    def __init__(self) -> None:
        self.kind = ""
        self.given: dict[str, str] = {}

    def format(self, kind: str) -> "FakeReader":
        self.kind = kind
        return self

    def options(self, **given: str) -> "FakeReader":
        self.given |= given
        return self

    def option(self, name: str, text: str) -> "FakeReader":
        self.given[name] = text
        return self

    def load(self, *paths: str) -> tuple[str, dict[str, str], tuple[str, ...]]:
        return self.kind, self.given, paths


def read(table: str, input_format: str | None, *options: str) -> object:
    asked = SimpleNamespace(table=table, input_format=input_format, options=options)
    spark = SimpleNamespace(read=FakeReader())
    return read_table(cast("SparkSession", spark), cast("Request", asked))


def test_a_database_is_read_by_its_url() -> None:
    """Spark's format jdbc takes the URL as an option, and no path."""
    expected = {"url": URL, "dbtable": "orders", "user": "reader"}
    assert read(URL, None, *DATABASE) == ("jdbc", expected, ())
    assert read(URL, "jdbc", *DATABASE) == ("jdbc", expected, ())


@pytest.mark.parametrize("name", ["a/flights.parquet", "a/flights.PARQUET", "a/flights.parquet/"])
def test_a_file_is_read_by_its_suffix(name: str) -> None:
    assert read(name, None) == ("parquet", {}, (name,))


def test_a_given_format_is_used_with_its_options() -> None:
    assert read("a/flights", "avro", "mode=FAILFAST") == (
        "avro",
        {"mode": "FAILFAST"},
        ("a/flights",),
    )


def test_an_unknown_suffix_is_a_usage_error() -> None:
    with pytest.raises(UsageProblem, match=r"unknown format of flights\.xyz; give --format"):
        read("flights.xyz", None)
