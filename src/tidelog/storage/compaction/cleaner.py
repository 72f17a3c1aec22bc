"""Cleans one partition in passes: plan, clean, swap in, store the outcome.

`cleaning_plan` decides what may be cleaned and whether a cleaning is due, and makes the job. A
worker (in this process or another process) carries the job out. The worker writes nothing except
`.cleaned` files. `swap_in` stores the history, replaces the sources by the cleaned segments, one
after the other (`directory.publication`), and moves the checkpoint when all cleaned segments are in
place. Records may be appended during a cleaning. If a segment of the job is truncated, deleted or
replaced during the cleaning, the job is given up (`CleaningAborted`), and its files that are not
swapped in yet are removed. After an interruption, the next cleaning starts at the old checkpoint.
Segments that were swapped in before the interruption stay compacted.

If the offset map can't hold all keys of the head (the offsets that no pass has cleaned yet), a pass
cleans a part of the head, and the next pass continues.

The history stores a bound (`note_run`): a table as of any time at or after the bound is exact. A
record is dropped as superseded only if the record that supersedes it is below the pass's
`mapped_to`. Suppose that no record below `mapped_to` has a time after T. Then, for each dropped
record, a record that superseded it (directly or through other records) belongs to the table as of
T. So this table is exact. The bound also holds for tombstones that are dropped later. The bound may
be later than necessary, but it is never too early. If no record was ever dropped, tables as of
every T are exact: each offset from the log start on has its record. If a cleaner other than
tidelog's has dropped records, only the append clock has a bound. This bound is at least the time of
the pass, because each missing record was superseded by a record that was appended before the pass.
The record timestamps of the missing records are unknown, so the record clock has no bound.

The worker needs no lock; the rest of a cleaning needs the directory's lock. `log_dir` may be a
proxy that runs its calls in another thread.

Source: Kafka 4.x LogCleaner, LogCleanerManager, Cleaner.cleanSegments, LocalLog.replaceSegments.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.amounts import plural
from tidelog.env import FileSystem
from tidelog.errors import CleaningAborted
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import log_files
from tidelog.storage.commits import Move
from tidelog.storage.compaction.cleaning_plan import (
    CleanerOptions,
    CleaningPlan,
    CleaningState,
    inspect_log,
    plan_cleaning,
)
from tidelog.storage.compaction.eligibility import CleaningDecision, horizon_of
from tidelog.storage.compaction.job import CleanedGroup, CleaningJob, CleaningResult
from tidelog.storage.directory.publication import Change, publish
from tidelog.storage.directory.staging import remove_quietly
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.compaction_history import (
    ALWAYS_MS,
    CompactionHistory,
    write_history,
)
from tidelog.types import UNKNOWN_MS, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import DirectoryAccess
    from tidelog.storage.log.log import LogAccess


class _CleanedChange(Change):
    """One cleaned segment with durable `.cleaned` files, about to be swapped into the log.

    The `.cleaned` files are renamed to `.swap` in Kafka's order, the log file first, and the names
    are synced. As long as a `.cleaned` name is left, opening the directory (by tidelog or Kafka)
    drops the segment's `.cleaned` and `.swap` files. When no `.cleaned` name is left, opening
    finishes the swap.
    """

    keeps_old = True

    def __init__(self, log: "LogAccess", old: Sequence[ClosedSegment], group: CleanedGroup) -> None:
        super().__init__(log, old)
        self.bases = [group.base_offset]
        # The log file is renamed first, because its new name alone decides which segments are
        # replaced.
        suffixes = [suffix for suffix in log_files.SEGMENT_SUFFIXES if suffix in group.suffixes]
        self._names = [log_files.file_name(group.base_offset, suffix) for suffix in suffixes]

    def _path(self, name: str, suffix: str) -> str:
        return f"{self._directory}/{name}{suffix}"

    def stage(self) -> list[Move]:
        """Rename the `.cleaned` files to `.swap`, durably, and return the moves to the final names.

        The log file gets the modification time of the last old segment.
        """
        fs, directory = self._fs, self._directory
        fs.set_mtime(self._path(self._names[0], log_files.CLEANED_SUFFIX), self.old[-1].mtime_ms())
        fs.sync_dir(directory)  # `.cleaned` names are durable before the first name is replaced
        for name in self._names:
            fs.rename(
                self._path(name, log_files.CLEANED_SUFFIX), self._path(name, log_files.SWAP_SUFFIX)
            )
        fs.sync_dir(directory)
        return [
            Move(self._partition_dir, name + log_files.SWAP_SUFFIX, name) for name in self._names
        ]

    def discard(self) -> None:
        """Drop the staged files so that the swap isn't finished after a crash; raises OSError."""
        fs, log = self._fs, self._names[0]
        if fs.exists(self._path(log, log_files.SWAP_SUFFIX)):
            # If a `.cleaned` name exists, opening the directory drops the `.swap` files of that
            # segment.
            fs.rename(
                self._path(log, log_files.SWAP_SUFFIX), self._path(log, log_files.CLEANED_SUFFIX)
            )
            fs.sync_dir(self._directory)
        for name in self._names[1:]:
            for suffix in (log_files.SWAP_SUFFIX, log_files.CLEANED_SUFFIX):
                if fs.exists(self._path(name, suffix)):
                    fs.remove(self._path(name, suffix))
        fs.sync_dir(self._directory)
        if fs.exists(self._path(log, log_files.CLEANED_SUFFIX)):
            fs.remove(self._path(log, log_files.CLEANED_SUFFIX))
        fs.sync_dir(self._directory)


