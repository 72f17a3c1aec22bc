"""Finds, creates, grows, alters and deletes topics of an open directory, and their directories.

`TopicAdmin` owns the registry of topics, the directories of their partitions, and the lock that
serializes changes. `TopicAdmin` opens no log: `OpenPartitions` opens logs, and gives up the logs of
topics that are deleted.

New partition directories are not synced one by one: at the end of a call, one sync of the directory
of topics makes the names of all new partition directories durable. The registry's file lists the
topic with its id, so a missing directory can be created when the partition is opened. A partition's
`partition.metadata` is written durably before the partition takes its first record, as in Kafka. It
is also written before the directory of topics is marked as cleanly stopped. A power loss before
this durable write can leave `partition.metadata` missing or torn. A missing or torn
`partition.metadata` is written again, with the registry's topic id.

All topics of one call are deleted by one write of the registry's file, which then lists them as
deleted. While the file lists a topic as deleted, directories with the topic's name are ignored; the
entry stays until these directories are durably renamed. So after a crash each topic is either whole
or deleted, even if some renames were lost. The next open for writing removes directories of
deleted topics that still have their old names. The content of a renamed directory is removed after
the renaming.

Source: Kafka 4.x LogManager (a deleted partition's directory is renamed first; the partition is
removed from the checkpoints).
"""

import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from tidelog.config import ConfigNote
from tidelog.config.topic import TOPIC_CONFIG_BY_NAME
from tidelog.env import Clock, Env, FileSystem
from tidelog.errors import (
    CorruptFile,
    MissingFile,
    StorageFailure,
    TidelogError,
    unknown_partition,
)
from tidelog.storage import commits, files, text_files
from tidelog.storage.directory.broker_files import read_stored_defaults
from tidelog.storage.directory.offset_checkpoints import OffsetCheckpoints
from tidelog.storage.directory.topic_registry import (
    PARTITION_COUNT_LIMIT,
    STRAY_ADVICE,
    CreatedTopic,
    NewTopic,
    TopicInfo,
    TopicRegistry,
    absent_numbers,
    find_topics,
    not_here_error,
    unknown_topic,
)
from tidelog.storage.open_files import as_storage_failure, typed_reads
from tidelog.storage.segment.segment_notes import begin_notes, has_notes
from tidelog.storage.tier.tier_record import restore_advice
from tidelog.types import TopicPartition

_Result = TypeVar("_Result")
DELETED_DIR_SUFFIX: Final = "-delete"

# Name of a deleted partition's renamed directory. Only such directories and the partitions of
# deleted topics are removed; all other directories beside the partitions belong to the user.
_DELETED_DIR: Final = re.compile(r".+-[0-9]{1,10}\.[0-9a-f]{32}-delete", re.ASCII)

# A writer lists new partitions in the topics file before it creates their directories. A reader
# that finds a listed partition without a directory reads again after each of these pauses.
_PAUSES_S: Final = (*[0.002] * 10, *[0.02] * 49)

# If the last change of the directory of topics is older than this number of ms, no partitions are
# being added.
_GROWTH_MS: Final = 1_000

# Gives up the open logs of topics. Returns a function that waits until no thread uses these logs;
# any thread may call the returned function.
Detach = Callable[[Collection[str]], Callable[[], None]]


class DirectoryContext(NamedTuple):
    """Shared state of the parts of an open directory.

    Attributes:
        env: Files, clock and randomness.
        path: Path of the directory.
        is_writable: Whether the directory is open for writing.
        checkpoints: Checkpoints of the directory's logs.
        report: Receives notes on damage that was found, and on recovery.
        ensure_writable: Raises ReadOnly if the directory is open for reading, and Closed if it was
            closed.
    """

    env: Env
    path: str
    is_writable: bool
    checkpoints: OffsetCheckpoints
    report: Callable[[str], None]
    ensure_writable: Callable[[], None]


def find_settled_topics(
    fs: FileSystem,
    path: str,
    defaults: Mapping[str, str] | None = None,
    *,
    clock: Clock,
) -> tuple[dict[str, TopicInfo], list[str]]:
    """Return the result of `find_topics` while a writer may be adding partitions.

    The function waits until each listed partition has its directory. After about a second without
    new directories it stops waiting, because the missing directories are lost, not being created.
    It does not wait if, according to `clock`, the directory of topics last changed more than
    `_GROWTH_MS` ago.
    """
    pause, least = threading.Event(), 0
    pauses = iter(_PAUSES_S)
    while True:
        found = find_topics(fs, path, defaults)
        absent = sum(len(absent_numbers(info)) for info in found[0].values())
        if absent < least:
            pauses = iter(_PAUSES_S)
        pause_s, least = next(pauses, None), absent
        if not absent or pause_s is None:
            return found
        if abs(clock.now_ms() - fs.stat(path).mtime_ms) > _GROWTH_MS:
            return found
        pause.wait(pause_s)


