"""Reads records of a log one by one, without Arrow, for output that people read.

`PlainReads` is the interface for reads from some partitions of one source.
`RecordSource.plain_reads` returns `LogReads` of this module for a directory, and a class of
`tidelog.remote.records` for a cluster.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from tidelog.errors import OffsetsGone
from tidelog.record.record import Record, stamp_of
from tidelog.scan.split import RequestedRange, ScanStats, Split, is_in_range
from tidelog.scan.time_order import Timed
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.segment_times import append_span
from tidelog.storage.segment.gaps import lost_at_end
from tidelog.storage.segment.index_proof import time_floor
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.slices import (
    AbortedFilter,
    LogSlice,
    checked_records,
    ensure_there,
    is_hidden,
    slice_segment,
)
from tidelog.types import NO_TIMESTAMP, ClockName, IsolationLevel, TopicPartition

# Seconds between two checks for new records. The reader checks regularly, because a process that
# appends records sends no notification.
FOLLOW_SECONDS: Final = 0.2

# Generator of partitions, each with its records and their append times (ms), in order of offsets.
Parts: TypeAlias = Generator[tuple[TopicPartition, Iterator[Timed]], None, None]


class PlainReads(ABC):
    """Reads of records of some partitions, on one clock and with one isolation level."""

    @abstractmethod
    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return each partition's first offset, and the offset after its last visible record."""

    @abstractmethod
    def read(
        self, name: TopicPartition, requested_range: RequestedRange, stats: ScanStats
    ) -> Iterator[Timed]:
        """Yield the records of a range of a partition, in order of offsets."""

    @abstractmethod
    def first_at(self, name: TopicPartition, ms: int) -> int | None:
        """Return the lowest offset of a record at or after a time on the clock, None if none is."""

    @abstractmethod
    def newest_ms(self) -> int | None:
        """Return the largest time on the clock; None if no record has a known time."""

    @abstractmethod
    def existing_records(
        self, ranges: Mapping[TopicPartition, RequestedRange], stats: ScanStats
    ) -> Parts:
        """Yield the existing records of the ranges, by partition."""

    @abstractmethod
    def later_records(
        self,
        ranges: Mapping[TopicPartition, RequestedRange],
        stats: ScanStats,
        wait: Callable[[float], None],
    ) -> Parts:
        """Yield records that are appended later, up to the end offset of each range.

        If a range has no end offset, the iteration never ends.

        Args:
            ranges: Range of each partition.
            stats: Updated while reading.
            wait: Sleeps for a number of seconds between two checks for new records.
        """


