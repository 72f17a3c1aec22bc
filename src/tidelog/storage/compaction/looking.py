"""What of a partition may be cleaned now, and the job that does it.

`look` asks the log and its files, `eligibility` judges, `plan_cleaning` makes a job of it. Nothing
is changed. `log_dir` may be a stand-in whose calls are carried out in another thread.

Source: Kafka 4.x LogCleanerManager.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.config import TopicConfig
from tidelog.errors import CorruptFile
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.compaction.eligibility import LogState, Verdict, judge
from tidelog.storage.compaction.generational import (
    Asking,
    GenerationLook,
    is_generational,
    look_generation,
    without_ratio,
)
from tidelog.storage.compaction.grouping import GroupLimits, SegmentSize, group_segments
from tidelog.storage.compaction.history import bounds_before
from tidelog.storage.compaction.job import SEED_SIZE, CleaningJob, Group, SourceSegment
from tidelog.storage.compaction.rules import CompactionRules
from tidelog.storage.compaction_history import CompactionHistory, load_history
from tidelog.storage.handles import typed_reads
from tidelog.storage.segment import iterate_batches
from tidelog.storage.segment_times import youngest_ms
from tidelog.storage.trust import sure_end
from tidelog.types import NO_OFFSET, NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.log_dir import LogDir
    from tidelog.storage.log_reader import LogReader
    from tidelog.storage.producers import ProducerStates
    from tidelog.storage.txn_index import AbortedTxn


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerOptions:
    """What does not depend on the topic.

    Attributes:
        dedupe_buffer_bytes: Memory of the offset map (`log.cleaner.dedupe.buffer.size`).
        load_factor: Part of its slots that is used (`log.cleaner.io.buffer.load.factor`).
        is_asked: Clean although it is not due.
        hold: Entered while segments are swapped in: nobody else may then cut, delete or exchange
            segments of the partition.
    """

    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    is_asked: bool = False
    hold: Callable[[TopicPartition], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished segment as `eligibility` asks for it."""

    segment: ClosedSegment
    log: "LogReader"

    @property
    def base_offset(self) -> int:
        """Its base offset."""
        return self.segment.base_offset

    @property
    def end_offset(self) -> int:
        """Offset behind it, exclusive."""
        return self.segment.end_offset

    @property
    def size_bytes(self) -> int:
        """Size of its log file."""
        return self.segment.size_bytes

    @property
    def youngest_ms(self) -> int:
        """See `segment_times.youngest_ms`."""
        return youngest_ms(self.log, self.segment)

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of its first batch in ms, -1 for none."""
        first = next(iterate_batches(self.segment, 0, self.size_bytes), None)
        return NO_TIMESTAMP if first is None else first[1].max_timestamp

    @property
    def first_append_ms(self) -> int:
        """When its first batch was appended in ms, -1 where that is not known."""
        rows = self.segment.append_times.rows()
        return rows[0].append_ms if rows else NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A partition at a moment.

    Attributes:
        name: Which.
        log: It.
        segments: Its finished segments, oldest first.
        verdict: What of them may be cleaned, and whether to.
        history: What is noted of earlier cleanings, believed or not.
        config: The topic's settings.
        now_ms: Wall time.
        generation: What would be cleaned where the topic is cleaned generationally.
        finished: All finished segments, where `segments` are only those of the tier.
    """

    name: TopicPartition
    log: "Log"
    segments: Sequence[ClosedSegment]
    verdict: Verdict
    history: CompactionHistory | None
    config: TopicConfig
    now_ms: int
    generation: GenerationLook | None = None
    finished: Sequence[ClosedSegment] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """A job, and what has to be as it is until the job is swapped in.

    Attributes:
        name: The partition.
        job: What the worker is told.
        first_dirty: Where the head begins.
        sources: The job's segments as the log shows them.
        generation: What it follows from where the topic is cleaned generationally.
        known: Base offset and size of each finished segment that has a file here.
        before: The history that is believed, None without one.
        bounds: Since when tables are exact, on the record and on the append clock.
    """

    name: TopicPartition
    job: CleaningJob
    first_dirty: int
    sources: Sequence[ClosedSegment]
    known: frozenset[tuple[int, int]]
    before: CompactionHistory | None
    bounds: tuple[int, int]
    generation: GenerationLook | None = None


