"""What a compaction of a partition would do now, without the lock and without a change.

For `tidelog compact --plan`: a reader's look at the segments, the sample read in memory where it is
not in `compaction-statistics`. What waits for its sync is not seen from outside: it counts as safe.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.errors import InvalidRequest
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.compaction.eligibility import LogState, Verdict, judge
from tidelog.storage.compaction.generational import demand_of, identities, is_generational
from tidelog.storage.compaction.generations import GenerationPlan, Generations
from tidelog.storage.compaction.looking import CleanerOptions, Finished, rules_of
from tidelog.storage.handles import typed_reads
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be cleaned, and what is remembered of the segments."""

    verdict: Verdict
    plan: GenerationPlan
    generations: Generations


def preview(log_dir: "LogDir", name: TopicPartition) -> Preview:
    """What a compaction would do now; with brute force a full pass where one is due.

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
        state = LogState(
            segments=[Finished(each) for each in segments],
            active_base=log.segments[-1].base_offset,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            durable_end=log.log_end_offset,
            checkpoint=log_dir.cleaner_offset(name),
        )
        verdict = judge(state, config, now_ms)
        found = Generations.load(
            context.env, context.directory, identities(segments), verdict.first_dirty
        )
        found.sample(verdict.end)
    everything = verdict.reason if verdict.due and not is_generational(config) else ""
    demand = demand_of(config, verdict.end, log.segments[-1].size_bytes, everything)
    rules = rules_of(config, CleanerOptions())
    plan = found.plan(demand(rules), now_ms, config.delete_retention_ms)
    return Preview(verdict, plan, found)
