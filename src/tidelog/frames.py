"""Passes records to other tools: Arrow, Polars, DuckDB, pandas, and notebooks.

A `Scan` is a selection of records. A scan reads nothing until a call needs records. Each call plans
and reads again, so it returns the current content of a growing log. Polars, DuckDB and pandas are
imported only by the methods that are named after them. All calls that decode records import numpy,
pyarrow and numba.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.amounts import bytes_text, plural
from tidelog.arguments import KEYS_SHOWN, KeyOrder, choice
from tidelog.display import LINES_SHOWN, RECORDS_SHOWN, records_html, rest_text, settings_text
from tidelog.errors import InvalidRequest, MissingDependency, TidelogError
from tidelog.html_cells import html_table
from tidelog.lazy_dataclass import dataclass
from tidelog.scan import Count, RequestedRange, ScanPlan, ScanStats
from tidelog.scan.source import ReadRequest, RecordSource
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.timespec import time_text
from tidelog.timespec.calendar import CalendarUnit, ensure_countable
from tidelog.timespec.zones import zone_of
from tidelog.types import (
    INT64_MAX,
    ClockName,
    IsolationLevel,
    RecordCount,
    TopicChoice,
    TopicPartition,
)

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tidelog.scan.count_by_time import CountsByTime
    from tidelog.scan.key_counts import KeyCounts, Records, RepeatedRecords

    _Counts = TypeVar("_Counts", KeyCounts, RepeatedRecords)

# A directory's text includes the size of its logs if the directory has at most this number of
# partitions.
PARTITIONS_SIZED: Final = 100


class ArrowSource(ABC):
    """Base class of selections that a tool can read as an Arrow stream, any number of times."""

    __slots__ = ()

    @property
    @abstractmethod
    def schema(self) -> "pa.Schema":
        """Names and types of the columns; raises InvalidRequest and MissingDependency."""

    @abstractmethod
    def to_arrow(self) -> "pa.RecordBatchReader":
        """Return an Arrow reader, which reads records as its batches are requested."""

    @abstractmethod
    def _check(self) -> None:
        """Raise the errors that `to_arrow` raises immediately, because DuckDB would hide them."""

    def to_table(self) -> "pa.Table":
        """Read the records into an Arrow table; raises the errors of `to_arrow`."""
        return self.to_arrow().read_all()

    def to_polars(self) -> "pl.DataFrame":
        """Read the records into a Polars frame.

        Raises:
            MissingDependency: Polars is not installed. Also raises the errors of `to_arrow`.
        """
        try:
            import polars as pl
        except ImportError as error:
            raise _missing("to_polars", "polars", error) from error
        frame = pl.from_arrow(self.to_table())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_pandas(self) -> "pd.DataFrame":
        """Read the records into a pandas frame, with times in UTC.

        Raises:
            MissingDependency: pandas is not installed. Also raises the errors of `to_arrow`.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise _missing("to_pandas", "pandas", error) from error
        frame = self.to_table().to_pandas()
        assert isinstance(frame, pd.DataFrame)
        return frame

    def to_duckdb(
        self, connection: "duckdb.DuckDBPyConnection | None" = None, *, view: str | None = None
    ) -> "duckdb.DuckDBPyRelation":
        """Return the records as a DuckDB relation, which reads the log again for each query.

        Args:
            connection: Connection for the queries; DuckDB's default if None.
            view: Name under which the records are also registered for SQL on that connection. If
                None, they are not registered.

        Raises:
            MissingDependency: DuckDB is not installed. Errors that `to_arrow` raises immediately
                are also raised. A later error in a query is raised as DuckDB's error, whose text
                contains tidelog's message.
        """
        try:
            import duckdb
        except ImportError as error:
            raise _missing("to_duckdb", "duckdb", error) from error
        self._check()
        where = duckdb.default_connection() if connection is None else connection
        if view is not None:
            where.register(view, self)
        return where.from_arrow(self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a new stream of records; the first request for a batch plans the read."""
        needs_arrow()
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema, self._batches())
        stream: object = reader.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call] # pyarrow has no hint
        return stream

    def _batches(self) -> "Iterator[pa.RecordBatch]":
        yield from self.to_arrow()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scan(ArrowSource):
    """Records of one or more topics of a directory or of a cluster, selected by time.

    Any tool that accepts an Arrow stream accepts a scan (`__arrow_c_stream__`), and can read it
    several times: `polars.DataFrame(scan)`, `duckdb.from_arrow(scan)`, `pyarrow.table(scan)`.

    Attributes:
        source: Source of the records; a directory must be open while a plan is made.
        topics: Topics or single partitions. None means all topics; for a cluster, all topics except
            internal topics (`__…`).
        requested_range: The time range.
        clock: Clock of the range.
        columns: Names from `tidelog.scan.ALL_COLUMNS`; the default columns if None.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
        strict: Whether to raise MissingTimestamps if records have no time on that clock. If false,
            these records are left out.
    """

    source: RecordSource
    topics: TopicChoice = None
    requested_range: RequestedRange = field(default_factory=RequestedRange)
    clock: ClockName = ClockName.RECORD
    columns: Sequence[str] | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    strict: bool = False

    def __repr__(self) -> str:
        return f"Scan({self.source.address!r}, {self._what()})"

    @property
    def schema(self) -> "pa.Schema":
        """Names and types of the columns; raises the errors of `schema_of`."""
        return schema_of(self.columns)

    def plan(self) -> ScanPlan:
        """Plan the scan on the current log; raises the immediate errors of `to_arrow`."""
        return self.source.plan(self._request, columns_of(self.columns), strict=self.strict)

    @property
    def _request(self) -> ReadRequest:
        return ReadRequest(
            topics=self.topics,
            requested_range=self.requested_range,
            clock=self.clock,
            isolation=self.isolation,
        )

    def to_arrow(
        self,
        *,
        threads: int | None = None,
        stats: ScanStats | None = None,
        views: bool = False,
    ) -> "pa.RecordBatchReader":
        """Return an Arrow reader, whose batches are decoded by several threads in bounded memory.

        Args:
            threads: Number of threads; the number of cores if None. A cluster is read by one
                thread.
            stats: Statistics of the read, updated while reading.
            views: Whether to return keys and values as Arrow's `binary_view`, which refers to the
                log's own bytes, instead of copies. Only directories support views. Polars and
                DuckDB accept these views, but some of pyarrow's functions don't. As long as rows
                with views exist, their files stay mapped, even deleted files.

        Returns:
            Exactly the records in the range that exist at the time of the call, by topic, partition
            and offset. Records are read as batches are requested. Threads start with the first
            batch. The threads end with the last batch, or when the reader is dropped.

        Raises:
            UnknownTopic, InvalidRequest, ClusterFailure: Raised immediately. MissingDependency:
                Raised immediately if pyarrow, numpy or numba is not installed, or is too old for
                views.
            MissingTimestamps, CorruptData, OffsetsGone, OffsetOutOfRange, ClusterFailure: Raised
                while the records are read, after all rows before the error.
        """
        needs_arrow()
        from tidelog.scan.parallel import ROWS

        return self._read(ROWS, threads=threads, stats=stats, views=views)

    def _read(
        self,
        rows: int,
        *,
        threads: int | None = None,
        stats: ScanStats | None = None,
        views: bool = False,
    ) -> "pa.RecordBatchReader":
        """Return a reader of batches of at most `rows` rows; raises the errors of `to_arrow`."""
        needs_arrow()
        from tidelog.scan import ReadOptions

        options = ReadOptions(rows=rows, strict=self.strict, views=views)
        columns = columns_of(self.columns)
        return self.source.read(
            self.plan(), columns, stats=stats or ScanStats(), options=options, threads=threads
        )

    def count(self) -> RecordCount:
        """Return the number of records. A directory counts mostly from zone maps; see `counts`.

        With `strict`, all records are read, and MissingTimestamps is raised if a record has no
        time.
        """
        if self.strict:
            batches = replace(self, columns=("offset",)).to_arrow()
            return RecordCount(sum(batch.num_rows for batch in batches))
        counts = self.counts()
        parts = counts.partitions.values()
        if any(part.without_time is None for part in parts):
            return RecordCount(counts.records, without_time=None)
        return RecordCount(
            counts.records, without_time=counts.without_time, is_least=counts.is_least
        )

    def counts(self, *, zone_cache: str | None = None) -> Count:
        """Return the number of records by partition, and the number of bytes read to count them.

        From a cluster all records are fetched. Records without a time are counted separately, even
        with `strict`. For `zone_cache` see `tidelog.scan.count`.
        """
        return self.source.count(self._request, zone_cache=zone_cache)

    def counts_by(self, unit: str, *, zone: tzinfo | str | None = None) -> "CountsByTime":
        """Return the number of records by hour, day, week or month of their time on the clock.

        Args:
            unit: `hour`, `day`, `week` (from Monday) or `month`.
            zone: Zone of days and hours; UTC if None.

        Raises:
            InvalidRequest: The unit is unknown, the result would have more than 100,000 ranges, or
                the zone's ranges would not begin at multiples of 15 minutes in UTC.
            InvalidTime: The zone is unknown. Also raises the errors of `to_arrow`.
        """
        calendar_unit = choice(CalendarUnit, unit, "unit")
        in_zone = zone_of(zone) or UTC
        start_ms, end_ms = self.requested_range.start_ms, self.requested_range.end_ms
        if start_ms is not None and end_ms is not None and end_ms != INT64_MAX:
            # raises an error before the records are read
            ensure_countable(start_ms, end_ms, calendar_unit)
        column = "timestamp" if self.clock is ClockName.RECORD else "appendTimestamp"
        stats = ScanStats()
        needs_arrow()
        from tidelog.scan import ReadOptions
        from tidelog.scan.count_by_time import CountsByTime, by_quarter, by_unit

        planned = replace(self, columns=(column,)).plan()
        options = ReadOptions(strict=self.strict)
        quarters, null_times = by_quarter(
            self.source.read(planned, (column,), stats=stats, options=options)
        )
        untimed = self.source.without_time(
            self.source.partitions(self.topics), self.requested_range, self.clock, stats
        )
        return CountsByTime(
            counts=by_unit(quarters, calendar_unit, in_zone, self.requested_range),
            without_time=None if untimed is None else untimed + null_times,
            is_least=planned.has_skipped,
            without_timestamp=stats.without_timestamp,
        )

    def counts_by_key(
        self, *, limit: int = KEYS_SHOWN, order_by: str = KeyOrder.BYTES
    ) -> "KeyCounts":
        """Return the keys with most bytes or most records, and totals over all keys.

        All records in the range are read. If they have more than 1,048,576 keys, they are read
        several times, so that the call needs at most some 700 MB of memory more than a plain read.

        Args:
            limit: Maximum number of keys in the result, which also has the count of the records
                without a key.
            order_by: `bytes` or `records`.

        Raises:
            InvalidRequest: The scan has several topics, or an argument is invalid.
            OffsetsGone: Records were compacted or deleted meanwhile. Also the errors of `to_arrow`.
        """
        needs_arrow()
        from tidelog.scan.key_counts import count_keys

        order = choice(KeyOrder, order_by, "order_by")
        return self._counted(
            ("key", "value", "partition", "offset"),
            limit,
            lambda records: count_keys(records, limit=limit, order=order),
        )

    def repeated(self, *, limit: int = KEYS_SHOWN, with_times: bool = True) -> "RepeatedRecords":
        """Return the records that occur more than once.

        Records are equal if their keys and values have the same bytes and their create times are
        equal. An unknown create time equals only other unknown create times. Headers are not
        compared. All records in the range are read twice, or only once if all of them differ. With
        more than 33,554,432 different records or more than 1,048,576 repeated records, they are
        read more often. So the call needs at most some 700 MB of memory more than a plain read. The
        number of keys of repeated records is an estimate if it exceeds 1,048,576.

        Args:
            limit: Maximum number of records in the result.
            with_times: Whether create times are compared. If false, a state that was sent again,
                such as a heartbeat, counts as repeated, too.

        Raises:
            The errors of `counts_by_key`.
        """
        needs_arrow()
        from tidelog.scan.key_counts import find_repeated, time_columns

        return self._counted(
            ("key", "value", "partition", "offset", *time_columns(self.source)),
            limit,
            lambda records: find_repeated(records, limit=limit, with_times=with_times),
        )

    def _counted(
        self, columns: Sequence[str], limit: int, count: "Callable[[Records], _Counts]"
    ) -> "_Counts":
        """Return the result of `count`, with the number of records that have no time."""
        from tidelog.scan import ReadOptions
        from tidelog.scan.key_counts import Records

        names = self.source.partitions(self.topics)
        if len({name.topic for name in names}) > 1:
            raise InvalidRequest("keys are counted in one topic; choose one topic for the scan")
        if limit < 1:
            raise InvalidRequest(f"limit must be 1 or more, got {limit}")
        planned, stats = replace(self, columns=columns).plan(), ScanStats()
        options = ReadOptions(strict=self.strict)
        # brokers return the splits in the order of `topics`
        splits = sorted(planned.splits, key=lambda split: (split.partition, split.start_offset))
        counts = count(Records(source=self.source, splits=splits, options=options, stats=stats))
        untimed = self.source.without_time(names, self.requested_range, self.clock, stats)
        return replace(
            counts,
            without_time=untimed,
            is_least=planned.has_skipped,
            without_timestamp=stats.without_timestamp,
        )

    def _check(self) -> None:
        needs_arrow()
        self.plan()

    def _what(self) -> str:
        """Describe the selection on one line."""
        if self.topics is None:
            chosen = "all topics"
        elif isinstance(self.topics, str | TopicPartition):
            chosen = str(self.topics)
        else:
            chosen = ", ".join(map(str, self.topics))
        start, end = self.requested_range.start_ms, self.requested_range.end_ms
        if start is None and end is None:
            return chosen
        text = f"{chosen}, {self.clock.time_name} {_bound(start)} to {_bound(end)} UTC"
        if self.requested_range.timestamps is not None:
            first, last = self.requested_range.timestamps
            name = ClockName.RECORD.time_name
            text += f", {name} {_open_bound(first)} to {_open_bound(last)} UTC"
        return text

    def _repr_html_(self) -> str:
        """Return an HTML table for a notebook: selection, bytes to read, first records."""
        caption = f"Scan of {self._what()}"
        try:
            planned = self.plan()
            rows = first_rows(self._read(RECORDS_SHOWN, threads=1))
        except TidelogError as error:
            return html_table(caption, ["error"], [[str(error)]])
        note = f"first {plural(len(rows), 'record')}" if rows else "no records"
        if planned.log_bytes:  # `log_bytes` is 0 for a cluster, because brokers don't report sizes
            note += (
                f"; {bytes_text(planned.scan_bytes)} of {bytes_text(planned.log_bytes)} to be read"
                f", in {plural(len(planned), 'split')}"
            )
        columns = columns_of(self.columns)
        return records_html(caption, rows, columns, keeps_all=self.columns is not None, note=note)


def _bound(ms: int | None) -> str:
    return "open" if ms is None else time_text(ms)


def _open_bound(ms: int) -> str:
    return _bound(None if ms < 0 or ms == INT64_MAX else ms)


def first_rows(reader: "pa.RecordBatchReader") -> list[dict[str, object]]:
    """Return the first rows as dicts by column, with times as text, and close the reader."""
    import pyarrow as pa

    rows: list[dict[str, object]] = []
    for batch in reader:
        columns: list[list[object]] = []
        for column in batch.slice(0, RECORDS_SHOWN - len(rows)).columns:
            if pa.types.is_timestamp(column.type):
                # Times are converted as numbers, because a record's time may be outside Python's
                # calendar.
                columns.append([time_text(ms) for ms in column.cast(pa.int64()).to_pylist()])
            else:
                columns.append(column.to_pylist())
        rows += [
            dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
        if len(rows) >= RECORDS_SHOWN:
            break
    reader.close()
    return rows


def directory_text(log_dir: LogDir) -> str:
    """Describe a directory on one line: `'data', read only, 2 topics, 126 MB`.

    The size is left out for object stores and for more than `PARTITIONS_SIZED` partitions, because
    every partition would have to be opened to compute it.
    """
    parts = [repr(log_dir.path), "writable" if log_dir.is_writable else "read only"]
    try:
        log_dir.refresh()
        topics = log_dir.topics().values()
        parts.append(plural(len(topics), "topic"))
        partitions = sum(len(info.present) for info in topics)
        if partitions <= PARTITIONS_SIZED and "://" not in log_dir.path:
            parts.append(bytes_text(sum(_size_of(log_dir, info) for info in topics)))
    except (TidelogError, OSError) as error:
        parts.append(type(error).__name__)
    return ", ".join(parts)


def _size_of(log_dir: LogDir, info: TopicInfo) -> int:
    return sum(log_dir.reader(info.name, number).size_bytes() for number in info.present)


def directory_html(log_dir: LogDir) -> str:
    """Return a directory as an HTML table: its topics, with counts of offsets, and sizes."""
    log_dir.refresh()
    topics: Mapping[str, TopicInfo] = log_dir.topics()
    rows = [_topic_row(log_dir, info) for info in islice(topics.values(), LINES_SHOWN)]
    headings = ("topic", "partitions", "offsets", "log", "settings")
    kind = "writable" if log_dir.is_writable else "read only"
    return html_table(f"{log_dir.path} ({kind})", headings, rows, rest_text(len(topics)))


def _topic_row(log_dir: LogDir, info: TopicInfo) -> list[object]:
    offsets = size = 0
    try:
        for number in info.present:
            reader = log_dir.reader(info.name, number)
            offsets += reader.log_end_offset - reader.log_start_offset
            size += reader.size_bytes()
    except TidelogError as error:
        return [info.name, info.partitions, None, None, str(error)]
    return [info.name, info.partitions, offsets, bytes_text(size), settings_text(info)]


def columns_of(chosen: Sequence[str] | None) -> tuple[str, ...]:
    """Return the chosen columns, or the default columns if None; raises MissingDependency."""
    if chosen is not None:
        return tuple(chosen)
    needs_arrow()
    from tidelog.scan import COLUMNS

    return COLUMNS


def schema_of(chosen: Sequence[str] | None) -> "pa.Schema":
    """Return names and types of the chosen columns.

    Raises:
        MissingDependency: pyarrow, numpy or numba is not installed.
        InvalidRequest: A column does not exist.
    """
    needs_arrow()
    from tidelog.scan import schema

    return schema(columns_of(chosen))


def needs_arrow() -> None:
    """Raise MissingDependency if the packages for decoding are not installed."""
    try:
        import tidelog.scan.reader  # noqa: F401 - only to check that its imports exist
    except ImportError as error:
        raise MissingDependency(
            f"reading needs pyarrow, numpy and numba: pip install 'tidelog[arrow]' ({error})"
        ) from error


def _missing(call: str, package: str, error: ImportError) -> MissingDependency:
    return MissingDependency(f"{call} needs {package}: pip install {package} ({error})")
