"""Cleaning one partition: plan, work, swap in, remember, and again.

`cleaning_plan` says what may be cleaned and whether it is due, and makes a job of it. A worker
(this process or another one) carries the job out on files alone: it writes `.cleaned` files.
`swap_in` notes the history, puts the cleaned segments in the place of those they were made from,
one after the other (`directory.publication`), and moves the checkpoint when all of them are there.
Records that are appended meanwhile don't matter. Where segments of the job were cut, deleted or
exchanged, the job is given up (`CleaningAborted`), and nothing of it that was not yet swapped in is
left. A run that ended early is begun again from the old checkpoint: what it had swapped in stays
compacted.

Where a map holds fewer keys than the head has, a pass covers what it can and the next one goes on.

Everything but the worker needs the directory's lock. `log_dir` may be a stand-in whose calls are
carried out in another thread.

Source: Kafka 4.x LogCleaner, LogCleanerManager, Cleaner.cleanSegments, LocalLog.replaceSegments.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.env import FileSystem
from tidelog.errors import CleaningAborted
from tidelog.storage import files
from tidelog.storage.commits import Move
from tidelog.storage.compaction.cleaning_plan import (
    CleanerOptions,
    CleaningPlan,
    CleaningState,
    inspect_log,
    next_history,
    plan_cleaning,
)
from tidelog.storage.compaction.eligibility import CleaningDecision
from tidelog.storage.compaction.job import Cleaned, CleanedGroup, CleaningJob
from tidelog.storage.directory.publication import Change, publish
from tidelog.storage.directory.staging import remove_quietly
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.compaction_history import write_history
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import DirectoryAccess
    from tidelog.storage.log.log_access import LogAccess


class _CleanedChange(Change):
    """One cleaned segment, whose `.cleaned` files are durable, on its way into the log.

    Its files are renamed to `.swap`, the log first, in Kafka's order, and the names synced. As long
    as one `.cleaned` name is left, an opening (ours and Kafka's) drops all of them; from then on it
    finishes the swap.
    """

    keeps_old = True

    def __init__(self, log: "LogAccess", old: Sequence[ClosedSegment], group: CleanedGroup) -> None:
        super().__init__(log, old)
        self.bases = [group.base_offset]
        # The log first: under its new name it tells by itself what it replaces.
        suffixes = [suffix for suffix in files.SEGMENT_SUFFIXES if suffix in group.suffixes]
        self._names = [files.file_name(group.base_offset, suffix) for suffix in suffixes]

    def _path(self, name: str, suffix: str) -> str:
        return f"{self._directory}/{name}{suffix}"

    def stage(self) -> list[Move]:
        """From `.cleaned` to `.swap`, durably; the time of the log file's last change stays."""
        fs, directory = self._fs, self._directory
        fs.set_mtime(self._path(self._names[0], files.CLEANED_SUFFIX), self.old[-1].mtime_ms())
        fs.sync_dir(directory)  # a name that is lost alone must not be missing in a swap
        for name in self._names:
            fs.rename(self._path(name, files.CLEANED_SUFFIX), self._path(name, files.SWAP_SUFFIX))
        fs.sync_dir(directory)
        return [Move(self._partition_dir, name + files.SWAP_SUFFIX, name) for name in self._names]

    def discard(self) -> None:
        """Drop what is staged, so that no crash on the way finishes it; raises OSError."""
        fs, log = self._fs, self._names[0]
        if fs.exists(self._path(log, files.SWAP_SUFFIX)):
            # An opening that finds a `.cleaned` name drops the `.swap` ones of that segment.
            fs.rename(self._path(log, files.SWAP_SUFFIX), self._path(log, files.CLEANED_SUFFIX))
            fs.sync_dir(self._directory)
        for name in self._names[1:]:
            for suffix in (files.SWAP_SUFFIX, files.CLEANED_SUFFIX):
                if fs.exists(self._path(name, suffix)):
                    fs.remove(self._path(name, suffix))
        fs.sync_dir(self._directory)
        if fs.exists(self._path(log, files.CLEANED_SUFFIX)):
            fs.remove(self._path(log, files.CLEANED_SUFFIX))
        fs.sync_dir(self._directory)


def drop_cleaned(fs: FileSystem, directory: str) -> None:
    """Remove what a cleaning that ended early has left; nothing where a swap was begun.

    Never raises: the next opening drops it, too.
    """
    try:
        names = [entry.name for entry in fs.list_dir(directory)]
    except OSError:
        return
    if any(name.endswith(files.SWAP_SUFFIX) for name in names):
        return  # its `.cleaned` names are what keeps an opening from finishing it
    for name in names:
        if name.endswith(files.CLEANED_SUFFIX):
            remove_quietly(fs, f"{directory}/{name}")


# A head is finite, and each pass maps a part of it: more passes than this are a mistake of ours.
PASSES_MAX: Final = 1_000_000


class Worker(Protocol):
    """Who carries a job out."""

    def clean(self, job: CleaningJob) -> Cleaned:
        """Write the `.cleaned` files of a job, durably, and nothing else.

        Raises:
            TidelogError, OSError: It could not; whatever it has written is to be dropped.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningReport:
    """What a run has done to a partition.

    Attributes:
        name: The partition.
        decision: What was found when it began.
        passes: How many jobs were done; 0 where nothing was due.
        segments_before: Segments that were rewritten.
        segments_after: What became of them.
        bytes_before: Bytes of their log files.
        bytes_after: Of those that took their place.
        records_before: Records in them, markers included.
        records_after: What is left of those.
        bytes_read: Read from log files, to plan and to clean.
        bytes_written: Written into log files, and to remember what was planned.
        cleaned_to: Offset below which it is compacted now.
        stopped: Why the head could not be cleaned to its end, None where it was.
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

    def plus(self, cleaned: Cleaned) -> "CleaningReport":
        """The same with one more pass."""
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


# -- swapping in ---------------------------------------------------------------------------------


def swap_in(log_dir: "DirectoryAccess", plan: CleaningPlan, cleaned: Cleaned) -> None:
    """Swap the segments of a job in, and move the checkpoint behind them.

    Raises:
        CleaningAborted: Segments of the job are no longer there; nothing more is changed.
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
    cleaned: Cleaned,
    sizes: frozenset[tuple[int, int]],
) -> None:
    """Note what a cleaning takes, durably, before the first of its segments is in place.

    Args:
        log_dir: Open for writing.
        plan: The cleaning.
        cleaned: What it has made.
        sizes: Base offset and size of those new log files that will lie in the directory.

    Raises:
        OSError: The disk failed; the old history or the new one is there.
    """
    history = next_history(plan, cleaned, sizes)
    if log_dir.cleaner_offset(plan.state.name) is None:
        log_dir.note_cleaned(plan.state.name, plan.state.decision.first_dirty)
    write_history(log_dir.env.files, plan.job.directory, history)


def _in_order(job: CleaningJob, cleaned: Cleaned) -> Sequence[CleanedGroup]:
    """Groups as they are swapped in: a crash between two must not bring back what was deleted.

    What a record goes for comes after it, so the oldest group is the first, and a tombstone goes
    behind what it covers. Where versions decide, what goes among the mapped records may go for one
    before them, and for a tombstone that goes itself: the newest mapped group is the first then,
    and what lies before the mapped records comes last. There every key has one record.
    """
    if not job.rules.has_versions:
        return cleaned.groups
    mapped = [group for group in cleaned.groups if group.end_offset > job.map_from]
    return (*reversed(mapped), *cleaned.groups[: -len(mapped) or None])


def _size_of(log: "LogAccess", base_offset: int) -> tuple[int, int]:
    path = files.cleaned_path(log.context.directory, base_offset, files.LOG_SUFFIX)
    return base_offset, log.context.env.files.stat(path).size


def _ensure_there(log: "LogAccess", segments: Sequence[ClosedSegment]) -> None:
    if not log.swaps.still_has(segments):
        raise CleaningAborted(
            f"{log.topic_partition}: segments that were being cleaned have been cut, deleted or"
            " exchanged meanwhile; what was cleaned of them is dropped"
        )


# -- the whole ----------------------------------------------------------------------------------


class CleaningTarget(Protocol):
    """Segments of one partition that are cleaned in passes."""

    @property
    def name(self) -> TopicPartition:
        """The partition."""

    @property
    def goes_on(self) -> bool:
        """Whether the rest of a head that a map could not hold is due at once."""

    def inspect(self, *, is_asked: bool) -> tuple[CleaningDecision, CleaningJob | None]:
        """What may be cleaned now, and the job that does it; None where nothing is due."""

    def clean(self, job: CleaningJob) -> Cleaned:
        """Carry out the job of the last inspection, and put what it makes in place."""


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
        """The partition now."""

    @abstractmethod
    def clean(self, job: CleaningJob) -> Cleaned:
        """See `CleaningTarget`."""

    def inspect(self, *, is_asked: bool) -> tuple[CleaningDecision, CleaningJob | None]:
        """See `CleaningTarget`; a checkpoint that can't be is written anew."""
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
        """See `CleaningTarget`: the scheduler says."""
        assert self._inspected is not None
        return self._inspected.scheduler.goes_on

    @property
    def _plan(self) -> CleaningPlan:
        assert self._planned is not None
        return self._planned


class LogTarget(PartitionTarget):
    """The finished segments of a log without a tier."""

    def __init__(
        self,
        log_dir: "DirectoryAccess",
        name: TopicPartition,
        options: CleanerOptions,
        worker: Worker | None = None,
    ) -> None:
        """Not yet inspected.

        Args:
            log_dir: Open for writing.
            name: The partition.
            options: How.
            worker: Carries jobs out; None where somebody else does, see `swap_in`.
        """
        super().__init__(log_dir, name, options)
        self._worker = worker

    def _state(self, *, is_asked: bool) -> CleaningState:
        return inspect_log(self._log_dir, self.name, is_asked=is_asked, options=self._options)

    def clean(self, job: CleaningJob) -> Cleaned:
        """See `CleaningTarget`."""
        assert self._worker is not None
        try:
            cleaned = self._worker.clean(job)
            self.swap_in(cleaned)
        except OSError as error:
            raise as_storage_failure(error, job.directory, "clean") from error
        finally:
            # What was swapped in has other names by now.
            drop_cleaned(self._log_dir.env.files, job.directory)
        scheduler = self._plan.state.scheduler
        return replace(
            cleaned,
            bytes_read=cleaned.bytes_read + scheduler.bytes_read,
            bytes_written=cleaned.bytes_written + scheduler.bytes_written,
        )

    def swap_in(self, cleaned: Cleaned) -> None:
        """Put what the last inspection's job has made in place; raises as `swap_in`."""
        with self._options.hold(self.name):
            swap_in(self._log_dir, self._plan, cleaned)


def clean_partition(
    log_dir: "DirectoryAccess", name: TopicPartition, worker: Worker, options: CleanerOptions
) -> CleaningReport:
    """Clean a partition where that is due, or asked for, in as many passes as it takes.

    Args:
        log_dir: Open for writing.
        name: The partition.
        worker: Carries jobs out.
        options: How.

    Raises:
        UnknownTopic, ReadOnly, InvalidRequest, ConfigError: Nothing was changed.
        CleaningAborted: The partition was changed meanwhile; it may be tried again at once.
        CorruptData: A damaged batch, named; groups before it may be compacted.
        StorageFailure: The disk failed.
    """
    return clean(LogTarget(log_dir, name, options, worker), is_asked=options.is_asked)


def clean(target: CleaningTarget, *, is_asked: bool) -> CleaningReport:
    """Clean a target where that is due, or asked for; raises what its calls raise."""
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


def _map_is_full(job: CleaningJob, cleaned: Cleaned) -> str:
    """Why a head could not be cleaned to its end."""
    return (
        f"the offset map of {job.rules.dedupe_buffer_bytes} bytes was full at offset"
        f" {cleaned.mapped_to} of {job.map_to} with {cleaned.keys} keys; raise"
        " log.cleaner.dedupe.buffer.size"
    )
