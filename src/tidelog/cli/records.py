"""Records of a topic as rows or columns, shared by `tidelog read` and `read --table`.

`ReadOptions` are their options. `RowMaker` converts records to rows; `write_arrow` and
`write_columns` write Arrow IPC and Parquet, and import pyarrow when they are called.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import IOBase
from typing import TYPE_CHECKING, Final

import click

from tidelog.arguments import Inexact
from tidelog.cli import times
from tidelog.cli.cells import Decode, decoders, shortened
from tidelog.cli.options import (
    Encoding,
    Format,
    ReadFormat,
    clock_option,
    given,
    headers_as_option,
    inexact_option,
    isolation_option,
    key_as_option,
    option,
    read_format_option,
    topic_argument,
    value_as_option,
    zone_option,
)
from tidelog.cli.output import (
    Cell,
    Writer,
    columns,
    number,
    time,
    writer,
)
from tidelog.cli.places import Place, place_options
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.errors import SerdeError
from tidelog.record.record import Record
from tidelog.timespec import TIME_HELP
from tidelog.types import ClockName, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    from tidelog.scan import RequestedRange
    from tidelog.scan.source import RecordSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of `tidelog read`."""

    topic: str = given(topic_argument)
    place: Place = given(place_options)
    start: str | None = given(times.from_option)
    end: str | None = given(times.to_option)
    during: str | None = given(times.during_option)
    clock: ClockName = given(clock_option)
    offset: str | None = option(
        "--offset", metavar="A..B", help="Offsets from A up to and without B."
    )
    partition: int | None = option(
        "--partition", type=int, metavar="N", help="Only this partition. Default: all."
    )
    isolation: IsolationLevel = given(isolation_option)
    follow: bool = option(
        "--follow", is_flag=True, help="Go on with what is appended; Ctrl-C ends it."
    )
    limit: int | None = option(
        "--limit",
        "-n",
        type=click.IntRange(min=0),
        metavar="N",
        help="Maximum number of records. Default: all.",
    )
    kind: ReadFormat = given(read_format_option("How records are written."))
    key_as: Encoding = given(key_as_option)
    value_as: Encoding = given(value_as_option)
    headers_as: Encoding = given(headers_as_option)
    is_table: bool = option("--table", is_flag=True, help="The last record of each key alone.")
    at: str | None = option(
        "--at", metavar="TIME", help=f"With --table: as of this time. {TIME_HELP}."
    )
    inexact: Inexact = given(inexact_option)
    wide: bool = option("--wide", is_flag=True, help="Tables with whole values.")
    zone: str | None = given(zone_option)


VALUE_CHARACTERS: Final = 60


_TABLE: Final = columns(
    number("partition", "offset"), time("timestamp", "append_time"), "key", "value"
)
_FIELDS: Final = columns(_TABLE[:4], time("create_time"), "key", "value", "headers")


