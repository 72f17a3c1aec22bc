"""Plan of a partition's next cleaning: when it is due, which segments it cleans and merges. Pure.

A cleaning is due when the log, with its active segment counted as full, would exceed its bound:
`tidelog.compaction.space.factor` times the live size. The live size is an estimate, so the bound is
lowered by the expected error. A full pass rewrites every segment that may hold garbage or expired
tombstones. A full pass is made, independently of the bound, if it is requested, or if
`max.compaction.lag.ms` has passed. From time to time, a full pass is also made for expired
tombstones, because only a pass over all older segments may remove all these tombstones. If the
strategy compares versions, every cleaning is a full pass.

A cleaning selects the segments with the most garbage per byte to move. A log of L live bytes may
use F x L bytes (F is the space factor). Cleaning a segment of s bytes, u of them live, reads s,
writes u and frees s - u bytes. The keys of the segment are looked up in a map. To fill the map, the
cleaning reads the log from the map's first offset on. A segment's garbage grows with time, so a
cleaning waits until the log has used up its space. Then the plan ranks the segments by this value,
largest first:

    (g - ln(1 + g)) * (age + 2L),   g = garbage / live

The value compares the cost of keeping a segment's garbage with the cost of rewriting the segment
now. It assumes that old records are superseded at a lower rate than young records. A map can clean
every segment whose `cleaned_to` is at or after the map's first offset. For each possible first
offset, the plan takes the best prefix of the ranking of these segments: the prefix that frees the
most garbage per cost. The plan chooses the best of all these prefixes. The cost is the bytes
written, plus a small part of the bytes read. (docs/generations.md has the derivation and the
measurements.)

Consecutive segments that the same cleaning rewrites are merged, as many as one segment can hold.
Merging segments that are rewritten anyway writes no extra byte. Without merges, a log whose keys
are updated at very different rates would end up with many small segments, because cleaning only
makes segments smaller. The maximum number of segments is `SEGMENTS_PER_LIVE` times the number of
segments that the live bytes would fill, and at least `SEGMENTS_MIN`. If a cleaning would leave more
segments than `MERGE_FROM` times this maximum, runs of neighbors are rewritten only to merge them,
until about `MERGE_TO` times the maximum remain. The run whose merge removes the most segments per
byte copied is merged first.

The following proofs use only offsets. They ensure that a deleted key does not reappear. Each
segment has an offset `cleaned_to`, called C here. No record of the segment is superseded by a
record with an offset below C. If the segment was never cleaned, C is its base offset, because (by
offset) a record is superseded only by later records. A cleaning that maps the keys of offsets
[from, to) drops every record that a record of that range supersedes. So if a segment has C >= from,
the cleaning raises its C to `to`. If C < from, the map lacks the keys of the offsets between C and
`from`, so C does not change. It follows for an offset P:

- the part below P is clean, in the sense of Kafka's cleaner (no two records below P with the same
  key), if every segment that begins below P has C >= P;
- a tombstone at an offset below P deletes no remaining record if its own segment and every earlier
  segment have C >= P.

Source: Kafka 4.x LogCleanerManager (the checkpoint); docs/generations.md#proofs.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import accumulate, takewhile
from typing import Final

from tidelog.amounts import bytes_text, plural, verb
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.compaction.generations.estimates import SegmentFacts
from tidelog.storage.compaction.job import GROUP_BYTES_MAX, Group
from tidelog.types import INT32_MAX

# Cost of reading a byte, if writing a byte costs 1. Reads are sequential, mostly hit the page
# cache, and cause no wear. With a cost of 0, the log would be read for every small cleaning.
READ_PRICE: Final = 0.01

# Minimum garbage that a cleaning other than a full pass is expected to free, as a part of the space
# for garbage. The space for garbage is the live size times (space factor - 1). A smaller minimum
# leads to more cleanings, and each cleaning has to fill the map. With a larger minimum, a
# cleaning has to include segments that do not have much garbage yet.
BATCH_PART: Final = 0.2

# Factor of L in the module's formula for ranking segments; L is the number of keys. In effect,
# the formula assumes that a record stays live while at least AGE_FLOOR times as many records are
# appended as there are keys. Without this minimum, the order of young segments would depend on age
# alone.
AGE_FLOOR: Final = 2.0

# Maximum number of offsets that are tried as the first offset of the map, in addition to the lowest
# offset.
MAP_STARTS_MAX: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Segments to clean, and the expected cost.

    Attributes:
        map_from: First offset whose key is mapped.
        bases: Base offsets of the segments, ascending.
        read_bytes: Bytes that are read: to fill the map, and to rewrite.
    """

    map_from: int
    bases: tuple[int, ...]
    read_bytes: float