def drop_cleaned(fs: FileSystem, directory: str) -> None:
    """Remove the `.cleaned` files of an interrupted cleaning, unless a swap has begun.

    Never raises, because the next opening of the directory removes files that remain.
    """
    try:
        names = [entry.name for entry in fs.list_dir(directory)]
    except OSError:
        return
    if any(name.endswith(log_files.SWAP_SUFFIX) for name in names):
        return  # without the `.cleaned` files, the next opening would finish an incomplete swap
    for name in names:
        if name.endswith(log_files.CLEANED_SUFFIX):
            remove_quietly(fs, f"{directory}/{name}")


# Maximum number of passes in which one call of `clean` cleans a partition. Each pass maps a part of
# a finite head, so a call that exceeds this number has a bug.
PASSES_MAX: Final = 1_000_000


class Worker(Protocol):
    """Carries out cleaning jobs."""

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Write the `.cleaned` files of a job, durably, and nothing else; return the result.

        Raises:
            TidelogError, OSError: The job failed; the caller has to drop the files written so far.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningReport:
    """Outcome of cleaning a partition in any number of passes.

    Attributes:
        name: The partition.
        decision: The decision before the first pass.
        passes: Number of jobs carried out; 0 if nothing was due.
        segments_before: Number of segments that were rewritten.
        segments_after: Number of segments that replaced the rewritten segments.
        bytes_before: Size in bytes of the log files that were rewritten.
        bytes_after: Size in bytes of the log files that replaced the rewritten log files.
        records_before: Number of records in the rewritten segments, markers included.
        records_after: Number of records in the segments that replaced the rewritten segments,
            markers included.
        bytes_read: Number of bytes read from log files, to plan and to clean.
        bytes_written: Number of bytes written into log files and statistics.
        cleaned_to: Offset below which the log is compacted now.
        stopped: Reason why the cleaning stopped before the end of the head; None if it reached the
            end.
    """

    name: TopicPartition
    decision: CleaningDecision
    passes: int = 0
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    cleaned_to: int = 0
    stopped: str | None = None

    def plus(self, cleaned: CleaningResult) -> "CleaningReport":
        """Return the outcome with one more pass added."""
        groups = cleaned.groups
        return replace(
            self,
            passes=self.passes + 1,
            segments_before=self.segments_before + sum(len(each.bases) for each in groups),
            segments_after=self.segments_after + len(groups),
            bytes_before=self.bytes_before + sum(each.bytes_before for each in groups),
            bytes_after=self.bytes_after + sum(each.bytes_after for each in groups),
            records_before=self.records_before + sum(each.records_before for each in groups),
            records_after=self.records_after + sum(each.records_after for each in groups),
            bytes_read=self.bytes_read + cleaned.bytes_read,
            bytes_written=self.bytes_written + cleaned.bytes_written,
            cleaned_to=cleaned.mapped_to,
        )


