"""Reads records of a log one by one, without Arrow, for output that people read."""

from collections.abc import Iterator

from tidelog.record.record import Record, stamp_of
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.index_proof import time_floor
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.slices import (
    AbortedFilter,
    LogSlice,
    checked_records,
    is_hidden,
    slice_segment,
)
from tidelog.types import NO_TIMESTAMP, ClockName, IsolationLevel


def select(
    log: LogView,
    wanted: RequestedRange,
    clock: ClockName,
    isolation: IsolationLevel,
    stats: ScanStats,
) -> Iterator[tuple[Record, int | None]]:
    """Yield records of a log by offset, with append times if known (ms).

    For output that people read, without Arrow; `tidelog.scan` does the same at scale. Segments that
    can't hold a match are not opened, and their records without a time are not counted.

    Args:
        log: The partition.
        wanted: Offsets and times.
        clock: Clock of the times.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
        stats: `without_time` counts the records read that have no time on the clock.

    Raises:
        CorruptData: A batch is damaged.
    """
    times = wanted.times
    if clock is ClockName.APPEND and wanted.start_ms is not None and times is not None:
        # Append times are rounded down: a record with an earlier append time may be in the range.
        times = max(wanted.start_ms - log.append_slack_ms, 0), times[1]
    visible = log.end_offset(isolation)
    start = max(wanted.start_offset or 0, log.log_start_offset)
    end = visible if wanted.end_offset is None else min(wanted.end_offset, visible)
    aborted = log.aborted_filter(isolation, start, end)
    for segment in log.segments:
        offsets = max(start, segment.base_offset), min(end, segment.end_offset)
        for first, last in _ranges(log, segment, offsets, times, clock):
            part = slice_segment(segment, first, last)
            if part is not None:
                yield from _matches(log, part, aborted, times, clock, stats)


def _ranges(
    log: LogView,
    segment: Segment,
    offsets: tuple[int, int],
    times: tuple[int, int] | None,
    clock: ClockName,
) -> list[tuple[int, int]]:
    """Return ranges of a segment's offsets that may hold matches or records without a time."""
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
    # No record up to an entry's offset has a larger timestamp than the entry.
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
        elif times[0] <= ms < times[1]:
            yield record, append_ms


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
