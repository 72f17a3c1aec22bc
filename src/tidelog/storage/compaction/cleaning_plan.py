"""Plan of a cleaning: the part of a partition that may be cleaned, and the job that cleans it.

This module owns:

- the interface between a cleaner and the two ways to choose segments (`Scheduler`: `BruteForce`
  here, `SpaceBound` in `generations.scheduler`);
- the inspection of a log, and of segments that exist only in its tier;
- the job that follows from an inspection;
- the forecast of `tidelog compact --plan`, which needs no lock and changes nothing.

Other modules own the rules (`eligibility`, `generations.planning`), the execution of a job
(`worker`), and the swap of the cleaned segments (`cleaner`).

`log_dir` can be a proxy that runs its calls in another thread.

Source: Kafka 4.x LogCleanerManager.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.config import TopicConfig
from tidelog.config.values import CompactionScheduler
from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.storage.compaction.eligibility import CleaningDecision, LogState, judge
from tidelog.storage.compaction.generations import GenerationPlan, Generations
from tidelog.storage.compaction.generations.scheduler import (
    Choice,
    CleaningTerms,
    SpaceBound,
    demand_of,
    identities,
)
from tidelog.storage.compaction.job import (
    SEED_SIZE,
    CleaningJob,
    CleaningResult,
    CompactionRules,
    Group,
    GroupLimits,
    SegmentSize,
    SourceSegment,
    group_segments,
)
from tidelog.storage.log.segment_times import youngest_ms
from tidelog.storage.open_files import typed_reads
from tidelog.storage.segment.append_time_trust import proven_end
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.compaction_history import (
    ALWAYS_MS,
    HISTORY_FILE,
    CompactionHistory,
    load_history,
    read_history,
    records_left,
)
from tidelog.storage.segment.lost_times import accepting, ensure_times, lost_times
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.types import NO_OFFSET, NO_TIMESTAMP, UNKNOWN_MS, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import DirectoryAccess
    from tidelog.storage.log.log import LogAccess
    from tidelog.storage.log.log_reader import LogView
    from tidelog.storage.log.producers import ProducerStates
    from tidelog.storage.segment.txn_index import AbortedTxn

_UNKNOWN: Final = (UNKNOWN_MS, UNKNOWN_MS)


def is_whole(segments: Iterable[Segment], log_start: int) -> bool:
    """Return whether every offset from the log start on still has its record.

    If every offset has its record, compaction has removed nothing. The number of records of a
    finished segment is taken from the segment's zone map. For segments without a usable zone map,
    the headers of all batches are read. If a batch of format 0 or 1 has to be read, the result is
    False, because the header of a wrapper message does not show which offsets are inside it.

    Args:
        segments: The segments, oldest first, without gaps between them.
        log_start: Log start offset; records below it may be missing.

    Raises:
        CorruptData: A batch that has to be read is damaged.
        OSError: The disk failed.
    """
    next_offset = log_start
    for segment in segments:
        if segment.end_offset <= log_start:
            continue
        mapped = records_left(segment) if segment.base_offset >= log_start else None
        if mapped is not None:
            if mapped != segment.end_offset - segment.base_offset:
                return False
            next_offset = segment.end_offset
            continue
        for _, batch in iterate_batches(segment, 0, segment.size_bytes):
            if batch.last_offset < next_offset:
                continue
            if not isinstance(batch, RecordBatch) or batch.base_offset > next_offset:
                return False
            if batch.record_count != batch.last_offset_delta + 1:
                return False
            next_offset = batch.next_offset
        if next_offset < segment.end_offset:
            return False
    return True


def bounds_before(
    fs: FileSystem, directory: str, segments: Sequence[ClosedSegment], log_start: int
) -> tuple[CompactionHistory | None, tuple[int, int]]:
    """Return the stored history, and for each clock the time from which tables are exact.

    If the partition has no history file, and every offset still has its record, the times are 0.

    Returns:
        The history (None if there is no usable one), and the two times from which tables are exact,
        on the record clock and on the append clock. A time is 0 if tables as of all times are
        exact, and -1 if it is unknown.

    Raises:
        CorruptData: A batch that has to be read is damaged.
        OSError: The disk failed.
    """
    history = read_history(fs, directory)
    if history is not None:
        return history, (history.record_exact_ms, history.append_exact_ms)
    if not fs.exists(f"{directory}/{HISTORY_FILE}") and is_whole(segments, log_start):
        return None, (ALWAYS_MS, ALWAYS_MS)
    return None, _UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerOptions:
    """Options of a cleaning that do not depend on the topic.

    Attributes:
        dedupe_buffer_bytes: Memory of the offset map in bytes (`log.cleaner.dedupe.buffer.size`).
        load_factor: Maximum fraction of the map's slots that is used
            (`log.cleaner.io.buffer.load.factor`).
        is_asked: Whether to clean even if no cleaning is due.
        accepts_lost_times: Whether a segment is rewritten although its append times are damaged or
            lost. If True, the new segment has unknown append times for the records concerned, even
            if the file or object is restored later. If False, damaged or lost append times are an
            error.
        hold: Returns a context that is entered while segments are swapped in. Within this context,
            nothing else truncates, deletes or replaces segments of the partition.
    """

    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    is_asked: bool = False
    accepts_lost_times: bool = False
    hold: Callable[[TopicPartition], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class FinishedSegment:
    """A finished segment with the attributes that `eligibility` needs."""

    segment: ClosedSegment
    log: "LogView"

    @property
    def base_offset(self) -> int:
        """Base offset of the segment."""
        return self.segment.base_offset

    @property
    def end_offset(self) -> int:
        """Offset after the segment's last offset."""
        return self.segment.end_offset

    @property
    def size_bytes(self) -> int:
        """Size of the segment's log file in bytes."""
        return self.segment.size_bytes

    @property
    def youngest_ms(self) -> int:
        """Time in ms at which the segment's minimum compaction lag begins; -1 if unknown."""
        return youngest_ms(self.log, self.segment)

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the segment's first batch in ms; -1 if there is no batch."""
        first = next(iterate_batches(self.segment, 0, self.size_bytes), None)
        return NO_TIMESTAMP if first is None else first[1].max_timestamp

    @property
    def first_append_ms(self) -> int:
        """First known append time of the segment in ms, -1 if none is known."""
        rows = self.segment.append_times.rows()
        return rows[0].append_ms if rows else NO_TIMESTAMP


