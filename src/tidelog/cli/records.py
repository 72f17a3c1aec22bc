"""Records of a topic as rows or columns, shared by `tidelog read` and `read --table`.

`ReadOptions` are the options of both commands. `RowMaker` converts records to rows; `write_columns`
writes Arrow IPC and Parquet. Functions that handle columns import pyarrow when they are called.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from importlib.util import find_spec
from io import IOBase
from typing import TYPE_CHECKING, Final, NotRequired, TypedDict, cast

import click

from tidelog.amounts import plural, verb
from tidelog.arguments import Inexact
from tidelog.cli import times
from tidelog.cli.cells import Decode, argument_bytes, decoders, typed_bytes, unreadable
from tidelog.cli.options import (
    Encoding,
    Format,
    ReadFormat,
    clock_option,
    declared_by,
    headers_column_option,
    inexact_option,
    isolation_option,
    key_column_option,
    one_of,
    option,
    read_format_option,
    target_argument,
    value_column_option,
    zone_option,
)
from tidelog.cli.output import (
    Cell,
    Writer,
    columns,
    detail,
    headers,
    headers_text,
    key,
    minor,
    number,
    time,
    value,
    writer,
)
from tidelog.cli.places import Place, parse_with_partition, place_options
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.cli.typed_columns import ColumnForm, TypedColumns
from tidelog.errors import SerdeError
from tidelog.lazy_dataclass import dataclass
from tidelog.record.record import Record
from tidelog.timespec import TIME_HELP
from tidelog.types import (
    NO_TIMESTAMP,
    ClockName,
    Header,
    IsolationLevel,
    TimestampType,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    from tidelog.scan import RequestedRange, ScanStats
    from tidelog.scan.record_filter import RecordFilter
    from tidelog.scan.source import RecordSource


class Order(StrEnum):
    """Order of records."""

    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of `tidelog read`."""

    target: str = declared_by(target_argument)
    place: Place = declared_by(place_options)
    start: str | None = declared_by(times.from_option)
    end: str | None = declared_by(times.to_option)
    during: str | None = declared_by(times.during_option)
    clock: ClockName = declared_by(clock_option)
    timestamps: str | None = declared_by(times.timestamps_option)
    tail: int | None = option(
        "--tail",
        type=click.IntRange(min=0),
        metavar="N",
        help="Only the N records with the latest times on --clock, of all partitions together."
        " Default: from the start.",
    )
    order: Order = declared_by(
        one_of(
            "--order",
            kind=Order,
            default=Order.OFFSET,
            text="offset: by partition, then by offset; time: by time on --clock, all partitions"
            " together.",
        )
    )
    offset: str | None = option(
        "--offset",
        metavar="A..B",
        help="Offsets from A (inclusive) to B (exclusive); -5.. is the last 5 records of each"
        " partition. Default: all.",
    )
    key: str | None = option(
        "--key",
        metavar="KEY",
        help="Only records with this key, interpreted according to --key-as. Default: all.",
    )
    contains: str | None = option(
        "--contains",
        metavar="TEXT",
        help="Only records whose key or value contains this text. Default: all.",
    )
    match: tuple[str, ...] = option(
        "--match",
        multiple=True,
        metavar="PATH=VALUE",
        help="Only records whose JSON value has this field, such as plane.id=N1; repeatable."
        " Default: all.",
    )
    partition: int | None = option(
        "--partition", type=int, metavar="N", help="Only this partition. Default: all."
    )
    isolation: IsolationLevel = declared_by(isolation_option)
    follow: bool = option("--follow", is_flag=True, help="Keep printing new records until Ctrl-C.")
    limit: int | None = option(
        "--limit",
        "-n",
        type=click.IntRange(min=0),
        metavar="N",
        help="Maximum number of records. Default: all.",
    )
    kind: ReadFormat = declared_by(read_format_option("How records are written."))
    key_as: Encoding = declared_by(key_column_option)
    value_as: Encoding = declared_by(value_column_option)
    headers_as: Encoding = declared_by(headers_column_option)
    is_table: bool = option("--table", is_flag=True, help="Print only the last record of each key.")
    at: str | None = option(
        "--at",
        metavar="TIME",
        help=f"With --table: time of the table (inclusive). {TIME_HELP}. Default: all records.",
    )
    inexact: Inexact = declared_by(inexact_option)
    zone: str | None = declared_by(zone_option)

    @property
    def topic(self) -> str:
        """Name of the topic; raises UsageProblem if the target is invalid."""
        return parse_with_partition(self.target, self.partition)[0]

    @property
    def number(self) -> int | None:
        """Number of the only partition to read, None for all partitions."""
        return parse_with_partition(self.target, self.partition)[1]

    @property
    def forms(self) -> dict[str, ColumnForm]:
        """Forms of the binary columns of Arrow and Parquet."""
        chosen = {"key": self.key_as, "value": self.value_as, "headers": self.headers_as}
        return {name: ColumnForm(encoding=one, option=name) for name, one in chosen.items()}

    @property
    def is_ordered(self) -> bool:
        """Whether records are printed in order of time."""
        return self.tail is not None or self.order is Order.TIME

    def record_filter(self) -> "RecordFilter":
        """Return the conditions that records must meet; raises SerdeError, InvalidRequest."""
        from tidelog.scan.record_filter import FieldMatch, RecordFilter

        return RecordFilter(
            key=None if self.key is None else typed_bytes(self.key, self.key_as),
            content=None if self.contains is None else argument_bytes(self.contains),
            fields=tuple(map(FieldMatch.parse, self.match)),
        )


