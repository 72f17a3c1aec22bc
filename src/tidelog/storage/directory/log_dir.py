"""An open directory of partitions: lock, mark of a clean stop, clock, opening and closing.

`LogDir` combines `TopicAdmin` (topics), `OpenPartitions` (open logs and readers),
`OffsetCheckpoints` and `CommitRecords`. `LogDir` owns everything that concerns the whole directory.
Only the holder of the lock changes topics and logs. Readers, and writers of staged files, need no
lock. After a clean stop, partitions are opened at first use. After a hard stop, the opening of the
directory opens all partitions, because each of them needs recovery.

Among the files at the top of the directory are Kafka's own (`meta.properties`, the checkpoints,
`.lock`, `.kafka_cleanshutdown`) and `tidelog-topics.json` with the topics' settings.

Source: Kafka 4.x LogManager; KAFKA-10471 (the mark of a clean stop is removed before anything is
loaded).
"""

import logging
import posixpath
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from tidelog.closing import Closing
from tidelog.config import ConfigNote
from tidelog.env import Env, HeldHere, LockHandle, forget, is_remote, os_env
from tidelog.errors import (
    Closed,
    DirectoryLocked,
    InvalidRequest,
    MissingFile,
    ReadOnly,
    TidelogError,
)
from tidelog.storage import commits, files, text_files
from tidelog.storage.clocks.append_clock import ClockWatch
from tidelog.storage.directory.offset_checkpoints import OffsetCheckpoints
from tidelog.storage.directory.open_partitions import OpeningRules, OpenPartitions
from tidelog.storage.directory.topic_admin import DirectoryContext, TopicAdmin
from tidelog.storage.directory.topic_registry import NewTopic, TopicInfo, find_partitions
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.producers import PRODUCER_ID_EXPIRATION_MS
from tidelog.storage.log.record_rules import BodyCheck, check_body
from tidelog.storage.open_files import as_storage_failure, typed_reads
from tidelog.types import ClockName, IsolationLevel, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.durability import Deferral
    from tidelog.storage.log.log import Log, LogAccess
    from tidelog.storage.tier.tier_files import TierFiles


_LOGGER: Final = logging.getLogger(__name__)


class LogDirOptions(NamedTuple):
    """Options of opening a directory.

    Attributes:
        writable: Whether to take the lock, recover if needed, and allow changes; if false, nothing
            is written to the directory.
        create: Whether to create the directory if it is missing (implies `writable`).
        body_check: Function by which the validator checks records: plain Python, or the kernel.
        topic_defaults: Values of settings that a topic does not set, by the names of broker
            settings. If None, the values that a broker stored in the directory apply.
        prepare: Called under the lock before any partition is opened, to repair damage that would
            prevent the opening.
        deferrals: Creates the object that runs a log's deferred work; None to run such work
            immediately.
        producer_expiration_ms: `producer.id.expiration.ms`: producers idle for this time are
            dropped when a partition is opened. A broker may change this limit at run time.
        leaves_set_aside: Whether opening only lists the renamed directories of deleted topics, and
            `TopicAdmin.remove_set_aside` removes them later. Removing the directories could delay
            the opening.
    """

    writable: bool = False
    create: bool = False
    body_check: BodyCheck = check_body
    topic_defaults: Mapping[str, str] | None = None
    prepare: "Callable[[LogDir], None] | None" = None
    deferrals: "Callable[[], Deferral] | None" = None
    producer_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    leaves_set_aside: bool = False


def reach(path: str, env: Env | None) -> tuple[str, Env]:
    """Return a path and an Env that can read it.

    For a file URL, returns the path in the URL; other paths and URLs are returned unchanged. Raises
    the errors of `env_for`.
    """
    if "://" not in path:
        return path, os_env() if env is None else env
    from tidelog.objects import env_for, local_path  # imported here: most directories need no store

    path = local_path(path)
    return path, env_for(path, env)