class Scheduler(Protocol):
    """Decides when a log is cleaned, and which segments are cleaned. One instance per inspection.

    Attributes:
        goes_on: Whether further passes follow at once if the map can't hold all keys of the head.
        bytes_read: Bytes of log files that were read for the decision.
        bytes_written: Bytes that were written to store statistics.
    """

    @property
    def goes_on(self) -> bool:
        """Whether further passes follow at once if the map can't hold all keys of the head."""

    @property
    def bytes_read(self) -> int:
        """Bytes of log files that were read for the decision."""

    @property
    def bytes_written(self) -> int:
        """Bytes that were written to store statistics."""

    def limits(self, config: TopicConfig) -> TopicConfig:
        """Return the settings, with this scheduler's limits for the head's share, size and age."""

    def judge(
        self,
        log: "LogAccess",
        segments: Sequence[ClosedSegment],
        state: LogState,
        terms: CleaningTerms,
    ) -> CleaningDecision:
        """Decide which part of a log may be cleaned, and whether a cleaning is due.

        Args:
            log: The partition.
            segments: Finished segments of the partition, oldest first.
            state: State of the log, from which `eligibility` decides.
            terms: Rules, wall time, and whether a cleaning was requested.

        Raises:
            CorruptData: A batch that is read for a segment's times is damaged.
            ConfigError, MissingDependency: Only `SpaceBound` raises these errors: settings
                conflict, or numpy or numba is not installed.
            OSError: The disk failed.
        """

    def choose(
        self, segments: Sequence[ClosedSegment], decision: CleaningDecision, config: TopicConfig
    ) -> Choice:
        """Return the segments that a due cleaning reads and rewrites."""

    def record_cleaning(self, log: "LogAccess", job: CleaningJob, cleaned: CleaningResult) -> int:
        """Store the outcome of a cleaning whose segments are swapped in.

        Returns:
            The offset for `cleaner-offset-checkpoint`: below it, each key has at most one record.

        Raises:
            OSError: The disk failed; the next inspection then has less information.
        """

    def forecast(
        self, decision: CleaningDecision, plan: Callable[[str], GenerationPlan]
    ) -> GenerationPlan:
        """Return a forecast of the next cleaning.

        Args:
            decision: The decision by `eligibility`, with the settings that `limits` returns.
            plan: Callback that makes a plan by the space bound. The callback's argument is the
                reason for a full pass, empty if no full pass is required.
        """