class LogReads(PlainReads):
    """Reads of the logs of a directory."""

    def __init__(
        self,
        logs: Iterable[LogView],
        clock: ClockName,
        isolation: IsolationLevel,
        plan: Callable[[TopicPartition, RequestedRange], Iterable[Split]],
    ) -> None:
        """Create reads of open logs.

        Args:
            logs: The partitions.
            clock: Clock of the times.
            isolation: READ_COMMITTED leaves out records of aborted and open transactions.
            plan: Plans a read of a time range, based on zone maps.
        """
        self._plan = plan
        self._logs = {log.topic_partition: log for log in logs}
        self._clock = clock
        self._isolation = isolation

    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """See `PlainReads`."""
        return {
            name: (log.log_start_offset, log.end_offset(self._isolation))
            for name, log in self._logs.items()
        }

    def read(
        self, name: TopicPartition, requested_range: RequestedRange, stats: ScanStats
    ) -> Iterator[Timed]:
        """See `PlainReads`. For a time range, zone maps show what can be skipped."""
        if requested_range.times is None:
            yield from self._select(name, requested_range, stats)
            return
        for piece in (
            piece for split in self._plan(name, requested_range) for piece in split.pieces
        ):
            stats.without_time += piece.without_time
            if piece.size_bytes or piece.may_be_lost:
                part = replace(
                    requested_range, start_offset=piece.start_offset, end_offset=piece.end_offset
                )
                yield from self._select(name, part, stats)

    def first_at(self, name: TopicPartition, ms: int) -> int | None:
        """See `PlainReads`."""
        first = self._logs[name].offset_for_time(ms, clock=self._clock)
        return None if first is None else first.offset

    def newest_ms(self) -> int | None:
        """See `PlainReads`."""
        if self._clock is ClockName.APPEND:
            return latest(append_span(log).last_ms for log in self._logs.values())
        newest = (log.max_timestamp(steps_over_losses=True) for log in self._logs.values())
        return latest(None if one is None else one.timestamp for one in newest)

    def existing_records(
        self, ranges: Mapping[TopicPartition, RequestedRange], stats: ScanStats
    ) -> Parts:
        """See `PlainReads`."""
        for name, one in ranges.items():
            yield name, self._select(name, one, stats)

    def later_records(
        self,
        ranges: Mapping[TopicPartition, RequestedRange],
        stats: ScanStats,
        wait: Callable[[float], None],
    ) -> Parts:
        """See `PlainReads`."""
        while True:
            nexts = next_offsets(self.bounds(), ranges)
            if is_over(nexts, ranges):
                return
            wait(FOLLOW_SECONDS)
            for name, start in nexts.items():
                self._logs[name].refresh()
                yield name, self._select(name, replace(ranges[name], start_offset=start), stats)

    def _select(
        self, name: TopicPartition, requested_range: RequestedRange, stats: ScanStats
    ) -> Iterator[Timed]:
        return select(self._logs[name], requested_range, self._clock, self._isolation, stats)


def next_offsets(
    bounds: Mapping[TopicPartition, tuple[int, int]],
    ranges: Mapping[TopicPartition, RequestedRange],
) -> dict[TopicPartition, int]:
    """Return the next offset to read in each range: the visible end, or the start if it is later.

    Args:
        bounds: See `PlainReads.bounds`.
        ranges: Range of each partition.
    """
    return {name: max(bounds[name][1], one.start_offset or 0) for name, one in ranges.items()}


def is_over(
    nexts: Mapping[TopicPartition, int], ranges: Mapping[TopicPartition, RequestedRange]
) -> bool:
    """Return whether all partitions were read up to the end offsets of their ranges.

    Args:
        nexts: Next offset to read in each partition.
        ranges: Range of each partition.
    """
    ends = ((at, ranges[name].end_offset) for name, at in nexts.items())
    return all(end is not None and at >= end for at, end in ends)


def latest(times: Iterable[int | None]) -> int | None:
    """Return the largest known time in ms; None if no time is known."""
    return max((ms for ms in times if ms is not None and ms != NO_TIMESTAMP), default=None)


def select(
    log: LogView,
    requested_range: RequestedRange,
    clock: ClockName,
    isolation: IsolationLevel,
    stats: ScanStats,
) -> Iterator[tuple[Record, int | None]]:
    """Yield the records of a log in order of offsets, with append times in ms (None if unknown).

    This function is for output that people read, and needs no Arrow. `tidelog.scan` reads large
    amounts of records. Segments that can't contain a match are not opened. Records without a time
    in these segments are not counted.

    Args:
        log: The partition.
        requested_range: Offsets and times.
        clock: Clock of the times.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
        stats: `without_time` counts the records read that have no time on the clock.

    Raises:
        CorruptData: A batch is damaged.
        OffsetsGone, DamagedLog: Offsets of the range whose records may match are in no file.
    """
    times = requested_range.times
    if clock is ClockName.APPEND and requested_range.start_ms is not None and times is not None:
        # Stored append times are rounded down. So a record may be inside the range although its
        # stored time is before the range's start.
        times = max(requested_range.start_ms - log.append_slack_ms, 0), times[1]
    visible = log.end_offset(isolation)
    start = max(requested_range.start_offset or 0, log.log_start_offset)
    end = (
        visible if requested_range.end_offset is None else min(requested_range.end_offset, visible)
    )
    aborted = log.aborted_filter(isolation, start, end)
    for segment in log.segments:
        offsets = max(start, segment.base_offset), min(end, segment.end_offset)
        for first, last in _ranges(log, segment, offsets, times, clock):
            part = slice_segment(segment, first, last)
            if part is not None:
                matches = _matches(log, part, aborted, times, clock, stats)
                yield from with_timestamps(matches, requested_range, stats)
        _ensure_none_lost(log, segment, offsets, times if clock is ClockName.APPEND else None)


