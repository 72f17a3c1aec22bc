"""Declared options of jobs: accepted values, signature and docstring."""

import inspect
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import import_module
from typing import Annotated, Required, TypedDict, Unpack

import click
import pytest

import tidelog.spark
from tidelog.arguments import word_of
from tidelog.cli.app import app, spark
from tidelog.cli.surroundings import Surroundings
from tidelog.errors import InvalidChoice, InvalidRequest
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.options import REQUIRED, Option, options_of, takes_options
from tidelog.types import ClockName

JOBS = ("audit", "bootstrap", "compact", "lag", "latency", "mirror", "reindex", "replay")


def declared_of(name: str) -> dict[str, tuple[object, Option]]:
    """Return the options of a job."""
    module = import_module(f"tidelog.jobs.{name}.options")
    return options_of(getattr(module, f"{name.capitalize()}Options"))


class Wishes(TypedDict, total=False):
    to: Required[Annotated[str, Option("Where.", "--to")]]
    clock: Annotated[ClockName | str, Option("When.", default=ClockName.RECORD, choices=ClockName)]
    names: Annotated[Sequence[str] | None, Option("Who.", keyword="All where None.")]
    sink: Annotated[Mapping[str, str] | None, Option("How.")]


DOCSTRING = """Do it.

Args:
    spark: The session.
    topic: The topic.
    **options: Those of `Wishes`.

Raises:
    ValueError: Never.
"""


@takes_options(Wishes)
def job(spark: str, topic: str = "flights", **options: Unpack[Wishes]) -> dict[str, object]:
    """Do the job."""
    return {"spark": spark, "topic": topic, **options}


def test_omitted_options_have_their_defaults() -> None:
    assert job("s", to="there", names=["a"]) == {
        "spark": "s",
        "topic": "flights",
        "to": "there",
        "clock": ClockName.RECORD,
        "names": ["a"],
        "sink": None,
    }


def test_the_signature_has_the_options_as_keywords() -> None:
    text = str(inspect.signature(job))
    assert text.startswith("(spark: str, topic: str = 'flights', *, to: str, clock: ")


@pytest.mark.parametrize("indent", ["", "    ", "        "])
def test_the_docstring_lists_the_options_with_any_indentation(indent: str) -> None:
    """Python 3.13 removes the indentation of docstrings when it compiles them."""

    def plain(spark: str, topic: str = "flights", **options: Unpack[Wishes]) -> None: ...

    plain.__doc__ = DOCSTRING.replace("\n", f"\n{indent}")
    assert takes_options(Wishes)(plain).__doc__ == (
        "Do it.\n\nArgs:\n    spark: The session.\n    topic: The topic.\n"
        "    to: Where.\n    clock: When.\n    names: All where None.\n    sink: How.\n\n"
        "Raises:\n    ValueError: Never."
    )


def test_arguments_are_read_as_those_of_any_public_function() -> None:
    assert job("s", to="there", clock="append")["clock"] is ClockName.APPEND
    with pytest.raises(InvalidChoice, match="clock"):
        job("s", to="there", clock="noon")
    with pytest.raises(InvalidRequest, match="to is 3"):
        job("s", to=3)  # type: ignore[arg-type] # wrong on purpose


class Limits(TypedDict, total=False):
    start: Annotated[str, Option("Where.", default="earliest", choices=("earliest", "latest"))]
    tasks: Annotated[int | None, Option("How many.", least=1)]


@takes_options(Limits)
def limited(**options: Unpack[Limits]) -> object:
    """Do the job."""
    return options


def test_the_function_accepts_and_refuses_values_as_the_command_does() -> None:
    assert limited() == {"start": "earliest", "tasks": None}
    assert limited(start="latest", tasks=1) == {"start": "latest", "tasks": 1}
    with pytest.raises(InvalidChoice, match="start is 'noon'; give one of earliest, latest"):
        limited(start="noon")
    with pytest.raises(InvalidRequest, match="tasks is 0; give 1 or more"):
        limited(tasks=0)


@pytest.mark.parametrize("name", JOBS)
def test_each_job_refuses_numbers_below_those_of_its_command(name: str) -> None:
    """Options are refused before a session, place or table is used; the test has none of these."""
    job = getattr(tidelog.spark, name)
    required = {
        parameter.name: "x"
        for parameter in inspect.signature(job).parameters.values()
        if parameter.default is REQUIRED
    }
    for option, (_, declared) in declared_of(name).items():
        if declared.least is not None:
            number = declared.least - 1
            message = f"{option} is {number}; give {declared.least} or more"
            with pytest.raises(InvalidRequest, match=message):
                job(**required | {option: number})


def test_the_choices_of_the_function_precede_those_of_the_command() -> None:
    @takes_options(Limits, start=ClockName)
    def timed(**options: Unpack[Limits]) -> object:
        return options["start"]

    assert timed(start="append") is ClockName.APPEND
    with pytest.raises(InvalidChoice, match="start is 'latest'; give one of record, append"):
        timed(start="latest")


def test_other_keywords_are_refused_as_pythons_own() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'to'"):
        job("s")  # type: ignore[call-arg] # wrong on purpose
    with pytest.raises(TypeError, match="unexpected keyword argument 'too'"):
        job("s", to="there", too="far")  # type: ignore[call-arg] # wrong on purpose


def parsed(name: str, arguments: list[str]) -> dict[str, object]:
    """Return the parsed arguments of a command."""
    group = app if name == "audit" else spark
    assert isinstance(group, click.Group)
    _, command, _ = group.resolve_command(click.Context(group), [name])
    assert command is not None
    return command.make_context(name, arguments, obj=Surroundings()).params


def test_a_required_option_of_a_job_is_required_by_its_command() -> None:
    with pytest.raises(click.MissingParameter, match="checkpoint"):
        parsed("mirror", ["data", "flights", "--to", "there"])


def test_values_are_read_as_the_functions_types() -> None:
    given = parsed("latency", ["data", "--delay", "5m", "--delay", "1h"])
    assert given["delays_ms"] == [300_000, 3_600_000]
    assert parsed("latency", ["data", "--from", "-1h"])["start"] == "-1h"
    assert parsed("compact", ["data", "--part-bytes", "7"])["part_bytes"] == 7
    given = parsed("audit", ["a", "b", "--ignore", "stale", "--rename", "x=y", "--no-history"])
    assert given["ignore"] == frozenset({Kind.STALE})
    assert (given["rename"], given["history"]) == ({"x": "y"}, False)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("reindex", ["data"]),
        ("lag", ["data"]),
        ("latency", ["data"]),
        ("compact", ["data"]),
        ("audit", ["data", "other"]),
        ("bootstrap", ["flights.parquet", "flights", "--to", "data"]),
        ("replay", ["data", "flights", "--to", "console"]),
        ("mirror", ["data", "flights", "--to", "there", "--checkpoint", "folder"]),
    ],
)
def test_a_command_and_its_function_have_the_same_defaults(name: str, arguments: list[str]) -> None:
    given = parsed(name, arguments)
    for option, (_, declared) in declared_of(name).items():
        if declared.flags and declared.default is not REQUIRED:
            value, default = given[option], declared.default
            value = word_of(value) if isinstance(value, Enum) else value
            default = word_of(default) if isinstance(default, Enum) else default
            assert value == default, option
