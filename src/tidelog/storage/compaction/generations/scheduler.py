"""Scheduler that bounds space: the statistics of segments, and the choice of the next cleaning.

`SpaceBound` is the `Scheduler` of topics for which `tidelog.compaction.scheduler` selects
generational compaction. `Generations` has the statistics of one partition, from one cleaning to the
next: `load` -> `sample` -> `plan` -> (the cleaning, its swap) -> `note` -> `store`. The caller must
hold the directory's lock from `load` to `store`. Not thread-safe.

Other modules own the estimates (`estimates`), the plan (`planning`) and the file (`statistics`).

Source: docs/generations.md.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from tidelog.config import TopicConfig
from tidelog.env import Env
from tidelog.errors import CorruptData, MissingDependency, UnsupportedCompression
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import log_files
from tidelog.storage.compaction.eligibility import (
    HORIZON_PART,
    NEVER_BYTES,
    CleaningDecision,
    DueReason,
    LogState,
    judge,
)
from tidelog.storage.compaction.generations.estimates import (
    MappedKeys,
    SegmentEstimate,
    SegmentFacts,
    better,
    correction,
    count_error,
    live_bytes,
    live_error,
)
from tidelog.storage.compaction.generations.planning import (
    ERROR_MAX,
    Demand,
    GenerationPlan,
    after_cleaning,
    after_merging,
    clean_end,
    plan_generation,
)
from tidelog.storage.compaction.generations.statistics import (
    UNKNOWN,
    SegmentRow,
    Statistics,
    StoredStatistics,
    keep_written,
    new_row,
    read_statistics,
    reconcile,
    write_statistics,
)
from tidelog.storage.compaction.job import (
    SEED_SIZE,
    CleanedGroup,
    CleaningJob,
    CleaningResult,
    CompactionRules,
    Group,
    SourceSegment,
)
from tidelog.storage.open_files import DecodedFiles
from tidelog.storage.segment.closed_segment import ClosedSegment

if TYPE_CHECKING:
    from tidelog.storage.log.log import LogAccess


def counted_of(row: SegmentRow, keys: int, sampled_bytes: int) -> SegmentEstimate:
    """Return the sampling result of a segment."""
    return SegmentEstimate(
        size_bytes=row.size_bytes,
        cohort=UNKNOWN if row.cleaned_to == row.base_offset else row.cleaned_to,
        keys=keys,
        sampled_bytes=sampled_bytes,
        weight_bytes=row.weight_bytes,
    )


def facts_of(
    row: SegmentRow, keys: int, sampled_bytes: int, live: float, whole: float, now_ms: int
) -> SegmentFacts:
    """Return the facts about a segment.

    Args:
        row: The segment's stored facts.
        keys: Expected number of keys whose last record is in the segment.
        sampled_bytes: Bytes of the last records of the sampled keys, divided by the sampling rate.
        live: Estimated live bytes of the segment.
        whole: Factor that corrects sums over the whole sample.
        now_ms: Wall time.
    """
    total = live
    if row.record_bytes > 0:
        total = row.size_bytes * sampled_bytes * whole / row.record_bytes
    return SegmentFacts(
        base_offset=row.base_offset,
        end_offset=row.end_offset,
        size_bytes=row.size_bytes,
        cleaned_to=row.cleaned_to,
        live_bytes=live,
        sum_bytes=total,
        keys=keys,
        records=None if row.records == UNKNOWN else row.records,
        has_due=row.due_ms != UNKNOWN and row.due_ms <= now_ms,
    )


def bytes_after(before: Sequence[int], group: CleanedGroup) -> int:
    """Estimate the uncompressed bytes of a cleaned segment's records; -1 if unknown.

    The records are assumed to shrink in proportion to the log file. `before` has the uncompressed
    bytes of each source's records, -1 if unknown.
    """
    if UNKNOWN in before or not group.bytes_before:
        return UNKNOWN
    return max(sum(before) * group.bytes_after // group.bytes_before, 1)


def due_after(old: Sequence[SegmentRow], group: CleanedGroup, horizon_ms: int) -> int:
    """Return the latest delete horizon of a cleaned segment's tombstones, -1 without tombstones.

    Tombstones that this cleaning saw for the first time got their horizon now; other tombstones
    keep their horizon. Expired markers alone don't make a cleaning due: most markers are needed as
    long as records of their transactions remain, so the cleaning would remove few markers.
    """
    if not group.tombstones_after:
        return UNKNOWN
    if any(row.due_ms == UNKNOWN for row in old):
        return horizon_ms
    return max(row.due_ms for row in old)


class Generations:
    """Statistics of a partition, and the choice of its next cleaning.

    Attributes:
        problems: Problems with the statistics file, or with segments that could not be sampled.
        bytes_read: Bytes of log files that were read to sample their keys.
        bytes_written: Bytes written to the statistics file.
    """

    def __init__(
        self,
        env: Env,
        directory: str,
        segments: Sequence[SourceSegment],
        statistics: Statistics,
        stored: StoredStatistics | None,
        cache: DecodedFiles | None = None,
    ) -> None:
        self._env = env
        self._directory = directory
        self._segments = tuple(segments)
        self._statistics = statistics
        self._stored = stored
        self._cache = cache
        self._is_changed = False
        self.problems: list[str] = []
        self.bytes_read = 0
        self.bytes_written = 0

    @classmethod
    def load(
        cls,
        env: Env,
        directory: str,
        segments: Sequence[SourceSegment],
        clean_offset: int,
        cache: DecodedFiles | None = None,
    ) -> Self:
        """Load the statistics of a partition; start with none if the file is lost or damaged.

        Args:
            env: Files and randomness.
            directory: The partition's directory.
            segments: All finished segments of the partition, in order.
            clean_offset: Offset below which each key has at most one record, from the partition's
                `cleaner-offset-checkpoint`; the log start if the checkpoint has no entry for the
                partition.
            cache: The lock holder's cache of file contents; None to read the file.

        Raises:
            OSError: The disk failed.
        """
        stored, problem = read_statistics(env.files, directory, cache)
        if stored is None:
            seed = env.random.getrandbits(8 * SEED_SIZE).to_bytes(SEED_SIZE, "big")
            statistics = Statistics(seed=seed)
        else:
            statistics = stored.statistics.copy()
        generations = cls(
            env, directory, segments, reconcile(statistics, segments, clean_offset), stored, cache
        )
        generations.problems = [problem] if problem else []
        return generations

    # -- sampling --------------------------------------------------------------------------------

    def may_be_due(self, demand: Demand) -> bool:
        """Return whether a cleaning could be due, assuming that all unread segments are garbage.

        If no cleaning could be due under this assumption, the new segments are read later.
        Otherwise they are read immediately.
        """
        live = sum(
            each.sum_bytes
            for each in self.facts(0)
            if each.records is not None and each.end_offset <= demand.cleanable_end
        )
        size = sum(each.size_bytes for each in self._segments)
        return size + demand.segment_bytes > demand.space_factor * live * (1 - ERROR_MAX)

    @property
    def has_horizon(self) -> bool:
        """Whether a segment has a delete horizon, so that even an idle log will need a cleaning."""
        return any(row.due_ms != UNKNOWN for row in self._statistics.rows.values())

    def sample(self, cleanable_end: int) -> None:
        """Read the keys of the finished segments whose keys were never read, up to an offset.

        Args:
            cleanable_end: Offset to stop at, exclusive; segments that can't be cleaned yet are read
                later.

        Raises:
            MissingDependency: numpy or numba is not installed.
            OSError: The disk failed; samples that were already read are kept.
        """
        for segment in self._segments:
            row = self._statistics.rows[segment.base_offset]
            if row.records == UNKNOWN and segment.end_offset <= cleanable_end:
                self._sample(segment, row)

    def _sample(self, segment: SourceSegment, row: SegmentRow) -> None:
        try:
            from tidelog.storage.compaction.generations.sampling import sample_segment
        except ImportError as error:
            raise MissingDependency(
                "generational compaction needs numpy and numba: pip install 'tidelog[arrow]'"
                f" ({error})"
            ) from error
        path = f"{self._directory}/{log_files.log_file_name(segment.base_offset)}"
        file = self._env.files.open(path)
        try:
            sampled = sample_segment(file, path, self._statistics.seed, self._statistics.samples)
        except (CorruptData, UnsupportedCompression) as error:
            self.problems.append(f"{error}; the segment's keys are not in the sample")
            return
        finally:
            file.close()
        self.bytes_read += segment.size_bytes
        self._statistics.rows[segment.base_offset] = replace(
            row,
            records=sampled.records,
            record_bytes=sampled.record_bytes,
            weight_bytes=sampled.record_bytes,
            due_ms=sampled.due_ms,
        )
        self._is_changed = True

    def facts(self, now_ms: int) -> list[SegmentFacts]:
        """Return the facts about each finished segment, in order."""
        bases = [each.base_offset for each in self._segments]
        rows = [self._statistics.rows[base] for base in bases]
        samples = self._statistics.samples
        whole = correction(samples, self._statistics.counted)
        counts = [
            (keys << samples.shift, size << samples.shift) for keys, size in samples.count(bases)
        ]
        counted = [
            counted_of(row, keys >> samples.shift, size)
            for row, (keys, size) in zip(rows, counts, strict=True)
        ]
        expected = live_bytes(counted, is_whole=samples.shift == 0)
        return [
            facts_of(row, *count, live, whole, now_ms)
            for row, count, live in zip(rows, counts, expected, strict=True)
        ]

    def row(self, base_offset: int) -> SegmentRow:
        """Return the stored facts about a finished segment."""
        return self._statistics.rows[base_offset]

    def clean_end(self, log_start_offset: int) -> int:
        """Return the offset to store in `cleaner-offset-checkpoint`; see `planning.clean_end`."""
        return clean_end(self.facts(0), log_start_offset)

    # -- planning --------------------------------------------------------------------------------

    def plan(self, demand: Demand, now_ms: int, delete_retention_ms: int) -> GenerationPlan:
        """Plan the next cleaning; the plan has no groups if no cleaning is due.

        Args:
            demand: The requirements; this method fills in the error of the estimates and the bytes
                that are appended before the next check.
            now_ms: Wall time.
            delete_retention_ms: Time in ms that tombstones stay after their first cleaning.
        """
        segments = self.facts(now_ms)
        statistics = self._statistics
        demand = replace(
            demand,
            live_error=live_error(statistics.samples, statistics.counted),
            count_error=count_error(statistics.samples, statistics.counted),
            late_bytes=self._late_bytes(demand),
        )
        if not demand.everything and self._must_sweep(
            segments, demand, now_ms, delete_retention_ms
        ):
            demand = replace(demand, everything="the retention time of tombstones has passed")
        if statistics.planned_to != demand.cleanable_end:
            statistics.planned_to = demand.cleanable_end
            self._is_changed = True
        return plan_generation(segments, demand)

    def _late_bytes(self, demand: Demand) -> int:
        """Estimate the bytes that the segment after the active one will have at the next check.

        If the log was rolled since the last plan, the active segment has grown from 0 to its
        current size between two checks. So by the next check, the active segment may be full, and
        the segment after it may be as large as the active segment is now. If the log was not
        rolled, the estimate is 0.
        """
        is_first = self._statistics.planned_to != demand.cleanable_end
        has_rolled = self._segments and self._segments[-1].end_offset == demand.cleanable_end
        return min(demand.active_bytes, demand.segment_bytes) if is_first and has_rolled else 0

    def _must_sweep(
        self, segments: Sequence[SegmentFacts], demand: Demand, now_ms: int, retention_ms: int
    ) -> bool:
        """Return whether a full pass is due for expired tombstones.

        A full pass for tombstones runs at most once per retention time, because rewriting the whole
        log for each tombstone would cost as much as brute force. If the cleanable part has grown
        since the last plan, the pass is delayed until one of two conditions holds. The first
        condition: since the last full pass, the cleanable part has grown by as many offsets as the
        log has keys. The second condition: the first tombstones expired at least a tenth of the
        retention time ago.
        """
        statistics = self._statistics
        overdue = [each for each in segments if self._is_overdue(each, demand.cleanable_end)]
        if not overdue:
            return False
        if statistics.swept_ms != UNKNOWN and now_ms - statistics.swept_ms < retention_ms:
            return False
        if demand.cleanable_end == statistics.planned_to:
            return True
        due_ms = min(statistics.rows[each.base_offset].due_ms for each in overdue)
        is_late = now_ms - due_ms >= retention_ms // HORIZON_PART
        return is_late or demand.cleanable_end - statistics.swept_to >= statistics.samples.key_count

    def _is_overdue(self, segment: SegmentFacts, cleanable_end: int) -> bool:
        """Return whether a segment has expired tombstones that the last full pass kept."""
        if not segment.has_due or segment.end_offset > cleanable_end:
            return False
        was_swept = segment.end_offset <= self._statistics.swept_to
        # `due_ms` may equal `swept_ms`: with a retention of 0, the last full pass was the first
        # cleaning that saw the tombstone, and kept it.
        return (
            not was_swept
            or self._statistics.rows[segment.base_offset].due_ms >= self._statistics.swept_ms
        )

    # -- after a cleaning ------------------------------------------------------------------------

    def note(
        self,
        job: CleaningJob,
        cleaned: CleaningResult,
        segments: Sequence[SourceSegment],
        *,
        is_full: bool,
    ) -> None:
        """Update the statistics after a cleaning whose segments are swapped in.

        Args:
            job: The cleaning.
            cleaned: Result of the cleaning.
            segments: All finished segments of the partition after the swap, in order.
            is_full: Whether the cleaning was a full pass.
        """
        self._count(job, cleaned)
        dropped = {each.bases[0] for each in job.groups if job.lets_go(each, cleaned.mapped_to)}
        rows = self._statistics.rows
        new = {each.base_offset: each for each in segments}
        for group in cleaned.groups:
            old = [rows.pop(base) for base in group.bases]
            if group.base_offset in dropped:
                self._forget_expired(old, group, job.now_ms)
            if segment := new.get(group.base_offset):
                rows[group.base_offset] = _row_after(old, group, segment, job, cleaned.mapped_to)
        self._statistics.rows = {
            base: rows.get(base) or new_row(segment, base) for base, segment in new.items()
        }
        self._segments = tuple(segments)
        self._weigh(cleaned)
        if is_full:
            self._statistics.swept_to = _swept_to(job, cleaned)
            self._statistics.swept_ms = job.now_ms
        self._is_changed = True

    def _forget_expired(self, old: Iterable[SegmentRow], group: CleanedGroup, now_ms: int) -> None:
        if all(row.due_ms == UNKNOWN or row.due_ms <= now_ms for row in old):
            before = len(self._statistics.samples)
            self._statistics.samples.forget_tombstones(group.base_offset, group.end_offset)
            self._statistics.note_lost(before - len(self._statistics.samples))

    def _count(self, job: CleaningJob, cleaned: CleaningResult) -> None:
        """Compare the sample with the number of keys in the map if both cover the same offsets."""
        start, end = job.map_from, cleaned.mapped_to
        statistics, samples = self._statistics, self._statistics.samples
        mapped = [row for row in statistics.rows.values() if row.end_offset > start]
        # Segments that can't be cleaned yet were neither mapped nor sampled.
        is_same = all((row.records != UNKNOWN) == (row.end_offset <= end) for row in mapped)
        # A sample of all keys needs no correction; an impossible count is ignored.
        if samples.shift and is_same and 0 < cleaned.keys <= end - start:
            sampled = samples.count_between(start, end)
            new = MappedKeys(shift=samples.shift, keys=cleaned.keys, sampled=sampled)
            statistics.counted = better(statistics.counted, new, samples)

    def _weigh(self, cleaned: CleaningResult) -> None:
        """Set `weight_bytes` of segments without garbage to the bytes of their sampled records.

        This cleaning has left only the last record of each key in these segments.
        """
        mapped_to, samples = cleaned.mapped_to, self._statistics.samples
        bases = sorted(self._statistics.rows)
        sampled = dict(zip(bases, samples.count(bases), strict=True))
        for group in cleaned.groups:
            row = self._statistics.rows.get(group.base_offset)
            if row is not None and row.cleaned_to >= mapped_to:
                weight = sampled[group.base_offset][1] << samples.shift
                self._statistics.rows[group.base_offset] = replace(
                    row, weight_bytes=weight or UNKNOWN
                )

    def store(self) -> int:
        """Write the file if anything has changed; return the number of bytes written.

        Raises:
            OSError: The disk failed; a reader of the file gets the old or the new statistics.
        """
        if not self._is_changed:
            return 0
        # After a failed write, the file may have any contents, so the next write replaces the file.
        stored, self._stored = self._stored, None
        self._stored, size = write_statistics(
            self._env.files, self._directory, self._statistics, stored
        )
        if self._cache is not None:
            keep_written(self._env.files, self._directory, self._cache, self._stored)
        self._is_changed = False
        self.bytes_written += size
        return size


def _row_after(
    old: Sequence[SegmentRow],
    group: CleanedGroup,
    segment: SourceSegment,
    job: CleaningJob,
    mapped_to: int,
) -> SegmentRow:
    """Return the row of a cleaned segment, computed from the rows of its sources."""
    proven = [after_cleaning(row.cleaned_to, job.map_from, mapped_to) for row in old]
    record_bytes = bytes_after([row.record_bytes for row in old], group)
    return replace(
        new_row(segment, after_merging(proven)),
        records=group.records_after - group.markers_after,
        record_bytes=record_bytes,
        weight_bytes=record_bytes,
        due_ms=due_after(old, group, job.delete_horizon_ms),
        runs=max(row.runs for row in old) + 1,
        # The difference counts as 0 if it is negative: a batch may grow when it gets a delete
        # horizon.
        freed_bytes=sum(row.freed_bytes for row in old)
        + max(group.bytes_before - group.bytes_after, 0),
    )


# Bytes of a slot of the offset map. If keys are verified, the map also stores the key, which takes
# about as many bytes as the slot.
_SLOT_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class CleaningTerms:
    """Input of a decision, except the log: rules, wall time, whether a full pass was requested.

    Attributes:
        rules: Callback that returns the rules; raises ConfigError if settings conflict.
        now_ms: Wall time.
        is_asked: Whether a full pass was requested.
    """

    rules: Callable[[], CompactionRules]
    now_ms: int
    is_asked: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Segments that a cleaning reads and rewrites.

    Attributes:
        sources: The segments that the cleaning reads, oldest first.
        groups: Groups of segments that become one segment each.
        map_from: First offset whose key is mapped, inclusive.
    """

    sources: Sequence[ClosedSegment]
    groups: tuple[Group, ...]
    map_from: int


