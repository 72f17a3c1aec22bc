"""The next cleaning of a partition: when it is due, what is cleaned, what is merged, what may go.

A cleaning is due when the log, its active segment counted as full, would pass its bound:
`tidelog.compaction.space.factor` times the live size. The live size is an estimate, so the bound
is taken lower by the error to be expected. Apart from that everything is rewritten (a full pass)
where somebody asks for it, where `max.compaction.lag.ms` has passed, where the strategy knows
versions, and now and then for tombstones that have had their time: only a pass over all older
segments may let all of them go.

Pure: values in, a plan out.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Final

from tidelog.storage.compaction.generations import merging, schedule
from tidelog.storage.compaction.generations.coverage import with_drops
from tidelog.storage.compaction.generations.facts import SegmentFacts
from tidelog.storage.compaction.generations.merging import Room
from tidelog.storage.compaction.job import Group

# Of the space between the live size and the bound: what a cleaning frees at least. With less the
# map is filled too often, with more segments are cleaned before they are worth it.
BATCH_PART: Final = 0.2
# Standard errors of the estimated live size by which the bound is taken lower, and how much of it
# they may take.
ERRORS_KEPT: Final = 2.0
ERROR_MAX: Final = 0.1
# Where the number of keys is more uncertain than this, all of them are mapped: to read the log once
# costs about what half a percent of its space saves while the live size is appended once.
COUNT_FROM: Final = 0.005
# Of the map, so that it is not full where there are more keys than expected.
COUNT_FILL: Final = 0.9


class Decision(StrEnum):
    """What happens to a segment, and why."""

    CLEAN = "clean"
    MERGE = "merge"
    KEEP = "keep"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of a plan.

    Attributes:
        cleanable_end: Offset up to which the log may be cleaned, a segment's base.
        active_bytes: Bytes of the active segment.
        segment_bytes: Size at which segments are rolled.
        space_factor: How many times its live size the log may take.
        map_keys_max: How many keys the offset map holds.
        live_error: Standard error of the estimated live size, as a part of it.
        count_error: So much of it a map of all keys would take away.
        late_bytes: So many bytes will be appended behind the active segment before it is looked
            at again.
        everything: Why a full pass is made whether or not the space is used up; empty where not.
        has_versions: Whether more than the offset decides which record stays: then every pass is
            a full one.
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
    """How much of its space a log takes, in bytes.

    Attributes:
        log_bytes: The log with its active segment, that at its full size, and what comes behind
            before anyone looks.
        live_bytes: The live size, as estimated.
        bound_bytes: What it may take, as far as that is known.
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
    """What to clean next.

    Attributes:
        groups: Segments that become one each, in order; none where nothing is due.
        map_from: First offset whose key goes into the map, inclusive.
        map_to: Offset behind the last one, exclusive.
        reason: Why it is due, or why not, with figures.
        is_full: Whether it is a full pass.
        space: How much of its space the log takes.
        segments: All finished segments, in order.
        decisions: What happens to each of them.
        read_bytes: What is expected to be read.
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
        """Whether there is anything to do."""
        return bool(self.groups)

    @property
    def chosen(self) -> tuple[SegmentFacts, ...]:
        """The segments that are rewritten."""
        moved = (Decision.CLEAN, Decision.MERGE)
        pairs = zip(self.segments, self.decisions, strict=True)
        return tuple(segment for segment, decision in pairs if decision in moved)

    @property
    def written_bytes(self) -> float:
        """What is expected to be written."""
        return sum(each.live_bytes for each in self.chosen)

    @property
    def garbage_bytes(self) -> float:
        """What is expected to be freed."""
        return sum(each.garbage_bytes for each in self.chosen)

    def put_off(self, reason: str) -> "GenerationPlan":
        """The same segments with nothing to do, and why not."""
        return replace(
            self,
            groups=(),
            reason=reason,
            decisions=tuple(
                Decision.WAIT if each is Decision.WAIT else Decision.KEEP for each in self.decisions
            ),
            read_bytes=0,
        )


def measure(segments: Sequence[SegmentFacts], demand: Demand) -> Space:
    """How much of its space a log takes.

    Segments that can't be cleaned yet count as live: whatever is garbage in them has to be borne.
    """
    size = sum(each.size_bytes for each in segments)
    live = sum(
        each.sum_bytes if each.end_offset <= demand.cleanable_end else each.size_bytes
        for each in segments
    )
    error = min(ERRORS_KEPT * demand.live_error, ERROR_MAX)
    return Space(
        log_bytes=size + max(demand.active_bytes, demand.segment_bytes) + demand.late_bytes,
        live_bytes=live,
        bound_bytes=demand.space_factor * live * (1 - error),
    )


def plan_generation(segments: Sequence[SegmentFacts], demand: Demand) -> GenerationPlan:
    """The next cleaning of a partition.

    Args:
        segments: All its finished segments, in order.
        demand: What is asked.

    Returns:
        A plan without groups where nothing is due.
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
    """The segment as a map that ends there sees it: cleaned up to there, it has no garbage."""
    if segment.cleaned_to < end:
        return segment
    return replace(segment, cleaned_to=end, live_bytes=float(segment.size_bytes))