class BruteForce:
    """`Scheduler` by Kafka's rules: a due cleaning covers the dirty head and all older segments."""

    goes_on = True
    bytes_read = bytes_written = 0

    def limits(self, config: TopicConfig) -> TopicConfig:
        """Return the topic's own settings."""
        return config

    def judge(
        self,
        log: "LogAccess",
        _segments: Sequence[ClosedSegment],
        state: LogState,
        terms: CleaningTerms,
    ) -> CleaningDecision:
        """Decide by `eligibility`; see `Scheduler`."""
        return judge(state, log.context.config, terms.now_ms, is_asked=terms.is_asked)

    def choose(
        self, segments: Sequence[ClosedSegment], decision: CleaningDecision, config: TopicConfig
    ) -> Choice:
        """Select all segments before the end of the cleanable part.

        Expired tombstones may be dropped, because no earlier segment is left out.
        """
        sources = [each for each in segments if each.end_offset <= decision.end]
        sizes = (
            SegmentSize(
                base_offset=each.base_offset,
                end_offset=each.end_offset,
                log_bytes=each.size_bytes,
                index_bytes=each.offset_index.size_bytes,
                time_index_bytes=each.time_index.size_bytes,
            )
            for each in sources
        )
        limits = GroupLimits(config.segment_size_limit, config.segment_index_bytes)
        groups = tuple(
            Group(bases=bases, drop_expired=True) for bases in group_segments(sizes, limits)
        )
        return Choice(sources, groups, decision.first_dirty)

    def record_cleaning(self, _log: "LogAccess", _job: CleaningJob, cleaned: CleaningResult) -> int:
        """Return the end of the cleaned part; see `Scheduler`."""
        return cleaned.mapped_to

    def forecast(
        self, decision: CleaningDecision, plan: Callable[[str], GenerationPlan]
    ) -> GenerationPlan:
        """Return the plan of a full pass if a cleaning is due, else a plan that cleans nothing."""
        if decision.due is None:
            return plan("").put_off(decision.reason)
        return plan(decision.reason)


def scheduler_of(config: TopicConfig) -> Scheduler:
    """Create the scheduler that `tidelog.compaction.scheduler` names, for one inspection."""
    if config.tidelog_compaction_scheduler is CompactionScheduler.GENERATIONAL:
        return SpaceBound()
    return BruteForce()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningState:
    """State of a partition at the time of an inspection.

    Attributes:
        name: The partition.
        log: The partition's log.
        segments: The finished segments that are inspected, oldest first.
        finished: All finished segments: `segments`, and also the local segments if `segments` are
            the tier's segments.
        decision: The cleanable part, and whether a cleaning is due.
        history: Stored history of earlier cleanings; None if it is missing or damaged.
        config: The topic's settings.
        now_ms: Wall time.
        scheduler: The scheduler that made the decision.
    """

    name: TopicPartition
    log: "LogAccess"
    segments: Sequence[ClosedSegment]
    finished: Sequence[ClosedSegment]
    decision: CleaningDecision
    history: CompactionHistory | None
    config: TopicConfig
    now_ms: int
    scheduler: Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """A job, and the state that must not change until the job's result is swapped in.

    Attributes:
        state: State of the partition when the job was made. The state's scheduler stores the
            outcome of the job.
        job: The job for the worker.
        sources: The segments of the log that the job reads.
        segment_sizes: Base offset and size of each finished segment that has a local file.
        before: History of earlier cleanings; None if there is no usable history.
        bounds: Times in ms from which tables are exact, on the record clock and on the append
            clock; see `bounds_before`.
    """

    state: CleaningState
    job: CleaningJob
    sources: Sequence[ClosedSegment]
    segment_sizes: frozenset[tuple[int, int]]
    before: CompactionHistory | None
    bounds: tuple[int, int]


