"""Segments of a tier written anew: read as if they lay in the directory, put back as other objects.

Whoever rewrites them (a cleaning, the purge of a key) makes `.cleaned` files in the partition's
directory, which an opening drops after a crash, or in a folder of its own. From there they are
copied under names that nothing had before, and read back; the manifest names them in the place of
the old ones by one compare-and-swap. Until then what was copied are orphans.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidelog.config import RetentionClock
from tidelog.env import DirEntry, File, FileStat, FileSystem, LockHandle
from tidelog.errors import CorruptFile
from tidelog.storage import files, zone_files
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.exchange import NewSegment, SegmentPass
from tidelog.storage.segment import SegmentContext, read_optional
from tidelog.storage.segment_times import read_times
from tidelog.storage.staging import remove_quietly, write_staged
from tidelog.storage.tiering.copying import CopySource, copy_segment
from tidelog.storage.tiering.partition_tier import PartitionTier
from tidelog.storage.tiers.remote_segment import RemoteSegment
from tidelog.storage.tiers.rows import TIER_SUFFIXES, TierNote, TierSegment, TierTimes
from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.storage.log_reader import LogReader

_READ: tuple[str, ...] = (files.LOG_SUFFIX, files.APPEND_TIME_SUFFIX)


class TierSources:
    """Files in which segments of a tier lie where they would if they were local; read-only there.

    Safe for whatever the files below are.
    """

    def __init__(self, below: FileSystem, aliases: Mapping[str, str]) -> None:
        """Files over others.

        Args:
            below: Reads objects by their tier paths, and has all other files.
            aliases: Tier path by the path under which it is asked for.
        """
        self._below = below
        self._aliases = aliases

    def _named(self, path: str) -> str:
        return self._aliases.get(path, path)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `FileSystem`."""
        return self._below.open(self._named(path), write=write, create=create)

    def map(self, path: str, size: int | None = None) -> memoryview:
        """See `FileSystem`."""
        return self._below.map(self._named(path), size)

    def stat(self, path: str) -> FileStat:
        """See `FileSystem`."""
        return self._below.stat(self._named(path))

    def exists(self, path: str) -> bool:
        """See `FileSystem`."""
        return self._below.exists(self._named(path))

    def list_dir(self, path: str) -> list[DirEntry]:
        """See `FileSystem`."""
        return self._below.list_dir(path)

    def make_dirs(self, path: str) -> None:
        """See `FileSystem`."""
        self._below.make_dirs(path)

    def remove(self, path: str) -> None:
        """See `FileSystem`."""
        self._below.remove(path)

    def remove_dir(self, path: str) -> None:
        """See `FileSystem`."""
        self._below.remove_dir(path)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        self._below.rename(source, target)

    def sync_dir(self, path: str) -> None:
        """See `FileSystem`."""
        self._below.sync_dir(path)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """See `FileSystem`."""
        self._below.set_mtime(path, mtime_ms)

    def lock(self, path: str) -> LockHandle:
        """See `FileSystem`."""
        return self._below.lock(path)


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where segments of a tier are written anew.

    Attributes:
        log: The partition; one that is open for reading will do.
        directory: Where `.cleaned` files lie until they are copied.
    """

    log: "LogReader"
    directory: str

    @property
    def context(self) -> SegmentContext:
        """The partition's, as if its files were here."""
        return replace(self.log.context, directory=self.directory)

    @classmethod
    def beside(cls, log: "LogReader") -> "Workplace":
        """The partition's own directory; needs the lock."""
        return cls(log, log.context.directory)

    def path(self, base_offset: int, suffix: str) -> str:
        """Where a file of a segment that is written anew lies meanwhile."""
        name = files.file_name(base_offset, suffix)
        return f"{self.directory}/{name}{files.CLEANED_SUFFIX}"


def aliases_of(segments: Iterable[RemoteSegment], directory: str) -> dict[str, str]:
    """Tier paths of segments' logs and append times, by those of files in a directory."""
    found = {}
    for segment in segments:
        base = segment.base_offset
        for suffix in _READ:
            name = files.file_name(base, suffix)
            found[f"{directory}/{name}"] = segment.context.path(base, suffix)
    return found


