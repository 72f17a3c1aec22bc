"""`Directory`, the result of `tidelog.open`: topics in a local directory or in an object store.

`Directory` implements `FrontDoor` over `storage.directory.log_dir.LogDir`, and adds the calls that
only a directory has: single logs, retention, the control channel. `Directory` itself defines no
format and opens no file. Arrow, numpy and numba are imported only by calls that need them.

Life cycle: `tidelog.open`, calls, close; best used in a `with` block. Only one thread may change a
directory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike, fspath
from typing import TYPE_CHECKING, Self
from uuid import UUID

from tidelog.amounts import plural, verb
from tidelog.arguments import codec_of, reads_arguments
from tidelog.config import ConfigNote, amounts_in_errors, plain_settings
from tidelog.display import Topics
from tidelog.env import Env, os_env
from tidelog.errors import (
    InvalidRequest,
    RefusedRecords,
    StorageFailure,
    TidelogError,
    TopicExists,
)
from tidelog.front_door import FrontDoor
from tidelog.record.builder import BATCH_BYTES
from tidelog.record.partitioner import Partitioner
from tidelog.record.record import Record
from tidelog.storage import files, log_files
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.segment_times import append_span, record_span
from tidelog.types import (
    ArrowStream,
    ClockName,
    Codec,
    Compression,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    TimeMatch,
    TimeSpan,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidelog.scan.source import RecordSource
    from tidelog.storage.directory.numbered_loads import LoadResult
    from tidelog.storage.directory.topic_retention import DueSegment
    from tidelog.storage.log.append_types import AppendResult
    from tidelog.storage.log.log import Log


@reads_arguments()
class Directory(FrontDoor):
    """A directory of topics."""

    loads_are_atomic = True

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
            path: Path of the directory, which may be Kafka's own. For reading, the URL of an object
                store is accepted too, e.g. `s3://bucket/logs` (docs/objects.md).
            writable: Whether to take the lock and allow changes. If true, a missing directory is
                created.
            env: Files, clock and randomness; those of this machine if None.
            store_options: Settings of the object store; the settings in the environment if None.
            control: Whether to serve the control channel in a thread while the directory is open
                (docs/control.md).

        Raises:
            DirectoryLocked: `writable` is true, and the directory is already open for writing, in
                this process or in another one.
            InvalidRequest: `writable` is false, and the directory doesn't exist or `control` is
                true.
            ReadOnly: The directory is in an object store, and `writable` is true.
            CorruptFile, UnsupportedVersion: `writable` is true, and a file at the top of the
                directory can't be read.
            StorageFailure: The disk failed, or the object store can't be reached or denies access.
            MissingDependency: A package for the object store is not installed.
        """
        options = LogDirOptions(writable=writable, create=writable)
        path = fspath(path)
        environment = os_env() if env is None else env
        if store_options or ":/" in path:
            from tidelog.objects import env_for, local_path

            environment = env_for(local_path(path), env, store_options)
        if control and not writable:
            raise InvalidRequest(
                "control=True serves requests that change the directory: open it with writable=True"
            )
        log_dir = LogDir.open(path, env=environment, options=options)
        if not control:
            return cls(log_dir)
        from tidelog.control.server import served

        return served(cls, cls, log_dir)

    @property
    def path(self) -> str:
        """Path of the directory, or its URL."""
        return self._log_dir.path

    @property
    def log_dir(self) -> LogDir:
        """The underlying storage, for callers that need partitions."""
        return self._log_dir

    @property
    def reports(self) -> Sequence[str]:
        """Notes on damage that was found, and on recovery, since the directory was opened."""
        return self._log_dir.reports

    def _now(self) -> LogDir:
        """Return the storage, refreshed to the current topics and records.

        Every call that reads uses this method, because another process may write to the directory
        if this process has it open for reading.
        """
        self._log_dir.refresh()
        return self._log_dir

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name; a notebook shows the result as a table."""
        return Topics(self._now().topics())

    def topic(self, name: str) -> TopicInfo:
        """Return one topic; raises UnknownTopic, which may suggest a similar name."""
        return self._now().topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
        exist_ok: bool = False,
    ) -> list[ConfigNote]:
        """Create a topic, and return notes on its settings, e.g. about deprecated names.

        Args:
            name: A name that Kafka allows.
            partitions: Number of partitions, at least 1.
            config: Settings under Kafka's names, see docs/config.md; values can have a unit
                (`7d`, `1GiB`).
            topic_id: Id of the topic, for example the id that the topic has in another cluster;
                random if None.
            exist_ok: Whether an existing topic is accepted. An existing topic stays unchanged, even
                if its settings or partitions differ from the other arguments.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, ConfigError: An argument is invalid, or
            the topic exists; nothing was changed. ReadOnly, StorageFailure: The directory is open
            for reading, or the disk failed.
        """
        try:
            plain = plain_settings(config or {})
            with amounts_in_errors(config or {}):
                return self._log_dir.create_topic(
                    name, partitions=partitions, config=plain, topic_id=topic_id
                )[1]
        except TopicExists:
            if exist_ok:
                return []
            raise

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; raises UnknownTopic, ReadOnly, StorageFailure."""
        self._partitioners.pop(name, None)
        self._log_dir.delete_topic(name)

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """Change a topic's settings.

        None resets a setting. Values can have a unit (`7d`).

        Raises:
            UnknownTopic, ConfigError, ReadOnly, StorageFailure: Nothing was changed.
        """
        plain = plain_settings(changes)
        with amounts_in_errors(changes):
            return self._log_dir.alter_config(name, plain)

    def add_partitions(self, topic: str, count: int) -> None:
        """See `FrontDoor`."""
        self._log_dir.add_partitions(topic, count)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `FrontDoor`."""
        logs = {name: self.log(name.topic, name.partition) for name in offsets}
        for name, log in logs.items():
            log.deleter.ensure_allowed(offsets[name])
        starts = {name: log.delete_records(offsets[name]) for name, log in logs.items()}
        self.flush()
        return starts

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic; raises UnknownTopic."""
        return self._now().partitions(topic)

    def log_sizes(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """See `FrontDoor`."""
        now = self._now()
        return {
            topic: [size for name in now.partitions(topic) for size in self._sizes_of(name)]
            for topic in topics
        }

    def _sizes_of(self, name: TopicPartition) -> list[int]:
        folder = f"{self.path}/{files.partition_dir_name(name)}"
        return log_files.log_sizes(self._env.files, folder)

    def partition(self, topic: str, partition: int) -> LogView:
        """Return one partition for reading, in its current state.

        The returned object may change: later calls that read from the directory may refresh it.

        Raises:
            UnknownTopic: The partition doesn't exist.
            MissingFile: The directory is open for reading, and its topics file lists the partition,
                but the partition has no directory.
            StorageFailure: The disk failed.
        """
        return self._now().reader(topic, partition)

    def log(self, topic: str, partition: int) -> "Log":
        """Return one partition for writing; raises UnknownTopic, ReadOnly."""
        return self._log_dir.log(topic, partition)

    def retain(self, topic: str | None = None, *, dry_run: bool = False) -> "list[DueSegment]":
        """Apply retention: delete the finished segments that the topics' settings no longer keep.

        A broker applies retention by itself. Without a broker, retention deletes nothing until this
        method is called. Old segments are deleted only if their age limit is known: from the
        topic's own `retention.ms`, or from the broker's settings.

        Args:
            topic: One topic; all topics if None.
            dry_run: Whether to delete nothing. A dry run is also allowed if the directory is open
                for reading.

        Returns:
            The segments that were deleted, or would be, in order of partition and offset.

        Raises:
            UnknownTopic: The topic doesn't exist.
            ReadOnly: The directory is open for reading, and this is no dry run.
            StorageFailure: The disk failed. The partition whose file could not be changed is
                offline.
        """
        from tidelog.storage.directory.topic_retention import retain

        names = sorted(self.topics()) if topic is None else [topic]
        return [one for name in names for one in retain(self._now(), name, dry_run=dry_run)]

    # -- appending ---------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> "dict[int, AppendResult]":
        """Append records, and return the result of each partition that received records.

        A record's partition is chosen as by Kafka's Java client, by murmur2 of the key. Records
        without a key go to one partition, chosen at random for each call. If a rule of the topic
        refuses a record, no record of the call is appended; the error's `record_errors` contain the
        indexes of refused records among the records of the call. If the disk fails, the call's
        records may have been appended to some of the partitions; a note of the error states how
        many records were appended.

        Args:
            topic: Name of the topic.
            records: Keys, values, create times (default: the current time), headers.
            partition: Partition for all records; chosen by key if None.
            codec: Codec of the batches. It applies only if the topic's `compression.type` is
                `producer`, which is the default.
            batch_bytes: Uncompressed size in bytes at which a batch is finished. A value above half
                of `max.message.bytes` counts as that half.

        Raises:
            UnknownTopic, ReadOnly, and the errors of `Log.append`.
        """
        records = list(records)
        groups = self._by_partition(topic, records, partition)
        chosen = codec_of(codec)
        pending = []
        for number, group in groups.items():
            log = self._log_dir.log(topic, number)
            try:
                append = log.prepare(group, codec=chosen, batch_bytes=batch_bytes)
            except RefusedRecords as error:
                if partition is not None:
                    raise
                choose = self._partitioner(topic).choose  # chooses the same partitions again
                indexes = [at for at, one in enumerate(records) if choose(one.key) == number]
                raise error.renumbered(indexes.__getitem__) from None
            pending.append((number, log, append))
        results: dict[int, AppendResult] = {}
        try:
            for number, log, append in pending:
                results[number] = log.writer.append(append)
        except TidelogError as error:
            if isinstance(error, StorageFailure):
                error.is_partial = True
            if count := sum(len(groups[number]) for number in results):
                appended = f"{plural(count, 'record')} of the call {verb(count, 'was', 'were')}"
                error.add_note(f"despite this error, {appended} appended to the log")
            raise
        return results

    def load_once(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        source: str,
        partition: int | None = None,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> "LoadResult":
        """Append those rows of a source that are not in a topic yet: all of these rows, or none.

        Args:
            topic: Name of the topic.
            records: All rows of the source, from the first row; rows already loaded under the
                source's name are skipped.
            source: Name of the source.
            partition: Partition for all rows; chosen by key if None.
            codec: Codec of the batches. It applies only if the topic's `compression.type` is
                `producer`, which is the default.
            batch_bytes: Uncompressed size in bytes at which a batch is finished. A value above half
                of `max.message.bytes` counts as that half.

        Raises:
            InvalidRequest: The source's name is invalid, or the first rows differ from the rows
                that were loaded under this name, or `records` has fewer rows than were loaded.
                Nothing was appended.
            StorageFailure: The disk failed. If partitions are offline after the error, reopen them
                to see whether the rows were appended. If no partition is offline, nothing was
                appended.
            UnknownTopic, ReadOnly, and the other errors of `Log.append`: Nothing was appended.
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

    def loaded_rows(self, topic: str, source: str) -> int:
        """Return the number of rows of a source that `load_once` has appended to a topic.

        Raises:
            InvalidRequest: The source's name is invalid.
        """
        from tidelog.storage.directory.numbered_loads import loaded_rows

        return loaded_rows(self._log_dir, topic, source)

    def append_table(
        self,
        topic: str,
        table: ArrowStream,
        *,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> "dict[int, AppendResult]":
        """Append a table; return the last result of each partition that received rows.

        Rows keep their order within a partition. A table may need several appends. The batches of
        one append have at most 1 MiB, and at most `segment.bytes`, in total. A batch of more than 1
        MiB is an append of its own. After a failed append, the rows of earlier appends stay in the
        log.

        Args:
            topic: Name of the topic.
            table: An Arrow table, batch or reader, or a Polars or pandas frame. Its columns, all
                optional: `key`, `value`, `timestamp` (integers in ms, or Arrow timestamps),
                `headers`, and `partition` (int), which chooses the partition of each row.
            codec: Codec of the batches. It applies only if the topic's `compression.type` is
                `producer`, which is the default.
            batch_bytes: Uncompressed size in bytes at which a batch is finished. A value above half
                of `max.message.bytes` counts as that half.

        Raises:
            InvalidRequest: A column is unknown or has a wrong type, or a partition doesn't exist.
            InvalidTimestamp: A time is before 1970 (an integer may be -1, which means "no time");
                nothing was appended.
            MissingDependency: pyarrow, numpy or numba is not installed.
            UnknownTopic, ReadOnly, and the errors of `Log.append_batches`.
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
        """Sync all appended records of all partitions to disk."""
        self._log_dir.flush()

    # -- lookups by time and reading ---------------------------------------------------------

    def without_append_time(self, partition: TopicPartition) -> int:
        """Return the number of records of a partition whose append time is unknown."""
        return self.partition(partition.topic, partition.partition).without_append_time()

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See `FrontDoor`."""
        now = self._now()
        return {name: now.reader(name.topic, name.partition).max_timestamp() for name in partitions}

    def search_times(
        self, times: Mapping[TopicPartition, int], clock: ClockName
    ) -> dict[TopicPartition, TimeMatch]:
        """See `FrontDoor`."""
        now = self._now()
        matches = {}
        for name, hit in now.offsets_for_times(times, clock=clock).items():
            unknown = 0 if hit is None else hit.without_time
            if hit is None and clock is ClockName.APPEND:
                unknown = now.reader(name.topic, name.partition).without_append_time()
            matches[name] = TimeMatch(hit, unknown)
        return matches

    def _time_spans(
        self, partitions: list[TopicPartition], clock: ClockName
    ) -> dict[TopicPartition, TimeSpan]:
        read = record_span if clock is ClockName.RECORD else append_span
        now = self._now()
        return {name: read(now.reader(name.topic, name.partition)) for name in partitions}

    def _starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._now().beginning_offsets(partitions)

    def _ends(
        self, partitions: Iterable[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        return self._now().end_offsets(partitions, isolation=isolation)

    def _records(
        self, topic: str, isolation: IsolationLevel
    ) -> Iterator[tuple[TopicPartition, Record]]:
        from tidelog.scan.plan import checked_partitions

        now = self._now()
        for name in checked_partitions(now, topic):
            for record in now.reader(topic, name.partition).timed_records(isolation):
                yield name, record

    def _knows_partitions(self, topic: str) -> bool:
        # of another program's topic, a directory may have only some partitions
        return not self.topic(topic).foreign

    def _checked_partitions(self, topic: str) -> list[TopicPartition]:
        from tidelog.scan.plan import checked_partitions

        return checked_partitions(self._now(), topic)

    @property
    def source(self) -> "RecordSource":
        """See `FrontDoor`."""
        from tidelog.scan.source import DirectoryRecords

        return DirectoryRecords(self._now(), self._env)

    def __repr__(self) -> str:
        from tidelog.frames import directory_text

        return f"{type(self).__name__}({directory_text(self._log_dir)})"

    def _repr_html_(self) -> str:
        """Return the directory as an HTML table for a notebook: its topics and their sizes."""
        from tidelog.frames import directory_html

        return directory_html(self._log_dir)

    # -- closing -----------------------------------------------------------------------------

    def exclusive(self) -> AbstractContextManager[object]:
        """Return a context manager that blocks requests of the control channel during its block.

        Methods of this class block these requests themselves. Methods of returned logs, partitions
        and scans do not block requests, so call those methods within this context manager.
        """
        return nullcontext()

    def close(self) -> None:
        """Close the directory; record a clean shutdown if it is writable.

        Later calls raise Closed.
        """
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
