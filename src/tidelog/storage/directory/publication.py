"""Publishes staged files as parts of their partitions: all files of a commit, or none.

An attach, an exchange and a cleaning each stage their files in their own way (`Change.stage`). All
other steps are the same for an attach, an exchange and a cleaning. Only this module defines the
order of the steps:

1. The path of the commit record is entered in `CommitRecords.under_way`, which prevents a reopening
   of the record's partitions until the procedure ends.
2. Each change stages its files: the files are durable under staged names.
3. The commit record is renamed into place (`commits.publish`). Before the rename, readers without a
   lock see the old segments. After the rename, readers without a lock see the new segments.
4. Each log renames the files into place and shows the segments (`SegmentSwaps.show`).
5. The new names are synced, the writers' marks are stored, and the record is removed
   (`commits.conclude`).
6. Files of old segments are removed. If `Change.keeps_old` is true, these files are removed only
   after `file.delete.delay.ms`.

After a failure before the commit record exists, the staged files are removed, and the partitions
continue with their old segments. If staged files can't be removed, the partitions go offline. A
failure after the commit record exists takes all partitions of the commit offline, because only
reopening a partition shows which segments it has. After a crash before step 3, each log has the old
segments. After a crash after step 3, each log has the new segments, because the next opening for
writing repeats the steps that the commit record describes.

Needs the directory's lock. While a change that replaces segments is in progress, segments of its
partition must not be truncated, deleted or replaced. Source: Kafka 4.x LocalLog.replaceSegments.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from tidelog.env import FileSystem
from tidelog.errors import StorageFailure, TidelogError
from tidelog.storage import commits, files, log_files
from tidelog.storage.commits import Commit, Mark, Move, Removal
from tidelog.storage.directory.log_dir import DirectoryAccess
from tidelog.storage.directory.staging import remove_quietly
from tidelog.storage.log.log import LogAccess
from tidelog.storage.log.segment_swaps import Swap
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.closed_segment import ClosedSegment


class Change(ABC):
    """New segments of one partition, and the finished segments that they replace, if any.

    Attributes:
        log: The partition.
        old: The segments to replace, as the log shows them.
        bases: Base offsets of the new segments, known when `stage` returns.
        end_offset: Offset after the last new segment; known when `stage` returns.
        keeps_old: Whether files of old segments are kept for `file.delete.delay.ms`.
    """

    keeps_old = False

    def __init__(self, log: LogAccess, old: Sequence[ClosedSegment] = ()) -> None:
        self.log = log
        self.old = old
        self.bases: list[int] = []
        self.end_offset = old[-1].end_offset if old else log.log_end_offset

    @abstractmethod
    def stage(self) -> list[Move]:
        """Make the files durable under staged names.

        Raises:
            TidelogError, OSError: Nothing is published; the caller calls `discard`.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove the files that `stage` has made, even if `stage` failed.

        Raises:
            OSError: Some files could not be removed. The next opening might use these files as a
                part of the log.
        """

    @property
    def _fs(self) -> FileSystem:
        return self.log.context.env.files

    @property
    def _directory(self) -> str:
        return self.log.context.directory

    @property
    def _partition_dir(self) -> str:
        return files.partition_dir_name(self.log.topic_partition)

    def removals(self, moves: Sequence[Move]) -> Iterator[Removal]:
        """Yield the old segments' files whose names the new segments don't use; raises OSError."""
        new_names = {move.final for move in moves}
        for base in (segment.base_offset for segment in self.old):
            # A producer snapshot describes the producers at its offset, and no change alters these
            # producers. So an old segment's snapshot is kept if a new segment has the same base
            # offset.
            for suffix in log_files.SEGMENT_SUFFIXES if base in self.bases else log_files.LOG_FIRST:
                name = log_files.file_name(base, suffix)
                if name not in new_names and self._fs.exists(f"{self._directory}/{name}"):
                    yield Removal(self._partition_dir, name)

    @property
    def swap(self) -> Swap:
        """The change as a `Swap`, which the log makes visible."""
        return Swap(self.bases, self.end_offset, self.old, self.keeps_old)


def draw_commit_id(log_dir: DirectoryAccess) -> str:
    """Return a random commit id: 32 hexadecimal digits."""
    return uuid.UUID(int=log_dir.env.random.getrandbits(128)).hex


def publish(
    log_dir: DirectoryAccess,
    changes: Sequence[Change],
    operation: str,
    *,
    commit_id: str | None = None,
    marks: Mapping[str, Mark] | None = None,
) -> None:
    """Make changes of partitions visible by one commit.

    After an error the partitions have the old segments, or they are offline. Only reopening an
    offline partition shows which segments it has.

    Args:
        log_dir: The directory, open for writing.
        changes: One change for each partition.
        operation: Name of the operation, for errors.
        commit_id: 32 hexadecimal digits; a random id if None.
        marks: The writers' new versions.

    Raises:
        StorageFailure: The disk failed, a partition was offline, or a log no longer shows the old
            segments.
        TidelogError: Raised by a change's `stage`, by a closed log, or because the file of the
            writers' versions is unreadable.
    """
    fs, root = log_dir.env.files, log_dir.path
    commit_id = commit_id or draw_commit_id(log_dir)
    record = commits.commit_path(root, commit_id)
    path = changes[0].log.context.directory if len(changes) == 1 else root
    under_way = log_dir.commit_records.under_way
    under_way[record] = frozenset(change.log.topic_partition for change in changes)
    try:
        try:
            commit = _stage(changes, marks or {}, path, operation)
            if commit.is_empty:
                return
            commits.publish(fs, root, commit_id, commit)
        except OSError as error:
            failure = as_storage_failure(error, path, operation)
            _undo(fs, record, changes, operation, failure.reason)
            raise failure from error
        except TidelogError as error:
            _undo(fs, record, changes, operation, str(error))
            raise
        try:
            old_files = [name for each in changes for name in _show(each, commit, operation)]
            commits.conclude(fs, root, record, commit)
            for name in old_files:
                fs.remove(name)
        except OSError as error:
            failure = as_storage_failure(error, path, operation)
            _go_offline(changes, operation, failure.reason)
            raise failure from error
        except TidelogError as error:
            _go_offline(changes, operation, str(error))
            raise
    finally:
        del under_way[record]


def _stage(
    changes: Sequence[Change], marks: Mapping[str, Mark], path: str, operation: str
) -> Commit:
    for change in changes:
        # Detect a partition that was reopened before the commit was added to `under_way`. From then
        # on, `under_way` prevents a reopening.
        if change.old and not change.log.swaps.still_has(change.old):
            reason = "segments to replace were truncated, deleted or replaced meanwhile"
            raise StorageFailure(path, operation, reason)
    moves, removes = list[Move](), list[Removal]()
    for change in changes:
        staged = change.stage()
        moves += staged
        removes += change.removals(staged)
    return Commit(moves=tuple(moves), removes=tuple(removes), marks=marks)


def _undo(
    fs: FileSystem, record: str, changes: Sequence[Change], operation: str, reason: str
) -> None:
    """Remove staged files; if a removal fails or the record exists, take all partitions offline."""
    try:
        if fs.exists(record):
            _go_offline(changes, operation, reason)  # the commit is visible, and may be durable
            return
        remove_quietly(fs, record + files.TMP_SUFFIX)
        for change in changes:
            change.discard()
    except OSError:
        _go_offline(changes, operation, reason)


def _show(change: Change, commit: Commit, operation: str) -> list[str]:
    return change.log.swaps.show(change.swap, commit, operation)


def _go_offline(changes: Sequence[Change], operation: str, reason: str) -> None:
    for change in changes:
        change.log.swaps.go_offline(operation, reason)