# -- swap ----------------------------------------------------------------------------------------


def swap_in(log_dir: "DirectoryAccess", plan: CleaningPlan, cleaned: CleaningResult) -> None:
    """Swap in the segments of a job, then move the checkpoint to the end of the cleaned part.

    Raises:
        CleaningAborted: A source segment of the job no longer exists. Groups that were swapped in
            before the error stay in the log.
        StorageFailure: The disk failed; see `publication.publish`.
    """
    log, directory = plan.state.log, plan.job.directory
    _ensure_there(log, plan.sources)
    sources = {each.base_offset: each for each in plan.sources}
    try:
        sizes = frozenset(_size_of(log, each.base_offset) for each in cleaned.groups)
        note_run(log_dir, plan, cleaned, sizes)
    except OSError as error:
        raise as_storage_failure(error, directory, "note a cleaning") from error
    for group in _in_order(plan.job, cleaned):
        old = [sources[base] for base in group.bases]
        _ensure_there(log, old)
        publish(log_dir, [_CleanedChange(log, old, group)], "swap cleaned segments")
    try:
        checkpoint = plan.state.scheduler.record_cleaning(log, plan.job, cleaned)
        log_dir.note_cleaned(plan.state.name, checkpoint)
    except OSError as error:
        raise as_storage_failure(error, directory, "note a cleaning") from error


def note_run(
    log_dir: "DirectoryAccess",
    plan: CleaningPlan,
    cleaned: CleaningResult,
    sizes: frozenset[tuple[int, int]],
) -> None:
    """Store the history of a cleaning, durably, before the first of its segments is swapped in.

    Args:
        log_dir: The directory, open for writing.
        plan: The cleaning.
        cleaned: Result of the cleaning.
        sizes: Base offset and size of each new local log file.

    Raises:
        OSError: The disk failed; the old or the new history is stored.
    """
    history = _next_history(plan, cleaned, sizes)
    if log_dir.cleaner_offset(plan.state.name) is None:
        log_dir.note_cleaned(plan.state.name, plan.state.decision.first_dirty)
    write_history(log_dir.env.files, plan.job.directory, history)


def _next_history(
    plan: CleaningPlan, cleaned: CleaningResult, sizes: frozenset[tuple[int, int]]
) -> CompactionHistory:
    """Return the history to store before the first file of a cleaning is renamed into place.

    Args:
        plan: The cleaning.
        cleaned: Result of the cleaning.
        sizes: Base offset and size of each new local log file.
    """
    before, (record_ms, append_ms) = plan.before, plan.bounds
    mapped = [each for each in plan.sources if each.base_offset < cleaned.mapped_to]
    has_removed = any(each.records_after < each.records_before for each in cleaned.groups)
    if has_removed and record_ms != UNKNOWN_MS:
        record_ms = max(record_ms, *(each.largest_timestamp for each in mapped), ALWAYS_MS)
    if append_ms == UNKNOWN_MS or has_removed:
        before_ms = plan.job.now_ms if append_ms == UNKNOWN_MS else append_ms
        append_ms = _append_bound(before_ms, mapped, plan.job.now_ms)
    end = max(cleaned.mapped_to, 0 if before is None else before.end_offset)
    return CompactionHistory(
        end_offset=end,
        record_exact_ms=record_ms,
        append_exact_ms=append_ms,
        run_ms=plan.job.now_ms,
        horizons_ms=_horizons(before, plan.job, cleaned),
        segments=frozenset(each for each in plan.segment_sizes | sizes if each[0] < end),
    )


def _append_bound(before_ms: int, mapped: Sequence[ClosedSegment], now_ms: int) -> int:
    """Return the latest append time of mapped segments, but at least `before_ms`.

    If an append time of these segments is unknown, `now_ms` is used instead of the latest append
    time.
    """
    last_times = [each.append_times.last_known_ms for each in mapped if _is_timed(each)]
    latest = [ms for ms in last_times if ms is not None]
    is_known = len(latest) == sum(each.size_bytes > 0 for each in mapped)
    return max(before_ms, ALWAYS_MS, max(latest, default=0) if is_known else now_ms)


