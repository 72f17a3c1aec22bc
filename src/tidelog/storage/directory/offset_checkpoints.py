"""Checkpoints of a directory: log start offsets, recovery points and cleaner offsets of its logs.

Each checkpoint is one of Kafka's text files with an offset for each partition. A writer keeps log
starts and recovery points in memory, and writes the files from memory. Cleaner offsets are read
from the file each time, because a writer in another process may change them.

Source: Kafka 4.x OffsetCheckpointFile, LogManager, LogCleanerManager.
"""

import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.storage import files, text_files
from tidelog.storage.open_files import as_storage_failure, typed_reads
from tidelog.storage.segment.log_end import RecordedEnd
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.log import Log

_NAMES: Final = (
    files.LOG_START_CHECKPOINT_FILE,
    files.RECOVERY_POINT_CHECKPOINT_FILE,
    files.CLEANER_CHECKPOINT_FILE,
)


class OffsetCheckpoints:
    """The checkpoints of one directory. The methods that write can be called from any thread.

    Attributes:
        starts: Log starts that are above the base offset of the log's first segment.
        recovery_points: Offsets below which logs are durable.
        unsynced_points: Recovery points of logs that were closed without a sync because their
            topics are being deleted. The directories of these logs may still exist.
        was_clean: For a writer, whether the previous writer stopped cleanly or the directory had no
            partitions; True for a reader. If the value is true for a writer, each recovery point is
            the end of its log, and no log needs recovery.
    """

    def __init__(self, fs: FileSystem, directory: str, report: Callable[[str], None]) -> None:
        """Create the object without reading; `report` receives notes on damage."""
        self._fs = fs
        self._directory = directory
        self._report = report
        self._writing = threading.Lock()
        self.starts: dict[TopicPartition, int] = {}
        self.recovery_points: dict[TopicPartition, int] = {}
        self.unsynced_points: dict[TopicPartition, int] = {}
        self.was_clean = True
        # For a reader: whether recovery points were read, and whether the mark of a clean stop
        # existed.
        self._knows_ends = self._has_clean_mark = False

    def load(self, *, was_clean: bool) -> None:
        """Read log starts and recovery points for a writer; raises OSError."""
        self.was_clean = was_clean
        self.starts = self._read(files.LOG_START_CHECKPOINT_FILE)
        self.recovery_points = self._read(files.RECOVERY_POINT_CHECKPOINT_FILE)

    def refresh(self) -> None:
        """Read log starts for a reader; raises OSError.

        Recovery points are read again at their next use.
        """
        self._knows_ends = False
        self.starts = self._read(files.LOG_START_CHECKPOINT_FILE)

    def recovery_point(self, name: TopicPartition) -> int | None:
        """Return the offset to recover a log from; None if the log needs no recovery."""
        # A log that was closed because its topic was to be deleted is not synced. If the deletion
        # failed, the log must be recovered from this offset, even after a clean stop.
        point = self.unsynced_points.get(name)
        if point is not None or self.was_clean:
            return point
        return self.recovery_points.get(name, 0)

    def recorded_end(self, name: TopicPartition, *, is_dense: bool, fresh: bool) -> RecordedEnd:
        """Return, for a reader, a log's recovery point and whether this point is the log end.

        Args:
            name: The partition.
            is_dense: Whether no offset can be missing between the log's batches.
            fresh: Whether to read the checkpoint's file again.
        """
        with typed_reads(self._directory):
            if fresh or not self._knows_ends:
                self.recovery_points = self._read(files.RECOVERY_POINT_CHECKPOINT_FILE)
                # The mark of a clean stop is read after the recovery points. If the mark exists
                # now, no writer has started since the recovery points were written, so each
                # recovery point is the end of its log.
                mark = f"{self._directory}/{files.CLEAN_SHUTDOWN_FILE}"
                self._has_clean_mark = self._fs.exists(mark)
                self._knows_ends = True
        is_end = self._has_clean_mark and name in self.recovery_points
        point = self.recovery_points.get(name, 0)
        return RecordedEnd(point, is_end=is_end, is_dense=is_dense)

    def known_end(self, name: TopicPartition) -> int:
        """Return an offset that the partition's log has reached for certain; 0 if none is known.

        An earlier topic of the same name has no effect: deleting a topic removes its offsets from
        the checkpoint files.
        """
        return max(self.recovery_points.get(name, 0), self.starts.get(name, 0))

    def start_of(self, name: TopicPartition, recorded: RecordedEnd) -> int:
        """Return a log's start offset in the checkpoint file; 0 if the file has none.

        If the log start is above the log end that a clean stop has recorded, this is reported, and
        the result is 0.
        """
        start = self.starts.get(name, 0)
        if not recorded.is_end or start <= recorded.recovery_point:
            return start
        self._report(
            f"{self._directory}/{files.LOG_START_CHECKPOINT_FILE}: {name} starts at offset {start},"
            f" after its end offset {recorded.recovery_point} at the clean stop; ignored"
        )
        return 0

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """Read a checkpoint's offsets; a damaged file counts as empty and is reported."""
        try:
            return text_files.read_offset_checkpoint(self._fs, f"{self._directory}/{name}")
        except CorruptFile as error:
            self._report(f"{error}; treated as empty")
            return {}

    def note(self, name: TopicPartition, log: "Log") -> None:
        """Set a log's start and recovery point in memory.

        As in Kafka, a log start is stored only if it is after the base offset of the first segment.
        A stored start is kept as long as a deletion is pending, because files of deleted segments
        are possibly not renamed yet. Without the stored start, opening the log after a kill would
        use these files.
        """
        self.recovery_points[name] = log.recovery_point
        if log.log_start_offset > log.segments[0].base_offset:
            self.starts[name] = log.log_start_offset
        elif log.guard.is_settled:
            self.starts.pop(name, None)

    def save(self) -> None:
        """Write recovery points and log starts; raises OSError."""
        self._write(files.RECOVERY_POINT_CHECKPOINT_FILE, self.recovery_points)
        self._write(files.LOG_START_CHECKPOINT_FILE, self.starts)

    def _write(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Replace a checkpoint's file.

        `offsets` is copied while the lock is held, so no thread replaces newer offsets by older
        offsets.
        """
        with self._writing:
            ordered = dict(sorted(offsets.copy().items()))
            text_files.write_offset_checkpoint(self._fs, f"{self._directory}/{name}", ordered)

    def save_start(self, name: TopicPartition, offset: int) -> None:
        """Store a log's new start; raises OSError."""
        self.starts[name] = offset
        self._write(files.LOG_START_CHECKPOINT_FILE, self.starts)

    def lower(self, name: TopicPartition, offset: int, end_offset: int) -> None:
        """Lower a log's checkpoints before a truncation.

        Args:
            name: The partition.
            offset: Offset of the truncation; a larger log start is lowered to it. A batch that
                contains this offset is removed completely.
            end_offset: Resulting log end; a larger recovery point or cleaner offset is lowered to
                it. Otherwise records that are appended later would count as cleaned.

        Raises:
            OSError, StorageFailure: The disk failed.
        """
        if self.recovery_points.get(name, 0) > end_offset:
            self.recovery_points[name] = end_offset
            self._write(files.RECOVERY_POINT_CHECKPOINT_FILE, self.recovery_points)
        if self.starts.get(name, 0) > offset:
            self.save_start(name, offset)
        if (self.cleaner_offset(name) or 0) > end_offset:
            self.note_cleaned(name, end_offset)

    def cleaner_offset(self, name: TopicPartition) -> int | None:
        """Return the offset below which a partition is compacted; None if none is stored.

        Raises:
            StorageFailure: The disk failed.
        """
        with typed_reads(self._directory):
            return self._read(files.CLEANER_CHECKPOINT_FILE).get(name)

    def note_cleaned(self, name: TopicPartition, offset: int | None) -> None:
        """Store the offset below which a partition is compacted, durably.

        None removes the stored offset.

        Raises:
            StorageFailure: The disk failed.
        """
        path = f"{self._directory}/{files.CLEANER_CHECKPOINT_FILE}"
        try:
            with self._writing:
                offsets = self._read(files.CLEANER_CHECKPOINT_FILE)
                if offsets.get(name) == offset:
                    return
                offsets.pop(name, None)
                if offset is not None:
                    offsets[name] = offset
                ordered = dict(sorted(offsets.items()))
                text_files.write_offset_checkpoint(self._fs, path, ordered)
        except OSError as error:
            raise as_storage_failure(error, path, "note cleaned") from error

    def forget(self, topics: Collection[str]) -> None:
        """Remove all stored offsets of deleted topics, so that new topics of these names have none.

        The caller must sync the directory to make the replaced files durable. Raises OSError.
        """
        for offsets_in_memory in (self.unsynced_points, self.starts, self.recovery_points):
            for name in [each for each in tuple(offsets_in_memory) if each.topic in topics]:
                offsets_in_memory.pop(name, None)
        with self._writing:
            for file_name in _NAMES:
                offsets = self._read(file_name)
                remaining = {name: at for name, at in offsets.items() if name.topic not in topics}
                if len(remaining) < len(offsets):
                    path = f"{self._directory}/{file_name}"
                    text = text_files.encode_offset_checkpoint(remaining)
                    files.write_atomically(self._fs, path, text, sync_name=False)
