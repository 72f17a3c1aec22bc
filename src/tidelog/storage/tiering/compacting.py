"""Compaction of what only a tier has: cleaned like local segments, exchanged in the manifest.

The segments that have no local file any more are read from the store, cleaned by brute force into
`.cleaned` files, copied under new names, read back, and put into the manifest in the place of those
that they were made from, by one compare-and-swap for all of them, or for each part of the job where
several workers share it (`cleaning.TierWorker`): a reader sees the log as it was, or cleaned, or
cleaned up to an offset. What lies here is left alone until it is in the tier alone, copied or not.

All older segments are in the job, and parts come by ascending offsets, so a tombstone goes when its
time has come and what it covers has gone: no object that a manifest names can hold such a record.
What left the manifest stays for the grace period, for those who planned before, and for parts that
still map its keys.

A crash before a swap leaves orphans and `.cleaned` files, which the next run of `tidelog tier
--collect` and an opening remove; after it, a checkpoint that is behind: the cleaning is begun again
from there, and what was exchanged stays.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.errors import CleaningAborted, InvalidRequest, TierConflict
from tidelog.storage.compaction.job import Cleaned
from tidelog.storage.compaction.job_parts import together
from tidelog.storage.compaction.looking import (
    CleanerOptions,
    CleaningPlan,
    Look,
    look_at_tier,
    plan_cleaning,
)
from tidelog.storage.compaction.runner import (
    PASSES_MAX,
    CleaningReport,
    map_is_full,
    note_run,
)
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.tiering.cleaning import Rewritten, TierCleaner, TierWorker
from tidelog.storage.tiering.moving import MoveOptions, Mover
from tidelog.storage.tiering.rewriting import Workplace
from tidelog.storage.tiers.remote_segment import RemoteSegment
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir


def compact_tier(
    log_dir: "LogDir",
    name: TopicPartition,
    options: CleanerOptions,
    worker: TierWorker | None = None,
) -> CleaningReport:
    """Compact what only a partition's tier has, where that is due, or asked for.

    Args:
        log_dir: Open for writing; nobody else may move this partition's segments meanwhile.
        name: The partition.
        options: How; `hold` is entered while segments are exchanged.
        worker: Cleans and copies; this process where None.

    Raises:
        UnknownTopic, ReadOnly: As their names say; nothing was changed.
        InvalidRequest: It has no tier; nothing was changed.
        CorruptData: A damaged batch or object, named; passes before may be in place.
        TierConflict: Another directory writes this tier.
        CleaningAborted: The tier was changed meanwhile; it may be tried again at once.
        StorageFailure: Disk or store failed; the old segments are there, or the new ones.
    """
    log = log_dir.log(name.topic, name.partition)
    if log.tier is None:
        raise InvalidRequest(f"{name}: it has no tier")
    mover = Mover.open(log_dir, name, MoveOptions())
    mover.settle()
    found = look_at_tier(log_dir, name, is_asked=options.is_asked)
    if found.verdict.is_reset:
        log_dir.note_cleaned(name, found.verdict.first_dirty)
    report = CleaningReport(name=name, verdict=found.verdict, cleaned_to=found.verdict.first_dirty)
    for _ in range(PASSES_MAX):
        if found.verdict.due is None or not found.segments:
            return report
        plan = plan_cleaning(log_dir, found, options)
        cleaned = _Pass(log_dir, mover, plan, found).run(worker or _here(log_dir, mover), options)
        report = report.plus(cleaned, None)
        if cleaned.mapped_to >= plan.job.map_to:
            return report
        if cleaned.mapped_to <= plan.job.map_from:
            return replace(report, stopped=map_is_full(plan, cleaned))
        found = look_at_tier(log_dir, name, is_asked=True)
    return report


def _here(log_dir: "LogDir", mover: Mover) -> TierWorker:
    return TierCleaner(
        place=Workplace.beside(mover.log),
        tier=mover.tier,
        tier_files=log_dir.tier_files,
        draw_uid=mover.draw_uid,
    )


class _Pass:
    """One job, from its first byte read to the manifest that has its segments."""

    def __init__(self, log_dir: "LogDir", mover: Mover, plan: CleaningPlan, found: Look) -> None:
        self._log_dir = log_dir
        self._mover = mover
        self._plan = plan
        remote = [each for each in found.segments if isinstance(each, RemoteSegment)]
        self._segments = {each.base_offset: each for each in remote}

    def run(self, worker: TierWorker, options: CleanerOptions) -> Cleaned:
        """Do it; raises as `compact_tier`."""
        job, done = self._plan.job, list[Cleaned]()
        try:
            for part in worker.rewrite(job, self._segments):
                done.append(part.cleaned)
                with options.hold(self._plan.name):
                    self._take_in(together(done), part)
            cleaned = together(done)
            self._log_dir.note_cleaned(self._plan.name, cleaned.mapped_to)
        except OSError as error:
            raise as_storage_failure(error, job.directory, "clean a tier") from error
        return cleaned

    def _take_in(self, whole: Cleaned, part: Rewritten) -> None:
        """Exchange the segments of a part; the history tells of those before it, too."""
        note_run(self._log_dir, self._plan, whole, frozenset())
        old = [self._segments[base].row for each in part.cleaned.groups for base in each.bases]
        now_ms = self._log_dir.env.clock.now_ms()
        if old:
            try:
                self._mover.swap(lambda found: found.with_exchanged(old, part.rows, now_ms))
            except TierConflict as error:
                raise CleaningAborted(str(error)) from error