# Maximum number of records of a table on a terminal, if the command line selects no records.
TERMINAL_RECORDS: Final = 100

_OFFSETS: Final = columns(detail("topic"), number("partition", "offset"))
# On a narrow terminal, keys and values are shortened first. If the table is still too wide, one of
# the two time columns is dropped: the one whose clock was not chosen.
_CONTENT: Final = columns(key("key", least=8), value("value", least=8), headers("headers"))
_TABLES: Final = {
    ClockName.RECORD: columns(_OFFSETS, time("timestamp"), minor(time("append_time")), _CONTENT),
    ClockName.APPEND: columns(_OFFSETS, minor(time("timestamp")), time("append_time"), _CONTENT),
}
_FIELDS: Final = columns(
    _OFFSETS, time("timestamp", "append_time", "create_time"), "key", "value", "headers"
)


class RowMaker:
    """Converts records to rows, as the options request."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._topic = options.topic
        self._is_table = options.kind is ReadFormat.TABLE
        decoder = decoders(options.kind)
        self._key, self._value = decoder(options.key_as), decoder(options.value_as)
        # In CSV, too, headers are JSON.
        kind = options.kind if self._is_table else ReadFormat.JSON
        self._header = decoders(kind)(options.headers_as)

    def writer(self, surroundings: Surroundings) -> Writer:
        """Return the writer for the rows."""
        kind = Format(self._options.kind)
        of = _TABLES[self._options.clock] if self._is_table else _FIELDS
        return writer(surroundings, of, kind, zone=self._options.zone)

    def row(self, partition: int, record: Record, append_ms: int | None) -> list[Cell]:
        """Return one record's row.

        Raises:
            SerdeError: The format is for programs, and the chosen encoding can't represent the key,
                the value or a header's value exactly.
        """
        key = self._cell("key", self._key, record.key, partition, record)
        value = self._cell("value", self._value, record.value, partition, record)
        headers = [
            (one.key, self._cell("headers", self._header, one.value, partition, record))
            for one in record.headers
        ]
        row: list[Cell] = [
            self._topic,
            partition,
            record.offset,
            record.timestamp,
            append_ms,
        ]
        if self._is_table:
            return [*row, key, value, headers_text(headers)]
        return [*row, record.create_timestamp, key, value, headers]

    def _cell(
        self, name: str, decode: Decode, data: bytes | None, partition: int, record: Record
    ) -> Cell:
        try:
            return decode(data)
        except SerdeError as error:
            where = f"{TopicPartition(self._topic, partition)} offset {record.offset}"
            raise unreadable(error, name, where) from error


def say_untimed(
    surroundings: Surroundings, count: int | None, clock: ClockName, without_timestamp: int = 0
) -> None:
    """Print how many records without a time were left out; `count` is None if it is unknown.

    `without_timestamp` is the number that `--timestamps` has left out.
    """
    if without_timestamp:
        surroundings.note(left_out_text(without_timestamp, ClockName.RECORD))
    if count is None:
        surroundings.note("brokers don't report how many records have no known append time")
    elif count:
        surroundings.note(left_out_text(count, clock))


def left_out_text(count: int, clock: ClockName) -> str:
    """Return how many records were left out because they have no time on a clock."""
    have, were = verb(count, "has", "have"), verb(count, "was", "were")
    return f"{plural(count, 'record')} {have} no {clock.known_time_name} and {were} left out"


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


class _HeaderRow(TypedDict):
    key: str
    value: bytes | None


class _RecordRow(TypedDict):
    """A row of `COLUMNS`. Times are in ms."""

    partition: int
    offset: int
    timestamp: int | None
    timestampType: int
    createTimestamp: NotRequired[int | None]
    appendTimestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[_HeaderRow]


def plain_rows(batch: "pa.RecordBatch") -> object:
    """Convert a batch to rows with times in ms."""
    import pyarrow as pa

    columns = {
        name: column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(columns).to_pylist()


def records_of(batch: "pa.RecordBatch") -> "Iterator[tuple[int, Record, int | None]]":
    """Yield the records of a batch of `COLUMNS`: partition, record, append time in ms."""
    for row in cast("list[_RecordRow]", plain_rows(batch)):
        record = Record(
            offset=row["offset"],
            timestamp=NO_TIMESTAMP if row["timestamp"] is None else row["timestamp"],
            timestamp_type=TimestampType(row["timestampType"]),
            key=row["key"],
            value=row["value"],
            headers=tuple(Header(one["key"], one["value"]) for one in row["headers"]),
            create_timestamp=row.get("createTimestamp"),
        )
        yield row["partition"], record, row["appendTimestamp"]


def batch_of(
    topic: str, rows: "Iterable[tuple[int, Record, int | None]]", schema: "pa.Schema"
) -> "pa.RecordBatch":
    """Return records as a batch of `COLUMNS`; the reverse of `records_of`."""
    import pyarrow as pa

    def row(partition: int, record: Record, append_ms: int | None) -> dict[str, object]:
        content = _RecordRow(
            partition=partition,
            offset=record.offset,
            timestamp=None if record.timestamp == NO_TIMESTAMP else record.timestamp,
            timestampType=int(record.timestamp_type),
            createTimestamp=record.create_timestamp,
            appendTimestamp=append_ms,
            key=record.key,
            value=record.value,
            headers=[_HeaderRow(key=one.key, value=one.value) for one in record.headers],
        )
        return {"topic": topic, **content}

    return pa.RecordBatch.from_pylist([row(*one) for one in rows], schema=schema)


def has_arrow() -> bool:
    """Whether the packages for reads by columns are installed."""
    return all(find_spec(name) is not None for name in ("pyarrow", "numpy", "numba"))


def columns_of(source: "RecordSource") -> tuple[str, ...]:
    """Return the columns to read: without `createTimestamp` if the source does not have it."""
    if source.has_create_times:
        return COLUMNS
    return tuple(name for name in COLUMNS if name != "createTimestamp")


def schema_of(columns: Sequence[str]) -> "pa.Schema":
    """Return the schema of columns; raises MissingDependency without pyarrow, numpy or numba."""
    from tidelog.frames import needs_arrow

    needs_arrow()
    from tidelog.scan import schema

    return schema(columns)


def column_batches(
    source: "RecordSource",
    name: TopicPartition,
    requested: "RequestedRange",
    options: ReadOptions,
    conditions: "RecordFilter",
    stats: "ScanStats",
) -> "Iterator[pa.RecordBatch]":
    """Yield a partition's records in the range that meet the conditions; see `columns_of`."""
    from tidelog.scan.source import ReadRequest

    columns = columns_of(source)
    request = ReadRequest(
        topics=[name], requested_range=requested, clock=options.clock, isolation=options.isolation
    )
    plan = source.plan(request, columns, fail_on_data_loss=False)
    for batch in source.read(plan, columns, stats=stats, threads=1):
        rows = conditions.rows(batch) if conditions else batch
        if rows.num_rows:
            yield rows


