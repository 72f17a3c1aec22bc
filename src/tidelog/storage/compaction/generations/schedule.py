"""Which segments to clean: those with the most garbage for the bytes that have to move.

The model (docs/generations.md has its derivation and its measurements): a log of L live bytes may
use F x L. Cleaning a segment of s bytes, u of them live, reads s, writes u and frees s - u; its
keys are judged by a map that was filled by reading the log from some offset on. What is freed
early is garbage forgone, so a cleaning waits until the space is used up, and then takes the
segments in order of

    (g - ln(1 + g)) * (age + 2L),   g = garbage / live

which is where the cost of rewriting now equals the cost of holding the garbage until later, for
records that die at a rate that falls with their age. All segments that were cleaned at least up to
the map's first offset can be judged by it, so for each first offset the best prefix of that order
is known, and the cheapest of them is taken: garbage freed over bytes written and, at a lower
price, bytes read.

Pure: values in, a choice out.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tidelog.storage.compaction.generations.facts import SegmentFacts

# What a byte read costs when a byte written costs 1. Reads are sequential, mostly of what is still
# in the page cache, and wear nothing out; at 0 the log would be read for every little cleaning.
READ_PRICE: Final = 0.01
# Part of the live size that a cleaning frees at least: with less the map is filled too often, with
# more segments are cleaned before they are worth it.
BATCH_PART: Final = 0.2
# Of the live size: how long a record that was just written is expected to live at least, so that
# the order does not put all its trust in age.
AGE_FLOOR: Final = 2.0
# More first offsets of the map than this are not looked at.
MAP_STARTS_MAX: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Segments to clean, and what that is expected to cost.

    Attributes:
        map_from: First offset whose key is mapped.
        bases: The segments, by base offset, ascending.
        garbage_bytes: What is expected to be freed.
        read_bytes: What is read: to fill the map, and to rewrite.
        written_bytes: What is expected to be written.
    """

    map_from: int
    bases: tuple[int, ...]
    garbage_bytes: float
    read_bytes: float
    written_bytes: float


def choose(
    segments: Sequence[SegmentFacts],
    needed_bytes: float,
    *,
    map_keys_max: float = math.inf,
    is_whole: bool = False,
) -> Choice | None:
    """The cheapest cleaning that frees what is needed.

    Args:
        segments: Finished segments that may be cleaned, in order.
        needed_bytes: What has to be freed.
        map_keys_max: How many keys the map holds.
        is_whole: Whether all keys are mapped, whatever that costs.

    Returns:
        None where so much can't be freed by one map.
    """
    order = sorted(segments, key=priority_by(segments), reverse=True)
    tails = list(accumulate((each.size_bytes for each in reversed(segments)), initial=0))[::-1]
    best: tuple[float, int, list[SegmentFacts], int] | None = None
    whole = [each.base_offset for each in segments[:1]]
    for map_from in whole if is_whole else _map_starts(segments, map_keys_max):
        first = bisect_left(segments, map_from, key=lambda each: each.base_offset)
        known = [each for each in order if each.cleaned_to >= map_from]
        found = _best_prefix(known, needed_bytes, READ_PRICE * tails[first])
        if found and (best is None or found[0] > best[0]):
            best = (found[0], map_from, known[: found[1]], tails[first])
    return None if best is None else describe(best[1], best[2], best[3])


def describe(map_from: int, chosen: Sequence[SegmentFacts], map_bytes: int) -> Choice:
    """A choice with what it is expected to cost."""
    return Choice(
        map_from=map_from,
        bases=tuple(sorted(each.base_offset for each in chosen)),
        garbage_bytes=sum(each.garbage_bytes for each in chosen),
        read_bytes=map_bytes + sum(each.size_bytes for each in chosen),
        written_bytes=sum(each.live_bytes for each in chosen),
    )


def priority_by(segments: Sequence[SegmentFacts]) -> Callable[[SegmentFacts], float]:
    """How much a segment is worth cleaning now, against the others (module text)."""
    end = segments[-1].end_offset if segments else 0
    floor = AGE_FLOOR * max(sum(each.keys for each in segments), 1.0)

    def priority(segment: SegmentFacts) -> float:
        # A segment without anything alive is not infinitely dear: its file has to be made too.
        live = max(segment.live_bytes, segment.size_bytes * 1e-3, 1.0)
        ratio = segment.garbage_bytes / live
        age = end - (segment.base_offset + segment.end_offset) / 2
        return (ratio - math.log1p(ratio)) * (age + floor)

    return priority


def _map_starts(segments: Sequence[SegmentFacts], map_keys_max: float) -> Iterator[int]:
    """First offsets to think about, the shortest maps first.

    A key is in the map once, wherever its older records lie: what is mapped from an offset on are
    the keys whose last record lies there.
    """
    starts = sorted({each.cleaned_to for each in segments}, reverse=True)
    step = max(1, -(-len(starts) // MAP_STARTS_MAX))
    keys = list(accumulate((each.keys for each in reversed(segments)), initial=0.0))[::-1]
    for number, start in enumerate(starts):
        first = bisect_left(segments, start, key=lambda each: each.base_offset)
        if number and keys[first] > map_keys_max:
            return
        if number % step == 0 or number == len(starts) - 1:
            yield start


def _best_prefix(
    order: Sequence[SegmentFacts], needed_bytes: float, fixed_cost: float
) -> tuple[float, int] | None:
    """Garbage per cost, and length, of the best prefix that frees enough; None where none does."""
    garbage, cost = 0.0, fixed_cost
    best: tuple[float, int] | None = None
    for count, segment in enumerate(order, start=1):
        garbage += segment.garbage_bytes
        cost += segment.live_bytes + READ_PRICE * segment.size_bytes
        if garbage < needed_bytes or garbage <= 0:
            continue
        worth = garbage / max(cost, 1.0)
        if best is None or worth > best[0]:
            best = (worth, count)
    return best
