"""Checkpoints of a directory: where logs start, from where on they are recovered, are compacted.

Kafka's three text files of an offset for each partition. What the first two say is kept in memory,
and written from there; the third is another process's business as well, and read each time.

Source: Kafka 4.x OffsetCheckpointFile, LogManager, LogCleanerManager.
"""

import threading
from collections.abc import Callable, Collection
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.storage import files, text_files
from tidelog.storage.log.log import Log
from tidelog.storage.open_files import as_storage_failure, typed_reads
from tidelog.types import TopicPartition

_NAMES: Final = (
    files.LOG_START_CHECKPOINT_FILE,
    files.RECOVERY_POINT_CHECKPOINT_FILE,
    files.CLEANER_CHECKPOINT_FILE,
)


class OffsetCheckpoints:
    """Those of one directory. What writes may be called from any thread.

    Attributes:
        starts: Log starts, where they lie behind the first segment's base.
        recovery_points: Offsets below which logs are durable.
    """

    def __init__(self, fs: FileSystem, directory: str, report: Callable[[str], None]) -> None:
        """Nothing is read yet; `report` is told of damage."""
        self._fs = fs
        self._directory = directory
        self._report = report
        self._writing = threading.Lock()
        self.starts: dict[TopicPartition, int] = {}
        self.recovery_points: dict[TopicPartition, int] = {}

    def load_starts(self) -> None:
        """Read log starts, which is all that a reader needs; raises OSError."""
        self.starts = self._read(files.LOG_START_CHECKPOINT_FILE)

    def load(self) -> None:
        """Read log starts and recovery points; raises OSError."""
        self.load_starts()
        self.load_recovery_points()

    def load_recovery_points(self) -> None:
        """Read recovery points; raises OSError."""
        self.recovery_points = self._read(files.RECOVERY_POINT_CHECKPOINT_FILE)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint's offsets; a damaged one counts as empty, as in Kafka, and is reported."""
        try:
            return text_files.read_offset_checkpoint(self._fs, f"{self._directory}/{name}")
        except CorruptFile as error:
            self._report(f"{error}; taken for empty")
            return {}

    def note(self, name: TopicPartition, log: Log) -> None:
        """Take what is so of a log now; Kafka lists only those that start behind their base.

        What was listed stays until nothing waits: deleted segments may have their names yet, and
        who starts behind a kill would find them.
        """
        self.recovery_points[name] = log.recovery_point
        if log.log_start_offset > log.segments[0].base_offset:
            self.starts[name] = log.log_start_offset
        elif log.is_settled:
            self.starts.pop(name, None)

    def save(self) -> None:
        """Write recovery points and log starts; raises OSError."""
        self._write(files.RECOVERY_POINT_CHECKPOINT_FILE, self.recovery_points)
        self._write(files.LOG_START_CHECKPOINT_FILE, self.starts)

    def _write(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Replace a checkpoint: what is written last is what was known last."""
        with self._writing:
            ordered = dict(sorted(offsets.copy().items()))
            text_files.write_offset_checkpoint(self._fs, f"{self._directory}/{name}", ordered)

    def save_start(self, name: TopicPartition, offset: int) -> None:
        """A log starts there from now on; raises OSError."""
        self.starts[name] = offset
        self._write(files.LOG_START_CHECKPOINT_FILE, self.starts)

    def lower(self, name: TopicPartition, offset: int, end_offset: int) -> None:
        """Before a log is cut: nothing that is said of it may lie beyond.

        Args:
            name: Whose log.
            offset: Where it is cut; the batch that holds it goes as a whole.
            end_offset: Where the log then ends.

        Raises:
            OSError, StorageFailure: The disk failed.
        """
        if self.recovery_points.get(name, 0) > end_offset:
            self.recovery_points[name] = end_offset
            self._write(files.RECOVERY_POINT_CHECKPOINT_FILE, self.recovery_points)
        if self.starts.get(name, 0) > offset:
            self.save_start(name, offset)
        if (self.cleaner_offset(name) or 0) > offset:
            self.note_cleaned(name, offset)

    def cleaner_offset(self, name: TopicPartition) -> int | None:
        """As `DirectoryState.cleaner_offset`."""
        with typed_reads(self._directory):
            return self._read(files.CLEANER_CHECKPOINT_FILE).get(name)

    def note_cleaned(self, name: TopicPartition, offset: int | None) -> None:
        """As `DirectoryState.note_cleaned`."""
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
        """Forget what is known of deleted topics' partitions; a topic of that name begins anew.

        Names are not synced: that is the caller's. Raises OSError.
        """
        for known in (self.starts, self.recovery_points):
            for name in [each for each in tuple(known) if each.topic in topics]:
                known.pop(name, None)
        with self._writing:
            for place in _NAMES:
                offsets = self._read(place)
                kept = {name: at for name, at in offsets.items() if name.topic not in topics}
                if len(kept) < len(offsets):
                    path = f"{self._directory}/{place}"
                    text = text_files.encode_offset_checkpoint(kept)
                    files.write_atomically(self._fs, path, text, sync_name=False)
