"""Lookups of many times at once in one partition: arrays in, arrays out.

Groups the times by the segment that answers them (running maxima, as in `lookup`), then asks each
segment once. Imports numpy and numba: reached only by those who ask with arrays.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tidelog.storage.closed import ClosedSegment
from tidelog.storage.kernel_search import KernelSearch
from tidelog.storage.proof import position_floor, time_floor
from tidelog.storage.segment import Segment
from tidelog.types import OffsetAndTimestamp

Longs = npt.NDArray[np.int64]
NOT_FOUND: Final = -1


def find_many(
    segments: Sequence[Segment],
    maxima: Sequence[int],
    targets: Longs,
    floor_offset: int,
    search: KernelSearch,
    find_one: Callable[[int], OffsetAndTimestamp | None],
) -> Longs:
    """For each time the earliest record at or after it.

    Args:
        segments: All segments, the last one active.
        maxima: Running maxima of the largest timestamps of all segments.
        targets: int64[n], times in ms, in any order.
        floor_offset: First offset to take, inclusive.
        search: Searches one segment.
        find_one: The exact search for one time, for what a single segment can't answer.

    Returns:
        int64[n, 2]: offset and timestamp, -1 and -1 where no record is that late.

    Raises:
        CorruptData: A damaged batch lies on the way.
    """
    order = np.argsort(targets, kind="stable")
    answers = np.full((len(targets), 2), NOT_FOUND, np.int64)
    ordered = targets[order]
    numbers = np.searchsorted(np.asarray(maxima, np.int64), ordered, side="left")
    bounds = np.searchsorted(numbers, np.arange(len(segments) + 1), side="left")
    for number in np.unique(numbers).tolist():
        if number == len(segments):
            continue
        mine = slice(int(bounds[number]), int(bounds[number + 1]))
        segment = segments[number]
        if isinstance(segment, ClosedSegment) and segment.is_mapped:
            found = search.search_many(segment, ordered[mine], floor_offset)
        else:
            found = np.full((mine.stop - mine.start, 2), NOT_FOUND, np.int64)
        for place in np.flatnonzero(found[:, 0] == NOT_FOUND).tolist():
            # Below the log start, or in the last segment: one by one.
            single = find_one(int(ordered[mine.start + place]))
            if single is not None:
                found[place] = (single.offset, single.timestamp)
        answers[order[mine]] = found
    return answers


def nearest_many(
    segments: Sequence[Segment], maxima: Sequence[int], targets: Longs, search: KernelSearch
) -> Longs:
    """For each time the index entry where its search begins.

    Returns:
        int64[n, 2]: number of the segment (their count where no record is that late) and position.
    """
    numbers = np.searchsorted(np.asarray(maxima, np.int64), targets, side="left")
    answers = np.zeros((len(targets), 2), np.int64)
    answers[:, 0] = numbers
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(len(segments) + 1), side="left")
    for number in np.unique(numbers).tolist():
        if number == len(segments):
            continue
        mine = order[int(bounds[number]) : int(bounds[number + 1])]
        segment = segments[number]
        if isinstance(segment, ClosedSegment) and segment.is_mapped:
            answers[mine, 1] = search.nearest_many(segment, targets[mine])[:, 1]
        else:
            answers[mine, 1] = [nearest_position(segment, int(t)) for t in targets[mine]]
    return answers


def nearest_position(segment: Segment, target: int) -> int:
    """Position of the index entry where a search for `target` begins, by the plain code."""
    return position_floor(segment, time_floor(segment, target)[1])
