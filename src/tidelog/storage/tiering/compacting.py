"""Compaction of what only a tier has: cleaned like local segments, exchanged by one swap.

The segments that have no local file any more are read from the store, cleaned by brute force into
`.cleaned` files beside the partition's, copied under new names, read back, and put into the
manifest in the place of all those that they were made from, together: a reader sees the log as it
was, or cleaned. What lies here is left alone until it is in the tier alone, copied or not.

All older segments are in the job, so tombstones go when their time has come: no object that a
manifest names can hold a record that they cover. What left the manifest stays for the grace period,
for those who planned before.

A crash before the swap leaves orphans and `.cleaned` files, which the next run of `tidelog tier
--collect` and an opening remove; after it, a checkpoint that is behind.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.env import Env
from tidelog.errors import CleaningAborted, InvalidRequest, TierConflict
from tidelog.record.builder import build_empty_batch
from tidelog.storage.compaction.job import Cleaned, CleanedGroup
from tidelog.storage.compaction.looking import (
    CleanerOptions,
    CleaningPlan,
    Look,
    look_at_tier,
    plan_cleaning,
)
from tidelog.storage.compaction.process import InProcess
from tidelog.storage.compaction.runner import (
    PASSES_MAX,
    CleaningReport,
    map_is_full,
    note_run,
)
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.tiering.moving import MoveOptions, Mover
from tidelog.storage.tiering.rewriting import (
    TierSources,
    aliases_of,
    copy_rewritten,
    drop_rewritten,
    write_rewritten,
)
from tidelog.storage.tiers.remote_segment import RemoteSegment
from tidelog.storage.tiers.rows import TierSegment
from tidelog.storage.trust import last_batch
from tidelog.types import NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.log_dir import LogDir


def compact_tier(
    log_dir: "LogDir", name: TopicPartition, options: CleanerOptions
) -> CleaningReport:
    """Compact what only a partition's tier has, where that is due, or asked for.

    Args:
        log_dir: Open for writing; nobody else may move this partition's segments meanwhile.
        name: The partition.
        options: How; `hold` is entered while segments are exchanged.

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
        cleaned = _Pass(log_dir, mover, plan, found).run(options)
        report = report.plus(cleaned, None)
        if cleaned.mapped_to >= plan.job.map_to:
            return report
        if cleaned.mapped_to <= plan.job.map_from:
            return replace(report, stopped=map_is_full(plan, cleaned))
        found = look_at_tier(log_dir, name, is_asked=True)
    return report


class _Pass:
    """One job, from its first byte read to the manifest that has its segments."""

    def __init__(self, log_dir: "LogDir", mover: Mover, plan: CleaningPlan, found: Look) -> None:
        self._log_dir = log_dir
        self._mover = mover
        self._plan = plan
        self._log: Log = mover.log
        remote = [each for each in found.segments if isinstance(each, RemoteSegment)]
        self._segments = {each.base_offset: each for each in remote}

    def run(self, options: CleanerOptions) -> Cleaned:
        """Do it; raises as `compact_tier`."""
        directory = self._plan.job.directory
        try:
            cleaned = InProcess(self._env()).clean(self._plan.job)
            with options.hold(self._plan.name):
                self._take_in(cleaned)
        except OSError as error:
            raise as_storage_failure(error, directory, "clean a tier") from error
        finally:
            for group in self._plan.job.groups:
                drop_rewritten(self._log, group.bases[0])
        return cleaned

    def _env(self) -> Env:
        env, sources = self._log.context.env, self._segments.values()
        below = self._log_dir.tier_files
        return Env(
            files=TierSources(below, aliases_of(sources)), clock=env.clock, random=env.random
        )

    def _take_in(self, cleaned: Cleaned) -> None:
        old = [[self._segments[base] for base in group.bases] for group in cleaned.groups]
        new = [self._copied(group, of) for group, of in zip(cleaned.groups, old, strict=True)]
        note_run(self._log_dir, self._plan, cleaned, frozenset())
        gone = [segment.row for of in old for segment in of]
        now_ms = self._log.context.env.clock.now_ms()
        if gone:
            try:
                self._mover.swap(lambda manifest: manifest.with_exchanged(gone, new, now_ms))
            except TierConflict as error:
                raise CleaningAborted(str(error)) from error
        self._log_dir.note_cleaned(self._plan.name, cleaned.mapped_to)

    def _copied(self, group: CleanedGroup, old: Sequence[RemoteSegment]) -> TierSegment:
        if not group.bytes_after:
            self._put_empty_batch(old)
        return copy_rewritten(self._mover, old)

    def _put_empty_batch(self, old: Sequence[RemoteSegment]) -> None:
        """Nothing is left: a batch without records stands for the offsets; no object is empty."""
        base, end = old[0].base_offset, old[-1].end_offset
        last = next((found for each in reversed(old) if (found := last_batch(each))), None)
        batch = build_empty_batch(
            base_offset=base,
            last_offset=end - 1,
            max_timestamp=NO_TIMESTAMP,
            leader_epoch=-1 if last is None else last.leader_epoch,
        )
        write_rewritten(self._log, old, [batch])
