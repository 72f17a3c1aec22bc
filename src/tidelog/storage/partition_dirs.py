"""The directories of a log directory's partitions: made many at once, made durable at first use.

That a topic is there, with its id, is what the registry's file says; a directory that it lacks is
made when the partition is opened. So making one costs no sync: `partition.metadata` is written
durably before the partition takes its first record, as Kafka does it, and before a directory is
left as cleanly stopped. Who loses power before that finds it missing or torn, and it is written
anew from the registry.

Source: Kafka 4.x LogManager (a log without a topic id has taken no record yet).
"""

import threading
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.storage import files, text_files
from tidelog.storage.segment_notes import begin_notes, has_notes
from tidelog.storage.topic_info import TopicInfo
from tidelog.types import TopicPartition


class PartitionDirs:
    """Those of one directory that is open for writing.

    `make` is for one thread at a time; the rest for any thread.
    """

    def __init__(self, fs: FileSystem, root: str, *, keeps_notes: bool) -> None:
        """Nothing is made yet.

        Args:
            fs: Where the directory is.
            root: Its path.
            keeps_notes: Whether partitions note why their segments were rolled, from the start.
        """
        self._fs = fs
        self._root = root
        self._keeps_notes = keeps_notes
        self._unsettled: dict[TopicPartition, uuid.UUID | None] = {}
        self._settling = threading.Lock()

    def path(self, partition: TopicPartition) -> str:
        """Where a partition's directory is."""
        return f"{self._root}/{files.partition_dir_name(partition)}"

    def make(self, topics: Collection[TopicInfo]) -> Mapping[str, OSError]:
        """Make the directories that topics lack; their names are durable then.

        Returns:
            Why that could not be, by topic; of such a one no new directory is left.

        Raises:
            OSError: Names could not be synced; no new directory is left.
        """
        failed = {}
        lacking = {info.name: _lacking(info) for info in topics}
        for info in topics:
            try:
                for partition in lacking[info.name]:
                    self._make(partition, info.topic_id)
            except OSError as error:
                failed[info.name] = error
                self._unmake(lacking[info.name])
        try:
            self._fs.sync_dir(self._root)
        except OSError:
            self._unmake(chain.from_iterable(lacking.values()))
            raise
        return failed

    def make_again(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> None:
        """Make one that is gone, durably; raises OSError."""
        self._make(partition, topic_id)
        self._fs.sync_dir(self._root)

    def _make(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> None:
        path = self.path(partition)
        self._fs.make_dirs(path)
        self._unsettled[partition] = topic_id
        if topic_id is not None and not self._fs.exists(f"{path}/{files.PARTITION_METADATA_FILE}"):
            text_files.write_partition_metadata(self._fs, path, topic_id, is_durable=False)

    def _unmake(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove what was just made, as far as the disk lets it be."""
        for partition in partitions:
            path = self.path(partition)
            self.forget(partition)
            with suppress(OSError):
                for entry in self._fs.list_dir(path):
                    self._fs.remove(f"{path}/{entry.name}")
                self._fs.remove_dir(path)

    def forget(self, partition: TopicPartition) -> None:
        """A partition's directory is gone."""
        self._unsettled.pop(partition, None)

    def settle(self, partition: TopicPartition) -> None:
        """Make durable whose directory it is, where it was just made; before records go there.

        Raises:
            OSError: The disk failed; the next call tries again, with new files.
        """
        if partition not in self._unsettled:
            return
        with self._settling:  # whoever comes second goes on when it is durable
            if partition in self._unsettled:
                self._write(self.path(partition), self._unsettled[partition])
                self.forget(partition)

    def _write(self, path: str, topic_id: uuid.UUID | None) -> None:
        begins_notes = self._keeps_notes and not has_notes(self._fs, path)
        if topic_id is not None:
            text_files.write_partition_metadata(
                self._fs, path, topic_id, sync_name=not begins_notes
            )
        if begins_notes:  # which syncs both names
            begin_notes(self._fs, path)

    def settle_all(self) -> None:
        """Settle what nobody has opened; raises OSError."""
        for partition in list(self._unsettled):
            self.settle(partition)

    def mend(self, partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Write a partition's id anew where a loss of power has left none that can be read.

        Raises:
            OSError: The disk failed.
        """
        path = self.path(partition)
        try:
            found = text_files.read_partition_metadata(self._fs, path)
        except CorruptFile:
            found = None
        if found is None:
            text_files.write_partition_metadata(self._fs, path, topic_id)


def _lacking(info: TopicInfo) -> list[TopicPartition]:
    numbers = sorted(set(range(info.partitions)) - set(info.present))
    return [TopicPartition(info.name, number) for number in numbers]
