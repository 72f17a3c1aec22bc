"""What a compaction of a partition would do now, without the lock and without a change.

For `tidelog compact --plan`: a reader's look at the segments, the sample read in memory where it is
not in `compaction-statistics`. What waits for its sync is not seen from outside: it counts as safe.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.config import TopicConfig
from tidelog.errors import InvalidRequest
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.compaction.eligibility import DueReason, LogState, Verdict, judge
from tidelog.storage.compaction.generational import (
    demand_of,
    identities,
    is_generational,
    without_ratio,
)
from tidelog.storage.compaction.generations import GenerationPlan, Generations
from tidelog.storage.compaction.looking import (
    CleanerOptions,
    Finished,
    believed_history,
    horizons_of,
    rules_of,
)
from tidelog.storage.handles import typed_reads
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir
    from tidelog.storage.log_reader import LogReader


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be cleaned, and what is remembered of the segments.

    Attributes:
        verdict: What may be cleaned, and whether its age or its dirty share ask for it.
        plan: What would happen to each segment.
        generations: What is remembered.
        has_versions: Whether more than the offset decides which record of a key stays; what the
            plan tells of keys and garbage is by the offset all the same.
    """

    verdict: Verdict
    plan: GenerationPlan
    generations: Generations
    has_versions: bool


def preview(log_dir: "LogDir", name: TopicPartition) -> Preview:
    """What a compaction that nobody asks for would do now; with brute force a full pass, if due.

    Args:
        log_dir: Open for reading or writing.
        name: The partition.

    Raises:
        UnknownTopic: No such partition.
        InvalidRequest: Some of its segments lie in a tier alone.
        CorruptData: A damaged batch stands where a segment's times are looked up.
        StorageFailure: The disk failed.
    """
    log = log_dir.reader(name.topic, name.partition)
    context, config = log.context, log.context.config
    now_ms = log_dir.env.clock.now_ms()
    segments = [each for each in log.segments[:-1] if isinstance(each, ClosedSegment)]
    if any(each.is_tiered for each in segments):
        raise InvalidRequest(
            f"{name}: no plan is made for segments in a tier; they are compacted by brute force"
        )
    with typed_reads(context.directory):
        verdict = _judge(log, segments, log_dir.cleaner_offset(name), now_ms)
        found = Generations.load(
            context.env, context.directory, identities(segments), verdict.first_dirty
        )
        found.sample(verdict.end)
    # An empty log that nobody writes to has no segment yet.
    active_bytes = log.segments[-1].size_bytes if log.segments else 0
    demand = demand_of(config, verdict.end, active_bytes, _everything(verdict, config))
    rules = rules_of(config, CleanerOptions())
    plan = found.plan(demand(rules), now_ms, config.delete_retention_ms)
    if not is_generational(config) and verdict.due is None:
        plan = plan.put_off(verdict.reason)
    return Preview(verdict, plan, found, rules.has_versions)


def _judge(
    log: "LogReader", segments: list[ClosedSegment], checkpoint: int | None, now_ms: int
) -> Verdict:
    config = log.context.config
    state = LogState(
        segments=[Finished(each, log) for each in segments],
        active_base=log.segments[-1].base_offset if log.segments else log.log_end_offset,
        log_start=log.log_start_offset,
        log_end=log.log_end_offset,
        last_stable_offset=log.last_stable_offset,
        durable_end=log.log_end_offset,
        checkpoint=checkpoint,
        horizons_ms=horizons_of(segments, believed_history(log), checkpoint, config),
    )
    return judge(state, without_ratio(config) if is_generational(config) else config, now_ms)


def _everything(verdict: Verdict, config: TopicConfig) -> str:
    """Why all would be cleaned; the generational scheduler sees to space and tombstones itself."""
    is_whole = verdict.due is DueReason.LAG or not is_generational(config)
    return verdict.reason if verdict.due is not None and is_whole else ""