class RowMaker:
    """Converts records to rows, as the options request."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._is_table = options.kind is ReadFormat.TABLE
        decoder = decoders(options.kind)
        self._key, self._value = decoder(options.key_as), decoder(options.value_as)
        # Headers and their values are JSON even in formats whose cells are text.
        self._header = decoders(ReadFormat.JSON)(options.headers_as)

    def writer(self, surroundings: Surroundings) -> Writer:
        """Return the writer for the rows."""
        kind = Format(self._options.kind)
        of = _TABLE if self._is_table else _FIELDS
        return writer(surroundings, of, kind, zone=self._options.zone)

    def row(self, partition: int, record: Record, append_ms: int | None) -> list[Cell]:
        """Return one record's row.

        Raises:
            SerdeError: The form of a column for programs can't represent the record.
        """
        key = self._cell("key", self._key, record.key, partition, record)
        value = self._cell("value", self._value, record.value, partition, record)
        row: list[Cell] = [partition, record.offset, record.timestamp, append_ms]
        if not self._is_table:
            headers: Cell = [
                [one.key, self._cell("headers", self._header, one.value, partition, record)]
                for one in record.headers
            ]
            return [*row, record.create_timestamp, key, value, headers]
        if self._options.wide:
            return [*row, key, value]
        return [*row, *(shortened(cell, VALUE_CHARACTERS) for cell in (key, value))]

    def _cell(
        self, name: str, decode: Decode, data: bytes | None, partition: int, record: Record
    ) -> Cell:
        try:
            return decode(data)
        except SerdeError as error:
            where = f"{TopicPartition(self._options.topic, partition)} offset {record.offset}"
            raise SerdeError(
                f"{where}: {name}: {error}; --{name}-as bytes writes all of them as base64"
            ) from error


def chosen(
    topic: str, partitions: list[TopicPartition], number: int | None
) -> list[TopicPartition]:
    """Return all partitions, or the one of that number; raises UsageProblem for others."""
    if number is None:
        return partitions
    if not 0 <= number < len(partitions):
        raise UsageProblem(f"{topic} has partitions 0 to {len(partitions) - 1}, not {number}")
    return [partitions[number]]


def say_untimed(surroundings: Surroundings, count: int | None, clock: ClockName) -> None:
    """Print how many records without a time were left out; None means an unknown number."""
    if count is None:
        surroundings.note("brokers don't tell how many records have no known append time")
    elif count:
        surroundings.note(f"{count} records met have no time on the {clock} clock: left out")


COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "appendTimestamp",
    "createTimestamp",
    "key",
    "value",
    "headers",
)


def write_arrow(
    surroundings: Surroundings,
    source: "RecordSource",
    partitions: list[TopicPartition],
    wanted: "RequestedRange",
    options: ReadOptions,
) -> int | None:
    """Write records as columns; return how many have no time on the clock, None if unknown.

    Raises:
        UsageProblem: Stdout is a terminal.
        MissingDependency: pyarrow or numba is not installed.
    """
    from tidelog.frames import needs_arrow

    _refuse_terminal(surroundings, options.kind)
    needs_arrow()
    from tidelog.scan import ScanStats

    plan = source.plan(
        partitions,
        wanted,
        clock=options.clock,
        isolation=options.isolation,
        columns=COLUMNS,
        fail_on_data_loss=False,
    )
    stats = ScanStats()
    reader = source.read(plan, COLUMNS, stats=stats, threads=1)
    write_columns(surroundings, reader.schema, reader, options.limit, options.kind)
    return source.without_time(partitions, wanted, options.clock, stats)


def _refuse_terminal(surroundings: Surroundings, kind: ReadFormat) -> None:
    if surroundings.stdout.isatty():
        raise UsageProblem(f"{kind} is not for terminals; send it to a file: > FILE.{kind}")


def write_columns(
    surroundings: Surroundings,
    schema: "pa.Schema",
    batches: "Iterable[pa.RecordBatch]",
    limit: int | None,
    kind: ReadFormat,
) -> None:
    """Write batches as Arrow or Parquet; raises UsageProblem if stdout is a terminal."""
    import pyarrow as pa  # imported only for this format

    _refuse_terminal(surroundings, kind)
    buffer = surroundings.stdout.buffer
    assert isinstance(buffer, IOBase)
    sink = pa.PythonFile(buffer, "w")
    with _writer(sink, schema, kind) as out:
        for batch in _limited(batches, limit):
            out.write_batch(batch)


def _writer(
    sink: "pa.PythonFile", schema: "pa.Schema", kind: ReadFormat
) -> "pa.RecordBatchStreamWriter | ParquetWriter":
    if kind is ReadFormat.PARQUET:
        from pyarrow import parquet

        return parquet.ParquetWriter(sink, schema)
    import pyarrow as pa

    return pa.ipc.new_stream(sink, schema)


def _limited(reader: "Iterable[pa.RecordBatch]", limit: int | None) -> Iterator["pa.RecordBatch"]:
    for batch in reader:
        if limit is None:
            yield batch
            continue
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows
