"""Cleaning one partition: look, clean, swap in, remember.

`looking` says what may be cleaned and whether it is due, and makes a job of it; a worker (this
process or another one) carries that out on files alone, `take_in` swaps its segments in, one after
the other, and moves the checkpoint when all of them are there. What comes to the log meanwhile at
its end is no matter; where segments of the job were cut, deleted or exchanged, the job is given up
(`CleaningAborted`) and nothing of it that was not yet swapped in is left. A run that ended early is
begun again from the old checkpoint: what it had swapped in stays compacted.

Where a map holds fewer keys than the head has, a pass covers what it can and the next one goes on.

Everything but the worker needs the directory's lock. `log_dir` may be a stand-in whose calls are
carried out in another thread. Source: Kafka 4.x LogCleaner, LogCleanerManager.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.errors import CleaningAborted
from tidelog.storage import files
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.compaction.eligibility import Verdict
from tidelog.storage.compaction.generational import GenerationLook, settle
from tidelog.storage.compaction.history import Run, next_history, write_history
from tidelog.storage.compaction.job import Cleaned, CleanedGroup, CleaningJob
from tidelog.storage.compaction.looking import (
    CleanerOptions,
    CleaningPlan,
    Look,
    look,
    plan_cleaning,
)
from tidelog.storage.compaction.swap import drop_cleaned, swap_group
from tidelog.storage.handles import as_storage_failure
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.log_dir import LogDir

__all__ = [
    "CleanerOptions",
    "CleaningPlan",
    "CleaningReport",
    "Look",
    "Worker",
    "clean_partition",
    "look",
    "map_is_full",
    "note_run",
    "plan_cleaning",
    "take_in",
]

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


def take_in(log_dir: "LogDir", log: "Log", plan: CleaningPlan, cleaned: Cleaned) -> None:
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
    log_dir: "LogDir", plan: CleaningPlan, cleaned: Cleaned, sizes: frozenset[tuple[int, int]]
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
    if not log.still_has(segments):
        raise CleaningAborted(
            f"{log.topic_partition}: segments that were being cleaned have been cut, deleted or"
            " exchanged meanwhile; what was cleaned of them is dropped"
        )


# -- the whole ----------------------------------------------------------------------------------


def clean_partition(
    log_dir: "LogDir", name: TopicPartition, worker: Worker, options: CleanerOptions
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
    log_dir: "LogDir", log: "Log", plan: CleaningPlan, worker: Worker, options: CleanerOptions
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
