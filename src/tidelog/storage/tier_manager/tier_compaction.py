"""Compacts segments that only a tier has: cleans them, and replaces them in the manifest.

Segments without a local file are read from the store, through `TierSources`, as if they were in the
directory. A cleaning writes `.cleaned` files, which are copied to the store under new names and
read back. Then the new segments replace their sources in the manifest. One compare-and-swap
replaces all sources of the job, or of one part if several workers share the job. So a reader sees
all segments of the job or part as they were before the cleaning, or all of them cleaned. A segment
that has a local file is not cleaned, even if the tier has a copy.

A job begins with the oldest segment, and its parts are finished by ascending offsets. So when a
tombstone is dropped after its delete horizon, no object in a manifest still has a record that the
tombstone deletes. Objects of segments that left the manifest are kept for the grace period: readers
that use an older manifest, and later parts of the job, may still read these objects.

This module owns:

- The `CleaningTarget` of a tier.
- The worker that cleans segments in the process that calls it (`TierCleaner`). The worker writes
  only objects that no manifest names yet, and `.cleaned` files in its own folder. So the worker
  needs no lock, and a Spark task on another machine may call it.
- The functions that rewrite a tier's segments; an erasure calls them, too.

Other modules own the passes (`compaction.cleaner`) and the manifest (`mover`).

A crash before a compare-and-swap leaves orphans and `.cleaned` files. The next run of `tidelog tier
--collect` removes the orphans; opening the directory for writing removes the files. After a crash
between a compare-and-swap and the write of the cleaner's checkpoint, the segments of the swap are
cleaned again.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self

from tidelog.config import RetentionClock
from tidelog.env import Env, File, FileStat, FileSystem, LayeredFiles
from tidelog.errors import (
    CleaningAborted,
    CorruptData,
    CorruptFile,
    InvalidRequest,
    MissingFile,
    TierConflict,
    UnsupportedCompression,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.builder import build_empty_batch
from tidelog.storage import files, log_files
from tidelog.storage.compaction.cleaner import CleaningReport, PartitionTarget, clean, note_run
from tidelog.storage.compaction.cleaning_plan import CleanerOptions, CleaningState, inspect_tier
from tidelog.storage.compaction.job import CleanedGroup, CleaningJob, CleaningResult, together
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.staging import (
    NewSegment,
    ReplacementPass,
    remove_quietly,
    write_staged,
)
from tidelog.storage.log.segment_times import read_times
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.append_time_trust import last_batch
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.segment import SegmentContext, read_optional
from tidelog.storage.tier.manifest import (
    TierNote,
    TierSegment,
    decode_row,
    encode_row,
)
from tidelog.storage.tier.remote_segment import RemoteSegment
from tidelog.storage.tier.tier_files import TierFiles, verified
from tidelog.storage.tier_manager.mover import MoveOptions, Mover
from tidelog.storage.tier_manager.tier_store import CopySource, PartitionTier, copy_segment
from tidelog.types import NO_TIMESTAMP, Buffer, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import DirectoryAccess
    from tidelog.storage.log.log_reader import LogView


_READ: tuple[str, ...] = (log_files.LOG_SUFFIX, log_files.APPEND_TIME_SUFFIX)


class TierSources(LayeredFiles):
    """A file system in which a tier's segments appear at their local paths, read-only.

    The file system is as thread-safe as the file system below it.
    """

    def __init__(self, below: FileSystem, aliases: Mapping[str, str]) -> None:
        """Create a file system over another file system.

        Args:
            below: Reads objects by their tier paths, and all other files.
            aliases: Tier path by local path.
        """
        super().__init__(below)
        self._aliases = aliases

    def _named(self, path: str) -> str:
        return self._aliases.get(path, path)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file; see `FileSystem`. A read of a whole object verifies its checksum."""
        file = super().open(self._named(path), write=write, create=create)
        return verified(file, self._named(path))

    def map(self, path: str, size: int | None = None) -> memoryview:
        """Return a view of a file; see `FileSystem`."""
        return super().map(self._named(path), size)

    def stat(self, path: str) -> FileStat:
        """Return a file's status; see `FileSystem`."""
        return super().stat(self._named(path))

    def exists(self, path: str) -> bool:
        """Return whether a file exists; see `FileSystem`."""
        return super().exists(self._named(path))