def rules_of(config: TopicConfig, options: CleanerOptions) -> CompactionRules:
    """Return the rules by which a topic is compacted; raises ConfigError if settings conflict."""
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


# -- inspecting ----------------------------------------------------------------------------------


def inspect_log(
    log_dir: "DirectoryAccess",
    name: TopicPartition,
    *,
    is_asked: bool = False,
    options: CleanerOptions | None = None,
) -> CleaningState:
    """Inspect a partition: which part may be cleaned now, and whether a cleaning is due.

    If the topic uses generational compaction, this may read the keys of new segments and store
    statistics.

    Args:
        log_dir: The directory, open for writing.
        name: The partition.
        is_asked: Whether a cleaning was requested. A requested cleaning is due if there is anything
            to clean.
        options: Options of the cleaning; the defaults if None.

    Raises:
        UnknownTopic: There is no such partition.
        ReadOnly: The directory was opened for reading.
        InvalidRequest: The partition has a tier.
        ConfigError, MissingDependency: The topic uses generational compaction, and settings
            conflict, or numpy or numba is not installed.
        CorruptData: A batch that is read for a segment's times is damaged.
        StorageFailure: The disk failed, or the partition is offline.
    """
    log = log_dir.log(name.topic, name.partition)
    segments = log.swaps.cleanable_segments()
    config, base = log.context.config, log.active.base_offset
    rules = partial(rules_of, config, options or CleanerOptions())
    terms = CleaningTerms(rules, log_dir.env.clock.now_ms(), is_asked)
    return _inspect(log_dir, log, segments, segments, base, scheduler_of(config), terms)


def inspect_tier(
    log_dir: "DirectoryAccess", name: TopicPartition, *, is_asked: bool, options: CleanerOptions
) -> CleaningState:
    """Inspect the segments that exist only in a partition's tier.

    A local segment is treated like an active segment, even if it has been copied to the tier. A
    local segment is not cleaned, and its records supersede no other records until the segment
    exists only in the tier. Segments of the tier are cleaned by brute force.

    Args:
        log_dir: The directory, open for writing.
        name: The partition.
        is_asked: Whether a cleaning was requested. A requested cleaning is due if there is anything
            to clean.
        options: Options of the cleaning.

    Raises:
        UnknownTopic: There is no such partition.
        ReadOnly: The directory was opened for reading.
        CorruptData: A batch that is read for a segment's times is damaged.
        StorageFailure: The disk or the object store failed.
    """
    log = log_dir.log(name.topic, name.partition)
    finished = log.finished_segments()
    segments = [each for each in finished if each.is_tiered]
    base, rules = log.local_segments[0].base_offset, partial(rules_of, log.context.config, options)
    terms = CleaningTerms(rules, log_dir.env.clock.now_ms(), is_asked)
    return _inspect(log_dir, log, segments, finished, base, BruteForce(), terms)


def _inspect(  # noqa: PLR0913 - what differs between a log and its tier
    log_dir: "DirectoryAccess",
    log: "LogAccess",
    segments: Sequence[ClosedSegment],
    finished: Sequence[ClosedSegment],
    active_base: int,
    scheduler: Scheduler,
    terms: CleaningTerms,
) -> CleaningState:
    name = log.topic_partition
    with typed_reads(log.context.directory):
        history = believed_history(log)
        state = _state_of(log, segments, active_base, history, log_dir.cleaner_offset(name))
        state = replace(state, durable_end=log.recovery_point)
        decision = scheduler.judge(log, segments, state, terms)
    return CleaningState(
        name=name,
        log=log,
        segments=segments,
        finished=finished,
        decision=decision,
        history=history,
        config=log.context.config,
        now_ms=terms.now_ms,
        scheduler=scheduler,
    )


