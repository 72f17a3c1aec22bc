"""`Table`: a topic by key, as of a time. `Diff`: its changes between two times (docs/tables.md).

Tables and diffs are selections of records from a `RecordSource`, which is a directory or a cluster.
A table or diff reads nothing until a call needs rows. Each call plans its read and reads the log
again. `scan.keyed_table` finds the winning record of each key; `scan.table_rules` decides whether a
table is exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.amounts import bytes_text, plural
from tidelog.display import records_html
from tidelog.errors import InvalidRequest, LostOffsets, OffsetsGone, TidelogError, with_times
from tidelog.frames import ArrowSource, columns_of, first_rows, needs_arrow, schema_of
from tidelog.html_cells import html_table
from tidelog.lazy_dataclass import dataclass
from tidelog.scan import RequestedRange
from tidelog.scan.record_filter import RecordFilter
from tidelog.scan.source import ReadRequest, RecordSource
from tidelog.scan.table_rules import MARK, REFUSE, Doubt, Ranking, refuse, without_time_doubt
from tidelog.timespec import format_ms, time_text
from tidelog.types import INT64_MAX, ClockName, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.scan import Split
    from tidelog.scan.keyed_table import KeyFold, TableStats


# Default limit in bytes for the keys that a read holds in memory. If the keys need more memory, the
# log is read several times, each time for a part of the keys.
MEMORY_BYTES: Final = 512 << 20
# Maximum number of bytes of log that are read to show the first rows of a table in a notebook.
PICTURE_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Table(ArrowSource):
    """A topic as a table as of a time: the winning record of each key.

    Any tool that accepts an Arrow stream accepts a table (`__arrow_c_stream__`).

    Attributes:
        source: Source of the records.
        topic: The topic, or one of its partitions.
        at_ms: Time of the table in ms, inclusive; None for the whole log.
        clock: Clock of that time.
        columns: Names from `tidelog.scan.ALL_COLUMNS`; the default columns if None.
        inexact: `refuse` raises InexactTable if records of the table at that time may be missing.
            `mark` returns the remaining records, and `doubts` returns the reasons.
        memory_bytes: Approximate limit in bytes for the keys of a partition in memory.
    """

    source: RecordSource
    topic: str | TopicPartition
    at_ms: int | None = None
    clock: ClockName = ClockName.RECORD
    columns: Sequence[str] | None = None
    inexact: str = REFUSE
    memory_bytes: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        """Check the arguments; raises InvalidRequest."""
        check_question(self.inexact, self.memory_bytes)

    def __repr__(self) -> str:
        return f"Table({self.source.address!r}, {self._what()})"

    def _what(self) -> str:
        if self.at_ms is None:
            return f"{self.topic} as of now"
        return f"{self.topic} as of {time_text(self.at_ms)} UTC, {self.clock.value} clock"

    def _repr_html_(self) -> str:
        """Return an HTML table for a notebook: the first rows.

        No rows are shown for a large topic, because the keys of a whole partition must be read
        before the first row is known.
        """
        caption = f"Table of {self._what()}"
        columns = self._columns()
        return picture(caption, self, columns, keeps_all=self.columns is not None)

    @property
    def schema(self) -> "pa.Schema":
        """Names and types of the columns; raises the errors of `schema_of`."""
        return schema_of(self.columns)

    def doubts(self) -> list[Doubt]:
        """Return the known reasons why the table may differ from its past state.

        Records without a time are found only while reading: `TableStats.without_time` counts them.
        """
        return self.source.doubts(self._partitions(), self.at_ms, self.clock)

    def to_arrow(self, *, stats: "TableStats | None" = None) -> "pa.RecordBatchReader":
        """Return an Arrow reader of the rows, by partition.

        If the keys of a partition fit in memory, its rows are in order of offsets. A batch of rows
        is read when the caller requests the batch.

        Args:
            stats: Statistics of the read, updated while reading.

        Raises:
            UnknownTopic, InvalidRequest, MissingDependency, ClusterFailure: Raised immediately.
            InexactTable: `inexact` is `refuse`, and the table is not exact. Raised immediately if
                records of the table are known to be missing. Raised while reading, before a
                partition's first row, if compaction has removed records since the call, or if
                records have no time on the clock.
            ConfigError: Raised while reading, if the topic has an unknown compaction rule.
            CorruptData, OffsetsGone, ClusterFailure: Raised while reading.
        """
        schema = self.schema
        import pyarrow as pa

        from tidelog.scan.keyed_table import TableStats

        splits = self.plan()
        return pa.RecordBatchReader.from_batches(schema, self._rows(splits, stats or TableStats()))

    def plan(self) -> "dict[TopicPartition, list[Split]]":
        """Plan a read of the current log, and return the splits by partition.

        Raises the errors that `to_arrow` raises immediately.
        """
        names = self._partitions()
        check_doubts(self.source, names, self.at_ms, self.clock, self.inexact)
        return self.source.table_splits(names, self.at_ms, self.clock, self._columns())

    def _rows(
        self, splits: "Mapping[TopicPartition, Sequence[Split]]", stats: "TableStats"
    ) -> "Iterator[pa.RecordBatch]":
        for name, mine in splits.items():
            yield from self.rows_of(name, mine, stats)

    def rows_of(
        self, name: TopicPartition, splits: "Sequence[Split]", stats: "TableStats"
    ) -> "Iterator[pa.RecordBatch]":
        """Yield one partition's rows from the splits of `plan`; raises the errors of `to_arrow`."""
        from tidelog.scan.keyed_table import TableStats, table_rows

        how = fold_of(self.source, [name], self.clock, self.memory_bytes)
        mine = TableStats()
        rows = table_rows(self.source, splits, self._columns(), how, mine)
        yield from checked(self, name, splits, rows, mine)
        stats.add(mine)

    def _check(self) -> None:
        needs_arrow()
        check_doubts(self.source, self._partitions(), self.at_ms, self.clock, self.inexact)

    def _partitions(self) -> list[TopicPartition]:
        return self.source.partitions(self.topic)

    def _columns(self) -> tuple[str, ...]:
        return columns_of(self.columns)