def choose(
    segments: Sequence[SegmentFacts],
    needed_bytes: float,
    *,
    map_keys_max: float = math.inf,
    is_whole: bool = False,
) -> Choice | None:
    """Return the cleaning with the most garbage per cost that frees at least `needed_bytes`.

    Args:
        segments: Finished segments that may be cleaned, in order.
        needed_bytes: Bytes to free.
        map_keys_max: Maximum number of keys in the map.
        is_whole: Whether the map must contain all keys, even if a smaller map would cost less.

    Returns:
        The cleaning; None if no cleaning with a single map frees `needed_bytes`.
    """
    order = sorted(segments, key=priority_by(segments), reverse=True)
    tails = list(accumulate((each.size_bytes for each in reversed(segments)), initial=0))[::-1]
    best: tuple[float, int, list[SegmentFacts], int] | None = None
    whole = [each.base_offset for each in segments[:1]]
    for map_from in whole if is_whole else _map_starts(segments, map_keys_max):
        first = bisect_left(segments, map_from, key=lambda each: each.base_offset)
        candidates = [each for each in order if each.cleaned_to >= map_from]
        prefix = _best_prefix(candidates, needed_bytes, READ_PRICE * tails[first])
        if prefix and (best is None or prefix[0] > best[0]):
            best = (prefix[0], map_from, candidates[: prefix[1]], tails[first])
    return None if best is None else describe(best[1], best[2], best[3])


def describe(map_from: int, chosen: Sequence[SegmentFacts], map_bytes: int) -> Choice:
    """Return a choice of these segments with its expected cost."""
    return Choice(
        map_from=map_from,
        bases=tuple(sorted(each.base_offset for each in chosen)),
        read_bytes=map_bytes + sum(each.size_bytes for each in chosen),
    )


def priority_by(segments: Sequence[SegmentFacts]) -> Callable[[SegmentFacts], float]:
    """Return a function that computes the value of cleaning a segment now, to rank segments.

    The module's docstring has the formula. Age and L are counted in records here.
    """
    end = segments[-1].end_offset if segments else 0
    floor = AGE_FLOOR * max(sum(each.keys for each in segments), 1.0)

    def priority(segment: SegmentFacts) -> float:
        # The value of a segment without live records must be finite, because its file still has to
        # be written.
        live = max(segment.live_bytes, segment.size_bytes * 1e-3, 1.0)
        ratio = segment.garbage_bytes / live
        age = end - (segment.base_offset + segment.end_offset) / 2
        return (ratio - math.log1p(ratio)) * (age + floor)

    return priority


