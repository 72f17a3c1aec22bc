"""`Directory`: topics in a directory of this machine or of an object store; `tidelog.open`.

`Directory` implements `FrontDoor` over `storage.directory.log_dir.LogDir`, and adds what only a
directory has: appends that choose partitions, single logs, retention. It owns no format and no
file. Arrow, numpy and numba are imported by the calls that need them.

Life cycle: `tidelog.open` -> calls -> close, best by `with`. One thread changes a directory.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike, fspath
from typing import TYPE_CHECKING, Self
from uuid import UUID

from tidelog.arguments import codec_of, reads_arguments
from tidelog.config import ConfigNote
from tidelog.env import Env
from tidelog.errors import InvalidRequest, TopicExists
from tidelog.front_door import FrontDoor
from tidelog.objects import env_for, local_path
from tidelog.record.builder import BATCH_BYTES
from tidelog.record.partitioner import Partitioner
from tidelog.record.record import Record
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.log.append import AppendResult
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView, unknown_times_note
from tidelog.types import (
    ClockName,
    Codec,
    Compression,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.scan.source import RecordSource
    from tidelog.storage.directory.numbered_loads import Loaded
    from tidelog.storage.directory.topic_retention import DueSegment


_LOGGER = logging.getLogger(__name__)


@reads_arguments()
class Directory(FrontDoor):
    """A directory of topics."""

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir.env)
        self._log_dir = log_dir
        self._partitioners: dict[str, Partitioner] = {}

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        writable: bool = False,
        env: Env | None = None,
        store_options: Mapping[str, str] | None = None,
        control: bool = False,
    ) -> Self:
        """Open a directory of topics.

        Args:
            path: Where it is; Kafka's own log directories can be opened as well. For reading also
                the URL of an object store, `s3://bucket/logs` say (docs/objects.md).
            writable: Take the lock and allow changes; the directory is made where it is missing.
            env: Files, clock and randomness; the machine's where None.
            store_options: Settings of the object store; the environment's where None.
            control: Serve the control channel meanwhile, by a thread (docs/control.md).

        Raises:
            DirectoryLocked: Another process has it open for writing.
            InvalidRequest: There is no such directory, and `writable` is false.
            ReadOnly: It lies in an object store, and `writable` is true.
            StorageFailure: The object store can't be reached, or lets nobody in.
        """
        options = LogDirOptions(writable=writable, create=writable)
        path = fspath(path)
        environment = env_for(local_path(path), env, store_options)
        if control and not writable:
            raise InvalidRequest("control=True serves who would change it: open it writable")
        log_dir = LogDir.open(path, env=environment, options=options)
        if not control:
            return cls(log_dir)
        from tidelog.control.server import served

        return served(cls, cls, log_dir)

    @property
    def path(self) -> str:
        """Where it is."""
        return self._log_dir.path

    @property
    def log_dir(self) -> LogDir:
        """The storage below, for those who work on partitions."""
        return self._log_dir

    @property
    def reports(self) -> Sequence[str]:
        """What was found damaged and made good since it was opened, one line each."""
        return self._log_dir.reports

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        """All topics by name; a notebook shows them as a table."""
        from tidelog.frames import Topics

        return Topics(self._log_dir.topics())

    def topic(self, name: str) -> TopicInfo:
        """One topic; raises UnknownTopic, which names the nearest one."""
        return self._log_dir.topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
        exist_ok: bool = False,
    ) -> list[ConfigNote]:
        """Create a topic; what there is to say about its settings (old names, say).

        Args:
            name: By Kafka's rules.
            partitions: From 1 on.
            config: Settings under Kafka's names, see docs/config.md.
            topic_id: To match another cluster's topic; drawn where None.
            exist_ok: A topic that is there stays as it is, whatever the other arguments say.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, ConfigError: Nothing was changed.
        """
        try:
            return self._log_dir.create_topic(
                name, partitions=partitions, config=config, topic_id=topic_id
            )[1]
        except TopicExists:
            if exist_ok:
                return []
            raise

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; raises UnknownTopic."""
        self._partitioners.pop(name, None)
        self._log_dir.delete_topic(name)

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """Change a topic's settings, None for back to the default."""
        return self._log_dir.alter_config(name, changes)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic; raises UnknownTopic."""
        return self._log_dir.partitions(topic)

    def partition(self, topic: str, partition: int) -> LogView:
        """One partition, for reading."""
        return self._log_dir.reader(topic, partition)

    def log(self, topic: str, partition: int) -> Log:
        """One partition, for writing; raises ReadOnly where the directory is open for reading."""
        return self._log_dir.log(topic, partition)

    def retain(self, topic: str | None = None, *, dry_run: bool = False) -> "list[DueSegment]":
        """Apply retention: delete the finished segments that the topics' settings let go.

        A broker does it by itself; without one, all is kept until somebody calls this. Only topics
        with a `retention.ms` of their own, or of a broker's that is known, go by age.

        Args:
            topic: One topic; all of them where None.
            dry_run: Delete nothing. A directory that is open for reading can be asked, too.

        Returns:
            What was deleted, or would be, in order of partition and offset.

        Raises:
            UnknownTopic: No such topic.
            ReadOnly: The directory is open for reading, and this is no dry run.
            StorageFailure: The disk failed; the partition is offline.
        """
        from tidelog.storage.directory.topic_retention import retain

        names = sorted(self.topics()) if topic is None else [topic]
        return [one for name in names for one in retain(self._log_dir, name, dry_run=dry_run)]

    # -- appending ---------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> dict[int, AppendResult]:
        """Append records; what each partition that got some answered.

        Records go where Kafka's clients would send them: by murmur2 of the key; those without a
        key to one partition that is drawn anew for each call. Within a partition all are appended
        or none; across partitions each stands for itself.

        Args:
            topic: Its name.
            records: Keys, values, create times (the clock's where they have none), headers.
            partition: The partition for them all; chosen by key where None.
            codec: Compression, unless the topic's `compression.type` says another.
            batch_bytes: Where a batch is closed, before compression.

        Raises:
            UnknownTopic, ReadOnly, and what `Log.append` raises.
        """
        groups = self._by_partition(topic, records, partition)
        return {
            number: self._log_dir.log(topic, number).append(
                group, codec=codec_of(codec), batch_bytes=batch_bytes
            )
            for number, group in groups.items()
        }

    def load_once(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        source: str,
        partition: int | None = None,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> "Loaded":
        """Append the rows of a source that a topic doesn't have yet, all together or none.

        Args:
            topic: Its name.
            records: All rows of the source, from the first one; those that were loaded before
                under the source's name are passed over.
            source: Its name.
            partition: The partition for them all; chosen by key where None.
            codec: Compression, unless the topic's `compression.type` says another.
            batch_bytes: Where a batch is closed, before compression.

        Raises:
            InvalidRequest: The first rows are not those that were loaded under this name.
            UnknownTopic, ReadOnly, and what `Log.append` raises: Nothing was appended.
        """
        from tidelog.storage.directory.numbered_loads import load_once

        return load_once(
            self._log_dir,
            topic,
            records,
            source=source,
            group=lambda rows: self._by_partition(topic, rows, partition),
            codec=codec_of(codec),
            batch_bytes=batch_bytes,
        )

    def append_table(
        self,
        topic: str,
        table: "pa.Table | pa.RecordBatch",
        *,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> dict[int, AppendResult]:
        """Append the rows of an Arrow table; the last answer of each partition that got some.

        Rows keep their order within a partition. They are appended by pieces of about
        `APPEND_BYTES`: a failure leaves the pieces before it in the log.

        Args:
            topic: Its name.
            table: Columns `key`, `value`, `timestamp` (ms, or any timestamp), `headers`, all
                optional, and `partition` (int) for those who choose it themselves.
            codec: Compression, unless the topic's `compression.type` says another.
            batch_bytes: Where a batch is closed, before compression.

        Raises:
            InvalidRequest: Another column, a wrong type, or a partition that is not there.
            MissingDependency: pyarrow, numpy or numba is not installed.
            UnknownTopic, ReadOnly, and what `Log.append_batches` raises.
        """
        from tidelog.arrow_topics import append_table

        return append_table(
            self._log_dir,
            topic,
            table,
            keyless=self._keyless_partition(topic),
            codec=codec_of(codec),
            batch_bytes=batch_bytes,
        )

    def _keyless_partition(self, topic: str) -> int:
        partitioner = self._partitioner(topic)
        partitioner.switch()
        return partitioner.choose(None)

    def _by_partition(
        self, topic: str, records: Iterable[NewRecord], partition: int | None
    ) -> dict[int, list[NewRecord]]:
        if partition is not None:
            return {partition: list(records)}
        partitioner = self._partitioner(topic)
        partitioner.switch()
        groups: dict[int, list[NewRecord]] = {}
        for record in records:
            groups.setdefault(partitioner.choose(record.key), []).append(record)
        return groups

    def _partitioner(self, topic: str) -> Partitioner:
        count = self._log_dir.topic(topic).partitions
        partitioner = self._partitioners.get(topic)
        if partitioner is None or partitioner.partition_count != count:
            partitioner = Partitioner(count, self._log_dir.env.random)
            self._partitioners[topic] = partitioner
        return partitioner

    def flush(self) -> None:
        """Make everything appended durable, in every partition that was written to."""
        self._log_dir.flush()

    # -- lookups by time and reading ---------------------------------------------------------

    def without_append_time(self, partition: TopicPartition) -> int:
        """Return the number of records of a partition whose append time is unknown."""
        return self.partition(partition.topic, partition.partition).without_append_time()

    def _first_at(
        self, times: Mapping[TopicPartition, int], clock: ClockName
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        first = self._log_dir.offsets_for_times(times, clock=clock)
        if clock is ClockName.APPEND:
            for name, record in first.items():
                if record is None and (count := self.without_append_time(name)):
                    _LOGGER.warning("%s", unknown_times_note(name, count))
        return first

    def _starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._log_dir.beginning_offsets(partitions)

    def _ends(
        self, partitions: Iterable[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        return self._log_dir.end_offsets(partitions, isolation=isolation)

    def _records(
        self, topic: str, isolation: IsolationLevel
    ) -> Iterator[tuple[TopicPartition, Record]]:
        for name in self._log_dir.partitions(topic):
            for record in self.partition(topic, name.partition).timed_records(isolation):
                yield name, record

    @property
    def source(self) -> "RecordSource":
        """See `FrontDoor`."""
        from tidelog.scan.source import DirectoryRecords

        return DirectoryRecords(self._log_dir, self._env)

    def _repr_html_(self) -> str:
        """The directory for a notebook: its topics and their sizes."""
        from tidelog.frames import directory_html

        return directory_html(self._log_dir)

    # -- closing -----------------------------------------------------------------------------

    def exclusive(self) -> AbstractContextManager[object]:
        """Keep requests of the control channel out while the block runs, where one is served.

        Calls do so by themselves; logs, partitions and scans that they hand out do not.
        """
        return nullcontext()

    def close(self) -> None:
        """Close everything; a writable directory leaves the mark of a clean stop."""
        self._log_dir.close()


def open_directory(
    path: str | PathLike[str],
    *,
    writable: bool = False,
    env: Env | None = None,
    store_options: Mapping[str, str] | None = None,
    control: bool = False,
) -> Directory:
    """Open a directory of topics: `tidelog.open`; see `Directory.open`."""
    return Directory.open(
        path, writable=writable, env=env, store_options=store_options, control=control
    )
