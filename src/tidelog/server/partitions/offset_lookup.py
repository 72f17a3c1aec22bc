"""Offset for a time in a broker's partition: on the event loop from memory, else in a thread.

A search in a thread has running maxima of its own; what it loads into the segments serves the next
search, which finds it in memory. Searching itself is storage's (`storage.segment.time_search`).
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from tidelog.server.partitions.segment_reads import SegmentBytes, frames
from tidelog.server.runtime.threads import Work
from tidelog.storage.log.log import Log
from tidelog.storage.segment.segment import ColdRead, Segment
from tidelog.types import MAX_TIMESTAMP, NO_TIMESTAMP, ClockName, OffsetAndTimestamp

# A record and its time, None where no record is that late.
Match: TypeAlias = OffsetAndTimestamp | None

# A search that has to be waited for; it begins when this is called.
Search: TypeAlias = Callable[[], Awaitable[Match]]


def find_offset(log: Log, time_ms: int, work: Work) -> Match | Search:
    """Find the first record at or after a time, on the clock that the topic's lookups go by.

    Args:
        log: The partition's log.
        time_ms: Time in ms, 0 or more, or MAX_TIMESTAMP for the first record of the latest time.
        work: Threads for what is not in memory.

    Raises:
        Errors as `LogReader.offset_for_time`, from the returned search where there is one.
    """
    clock = log.context.config.tidelog_lookup_clock
    try:
        if time_ms == MAX_TIMESTAMP:
            return log.max_timestamp(clock=clock, may_block=False)
        return log.offset_for_time(time_ms, clock=clock, may_block=False)
    except ColdRead:
        return partial(work.run, _find_in_thread, log, time_ms, clock)


def _find_in_thread(log: Log, time_ms: int, clock: ClockName) -> Match:
    if time_ms == MAX_TIMESTAMP:
        return log.max_timestamp(clock=clock, search=log.new_search())
    return log.offset_for_time(time_ms, clock=clock, search=log.new_search())


def find_appended(log: Log, time_ms: int, end: int) -> tuple[Match, int]:
    """Search by append time, in a thread; errors as `LogReader.offset_for_time`.

    Returns:
        The match below `end`, and the number of records before it (before `end` without a match)
        whose append time is unknown.
    """
    match = _find_in_thread(log, time_ms, ClockName.APPEND)
    if match is not None and match.offset >= end:
        match = None
    return match, log.without_append_time(end if match is None else match.offset)


def may_have_no_times(log: Log) -> bool:
    """Whether only the records tell if a search found nothing because they have no times.

    Cheap, and nearly always False: some record has a time, or there is no record.
    """
    if log.log_start_offset == log.log_end_offset:
        return False
    return log.segments[-1].largest_timestamp == NO_TIMESTAMP


async def has_no_times(log: Log, work: Work) -> bool:
    """Whether a log holds records, and all of them are of magic 0, which has no times.

    Source: KIP-79 (UNSUPPORTED_FOR_MESSAGE_FORMAT); mixed logs are searched where they have times.
    """
    return may_have_no_times(log) and await work.run(_is_all_magic_0, log, log.segments)


def _is_all_magic_0(log: Log, segments: Sequence[Segment]) -> bool:
    """Whether no batch is of a later format; the newest segments are the likeliest to have one."""
    source = SegmentBytes(log.context.pool, may_block=True)
    for segment in reversed(segments):
        for frame in frames(segment, 0, segment.size_bytes, source):
            if frame.magic:
                return False
    return True
