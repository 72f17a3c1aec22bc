"""Putting one `.cleaned` segment in the place of those it was made from, in one step.

1. Its files are durable under `.cleaned` names; what the log file was last changed at is put back.
2. They are renamed to `.swap`, the log first, in Kafka's order, and the names synced. As long as
   one `.cleaned` name is left, an opening (ours and Kafka's) drops all of it; from then on an
   opening finishes the swap.
3. A commit record says what moves and what goes. Before it readers without a lock see the old
   segments, after it the new one.
4. The log renames the old files to `.deleted`, the new ones to their final names, and shows them
   (`storage.compacting`). Those names are synced, the record removed.

What fails up to 3 is undone, so that cleaning can be tried again. What fails later takes the
partition offline: only an opening can tell.

Needs the directory's lock. While it runs nobody else may cut, delete or exchange segments of the
partition. Source: Kafka 4.x Cleaner.cleanSegments, LocalLog.replaceSegments; facts 6.7, 3.8.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.env import FileSystem
from tidelog.errors import StorageFailure
from tidelog.storage import commits, files
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.commits import Commit, Move, Removal
from tidelog.storage.compacting import CleanedSwap
from tidelog.storage.compaction.job import CleanedGroup
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.staging import remove_quietly

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.log_dir import LogDir

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
    log_dir: "LogDir", log: "Log", old: Sequence[ClosedSegment], group: CleanedGroup
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
    log_dir.under_way[record] = log.topic_partition
    try:
        # Who reopens the partition looks above; who has reopened it before is seen here.
        if not log.still_has(old):
            raise StorageFailure(directory, "swap cleaned segments", "they have changed meanwhile")
        _swap(log_dir, log, old, place, commit_id)
    finally:
        del log_dir.under_way[record]


def _swap(
    log_dir: "LogDir", log: "Log", old: Sequence[ClosedSegment], place: _Place, commit_id: str
) -> None:
    directory, group = place.directory, place.group
    record = commits.commit_path(log_dir.path, commit_id)
    try:
        place.stage(old[-1].mtime_ms())
        commit = place.commit(files.partition_dir_name(log.topic_partition), group.bases)
        commits.publish(place.fs, log_dir.path, commit_id, commit)
    except OSError as error:
        raise _undone(log, place, record, error) from error
    log.take_cleaned(CleanedSwap(old, group.end_offset, commit))
    try:
        commits.finish(place.fs, log_dir.path, record, commit)
    except OSError as error:
        failure = as_storage_failure(error, directory, "finish a swap")
        log.fail_adoption(failure.reason)
        raise failure from error


def _undone(log: "Log", place: _Place, record: str, error: OSError) -> StorageFailure:
    """Take back what was staged; the partition goes offline where that can't be known to work."""
    failure = as_storage_failure(error, place.directory, "swap cleaned segments")
    try:
        if place.fs.exists(record):
            log.fail_adoption(failure.reason)  # it is visible, and may be durable
        else:
            remove_quietly(place.fs, record + files.TMP_SUFFIX)
            place.undo()
    except OSError:
        log.fail_adoption(failure.reason)
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


__all__ = ["drop_cleaned", "swap_group"]
