"""Where a new query begins in each partition, from its options and what was seen of the log.

A query that goes on from a checkpoint never asks. Pure: looking up times is handed in.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tidelog.errors import InvalidRequest, LostOffsets
from tidelog.spark.option_ranges import Given
from tidelog.spark.stream_loss import Extent, Seen
from tidelog.spark.stream_options import Start
from tidelog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition

TimeLookup: TypeAlias = Callable[
    [Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]
]


def start_offsets(
    start: Start, seen: Seen, offsets_for_times: TimeLookup
) -> tuple[dict[TopicPartition, int], list[LostOffsets]]:
    """The first offset to read of each partition, and what was asked for and is not there.

    Args:
        start: What the options say.
        seen: The partitions and what they hold.
        offsets_for_times: The first offset that is so late, None where none is.

    Raises:
        InvalidRequest: An option by partition does not name them all, or names others; or no
            record is as late as asked, and the strategy is `error`.
    """
    if start.times is not None:
        times = _spread("start times", start.times, seen)
        found = offsets_for_times(times)
        return {name: _by_time(name, times, found, start, seen) for name in times}, []
    offsets = _spread("startingOffsets", start.offsets, seen)
    lost = []
    for name, asked in offsets.items():
        offset, gone = _inside(name, asked, seen.extents[name])
        offsets[name] = offset
        lost += gone
    return offsets, lost


def _by_time(
    name: TopicPartition,
    times: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int | None],
    start: Start,
    seen: Seen,
) -> int:
    offset = found[name]
    if offset is None and start.needs_match:
        raise InvalidRequest(
            f"{name}: no record at {times[name]} ms or later; with"
            " startingOffsetsByTimestampStrategy=latest the stream starts at the end then"
        )
    first, end = seen.extents[name]
    return end if offset is None else min(max(offset, first), end)


def _inside(name: TopicPartition, asked: int, extent: Extent) -> tuple[int, list[LostOffsets]]:
    """The offset asked for moved into the log, and what of it is not there."""
    start, end = extent
    if asked == EARLIEST_OFFSET:
        return start, []
    if asked == LATEST_OFFSET:
        return end, []
    if asked < start:
        reason = f"startingOffsets asks for them, the log starts at {start}"
        return start, [LostOffsets(name.topic, name.partition, asked, start, reason)]
    if asked > end:
        reason = f"startingOffsets lies behind the log, which ends at {end}"
        return end, [LostOffsets(name.topic, name.partition, end, asked, reason)]
    return asked, []


def _spread(what: str, given: Given, seen: Seen) -> dict[TopicPartition, int]:
    """One value for each partition."""
    assert given is not None
    if isinstance(given, int):
        return dict.fromkeys(seen.extents, given)
    if missing := sorted(seen.extents.keys() - given.keys()):
        raise InvalidRequest(f"{what} by partition: {missing[0]} is missing, all must be named")
    if others := sorted(given.keys() - seen.extents.keys()):
        raise InvalidRequest(f"{what} by partition: {others[0]} is not among those read")
    return {name: given[name] for name in seen.extents}