def rules_of(config: TopicConfig, options: CleanerOptions) -> CompactionRules:
    """By which rule a topic is compacted; raises ConfigError where settings contradict."""
    return CompactionRules(
        strategy=config.tidelog_compaction_strategy.value,
        header=config.tidelog_compaction_strategy_header,
        delete_retention_ms=config.delete_retention_ms,
        hash_name=config.tidelog_cleaner_hash.value,
        verify_keys=config.tidelog_cleaner_verify_keys,
        dedupe_buffer_bytes=options.dedupe_buffer_bytes,
        load_factor=options.load_factor,
        index_interval_bytes=config.index_interval_bytes,
        segment_index_bytes=config.segment_index_bytes,
    )


# -- looking -------------------------------------------------------------------------------------


def look(
    log_dir: "LogDir",
    name: TopicPartition,
    *,
    is_asked: bool = False,
    options: CleanerOptions | None = None,
) -> Look:
    """What of a partition may be cleaned now, and whether it is due.

    Where the topic is cleaned generationally, keys of new segments are read, and remembered.

    Args:
        log_dir: Open for writing.
        name: The partition.
        is_asked: Somebody asks for it: due wherever there is anything.
        options: How it would be cleaned; the defaults where None.

    Raises:
        UnknownTopic, ReadOnly: As `LogDir.log`.
        InvalidRequest: The partition has a tier.
        CorruptData: A damaged batch stands where a segment's times are looked up.
        StorageFailure: The disk failed, or the partition is offline.
    """
    log = log_dir.log(name.topic, name.partition)
    segments = log.cleanable_segments()
    config, now_ms = log.context.config, log_dir.env.clock.now_ms()
    with typed_reads(log.context.directory):
        history = believed_history(log)
        checkpoint = log_dir.cleaner_offset(name)
        state = LogState(
            segments=[Finished(each, log) for each in segments],
            active_base=log.active.base_offset,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            last_stable_offset=min(log.last_stable_offset, log.high_watermark),
            durable_end=log.recovery_point,
            checkpoint=checkpoint,
            horizons_ms=horizons_of(segments, history, checkpoint, config),
        )
        generation = None
        if is_generational(config):
            verdict = judge(state, without_ratio(config), now_ms, is_asked=is_asked)
            asking = Asking(rules_of(config, options or CleanerOptions()), now_ms, is_asked)
            generation, verdict = look_generation(log, segments, verdict, asking)
        else:
            verdict = judge(state, config, now_ms, is_asked=is_asked)
    return Look(
        name=name,
        log=log,
        segments=segments,
        verdict=verdict,
        history=history,
        config=config,
        now_ms=now_ms,
        generation=generation,
    )


def look_at_tier(log_dir: "LogDir", name: TopicPartition, *, is_asked: bool) -> Look:
    """What may be cleaned of the segments that only a partition's tier has, and whether it is due.

    What lies here, copied or not, is to them as an active segment to others: it is left alone, and
    its keys count once it is in the tier alone. They are cleaned by brute force.

    Args:
        log_dir: Open for writing.
        name: The partition.
        is_asked: Somebody asks for it: due wherever there is anything.

    Raises:
        UnknownTopic, ReadOnly: As `LogDir.log`.
        CorruptData: A damaged batch stands where a segment's times are looked up.
        StorageFailure: Disk or store failed.
    """
    log = log_dir.log(name.topic, name.partition)
    config, now_ms = log.context.config, log_dir.env.clock.now_ms()
    finished = [each for each in log.segments[:-1] if isinstance(each, ClosedSegment)]
    segments = [each for each in finished if each.is_tiered]
    with typed_reads(log.context.directory):
        history, checkpoint = believed_history(log), log_dir.cleaner_offset(name)
        state = LogState(
            segments=[Finished(each, log) for each in segments],
            active_base=log.local_segments[0].base_offset,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            last_stable_offset=min(log.last_stable_offset, log.high_watermark),
            durable_end=log.recovery_point,
            checkpoint=checkpoint,
            horizons_ms=horizons_of(segments, history, checkpoint, config),
        )
        verdict = judge(state, config, now_ms, is_asked=is_asked)
    return Look(
        name=name,
        log=log,
        segments=segments,
        verdict=verdict,
        history=history,
        config=config,
        now_ms=now_ms,
        finished=finished,
    )


def believed_history(log: "Log | LogReader") -> CompactionHistory | None:
    """What is noted of earlier cleanings; None where nothing is, or where it is damaged."""
    try:
        return load_history(log.context.env.files, log.context.directory)
    except CorruptFile:
        return None  # tables of the past are unknown then; the next run writes it anew