class SpaceBound:
    """The `Scheduler` of generational compaction: bounds a log to a multiple of its live size.

    The statistics of the partition's segments, instead of the dirty ratio, decide whether a
    cleaning is due and which segments are rewritten. The caller must hold the directory's lock from
    `judge` to `record_cleaning`.
    """

    goes_on = False

    def __init__(self) -> None:
        self._memory: Generations | None = None
        self._plan: GenerationPlan | None = None

    @property
    def bytes_read(self) -> int:
        """Bytes of log files that were read for the decision."""
        return 0 if self._memory is None else self._memory.bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes that were written to store statistics."""
        return 0 if self._memory is None else self._memory.bytes_written

    def limits(self, config: TopicConfig) -> TopicConfig:
        """Return settings with which uncompacted records make a cleaning due only by their age.

        The share and the size of uncompacted records make no cleaning due.
        """
        return replace(
            config, min_cleanable_dirty_ratio=1.0, tidelog_compaction_min_dirty_bytes=NEVER_BYTES
        )

    def judge(
        self,
        log: "LogAccess",
        segments: Sequence[ClosedSegment],
        state: LogState,
        terms: CleaningTerms,
    ) -> CleaningDecision:
        """Decide by the space bound; may read the keys of new segments and store statistics."""
        context, config = log.context, log.context.config
        decision = judge(state, self.limits(config), terms.now_ms, is_asked=terms.is_asked)
        memory = self._memory = Generations.load(
            context.env,
            context.directory,
            identities(segments),
            decision.first_dirty,
            context.pool.decoded,
        )
        due = DueReason.REQUEST if terms.is_asked else decision.due
        forced = due if due in (DueReason.LAG, DueReason.REQUEST) else None
        reason = "it was requested" if forced is DueReason.REQUEST else decision.reason
        demand = demand_of(
            config, terms.rules(), decision.end, log.active.size_bytes, reason if forced else ""
        )
        if demand.everything or memory.may_be_due(demand):
            memory.sample(decision.end)
        plan = self._plan = memory.plan(demand, terms.now_ms, config.delete_retention_ms)
        for problem in memory.problems:
            context.report(problem)
        if not plan.is_due and (memory.bytes_read or memory.has_horizon):
            memory.store()  # otherwise `record_cleaning` stores the statistics
        due_reason = (forced or DueReason.SPACE) if plan.is_due else None
        return replace(decision, due=due_reason, reason=plan.reason)

    def choose(
        self, segments: Sequence[ClosedSegment], _decision: CleaningDecision, _config: TopicConfig
    ) -> Choice:
        """Select the segments that the plan rewrites, and the segments whose keys it maps."""
        plan = self._plan
        assert plan is not None
        rewritten = {base for group in plan.groups for base in group.bases}
        sources = [
            each
            for each in segments
            if each.end_offset <= plan.map_to
            and (each.base_offset in rewritten or each.end_offset > plan.map_from)
        ]
        return Choice(sources, plan.groups, plan.map_from)

    def record_cleaning(self, log: "LogAccess", job: CleaningJob, cleaned: CleaningResult) -> int:
        """Store the statistics after a cleaning; see `Scheduler`."""
        memory, plan = self._memory, self._plan
        assert memory is not None
        assert plan is not None
        segments = identities(log.swaps.cleanable_segments())
        memory.note(job, cleaned, segments, is_full=plan.is_full)
        memory.store()
        return memory.clean_end(log.log_start_offset)

    def forecast(
        self, decision: CleaningDecision, plan: Callable[[str], GenerationPlan]
    ) -> GenerationPlan:
        """Return the plan unchanged, because planning already checks space and tombstones."""
        return plan(decision.reason if decision.due is DueReason.LAG else "")


def demand_of(
    config: TopicConfig,
    rules: CompactionRules,
    cleanable_end: int,
    active_bytes: int,
    everything: str,
) -> Demand:
    """Return the requirements of a plan, from the topic's settings.

    Args:
        config: The settings.
        rules: Rules by which the topic is cleaned.
        cleanable_end: Offset up to which the log may be cleaned.
        active_bytes: Size of the active segment.
        everything: Reason for a full pass; empty if no full pass is required.
    """
    return Demand(
        cleanable_end=cleanable_end,
        active_bytes=active_bytes,
        segment_bytes=config.segment_size_limit,
        space_factor=config.tidelog_compaction_space_factor,
        map_keys_max=_map_keys(rules),
        everything=everything,
        has_versions=rules.has_versions,
    )


def identities(segments: Iterable[ClosedSegment]) -> list[SourceSegment]:
    """Return, for each segment, the attributes by which its statistics row is found."""
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


def _swept_to(job: CleaningJob, cleaned: CleaningResult) -> int:
    """Return the offset up to which a full pass removed due tombstones, exclusive."""
    if not job.rules.has_versions:
        return cleaned.mapped_to
    # If the strategy compares versions, only groups before the mapped offsets may drop tombstones;
    # see `CleaningJob.lets_go`.
    return job.map_from if cleaned.mapped_to == job.map_to else 0


def _map_keys(rules: CompactionRules) -> float:
    """Return about how many keys the offset map can hold, estimated without the sizes of keys."""
    slots = rules.dedupe_buffer_bytes / _SLOT_BYTES
    return slots * rules.load_factor / (2 if rules.verify_keys else 1)