def picture(caption: str, rows: "Table | Diff", columns: Sequence[str], *, keeps_all: bool) -> str:
    """Return the first rows of a table or a diff as HTML; no rows if too much must be read."""
    try:
        request = ReadRequest(
            topics=rows.topic,
            requested_range=RequestedRange(),
            isolation=IsolationLevel.READ_COMMITTED,
        )
        planned = rows.source.plan(request, ("offset",))
        if planned.scan_bytes > PICTURE_BYTES_MAX:
            note = (
                f"no rows shown, because {bytes_text(planned.scan_bytes)} would have to be read;"
                " call to_polars() or to_arrow()"
            )
            return html_table(caption, columns, (), note)
        first = first_rows(rows.to_arrow())
    except TidelogError as error:
        return html_table(caption, ["error"], [[str(error)]])
    note = f"first {plural(len(first), 'row')}" if first else "no rows"
    return records_html(caption, first, columns, keeps_all=keeps_all, note=note)


class _Question(Protocol):
    """Shared attributes of `Table` and `Diff`."""

    @property
    def source(self) -> RecordSource: ...
    @property
    def at_ms(self) -> int | None: ...
    @property
    def clock(self) -> ClockName: ...
    @property
    def inexact(self) -> str: ...


def check_question(inexact: str, memory_bytes: int) -> None:
    """Raise InvalidRequest for an invalid argument."""
    if inexact not in (REFUSE, MARK):
        raise InvalidRequest(f"inexact={inexact!r}: must be {REFUSE} or {MARK}")
    if memory_bytes < 1:
        raise InvalidRequest(f"memory_bytes={memory_bytes}: must be at least 1")


def fold_of(
    source: RecordSource, names: Sequence[TopicPartition], clock: ClockName, memory_bytes: int
) -> "KeyFold":
    """Return the parameters for finding the winning record of each key.

    Raises ConfigError if the topic has an unknown compaction rule.
    """
    from tidelog.scan.keyed_table import KeyFold

    ranking = source.ranking(names[0].topic) if names else Ranking()
    return KeyFold(
        ranking=ranking, clock=clock, random=source.env.random, memory_bytes=memory_bytes
    )


