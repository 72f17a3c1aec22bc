"""Calls that exist both for the topics of a directory and for the topics of a cluster.

`FrontDoor` has the signature and docstring of each of these calls. Its abstract methods are
implemented by `tidelog.directory.Directory` and `tidelog.remote.remote_directory.RemoteDirectory`.
Both classes also define calls whose signatures differ between directories and clusters: topics,
settings, appends.

This module opens no files or connections. The only attribute of a `FrontDoor` is its environment.
Arguments are checked before an abstract method is called. Calls that need Arrow import it
themselves.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tidelog.arguments import level_of, reads_arguments
from tidelog.closing import Closing
from tidelog.display import Offsets
from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.record.partitioner import partition_of
from tidelog.record.record import Record, with_append_time
from tidelog.storage.log.log_reader import unknown_times_note
from tidelog.timespec import OPEN_END, OPEN_START, parse_point, parse_range
from tidelog.types import (
    INT64_MIN,
    ClockName,
    Isolation,
    IsolationLevel,
    OffsetAndTimestamp,
    RecordCount,
    TimeMatch,
    TimeSpan,
    TopicChoice,
    TopicPartition,
    bytes_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.frames import Scan
    from tidelog.keyed import Diff, Table
    from tidelog.scan import RequestedRange, ScanStats
    from tidelog.scan.source import RecordSource
    from tidelog.scan.time_order import Timed

_LOGGER = logging.getLogger(__name__)

# A point in time: ms since the epoch, or text in the grammar of docs/time.md.
When = int | str


@reads_arguments()
class FrontDoor(Closing):
    """Topics of a directory or of a cluster: lookups by time, reads, tables by key."""

    # Whether a failed `load_once` has appended nothing; if False, some rows may be in the topic.
    loads_are_atomic: ClassVar[bool]

    def __init__(self, env: Env) -> None:
        self._env = env

    # -- hooks of the subclasses ----------------------------------------------------------------

    @abstractmethod
    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic; raises UnknownTopic."""

    @abstractmethod
    def log_sizes(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the sizes in bytes of each topic's log files, one size for each segment.

        The result is empty for a cluster, which doesn't report sizes. For a directory, the method
        opens no log, and raises UnknownTopic if a topic doesn't exist.
        """

    @abstractmethod
    def add_partitions(self, topic: str, count: int) -> None:
        """Increase a topic's number of partitions to `count`.

        Existing records stay in their partitions, but new records of a key may go to another
        partition.

        Raises:
            UnknownTopic: The topic doesn't exist.
            InvalidPartitions: `count` is too large, or is not larger than the current number of
                partitions.
            ReadOnly, StorageFailure: The directory is open for reading, or its disk failed.
            NotAuthorized, ClusterFailure: The cluster refuses the request, or can't be reached.
        """

    @abstractmethod
    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below these offsets: move the log start of each partition.

        Retention later deletes the files that have no remaining record. Source: KIP-107.

        Args:
            offsets: First offset to keep in each partition. An offset at or below the log start
                changes nothing.

        Returns:
            The new log start of each partition.

        Raises:
            UnknownTopic: A topic or partition does not exist.
            OffsetOutOfRange: An offset is negative or above the end of its partition; nothing is
                deleted.
            PolicyViolation: `cleanup.policy` of a topic is `compact` alone. In a directory, nothing
                is deleted.
            ReadOnly, StorageFailure: The directory is open for reading, or its disk failed.
            NotAuthorized, ClusterFailure: The cluster refuses the request, or can't be reached.
            Unless stated otherwise above, records of some partitions may have been deleted before
            the error.
        """

    @abstractmethod
    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, the record with the largest timestamp.

        If several records of a partition have the largest time, the first of these records is
        returned. A partition's entry is None if none of its records has a time. After records were
        deleted, a Kafka broker may return a record below the log start. Source: KIP-734.

        Raises:
            UnknownTopic, ClusterFailure: A topic or partition doesn't exist, or the cluster doesn't
                respond.
        """

    @abstractmethod
    def search_times(
        self, times: Mapping[TopicPartition, int], clock: ClockName
    ) -> dict[TopicPartition, TimeMatch]:
        """Search like `offsets_for_times`, but without a warning.

        The result has the number of records whose append time is unknown, even without a match.
        """

    @abstractmethod
    def _time_spans(
        self, partitions: list[TopicPartition], clock: ClockName
    ) -> dict[TopicPartition, TimeSpan]:
        """See `time_spans`."""

    @abstractmethod
    def _starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `beginning_offsets`."""

    @abstractmethod
    def _ends(
        self, partitions: Iterable[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        """See `end_offsets`."""

    @abstractmethod
    def _records(
        self, topic: str, isolation: IsolationLevel
    ) -> Iterator[tuple[TopicPartition, Record]]:
        """See `records`."""

    def _checked_partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions; raises MissingFile if one of them has lost its directory."""
        return self.partitions(topic)

    def _knows_partitions(self, topic: str) -> bool:  # noqa: ARG002 - a cluster knows all of them
        """Return whether the number of a topic's partitions is known."""
        return True

    @property
    @abstractmethod
    def source(self) -> "RecordSource":
        """Source of records for scans and tables. Used by callers that plan reads themselves."""

    # -- lookups by time -----------------------------------------------------------------------

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the lowest offset of a record at or after a time, for each partition (KIP-79).

        Args:
            times: Time for each partition, in ms since the epoch, 0 or more.
            clock: `record` or `append`. In a cluster, append times are known to tidelog's brokers,
                and to other brokers on topics with LogAppendTime.

        Returns:
            An entry for every partition of `times`; None if no record is at or after the time. On
            the append clock, `without_time` is the number of records before the result whose append
            time is unknown, or None if the brokers don't report it. For a partition whose entry is
            None, `without_append_time` returns the number of records whose append time is unknown
            in the whole partition. A warning is logged if this number is not 0.

        Raises:
            InvalidTime, InvalidChoice: A time is negative, or the clock is unknown.
            UnknownTopic: A topic or partition does not exist.
            MissingFile: The topics file lists a partition that has no directory.
            InvalidRequest: An argument has another type, or the brokers don't know append times.
            ClusterFailure: The cluster doesn't respond.
        """
        chosen = ClockName(clock)
        matches = self.search_times(times, chosen)
        for name, match in matches.items():
            if match.hit is None and match.without_time:
                _LOGGER.warning("%s", unknown_times_note(name, match.without_time))
        return Offsets({name: match.hit for name, match in matches.items()}, chosen)

    def offsets_at(
        self, topic: str, when: When, *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the result of `offsets_for_times` for one time in every partition of a topic.

        Args:
            topic: Name of the topic.
            when: ms since the epoch, or text such as `2013-02-08 12:00 America/New_York`, `-6h`.
            clock: `record` or `append`.

        Raises:
            InvalidTime: `when` is no point in time. Also raises the errors of `offsets_for_times`.
            MissingFile: The topics file lists a partition that has no directory.
        """
        time_ms = self.point(when)
        names = self._checked_partitions(topic)
        return self.offsets_for_times(dict.fromkeys(names, time_ms), clock=clock)

    def time_spans(
        self, topic: str, *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, TimeSpan]:
        """Return the smallest and largest time of each partition of a topic on one clock.

        Args:
            topic: Name of the topic.
            clock: `record` or `append`.

        Returns:
            An entry for every partition; both times are None if the partition has no records.
            Transaction markers are ignored. On the append clock, the times are the first and the
            last known append time. The smallest timestamp is None if large segments without a
            zone map would have to be read. For a cluster, the smallest timestamp is always None,
            because brokers don't report it. The largest timestamp is None if a transaction marker
            in the partition has a later time than every record.

        Raises:
            UnknownTopic, ClusterFailure: The topic doesn't exist, or the cluster doesn't respond.
            MissingFile: The topics file lists a partition that has no directory.
        """
        return self._time_spans(self._checked_partitions(topic), ClockName(clock))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return each partition's first readable offset.

        Raises UnknownTopic, MissingFile (see `offsets_for_times`), ClusterFailure.

        Source: KIP-79.
        """
        return self._starts(partitions)

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """Return each partition's end offset (exclusive): readers receive only records before it.

        With READ_COMMITTED, the end offset is the last stable offset. Raises UnknownTopic,
        MissingFile (see `offsets_for_times`), ClusterFailure. Source: KIP-79.
        """
        return self._ends(partitions, level_of(isolation))

    def point(self, when: When) -> int:
        """Return a point in time in ms; docs/time.md describes the text; raises InvalidTime."""
        if isinstance(when, int):
            return when
        return parse_point(when, now_ms=self._env.clock.now_ms())

    def range(self, text: str) -> tuple[int, int]:
        """Return the range [start, end) in ms of a text such as `-6h..now`; raises InvalidTime."""
        return parse_range(text, now_ms=self._env.clock.now_ms())

    # -- reading -------------------------------------------------------------------------------

    def records(
        self,
        topic: str,
        *,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[tuple[TopicPartition, Record]]:
        """Yield every record of a topic with its append time, by partition.

        The method is meant for small amounts of records.

        In a cluster, tidelog's brokers report append times only on connections that use neither
        TLS nor SASL. With other brokers, or over TLS or SASL, only records with a LogAppendTime
        timestamp have an append time.

        Raises MissingFile before the first record if the topics file lists a partition that has no
        directory.
        """
        return self._records(topic, level_of(isolation))

    def tail(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topic: str | TopicPartition,
        count: int,
        *,
        key: str | bytes | None = None,
        start: When | None = None,
        end: When | None = None,
        during: str | None = None,
        clock: str = ClockName.RECORD,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[tuple[TopicPartition, Record]]:
        """Return the last records by time over all partitions, in order of time.

        The method is meant for small numbers of records.

        It first reads the end of each partition, then the earlier parts that may contain a record
        of the result. Keys are not indexed, so a search for a key reads more records: the whole
        range if few records have this key.

        Args:
            topic: Name of the topic, or one of its partitions.
            count: Maximum number of records.
            key: Only records with this key; text is encoded as UTF-8. All records if None.
            start: Only records from this time on, inclusive; no limit if None.
            end: Only records before this time; no limit if None.
            during: Start and end as one text: `2013-02-08Z`, `-6h..now`.
            clock: Clock of the order and of the range: `record` or `append`.
            isolation: READ_COMMITTED leaves out records of aborted and open transactions.

        Returns:
            Each record with its partition and append time; equal times are ordered by partition and
            offset. Records without a time on the clock are left out.

        Raises:
            InvalidTime, InvalidRequest: An argument is invalid, e.g. `count` is negative.
            UnknownTopic, ClusterFailure: The topic doesn't exist, or the cluster doesn't respond.
            MissingFile: The topics file lists a partition that has no directory.
            CorruptData: A batch that had to be read is damaged.
        """
        from tidelog.scan.record_filter import RecordFilter
        from tidelog.scan.time_order import TimeOrder, clipped

        if count < 0:
            raise InvalidRequest(f"count must be 0 or more, got {count}")
        requested_range, source = self._requested_range(start, end, during), self.source
        conditions = RecordFilter(key=bytes_of("key", key))
        names = source.checked_partitions(topic)
        by, level = ClockName(clock), level_of(isolation)
        with source.plain_reads(names, by, level) as reads:

            def read(
                name: TopicPartition, part: "RequestedRange", stats: "ScanStats"
            ) -> "Iterator[Timed]":
                for timed in reads.read(name, part, stats):
                    if conditions.is_met(timed[0].key, timed[0].value):
                        yield timed

            order = TimeOrder(
                read=read,
                first_at=reads.first_at,
                ranges=clipped(dict.fromkeys(names, requested_range), reads.bounds()),
                clock=by,
            )
            of_number = {name.partition: name for name in names}
            return [
                (of_number[one.partition], with_append_time(one.record, one.append_ms))
                for one in order.last(count)
            ]

    def read(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topic: str,
        *,
        start: When | None = None,
        end: When | None = None,
        during: str | None = None,
        clock: str = ClockName.RECORD,
        timestamps: str | tuple[int, int] | None = None,
        columns: Sequence[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        strict: bool = False,
        stats: "ScanStats | None" = None,
    ) -> "pa.RecordBatchReader":
        """Return the records of a topic, or of a time range in it, as an Arrow reader.

        Args:
            topic: Name of the topic.
            start: Start of the range, inclusive; no limit if None.
            end: End of the range, exclusive; no limit if None.
            during: Start and end as one text: `2013-02-08Z`, `-6h..now`.
            clock: Clock of the range: `record` or `append`.
            timestamps: With a range of append times: also the range of timestamps, as text like
                `during` or as [start, end) in ms. So `during` and `timestamps` together select
                records on both clocks.
            columns: Names from `tidelog.scan.ALL_COLUMNS`; the default columns if None.
            isolation: READ_COMMITTED leaves out records of aborted and open transactions.
            strict: Whether to raise MissingTimestamps if records have no time on that clock. If
                false, these records are left out.
            stats: Rows and bytes read, and records without a time; updated while reading.

        Returns:
            Exactly the records of the range in the log at the time of the call, by partition and
            offset; create times can be in any order. If the range is by create time, a cluster
            sends all records from the first one at or after the range's start, because any later
            record may also be in the range (docs/connect.md).

        Raises:
            InvalidTime: `start`, `end` or `during` is invalid.
            InvalidRequest: A column doesn't exist, `during` is combined with `start` or `end`, or
                the brokers don't know append times.
            UnknownTopic, ClusterFailure: The topic doesn't exist, or the cluster doesn't respond.
            MissingDependency: pyarrow, numpy or numba is not installed. MissingTimestamps,
            CorruptData, OffsetsGone, OffsetOutOfRange: Raised while the records are read.
        """
        scan = self.scan(
            topic,
            start=start,
            end=end,
            during=during,
            clock=clock,
            timestamps=timestamps,
            columns=columns,
            isolation=isolation,
            strict=strict,
        )
        return scan.to_arrow(threads=1, stats=stats)

    def count(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topic: str,
        *,
        start: When | None = None,
        end: When | None = None,
        during: str | None = None,
        clock: str = ClockName.RECORD,
        timestamps: str | tuple[int, int] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> RecordCount:
        """Return the number of records that `read` returns for the same range.

        In a directory, most records are counted from zone maps. From a cluster, all records are
        fetched.

        Returns:
            The number, an int. Its attribute `without_time` is the number of records that are not
            counted because they have no time on the clock.

        Raises:
            The errors of `read`. For counts by partition see `tidelog.scan.count`.
        """
        scan = self.scan(
            topic,
            start=start,
            end=end,
            during=during,
            clock=clock,
            timestamps=timestamps,
            isolation=isolation,
        )
        return scan.count()

    def scan(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topics: TopicChoice = None,
        *,
        start: When | None = None,
        end: When | None = None,
        during: str | None = None,
        clock: str = ClockName.RECORD,
        timestamps: str | tuple[int, int] | None = None,
        columns: Sequence[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        strict: bool = False,
    ) -> "Scan":
        """Return records for Arrow, Polars, DuckDB or pandas; reads nothing until rows are needed.

        Args:
            topics: Topics or single partitions. None means all topics; for a cluster, all except
                internal topics, whose names begin with `__`.
            start: Start of the range, inclusive; no limit if None.
            end: End of the range, exclusive; no limit if None.
            during: Start and end as one text: `2013-02-08Z`, `-6h..now`.
            clock: Clock of the range: `record` or `append`.
            timestamps: With a range of append times: also the range of timestamps, as text like
                `during` or as [start, end) in ms. So `during` and `timestamps` together select
                records on both clocks.
            columns: Names from `tidelog.scan.ALL_COLUMNS`; the default columns if None.
            isolation: READ_COMMITTED leaves out records of aborted and open transactions.
            strict: Whether to raise MissingTimestamps if records have no time on that clock. If
                false, these records are left out.

        Raises:
            InvalidTime: `start`, `end`, `during` or `timestamps` is invalid.
            InvalidRequest: Another argument is invalid, `during` is combined with `start` or
                `end`, or `timestamps` ends before it starts, or is given without a range of append
                times.
        """
        from tidelog.frames import Scan
        from tidelog.scan.split import ensure_two_clocks

        if topics is not None and not isinstance(topics, str | TopicPartition):
            topics = tuple(topics)  # makes a tuple, because an iterator could be used only once
        by = ClockName(clock)
        requested_range = self._requested_range(start, end, during)
        if timestamps is not None:
            if isinstance(timestamps, str):
                low, high = self.range(timestamps)
                timestamps = INT64_MIN if low == OPEN_START else low, high
            requested_range = replace(requested_range, timestamps=timestamps)
            ensure_two_clocks(requested_range, by)
        return Scan(
            source=self.source,
            topics=topics,
            requested_range=requested_range,
            clock=by,
            columns=columns,
            isolation=level_of(isolation),
            strict=strict,
        )

    def _requested_range(
        self, start: When | None, end: When | None, during: str | None
    ) -> "RequestedRange":
        """Return the time range of a scan's arguments."""
        from tidelog.scan import RequestedRange

        first, last = self._maybe_point(start), self._maybe_point(end)
        if during is None:
            return RequestedRange(start_ms=first, end_ms=last)
        if (start, end) != (None, None):
            raise InvalidRequest(f"during={during!r} is a whole range; leave start and end out")
        low, high = self.range(during)
        return RequestedRange(
            start_ms=None if low == OPEN_START else low, end_ms=None if high == OPEN_END else high
        )

    def _maybe_point(self, when: When | None) -> int | None:
        return None if when is None else self.point(when)

    # -- tables by key -------------------------------------------------------------------------

    def table(
        self,
        topic: str | TopicPartition,
        *,
        at: When | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        inexact: str = "refuse",
    ) -> "Table":
        """Return a topic as a table as of a time: the winning record of each key (docs/tables.md).

        The topic's compaction rule chooses the winner of each key among a partition's committed
        records up to that time, inclusive. If the winner is a tombstone, the key is left out.
        Records without a key are left out.

        Brokers don't report which records compaction removed. A table as of a time, read from a
        cluster, is therefore inexact if the topic is compacted, or if its first records were
        deleted.

        Args:
            topic: Name of the topic, or one of its partitions.
            at: The time; None for the whole log.
            clock: Clock of that time: `record` or `append`.
            columns: Names from `tidelog.scan.ALL_COLUMNS`; the default columns if None.
            inexact: `refuse` raises InexactTable if records of the table at that time, or their
                times, may be missing. `mark` returns the remaining records, and `Table.doubts`
                returns the reasons.

        Raises:
            InvalidTime, InvalidRequest: `at` is not a valid time, or another argument is invalid.
                The errors of `Table.to_arrow` are raised only when the table is read.
        """
        from tidelog.keyed import Table

        return Table(
            source=self.source,
            topic=topic,
            at_ms=self._maybe_point(at),
            clock=ClockName(clock),
            columns=columns,
            inexact=inexact,
        )

    def diff(
        self,
        topic: str | TopicPartition,
        before: When,
        after: When | None = None,
        *,
        key: str | bytes | None = None,
        clock: str = ClockName.RECORD,
        inexact: str = "refuse",
    ) -> "Diff":
        """Return the keys that were added, changed or deleted in a topic's table between two times.

        Args:
            topic: Name of the topic, or one of its partitions.
            before: The earlier time, inclusive: records of that time are in the first table.
            after: The later time, inclusive; None for the whole log.
            key: Only this key; text is encoded as UTF-8. All keys if None. If a key of a whole
                topic is given, `refuse` applies only to the partition to which Kafka's default
                partitioner sends the key, and to partitions in which the key has changed. If
                another program created a directory's topic, the number of partitions is unknown, so
                `refuse` applies to all partitions.
            clock: Clock of `before` and `after`: `record` or `append`.
            inexact: `refuse` or `mark`, as in `table`.

        Raises:
            InvalidTime, InvalidRequest: An argument is invalid as for `table`, or `after` is
                earlier than `before`.
            UnknownTopic, ClusterFailure: The topic doesn't exist, or the cluster doesn't respond.
                This method raises them only if a key is given.
        """
        from tidelog.keyed import Diff

        chosen, home = bytes_of("key", key), None
        if chosen is not None and isinstance(topic, str):
            names = self.partitions(topic)
            if self._knows_partitions(topic) and names[-1].partition == len(names) - 1:
                home = names[partition_of(chosen, len(names))]
        return Diff(
            source=self.source,
            topic=topic,
            before_ms=self.point(before),
            after_ms=self._maybe_point(after),
            clock=ClockName(clock),
            inexact=inexact,
            key=chosen,
            home=home,
        )
