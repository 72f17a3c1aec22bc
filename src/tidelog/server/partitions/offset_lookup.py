"""Finds the offset for a time in a partition: on the event loop, or in a thread to read files.

A search in a thread has a cache of its own, but the indexes that it loads into the segments stay in
memory for later searches. `storage.segment.time_search` implements the search itself.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from tidelog.server.partitions.partitions import epochs_of
from tidelog.server.partitions.segment_reads import SegmentBytes, frames
from tidelog.server.runtime.threads import Work
from tidelog.storage.log.log import Log
from tidelog.storage.segment.segment import ColdRead, Segment
from tidelog.types import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    ClockName,
    OffsetAndTimestamp,
)

# Result of a lookup: the offset, its leader epoch, and the record's time (`NO_TIMESTAMP` if a
# special time names the offset directly); None if nothing matches.
Match: TypeAlias = OffsetAndTimestamp | None

# Function that starts a search in a thread.
Search: TypeAlias = Callable[[], Awaitable[Match]]


def find_offset(log: Log, time_ms: int, end: int, work: Work) -> Match | Search:
    """Find the offset for a time.

    The topic's setting `tidelog.lookup.clock` determines whether this is a create time or an append
    time.

    If the needed data is not in memory, return a function that starts the search in a thread.

    Args:
        log: The partition's log.
        time_ms: Time in ms, 0 or more: find the first record with this time or a later time. A
            negative number is a special time.
        end: End of what the client may see (exclusive).
        work: Threads for reading what is not in memory.

    Raises:
        The errors of `LogView.offset_for_time`. A returned search raises them when awaited.
    """
    if time_ms < 0 and time_ms != MAX_TIMESTAMP:
        return _find_special(log, time_ms, end)
    clock = log.context.config.tidelog_lookup_clock
    try:
        if time_ms >= 0:
            match = log.offset_for_time(time_ms, clock=clock, may_block=False)
        else:
            match = log.max_timestamp(clock=clock, may_block=False)
    except ColdRead:
        return partial(_search_in_thread, log, time_ms, end, work, clock)
    return _visible(match, end)


async def _search_in_thread(
    log: Log, time_ms: int, end: int, work: Work, clock: ClockName
) -> Match:
    return _visible(await work.run(_search, log, time_ms, clock), end)


def _search(log: Log, time_ms: int, clock: ClockName) -> Match:
    if time_ms >= 0:
        return log.offset_for_time(time_ms, clock=clock, search=log.new_search())
    return log.max_timestamp(clock=clock, search=log.new_search())


def find_appended(log: Log, time_ms: int, end: int) -> tuple[Match, int]:
    """Search by append time. May block, so threads call it.

    Raises the errors of `LogView.offset_for_time`.

    Returns:
        The match, or None if no record below `end` matches. The second value is the number of
        records with an unknown append time before the match, or before `end` if there is no match.
    """
    match = _visible(_search(log, time_ms, ClockName.APPEND), end)
    return match, log.without_append_time(end if match is None else match.offset)


def _visible(match: Match, end: int) -> Match:
    return match if match is None or match.offset < end else None


def _find_special(log: Log, time_ms: int, end: int) -> Match:
    """Return the offset for a special time, or None if the log has no such offset."""
    if time_ms == LATEST_TIMESTAMP:
        return OffsetAndTimestamp(end, NO_TIMESTAMP, log.leader_epoch)
    if time_ms == EARLIEST_TIMESTAMP:
        return _at(log, log.log_start_offset)
    if time_ms == EARLIEST_LOCAL_TIMESTAMP:
        return _at(log, log.local_start_offset)
    if log.tier is None:
        return None
    if time_ms == LATEST_TIERED_TIMESTAMP:
        rows = log.tier.record.manifest.segments
        end_offset = rows[-1].end_offset if rows else 0
        # The manifest keeps rows below the log start if offsets after these rows are lost.
        return _at(log, end_offset - 1) if end_offset > log.log_start_offset else None
    return _visible(_at(log, max(log.tier.end_offset, log.log_start_offset)), end)


def _at(log: Log, offset: int) -> OffsetAndTimestamp:
    return OffsetAndTimestamp(offset, NO_TIMESTAMP, epochs_of(log).epoch_for(offset))


def may_have_no_times(log: Log) -> bool:
    """Whether the records must be read to find out if any of them has a time.

    Called after a search without a match. The check is cheap. The result is nearly always False:
    the log usually is empty, or has a record with a time in its newest segment.
    """
    if log.log_start_offset == log.log_end_offset:
        return False
    return log.segments[-1].largest_timestamp == NO_TIMESTAMP


async def has_no_times(log: Log, work: Work) -> bool:
    """Whether a log has records, and all of them are in format 0, which has no times.

    Source: KIP-79 (UNSUPPORTED_FOR_MESSAGE_FORMAT). In a log that has records of several formats, a
    search by time considers only records with times.
    """
    return may_have_no_times(log) and await work.run(_is_all_magic_0, log, log.segments)


def _is_all_magic_0(log: Log, segments: Sequence[Segment]) -> bool:
    """Whether all records are in format 0.

    Reads the newest segments first, because they most likely contain a later format.
    """
    source = SegmentBytes(log.context.pool, may_block=True)
    for segment in reversed(segments):
        for frame in frames(segment, 0, segment.size_bytes, source):
            if frame.magic:
                return False
    return True
