"""Cleaning one partition: plan, work, swap in, remember, and again.

`cleaning_plan` says what may be cleaned and whether it is due, and makes a job of it. A worker
(this process or another one) carries the job out on files alone: it writes `.cleaned` files.
`take_in` notes the history, puts the cleaned segments in the place of those they were made from,
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
    Look,
    Run,
    look,
    next_history,
    plan_cleaning,
)
from tidelog.storage.compaction.eligibility import Verdict
from tidelog.storage.compaction.generations.scheduler import GenerationLook, settle
from tidelog.storage.compaction.job import Cleaned, CleanedGroup, CleaningJob
from tidelog.storage.directory.publication import Change, publish
from tidelog.storage.directory.staging import remove_quietly
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.compaction_history import write_history
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import DirectoryAccess
    from tidelog.storage.log.log import Log

__all__ = [
    "CleanerOptions",
    "CleaningPlan",
    "CleaningReport",
    "Look",
    "Worker",
    "clean_partition",
    "drop_cleaned",
    "look",
    "map_is_full",
    "note_run",
    "plan_cleaning",
    "take_in",
]


# The log first: whoever finds it under its new name needs no other to know what it replaces.
_ORDER: Final = files.SEGMENT_SUFFIXES


class _CleanedChange(Change):
    """One cleaned segment, whose `.cleaned` files are durable, on its way into the log.

    Its files are renamed to `.swap`, the log first, in Kafka's order, and the names synced. As long
    as one `.cleaned` name is left, an opening (ours and Kafka's) drops all of them; from then on it
    finishes the swap.
    """

    keeps_old = True

    def __init__(self, log: "Log", old: Sequence[ClosedSegment], group: CleanedGroup) -> None:
        super().__init__(log, old)
        self.bases = [group.base_offset]
        known = [suffix for suffix in _ORDER if suffix in group.suffixes]
        self._names = [files.file_name(group.base_offset, suffix) for suffix in known]

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
        verdict: What was found when it began.
        passes: How many jobs were done; 0 where nothing was due.
        segments_before: Segments that were rewritten.
        segments_after: What became of them.
        bytes_before: Bytes of their log files.
        bytes_after: Of those that took their place.
        records_before: Records in them, markers included.
        records_after: What is left of those.
        bytes_read: Read from log files.
        bytes_written: Written into log files.
        cleaned_to: Offset below which it is compacted now.
        stopped: Why the head could not be cleaned to its end, None where it was.
    """

    name: TopicPartition
    verdict: Verdict
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

    def plus(self, cleaned: Cleaned, generation: GenerationLook | None) -> "CleaningReport":
        """The same with one more pass, and what was read and written to plan it."""
        groups = cleaned.groups
        known = None if generation is None else generation.generations
        return replace(
            self,
            passes=self.passes + 1,
            segments_before=self.segments_before + sum(len(each.bases) for each in groups),
            segments_after=self.segments_after + len(groups),
            bytes_before=self.bytes_before + sum(each.bytes_before for each in groups),
            bytes_after=self.bytes_after + sum(each.bytes_after for each in groups),
            records_before=self.records_before + sum(each.records_before for each in groups),
            records_after=self.records_after + sum(each.records_after for each in groups),
            bytes_read=self.bytes_read + cleaned.bytes_read + (known.bytes_read if known else 0),
            bytes_written=self.bytes_written
            + cleaned.bytes_written
            + (known.bytes_written if known else 0),
            cleaned_to=cleaned.mapped_to,
        )


# -- swapping in ---------------------------------------------------------------------------------


def take_in(log_dir: "DirectoryAccess", log: "Log", plan: CleaningPlan, cleaned: Cleaned) -> None:
    """Swap the segments of a job in, and move the checkpoint behind them.

    Raises:
        CleaningAborted: Segments of the job are no longer there; nothing more is changed.
        StorageFailure: The disk failed; see `publication.publish`.
    """
    directory = log.context.directory
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
        clean_end = cleaned.mapped_to
        if plan.generation is not None:
            clean_end = settle(log, plan.generation, plan.job, cleaned)
        log_dir.note_cleaned(plan.name, clean_end)
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
    run = Run(
        groups=cleaned.groups,
        mapped=[each for each in plan.sources if each.base_offset < cleaned.mapped_to],
        mapped_to=cleaned.mapped_to,
        known=plan.known | sizes,
        now_ms=plan.job.now_ms,
        delete_retention_ms=plan.job.rules.delete_retention_ms,
    )
    history = next_history(plan.before, plan.bounds, run)
    if log_dir.cleaner_offset(plan.name) is None:
        log_dir.note_cleaned(plan.name, plan.first_dirty)
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


def _size_of(log: "Log", base_offset: int) -> tuple[int, int]:
    name = files.log_file_name(base_offset) + files.CLEANED_SUFFIX
    return base_offset, log.context.env.files.stat(f"{log.context.directory}/{name}").size


def _ensure_there(log: "Log", segments: Sequence[ClosedSegment]) -> None:
    if not log.swaps.still_has(segments):
        raise CleaningAborted(
            f"{log.topic_partition}: segments that were being cleaned have been cut, deleted or"
            " exchanged meanwhile; what was cleaned of them is dropped"
        )


# -- the whole ----------------------------------------------------------------------------------


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
    found = look(log_dir, name, is_asked=options.is_asked, options=options)
    if found.verdict.is_reset:
        log_dir.note_cleaned(name, found.verdict.first_dirty)
    report = CleaningReport(name=name, verdict=found.verdict, cleaned_to=found.verdict.first_dirty)
    for _ in range(PASSES_MAX):
        if found.verdict.due is None:
            return report
        plan = plan_cleaning(log_dir, found, options)
        cleaned = _pass(log_dir, found.log, plan, worker, options)
        report = report.plus(cleaned, plan.generation)
        if cleaned.mapped_to >= plan.job.map_to:
            return report
        if cleaned.mapped_to <= plan.job.map_from:
            return replace(report, stopped=map_is_full(plan, cleaned))
        is_asked = options.is_asked or plan.generation is None
        found = look(log_dir, name, is_asked=is_asked, options=options)
    return report


def _pass(
    log_dir: "DirectoryAccess",
    log: "Log",
    plan: CleaningPlan,
    worker: Worker,
    options: CleanerOptions,
) -> Cleaned:
    """One job, from its first byte read to its last segment in place."""
    try:
        cleaned = worker.clean(plan.job)
        with options.hold(plan.name):
            take_in(log_dir, log, plan, cleaned)
    except OSError as error:
        raise as_storage_failure(error, plan.job.directory, "clean") from error
    finally:
        # What was swapped in has other names by now.
        drop_cleaned(log_dir.env.files, plan.job.directory)
    return cleaned


def map_is_full(plan: CleaningPlan, cleaned: Cleaned) -> str:
    """Why a head could not be cleaned to its end."""
    return (
        f"the offset map of {plan.job.rules.dedupe_buffer_bytes} bytes was full at offset"
        f" {cleaned.mapped_to} of {plan.job.map_to} with {cleaned.keys} keys; raise"
        " log.cleaner.dedupe.buffer.size"
    )
