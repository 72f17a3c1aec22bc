"""A directory of partitions: who may change it, what is in it, where each partition ends safely.

The holder of the lock alone changes a directory; readers need none. After a clean stop partitions
are opened at first use; after a hard one all of them at once, since each needs recovery. The files
at the top are Kafka's own (`meta.properties`, the checkpoints, `.lock`, `.kafka_cleanshutdown`),
beside `tidelog-topics.json`, which knows the topics' settings.

Life cycle: open -> (partition | create_topic | ...)* -> checkpoint* -> close. One thread changes.
Source: Kafka 4.x LogManager; KAFKA-10471 (the marker goes before anything is loaded).
"""

import posixpath
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tidelog.config import ConfigNote, TopicConfig
from tidelog.env import Env, LockHandle, os_env
from tidelog.errors import (
    Closed,
    CorruptFile,
    DirectoryLocked,
    InvalidRequest,
    ReadOnly,
    StorageFailure,
    UnknownTopic,
)
from tidelog.storage import commits, files
from tidelog.storage.append_clock import ClockWatch
from tidelog.storage.body_check import BodyCheck, check_body
from tidelog.storage.handles import FilePool, MapCache, as_storage_failure
from tidelog.storage.log import Log, LogOptions
from tidelog.storage.log_reader import LogReader
from tidelog.storage.meta_properties import read_meta_properties, write_meta_properties
from tidelog.storage.segment import SegmentContext
from tidelog.storage.topics import TopicInfo, TopicRegistry, find_topics, unknown_topic
from tidelog.types import ClockName, IsolationLevel, OffsetAndTimestamp, TopicPartition

NO_TOPIC_ID: Final = uuid.UUID(int=0)
DELETED_DIR_SUFFIX: Final = "-delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirOptions:
    """How a directory is opened.

    Attributes:
        writable: Take the lock, recover where needed, allow changes; else only read.
        create: Make the directory where it is missing (implies `writable`).
        body_check: The validator's pass over records, plain or a kernel.
    """

    writable: bool = False
    create: bool = False
    body_check: BodyCheck = check_body