def _map_starts(segments: Sequence[SegmentFacts], map_keys_max: float) -> Iterator[int]:
    """Yield the offsets that are tried as the start of the map; the shortest map comes first.

    The map has one entry for each key, however many records the key has. So a map that begins at an
    offset has as many entries as there are keys whose last record is at or after that offset.
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
    """Return the garbage per cost, and the length, of the best prefix of `order`.

    The prefix frees at least `needed_bytes`. Returns None if no prefix frees that much.
    """
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


# Maximum number of segments, relative to the number of segments that the live bytes would fill.
SEGMENTS_PER_LIVE: Final = 8

# Merging starts when there are more segments than this part of the maximum number of segments.
MERGE_FROM: Final = 0.85

# Merging stops when the number of segments has decreased to about this part of the maximum number.
MERGE_TO: Final = 0.72

# Number of segments that is always allowed: merging a small log has no benefit.
SEGMENTS_MIN: Final = 8

# Maximum expected size of a group, as a part of the segment size. It is below 1, because the real
# size may exceed the expected size.
FILL: Final = 0.95

# Fixed cost of a rewritten segment (files, syncs, renames), as a part of a full segment's cost.
_COPY_FLOOR: Final = 0.02


@dataclass(frozen=True, slots=True)
class Room:
    """Values that limit the size and the number of segments.

    Attributes:
        segment_bytes: Size in bytes at which segments are rolled.
        live_bytes: Expected live bytes of the partition.
    """

    segment_bytes: int
    live_bytes: float

    @property
    def count_max(self) -> float:
        """Maximum number of segments."""
        return max(SEGMENTS_PER_LIVE * self.live_bytes / self.segment_bytes, SEGMENTS_MIN)

    def holds(self, segments: Sequence[SegmentFacts]) -> bool:
        """Return whether consecutive segments are expected to fit into one segment."""
        expected = sum(each.live_bytes for each in segments)
        size = sum(each.size_bytes for each in segments)
        span = segments[-1].end_offset - segments[0].base_offset
        # The cleaned log can be larger than its sources.
        fits = len(segments) == 1 or size <= GROUP_BYTES_MAX
        return fits and expected <= FILL * self.segment_bytes and max(size, span) <= INT32_MAX


def group(
    segments: Sequence[SegmentFacts], chosen: Iterable[int], room: Room
) -> list[tuple[int, ...]]:
    """Return the base offsets of the chosen segments, in groups that become one segment each.

    Args:
        segments: All finished segments, in order.
        chosen: Base offsets of the segments to rewrite.
        room: Maximum size and number of segments.
    """
    rewritten = set(chosen)
    groups: list[list[SegmentFacts]] = []
    is_open = False
    for segment in segments:
        if segment.base_offset not in rewritten:
            is_open = False
        elif is_open and room.holds([*groups[-1], segment]):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            is_open = True
    return [tuple(each.base_offset for each in members) for members in groups]


def widen(segments: Sequence[SegmentFacts], chosen: Iterable[int], room: Room) -> set[int]:
    """Return `chosen`, and the base offsets of segments that are rewritten only to merge them.

    Args:
        segments: All finished segments that may be cleaned, in order.
        chosen: Base offsets of the segments that are rewritten for their garbage.
        room: Maximum size and number of segments.
    """
    rewritten = set(chosen)
    surplus = _count_after(segments, rewritten, room) - MERGE_FROM * room.count_max
    if surplus <= 0:
        return rewritten
    surplus += (MERGE_FROM - MERGE_TO) * room.count_max
    used: set[int] = set()
    for saved, run in _runs(segments, rewritten, room):
        if surplus <= 0:
            break
        if used.isdisjoint(run):
            used |= run
            surplus -= saved
    return rewritten | used


def _count_after(segments: Sequence[SegmentFacts], rewritten: set[int], room: Room) -> int:
    """Return the expected number of segments after the rewrite."""
    empty = {each.base_offset for each in segments if each.live_bytes < 1}
    groups = group(segments, rewritten, room)
    group_count = sum(not empty.issuperset(bases) for bases in groups)
    return len(segments) - len(rewritten) + group_count


def _runs(
    segments: Sequence[SegmentFacts], rewritten: set[int], room: Room
) -> Iterator[tuple[int, set[int]]]:
    """Yield runs of neighboring segments that fit into one segment, the best run first.

    For each run, yields the number of segments that merging the run saves, and the base offsets of
    the run's segments.
    """
    runs = []
    for first in range(len(segments) - 1):
        copied, last = 0.0, first
        while last < len(segments) and room.holds(segments[first : last + 1]):
            segment = segments[last]
            copied += 0 if segment.base_offset in rewritten else segment.live_bytes
            if last > first and copied:
                worth = (last - first) / (copied + _COPY_FLOOR * room.segment_bytes)
                runs.append((worth, first, last))
            last += 1
    runs.sort(reverse=True)
    for _, first, last in runs:
        yield last - first, {each.base_offset for each in segments[first : last + 1]}


def after_cleaning(cleaned_to: int, map_from: int, mapped_to: int) -> int:
    """Return a segment's `cleaned_to` after a rewrite that mapped offsets [map_from, mapped_to)."""
    return max(cleaned_to, mapped_to) if cleaned_to >= map_from else cleaned_to