class DirectoryAccess(Protocol):
    """The calls that long jobs (attach, cleaner, mover, erasure) make on an open directory.

    `LogDir` offers these calls to its own thread. In a broker, the `LogDir` belongs to the event
    loop, and jobs in other threads get a proxy with these calls. So a long job must not use other
    methods of a directory.
    """

    @property
    def path(self) -> str:
        """Path of the directory."""

    @property
    def env(self) -> Env:
        """Files, clock and randomness."""

    @property
    def is_writable(self) -> bool:
        """Whether the directory is open for writing."""

    @property
    def commit_records(self) -> commits.CommitRecords:
        """Commit records on disk, and the commits in progress."""

    @property
    def tier_files(self) -> "TierFiles":
        """Object that reads data in tiers, and opens the stores of tiers."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name."""

    def topic(self, name: str) -> TopicInfo:
        """Return one topic; raises UnknownTopic."""

    def knows_age_limit(self, name: str) -> bool:
        """Return whether a topic's `retention.ms` is known: set for the topic or by a broker."""

    def reader(self, topic: str, partition: int) -> LogView:
        """Return a partition's log for reading."""

    def log(self, topic: str, partition: int) -> "LogAccess":
        """Return a partition's log for writing; the log is opened at first use."""

    def flush(self) -> None:
        """Make everything that was appended durable."""

    def accept_clock(self) -> int:
        """Allow appends after a clock jump, durably; return the latest accepted append time."""

    def cleaner_offset(self, name: TopicPartition) -> int | None:
        """Return the offset below which a partition is compacted; None if none is stored."""

    def note_cleaned(self, name: TopicPartition, offset: int | None) -> None:
        """Store the offset below which a partition is compacted; None removes the stored offset."""