def _state_of(
    log: "LogView",
    segments: Sequence[ClosedSegment],
    active_base: int,
    history: CompactionHistory | None,
    checkpoint: int | None,
) -> LogState:
    """Return the state of a log as a reader sees it: unsynced data counts as durable."""
    return LogState(
        segments=[FinishedSegment(each, log) for each in segments],
        active_base=active_base,
        log_start=log.log_start_offset,
        log_end=log.log_end_offset,
        last_stable_offset=log.last_stable_offset,
        durable_end=log.log_end_offset,
        checkpoint=checkpoint,
        horizons_ms=horizons_of(segments, history, checkpoint, log.context.config),
    )


def believed_history(log: "LogView") -> CompactionHistory | None:
    """Return the stored history of earlier cleanings; None if it is missing or damaged."""
    try:
        return load_history(log.context.env.files, log.context.directory)
    except CorruptFile:
        return None  # it is unknown which tables are exact; the next cleaning writes a new history


def horizons_of(
    segments: Sequence[ClosedSegment],
    history: CompactionHistory | None,
    checkpoint: int | None,
    config: TopicConfig,
) -> tuple[int, ...]:
    """Return the delete horizons in ms of the tombstones below the checkpoint.

    If `history` is None, the result has one horizon, estimated from the latest modification time of
    the segments below the checkpoint. The result is empty if there are no such segments.
    """
    if history is not None or checkpoint is None:
        return () if history is None else history.horizons_ms
    cleaned = [each.mtime_ms() for each in segments if each.end_offset <= checkpoint]
    return (max(cleaned) + config.delete_retention_ms,) if cleaned else ()


# -- planning ------------------------------------------------------------------------------------


def plan_cleaning(
    log_dir: "DirectoryAccess", state: CleaningState, options: CleanerOptions
) -> CleaningPlan:
    """Return the plan for a cleaning that is due; the plan contains the job.

    Raises:
        ConfigError: Settings conflict.
        CorruptData, MissingFile: A batch or index is damaged. Also raised if
            `options.accepts_lost_times` is False, and the append times of a segment to rewrite are
            damaged or lost.
        StorageFailure: The disk failed.
    """
    log, decision = state.log, state.decision
    rules = rules_of(state.config, options)
    choice = state.scheduler.choose(state.segments, decision, state.config)
    sources = choice.sources
    with typed_reads(log.context.directory):
        before, bounds = bounds_before(
            log.context.env.files, log.context.directory, state.finished, log.log_start_offset
        )
        job = CleaningJob(
            directory=log.context.directory,
            topic=state.name.topic,
            partition=state.name.partition,
            topic_id=log.context.topic_id,
            sources=tuple(_sources(log, choice, options)),
            groups=choice.groups,
            map_from=choice.map_from,
            map_to=decision.end,
            log_start_offset=log.log_start_offset,
            upper_bound_offset=decision.end,
            now_ms=state.now_ms,
            rules=rules,
            active_producers=_active_producers(log.producer_states()),
            aborted=tuple(_aborted(log, sources)),
            seed=log_dir.env.random.getrandbits(8 * SEED_SIZE).to_bytes(SEED_SIZE, "big"),
        )
    return CleaningPlan(
        state=state,
        job=job,
        sources=sources,
        segment_sizes=frozenset(
            (each.base_offset, each.size_bytes) for each in state.finished if not each.is_tiered
        ),
        before=before,
        bounds=bounds,
    )


def _sources(log: "LogAccess", choice: Choice, options: CleanerOptions) -> Iterator[SourceSegment]:
    trusted = log.trusted_end()
    rewritten = {base for group in choice.groups for base in group.bases}
    for source, segment in zip(identities(choice.sources), choice.sources, strict=True):
        is_unreadable = False
        if segment.base_offset in rewritten and not options.accepts_lost_times:
            ensure_times(segment, "a compaction", accepting("compact", segment))
        elif segment.base_offset in rewritten and segment.is_tiered:
            is_unreadable = lost_times(segment) is not None
        # The manifest's checksum proves the append times of a tiered segment. `proven_end` can't be
        # used, because a truncated segment has no row at its end.
        end = segment.end_offset
        if not segment.is_tiered:
            end = proven_end(segment, segment.append_times, trusted)
        yield replace(source, append_end=segment.base_offset if is_unreadable else end)


