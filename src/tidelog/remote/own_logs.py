"""Counts and append times from the directory of a broker of the cluster.

The directory shows what Kafka's brokers don't report: when each record was appended, and how many
records are between two offsets. Brokers may write to the directory during a call; every call sees
the directory's current state. If the directory is not available, a count of records is only an
upper bound, unless the records are fetched and counted.
"""

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from tidelog.directory import Directory
from tidelog.errors import InvalidRequest, UnknownTopic, with_times
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch_walk import Batch
from tidelog.remote.view import ClusterView, Count
from tidelog.storage import files
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.slices import AbortedFilter, LogSlice, checked_records, slice_segment
from tidelog.timespec import format_ms
from tidelog.types import (
    NO_TIMESTAMP,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TimestampType,
    TopicPartition,
)

_Result = TypeVar("_Result")

# Maximum number of attempts to read. An attempt may fail because compaction or retention replaces
# files.
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class TimedRecord:
    """Offset of a record and its times in ms; None for an unknown time.

    `append_ms` is exact: it comes from the log's own append times, or is a LogAppendTime timestamp.
    """

    offset: int
    append_ms: int | None
    record_ms: int | None


class OwnLogs:
    """Directory of a broker of the cluster; its topics must have the same ids as in the cluster."""

    def __init__(self, directory: Directory, cluster: ClusterView) -> None:
        self._directory = directory
        self._cluster = cluster
        self._checked: dict[str, bool] = {}

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the directory has the partition, and its topic has the cluster's topic id.

        The ids are compared only if both are known.

        Raises:
            InvalidRequest: The directory has another topic of that name, with a different id.
        """
        topic = partition.topic
        if topic not in self._checked:
            self._checked[topic] = self._has_same_id(topic)
        if not self._checked[topic]:
            return False
        return partition.partition in self._directory.topic(topic).present

    def _has_same_id(self, topic: str) -> bool:
        try:
            info = self._directory.topic(topic)
        except UnknownTopic:
            return False
        ours = None if info.topic_id is None else files.encode_topic_id(info.topic_id)
        theirs = self._cluster.topic_id(topic)
        if ours is not None and theirs is not None and ours != theirs:
            raise InvalidRequest(
                f"{self._directory.path}: topic {topic} has id {ours} here and id {theirs} on"
                f" {self._cluster.bootstrap}; --data must be the directory of a broker of that"
                " cluster"
            )
        return True

    def count(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Count:
        """Return the number of data records with offsets in [start, end).

        The count is exact if `end` is at or below the directory's log end. With a higher `end` the
        count is an upper bound, because each offset at or above the log end counts as one record.
        """

        def count(log: LogView) -> Count:
            known_end = max(min(end, log.log_end_offset), start)
            first = max(start, log.log_start_offset)
            counted = count_records(log, first, known_end, isolation)
            return Count(counted + end - known_end, is_exact=known_end == end)

        return self._retry(partition, count)

    def first_record(
        self,
        partition: TopicPartition,
        offset: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> TimedRecord | None:
        """Return the first data record at or after an offset; None if there is none."""
        return self._retry(partition, lambda log: first_record(log, offset, isolation))

    def first_appended(self, partition: TopicPartition, time_ms: int) -> OffsetAndTimestamp | None:
        """Return the first record that was appended at `time_ms` or later; None if there is none.

        Raises:
            InvalidRequest: The record before the match has no known append time, and may itself be
                the first match. Also raised if no record matches, and the log's last record has no
                known append time.
        """

        def search(log: LogView) -> OffsetAndTimestamp | None:
            match = log.offset_for_time(time_ms, clock=ClockName.APPEND)
            _refuse_unknown(log, log.log_end_offset if match is None else match.offset, time_ms)
            return match

        return self._retry(partition, search)

    def _retry(self, partition: TopicPartition, read: Callable[[LogView], _Result]) -> _Result:
        for _ in range(_TRIES - 1):
            try:
                return read(self._directory.partition(partition.topic, partition.partition))
            except FileNotFoundError:
                continue
        return read(self._directory.partition(partition.topic, partition.partition))


def first_record(log: LogView, offset: int, isolation: IsolationLevel) -> TimedRecord | None:
    """Return a log's first data record at or after an offset; None if there is none."""
    first = max(offset, log.log_start_offset)
    if first >= log.log_end_offset:
        return None
    for record in log.records(first, isolation=isolation):
        create_ms = None if record.timestamp == NO_TIMESTAMP else record.timestamp
        stamped = record.timestamp_type is TimestampType.LOG_APPEND_TIME
        append_ms = log.append_time_of(record.offset)
        time_ms = create_ms if append_ms is None and stamped else append_ms
        return TimedRecord(record.offset, time_ms, create_ms)
    return None