def after_merging(cleaned_to: Iterable[int]) -> int:
    """Return the `cleaned_to` of a segment that one or more segments were merged into."""
    return min(cleaned_to)


def clean_end(segments: Sequence[SegmentFacts], log_start_offset: int) -> int:
    """Return the largest offset below which each key is proven to have at most one record.

    Args:
        segments: All finished segments from the log's start on, in order.
        log_start_offset: The result if there are no segments.
    """
    end = segments[-1].end_offset if segments else log_start_offset
    for segment in segments:
        if segment.base_offset >= end:
            break
        end = min(end, segment.cleaned_to)
    return end


def with_drops(
    segments: Sequence[SegmentFacts],
    groups: Iterable[tuple[int, ...]],
    map_from: int,
    map_to: int,
) -> Iterator[Group]:
    """Yield groups, and whether each may drop tombstones and markers past their horizon.

    A group may drop tombstones and markers if, when the group is swapped in, its own segments and
    all segments before them are cleaned to the group's end. A segment may have been cleaned to that
    end by an earlier cleaning, by this group, or by a group that is swapped in earlier.

    Args:
        segments: All finished segments of the partition, in order; no older data exists elsewhere.
        groups: For each group, the base offsets of its segments; in the order in which the groups
            are swapped in.
        map_from: First offset whose key is mapped, inclusive.
        map_to: Offset after the last offset whose key is mapped.
    """
    proven = {each.base_offset: each.cleaned_to for each in segments}
    for bases in groups:
        for base in bases:
            proven[base] = after_cleaning(proven[base], map_from, map_to)
        upto = [each for each in segments if each.base_offset <= bases[-1]]
        end = upto[-1].end_offset
        drop = all(proven[each.base_offset] >= end for each in upto)
        yield Group(bases=bases, drop_expired=drop)


# The bound is lowered by this many standard errors of the estimated live size.
ERROR_MARGIN: Final = 2.0

# Maximum reduction of the bound because of the error, as a fraction of the bound.
ERROR_MAX: Final = 0.1

# If the relative error of the number of keys is larger than this value, a cleaning maps all keys in
# order to count them. This takes one read of the log, but a smaller error raises the bound. If the
# bound is half a percent higher, cleanings save about the cost of one such read each time the log
# appends as many bytes as its live size.
COUNT_FROM: Final = 0.005

# A cleaning maps all keys only if the expected number of keys is at most this fraction of the map's
# maximum, because there may be more keys than expected.
COUNT_FILL: Final = 0.9


class Decision(StrEnum):
    """Decision for a segment: rewrite it for its garbage or only to merge it, keep it, or wait."""

    CLEAN = "clean"
    MERGE = "merge"
    KEEP = "keep"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requirements of a plan.

    Attributes:
        cleanable_end: Offset up to which the log may be cleaned, exclusive; the base offset of a
            segment.
        active_bytes: Size of the active segment.
        segment_bytes: Size at which segments are rolled.
        space_factor: Maximum size of the log, as a multiple of its live size.
        map_keys_max: Maximum number of keys in the offset map.
        live_error: Relative standard error of the estimated live size.
        count_error: Part of `live_error` that a map of all keys would remove.
        late_bytes: Bytes that the segment after the active one will have at the next check.
        everything: Reason for a full pass even if the space is not used up; empty if there is no
            such reason.
        has_versions: Whether a timestamp or header decides which record stays. If True, every pass
            is a full pass.
    """

    cleanable_end: int
    active_bytes: int
    segment_bytes: int
    space_factor: float
    map_keys_max: float = math.inf
    live_error: float = 0.0
    count_error: float = 0.0
    late_bytes: int = 0
    everything: str = ""
    has_versions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Space usage of a log, in bytes.

    Attributes:
        log_bytes: Expected size of the log at the next check: its finished segments, the active
            segment counted as full, and the bytes of the segment after the active one.
        live_bytes: Estimated live size.
        bound_bytes: Maximum size, lowered by the error of the estimate.
    """

    log_bytes: int
    live_bytes: float
    bound_bytes: float

    @property
    def is_used_up(self) -> bool:
        """Whether a cleaning is due."""
        return self.log_bytes > self.bound_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """The next cleaning.

    Attributes:
        groups: Groups of segments that become one segment each, in order; empty if nothing is due.
        map_from: First offset whose key goes into the map, inclusive.
        map_to: Offset after the last offset whose key goes into the map.
        reason: Reason why a cleaning is due or not due, with figures.
        is_full: Whether the cleaning is a full pass.
        space: Space usage of the log.
        segments: All finished segments, in order.
        decisions: Decision for each of these segments.
        read_bytes: Bytes that are expected to be read.
    """

    groups: tuple[Group, ...]
    map_from: int
    map_to: int
    reason: str
    is_full: bool
    space: Space
    segments: tuple[SegmentFacts, ...]
    decisions: tuple[Decision, ...]
    read_bytes: int

    @property
    def is_due(self) -> bool:
        """Whether there is anything to clean."""
        return bool(self.groups)

    @property
    def chosen(self) -> tuple[SegmentFacts, ...]:
        """The segments that are rewritten."""
        moved = (Decision.CLEAN, Decision.MERGE)
        pairs = zip(self.segments, self.decisions, strict=True)
        return tuple(segment for segment, decision in pairs if decision in moved)

    @property
    def written_bytes(self) -> float:
        """Bytes that are expected to be written."""
        return sum(each.live_bytes for each in self.chosen)

    @property
    def garbage_bytes(self) -> float:
        """Bytes that are expected to be freed."""
        return sum(each.garbage_bytes for each in self.chosen)

    def put_off(self, reason: str) -> "GenerationPlan":
        """Return a plan that cleans none of the segments, with `reason` as the reason."""
        return replace(
            self,
            groups=(),
            reason=reason,
            decisions=tuple(
                Decision.WAIT if each is Decision.WAIT else Decision.KEEP for each in self.decisions
            ),
            read_bytes=0,
        )