def _ensure_none_lost(
    log: LogView, segment: Segment, offsets: tuple[int, int], append_times: tuple[int, int] | None
) -> None:
    """Raise if offsets of a range are missing in a segment, and their records may match."""
    gap, damaged = lost_at_end(segment), segment.damaged
    if gap is not None:
        start, end = gap.start, gap.end
    elif damaged is not None and damaged.offset is not None:
        start, end = damaged.offset, segment.end_offset
    else:
        return
    if start >= offsets[1] or end <= offsets[0]:
        return
    if append_times is not None:
        before, after = log.append_time_of(start - 1), log.append_time_of(end)
        is_later = before is not None and before >= append_times[1]
        if is_later or (after is not None and after < append_times[0]):
            return
    if gap is not None:
        raise OffsetsGone((gap,))
    ensure_there(segment, offsets[1])


def _ranges(
    log: LogView,
    segment: Segment,
    offsets: tuple[int, int],
    times: tuple[int, int] | None,
    clock: ClockName,
) -> list[tuple[int, int]]:
    """Return ranges of a segment's offsets that may have matches or records without a time."""
    first, last = offsets
    if first >= last:
        return []
    if times is None:
        return [offsets]
    if clock is ClockName.APPEND:
        append_times = log.append_times_of(segment)
        timed = append_times.ranges(*times, first, last)
        return sorted(timed + append_times.unknown_in(first, last))
    if NO_TIMESTAMP < segment.largest_timestamp < times[0]:
        return []
    # Records at or before the offset of a time index entry have timestamps at or before the
    # entry's.
    floor_ms, offset = time_floor(segment, times[0] - 1)
    first = first if floor_ms == NO_TIMESTAMP else max(first, offset + 1)
    return [(first, last)] if first < last else []


def _matches(
    log: LogView,
    part: LogSlice,
    aborted: AbortedFilter,
    times: tuple[int, int] | None,
    clock: ClockName,
    stats: ScanStats,
) -> Iterator[tuple[Record, int | None]]:
    for record, append_ms in _timed_records(log, part, aborted):
        ms = record.timestamp if clock is ClockName.RECORD else append_ms
        if times is None:
            yield record, append_ms
        elif ms is None or ms == NO_TIMESTAMP:
            stats.without_time += 1
        elif is_in_range(ms, times):
            yield record, append_ms


def with_timestamps(
    records: Iterable[Timed], requested_range: RequestedRange, stats: ScanStats
) -> Iterator[Timed]:
    """Yield the records whose timestamp is in `RequestedRange.timestamps`, if this range is set."""
    timestamps = requested_range.timestamps
    for timed in records:
        ms = timed[0].timestamp
        if timestamps is None:
            yield timed
        elif ms == NO_TIMESTAMP:
            stats.without_timestamp += 1
        elif is_in_range(ms, timestamps):
            yield timed


def _timed_records(
    log: LogView, part: LogSlice, aborted: AbortedFilter
) -> Iterator[tuple[Record, int | None]]:
    """Yield the data records of a slice with their append times."""
    times = log.append_times_of(part.segment)
    for position, batch in part.batches():
        if is_hidden(part.segment, position, batch, aborted):
            continue
        for record in checked_records(part.segment, position, batch):
            if part.start_offset <= record.offset < part.end_offset:
                append_ms = times.time_at(record.offset)
                yield record, stamp_of(record) if append_ms is None else append_ms