def _refuse_unknown(log: LogView, end: int, time_ms: int) -> None:
    """Raise InvalidRequest if a record below `end` may have been appended at `time_ms` or later.

    The caller's search has found no record below `end` with a known append time of `time_ms` or
    later. Append times never decrease, so if the last record below `end` has a known append time,
    no record below `end` was appended at `time_ms` or later.
    """
    last = _last_below(log, end)
    if last is None or log.append_time_of(last) is not None:
        return
    error = InvalidRequest(
        f"{log.topic_partition}: offset {last} has no known append time, so records up to this"
        f" offset may have been appended at {format_ms(time_ms)} or later; use --clock record"
    )
    raise with_times(error, time_ms)


def _last_below(log: LogView, end: int) -> int | None:
    """Return the offset of the last data record below `end`; None if there is none."""
    step = 1
    while True:
        start = max(end - step, log.log_start_offset)
        offsets = [record.offset for record in log.records(start, end)]
        if offsets or start == log.log_start_offset:
            return offsets[-1] if offsets else None
        step *= 2


def count_records(
    log: LogView,
    start: int,
    end: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> int:
    """Return the exact number of a log's data records with offsets in [start, end)."""
    if start >= end:
        return 0
    last = min(end, log.end_offset(isolation))
    aborted = log.aborted_filter(isolation, start, last)
    return sum(_count_segment(segment, start, last, aborted) for segment in log.segments)


def _count_segment(segment: Segment, start: int, end: int, aborted: AbortedFilter) -> int:
    """Return the number of a segment's data records with offsets in [start, end).

    The number comes from the segment's zone map if the segment is finished, is in the range as a
    whole, and can't have aborted records. In all other cases the segment's batches are read to
    count their records.
    """
    if not segment.is_active and start <= segment.base_offset < segment.end_offset:
        zones = segment.zones if segment.end_offset <= end else None
        if zones is not None and not (aborted and zones.total.is_transactional):
            return zones.total.data_records
    part = slice_segment(segment, start, end)
    return 0 if part is None else _count_slice(part, start, end, aborted)


def _count_slice(part: LogSlice, start: int, end: int, aborted: AbortedFilter) -> int:
    return sum(
        _count_batch(part, position, batch, start, end)
        for position, batch in part.batches()
        if not batch.is_control and not aborted.drops(batch)
    )


def _count_batch(part: LogSlice, position: int, batch: Batch, start: int, end: int) -> int:
    """Return the number of a batch's records in the range; decodes records only if needed."""
    count = batch.record_count
    if count is not None and start <= batch.base_offset and batch.last_offset < end:
        return count
    records = checked_records(part.segment, position, batch)
    return sum(start <= record.offset < end for record in records)


# Function that returns the number of data records of a partition with offsets in [start, end).
Counter: TypeAlias = Callable[[TopicPartition, int, int], Count]


def by_offsets(_partition: TopicPartition, start: int, end: int) -> Count:
    """Return the number of offsets as an upper bound, because some offsets may have no record."""
    return Count(max(end - start, 0), is_exact=end <= start)


def counter(
    cluster: ClusterView,
    own: OwnLogs | None,
    *,
    by_reading: bool = False,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Counter:
    """Return the most exact counter that is available.

    Args:
        cluster: The cluster, to read records from.
        own: Directory of a broker of the cluster, in which records are counted without fetching.
        by_reading: Whether to fetch and count the records if no directory has the partition. Such a
            count transfers all bytes of the range, because brokers send whole batches.
        isolation: With READ_COMMITTED, records of aborted transactions don't count.
    """

    def count(partition: TopicPartition, start: int, end: int) -> Count:
        if start >= end:
            return Count(0, is_exact=True)
        if own is not None and own.has(partition):
            return own.count(partition, start, end, isolation)
        if by_reading:
            records = cluster.records(partition, start, end, isolation=isolation)
            return Count(sum(1 for _ in records), is_exact=True)
        return by_offsets(partition, start, end)

    return count