def _is_timed(segment: ClosedSegment) -> bool:
    """Return whether a segment has records and all their append times are known."""
    last = segment.last_batches
    if not segment.size_bytes or last.error is not None:
        return False
    return not segment.append_times.unknown_in(segment.base_offset, last.next_offset)


def _horizons(
    before: CompactionHistory | None, job: CleaningJob, cleaned: CleaningResult
) -> tuple[int, ...]:
    earlier = () if before is None else before.horizons_ms
    horizons = {time for time in earlier if time > job.now_ms}
    # Expired markers alone don't make a cleaning due: most markers are needed as long as records of
    # their transactions remain, so the cleaning would remove few markers.
    if any(each.tombstones_after for each in cleaned.groups):
        horizons.add(horizon_of(job.now_ms, job.rules.delete_retention_ms))
    return tuple(sorted(horizons))


def _in_order(job: CleaningJob, cleaned: CleaningResult) -> Sequence[CleanedGroup]:
    """Return the groups in the order of their swaps, so that no crash lets a deleted key reappear.

    If offsets decide which record of a key stays, a tombstone deletes only earlier records. So the
    oldest group is swapped in first, and the tombstone is removed after the records that it
    deletes.

    If versions decide which record stays, a tombstone may also delete later, mapped records. So the
    newest mapped group is swapped in first, and the groups before the mapped records are swapped in
    last. The order of those last groups does not matter, because each key has only one record in
    them.
    """
    if not job.rules.has_versions:
        return cleaned.groups
    mapped = [group for group in cleaned.groups if group.end_offset > job.map_from]
    return (*reversed(mapped), *cleaned.groups[: -len(mapped) or None])


def _size_of(log: "LogAccess", base_offset: int) -> tuple[int, int]:
    path = log_files.cleaned_path(log.context.directory, base_offset, log_files.LOG_SUFFIX)
    return base_offset, log.context.env.files.stat(path).size


def _ensure_there(log: "LogAccess", segments: Sequence[ClosedSegment]) -> None:
    if not log.swaps.still_has(segments):
        raise CleaningAborted(
            f"{log.topic_partition}: segments were truncated, deleted or replaced while they were"
            " cleaned; their cleaned copies are dropped"
        )


# -- the whole cleaning --------------------------------------------------------------------------