def ends_early(surroundings: Surroundings, options: ReadOptions) -> bool:
    """Whether only the first records are printed: a table on a terminal, without any selection."""
    return (
        options.kind is ReadFormat.TABLE
        and surroundings.stdout.isatty()
        and not options.follow
        and not options.match
        and (options.tail, options.limit, options.offset) == (None,) * 3
        and (options.start, options.end, options.during) == (None,) * 3
        and (options.key, options.contains) == (None,) * 2
    )


def refuse_terminal(surroundings: Surroundings, kind: ReadFormat) -> None:
    """Raise UsageProblem if binary output would go to a terminal."""
    if surroundings.stdout.isatty():
        raise UsageProblem(f"{kind} is not for terminals; send it to a file: > FILE.{kind}")


def write_columns(
    surroundings: Surroundings,
    columns: TypedColumns,
    batches: "Iterable[pa.RecordBatch]",
    limit: int | None,
    kind: ReadFormat,
) -> None:
    """Write batches as Arrow or Parquet, with typed columns.

    Raises:
        UsageProblem: stdout is a terminal.
        SerdeError: A column's type can't represent a key, a value or a header's value exactly.
    """
    import pyarrow as pa  # imported only here, for Arrow and Parquet

    refuse_terminal(surroundings, kind)
    buffer = surroundings.stdout.buffer
    assert isinstance(buffer, IOBase)
    sink = pa.PythonFile(buffer, "w")
    with _writer(sink, columns.schema, kind) as out:
        for batch in _limited(batches, limit):
            out.write_batch(columns.convert(batch))


def _writer(
    sink: "pa.PythonFile", schema: "pa.Schema", kind: ReadFormat
) -> "pa.RecordBatchStreamWriter | ParquetWriter":
    if kind is ReadFormat.PARQUET:
        from pyarrow import parquet

        return parquet.ParquetWriter(sink, schema)
    import pyarrow as pa

    return pa.ipc.new_stream(sink, schema)


def _limited(reader: "Iterable[pa.RecordBatch]", limit: int | None) -> Iterator["pa.RecordBatch"]:
    if limit is None:
        yield from reader
        return
    # Batches after the limit are not read, so that damage in them causes no error.
    batches = iter(reader)
    while limit > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, min(limit, batch.num_rows))
        limit -= batch.num_rows
