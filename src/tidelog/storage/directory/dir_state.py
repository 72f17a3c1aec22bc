"""The part of an open directory that loads, locks, checkpoints and closes it.

`DirectoryState` holds what every call shares; what people call is in `log_dir.LogDir`.
What is remembered of its logs' offsets is in `offset_checkpoints`.

Source: Kafka 4.x LogManager; KAFKA-10471 (the marker goes before anything is loaded).
"""

import logging
import posixpath
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.closing import Closing
from tidelog.env import Env, HeldHere, LockHandle, forget, os_env
from tidelog.errors import (
    Closed,
    DamagedLog,
    DirectoryLocked,
    InvalidRequest,
    ReadOnly,
    StorageFailure,
    TidelogError,
)
from tidelog.storage import commits, files, text_files
from tidelog.storage.clocks.append_clock import ClockWatch
from tidelog.storage.directory.broker_files import read_kept_defaults
from tidelog.storage.directory.offset_checkpoints import OffsetCheckpoints
from tidelog.storage.directory.open_partitions import LogOpenings
from tidelog.storage.directory.topic_registry import PartitionDirs, TopicRegistry
from tidelog.storage.log.log import Log
from tidelog.storage.log.producers import PRODUCER_ID_EXPIRATION_MS
from tidelog.storage.log.record_rules import BodyCheck, check_body
from tidelog.storage.open_files import FilePool, MapCache, as_storage_failure, typed_reads
from tidelog.storage.segment.log_end import RecordedEnd
from tidelog.storage.text_files import read_meta_properties, write_meta_properties
from tidelog.storage.tier.tier_files import TierFiles, tier_files_of
from tidelog.storage.tier.tier_record import TierAccess
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.topic_registry import TopicInfo
    from tidelog.storage.log.durability import Deferral
    from tidelog.storage.log.log_reader import LogReader


_LOGGER: Final = logging.getLogger(__name__)


DELETED_DIR_SUFFIX: Final = "-delete"