def plan_verdict(plans: Sequence[GenerationPlan]) -> str:
    """Return in one sentence how many partitions are due, and what compaction costs and frees."""
    due = [plan for plan in plans if plan.is_due]
    if not plans:
        return "nothing to compact: no topic has cleanup.policy=compact"
    if not due:
        return f"nothing to compact: {_share(0, len(plans))} due"
    read, written, freed = (
        sum(values)
        for values in zip(
            *((plan.read_bytes, plan.written_bytes, plan.garbage_bytes) for plan in due),
            strict=True,
        )
    )
    return (
        f"{_share(len(due), len(plans))} due: {bytes_text(read)} to read, {bytes_text(written)} to"
        f" write, {bytes_text(freed)} to free"
    )


def _share(due: int, partitions: int) -> str:
    if partitions == 1:
        return f"the partition is{'' if due else ' not'}"
    are = verb(due, "is", "are")
    return f"{due or 'none'} of {plural(partitions, 'partition')} {are if due else 'is'}"


def measure(segments: Sequence[SegmentFacts], demand: Demand) -> Space:
    """Return the space usage of a log.

    Segments that can't be cleaned yet count as live, because their garbage can't be removed now.
    """
    size = sum(each.size_bytes for each in segments)
    live = sum(
        each.sum_bytes if each.end_offset <= demand.cleanable_end else each.size_bytes
        for each in segments
    )
    error = min(ERROR_MARGIN * demand.live_error, ERROR_MAX)
    return Space(
        log_bytes=size + max(demand.active_bytes, demand.segment_bytes) + demand.late_bytes,
        live_bytes=live,
        bound_bytes=demand.space_factor * live * (1 - error),
    )


def plan_generation(segments: Sequence[SegmentFacts], demand: Demand) -> GenerationPlan:
    """Plan the next cleaning of a partition.

    Args:
        segments: All finished segments of the partition, in order.
        demand: The requirements.

    Returns:
        A plan without groups if nothing is due.
    """
    space = measure(segments, demand)
    end = demand.cleanable_end
    allowed = takewhile(lambda each: each.end_offset <= end, segments)
    work = _Planning(tuple(segments), tuple(_bounded(each, end) for each in allowed), demand, space)
    if demand.everything:
        return work.sweep(demand.everything)
    figures = f"{space.log_bytes} bytes, the bound is {space.bound_bytes:.0f}"
    if not space.is_used_up:
        return work.nothing(f"the log takes {figures}")
    return work.clean(f"the log would take {figures}")