class LogDir:
    """A directory of partitions, open for reading or for writing."""

    def __init__(self, path: str, env: Env, options: LogDirOptions) -> None:
        self.path = path
        self.env = env
        self.reports: list[str] = []
        self._options = options
        self.is_writable = options.writable or options.create
        self._pool = FilePool(env.files, write=self.is_writable)
        self._maps = MapCache(env.files)
        self._lock: LockHandle | None = None
        self._logs: dict[TopicPartition, Log] = {}
        self._readers: dict[TopicPartition, LogReader] = {}
        self._was_clean = True
        self._failed = False
        self._is_closed = False

    @classmethod
    def open(
        cls, path: str, *, env: Env | None = None, options: LogDirOptions | None = None
    ) -> Self:
        """Open a directory of partitions.

        Args:
            path: Where it is.
            env: Files, clock and randomness; the machine's where None.
            options: What for; reading where None.

        Raises:
            DirectoryLocked: Another process has it open for writing.
            InvalidRequest: There is no such directory.
            CorruptFile: The list of topics can't be read.
            StorageFailure: The disk failed during recovery.
        """
        directory = cls(path.rstrip("/") or "/", env or os_env(), options or LogDirOptions())
        try:
            directory._load()
        except BaseException:
            directory._release()
            raise
        return directory

    def _load(self) -> None:
        files_, options = self.env.files, self._options
        if options.create:
            self._make_durably()
        if not files_.exists(self.path):
            raise InvalidRequest(f"{self.path}: there is no such directory")
        if not self.is_writable:
            self._starts = self._read_offsets(files.LOG_START_CHECKPOINT_FILE)
            self._recovery_points: dict[TopicPartition, int] = {}
            return
        try:
            self._load_writable()
        except OSError as error:
            raise as_storage_failure(error, self.path, "open") from error

    def _make_durably(self) -> None:
        """Make the directory and the parents it lacks, their names synced."""
        missing = []
        path = self.path
        while path and not self.env.files.exists(path):
            missing.append(path)
            path = posixpath.dirname(path)
        if missing:
            self.env.files.make_dirs(self.path)
        for path in missing:
            self.env.files.sync_dir(posixpath.dirname(path) or ".")

    def _load_writable(self) -> None:
        self._lock = self._take_lock()
        self._watch = ClockWatch(self.env.clock)
        if read_meta_properties(self.env.files, self.path) is None:
            write_meta_properties(self.env.files, self.path, self._new_meta_properties())
        self._was_clean = self._take_clean_marker()
        self._purge_deleted_topics()
        self.reports += commits.replay(self.env.files, self.path)
        self._registry = TopicRegistry(self.env.files, self.path)
        self.reports += self._registry.notes
        self._starts = self._read_offsets(files.LOG_START_CHECKPOINT_FILE)
        self._recovery_points = self._read_offsets(files.RECOVERY_POINT_CHECKPOINT_FILE)
        if not self._was_clean:
            for name, info in self._registry.topics.items():
                for number in info.present:
                    self.log(name, number)

    def _take_lock(self) -> LockHandle:
        path = f"{self.path}/{files.LOCK_FILE}"
        try:
            return self.env.files.lock(path)
        except BlockingIOError as error:
            raise DirectoryLocked(
                f"{self.path}: another process has it open for writing (it holds {path});"
                " stop it, or open the directory for reading"
            ) from error

    def _new_meta_properties(self) -> dict[str, str]:
        source = self.env.random
        return {
            "version": "1",
            "cluster.id": files.encode_topic_id(files.random_topic_id(source)),
            "node.id": "0",
            "directory.id": files.encode_topic_id(files.random_topic_id(source)),
        }

    def _take_clean_marker(self) -> bool:
        """Whether nothing needs recovery: the marker was there, or there are no partitions yet."""
        if files.take_clean_shutdown(self.env.files, self.path):
            return True
        entries = self.env.files.list_dir(self.path)
        return not any(e.is_dir and files.parse_partition_dir(e.name) for e in entries)

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint of offsets; a damaged one counts as empty, as in Kafka, and is reported."""
        try:
            return files.read_offset_checkpoint(self.env.files, f"{self.path}/{name}")
        except CorruptFile as error:
            self.reports.append(f"{error}; taken for empty")
            return {}

    def _purge_deleted_topics(self) -> None:
        for entry in self.env.files.list_dir(self.path):
            if entry.is_dir and entry.name.endswith(DELETED_DIR_SUFFIX):
                self._remove_tree(f"{self.path}/{entry.name}")

    def _remove_tree(self, path: str) -> None:
        for entry in self.env.files.list_dir(path):
            if entry.is_dir:
                self._remove_tree(f"{path}/{entry.name}")
            else:
                self.env.files.remove(f"{path}/{entry.name}")
        self.env.files.remove_dir(path)

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        """All topics by name, foreign ones included."""
        if self.is_writable:
            return self._registry.topics
        return find_topics(self.env.files, self.path)[0]

    def topic(self, name: str) -> TopicInfo:
        """One topic; raises UnknownTopic, which names the nearest one."""
        topics = self.topics()
        if name not in topics:
            raise unknown_topic(name, topics)
        return topics[name]

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        topic_id: uuid.UUID | None = None,
    ) -> tuple[TopicInfo, list[ConfigNote]]:
        """Create a topic and its partition directories; what to tell about its settings.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, ConfigError: Refused; nothing changed.
            ReadOnly: The directory was opened for reading.
            StorageFailure: The disk failed.
        """
        self._ensure_writable()
        try:
            info, notes = self._registry.create(
                name, partitions, config or {}, source=self.env.random, topic_id=topic_id
            )
            for number in range(partitions):
                self._make_partition(TopicPartition(name, number), info.topic_id)
            self.env.files.sync_dir(self.path)
        except OSError as error:
            raise as_storage_failure(error, self.path, f"create topic {name}") from error
        return info, notes

    def _make_partition(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> str:
        path = f"{self.path}/{files.partition_dir_name(partition)}"
        self.env.files.make_dirs(path)
        if topic_id is not None and not self.env.files.exists(
            f"{path}/{files.PARTITION_METADATA_FILE}"
        ):
            files.write_partition_metadata(self.env.files, path, topic_id)
        return path

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records.

        The directories are renamed first, so that a crash leaves no half of a partition; what is
        left of them goes at the next opening.

        Raises:
            UnknownTopic, ReadOnly, StorageFailure: As their names say.
        """
        self._ensure_writable()
        self._registry.get(name)
        try:
            renamed = [self._set_aside(TopicPartition(name, n)) for n in self._present(name)]
            self.env.files.sync_dir(self.path)
            self._registry.delete(name)
            for path in renamed:
                self._remove_tree(path)
        except OSError as error:
            raise as_storage_failure(error, self.path, f"delete topic {name}") from error

    def _present(self, topic: str) -> list[int]:
        """The partitions of a topic that have a directory now."""
        parsed = (files.parse_partition_dir(e.name) for e in self.env.files.list_dir(self.path))
        return sorted(p.partition for p in parsed if p is not None and p.topic == topic)

    def _set_aside(self, partition: TopicPartition) -> str:
        path = f"{self.path}/{files.partition_dir_name(partition)}"
        log = self._logs.pop(partition, None)
        if log is not None:
            log.abandon()
        self._starts.pop(partition, None)
        self._recovery_points.pop(partition, None)
        target = f"{path}.{uuid.UUID(int=self.env.random.getrandbits(128)).hex}{DELETED_DIR_SUFFIX}"
        self.env.files.rename(path, target)
        return target

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """Change a topic's settings, None for back to the default; open partitions follow.

        Raises:
            UnknownTopic, ConfigError, ReadOnly, StorageFailure: Nothing was changed.
        """
        self._ensure_writable()
        try:
            info, notes = self._registry.alter(name, changes, source=self.env.random)
        except OSError as error:
            raise as_storage_failure(error, self.path, f"alter topic {name}") from error
        for partition, log in self._logs.items():
            if partition.topic == name:
                log.configure(info.config)
        return notes

    # -- partitions --------------------------------------------------------------------------

    def reader(self, topic: str, partition: int) -> LogReader:
        """The partition for reading; the open log itself where the directory is writable.

        Raises:
            UnknownTopic: No such topic or partition.
        """
        if self.is_writable:
            return self.log(topic, partition)
        name = TopicPartition(topic, partition)
        found = self._readers.get(name)
        if found is None:
            info = self._existing(name)
            overlay = commits.overlay(self.env.files, self.path, name)
            context = self._context(name, info.topic_id, info.config, overlay)
            found = LogReader.open(context, log_start_offset=self._starts.get(name, 0))
            self._readers[name] = found
        return found

    def log(self, topic: str, partition: int) -> Log:
        """The partition for writing, opened (and recovered where needed) at first use.

        Raises:
            UnknownTopic: No such topic or partition.
            ReadOnly: The directory was opened for reading.
            StorageFailure: The disk failed.
        """
        name = TopicPartition(topic, partition)
        found = self._logs.get(name)
        if found is None:
            self._ensure_writable()
            found = self._open_log(name)
            self._logs[name] = found
        return found

    def _open_log(self, name: TopicPartition) -> Log:
        info = self._existing(name)
        if not self.env.files.exists(f"{self.path}/{files.partition_dir_name(name)}"):
            self._make_partition(name, info.topic_id)
            self.env.files.sync_dir(self.path)
        context = self._context(name, info.topic_id, info.config, {})
        options = LogOptions(
            watch=self._watch,
            recovery_point=None if self._was_clean else self._recovery_points.get(name, 0),
            log_start_offset=self._starts.get(name, 0),
            body_check=self._options.body_check,
            lower_checkpoints=lambda offset: self._lower_checkpoints(name, offset),
            save_log_start=lambda offset: self._save_log_start(name, offset),
        )
        log = Log.open_writable(context, options)
        self.reports += log.recovery_report.actions
        return log

    def _existing(self, name: TopicPartition) -> TopicInfo:
        info = self.topic(name.topic)
        if not 0 <= name.partition < info.partitions:
            raise UnknownTopic(
                f"{self.path}: topic {name.topic} has partitions 0 to {info.partitions - 1},"
                f" not {name.partition}"
            )
        return info

    def _context(
        self,
        name: TopicPartition,
        topic_id: uuid.UUID | None,
        config: TopicConfig,
        overlay: Mapping[str, str],
    ) -> SegmentContext:
        return SegmentContext(
            env=self.env,
            directory=f"{self.path}/{files.partition_dir_name(name)}",
            topic_partition=name,
            topic_id=topic_id or NO_TOPIC_ID,
            config=config,
            pool=self._pool,
            maps=self._maps,
            report=self.reports.append,
            overlay=overlay,
        )

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions, ascending; raises UnknownTopic."""
        return [TopicPartition(topic, n) for n in range(self.topic(topic).partitions)]

    # -- KIP-79 ------------------------------------------------------------------------------

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, clock: ClockName = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the earliest record whose time is the given one or later.

        Args:
            times: Time in ms for each partition asked.
            clock: Which of a record's two times is meant.

        Returns:
            Every partition asked, None where no record is that late. Source: KIP-79.

        Raises:
            ValueError: A negative time; nothing was looked up.
            UnknownTopic: No such topic or partition.
        """
        for name, timestamp_ms in times.items():
            if timestamp_ms < 0:
                raise ValueError(f"{name}: time {timestamp_ms} is negative")
        return {
            name: self.reader(name.topic, name.partition).offset_for_time(time_ms, clock=clock)
            for name, time_ms in times.items()
        }

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that can be read of each partition. Source: KIP-79."""
        return {p: self.reader(p.topic, p.partition).log_start_offset for p in partitions}

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """The offset behind the last visible record of each partition. Source: KIP-79."""
        return {p: self.reader(p.topic, p.partition).end_offset(isolation) for p in partitions}

    # -- checkpoints and closing -------------------------------------------------------------

    def accept_clock(self) -> None:
        """Let appends go on although the clock jumped; see `tidelog.storage.append_clock`."""
        self._ensure_writable()
        for info in self._registry.topics.values():
            for number in info.present:
                self.log(info.name, number).accept_clock()

    def flush(self) -> None:
        """Make everything that was appended durable.

        Raises:
            StorageFailure: A partition's disk failed; that partition is offline.
        """
        self._ensure_writable()
        for log in self._logs.values():
            if log.failure is None:
                log.flush()

    def checkpoint(self) -> None:
        """Write recovery points and log starts, so that a hard stop costs less recovery.

        Raises:
            StorageFailure: The disk failed.
        """
        self._ensure_writable()
        try:
            self._write_checkpoints()
        except OSError as error:
            raise as_storage_failure(error, self.path, "checkpoint") from error

    def _write_checkpoints(self) -> None:
        for name, log in self._logs.items():
            if log.failure is None:
                self._recovery_points[name] = log.recovery_point
                self._note_start(name, log)
        self._write_offsets(files.RECOVERY_POINT_CHECKPOINT_FILE, self._recovery_points)
        self._write_offsets(files.LOG_START_CHECKPOINT_FILE, self._starts)

    def _note_start(self, name: TopicPartition, log: Log) -> None:
        """Kafka lists only logs that start behind their first segment's base."""
        if log.log_start_offset > log.segments[0].base_offset:
            self._starts[name] = log.log_start_offset
        else:
            self._starts.pop(name, None)

    def _write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        ordered = dict(sorted(offsets.items()))
        files.write_offset_checkpoint(self.env.files, f"{self.path}/{name}", ordered)

    def _lower_checkpoints(self, name: TopicPartition, offset: int) -> None:
        if self._recovery_points.get(name, 0) > offset:
            self._recovery_points[name] = offset
            self._write_offsets(files.RECOVERY_POINT_CHECKPOINT_FILE, self._recovery_points)
        if self._starts.get(name, 0) > offset:
            self._save_log_start(name, offset)

    def _save_log_start(self, name: TopicPartition, offset: int) -> None:
        self._starts[name] = offset
        self._write_offsets(files.LOG_START_CHECKPOINT_FILE, self._starts)

    def close(self) -> None:
        """Close every partition; where all went well, leave the mark of a clean stop.

        Raises:
            StorageFailure: A partition could not be closed; the next start recovers.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self.is_writable:
                self._close_writable()
        finally:
            self._release()

    def _close_writable(self) -> None:
        failure: StorageFailure | None = None
        for log in self._logs.values():
            try:
                log.close()
            except StorageFailure as error:
                failure = failure or error
            failure = failure or log.failure
        try:
            self._write_checkpoints()
            if failure is None:
                files.write_clean_shutdown(self.env.files, self.path)
        except OSError as error:
            raise as_storage_failure(error, self.path, "close") from error
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Drop all handles and the lock without writing anything, as a crash would."""
        self._is_closed = True
        self._release()

    def _release(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._pool.close()
        self._maps.clear()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _ensure_writable(self) -> None:
        if self._is_closed:
            raise Closed(f"{self.path}: the directory is closed")
        if not self.is_writable:
            raise ReadOnly(f"{self.path}: opened for reading; open it with writable=True")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


__all__ = ["NO_TOPIC_ID", "LogDir", "LogDirOptions"]