def write_rewritten(
    place: Workplace, old: Sequence[RemoteSegment], batches: Iterable[Buffer]
) -> None:
    """Write the `.cleaned` files of a segment: these batches, and what the old ones say of them.

    Args:
        place: Where.
        old: Neighbours that it takes the place of.
        batches: Of format 2, in order, with the offsets that they have; at least one.

    Raises:
        CorruptData: They are not sound, or out of order.
        OSError: The disk failed.
    """
    fs, base = place.context.env.files, old[0].base_offset
    path = place.path(base, files.LOG_SUFFIX)
    drop_rewritten(place, base)
    file, size = fs.open(path, create=True), 0
    try:
        for batch in batches:
            files.write_fully(file, batch, size)
            size += len(batch)
        new = NewSegment(name=f"{base}", base_offset=base, size_bytes=size)
        made = SegmentPass(place.context, old, new, old[-1].end_offset)
        made.run(file, path)
        file.sync()
    finally:
        file.close()
    for suffix, content in made.sidecars():
        write_staged(fs, place.path(base, suffix), content)


def copy_rewritten(
    place: Workplace, tier: PartitionTier, uid: str, old: Sequence[RemoteSegment]
) -> TierSegment:
    """Copy the segment that lies in `.cleaned` files into the tier, and read it back.

    Args:
        place: Where they lie.
        tier: Of the partition.
        uid: What the copy is called, as nothing was before.
        old: Neighbours that it takes the place of; the files have the first one's base offset.

    Returns:
        The row by which a manifest can name it; none does yet.

    Raises:
        CorruptData: It is damaged, or what was read back is not what was written.
        OSError, StorageFailure: Disk or store failed. An orphan may be left in the store.
    """
    base, end = old[0].base_offset, old[-1].end_offset
    _carry_snapshot(place, old[0])
    _add_zones(place, base, end)
    segment = _shown(place, base, end)
    rows = [each.row for each in old]
    seen_ms = max(row.note.seen_ms for row in rows)
    try:
        times = read_times(place.log, segment, clock=RetentionClock.RECORD_CAPPED, seen_ms=seen_ms)
        # What an index of one segment can't tell of another, its rows do.
        times = replace(times, mtime_ms=max(row.times.mtime_ms for row in rows))
        note = rows[-1].note
        return copy_segment(
            tier,
            CopySource(
                segment=segment,
                times=TierTimes.of(times),
                note=TierNote(note.reason, note.roll_ms, seen_ms),
                uid=uid,
            ),
        )
    finally:
        _forget(segment)


def drop_rewritten(place: Workplace, base_offset: int) -> None:
    """Remove the `.cleaned` files of a segment; never raises, an opening drops them, too."""
    for suffix in TIER_SUFFIXES:
        remove_quietly(place.context.env.files, place.path(base_offset, suffix))


def _carry_snapshot(place: Workplace, old: RemoteSegment) -> None:
    """The snapshot at the first one's base tells of what lies before it, which is as it was."""
    try:
        data = read_optional(old.context, old.base_offset, files.SNAPSHOT_SUFFIX)
    except CorruptFile as error:
        place.context.report(f"{error}; the segment that is written anew has none")
        return
    if data is not None:
        path = place.path(old.base_offset, files.SNAPSHOT_SUFFIX)
        write_staged(place.context.env.files, path, data)


def _add_zones(place: Workplace, base: int, end: int) -> None:
    """The zone map, where whoever has written the files made none."""
    path = place.path(base, files.ZONES_SUFFIX)
    if place.context.env.files.exists(path):
        return
    segment = _shown(place, base, end)
    try:
        write_staged(place.context.env.files, path, zone_files.build(segment))
    finally:
        _forget(segment)


def _shown(place: Workplace, base: int, end: int) -> ClosedSegment:
    """The `.cleaned` files as a segment."""
    context = place.context
    overlay = {}
    for suffix in TIER_SUFFIXES:
        name = files.file_name(base, suffix)
        is_there = context.env.files.exists(place.path(base, suffix))
        overlay[name] = f"{name}{files.CLEANED_SUFFIX if is_there else files.REMOVED_SUFFIX}"
    return ClosedSegment(_over(context, overlay), base, end)


def _over(context: SegmentContext, overlay: Mapping[str, str]) -> SegmentContext:
    return replace(context, overlay=overlay)


def _forget(segment: ClosedSegment) -> None:
    """Let go of files that the next segment of the same base has under the same names."""
    context = segment.context
    segment.unload()
    for suffix in TIER_SUFFIXES:
        path = context.path(segment.base_offset, suffix)
        context.pool.forget(path)
        context.maps.forget(path)
