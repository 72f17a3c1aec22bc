"""Cleaning one partition: look, clean, swap in, remember.

Parts: plan, work, swap in, history, checkpoint, again.

`looking` says what may be cleaned and whether it is due, and makes a job of it; a worker (this
process or another one) carries that out on files alone, `take_in` swaps its segments in, one after
the other, and moves the checkpoint when all of them are there. What comes to the log meanwhile at
its end is no matter; where segments of the job were cut, deleted or exchanged, the job is given up
(`CleaningAborted`) and nothing of it that was not yet swapped in is left. A run that ended early is
begun again from the old checkpoint: what it had swapped in stays compacted.

Where a map holds fewer keys than the head has, a pass covers what it can and the next one goes on.

Everything but the worker needs the directory's lock. `log_dir` may be a stand-in whose calls are
carried out in another thread. Source: Kafka 4.x LogCleaner, LogCleanerManager.

Putting one `.cleaned` segment in the place of those it was made from, in one step.

1. Its files are durable under `.cleaned` names; what the log file was last changed at is put back.
2. They are renamed to `.swap`, the log first, in Kafka's order, and the names synced. As long as
   one `.cleaned` name is left, an opening (ours and Kafka's) drops all of it; from then on an
   opening finishes the swap.
3. A commit record says what moves and what goes. Before it readers without a lock see the old
   segments, after it the new one.
4. The log renames the old files to `.deleted`, the new ones to their final names, and shows them
   (`storage.log.segment_swaps`). Those names are synced, the record removed.

What fails up to 3 is undone, so that cleaning can be tried again. What fails later takes the
partition offline: only an opening can tell.

Needs the directory's lock. While it runs nobody else may cut, delete or exchange segments of the
partition. Source: Kafka 4.x Cleaner.cleanSegments, LocalLog.replaceSegments; facts 6.7, 3.8.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.env import FileSystem
from tidelog.errors import CleaningAborted, StorageFailure
from tidelog.storage import commits, files
from tidelog.storage.commits import Commit, Move, Removal
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
from tidelog.storage.directory.staging import remove_quietly
from tidelog.storage.log.segment_swaps import CleanedSwap
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
    "swap_group",
    "take_in",
]


# The log first: whoever finds it under its new name needs no other to know what it replaces.
_ORDER: Final = files.SEGMENT_SUFFIXES


@dataclass(frozen=True, slots=True)
class _Place:
    """The files of one cleaned segment."""

    fs: FileSystem
    directory: str
    group: CleanedGroup

    @property
    def names(self) -> list[str]:
        """Their final names, the log first."""
        known = [suffix for suffix in _ORDER if suffix in self.group.suffixes]
        return [files.file_name(self.group.base_offset, suffix) for suffix in known]

    def path(self, name: str, suffix: str) -> str:
        """Where a file is called so."""
        return f"{self.directory}/{name}{suffix}"

    def stage(self, mtime_ms: int) -> None:
        """From `.cleaned` to `.swap`, durably; raises OSError."""
        fs = self.fs
        fs.set_mtime(self.path(self.names[0], files.CLEANED_SUFFIX), mtime_ms)
        fs.sync_dir(self.directory)  # a name that is lost alone must not be missing in a swap
        for name in self.names:
            fs.rename(self.path(name, files.CLEANED_SUFFIX), self.path(name, files.SWAP_SUFFIX))
        fs.sync_dir(self.directory)

    def undo(self) -> None:
        """Drop what is staged, so that no crash on the way finishes it; raises OSError."""
        fs, log = self.fs, self.names[0]
        if fs.exists(self.path(log, files.SWAP_SUFFIX)):
            # An opening that finds a `.cleaned` name drops the `.swap` ones of that segment.
            fs.rename(self.path(log, files.SWAP_SUFFIX), self.path(log, files.CLEANED_SUFFIX))
            fs.sync_dir(self.directory)
        for name in self.names[1:]:
            for suffix in (files.SWAP_SUFFIX, files.CLEANED_SUFFIX):
                if fs.exists(self.path(name, suffix)):
                    fs.remove(self.path(name, suffix))
        fs.sync_dir(self.directory)
        if fs.exists(self.path(log, files.CLEANED_SUFFIX)):
            fs.remove(self.path(log, files.CLEANED_SUFFIX))
        fs.sync_dir(self.directory)

    def commit(self, partition_dir: str, bases: Iterable[int]) -> Commit:
        """What the swap moves and takes away."""
        names = self.names
        moves = [Move(partition_dir, name + files.SWAP_SUFFIX, name) for name in names]
        going = [name for base in bases for name in self._names_of(base) if name not in names]
        there = [name for name in going if self.fs.exists(f"{self.directory}/{name}")]
        return Commit(
            moves=tuple(moves), removes=tuple(Removal(partition_dir, name) for name in there)
        )

    def _names_of(self, base: int) -> list[str]:
        suffixes: tuple[str, ...] = files.SEGMENT_SUFFIXES
        if base != self.group.base_offset:
            suffixes = (*suffixes, files.SNAPSHOT_SUFFIX)
        return [files.file_name(base, suffix) for suffix in suffixes]


def swap_group(
    log_dir: "DirectoryAccess", log: "Log", old: Sequence[ClosedSegment], group: CleanedGroup
) -> None:
    """Put a cleaned segment in the place of the segments it was made from.

    Args:
        log_dir: Open for writing.
        log: The partition, of that directory.
        old: What the group was made from, as the log shows it.
        group: Its files are durable.

    Raises:
        StorageFailure: The disk failed. Where the partition is offline then, reopening tells
            which segments are there; else the old ones, and nothing is left of the new one.
    """
    directory = log.context.directory
    place = _Place(log_dir.env.files, directory, group)
    commit_id = uuid.UUID(int=log_dir.env.random.getrandbits(128)).hex
    record = commits.commit_path(log_dir.path, commit_id)
    log_dir.commit_records.under_way[record] = log.topic_partition
    try:
        # Who reopens the partition looks above; who has reopened it before is seen here.
        if not log.swaps.still_has(old):
            raise StorageFailure(directory, "swap cleaned segments", "they have changed meanwhile")
        _swap(log_dir, log, old, place, commit_id)
    finally:
        del log_dir.commit_records.under_way[record]


def _swap(
    log_dir: "DirectoryAccess",
    log: "Log",
    old: Sequence[ClosedSegment],
    place: _Place,
    commit_id: str,
) -> None:
    directory, group = place.directory, place.group
    record = commits.commit_path(log_dir.path, commit_id)
    try:
        place.stage(old[-1].mtime_ms())
        commit = place.commit(files.partition_dir_name(log.topic_partition), group.bases)
        commits.publish(place.fs, log_dir.path, commit_id, commit)
    except OSError as error:
        raise _undone(log, place, record, error) from error
    log.swaps.take_cleaned(CleanedSwap(old, group.end_offset, commit))
    try:
        commits.finish(place.fs, log_dir.path, record, commit)
    except OSError as error:
        failure = as_storage_failure(error, directory, "finish a swap")
        log.swaps.fail_adoption(failure.reason)
        raise failure from error


def _undone(log: "Log", place: _Place, record: str, error: OSError) -> StorageFailure:
    """Take back what was staged; the partition goes offline where that can't be known to work."""
    failure = as_storage_failure(error, place.directory, "swap cleaned segments")
    try:
        if place.fs.exists(record):
            log.swaps.fail_adoption(failure.reason)  # it is visible, and may be durable
        else:
            remove_quietly(place.fs, record + files.TMP_SUFFIX)
            place.undo()
    except OSError:
        log.swaps.fail_adoption(failure.reason)
    return failure


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
        StorageFailure: The disk failed; see `swap_group`.
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
        swap_group(log_dir, log, old, group)
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
