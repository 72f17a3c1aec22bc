"""Searches by time for ListOffsets: on the loop what is in memory, in a thread what is not.

A search in a thread goes over the segments as they were when it began, with running maxima of its
own; what it loads serves the next search, which finds it in memory.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from tidelog.server.partitions.segment_reads import SegmentBytes, frames
from tidelog.server.runtime.threads import Work
from tidelog.storage.log.log import Log
from tidelog.storage.segment import time_search
from tidelog.storage.segment.gaps import Losses
from tidelog.storage.segment.segment import Segment
from tidelog.types import NO_TIMESTAMP, ClockName, OffsetAndTimestamp

# A search by append time may go through all rows of a segment.
ROWS_ON_THE_LOOP: Final = 4096


FoundTime: TypeAlias = OffsetAndTimestamp | None


# A search that has to be waited for begins when it is called.
Search: TypeAlias = Callable[[], Awaitable[FoundTime]]


def find_time(log: Log, timestamp_ms: int, work: Work) -> FoundTime | Search:
    """The first offset at or after a time on the clock that the topic's lookups go by.

    Errors as `LogReader.offset_for_time`, from the search where one has to be waited for.
    """
    if log.context.config.tidelog_lookup_clock is ClockName.APPEND:
        if all(_has_times(segment) for segment in log.segments) and log.knows_losses():
            with suppress(time_search.LongBatch):
                return log.offset_for_time(timestamp_ms, clock=ClockName.APPEND)
        return partial(work.run, _by_append_time, log, timestamp_ms)
    try:
        found = log.find_in_memory(timestamp_ms)
        if found is not time_search.NOT_LOADED:
            return found
    except time_search.LongBatch:
        pass
    return partial(work.run, _by_record_time, log, log.segments, timestamp_ms, log.log_start_offset)


def find_appended(log: Log, timestamp_ms: int, end: int) -> tuple[FoundTime, int]:
    """Search by append time, for a thread; errors as `LogReader.offset_for_time`.

    Returns:
        The record found below `end`, and the number of records before it (before `end` where none
        was found) whose append time is unknown.
    """
    found = _by_append_time(log, timestamp_ms)
    if found is not None and found.offset >= end:
        found = None
    behind = end if found is None else found.offset
    unknown = time_search.count_without_append_time(log.segments, log.log_start_offset, behind)
    return found, unknown


def find_max_timestamp(log: Log, work: Work) -> FoundTime | Search:
    """The first record with the largest time on the clock that the topic's lookups go by."""
    if log.context.config.tidelog_lookup_clock is ClockName.APPEND:
        return partial(work.run, _last_append_time, log)
    if all(_has_indexes(segment) for segment in log.segments) and log.knows_losses():
        with suppress(time_search.LongBatch):
            return log.max_timestamp()
    return partial(work.run, _max_timestamp, log, log.segments, log.log_start_offset)


def may_have_no_times(log: Log) -> bool:
    """Whether it takes a look at the records to say that a search found nothing for want of times.

    Cheap, and nearly always False: then some record has a time, or there is none.
    """
    if log.log_start_offset == log.log_end_offset:
        return False
    return log.segments[-1].largest_timestamp == NO_TIMESTAMP


async def has_no_times(log: Log, work: Work) -> bool:
    """Whether a log holds records, and all of them are of magic 0, which knows no times.

    Source: KIP-79 (UNSUPPORTED_FOR_MESSAGE_FORMAT); mixed logs are searched where they have times.
    """
    return may_have_no_times(log) and await work.run(_is_all_magic_0, log, log.segments)


def _has_indexes(segment: Segment) -> bool:
    return segment.has_indexes and not segment.is_tiered


def _has_times(segment: Segment) -> bool:
    if segment.is_tiered or not segment.has_append_times:
        return False
    return segment.append_times.row_count <= ROWS_ON_THE_LOOP


def _by_record_time(
    log: Log, segments: Sequence[Segment], timestamp_ms: int, start: int
) -> FoundTime:
    search = log.new_search()
    maxima = time_search.RunningMaxima()
    return time_search.find_by_record_time(segments, maxima, timestamp_ms, start, search=search)


def _max_timestamp(log: Log, segments: Sequence[Segment], start: int) -> FoundTime:
    return time_search.find_max_timestamp(segments, start, Losses(), search=log.new_search())


def _by_append_time(log: Log, timestamp_ms: int) -> FoundTime:
    first_ms = timestamp_ms - log.append_slack_ms
    start = log.log_start_offset
    return time_search.find_by_append_time(log.segments, first_ms, start, Losses())


def _last_append_time(log: Log) -> FoundTime:
    """The first record of the last known append time: they never run back."""
    last = None
    for segment in reversed(log.segments):
        last = segment.append_times.last_known_ms
        if last is not None:
            break
    return None if last is None else _by_append_time(log, last + log.append_slack_ms)


def _is_all_magic_0(log: Log, segments: Sequence[Segment]) -> bool:
    """Whether no batch is of a later format; the newest segments would tell soonest."""
    source = SegmentBytes(log.context.pool, may_block=True)
    for segment in reversed(segments):
        for frame in frames(segment, 0, segment.size_bytes, source):
            if frame.magic:
                return False
    return True