@dataclass(frozen=True, slots=True)
class Workplace:
    """Local folder in which segments of a tier are rewritten.

    Attributes:
        log: The partition; it can be open for reading only.
        directory: Folder of the `.cleaned` files until they are copied.
    """

    log: "LogView"
    directory: str

    @property
    def context(self) -> SegmentContext:
        """The partition's context, with `directory` in place of the partition's directory."""
        return replace(self.log.context, directory=self.directory)

    @classmethod
    def beside(cls, log: "LogView") -> "Workplace":
        """Create a workplace in the partition's own directory; needs the directory's lock."""
        return cls(log, log.context.directory)

    def path(self, base_offset: int, suffix: str) -> str:
        """Return the temporary path of a rewritten segment's file."""
        return log_files.cleaned_path(self.directory, base_offset, suffix)


def aliases_of(segments: Iterable[RemoteSegment], directory: str) -> dict[str, str]:
    """Return the tier paths of logs and `.appendtime` files, by their paths in `directory`."""
    aliases = {}
    for segment in segments:
        base = segment.base_offset
        for suffix in _READ:
            name = log_files.file_name(base, suffix)
            aliases[f"{directory}/{name}"] = segment.context.path(base, suffix)
    return aliases


def write_rewritten(
    workplace: Workplace, old: Sequence[RemoteSegment], batches: Iterable[Buffer]
) -> None:
    """Write the `.cleaned` files of a segment with these batches and the append times of `old`.

    Args:
        workplace: Folder of the files.
        old: Consecutive segments that the new segment replaces.
        batches: Batches of format 2, in order, with their final offsets; at least one.

    Raises:
        CorruptData: A batch is damaged, or the batches are out of order.
        OSError: The disk failed.
    """
    fs, base = workplace.context.env.files, old[0].base_offset
    path = workplace.path(base, log_files.LOG_SUFFIX)
    drop_rewritten(workplace, base)
    file, size = fs.open(path, create=True), 0
    try:
        for batch in batches:
            files.write_fully(file, batch, size)
            size += len(batch)
        new = NewSegment(name=f"{base}", base_offset=base, size_bytes=size)
        replacement = ReplacementPass(workplace.context, old, new, old[-1].end_offset)
        replacement.run(file, path)
        file.sync()
    finally:
        file.close()
    for suffix, content in replacement.sidecars():
        write_staged(fs, workplace.path(base, suffix), content)


def copy_rewritten(
    workplace: Workplace, tier: PartitionTier, uid: str, old: Sequence[RemoteSegment]
) -> TierSegment:
    """Copy a segment from its `.cleaned` files into the tier, and read it back.

    Args:
        workplace: Folder of the files.
        tier: Tier of the partition.
        uid: Unique name of the copy.
        old: Consecutive segments that the copy replaces. The names of the `.cleaned` files have the
            first segment's base offset.

    Returns:
        The row for a manifest; no manifest has it yet.

    Raises:
        CorruptData: The segment is damaged, or the data read back differs from the data written.
        OSError, StorageFailure: Disk or store failed. An orphan may be left in the store.
    """
    base, end = old[0].base_offset, old[-1].end_offset
    _carry_snapshot(workplace, old[0])
    _add_zones(workplace, base, end)
    segment = _rewritten_segment(workplace, base, end)
    rows = [each.row for each in old]
    seen_ms = max(row.note.seen_ms for row in rows)
    try:
        times = read_times(
            workplace.log, segment, clock=RetentionClock.RECORD_CAPPED, seen_ms=seen_ms
        )
        # The modification time of the new segment is the latest modification time of its sources.
        times = times._replace(mtime_ms=max(row.times.mtime_ms for row in rows))
        note = rows[-1].note
        return copy_segment(
            tier,
            CopySource(
                segment=segment,
                times=times,
                note=TierNote(note.reason, note.roll_ms, seen_ms),
                uid=uid,
            ),
        )
    finally:
        _forget(segment)


def drop_rewritten(workplace: Workplace, base_offset: int) -> None:
    """Remove a segment's `.cleaned` files.

    Never raises; the next opening of the directory removes files that remain.
    """
    for suffix in log_files.LOG_FIRST:
        remove_quietly(workplace.context.env.files, workplace.path(base_offset, suffix))


def _carry_snapshot(workplace: Workplace, old: RemoteSegment) -> None:
    """Copy the first source's snapshot, which stays valid: it describes only earlier records."""
    try:
        data = read_optional(old.context, old.base_offset, log_files.SNAPSHOT_SUFFIX)
    except (CorruptFile, MissingFile) as error:
        workplace.context.report(f"{error}; the rewritten segment has no snapshot")
        return
    if data is not None:
        path = workplace.path(old.base_offset, log_files.SNAPSHOT_SUFFIX)
        write_staged(workplace.context.env.files, path, data)