def horizons_of(
    segments: Sequence[ClosedSegment],
    history: CompactionHistory | None,
    checkpoint: int | None,
    config: TopicConfig,
) -> tuple[int, ...]:
    """When tombstones may go; where only another cleaner was here, its files tell the latest."""
    if history is not None or checkpoint is None:
        return () if history is None else history.horizons_ms
    cleaned = [each.mtime_ms() for each in segments if each.end_offset <= checkpoint]
    return (max(cleaned) + config.delete_retention_ms,) if cleaned else ()


# -- planning ------------------------------------------------------------------------------------


def plan_cleaning(log_dir: "LogDir", found: Look, options: CleanerOptions) -> CleaningPlan:
    """The job for what was found; there must be something to do.

    Raises:
        ConfigError: Settings contradict.
        CorruptData: A damaged batch or index.
        StorageFailure: The disk failed.
    """
    log, verdict = found.log, found.verdict
    rules = rules_of(found.config, options)
    sources = [each for each in found.segments if each.end_offset <= verdict.end]
    map_from = verdict.first_dirty
    if found.generation is None:
        groups = _groups(sources, found.config)
    else:
        sources = found.generation.chosen(found.segments)
        groups, map_from = found.generation.plan.groups, found.generation.plan.map_from
    with typed_reads(log.context.directory):
        finished = found.segments if found.finished is None else found.finished
        before, bounds = bounds_before(
            log.context.env.files, log.context.directory, finished, log.log_start_offset
        )
        job = CleaningJob(
            directory=log.context.directory,
            topic=found.name.topic,
            partition=found.name.partition,
            topic_id=log.context.topic_id,
            sources=tuple(_sources(log, sources)),
            groups=groups,
            map_from=map_from,
            map_to=verdict.end,
            log_start_offset=log.log_start_offset,
            upper_bound_offset=verdict.end,
            now_ms=found.now_ms,
            rules=rules,
            active_producers=_active_producers(log.producer_states()),
            aborted=tuple(_aborted(log, sources)),
            seed=log_dir.env.random.getrandbits(8 * SEED_SIZE).to_bytes(SEED_SIZE, "big"),
        )
    return CleaningPlan(
        name=found.name,
        job=job,
        first_dirty=verdict.first_dirty,
        sources=sources,
        known=frozenset(
            (each.base_offset, each.size_bytes) for each in finished if not each.is_tiered
        ),
        before=before,
        bounds=bounds,
        generation=found.generation,
    )


def _sources(log: "Log", segments: Sequence[ClosedSegment]) -> list[SourceSegment]:
    trusted = log.trusted_end()
    return [
        SourceSegment(
            base_offset=each.base_offset,
            end_offset=each.end_offset,
            size_bytes=each.size_bytes,
            last_modified_ms=each.mtime_ms(),
            append_end=sure_end(each, each.append_times, trusted),
        )
        for each in segments
    ]


def _groups(segments: Sequence[ClosedSegment], config: TopicConfig) -> tuple[Group, ...]:
    """All segments, oldest first: nothing older is left out, so what has had its time may go."""
    sizes = (
        SegmentSize(
            base_offset=each.base_offset,
            end_offset=each.end_offset,
            log_bytes=each.size_bytes,
            index_bytes=each.offset_index.size_bytes,
            time_index_bytes=each.time_index.size_bytes,
        )
        for each in segments
    )
    limits = GroupLimits(config.segment_size_limit, config.segment_index_bytes)
    return tuple(Group(bases=bases, drop_expired=True) for bases in group_segments(sizes, limits))


def _active_producers(states: "ProducerStates") -> dict[int, tuple[int, int]]:
    """Last data offset and epoch of each producer."""
    return {
        number: (entry.batches[-1].last_offset if entry.batches else NO_OFFSET, entry.epoch)
        for number, entry in states.producers.items()
    }


def _aborted(log: "Log", sources: Sequence[ClosedSegment]) -> list["AbortedTxn"]:
    """Aborted transactions that touch the sources; their markers may lie behind them."""
    start, end = sources[0].base_offset, sources[-1].end_offset
    return [
        entry
        for segment in tuple(log.segments)
        for entry in tuple(segment.txn_index.entries)
        if entry.last_offset >= start and entry.first_offset < end
    ]
