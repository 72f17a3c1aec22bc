"""How a partition is cleaned generationally: what `runner` asks `generations`, and tells it.

Where `tidelog.compaction.scheduler` says so, `look_generation` takes the place of the dirty ratio
in deciding whether a cleaning is due, and its plan that of brute force in what is rewritten. After
the swap `settle` remembers what the cleaning has proven, and says what the checkpoint may be.

Needs the directory's lock. Source: docs/generations.md.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidelog.config import TopicConfig
from tidelog.config.values import CompactionScheduler
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.compaction.eligibility import NEVER_BYTES, DueReason, Verdict
from tidelog.storage.compaction.generations import Demand, Finding, GenerationPlan, Generations
from tidelog.storage.compaction.job import Cleaned, CleaningJob, SourceSegment
from tidelog.storage.compaction.rules import CompactionRules

if TYPE_CHECKING:
    from tidelog.storage.log import Log

# Bytes of a slot of the offset map, of which verified keys take about as much again.
_SLOT_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class GenerationLook:
    """What is known of a partition's segments, and what would be cleaned next."""

    generations: Generations
    plan: GenerationPlan

    def chosen(self, segments: Sequence[ClosedSegment]) -> list[ClosedSegment]:
        """The segments that the plan reads: those that are rewritten, and those that are mapped."""
        wanted = {base for group in self.plan.groups for base in group.bases}
        return [
            each
            for each in segments
            if each.end_offset <= self.plan.map_to
            and (each.base_offset in wanted or each.end_offset > self.plan.map_from)
        ]


def is_generational(config: TopicConfig) -> bool:
    """Whether a topic is cleaned so."""
    return config.tidelog_compaction_scheduler is CompactionScheduler.GENERATIONAL


def without_ratio(config: TopicConfig) -> TopicConfig:
    """The settings by which a head's age is judged: the space bound takes the ratio's place."""
    return replace(
        config, min_cleanable_dirty_ratio=1.0, tidelog_compaction_min_dirty_bytes=NEVER_BYTES
    )


@dataclass(frozen=True, slots=True)
class Asking:
    """By which rules, when, and whether somebody asks for a full pass."""

    rules: CompactionRules
    now_ms: int
    is_asked: bool


def look_generation(
    log: "Log", segments: Sequence[ClosedSegment], verdict: Verdict, asking: Asking
) -> tuple[GenerationLook, Verdict]:
    """What would be cleaned next, and the verdict that follows from it.

    Reads the keys of segments that are new since the last look.

    Args:
        log: The partition.
        segments: Its finished segments, oldest first.
        verdict: What of them may be cleaned, and whether their age asks for it.
        asking: By which rules, and whether somebody asks.

    Raises:
        OSError: The disk failed.
    """
    context, config = log.context, log.context.config
    made = Generations.load(
        context.env,
        context.directory,
        identities(segments),
        verdict.first_dirty,
        context.pool.decoded,
    )
    due = DueReason.REQUEST if asking.is_asked else verdict.due
    forced = due if due in (DueReason.LAG, DueReason.REQUEST) else None
    reason = "it was asked for" if forced is DueReason.REQUEST else verdict.reason
    demand = demand_of(config, verdict.end, log.active.size_bytes, reason if forced else "")(
        asking.rules
    )
    if demand.everything or made.may_be_due(demand):
        made.sample(verdict.end)
    plan = made.plan(demand, asking.now_ms, config.delete_retention_ms)
    for problem in made.problems:
        context.report(problem)
    if not plan.is_due and (made.bytes_read or made.has_tombstones_due):
        made.store()  # else it is stored once the cleaning is in place
    found = (forced or DueReason.SPACE) if plan.is_due else None
    return GenerationLook(made, plan), replace(verdict, due=found, reason=plan.reason)


def demand_of(
    config: TopicConfig, cleanable_end: int, active_bytes: int, everything: str
) -> Callable[[CompactionRules], Demand]:
    """What a topic's settings ask of a plan, once the rules are known.

    Args:
        config: The settings.
        cleanable_end: Offset up to which the log may be cleaned.
        active_bytes: Bytes of the active segment.
        everything: Why a full pass is made; empty where not.
    """
    return lambda rules: Demand(
        cleanable_end=cleanable_end,
        active_bytes=active_bytes,
        segment_bytes=config.segment_size_limit,
        space_factor=config.tidelog_compaction_space_factor,
        map_keys_max=_map_keys(rules),
        everything=everything,
        has_versions=rules.has_versions,
    )


def identities(segments: Iterable[ClosedSegment]) -> list[SourceSegment]:
    """Segments as they are remembered."""
    return [
        SourceSegment(
            base_offset=each.base_offset,
            end_offset=each.end_offset,
            size_bytes=each.size_bytes,
            last_modified_ms=each.mtime_ms(),
            append_end=each.end_offset,
        )
        for each in segments
    ]


def settle(log: "Log", look: GenerationLook, job: CleaningJob, cleaned: Cleaned) -> int:
    """Remember what a cleaning has proven, now that its segments are in place.

    Returns:
        What `cleaner-offset-checkpoint` may say: no older version of a key remains below.

    Raises:
        OSError: The disk failed; the next look then knows less.
    """
    let_go = [group for group in job.groups if job.lets_go(group, cleaned.mapped_to)]
    look.generations.note(
        Finding(
            map_from=job.map_from,
            swept_to=_swept_to(job, cleaned) if look.plan.is_full else None,
            cleaned=cleaned,
            segments=identities(log.cleanable_segments()),
            dropped=frozenset(group.bases[0] for group in let_go),
            now_ms=job.now_ms,
            delete_retention_ms=job.rules.delete_retention_ms,
        )
    )
    look.generations.store()
    return look.generations.clean_end(log.log_start_offset)


def _swept_to(job: CleaningJob, cleaned: Cleaned) -> int:
    """Up to where a full pass let go what was due, as far as anything older let it."""
    if not job.rules.has_versions:
        return cleaned.mapped_to
    # What was mapped, or lies around it, waits for the next one: see `CleaningJob.lets_go`.
    return job.map_from if cleaned.mapped_to == job.map_to else 0


def _map_keys(rules: CompactionRules) -> float:
    """How many keys the offset map holds, as far as that can be said without looking at them."""
    slots = rules.dedupe_buffer_bytes / _SLOT_BYTES
    return slots * rules.load_factor / (2 if rules.verify_keys else 1)