def check_doubts(
    source: RecordSource,
    names: Sequence[TopicPartition],
    at_ms: int | None,
    clock: ClockName,
    inexact: str,
) -> None:
    """Raise InexactTable if the table is known to be inexact, unless `inexact` is `mark`."""
    if inexact == MARK:
        return
    doubts = source.doubts(names, at_ms, clock)
    if doubts:
        raise refuse(doubts, at_ms)


def checked(
    question: _Question,
    name: TopicPartition,
    splits: "Sequence[Split]",
    rows: "Iterator[pa.RecordBatch]",
    stats: "TableStats",
) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a partition; with `inexact=refuse`, check first that the table is exact.

    Args:
        question: The table or diff that is read.
        name: The partition.
        splits: Splits of the partition's records.
        rows: The rows. If the partition's keys fit in memory, all of them are read before the first
            row. If not, only a part of the keys is read before the first row, and the last part
            before the last row.
        stats: Statistics of the read.

    Raises:
        InexactTable: Raised before the first row, if the table is inexact.
        OffsetsGone: A compaction that read offsets beyond the splits may have removed records of
            the splits. If the keys exceed the memory limit, this error may be raised after the last
            row.
    """
    first = next(rows, None)
    _check_compaction(question, name, splits)
    _check_read(question, name, stats)
    if first is not None:
        yield first
        yield from rows
    if stats.readings > 1:
        _check_compaction(question, name, splits)


def _check_compaction(question: _Question, name: TopicPartition, splits: "Sequence[Split]") -> None:
    """Raise OffsetsGone if a compaction that read beyond the splits may have removed records."""
    if question.inexact == MARK:
        return
    limit = min((split.compacted_max for split in splits), default=INT64_MAX)
    compacted_to = question.source.compacted_to([name])[name]
    if compacted_to > limit:
        reason = (
            f"compacted up to offset {compacted_to} after the table was planned; read"
            " again, or use inexact=mark"
        )
        start = splits[0].start_offset
        raise OffsetsGone((LostOffsets(name.topic, name.partition, start, limit, reason),))


def _check_read(question: _Question, name: TopicPartition, stats: "TableStats") -> None:
    """Raise InexactTable if records had no time, or a compaction has made the table inexact."""
    if question.at_ms is None or question.inexact == MARK:
        return
    doubt = without_time_doubt(name, stats.without_time, question.clock)
    if doubt is not None:
        raise refuse([doubt], question.at_ms)
    check_doubts(question.source, [name], question.at_ms, question.clock, question.inexact)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diff(ArrowSource):
    """Changes in a topic's table between two times. `tidelog.scan.keyed_table` defines the columns.

    Attributes:
        source: Source of the records.
        topic: The topic, or one of its partitions.
        before_ms: The earlier time in ms, inclusive.
        after_ms: The later time in ms, inclusive; None for the whole log.
        clock: Clock of `before_ms` and `after_ms`.
        inexact: `refuse` or `mark`, as in `Table`. If the earlier table is exact, the later table
            is exact, too.
        memory_bytes: Approximate limit in bytes for the keys of a partition in memory.
        key: Only this key; all keys if None.
        home: Partition to which Kafka's default partitioner sends `key`. `inexact=refuse` applies
            only to this partition, and to partitions in which the key has changed. If `home` is
            None, `inexact=refuse` applies to all partitions.
    """

    source: RecordSource
    topic: str | TopicPartition
    before_ms: int
    after_ms: int | None = None
    clock: ClockName = ClockName.RECORD
    inexact: str = REFUSE
    memory_bytes: int = MEMORY_BYTES
    key: bytes | None = None
    home: TopicPartition | None = None

    def __post_init__(self) -> None:
        """Check the arguments; raises InvalidRequest."""
        check_question(self.inexact, self.memory_bytes)
        if self.after_ms is not None and self.after_ms < self.before_ms:
            error = InvalidRequest(
                f"a diff from {format_ms(self.before_ms)} to {format_ms(self.after_ms)}: the second"
                " time must not be before the first"
            )
            raise with_times(error, self.before_ms, self.after_ms)

    def __repr__(self) -> str:
        return f"Diff({self.source.address!r}, {self._what()})"

    def _what(self) -> str:
        end = "now" if self.after_ms is None else time_text(self.after_ms)
        span = f"{time_text(self.before_ms)} to {end}"
        return f"{self.topic} from {span}, UTC, {self.clock.value} clock"

    def _repr_html_(self) -> str:
        """Return an HTML table for a notebook: the first changes, or none for a large topic."""
        caption = f"Changes in {self._what()}"
        return picture(caption, self, self.schema.names, keeps_all=True)

    @property
    def at_ms(self) -> int:
        """The earlier time in ms. If the table as of this time is exact, the later table is too."""
        return self.before_ms

    @property
    def schema(self) -> "pa.Schema":
        """Names and types of the columns."""
        needs_arrow()
        from tidelog.scan.keyed_table import DIFF_SCHEMA

        return DIFF_SCHEMA

    def doubts(self) -> list[Doubt]:
        """Return the reasons why the earlier table may differ from its past state."""
        return self.source.doubts(self._partitions(), self.before_ms, self.clock)

    def to_arrow(self, *, stats: "TableStats | None" = None) -> "pa.RecordBatchReader":
        """Return an Arrow reader of the changed keys, by partition.

        If the keys of a partition fit in memory, its changes are in order of their offsets.

        Arguments and errors are those of `Table.to_arrow`.
        """
        schema = self.schema
        import pyarrow as pa

        from tidelog.scan.keyed_table import TableStats

        names = self._partitions()
        how = fold_of(self.source, names, self.clock, self.memory_bytes)
        self._check_doubts(names)
        rows = self._diff_rows(names, how, stats or TableStats())
        return pa.RecordBatchReader.from_batches(schema, rows)

    def plan(self) -> "dict[TopicPartition, list[Split]]":
        """Plan a read of the current log, and return the splits by partition.

        Raises the errors that `to_arrow` raises immediately.
        """
        names = self._partitions()
        self._check_doubts(names)
        return self._splits(names)

    def rows_of(
        self, name: TopicPartition, splits: "Sequence[Split]", stats: "TableStats"
    ) -> "Iterator[pa.RecordBatch]":
        """Yield one partition's changes from the splits of `plan`; raises as `to_arrow` does."""
        how = fold_of(self.source, [name], self.clock, self.memory_bytes)
        yield from self._changes_of(name, splits, how, stats)

    def _splits(self, names: Sequence[TopicPartition]) -> "dict[TopicPartition, list[Split]]":
        from tidelog.scan.keyed_table import TIME_COLUMNS

        columns = (TIME_COLUMNS[self.clock],)
        return self.source.table_splits(names, self.after_ms, self.clock, columns)

    def _diff_rows(
        self, names: Sequence[TopicPartition], how: "KeyFold", stats: "TableStats"
    ) -> "Iterator[pa.RecordBatch]":
        for name, mine in self._splits(names).items():
            yield from self._changes_of(name, mine, how, stats)

    def _changes_of(
        self, name: TopicPartition, splits: "Sequence[Split]", how: "KeyFold", stats: "TableStats"
    ) -> "Iterator[pa.RecordBatch]":
        from tidelog.scan.keyed_table import TableStats, diff_rows

        mine = TableStats()
        chosen = RecordFilter(key=self.key).rows
        every = map(chosen, diff_rows(self.source, splits, how, self.before_ms, mine))
        rows = (batch for batch in every if batch.num_rows)
        if self.home in (None, name):
            yield from checked(self, name, splits, rows, mine)
        elif (first := next(rows, None)) is not None:
            yield from checked(self, name, splits, chain([first], rows), mine)
        stats.add(mine)

    def _check(self) -> None:
        needs_arrow()
        self._check_doubts(self._partitions())

    def _check_doubts(self, names: Sequence[TopicPartition]) -> None:
        checked_names = [name for name in names if self.home in (None, name)]
        check_doubts(self.source, checked_names, self.before_ms, self.clock, self.inexact)

    def _partitions(self) -> list[TopicPartition]:
        return self.source.partitions(self.topic)
