"""The scheduler that bounds space: what is remembered of segments, and what is cleaned next.

`SpaceBound` is the `Scheduler` of topics that `tidelog.compaction.scheduler` cleans generationally.
`Generations` is its memory of one partition, from one cleaning to the next: `load` -> `sample` ->
`plan` -> (the cleaning, its swap) -> `note` -> `store`. Needs the directory's lock from `load` to
`store`. Not for two threads.

Not owned: the estimates (`estimates`), the plan (`planning`), the file (`statistics`).

Source: docs/generations.md.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from tidelog.config import TopicConfig
from tidelog.env import Env
from tidelog.errors import CorruptData, MissingDependency, UnsupportedCompression
from tidelog.storage import files
from tidelog.storage.compaction.eligibility import (
    HORIZON_PART,
    NEVER_BYTES,
    CleaningDecision,
    DueReason,
    LogState,
    judge,
)
from tidelog.storage.compaction.generations.estimates import (
    Counted,
    MappedKeys,
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
    Stored,
    keep_written,
    new_row,
    read_statistics,
    reconcile,
    write_statistics,
)
from tidelog.storage.compaction.job import (
    SEED_SIZE,
    Cleaned,
    CleanedGroup,
    CleaningJob,
    CompactionRules,
    Group,
    SourceSegment,
)
from tidelog.storage.open_files import DecodedFiles
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from tidelog.storage.log.log_access import LogAccess


def counted_of(row: SegmentRow, keys: int, found_bytes: int) -> Counted:
    """What the sample says of a segment."""
    return Counted(
        size_bytes=row.size_bytes,
        cohort=UNKNOWN if row.cleaned_to == row.base_offset else row.cleaned_to,
        keys=keys,
        found_bytes=found_bytes,
        weight_bytes=row.weight_bytes,
    )


def facts_of(
    row: SegmentRow, keys: int, found_bytes: int, live: float, whole: float, now_ms: int
) -> SegmentFacts:
    """What a scheduler knows of a segment.

    Args:
        row: What is remembered of it.
        keys: Keys whose last record is expected to be in it.
        found_bytes: Bytes of those records.
        live: Bytes of it that are expected to be alive.
        whole: By what factor sums over the whole sample are wrong.
        now_ms: Wall time.
    """
    total = live
    if row.record_bytes > 0:
        total = row.size_bytes * found_bytes * whole / row.record_bytes
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
    """Bytes of a cleaned segment's records: as much less as its file is smaller."""
    if UNKNOWN in before or not group.bytes_before:
        return UNKNOWN
    return max(sum(before) * group.bytes_after // group.bytes_before, 1)


def due_after(old: Sequence[SegmentRow], group: CleanedGroup, horizon_ms: int) -> int:
    """When the last of a cleaned segment's tombstones may go, -1 where it has none.

    What this cleaning has met for the first time got its horizon now; the others keep theirs.
    Markers go with a cleaning that comes for something else: most of them are needed as long as
    records of their transactions are there, and then no time lets them go.
    """
    if not group.tombstones_after:
        return UNKNOWN
    if any(row.due_ms == UNKNOWN for row in old):
        return horizon_ms
    return max(row.due_ms for row in old)


class Generations:
    """What is remembered of a partition, and what is to be done next.

    Attributes:
        problems: What is wrong with the file, or with segments that could not be sampled.
        bytes_read: Bytes of log files that were read to sample their keys.
        bytes_written: Bytes of the file that were written.
    """

    def __init__(
        self,
        env: Env,
        directory: str,
        segments: Sequence[SourceSegment],
        known: Statistics,
        stored: Stored | None,
        kept: DecodedFiles | None = None,
    ) -> None:
        self._env = env
        self._directory = directory
        self._segments = tuple(segments)
        self._known = known
        self._stored = stored
        self._kept = kept
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
        kept: DecodedFiles | None = None,
    ) -> Self:
        """What is remembered of a partition; a file that is lost or damaged remembers nothing.

        Args:
            env: Files and randomness.
            directory: The partition's directory.
            segments: All its finished segments, in order.
            clean_offset: Offset below which no older version of any key remains, as the
                partition's `cleaner-offset-checkpoint` says; the log start where it says nothing.
            kept: What files said before, of the lock's holder; else the file is read.

        Raises:
            OSError: The disk failed.
        """
        stored, problem = read_statistics(env.files, directory, kept)
        if stored is None:
            seed = env.random.getrandbits(8 * SEED_SIZE).to_bytes(SEED_SIZE, "big")
            statistics = Statistics(seed=seed)
        else:
            statistics = stored.statistics.copy()
        made = cls(
            env, directory, segments, reconcile(statistics, segments, clean_offset), stored, kept
        )
        made.problems = [problem] if problem else []
        return made

    # -- looking ---------------------------------------------------------------------------------

    def may_be_due(self, demand: Demand) -> bool:
        """Whether a plan could be due if all that was not yet read were garbage.

        The live size never falls by itself: as long as the log has room by what was known, nobody
        needs to know more, and new segments are read at once when it has none.
        """
        live = sum(
            each.sum_bytes
            for each in self.facts(0)
            if each.records is not None and each.end_offset <= demand.cleanable_end
        )
        size = sum(each.size_bytes for each in self._segments)
        return size + demand.segment_bytes > demand.space_factor * live * (1 - ERROR_MAX)

    @property
    def has_tombstones_due(self) -> bool:
        """Whether it matters that a log is idle: some tombstones will have had their time."""
        return any(row.due_ms != UNKNOWN for row in self._known.rows.values())

    def sample(self, cleanable_end: int) -> None:
        """Read the keys of finished segments that were not yet read, up to an offset.

        Args:
            cleanable_end: Where to stop, exclusive: what can't be cleaned yet is read later.

        Raises:
            MissingDependency: numpy or numba is not installed.
            OSError: The disk failed; what was read before counts.
        """
        for segment in self._segments:
            row = self._known.rows[segment.base_offset]
            if row.records == UNKNOWN and segment.end_offset <= cleanable_end:
                self._sample(segment, row)

    def _sample(self, segment: SourceSegment, row: SegmentRow) -> None:
        try:
            from tidelog.storage.compaction.generations.sampling import sample_segment
        except ImportError as error:
            raise MissingDependency(
                f"compaction by what is alive needs tidelog[arrow]: {error}"
            ) from error
        path = f"{self._directory}/{files.log_file_name(segment.base_offset)}"
        file = self._env.files.open(path)
        try:
            sampled = sample_segment(file, path, self._known.seed, self._known.samples)
        except (CorruptData, UnsupportedCompression) as error:
            self.problems.append(f"{error}; its keys are not in the sample")
            return
        finally:
            file.close()
        self.bytes_read += segment.size_bytes
        self._known.rows[segment.base_offset] = replace(
            row,
            records=sampled.records,
            record_bytes=sampled.record_bytes,
            weight_bytes=sampled.record_bytes,
            due_ms=sampled.due_ms,
        )
        self._is_changed = True

    def facts(self, now_ms: int) -> list[SegmentFacts]:
        """What is known of each finished segment, in order."""
        bases = [each.base_offset for each in self._segments]
        rows = [self._known.rows[base] for base in bases]
        samples = self._known.samples
        whole = correction(samples, self._known.counted)
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
        """What is remembered of a finished segment."""
        return self._known.rows[base_offset]

    def clean_end(self, log_start_offset: int) -> int:
        """What `cleaner-offset-checkpoint` may say: see `planning.clean_end`."""
        return clean_end(self.facts(0), log_start_offset)

    # -- planning --------------------------------------------------------------------------------

    def plan(self, demand: Demand, now_ms: int, delete_retention_ms: int) -> GenerationPlan:
        """The next cleaning; one without groups where none is due.

        Args:
            demand: What is asked; what the estimates are worth, and how late this look comes, is
                filled in here.
            now_ms: Wall time.
            delete_retention_ms: How long tombstones stay after they were first cleaned.
        """
        segments = self.facts(now_ms)
        statistics = self._known
        demand = replace(
            demand,
            live_error=live_error(statistics.samples, statistics.counted),
            count_error=count_error(statistics.samples, statistics.counted),
            late_bytes=self._late_bytes(demand),
        )
        if not demand.everything and self._must_sweep(
            segments, demand, now_ms, delete_retention_ms
        ):
            demand = replace(demand, everything="tombstones have had their time")
        if statistics.planned_to != demand.cleanable_end:
            statistics.planned_to = demand.cleanable_end
            self._is_changed = True
        return plan_generation(segments, demand)

    def _late_bytes(self, demand: Demand) -> int:
        """How much is appended from a roll to the first look behind it: as much as this time.

        A cleaning that waits for the next look has the active segment, full, to reckon with, and
        what of the one behind it is there by then: a batch at least, since that makes it roll.
        """
        is_first = self._known.planned_to != demand.cleanable_end
        has_rolled = self._segments and self._segments[-1].end_offset == demand.cleanable_end
        return min(demand.active_bytes, demand.segment_bytes) if is_first and has_rolled else 0

    def _must_sweep(
        self, segments: Sequence[SegmentFacts], demand: Demand, now_ms: int, retention_ms: int
    ) -> bool:
        """Whether a full pass is due for tombstones that have had their time.

        Once in a retention time at most: rewriting all of the log for each tombstone would be
        brute force. A busy log waits for as many new records as it has keys, but no longer than a
        tenth of the retention.
        """
        statistics = self._known
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
        """Whether it has tombstones that may go, and that the last full pass could not let go."""
        if not segment.has_due or segment.end_offset > cleanable_end:
            return False
        was_swept = segment.end_offset <= self._known.swept_to
        # With a retention of 0 both are the time of the pass that met the tombstone.
        return not was_swept or self._known.rows[segment.base_offset].due_ms >= self._known.swept_ms

    # -- afterwards ------------------------------------------------------------------------------

    def note(
        self,
        job: CleaningJob,
        cleaned: Cleaned,
        segments: Sequence[SourceSegment],
        *,
        is_full: bool,
    ) -> None:
        """Take in what a cleaning has done, once its segments are in place.

        Args:
            job: The cleaning.
            cleaned: What it has made.
            segments: All finished segments of the partition as they are now, in order.
            is_full: Whether it was a full pass.
        """
        self._count(job, cleaned)
        dropped = {each.bases[0] for each in job.groups if job.lets_go(each, cleaned.mapped_to)}
        rows = self._known.rows
        new = {each.base_offset: each for each in segments}
        for group in cleaned.groups:
            old = [rows.pop(base) for base in group.bases]
            if group.base_offset in dropped:
                self._forget_expired(old, group, job.now_ms)
            if segment := new.get(group.base_offset):
                rows[group.base_offset] = _row_after(old, group, segment, job, cleaned.mapped_to)
        self._known.rows = {
            base: rows.get(base) or new_row(segment, base) for base, segment in new.items()
        }
        self._segments = tuple(segments)
        self._weigh(cleaned)
        if is_full:
            self._known.swept_to = _swept_to(job, cleaned)
            self._known.swept_ms = job.now_ms
        self._is_changed = True

    def _forget_expired(self, old: Iterable[SegmentRow], group: CleanedGroup, now_ms: int) -> None:
        if all(row.due_ms == UNKNOWN or row.due_ms <= now_ms for row in old):
            before = len(self._known.samples)
            self._known.samples.forget_tombstones(group.base_offset, group.end_offset)
            self._known.note_lost(before - len(self._known.samples))

    def _count(self, job: CleaningJob, cleaned: Cleaned) -> None:
        """Hold the sample against the number of keys in the map, where both are of the same."""
        start, end = job.map_from, cleaned.mapped_to
        statistics, samples = self._known, self._known.samples
        mapped = [row for row in statistics.rows.values() if row.end_offset > start]
        # What was not mapped, as it has to wait, was not sampled either.
        is_same = all((row.records != UNKNOWN) == (row.end_offset <= end) for row in mapped)
        # A sample of all keys needs no help; a count that can't be is nobody's.
        if samples.shift and is_same and 0 < cleaned.keys <= end - start:
            sampled = samples.count_between(start, end)
            new = MappedKeys(shift=samples.shift, keys=cleaned.keys, sampled=sampled)
            statistics.counted = better(statistics.counted, new, samples)

    def _weigh(self, cleaned: Cleaned) -> None:
        """Let the sample stand for the whole of segments that have nothing but last records."""
        mapped_to, samples = cleaned.mapped_to, self._known.samples
        bases = sorted(self._known.rows)
        sampled = dict(zip(bases, samples.count(bases), strict=True))
        for group in cleaned.groups:
            row = self._known.rows.get(group.base_offset)
            if row is not None and row.cleaned_to >= mapped_to:
                weight = sampled[group.base_offset][1] << samples.shift
                self._known.rows[group.base_offset] = replace(row, weight_bytes=weight or UNKNOWN)

    def store(self) -> int:
        """Write the file where anything has changed; how many bytes were written.

        Raises:
            OSError: The disk failed; the file says what it said, or what it should say.
        """
        if not self._is_changed:
            return 0
        # Whatever a write leaves that fails: nothing is appended to it.
        stored, self._stored = self._stored, None
        self._stored, size = write_statistics(self._env.files, self._directory, self._known, stored)
        if self._kept is not None:
            keep_written(self._env.files, self._directory, self._kept, self._stored)
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
    """The row of a cleaned segment, from those of the segments that it was made of."""
    proven = [after_cleaning(row.cleaned_to, job.map_from, mapped_to) for row in old]
    record_bytes = bytes_after([row.record_bytes for row in old], group)
    horizon_ms = min(job.now_ms + job.rules.delete_retention_ms, INT64_MAX)
    return replace(
        new_row(segment, after_merging(proven)),
        records=group.records_after - group.markers_after,
        record_bytes=record_bytes,
        weight_bytes=record_bytes,
        due_ms=due_after(old, group, horizon_ms),
        runs=max(row.runs for row in old) + 1,
        # A batch that gets a delete horizon may grow.
        found_bytes=sum(row.found_bytes for row in old)
        + max(group.bytes_before - group.bytes_after, 0),
    )


