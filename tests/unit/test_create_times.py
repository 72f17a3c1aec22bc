"""All ways to append accept the same create times, and refuse all others with the same error."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.worlds.command_line import NOW, Cli

from tidelog.directory import Directory
from tidelog.errors import InvalidTimestamp
from tidelog.record.columns.encode import encode_table
from tidelog.remote.producer import refuse_time
from tidelog.remote.rows import table_rows, times
from tidelog.types import INT64_MAX, NewRecord

REASON = "a create time is 0 to"
PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
# Times in ns before 1970, some by less than a millisecond.
BEFORE_1970 = (-1, -500_000, -1_000_000, -1_001_000, -2_000_000, -5_000_000)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights", "--config", "retention.ms=-1", "--partitions", "2")
    return cli


def stored(cli: Cli) -> list[int]:
    with Directory.open(str(cli.data), env=cli.env) as directory:
        return [record.timestamp for _, record in directory.records("flights")]


def append_column(cli: Cli, column: "pa.Array[pa.Scalar[pa.DataType]]") -> None:
    keys = [str(n) for n in range(len(column))]
    with Directory.open(str(cli.data), writable=True, env=cli.env) as directory:
        directory.append_table("flights", pa.table({"timestamp": column, "key": keys}))


def encode(column: "pa.Array[pa.Scalar[pa.DataType]]") -> None:
    list(encode_table(pa.table({"timestamp": column}), now_ms=NOW))


def to_brokers(column: "pa.Array[pa.Scalar[pa.DataType]]") -> None:
    table = pa.table({"timestamp": column})
    list(table_rows(table, partition_count=1, keyless=0, now_ms=NOW))


COLUMN_DOORS: dict[str, Callable[["pa.Array[pa.Scalar[pa.DataType]]"], object]] = {
    "a table for a directory or Spark's sink": encode,
    "a table for brokers": to_brokers,
    "rows of Spark's sink for brokers": lambda column: times(column, NOW),
}


@pytest.mark.parametrize("unit", PER_MS)
@pytest.mark.parametrize("door", COLUMN_DOORS)
@pytest.mark.parametrize("ns", BEFORE_1970)
def test_a_column_of_timestamps_refuses_times_before_1970(door: str, unit: str, ns: int) -> None:
    column = pa.array([NOW * PER_MS[unit], ns * PER_MS[unit] // 1_000_000], pa.timestamp(unit))  # type: ignore[call-overload] # any unit
    with pytest.raises(InvalidTimestamp, match=REASON) as refused:
        COLUMN_DOORS[door](column)
    assert "row 1" in str(refused.value)


@pytest.mark.parametrize("door", COLUMN_DOORS)
@pytest.mark.parametrize("ms", [-2, -5, -(2**63)])
def test_a_column_of_integers_refuses_them_but_for_minus_1(door: str, ms: int) -> None:
    COLUMN_DOORS[door](pa.array([NOW, -1], pa.int64()))
    with pytest.raises(InvalidTimestamp, match=REASON):
        COLUMN_DOORS[door](pa.array([NOW, ms], pa.int64()))


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.int64()])
def test_a_refused_column_leaves_nothing_in_any_partition(cli: Cli, kind: "pa.DataType") -> None:
    with pytest.raises(InvalidTimestamp, match=REASON):
        append_column(cli, pa.array([*range(20), -5_000], kind))
    assert stored(cli) == []


@pytest.mark.parametrize("ms", [-2, -5, -(2**63), INT64_MAX + 1])
def test_a_record_refuses_them_too(ms: int) -> None:
    with pytest.raises(InvalidTimestamp, match=REASON):
        NewRecord(timestamp=ms)


@pytest.mark.parametrize("ms", [-2, -5])
def test_the_client_for_brokers_refuses_the_same_times(ms: int) -> None:
    with pytest.raises(InvalidTimestamp, match=REASON):
        refuse_time("flights-0", ms)


def test_minus_1_is_no_time_and_the_bounds_are_taken() -> None:
    assert [NewRecord(timestamp=ms).timestamp for ms in (-1, 0, INT64_MAX)] == [-1, 0, INT64_MAX]


@pytest.mark.parametrize("micros", [1, 500, 1_000, 1_001, 5_000])
def test_a_datetime_is_rounded_down_and_never_becomes_no_time(micros: int) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert NewRecord(timestamp=epoch + timedelta(microseconds=1_999)).timestamp == 1  # type: ignore[arg-type] # it is converted
    with pytest.raises(InvalidTimestamp, match=REASON):
        NewRecord(timestamp=epoch - timedelta(microseconds=micros))  # type: ignore[arg-type] # it is converted


@pytest.mark.parametrize(
    "text", ["1969-12-31T23:59:59.9995Z", "1969-12-31T23:59:59.999Z", -1, -5, "-1"]
)
@pytest.mark.parametrize("column", ["t", "t_ms"])
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_produce_refuses_them_in_texts(cli: Cli, kind: str, column: str, text: object) -> None:
    data = json.dumps({column: text}) if kind == "json" else f"{column}\n{text}\n"
    options = ("--from", "-", "-f", kind, "--time", column)
    result = cli.run("produce", "flights", *options, stdin=data.encode())
    assert result.code == 1
    assert f"stdin line {1 if kind == 'json' else 2}: {column}: " in result.err
    assert stored(cli) == []


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("ns", BEFORE_1970)
def test_produce_refuses_them_in_columns(cli: Cli, zone: str | None, ns: int) -> None:
    column = pa.array([ns // 1_000], pa.timestamp("us", zone))
    file = cli.data.parent / "rows.parquet"
    parquet.write_table(pa.table({"t": column}), file)
    options = ("--from", str(file), "--time", "t", "--value", "t", "--zone", "UTC")
    result = cli.run("produce", "flights", *options)
    assert result.code == 1
    assert "row 1: t: " in result.err
    assert stored(cli) == []


def test_a_time_between_two_ms_is_rounded_down_by_every_format(cli: Cli) -> None:
    text = "2013-02-08T12:00:00.0019Z"
    for data, kind in ((json.dumps({"t": text}), "json"), (f"t\n{text}\n", "csv")):
        options = ("--from", "-", "-f", kind, "--time", "t")
        cli.ok("produce", "flights", *options, stdin=data.encode())
    file = cli.data.parent / "rows.parquet"
    for zone in (None, "UTC"):
        column = pa.array([1_360_324_800_001_900], pa.timestamp("us", zone))
        parquet.write_table(pa.table({"t": column}), file)
        options = ("--from", str(file), "--time", "t", "--zone", "UTC")
        cli.ok("produce", "flights", *options)
    append_column(cli, pa.array([1_360_324_800_001_900], pa.timestamp("us")))
    assert stored(cli) == [1_360_324_800_001] * 5