class LogDir(Closing):
    """A directory of partitions, open for reading or for writing.

    After `close`, the methods that change the directory raise Closed.

    Attributes:
        path: Path of the directory.
        env: Files, clock and randomness.
        is_writable: Whether the directory is open for writing.
        reports: Notes on damage that was found, and on recovery.
        was_stopped_cleanly: For a writer, whether the previous writer stopped cleanly; False for a
            reader.
        doubts: Files whose content on disk is unknown. If there are any, `close` does not write the
            mark of a clean stop.
        commit_records: Commit records on disk, and the commits in progress.
        topic_admin: Finds, creates, grows, alters and deletes topics.
        open_partitions: The open logs and readers.
    """

    def __init__(self, path: str, env: Env, options: LogDirOptions) -> None:
        """Create the object without reading the directory; `open` reads it."""
        self.path = path
        self.env = env
        self.is_writable = options.writable or options.create
        self.reports: list[str] = []
        self.was_stopped_cleanly = False
        self.doubts: set[str] = set()
        self._options = options
        self._is_closed = False
        self._lock: LockHandle | None = None
        # For a reader: state of the directory when topics and checkpoints were read.
        self._stamp: files.FolderStamp | None = None
        self._watch = ClockWatch(env.clock)
        self._checkpoints = OffsetCheckpoints(env.files, path, self.report)
        self.commit_records = commits.CommitRecords(env, path)
        context = DirectoryContext(
            env=env,
            path=path,
            is_writable=self.is_writable,
            checkpoints=self._checkpoints,
            report=self.report,
            ensure_writable=self._ensure_writable,
        )
        self.topic_admin = TopicAdmin(
            context,
            self._detach,
            defaults=options.topic_defaults,
            keeps_notes=options.deferrals is not None,
            leaves_set_aside=options.leaves_set_aside,
        )
        rules = OpeningRules(
            watch=self._watch, body_check=options.body_check, deferrals=options.deferrals
        )
        self.open_partitions = OpenPartitions(
            context, self.topic_admin, self.commit_records, rules, options.producer_expiration_ms
        )

    def _detach(self, topics: Collection[str]) -> Callable[[], None]:
        return self.open_partitions.detach(topics)

    # -- opening -----------------------------------------------------------------------------

    @classmethod
    def open(
        cls, path: str, *, env: Env | None = None, options: LogDirOptions | None = None
    ) -> Self:
        """Open a directory of partitions.

        Args:
            path: A path, or the URL of an object store (docs/objects.md).
            env: Files, clock and randomness; the local machine's if None.
            options: Options; if None, the directory is opened for reading.

        Raises:
            DirectoryLocked: The directory is to be opened for writing, but this or another process
                has it open for writing already.
            InvalidRequest: The directory does not exist, the URL is invalid, or the directory of
                one partition is to be opened for writing.
            ReadOnly: A directory in an object store can't be opened for writing.
            CorruptFile, UnsupportedVersion: A writer can't read the list of topics, a commit record
                or another file at the top of the directory. (A reader reads topics later.)
            ConfigError, MissingDependency: The object store can't be opened.
            StorageFailure: The disk failed, or the store did not respond.
        """
        path, env = reach(path, env)
        directory = cls(path.rstrip("/") or "/", env, options or LogDirOptions())
        if directory.is_writable and is_remote(directory.env.files, path):
            raise ReadOnly(
                f"{path}: a directory in an object store is read only; write to a directory on"
                " disk, and copy that to the store or move its finished segments there with"
                " `tidelog tier --data DIR`"
            )
        try:
            directory._load()
        except BaseException:
            directory._release()
            raise
        return directory

    def _load(self) -> None:
        if self._options.create:
            try:
                self._make_durably()
            except OSError as error:
                raise as_storage_failure(error, self.path, "create") from error
        forget(self.env.files, self.path)
        if not self.env.files.exists(self.path):
            raise InvalidRequest(f"{self.path}: no such directory")
        if not self.is_writable:
            with typed_reads(self.path):
                self._checkpoints.refresh()
            return
        try:
            self._load_writable()
        except OSError as error:
            raise as_storage_failure(error, self.path, "open") from error

    def _make_durably(self) -> None:
        """Create the directory and its missing parents, and sync their names."""
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
        fs = self.env.files
        if files.parse_partition_dir(posixpath.basename(posixpath.abspath(self.path))) is not None:
            # The name has the form TOPIC-PARTITION. If this is the directory of one partition, it
            # is refused here, before a file is written. A link with another name to such a
            # directory is refused only when the topics are read.
            find_partitions(fs, self.path)
        self._lock = self._take_lock()
        self._watch.accept(text_files.read_accepted_clock(fs, self.path, self.report))
        if text_files.read_meta_properties(fs, self.path) is None:
            text_files.write_meta_properties(fs, self.path, self._new_meta_properties())
        was_clean = self._take_clean_marker()
        self.topic_admin.remove_deleted()
        for line in commits.replay(fs, self.path):
            self.report(line)
        self.topic_admin.load()
        self._checkpoints.load(was_clean=was_clean)
        self.topic_admin.remove_leftovers()
        if self._options.prepare is not None:
            self._options.prepare(self)
        self.topic_admin.report_missing()
        if not was_clean:
            self._recover()

    def _take_lock(self) -> LockHandle:
        path = f"{self.path}/{files.LOCK_FILE}"
        try:
            return self.env.files.lock(path)
        except BlockingIOError as error:
            if isinstance(error, HeldHere):
                who = "this process has it open for writing already; close it there"
            else:
                who = f"another process has it open for writing (it holds {path}); stop it"
            raise DirectoryLocked(
                f"{self.path}: {who}, or open the directory for reading"
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
        """Remove the mark of a clean stop; return True if no partition needs recovery.

        No partition needs recovery if the mark existed, or if there are no partitions.
        """
        self.was_stopped_cleanly = text_files.take_clean_shutdown(self.env.files, self.path)
        if self.was_stopped_cleanly:
            return True
        entries = self.env.files.list_dir(self.path)
        return not any(e.is_dir and files.parse_partition_dir(e.name) for e in entries)

    def _recover(self) -> None:
        """Recover every partition by opening it."""
        for name in self.topic_admin.present():
            self.open_partitions.log(name)
        self.env.files.sync_dir(self.path)  # names of partition directories may be unsynced, too

    @property
    def was_clean(self) -> bool:
        """Whether no partition had to be recovered at the opening; always True for a reader."""
        return self._checkpoints.was_clean

    @property
    def tier_files(self) -> "TierFiles":
        """Object that reads data in tiers, and opens the stores of tiers."""
        return self.open_partitions.tier_files

    def report(self, line: str) -> None:
        """Add a line about damage or an action of recovery to `reports`, and log it.

        If a reader finds the same damage again after a `refresh`, the line is not repeated.
        """
        if not self.is_writable and line in self.reports:
            return
        self.reports.append(line)
        _LOGGER.warning("%s", line)

    def refresh(self) -> None:
        """Make the next calls return the topics, log starts and records that are on disk now.

        Does nothing in a directory that is open for writing.

        Raises:
            Closed: The directory was closed.
            MissingFile: The directory was removed.
            StorageFailure: The disk failed.
        """
        self._ensure_open()
        if self.is_writable:
            return
        forget(self.env.files, self.path)
        with typed_reads(self.path):
            try:
                stamp = files.settled_stamp(self.env, self.path)
            except FileNotFoundError as error:
                reason = "the directory no longer exists"
                raise MissingFile(self.path, "read", reason) from error
            if stamp is None or stamp != self._stamp:
                self.topic_admin.refresh()
                self._checkpoints.refresh()
                self._stamp = stamp
        self.open_partitions.refresh()

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self.path}: the directory is closed")

    def _ensure_writable(self) -> None:
        self._ensure_open()
        if not self.is_writable:
            raise ReadOnly(f"{self.path}: opened for reading; open it with writable=True")

    # -- topics and partitions ---------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name; see `TopicAdmin.all`."""
        return self.topic_admin.all()

    def topic(self, name: str) -> TopicInfo:
        """Return one topic; raises UnknownTopic, which suggests existing names."""
        return self.topic_admin.get(name)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic, ascending; see `TopicAdmin.partitions`."""
        return self.topic_admin.partitions(topic)

    def knows_age_limit(self, name: str) -> bool:
        """Return whether a topic's `retention.ms` is known; see `TopicAdmin.knows_age_limit`."""
        return self.topic_admin.knows_age_limit(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        topic_id: uuid.UUID | None = None,
    ) -> tuple[TopicInfo, list[ConfigNote]]:
        """Create a topic and its partition directories; return the topic, and notes on settings.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, ConfigError: The topic can't be created;
                nothing was changed.
            ReadOnly: The directory was opened for reading.
            StorageFailure: The disk failed.
        """
        new_topic = NewTopic(name, partitions, config or {}, topic_id)
        (outcome,) = self.topic_admin.create([new_topic])
        if isinstance(outcome, TidelogError):
            raise outcome
        return outcome

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Increase a topic's number of partitions to `partitions`.

        Raises:
            UnknownTopic, InvalidPartitions, ReadOnly: The number can't be changed; nothing was
                changed.
            StorageFailure: The disk failed.
        """
        (grown,) = self.topic_admin.grow({name: partitions})
        if isinstance(grown, TidelogError):
            raise grown
        return grown

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """Change a topic's stored settings, and the settings that its open partitions use.

        The value None resets a setting to its default.

        Raises:
            UnknownTopic, ConfigError, ReadOnly: Nothing was changed.
            StorageFailure: The write failed. The settings in use are unchanged, but the file may
                contain the new settings.
        """
        notes = self.topic_admin.alter(name, changes)
        self.open_partitions.follow_settings(name)
        return notes

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records; see `TopicAdmin.delete`."""
        self.topic_admin.delete([name])

    def reader(self, topic: str, partition: int) -> LogView:
        """Return a partition's log for reading; see `OpenPartitions.reader`."""
        return self.open_partitions.reader(TopicPartition(topic, partition))

    def log(self, topic: str, partition: int) -> "Log":
        """Return a partition's log for writing; see `OpenPartitions.log`."""
        return self.open_partitions.log(TopicPartition(topic, partition))

    def reopen(self, topic: str, partition: int) -> "Log":
        """Reopen an offline partition; see `OpenPartitions.reopen`."""
        return self.open_partitions.reopen(TopicPartition(topic, partition))

    # -- offsets of times, first and end offsets (KIP-79) ------------------------------------

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, clock: ClockName = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, the first record whose time is at or after the given time.

        Args:
            times: Time in ms for each partition.
            clock: The clock of these times.

        Returns:
            The record's offset and time for every requested partition; None if no record has the
            given time or a later one. On the append clock, the result also has the number of
            records before this record whose append time is unknown. Source: KIP-79.

        Raises:
            ValueError: A time is negative; nothing was looked up.
            UnknownTopic: A topic or partition does not exist.
            MissingFile: The topics file lists a partition that has no directory.
            CorruptData: A batch that a search reads is damaged.
            OffsetsGone: Offsets before a result are lost, so the right result may be lost, too.
            StorageFailure: The disk failed.
        """
        for name, timestamp_ms in times.items():
            if timestamp_ms < 0:
                raise ValueError(f"{name}: time {timestamp_ms} is negative")
        offsets: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for name, time_ms in times.items():
            reader = self.reader(name.topic, name.partition)
            answer = reader.offset_for_time(time_ms, clock=clock)
            if answer is not None and clock is ClockName.APPEND:
                without_time = reader.without_append_time(answer.offset)
                answer = answer._replace(without_time=without_time)
            offsets[name] = answer
        return offsets

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first readable offset of each partition. Source: KIP-79."""
        return {p: self.reader(p.topic, p.partition).log_start_offset for p in partitions}

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last visible record of each partition. Source: KIP-79."""
        return {p: self.reader(p.topic, p.partition).end_offset(isolation) for p in partitions}

    # -- clock and reserve -------------------------------------------------------------------

    def accept_clock(self) -> int:
        """Allow appends after a clock jump; the permission is stored durably.

        See `tidelog.storage.clocks.append_clock`.

        Opens all partitions. Partitions that can't be opened are ignored.

        Returns:
            The latest append time that was accepted, in ms; -1 if no append time is known and none
            was accepted before.

        Raises:
            ReadOnly: The directory was opened for reading.
            StorageFailure: The accepted append time can't be stored; nothing was accepted.
        """
        self._ensure_writable()
        for name in self.topic_admin.present():
            with suppress(TidelogError):
                self.open_partitions.log(name)
        accepted_ms = self.append_time_to_accept()
        self.keep_accepted_clock(accepted_ms)
        self.take_clock(accepted_ms)
        return accepted_ms

    def append_time_to_accept(self) -> int:
        """Return the latest append time of all open partitions, in ms.

        If a later append time was accepted before, returns that time. Returns -1 if no append time
        is known and none was accepted.
        """
        return max(self._watch.accepted_ms, self.open_partitions.last_append_ms)

    def keep_accepted_clock(self, accepted_ms: int) -> None:
        """Store durably the append time that `take_clock` will accept. Any thread may call this.

        Raises:
            StorageFailure: The disk failed.
        """
        try:
            text_files.write_accepted_clock(self.env.files, self.path, accepted_ms)
        except OSError as error:
            raise as_storage_failure(error, self.path, "accept the clock") from error

    def take_clock(self, accepted_ms: int) -> None:
        """Accept the wall clock as it is now.

        Afterwards, append times up to `accepted_ms`, inclusive, may lie ahead of the wall clock.
        """
        self._watch.accept(accepted_ms)

    def keep_reserve(self) -> None:
        """Reserve disk space, so that changes can be stored even if the disk is full.

        See `files.RESERVE_FILE`. Any thread may call this.

        Raises:
            StorageFailure: The disk failed. If the disk is full, no error is raised.
        """
        try:
            files.keep_reserve(self.env.files, self.path)
        except OSError as error:
            raise as_storage_failure(error, self.path, "keep a reserve") from error

    # -- checkpoints and closing -------------------------------------------------------------

    def flush(self) -> None:
        """Make everything that was appended durable, except in offline partitions.

        Raises:
            ReadOnly: The directory was opened for reading.
            StorageFailure: A partition's disk failed; that partition is offline.
        """
        self._ensure_writable()
        self.open_partitions.flush()

    def checkpoint(self) -> None:
        """Write recovery points and log starts, so that recovery after a hard stop takes less time.

        Raises:
            ReadOnly: The directory was opened for reading.
            StorageFailure: The disk failed.
        """
        self.note_checkpoints()()

    def note_checkpoints(self) -> Callable[[], None]:
        """Update the checkpoints in memory to the current recovery points and log starts.

        Returns:
            A function that writes the checkpoints. Any thread may call the function. The function
            raises StorageFailure if the disk fails.

        Raises:
            ReadOnly: The directory was opened for reading.
        """
        self._ensure_writable()
        self.open_partitions.note_checkpoints()

        def save() -> None:
            try:
                self._checkpoints.save()
            except OSError as error:
                raise as_storage_failure(error, self.path, "checkpoint") from error

        return save

    def cleaner_offset(self, name: TopicPartition) -> int | None:
        """Return a partition's cleaner offset; see `OffsetCheckpoints.cleaner_offset`."""
        return self._checkpoints.cleaner_offset(name)

    def note_cleaned(self, name: TopicPartition, offset: int | None) -> None:
        """Store a partition's cleaner offset; see `OffsetCheckpoints.note_cleaned`."""
        self._checkpoints.note_cleaned(name, offset)

    def close(self) -> None:
        """Close every partition, and write the mark of a clean stop unless a failure prevents that.

        The mark is also not written if there are `doubts`, if damage was found after a hard stop,
        or if the deletion of a topic is unfinished.

        Raises:
            StorageFailure: A disk failed; the next open for writing recovers the partitions.
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
        failure, is_clean = self.open_partitions.close()
        try:
            self.topic_admin.settle_all()
            self.open_partitions.note_checkpoints()
            self._checkpoints.save()
            self.topic_admin.tidy()
            if is_clean and not self.doubts:
                text_files.write_clean_shutdown(self.env.files, self.path)
        except OSError as error:
            raise as_storage_failure(error, self.path, "close") from error
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Drop all handles and the lock without writing anything, as a crash would."""
        self._is_closed = True
        self._release()

    def _release(self) -> None:
        self.open_partitions.release()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()
