"""Which neighbours become one segment: cleaned ones for nothing, others where there are too many.

Segments that are rewritten by the same cleaning and follow each other are merged as far as one
segment holds them: that costs no byte more. Cleaning shrinks segments where they are, so a log of
keys that are updated at very different rates breaks into many small ones. Before there are more
than `SEGMENTS_PER_LIVE` times as many as the live bytes would fill, runs of neighbours are
rewritten for the sake of merging alone, those first that rid the log of the most segments for the
bytes that are copied.

Pure: values in, a choice out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.storage.compaction.generations.facts import SegmentFacts
from tidelog.storage.compaction.grouping import GROUP_BYTES_MAX
from tidelog.types import INT32_MAX

# Never more segments than this, times the number that the live bytes would fill.
SEGMENTS_PER_LIVE: Final = 8
# Of that: where merging begins, and how far it goes.
MERGE_FROM: Final = 0.85
MERGE_TO: Final = 0.72
# A log of a few segments is not worth merging: so many are always allowed.
SEGMENTS_MIN: Final = 8
# Expected sizes are estimates; a group is filled so far.
FILL: Final = 0.95
# A rewritten segment costs this part of a full one, however small it is (files, syncs, renames).
_COPY_FLOOR: Final = 0.02


@dataclass(frozen=True, slots=True)
class Room:
    """What one segment may hold, and how many there may be.

    Attributes:
        segment_bytes: Size in bytes at which segments are rolled.
        live_bytes: Expected live bytes of the partition.
    """

    segment_bytes: int
    live_bytes: float

    @property
    def count_max(self) -> float:
        """So many segments at most."""
        return max(SEGMENTS_PER_LIVE * self.live_bytes / self.segment_bytes, SEGMENTS_MIN)

    def holds(self, segments: Sequence[SegmentFacts]) -> bool:
        """Whether segments that follow each other fit into one, as far as that can be known."""
        expected = sum(each.live_bytes for each in segments)
        size = sum(each.size_bytes for each in segments)
        span = segments[-1].end_offset - segments[0].base_offset
        # Records may take more room once they are cleaned.
        fits = len(segments) == 1 or size <= GROUP_BYTES_MAX
        return fits and expected <= FILL * self.segment_bytes and max(size, span) <= INT32_MAX


def group(
    segments: Sequence[SegmentFacts], chosen: Iterable[int], room: Room
) -> list[tuple[int, ...]]:
    """The chosen segments in groups that become one segment each, in order.

    Args:
        segments: All finished segments, in order.
        chosen: Base offsets of those that are rewritten.
        room: What a segment may hold.
    """
    wanted = set(chosen)
    groups: list[list[SegmentFacts]] = []
    is_open = False
    for segment in segments:
        if segment.base_offset not in wanted:
            is_open = False
        elif is_open and room.holds([*groups[-1], segment]):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            is_open = True
    return [tuple(each.base_offset for each in found) for found in groups]


def widen(segments: Sequence[SegmentFacts], chosen: Iterable[int], room: Room) -> set[int]:
    """The chosen segments, and those that are rewritten only to be merged.

    Args:
        segments: All finished segments that may be cleaned, in order.
        chosen: Base offsets of those that are rewritten for their garbage.
        room: What a segment may hold, and how many there may be.
    """
    taken = set(chosen)
    surplus = _count_after(segments, taken, room) - MERGE_FROM * room.count_max
    if surplus <= 0:
        return taken
    surplus += (MERGE_FROM - MERGE_TO) * room.count_max
    used: set[int] = set()
    for saved, run in _runs(segments, taken, room):
        if surplus <= 0:
            break
        if used.isdisjoint(run):
            used |= run
            surplus -= saved
    return taken | used


def _count_after(segments: Sequence[SegmentFacts], taken: set[int], room: Room) -> int:
    """How many segments there will be."""
    empty = {each.base_offset for each in segments if each.live_bytes < 1}
    groups = group(segments, taken, room)
    left = sum(not empty.issuperset(bases) for bases in groups)
    return len(segments) - len(taken) + left


def _runs(
    segments: Sequence[SegmentFacts], taken: set[int], room: Room
) -> Iterator[tuple[int, set[int]]]:
    """Runs of neighbours that one segment holds, the best first: how many segments each saves."""
    found = []
    for first in range(len(segments) - 1):
        copied, last = 0.0, first
        while last < len(segments) and room.holds(segments[first : last + 1]):
            segment = segments[last]
            copied += 0 if segment.base_offset in taken else segment.live_bytes
            if last > first and copied:
                worth = (last - first) / (copied + _COPY_FLOOR * room.segment_bytes)
                found.append((worth, first, last))
            last += 1
    found.sort(reverse=True)
    for _, first, last in found:
        yield last - first, {each.base_offset for each in segments[first : last + 1]}