# Bytes of a slot of the offset map, of which verified keys take about as much again.
_SLOT_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class CleaningTerms:
    """By which rules, when, and whether somebody asks for a full pass.

    Attributes:
        rules: Makes the rules; raises ConfigError where settings contradict.
        now_ms: Wall time.
        is_asked: Whether somebody asks.
    """

    rules: Callable[[], CompactionRules]
    now_ms: int
    is_asked: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What a cleaning reads and rewrites.

    Attributes:
        sources: The segments that it reads, oldest first.
        groups: Those that become one segment each.
        map_from: First offset whose key is mapped, inclusive.
    """

    sources: Sequence[ClosedSegment]
    groups: tuple[Group, ...]
    map_from: int


class SpaceBound:
    """The `Scheduler` of generational compaction: a log takes a bounded multiple of what is alive.

    What is remembered of the partition's segments decides whether a cleaning is due, in the place
    of the dirty ratio, and what is rewritten. Needs the directory's lock from `judge` to
    `record_cleaning`.
    """

    goes_on = False

    def __init__(self) -> None:
        self._memory: Generations | None = None
        self._plan: GenerationPlan | None = None

    @property
    def bytes_read(self) -> int:
        """See `Scheduler`."""
        return 0 if self._memory is None else self._memory.bytes_read

    @property
    def bytes_written(self) -> int:
        """See `Scheduler`."""
        return 0 if self._memory is None else self._memory.bytes_written

    def limits(self, config: TopicConfig) -> TopicConfig:
        """A head is judged by its age alone: the space bound takes the ratio's place."""
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
        """See `Scheduler`; reads the keys of segments that are new since the last inspection."""
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
        reason = "it was asked for" if forced is DueReason.REQUEST else decision.reason
        demand = demand_of(
            config, terms.rules(), decision.end, log.active.size_bytes, reason if forced else ""
        )
        if demand.everything or memory.may_be_due(demand):
            memory.sample(decision.end)
        plan = self._plan = memory.plan(demand, terms.now_ms, config.delete_retention_ms)
        for problem in memory.problems:
            context.report(problem)
        if not plan.is_due and (memory.bytes_read or memory.has_tombstones_due):
            memory.store()  # else it is stored once the cleaning is in place
        due_reason = (forced or DueReason.SPACE) if plan.is_due else None
        return replace(decision, due=due_reason, reason=plan.reason)

    def choose(
        self, segments: Sequence[ClosedSegment], _decision: CleaningDecision, _config: TopicConfig
    ) -> Choice:
        """The segments that the plan rewrites, and those whose keys it maps."""
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

    def record_cleaning(self, log: "LogAccess", job: CleaningJob, cleaned: Cleaned) -> int:
        """See `Scheduler`."""
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
        """See `Scheduler`; space and tombstones are the plan's own reasons."""
        return plan(decision.reason if decision.due is DueReason.LAG else "")


def demand_of(
    config: TopicConfig,
    rules: CompactionRules,
    cleanable_end: int,
    active_bytes: int,
    everything: str,
) -> Demand:
    """What a topic's settings ask of a plan.

    Args:
        config: The settings.
        rules: By which rules it is cleaned.
        cleanable_end: Offset up to which the log may be cleaned.
        active_bytes: Bytes of the active segment.
        everything: Why a full pass is made; empty where not.
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