class CleaningTarget(Protocol):
    """Segments of one partition that are cleaned in passes."""

    @property
    def name(self) -> TopicPartition:
        """Name of the partition."""

    @property
    def goes_on(self) -> bool:
        """Whether further passes follow at once if the map can't hold all keys of the head."""

    def inspect(self, *, is_asked: bool) -> tuple[CleaningDecision, CleaningJob | None]:
        """Inspect the target; return the decision, and the job (None if nothing is due)."""

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Carry out the job of the last inspection, and swap the cleaned segments in."""


class PartitionTarget(ABC):
    """A `CleaningTarget` in an open directory."""

    def __init__(
        self, log_dir: "DirectoryAccess", name: TopicPartition, options: CleanerOptions
    ) -> None:
        self.name = name
        self._log_dir = log_dir
        self._options = options
        self._inspected: CleaningState | None = None
        self._planned: CleaningPlan | None = None

    @abstractmethod
    def _state(self, *, is_asked: bool) -> CleaningState:
        """Inspect the partition, and return its current state."""

    @abstractmethod
    def clean(self, job: CleaningJob) -> CleaningResult:
        """Carry out the job of the last inspection, and swap the cleaned segments in."""

    def inspect(self, *, is_asked: bool) -> tuple[CleaningDecision, CleaningJob | None]:
        """Inspect the target; see `CleaningTarget`.

        If the cleaner's checkpoint is outside the log, the first dirty offset of the decision
        replaces it.
        """
        state = self._inspected = self._state(is_asked=is_asked)
        decision = state.decision
        if decision.is_reset:
            self._log_dir.note_cleaned(self.name, decision.first_dirty)
        plan = self._planned = None
        if decision.due is not None:
            plan = self._planned = plan_cleaning(self._log_dir, state, self._options)
        return decision, None if plan is None else plan.job

    @property
    def goes_on(self) -> bool:
        """Whether further passes follow at once, according to the scheduler of the inspection."""
        assert self._inspected is not None
        return self._inspected.scheduler.goes_on

    @property
    def _plan(self) -> CleaningPlan:
        assert self._planned is not None
        return self._planned


class LogTarget(PartitionTarget):
    """`CleaningTarget` for the finished segments of a log without a tier."""

    def __init__(
        self,
        log_dir: "DirectoryAccess",
        name: TopicPartition,
        options: CleanerOptions,
        worker: Worker | None = None,
    ) -> None:
        """Create a target that is not inspected yet.

        Args:
            log_dir: The directory, open for writing.
            name: The partition.
            options: Options of the cleaning.
            worker: Carries jobs out; None if the caller carries jobs out and calls `swap_in`.
        """
        super().__init__(log_dir, name, options)
        self._worker = worker

    def _state(self, *, is_asked: bool) -> CleaningState:
        return inspect_log(self._log_dir, self.name, is_asked=is_asked, options=self._options)

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Carry out the job and swap it in; see `CleaningTarget`."""
        assert self._worker is not None
        try:
            cleaned = self._worker.clean(job)
            self.swap_in(cleaned)
        except OSError as error:
            raise as_storage_failure(error, job.directory, "clean") from error
        finally:
            # Files that were swapped in are kept: they no longer have `.cleaned` names.
            drop_cleaned(self._log_dir.env.files, job.directory)
        scheduler = self._plan.state.scheduler
        return replace(
            cleaned,
            bytes_read=cleaned.bytes_read + scheduler.bytes_read,
            bytes_written=cleaned.bytes_written + scheduler.bytes_written,
        )

    def swap_in(self, cleaned: CleaningResult) -> None:
        """Swap in the result of the last inspection's job; raises errors of `cleaner.swap_in`."""
        with self._options.hold(self.name):
            swap_in(self._log_dir, self._plan, cleaned)


def clean_partition(
    log_dir: "DirectoryAccess", name: TopicPartition, worker: Worker, options: CleanerOptions
) -> CleaningReport:
    """Clean a partition, in as many passes as necessary, if a cleaning is due or requested.

    Args:
        log_dir: The directory, open for writing.
        name: The partition.
        worker: Carries jobs out.
        options: Options of the cleaning.

    Raises:
        UnknownTopic, ReadOnly, InvalidRequest, ConfigError, MissingDependency: `inspect_log` can't
            inspect the partition; nothing was changed.
        CleaningAborted: The partition was changed during the cleaning; the caller may retry at
            once.
        CorruptData: A batch is damaged (the error contains its position); groups before this batch
            may have been compacted.
        CleaningFailed, OffsetOverflow, UnsupportedCompression: The worker failed; groups that
            were replaced in earlier passes remain compacted.
        StorageFailure: The disk failed.
    """
    return clean(LogTarget(log_dir, name, options, worker), is_asked=options.is_asked)


def clean(target: CleaningTarget, *, is_asked: bool) -> CleaningReport:
    """Clean a target if a cleaning is due or requested; raises errors of the target's methods."""
    decision, job = target.inspect(is_asked=is_asked)
    report = CleaningReport(name=target.name, decision=decision, cleaned_to=decision.first_dirty)
    for _ in range(PASSES_MAX):
        if job is None:
            return report
        cleaned = target.clean(job)
        report = report.plus(cleaned)
        if cleaned.mapped_to >= job.map_to:
            return report
        if cleaned.mapped_to <= job.map_from:
            return replace(report, stopped=_map_is_full(job, cleaned))
        _, job = target.inspect(is_asked=is_asked or target.goes_on)
    return report


def _map_is_full(job: CleaningJob, cleaned: CleaningResult) -> str:
    """Return why the head could not be cleaned to its end, as text."""
    return (
        f"the offset map of {job.rules.dedupe_buffer_bytes} bytes was full at offset"
        f" {cleaned.mapped_to} of {job.map_to} with {plural(cleaned.keys, 'key')}; raise"
        " log.cleaner.dedupe.buffer.size"
    )