def _active_producers(states: "ProducerStates") -> dict[int, tuple[int, int]]:
    """Return each active producer's last data offset (-1 if none) and epoch, by producer id."""
    return {
        number: (entry.batches[-1].last_offset if entry.batches else NO_OFFSET, entry.epoch)
        for number, entry in states.producers.items()
    }


def _aborted(log: "LogAccess", sources: Sequence[ClosedSegment]) -> list["AbortedTxn"]:
    """Return aborted transactions that overlap the sources; a marker may be after the sources."""
    start, end = sources[0].base_offset, sources[-1].end_offset
    return [
        entry
        for segment in tuple(log.segments)
        for entry in tuple(segment.txn_index.entries)
        if entry.last_offset >= start and entry.first_offset < end
    ]


@dataclass(frozen=True, slots=True)
class Preview:
    """Forecast of the next cleaning, with the statistics of the segments.

    Attributes:
        plan: The expected cleaning, with a decision for each segment.
        generations: Statistics of the segments.
        has_versions: Whether a timestamp or header decides which record of a key stays. The plan's
            estimates of keys and garbage always assume that the record with the largest offset
            stays.
        refusals: By base offset, the error that a compaction would raise because a segment's append
            times are damaged or lost. Only the segments to rewrite are checked. If no cleaning is
            due, the segments that a requested compaction may rewrite are checked instead.
    """

    plan: GenerationPlan
    generations: Generations
    has_versions: bool
    refusals: Mapping[int, str]


def preview(log_dir: "DirectoryAccess", name: TopicPartition) -> Preview:
    """Forecast the compaction that would run now without a request.

    With brute force, the forecast is a full pass if a cleaning is due, and no change otherwise.

    Args:
        log_dir: The directory, open for reading or writing.
        name: The partition.

    Raises:
        UnknownTopic: No such partition.
        InvalidRequest: Some of the partition's segments exist only in a tier.
        ConfigError, MissingDependency: Settings conflict, or numpy or numba is not installed.
        CorruptData: A batch that is read for a segment's times is damaged.
        StorageFailure: The disk failed.
    """
    log = log_dir.reader(name.topic, name.partition)
    context, config = log.context, log.context.config
    now_ms = log_dir.env.clock.now_ms()
    segments = log.finished_segments()
    if any(each.is_tiered for each in segments):
        raise InvalidRequest(
            f"{name}: segments in a tier have no plan, because brute force always compacts them"
        )
    # An empty log that was never opened for writing has no segment yet.
    active = log.segments[-1] if log.segments else None
    base = log.log_end_offset if active is None else active.base_offset
    scheduler, rules = scheduler_of(config), rules_of(config, CleanerOptions())
    with typed_reads(context.directory):
        history = believed_history(log)
        state = _state_of(log, segments, base, history, log_dir.cleaner_offset(name))
        decision = judge(state, scheduler.limits(config), now_ms)
        memory = Generations.load(
            context.env, context.directory, identities(segments), decision.first_dirty
        )
        memory.sample(decision.end)

    def plan(everything: str) -> GenerationPlan:
        active_bytes = 0 if active is None else active.size_bytes
        demand = demand_of(config, rules, decision.end, active_bytes, everything)
        return memory.plan(demand, now_ms, config.delete_retention_ms)

    forecast = scheduler.forecast(decision, plan)
    rewritten = {each.base_offset for each in segments if each.end_offset <= decision.end}
    if forecast.is_due and not isinstance(scheduler, BruteForce):
        rewritten = {base for group in forecast.groups for base in group.bases}
    with typed_reads(context.directory):
        refusals = _refusals(each for each in segments if each.base_offset in rewritten)
    return Preview(forecast, memory, rules.has_versions, refusals)


def _refusals(segments: Iterable[ClosedSegment]) -> dict[int, str]:
    """Return, by base offset, the error for each segment with damaged or lost append times."""
    refusals: dict[int, str] = {}
    for segment in segments:
        try:
            ensure_times(segment, "a compaction", accepting("compact", segment))
        except CorruptFile as error:
            # If the segment was replaced during the check, the file of append times may belong to
            # the new segment.
            if not segment.was_replaced():
                refusals[segment.base_offset] = str(error)
    return refusals