# Nothing else is ours to remove, whatever people keep beside the partitions.
_DELETED_DIR: Final = re.compile(r".+-[0-9]{1,10}\.[0-9a-f]{32}-delete", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirOptions:
    """How a directory is opened.

    Attributes:
        writable: Take the lock, recover where needed, allow changes; else only read.
        create: Make the directory where it is missing (implies `writable`).
        body_check: The validator's pass over records, plain or a kernel.
        topic_defaults: Settings, under a broker's names, of topics that have none of their own,
            for writing. None where no broker says them: then what it keeps here holds.
        prepare: Called under the lock before any partition is opened, to mend what would keep one
            from it.
        deferrals: Makes what does the work that a log leaves for later; None to do it at once.
        producer_expiration_ms: `producer.id.expiration.ms`: producers that were silent for so long
            are forgotten when a partition is opened. A broker's may change.
        leaves_set_aside: Whether directories that deleted topics have left are only found, for
            `LogDir.remove_set_aside`, and don't hold the opening up.
    """

    writable: bool = False
    create: bool = False
    body_check: BodyCheck = check_body
    topic_defaults: Mapping[str, str] | None = None
    prepare: "Callable[[DirectoryState], None] | None" = None
    deferrals: "Callable[[], Deferral] | None" = None
    producer_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    leaves_set_aside: bool = False


def reach(path: str, env: Env | None) -> tuple[str, Env]:
    """The path of a URL of a file, else the path as it is, and surroundings that can read it."""
    if "://" not in path:
        return path, os_env() if env is None else env
    from tidelog.objects import env_for, local_path  # a start without a store needs none of it

    path = local_path(path)
    return path, env_for(path, env)


class DirectoryState(Closing):
    """A directory of partitions: lock, caches, checkpoints, without the calls on topics."""

    def __init__(self, path: str, env: Env, options: LogDirOptions) -> None:
        self.path = path
        self.env = env
        self.reports: list[str] = []
        self._options = options
        self.producer_expiration_ms = options.producer_expiration_ms
        self.is_writable = options.writable or options.create
        self._pool = FilePool(env.files, write=self.is_writable)
        self._maps = MapCache(env.files)
        self._tiers = TierAccess.over(tier_files_of(env))
        self._checkpoints = OffsetCheckpoints(env.files, path, self.report)
        self._lock: LockHandle | None = None
        self._logs: dict[TopicPartition, Log] = {}
        self._openings = LogOpenings()
        # Recovery points of logs that were given up though their directories may stay.
        self._given_up: dict[TopicPartition, int] = {}
        self._readers: dict[TopicPartition, LogReader] = {}
        self._commits = commits.CommitRecords(env, path)
        # Records of swaps that a thread of this process is at, published or not yet, and the
        # partition of each, which nobody else changes meanwhile.
        self.under_way: dict[str, TopicPartition] = {}
        self._was_clean = True
        # Whether whoever had it last left the mark of a clean stop; and files of which it is not
        # known what the disk has, which keep us from leaving one.
        self.was_stopped_cleanly = False
        self.doubts: set[str] = set()
        # Directories of deleted topics that the opening has left for `remove_set_aside`.
        self.set_aside: list[str] = []
        # Of a reader: the topics, and the settings of those that have none of their own.
        self._found_topics: Mapping[str, TopicInfo] | None = None
        self._found_defaults: Mapping[str, str] = {}
        # Of a reader: whether recovery points were read, and the mark of a clean stop was there.
        self._knows_ends = self._has_clean_mark = False
        self._is_closed = False
        # Topics are created beside the loop that has the directory, one change at a time.
        self._topic_change = threading.Lock()

    @property
    def tier_files(self) -> TierFiles:
        """Reads what lies in tiers, and opens their stores."""
        return self._tiers.files

    def report(self, line: str) -> None:
        """Note what was found damaged and made good, or what recovery did; it is logged, too."""
        self.reports.append(line)
        _LOGGER.warning("%s", line)

    def _load(self) -> None:
        files_, options = self.env.files, self._options
        if options.create:
            try:
                self._make_durably()
            except OSError as error:
                raise as_storage_failure(error, self.path, "create") from error
        forget(files_, self.path)
        if not files_.exists(self.path):
            raise InvalidRequest(f"{self.path}: there is no such directory")
        if not self.is_writable:
            with typed_reads(self.path):
                self._checkpoints.load_starts()
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
        accepted_ms = text_files.read_accepted_clock(self.env.files, self.path, self.report)
        self._watch = ClockWatch(self.env.clock, accepted_ms=accepted_ms)
        if read_meta_properties(self.env.files, self.path) is None:
            write_meta_properties(self.env.files, self.path, self._new_meta_properties())
        self._was_clean = self._take_clean_marker()
        self._purge_deleted_topics()
        for line in commits.replay(self.env.files, self.path):
            self.report(line)
        defaults = self._read_defaults()
        self._registry = TopicRegistry(self.env.files, self.path, defaults, self.env.random)
        keeps_notes = self._options.deferrals is not None
        self._dirs = PartitionDirs(self.env.files, self.path, keeps_notes=keeps_notes)
        for line in self._registry.notes:
            self.report(line)
        self._checkpoints.load()
        self._remove_leftovers()
        if self._options.prepare is not None:
            self._options.prepare(self)
        if not self._was_clean:
            self._load_after_hard_stop()

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

    def _read_defaults(self) -> Mapping[str, str]:
        """Return settings of topics that have none of their own: given, or as a broker had them."""
        if self._options.topic_defaults is not None:
            return self._options.topic_defaults
        return read_kept_defaults(self.env.files, self.path, self.report)

    @property
    def was_clean(self) -> bool:
        """Whether the directory was closed by whoever had it last, or is new."""
        return self._was_clean

    def _take_clean_marker(self) -> bool:
        """Whether nothing needs recovery: the marker was there, or there are no partitions yet."""
        self.was_stopped_cleanly = text_files.take_clean_shutdown(self.env.files, self.path)
        if self.was_stopped_cleanly:
            return True
        entries = self.env.files.list_dir(self.path)
        return not any(e.is_dir and files.parse_partition_dir(e.name) for e in entries)

    def _purge_deleted_topics(self) -> None:
        entries = self.env.files.list_dir(self.path)
        names = [each.name for each in entries if each.is_dir and _DELETED_DIR.fullmatch(each.name)]
        paths = [f"{self.path}/{name}" for name in names]
        if self._options.leaves_set_aside:
            self.set_aside = paths
            return
        for path in paths:
            self._remove_tree(path)

    def _remove_leftovers(self) -> None:
        """Remove what deleted topics have left under their own names, and forget these."""
        deleted = self._registry.deleted - self._registry.topics.keys()
        if deleted:
            for partition in self._registry.leftovers:
                self._remove_tree(f"{self.path}/{files.partition_dir_name(partition)}")
            self._checkpoints.forget(deleted)
            self.env.files.sync_dir(self.path)
        self._registry.forget_deleted(list(self._registry.deleted))
        self._registry.tidy()

    def _remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; of a link only the link, never what it leads to."""
        with suppress(IsADirectoryError, PermissionError):
            self.env.files.remove(path)
            return
        for entry in self.env.files.list_dir(path):
            if entry.is_dir:
                self._remove_tree(f"{path}/{entry.name}")
            else:
                self.env.files.remove(f"{path}/{entry.name}")
        self.env.files.remove_dir(path)

    def _recorded_end(self, name: TopicPartition, *, is_dense: bool, fresh: bool) -> RecordedEnd:
        """Return the end of a log by its checkpoints, for readers; read them anew if `fresh`."""
        with typed_reads(self.path):
            if fresh or not self._knows_ends:
                self._checkpoints.load_recovery_points()
                # Behind them: where the mark is there now, no writer has begun since they were
                # written, and each is its log's end.
                mark = f"{self.path}/{files.CLEAN_SHUTDOWN_FILE}"
                self._has_clean_mark = self.env.files.exists(mark)
                self._knows_ends = True
        points = self._checkpoints.recovery_points
        is_end = self._has_clean_mark and name in points
        return RecordedEnd(points.get(name, 0), is_end=is_end, is_dense=is_dense)

    def _start_of(self, name: TopicPartition, recorded: RecordedEnd) -> int:
        """A log's start by its checkpoint; 0 where the end of a clean stop contradicts it."""
        start = self._checkpoints.starts.get(name, 0)
        if not recorded.is_end or start <= recorded.recovery_point:
            return start
        self.report(
            f"{self.path}/{files.LOG_START_CHECKPOINT_FILE}: {name} starts at {start}, above its"
            f" end {recorded.recovery_point} at the clean stop; not believed"
        )
        return 0

    def _load_after_hard_stop(self) -> None:
        """Open, and so recover, every partition."""
        raise AssertionError("LogDir knows the partitions")

    def _take_opened(self, name: TopicPartition) -> Log | None:
        """Take in a log that was opened beside; None where it was not. Errors as `LogDir.log`."""
        found = self._openings.take(name)
        if found is not None:
            self._logs[name] = found
        return found

    def settle_partition(self, name: TopicPartition) -> None:
        """Make durable now what a new partition needs, not when it is opened.

        For any thread, where partitions are going to be opened in one that may not wait.

        Raises:
            StorageFailure: The disk failed; opening a partition tries again.
        """
        with typed_reads(self.path):
            self._dirs.settle(name)

    # -- checkpoints and closing -------------------------------------------------------------

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
        self.note_checkpoints()()

    def note_checkpoints(self) -> Callable[[], None]:
        """Take note of recovery points and log starts as they are now.

        Returns:
            What writes them, for any thread; raises StorageFailure.
        """
        self._ensure_writable()
        self._note_checkpoints()

        def save() -> None:
            try:
                self._checkpoints.save()
            except OSError as error:
                raise as_storage_failure(error, self.path, "checkpoint") from error

        return save

    def _note_checkpoints(self) -> None:
        for name, log in self._logs.items():
            if log.failure is None:
                self._checkpoints.note(name, log)

    def cleaner_offset(self, name: TopicPartition) -> int | None:
        """Offset below which a partition was compacted, None where it never was.

        Raises:
            StorageFailure: The disk failed.
        """
        return self._checkpoints.cleaner_offset(name)

    def note_cleaned(self, name: TopicPartition, offset: int | None) -> None:
        """Remember, durably, up to where a partition is compacted; None to forget it.

        Safe in any thread.

        Raises:
            StorageFailure: The disk failed.
        """
        self._checkpoints.note_cleaned(name, offset)

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

    def damage(self) -> DamagedLog | None:
        """Why a partition takes no appends since its opening, the first one's; None for no such."""
        failures = (log.failure for log in self._logs.values())
        return next((each.again() for each in failures if isinstance(each, DamagedLog)), None)

    def _close_writable(self) -> None:
        failure: StorageFailure | None = None
        # Damage that a clean stop has left changes nothing; other damage is met again by recovery.
        has_new_damage = False
        for name in self._openings.names():
            with suppress(TidelogError, OSError):  # nobody has seen it open
                self._take_opened(name)
        for log in self._logs.values():
            try:
                log.close()
            except StorageFailure as error:
                failure = failure or error
            if isinstance(log.failure, DamagedLog):
                has_new_damage |= not self._was_clean
            else:
                failure = failure or log.failure
        try:
            self._dirs.settle_all()
            self._note_checkpoints()
            self._checkpoints.save()
            self._registry.tidy()
            is_clean = failure is None and not has_new_damage
            if is_clean and not self._given_up and not self.doubts:
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
        for log in self._logs.values():
            log.drop_caches()  # whoever opens it next may cut the last segment
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