def _add_zones(workplace: Workplace, base: int, end: int) -> None:
    """Build the zone map if the writer of the files made none."""
    path = workplace.path(base, log_files.ZONES_SUFFIX)
    if workplace.context.env.files.exists(path):
        return
    segment = _rewritten_segment(workplace, base, end)
    try:
        write_staged(workplace.context.env.files, path, zone_map_files.build(segment))
    finally:
        _forget(segment)


def _rewritten_segment(workplace: Workplace, base: int, end: int) -> ClosedSegment:
    """Return a segment object that reads the `.cleaned` files."""
    overlay = log_files.cleaned_overlay(workplace.context.env.files, workplace.directory, base)
    return ClosedSegment(replace(workplace.context, overlay=overlay), base, end)


def _forget(segment: ClosedSegment) -> None:
    """Close the files of a segment, because the next segment will use the same file names."""
    context = segment.context
    segment.unload()
    for suffix in log_files.LOG_FIRST:
        path = context.path(segment.base_offset, suffix)
        context.pool.forget(path)
        context.maps.forget(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Result of a cleaning job on a tier, or of a part of the job.

    Attributes:
        cleaned: Result of the cleaning.
        rows: For each group, the manifest row of the new segment in the store. No manifest has this
            row yet.
    """

    cleaned: CleaningResult
    rows: tuple[TierSegment, ...]

    def to_json(self) -> str:
        """Encode the result as JSON."""
        return json.dumps([self.cleaned.to_json(), [encode_row(row) for row in self.rows]])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode the result of `to_json`; raises CorruptFile."""
        with suppress(ValueError):
            match json.loads(text):
                case [str(cleaned), list(rows)]:
                    return cls(
                        cleaned=CleaningResult.from_json(cleaned), rows=tuple(map(decode_row, rows))
                    )
        raise CorruptFile(f"{text[:80]}: not a result of cleaning a tier")


class TierWorker(Protocol):
    """Carries out cleaning jobs over a tier."""

    def rewrite(
        self, job: CleaningJob, segments: Mapping[int, RemoteSegment]
    ) -> Iterator[Rewritten]:
        """Clean and copy the segments of a job; yield its parts by ascending offsets.

        The caller adds each result to the manifest before it requests the next result.

        Args:
            job: The job.
            segments: Source segments by base offset, as they were when the job was created.

        Raises:
            TidelogError, OSError: The job failed; earlier parts remain replaced.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCleaner:
    """A `TierWorker` in this process.

    Attributes:
        workplace: Folder of temporary files.
        tier: Tier of the new segments.
        tier_files: Reads objects of the tier, and all other files.
        draw_uid: Returns a unique name for a copy.
    """

    workplace: Workplace
    tier: PartitionTier
    tier_files: TierFiles
    draw_uid: Callable[[], str]

    def rewrite(
        self, job: CleaningJob, segments: Mapping[int, RemoteSegment]
    ) -> Iterator[Rewritten]:
        """Carry out the whole job as a single part; see `TierWorker`."""
        yield self.rewritten(job, segments)

    def rewritten(self, job: CleaningJob, segments: Mapping[int, RemoteSegment]) -> Rewritten:
        """Carry the job out.

        Raises:
            CorruptData, UnsupportedCompression: A source is damaged, or the data read back differs
                from the data written.
            OSError, StorageFailure: Disk or store failed. Orphans may be left in the store.
        """
        workplace, sources = self.workplace, [segments[each.base_offset] for each in job.sources]
        below = workplace.log.context.env
        aliases = aliases_of(sources, workplace.directory)
        env = Env(
            files=TierSources(self.tier_files, aliases), clock=below.clock, random=below.random
        )
        try:
            cleaned = InProcess(env).clean(replace(job, directory=workplace.directory))
            rows = [
                self._copied(group, [segments[base] for base in group.bases])
                for group in cleaned.groups
            ]
        except CorruptData as error:
            if error.path is not None:
                # The damage is in an object of the tier, not in the local file with this path.
                error.path = aliases.get(error.path, error.path)
            raise
        except UnsupportedCompression as error:
            path, _, reason = str(error).rpartition(": ")
            raise UnsupportedCompression(f"{aliases.get(path, path)}: {reason}") from error
        finally:
            for group in job.groups:
                drop_rewritten(workplace, group.bases[0])
        return Rewritten(cleaned=cleaned, rows=tuple(rows))

    def _copied(self, group: CleanedGroup, old: Sequence[RemoteSegment]) -> TierSegment:
        if not group.bytes_after:
            self._put_empty_batch(old)
        return copy_rewritten(self.workplace, self.tier, self.draw_uid(), old)

    def _put_empty_batch(self, old: Sequence[RemoteSegment]) -> None:
        """Write an empty batch with the offsets of `old`, because an object must not be empty."""
        base, end = old[0].base_offset, old[-1].end_offset
        last = next((match for each in reversed(old) if (match := last_batch(each))), None)
        batch = build_empty_batch(
            base_offset=base,
            last_offset=end - 1,
            max_timestamp=NO_TIMESTAMP,
            leader_epoch=-1 if last is None else last.leader_epoch,
        )
        write_rewritten(self.workplace, old, [batch])


def compact_tier(
    log_dir: "DirectoryAccess",
    name: TopicPartition,
    options: CleanerOptions,
    worker: TierWorker | None = None,
) -> CleaningReport:
    """Compact the segments that only a partition's tier has, if compaction is due or requested.

    Args:
        log_dir: The directory, open for writing. No other task may move this partition's segments
            during the call.
        name: The partition.
        options: Options; the context `options.hold` is entered while segments are replaced.
        worker: Cleans and copies segments; None for a worker in this process.

    Raises:
        UnknownTopic, ReadOnly: Nothing was changed.
        InvalidRequest: The partition has no tier; nothing was changed.
        CorruptData: A batch or object is damaged; the error has its path. Segments that the job
            replaced before the error stay replaced.
        TierConflict: Another directory writes this tier.
        CleaningAborted: The tier was changed during the cleaning; the caller may retry at once.
        StorageFailure: Disk or store failed; the manifest has the old or the new segments.
    """
    log = log_dir.log(name.topic, name.partition)
    if log.tier is None:
        raise InvalidRequest(f"{name}: it has no tier")
    mover = Mover.open(log_dir, name, MoveOptions())
    mover.settle()
    return clean(_TierTarget(log_dir, mover, options, worker), is_asked=options.is_asked)


class _TierTarget(PartitionTarget):
    """The `CleaningTarget` of the segments that only a partition's tier has."""

    def __init__(
        self,
        log_dir: "DirectoryAccess",
        mover: Mover,
        options: CleanerOptions,
        worker: TierWorker | None,
    ) -> None:
        super().__init__(log_dir, mover.log.topic_partition, options)
        self._mover = mover
        self._worker = worker or TierCleaner(
            workplace=Workplace.beside(mover.log),
            tier=mover.tier,
            tier_files=log_dir.tier_files,
            draw_uid=mover.draw_uid,
        )

    def _state(self, *, is_asked: bool) -> CleaningState:
        return inspect_tier(self._log_dir, self.name, is_asked=is_asked, options=self._options)

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Carry out the job; each part is in the manifest before the next part is made."""
        remote = (each for each in self._plan.sources if isinstance(each, RemoteSegment))
        segments, done = {each.base_offset: each for each in remote}, list[CleaningResult]()
        try:
            for part in self._worker.rewrite(job, segments):
                done.append(part.cleaned)
                with self._options.hold(self.name):
                    self._swap_in(together(done), part, segments)
            cleaned, plan = together(done), self._plan
            checkpoint = plan.state.scheduler.record_cleaning(plan.state.log, job, cleaned)
            self._log_dir.note_cleaned(self.name, checkpoint)
        except OSError as error:
            raise as_storage_failure(error, job.directory, "clean a tier") from error
        return cleaned

    def _swap_in(
        self, whole: CleaningResult, part: Rewritten, segments: Mapping[int, RemoteSegment]
    ) -> None:
        """Store the history of all parts so far, and replace the segments of this part."""
        note_run(self._log_dir, self._plan, whole, frozenset())
        old = [segments[base].row for each in part.cleaned.groups for base in each.bases]
        now_ms = self._log_dir.env.clock.now_ms()
        if old:
            try:
                self._mover.swap(lambda manifest: manifest.with_exchanged(old, part.rows, now_ms))
            except TierConflict as error:
                raise CleaningAborted(str(error)) from error