class TopicAdmin:
    """The topics of an open directory.

    Any thread may call the methods whose docstrings say so. Only the directory's thread may call
    the other methods. A writer calls `remove_deleted`, `load` and `remove_leftovers` in this order.

    Attributes:
        set_aside: Paths of renamed directories of deleted topics; `remove_set_aside` removes them.
    """

    def __init__(
        self,
        context: DirectoryContext,
        detach: Detach,
        *,
        defaults: Mapping[str, str] | None,
        keeps_notes: bool,
        leaves_set_aside: bool,
    ) -> None:
        """Create the object without reading.

        Args:
            context: Shared state of the directory's parts.
            detach: Gives up the open logs of topics that are deleted.
            defaults: Values of settings that a topic does not set, by the names of broker
                settings; None for the values that a broker stored in the directory.
            keeps_notes: Whether a new partition gets a file of segment notes at its creation.
            leaves_set_aside: If True, `remove_deleted` removes no directory, but lists the
                directories in `set_aside`.
        """
        self._context = context
        self._fs = context.env.files
        self._path = context.path
        self._detach = detach
        self._fixed_defaults = defaults
        self._leaves_set_aside = leaves_set_aside
        self.set_aside: list[str] = []
        self._dirs = PartitionDirs(self._fs, self._path, keeps_notes=keeps_notes)
        # Held while a thread changes the registry.
        self._changing = threading.Lock()
        # For a reader: the topics, and the values of settings that a topic does not set.
        self._topics: Mapping[str, TopicInfo] | None = None
        self._defaults: Mapping[str, str] = {}

    # -- opening -----------------------------------------------------------------------------

    def remove_deleted(self) -> None:
        """Remove the renamed directories of deleted topics, or only list them in `set_aside`."""
        entries = self._fs.list_dir(self._path)
        names = [each.name for each in entries if each.is_dir and _DELETED_DIR.fullmatch(each.name)]
        paths = [f"{self._path}/{name}" for name in names]
        if self._leaves_set_aside:
            self.set_aside = paths
            return
        for path in paths:
            self._remove_tree(path)

    def load(self) -> None:
        """Read the registry for a writer; raises OSError, CorruptFile, UnsupportedVersion."""
        self._registry = TopicRegistry(
            self._fs, self._path, self._read_defaults(), self._context.env.random
        )
        for line in self._registry.notes:
            self._context.report(line)

    def _read_defaults(self) -> Mapping[str, str]:
        if self._fixed_defaults is not None:
            return self._fixed_defaults
        return read_stored_defaults(self._fs, self._path, self._context.report)

    def remove_leftovers(self) -> None:
        """Remove directories of deleted topics that were not renamed, and forget these topics."""
        deleted = self._registry.deleted.keys() - self._registry.topics.keys()
        if deleted:
            for partition in self._registry.leftovers:
                self._remove_tree(self._dirs.path(partition))
            self._context.checkpoints.forget(deleted)
            self._fs.sync_dir(self._path)
        self._registry.forget_deleted(list(self._registry.deleted))
        self._registry.tidy()

    def _remove_tree(self, path: str) -> None:
        """Remove a directory and its content; if the path is a symbolic link, remove the link."""
        with suppress(IsADirectoryError, PermissionError):
            self._fs.remove(path)
            return
        for entry in self._fs.list_dir(path):
            if entry.is_dir:
                self._remove_tree(f"{path}/{entry.name}")
            else:
                self._fs.remove(f"{path}/{entry.name}")
        self._fs.remove_dir(path)

    # -- reading -----------------------------------------------------------------------------

    def all(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name, including foreign topics.

        A reader reads the topics from disk at its first call after a `refresh`. That call raises
        CorruptFile, UnsupportedVersion or StorageFailure if the topics can't be read.
        """
        if self._context.is_writable:
            return self._registry.topics
        if self._topics is None:
            with typed_reads(self._path):
                self._defaults = self._read_defaults()
                clock = self._context.env.clock
                found = find_settled_topics(self._fs, self._path, self._defaults, clock=clock)
            for line in found[1]:
                if line.endswith(STRAY_ADVICE):
                    self._context.report(line)
            self._topics = found[0]
        return self._topics

    def refresh(self) -> None:
        """Make the next call of `all` by a reader read the topics from disk again."""
        self._topics = None

    def get(self, name: str) -> TopicInfo:
        """Return one topic; raises UnknownTopic, which suggests existing names."""
        topics = self.all()
        if name not in topics:
            raise unknown_topic(name, topics)
        return topics[name]

    def topic_of(self, name: TopicPartition) -> TopicInfo:
        """Return the topic of a partition; raises UnknownTopic if there is no such partition."""
        info = self.get(name.topic)
        if info.foreign and name.partition not in info.present:
            raise not_here_error(self._path, info, name.partition)
        if not 0 <= name.partition < info.partitions:
            raise unknown_partition(name.topic, info.partitions, name.partition, self._path)
        return info

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic, ascending; raises UnknownTopic.

        For a foreign topic, returns only partitions whose directories exist, because a broker of a
        cluster has only some of a topic's partitions.
        """
        info = self.get(topic)
        # A topic's partition count can come from the largest partition number of a directory, which
        # can be any number. So a count above `PARTITION_COUNT_LIMIT` is not used.
        is_counted = not info.foreign and info.partitions <= PARTITION_COUNT_LIMIT
        numbers = range(info.partitions) if is_counted else info.present
        return [TopicPartition(topic, number) for number in numbers]

    def present(self) -> list[TopicPartition]:
        """Return the partitions that have a directory, from a writer's registry in memory."""
        return [
            TopicPartition(info.name, number)
            for info in self._registry.topics.values()
            for number in info.present
        ]

    def knows_age_limit(self, name: str) -> bool:
        """Return whether a topic's `retention.ms` is known: set for the topic or by a broker.

        If a directory was opened with defaults, as a broker opens it, every topic's `retention.ms`
        is known, even if it has Kafka's default.
        """
        if self._fixed_defaults is not None or "retention.ms" in self.get(name).given:
            return True
        names = {synonym.name for synonym in TOPIC_CONFIG_BY_NAME["retention.ms"].synonyms}
        is_writable = self._context.is_writable
        defaults = self._registry.defaults if is_writable else self._defaults
        return not names.isdisjoint(defaults)

    def assume_defaults(self, defaults: Mapping[str, str]) -> None:
        """Use the topic defaults that the directory's broker applies.

        The directory must be open for reading. No file is changed.
        """
        assert not self._context.is_writable
        self._fixed_defaults = defaults
        self.refresh()

    # -- creating and altering ---------------------------------------------------------------

    def create(self, new: Sequence[NewTopic]) -> list[CreatedTopic | TidelogError]:
        """Create topics and their partition directories, with one write of the registry.

        Any thread may call this.

        Returns:
            One entry for each topic in `new`, in the same order: the created topic with notes on
                its settings, or the error (InvalidTopic, TopicExists, InvalidPartitions,
                ConfigError, StorageFailure). After a power loss during the call, each topic exists
                completely or not at all.

        Raises:
            ReadOnly: The directory was opened for reading.
            StorageFailure: A deleted topic with one of these names still has a directory that can't
                be renamed, or a version of an external writer that can't be removed.
        """
        self._context.ensure_writable()
        names = [each.name for each in new]
        self._clear_names(names)
        source = self._context.env.random
        with self._changing:
            self._forget_writers(names)
            outcomes = self._registry.create(new, source=source, make=self._dirs.make)
        return self._typed(outcomes, [f"create topic {each.name}" for each in new])

    def ensure_no_stray_among(self, name: str, partitions: int) -> None:
        """Raise InvalidPartitions if `create` or `grow` would refuse this number of partitions.

        `create` and `grow` refuse partitions whose directories have records that are not the
        topic's. Any thread may call this.
        """
        info = self._registry.topics.get(name)
        topic_id = None if info is None else info.topic_id
        self._registry.ensure_no_stray_among(name, partitions, topic_id)

    def _forget_writers(self, names: Iterable[str]) -> None:
        """Remove versions that external writers committed to deleted topics with these names."""
        try:
            deleted = [name for name in names if name not in self._registry.topics]
            commits.forget_topics(self._fs, self._path, deleted)
        except OSError as error:
            raise as_storage_failure(error, self._path, "create topics") from error

    def grow(self, counts: Mapping[str, int]) -> list[TopicInfo | TidelogError]:
        """Increase the numbers of partitions of topics, with one write of the registry.

        Any thread may call this.

        Returns:
            One entry for each topic in `counts`, in the same order: the grown topic, or the error
                (UnknownTopic, InvalidPartitions, StorageFailure).

        Raises:
            ReadOnly: The directory was opened for reading.
        """
        self._context.ensure_writable()
        with self._changing:
            grown = self._registry.grow(counts, make=self._dirs.make)
        return self._typed(grown, [f"add partitions to {name}" for name in counts])

    def _typed(
        self, results: Iterable[_Result | TidelogError | OSError], actions: Iterable[str]
    ) -> list[_Result | TidelogError]:
        return [
            as_storage_failure(each, self._path, action) if isinstance(each, OSError) else each
            for each, action in zip(results, actions, strict=True)
        ]

    def alter(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """Store a topic's changed settings. Any thread may call this.

        The value None resets a setting to its default. Open partitions use the new settings after
        `OpenPartitions.follow_settings`.

        Raises:
            UnknownTopic, ConfigError, ReadOnly: Nothing was changed.
            StorageFailure: The write failed. The settings in use are unchanged, but the file may
                contain the new settings.
        """
        self._context.ensure_writable()
        try:
            with self._changing:
                return self._registry.alter(name, changes, source=self._context.env.random)[1]
        except OSError as error:
            raise as_storage_failure(error, self._path, f"alter topic {name}") from error

    def use_defaults(self, defaults: Mapping[str, str]) -> None:
        """Change the defaults of topics' settings. Any thread may call this.

        Open partitions use the new defaults after `OpenPartitions.follow_settings`.

        Raises:
            ConfigError: The defaults conflict with a topic's own settings; nothing was changed.
            ReadOnly: The directory was opened for reading.
        """
        self._context.ensure_writable()
        with self._changing:
            self._registry.use_defaults(defaults)

    # -- directories of partitions -----------------------------------------------------------

    def settle(self, name: TopicPartition) -> None:
        """Make a new partition's files durable before the partition is opened.

        Any thread may call this.

        Raises:
            StorageFailure: The disk failed. Opening the partition will try the same writes again.
        """
        with typed_reads(self._path):
            self._dirs.settle(name)

    def ensure_directory(self, name: TopicPartition, info: TopicInfo) -> None:
        """Ensure that a partition's directory exists and durably contains the topic's id.

        If the topic has no id, only the directory is ensured. If the directory had to be created,
        this is reported, because records may be lost. Any thread may call this.

        Raises:
            MissingFile: The directory is missing, and a checkpoint file proves that it had records.
                A new directory would give their offsets to other records.
            StorageFailure: The disk failed.
        """
        was_clean = self._context.checkpoints.was_clean
        with typed_reads(self._path):
            if self._registry.is_doubtful:
                with self._changing:
                    self._registry.settle()
            if not self._fs.exists(self._dirs.path(name)):
                if end := self._context.checkpoints.known_end(name):
                    raise self._missing(name, info, end)
                self.make_again(name, info)
            elif not (was_clean or info.foreign or info.topic_id is None):
                self._dirs.mend(name, info.topic_id)
            self._dirs.settle(name)

    def settle_all(self) -> None:
        """Call `settle` for all new partitions that still need it; raises OSError."""
        self._dirs.settle_all()

    def report_missing(self) -> None:
        """Report each partition that can't be opened because its directory is missing."""
        for info in self._registry.topics.values():
            for number in absent_numbers(info):
                name = TopicPartition(info.name, number)
                end = self._context.checkpoints.known_end(name)
                if end and not self._fs.exists(self._dirs.path(name)):
                    self._context.report(str(self._missing(name, info, end)))

    def _missing(self, name: TopicPartition, info: TopicInfo, end: int) -> MissingFile:
        path = self._dirs.path(name)
        reason = (
            f"the directory is missing, and with it all records before offset {end}; restore it"
            f" from a backup{restore_advice(info.config, path)}; to continue without these records,"
            " create an empty directory of this name"
        )
        return MissingFile(path, "opening for writing", reason)

    def make_again(self, name: TopicPartition, info: TopicInfo) -> None:
        """Create a partition's missing directory, durably, and report this; raises OSError."""
        self._dirs.make_again(name, info.topic_id)
        with self._changing:
            self._registry.add_present(name)
        path = self._dirs.path(name)
        self._context.report(
            f"{path}: the directory of this partition was missing; an empty one was created"
        )

    def tidy(self) -> None:
        """Remove deleted topics from the registry's file after their directories are renamed.

        Raises OSError.
        """
        self._registry.tidy()

    # -- deleting ----------------------------------------------------------------------------

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics and all their records, with one write of the registry.

        After a power loss during the call, each topic is either complete or deleted.

        Raises:
            UnknownTopic: One of the topics does not exist; nothing was deleted.
            ReadOnly: The directory was opened for reading.
            StorageFailure: Either nothing was deleted, or all topics are deleted and the next open
                for writing removes their remaining directories.
        """
        set_aside = self.hide(names)()
        self.remove_set_aside(set_aside)
        self._ensure_free(names)

    def hide(self, names: Sequence[str]) -> Callable[[], list[str]]:
        """Hide topics and detach their logs: the quick part of `delete`.

        The caller must not change any topic until the function that `hide` returns has finished.

        Returns:
            A function that deletes the topics. The caller must call this function once, in any
            thread. The function returns the paths of the topics' renamed directories, for
            `remove_set_aside`. If the deletion fails, the function shows the topics again and
            raises the error.

        Raises:
            UnknownTopic, ReadOnly: Nothing was hidden.
        """
        self._context.ensure_writable()
        hidden = self._registry.hide(names)
        hidden_names = {info.name for info in hidden}
        wait = self._detach(hidden_names)

        def delete() -> list[str]:
            try:
                wait()  # a log that is still in use might create a file after the deletion
                partitions = self._delete_hidden(hidden)
            except BaseException as error:
                with self._changing:
                    self._registry.show_again(hidden)
                if isinstance(error, OSError):
                    raise as_storage_failure(error, self._path, "delete topics") from error
                raise
            return self._set_deleted_aside(hidden_names, partitions)

        return delete

    def _delete_hidden(self, hidden: Collection[TopicInfo]) -> list[TopicPartition]:
        """Delete hidden topics, and return their partitions; on OSError, no topic is deleted."""
        partitions = self._partition_dirs_of({info.name: info.topic_id for info in hidden})
        names = map(files.partition_dir_name, partitions)
        from tidelog.storage.tier.tier_record import note_partitions

        note_partitions(self._fs, self._path, names, self._context.report)
        with self._changing:
            self._registry.delete_hidden(hidden)
        return partitions

    def _set_deleted_aside(
        self, topics: Collection[str], partitions: Iterable[TopicPartition]
    ) -> list[str]:
        """Rename deleted topics' directories, and clear the topics' checkpoints.

        Returns the new paths of the directories.

        If the disk fails, this method reports the failure and raises no error. The next creation of
        a topic with one of these names, or the next open for writing, tries to rename the
        remaining directories.
        """
        renamed: list[str] = []
        try:
            self._set_aside(partitions, renamed)
            self._context.checkpoints.forget(topics)
            self._fs.sync_dir(self._path)
        except OSError as error:
            failure = as_storage_failure(error, self._path, "rename directories of deleted topics")
            self._context.report(f"{failure}; the names of deleted topics stay in use")
            return renamed
        with self._changing:
            self._registry.forget_deleted(topics)
        return renamed

    def _set_aside(self, partitions: Iterable[TopicPartition], renamed: list[str]) -> None:
        for partition in partitions:
            path = self._dirs.path(partition)
            own = uuid.UUID(int=self._context.env.random.getrandbits(128)).hex
            target = f"{path}.{own}{DELETED_DIR_SUFFIX}"
            self._fs.rename(path, target)
            renamed.append(target)
            self._dirs.forget(partition)

    def _partition_dirs_of(self, topics: Mapping[str, uuid.UUID | None]) -> list[TopicPartition]:
        """Return the topics' partitions whose directories exist and were not renamed.

        `topics` has each topic's id. A directory with another topic's id is left out: its records
        are not the topic's.
        """
        parsed = (files.parse_partition_dir(e.name) for e in self._fs.list_dir(self._path))
        return sorted(
            name
            for name in parsed
            if name is not None
            and name.topic in topics
            and not self._registry.is_of_another(name, topics[name.topic])
        )

    def _clear_names(self, names: Iterable[str]) -> None:
        """Rename and remove directories that deleted topics with these names have left.

        Raises StorageFailure if directories can't be renamed.
        """
        deleted = self._registry.deleted
        stuck = {name: deleted[name] for name in names if name in deleted}
        if not stuck:
            return
        for path in self._set_deleted_aside(stuck, self._partition_dirs_of(stuck)):
            with suppress(StorageFailure):
                self.remove_set_aside([path])
        self._ensure_free(stuck)

    def _ensure_free(self, names: Collection[str]) -> None:
        stuck = sorted(self._registry.deleted.keys() & set(names))
        if stuck:
            what = f"{', '.join(stuck)}: deleted, but some directories can't be renamed"
            raise StorageFailure(self._path, "free names", what)

    def remove_set_aside(self, paths: Iterable[str]) -> None:
        """Remove renamed directories of deleted topics (slow). Any thread may call this.

        Raises:
            StorageFailure: The disk failed; the next open for writing removes the remaining
                directories.
        """
        try:
            for path in paths:
                self._remove_tree(path)
        except OSError as error:
            raise as_storage_failure(error, self._path, "remove deleted topics") from error


class PartitionDirs:
    """Partition directories of a directory that is open for writing.

    `make` must not run in two threads at once; all other methods may run in any thread.
    """

    def __init__(self, fs: FileSystem, root: str, *, keeps_notes: bool) -> None:
        """Create the object without making any directory.

        Args:
            fs: File system of the directory.
            root: Path of the directory.
            keeps_notes: Whether a new partition gets a file of segment notes at its creation.
        """
        self._fs = fs
        self._root = root
        self._keeps_notes = keeps_notes
        self._unsettled: dict[TopicPartition, uuid.UUID | None] = {}
        self._settling = threading.Lock()

    def path(self, partition: TopicPartition) -> str:
        """Return the path of a partition's directory."""
        return f"{self._root}/{files.partition_dir_name(partition)}"

    def make(self, topics: Collection[TopicInfo]) -> Mapping[str, OSError]:
        """Create the missing directories of topics, and make their names durable.

        Returns:
            The errors by topic. If creating a topic's directories fails, the new directories of
                this topic are removed again, if the disk allows that.

        Raises:
            OSError: The directories' names could not be synced. All new directories were removed
                again, if the disk allowed the removal.
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
        """Create a partition's missing directory, durably; raises OSError."""
        self._make(partition, topic_id)
        self._fs.sync_dir(self._root)

    def _make(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> None:
        path = self.path(partition)
        self._fs.make_dirs(path)
        self._unsettled[partition] = topic_id
        if topic_id is not None and not self._fs.exists(f"{path}/{files.PARTITION_METADATA_FILE}"):
            text_files.write_partition_metadata(self._fs, path, topic_id, is_durable=False)

    def _unmake(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove directories that were just created, ignoring errors of the disk."""
        for partition in partitions:
            path = self.path(partition)
            self.forget(partition)
            with suppress(OSError):
                for entry in self._fs.list_dir(path):
                    self._fs.remove(f"{path}/{entry.name}")
                self._fs.remove_dir(path)

    def forget(self, partition: TopicPartition) -> None:
        """Forget that `settle` has to be called for a partition."""
        self._unsettled.pop(partition, None)

    def settle(self, partition: TopicPartition) -> None:
        """Make a new directory's topic id and notes durable, before records are written to it.

        Raises:
            OSError: The disk failed; the next call tries again, with new files.
        """
        if partition not in self._unsettled:
            return
        with self._settling:  # a second caller waits until the id is durable
            if partition in self._unsettled:
                self._write(self.path(partition), self._unsettled[partition])
                self.forget(partition)

    def _write(self, path: str, topic_id: uuid.UUID | None) -> None:
        begins_notes = self._keeps_notes and not has_notes(self._fs, path)
        if topic_id is not None:
            text_files.write_partition_metadata(
                self._fs, path, topic_id, sync_name=not begins_notes
            )
        if begins_notes:  # syncs the directory entries of metadata and notes
            begin_notes(self._fs, path)

    def settle_all(self) -> None:
        """Call `settle` for all new partitions that still need it; raises OSError."""
        for partition in list(self._unsettled):
            self.settle(partition)

    def mend(self, partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Write a partition's topic id again if a power loss has left no readable id.

        Raises:
            OSError: The disk failed.
        """
        path = self.path(partition)
        try:
            stored_id = text_files.read_partition_metadata(self._fs, path)
        except CorruptFile:
            stored_id = None
        if stored_id is None:
            text_files.write_partition_metadata(self._fs, path, topic_id)


def _lacking(info: TopicInfo) -> list[TopicPartition]:
    return [TopicPartition(info.name, number) for number in absent_numbers(info)]