@dataclass(frozen=True, slots=True)
class _Planning:
    """The making of one plan; `allowed` is what of the segments may be cleaned."""

    segments: tuple[SegmentFacts, ...]
    allowed: tuple[SegmentFacts, ...]
    demand: Demand
    space: Space

    def nothing(self, reason: str) -> GenerationPlan:
        return self._make((), set(), 0, reason, is_full=False)

    def sweep(self, reason: str) -> GenerationPlan:
        """Rewrite whatever may hold garbage, or tombstones that may go."""
        end = self.demand.cleanable_end
        wanted = [each for each in self.allowed if each.cleaned_to < end or each.has_due]
        if not wanted:
            return self.nothing(f"{reason}; nothing is dirty below offset {end}")
        # A later record may lose to an earlier one: those that are clean are held against the map.
        if self.demand.has_versions:
            wanted = list(self.allowed)
        bases = {each.base_offset for each in wanted}
        first = min(each.cleaned_to for each in wanted)
        return self._make(bases, bases, first, reason, is_full=True)

    def clean(self, reason: str) -> GenerationPlan:
        """Rewrite what is worth it, if there is enough of it."""
        slack = (self.demand.space_factor - 1) * self.space.live_bytes
        batch = max(BATCH_PART * slack, 1.0)
        garbage = sum(each.garbage_bytes for each in self.allowed)
        if garbage < batch:
            return self.nothing(f"{reason}; no more than {garbage:.0f} bytes are garbage")
        if self.demand.has_versions:
            return self.sweep(reason)
        over = self.space.log_bytes - self.space.bound_bytes
        # Rounding must not keep it from freeing all that there is.
        needed = min(over + batch, garbage * 0.99)
        limit = self.demand.map_keys_max
        found = schedule.choose(
            self.allowed, needed, map_keys_max=limit, is_whole=self._must_count(limit)
        )
        if found is None:
            return self.sweep(f"{reason}; one map does not find enough")
        bases = set(found.bases)
        taken = merging.widen(self.allowed, bases, self._room())
        return self._make(taken, bases, found.map_from, reason)

    def _must_count(self, map_keys_max: float) -> bool:
        """Whether all keys are mapped, so that their number is known."""
        keys = sum(each.keys for each in self.allowed)
        return self.demand.count_error > COUNT_FROM and keys <= COUNT_FILL * map_keys_max

    def _room(self) -> Room:
        return Room(self.demand.segment_bytes, self.space.live_bytes)

    def _make(
        self,
        taken: Iterable[int],
        cleaned: set[int],
        map_from: int,
        reason: str,
        *,
        is_full: bool = False,
    ) -> GenerationPlan:
        chosen = set(taken)
        map_to = self.demand.cleanable_end
        groups = merging.group(self.allowed, chosen, self._room())
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