def _bounded(segment: SegmentFacts, end: int) -> SegmentFacts:
    """Return the facts about a segment for a map that ends at `end`.

    A segment that is already cleaned to `end` has no garbage that this map can remove.
    """
    if segment.cleaned_to < end:
        return segment
    return replace(segment, cleaned_to=end, live_bytes=float(segment.size_bytes))


@dataclass(frozen=True, slots=True)
class _Planning:
    """Builder of one plan; `allowed` are the segments that may be cleaned."""

    segments: tuple[SegmentFacts, ...]
    allowed: tuple[SegmentFacts, ...]
    demand: Demand
    space: Space

    def nothing(self, reason: str) -> GenerationPlan:
        return self._make((), set(), 0, reason, is_full=False)

    def sweep(self, reason: str) -> GenerationPlan:
        """Plan to rewrite every segment that may hold garbage or tombstones to drop."""
        end = self.demand.cleanable_end
        dirty = [each for each in self.allowed if each.cleaned_to < end or each.has_due]
        if not dirty:
            return self.nothing(f"{reason}; nothing is dirty below offset {end}")
        # If the strategy compares versions, an earlier record may supersede a later one. So the
        # records of cleaned segments are looked up in the map, too.
        if self.demand.has_versions:
            dirty = list(self.allowed)
        bases = {each.base_offset for each in dirty}
        first = min(each.cleaned_to for each in dirty)
        return self._make(bases, bases, first, reason, is_full=True)

    def clean(self, reason: str) -> GenerationPlan:
        """Plan to rewrite segments with the most garbage per cost, if they free enough bytes."""
        slack = (self.demand.space_factor - 1) * self.space.live_bytes
        batch = max(BATCH_PART * slack, 1.0)
        garbage = sum(each.garbage_bytes for each in self.allowed)
        if garbage < batch:
            return self.nothing(f"{reason}; only {garbage:.0f} bytes are garbage")
        if self.demand.has_versions:
            return self.sweep(reason)
        over = self.space.log_bytes - self.space.bound_bytes
        # Rounding errors in the sums must not prevent a plan that has to free all garbage.
        needed = min(over + batch, garbage * 0.99)
        limit = self.demand.map_keys_max
        choice = choose(self.allowed, needed, map_keys_max=limit, is_whole=self._must_count(limit))
        if choice is None:
            return self.sweep(f"{reason}; one offset map does not free enough")
        bases = set(choice.bases)
        rewritten = widen(self.allowed, bases, self._room())
        return self._make(rewritten, bases, choice.map_from, reason)

    def _must_count(self, map_keys_max: float) -> bool:
        """Return whether the cleaning must put all keys into its map, in order to count them."""
        keys = sum(each.keys for each in self.allowed)
        return self.demand.count_error > COUNT_FROM and keys <= COUNT_FILL * map_keys_max

    def _room(self) -> Room:
        return Room(self.demand.segment_bytes, self.space.live_bytes)

    def _make(
        self,
        rewritten: Iterable[int],
        cleaned: set[int],
        map_from: int,
        reason: str,
        *,
        is_full: bool = False,
    ) -> GenerationPlan:
        chosen = set(rewritten)
        map_to = self.demand.cleanable_end
        groups = group(self.allowed, chosen, self._room())
        read = sum(each.size_bytes for each in self.allowed if each.base_offset in chosen)
        if chosen:
            read += sum(each.size_bytes for each in self.allowed if each.end_offset > map_from)
        return GenerationPlan(
            groups=tuple(with_drops(self.allowed, groups, map_from, map_to)),
            map_from=map_from,
            map_to=map_to,
            reason=reason,
            is_full=is_full,
            space=self.space,
            segments=self.segments,
            decisions=tuple(self._decide(each, chosen, cleaned) for each in self.segments),
            read_bytes=read,
        )

    def _decide(self, segment: SegmentFacts, chosen: set[int], cleaned: set[int]) -> Decision:
        if segment.base_offset in cleaned:
            return Decision.CLEAN
        if segment.base_offset in chosen:
            return Decision.MERGE
        return Decision.KEEP if segment.end_offset <= self.demand.cleanable_end else Decision.WAIT
