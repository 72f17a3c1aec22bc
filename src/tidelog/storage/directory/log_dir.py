"""A directory of partitions: who may change it, what is in it, where each partition ends safely.

The holder of the lock alone changes a directory; readers need none. After a clean stop partitions
are opened at first use; after a hard one all of them at once, since each needs recovery. The files
at the top are Kafka's own (`meta.properties`, the checkpoints, `.lock`, `.kafka_cleanshutdown`),
beside `tidelog-topics.json`, which knows the topics' settings.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from tidelog.config import ConfigNote
from tidelog.config.topic_keys import TOPIC_CONFIG_BY_NAME
from tidelog.env import Env, forget, is_remote
from tidelog.errors import ReadOnly, StorageFailure, TidelogError, UnknownTopic
from tidelog.storage import commits, files, text_files
from tidelog.storage import commits as writers
from tidelog.storage.clocks.append_clock import TrustedClock
from tidelog.storage.directory.dir_state import LogDirOptions, reach
from tidelog.storage.directory.open_partitions import Submit
from tidelog.storage.directory.topic_admin import TopicDeletion
from tidelog.storage.directory.topic_registry import (
    PARTITION_COUNT_LIMIT,
    Made,
    NewTopic,
    TopicInfo,
    find_topics,
    unknown_topic,
)
from tidelog.storage.log.durability import AT_ONCE
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_loader import LogOptions
from tidelog.storage.log.log_reader import LogReader
from tidelog.storage.log.recovery import rewrite_unsynced
from tidelog.storage.open_files import as_storage_failure, typed_reads
from tidelog.storage.segment.log_end import RecordedEnd, has_copied_gaps
from tidelog.storage.segment.segment import SegmentContext
from tidelog.storage.segment.segment_notes import begin_notes
from tidelog.types import (
    INTERNAL_TOPICS,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TopicPartition,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["NO_TOPIC_ID", "LogDir", "LogDirOptions"]


NO_TOPIC_ID: Final = uuid.UUID(int=0)


Found = TypeVar("Found")


class LogDir(TopicDeletion):
    """A directory of partitions, open for reading or for writing."""

    @classmethod
    def open(
        cls, path: str, *, env: Env | None = None, options: LogDirOptions | None = None
    ) -> Self:
        """Open a directory of partitions.

        Args:
            path: Where it is: a path, or the URL of an object store (docs/objects.md).
            env: Files, clock and randomness; the machine's where None.
            options: What for; reading where None.

        Raises:
            DirectoryLocked: Another process has it open for writing.
            InvalidRequest: There is no such directory.
            ReadOnly: A directory in an object store can't be opened for writing.
            CorruptFile: The list of topics can't be read.
            StorageFailure: The disk failed during recovery, or the store did not answer.
        """
        path, env = reach(path, env)
        directory = cls(path.rstrip("/") or "/", env, options or LogDirOptions())
        if directory.is_writable and is_remote(directory.env.files, path):
            raise ReadOnly(
                f"{path}: a directory in an object store is read only; write to one on disk and"
                " copy it there, or move its finished segments by `tidelog tier`"
            )
        try:
            directory._load()
        except BaseException:
            directory._release()
            raise
        return directory

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        """All topics by name, foreign ones included; a reader's as of its opening or `refresh`."""
        if self.is_writable:
            return self._registry.topics
        if self._found_topics is None:
            with typed_reads(self.path):
                self._found_defaults = self._read_defaults()
                found = find_topics(self.env.files, self.path, self._found_defaults)[0]
            self._found_topics = found
        return self._found_topics

    def refresh(self) -> None:
        """See what is on disk now: topics, log starts, and new records in every open reader."""
        if self.is_writable:
            return
        self._found_topics = None
        self._knows_ends = False
        forget(self.env.files, self.path)
        with typed_reads(self.path):
            self._checkpoints.load_starts()
        self._readers.clear()
        self._pool.close()  # names may stand for other files now
        self._maps.clear()

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
        given = NewTopic(name, partitions, config or {}, topic_id)
        (made,) = self.create_topics([given])
        if isinstance(made, TidelogError):
            raise made
        return made

    def create_topics(self, new: Sequence[NewTopic]) -> list[Made | TidelogError]:
        """Create topics together, with one write of the registry.

        Returns:
            For each what `create_topic` returns, or the error that it raises. Where power is lost
            meanwhile, each of them is there whole or is not there.

        Raises:
            ReadOnly: The directory was opened for reading.
            StorageFailure: What a deleted topic of such a name left can't be moved out of the way,
                or what its writers had committed can't be forgotten.
        """
        self._ensure_writable()
        names = [each.name for each in new]
        self._clear_names(names)
        with self._topic_change:
            self._forget_writers(names)
            made = self._registry.create_all(new, source=self.env.random, make=self._dirs.make)
        return self._typed(made, [f"create topic {each.name}" for each in new])

    def _forget_writers(self, names: Iterable[str]) -> None:
        """Forget what was committed to earlier topics of these names."""
        try:
            gone = [name for name in names if name not in self._registry.topics]
            writers.forget_topics(self.env.files, self.path, gone)
        except OSError as error:
            raise as_storage_failure(error, self.path, "create topics") from error

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Raise a topic's number of partitions to `partitions`.

        Raises:
            UnknownTopic, InvalidPartitions, ReadOnly: Refused; nothing changed.
            StorageFailure: The disk failed.
        """
        (grown,) = self.add_all_partitions({name: partitions})
        if isinstance(grown, TidelogError):
            raise grown
        return grown

    def add_all_partitions(self, counts: Mapping[str, int]) -> list[TopicInfo | TidelogError]:
        """Raise the numbers of partitions of several topics, with one write of the registry.

        Returns:
            For each what `add_partitions` returns, or the error that it raises.

        Raises:
            ReadOnly: The directory was opened for reading.
        """
        self._ensure_writable()
        with self._topic_change:
            grown = self._registry.grow_all(counts, make=self._dirs.make)
        return self._typed(grown, [f"add partitions to {name}" for name in counts])

    def _typed(
        self, found: Iterable[Found | TidelogError | OSError], what: Iterable[str]
    ) -> list[Found | TidelogError]:
        return [
            as_storage_failure(each, self.path, text) if isinstance(each, OSError) else each
            for each, text in zip(found, what, strict=True)
        ]

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """Change a topic's settings, None for back to the default; open partitions follow.

        Raises:
            UnknownTopic, ConfigError, ReadOnly, StorageFailure: Nothing was changed.
        """
        notes = self.save_config(name, changes)
        self.follow_config(name)
        return notes

    def save_config(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """The part of `alter_config` that writes and syncs, for any thread; errors as there."""
        self._ensure_writable()
        try:
            with self._topic_change:
                return self._registry.alter(name, changes, source=self.env.random)[1]
        except OSError as error:
            raise as_storage_failure(error, self.path, f"alter topic {name}") from error

    def use_topic_defaults(self, defaults: Mapping[str, str]) -> None:
        """Give topics other defaults, for any thread; `follow_configs` lets open partitions follow.

        Raises:
            ConfigError: With these a topic's own settings contradict; nothing was changed.
            ReadOnly: The directory was opened for reading.
        """
        self._ensure_writable()
        with self._topic_change:
            self._registry.use_defaults(defaults)

    def knows_age_limit(self, name: str) -> bool:
        """Whether a topic's `retention.ms` is its own or a broker's, not our default alone."""
        if self._options.topic_defaults is not None or "retention.ms" in self.topic(name).given:
            return True
        names = {synonym.name for synonym in TOPIC_CONFIG_BY_NAME["retention.ms"].synonyms}
        defaults = self._registry.defaults if self.is_writable else self._found_defaults
        return not names.isdisjoint(defaults)

    def follow_config(self, name: str) -> None:
        """Let open partitions of a topic go by its settings as they are now."""
        found = self.topics().get(name)
        for partition, log in self._logs.items():
            if found is not None and partition.topic == name:
                log.configure(found.config)

    def follow_configs(self) -> None:
        """Let open partitions of all topics go by their settings as they are now."""
        topics = self.topics()
        for partition, log in self._logs.items():
            found = topics.get(partition.topic)
            if found is not None:
                log.configure(found.config)

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
            with typed_reads(self.path):
                overlay = self._commits.overlay(name)
            context = self._context(name, info, overlay)
            start = self._start_of(name, self._recorded_end(name, is_dense=False, fresh=False))
            found = LogReader.open(context, log_start_offset=start, tiers=self._tiers)
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
            found = self._take_opened(name)
            if found is None:
                found = self._logs[name] = self._open_log(name)
            else:  # the settings may be others by now
                found.configure(self._existing(name).config)
        return found

    def open_beside(
        self, name: TopicPartition, submit: Submit, *, to_write: bool = False
    ) -> "Future[Log] | None":
        """Begin to open a partition in another thread; `log` is what takes it in afterwards.

        Args:
            name: The partition.
            submit: Calls a function in a thread. What that raises is what `log` raises then.
            to_write: Do there, too, what the first append would sync.

        Returns:
            When it is open, or could not be opened; None where it is open already.

        Raises:
            UnknownTopic, ReadOnly: As `log`.
        """
        if name in self._logs:
            return None
        self._ensure_writable()
        self._existing(name)
        open_log = self._open_to_write if to_write else self._open_log
        return self._openings.begin(name, lambda: open_log(name), submit)

    def _open_to_write(self, name: TopicPartition) -> Log:
        log = self._open_log(name)
        if log.failure is None:
            with suppress(StorageFailure):  # it is offline then, and says so
                log.begin_epoch()
        return log

    def is_opened(self, name: TopicPartition) -> bool:
        """Whether `log` need open nothing: it is open, or was opened beside, well or not."""
        return name in self._logs or self._openings.is_over(name)

    def reopen(self, topic: str, partition: int) -> Log:
        """Open a partition anew that is offline since its disk failed; another stays as it is.

        A commit of files that the failure has left halfway is carried out first. What was not
        synced is written anew before it is recovered: where a sync has failed, the system may hold
        pages for written that never came to the disk.

        Raises:
            UnknownTopic, ReadOnly: As `log`.
            StorageFailure: The disk fails still, or a swap is under way yet; the partition stays
                offline.
            CorruptFile, UnsupportedVersion: A commit record is damaged; likewise.
        """
        name = TopicPartition(topic, partition)
        failed = self.log(topic, partition)
        if failed.failure is None:
            return failed
        if name in tuple(self.under_way.values()):
            directory = failed.context.directory
            raise StorageFailure(directory, "reopen", "a swap is being carried out yet; ask again")
        failed.abandon()
        try:
            self._finish_commits(name)
            rewrite_unsynced(failed.context, failed.recovery_point)
        except OSError as error:
            raise as_storage_failure(error, failed.context.directory, "reopen") from error
        found = self._open_log(name, recovery_point=failed.recovery_point)
        self._logs[name] = found
        return found

    def _finish_commits(self, name: TopicPartition) -> None:
        """Carry out the commits that were left of a partition, and are of none that is in use."""
        fs, own = self.env.files, files.partition_dir_name(name)
        for path in commits.find_commits(fs, self.path):
            try:
                commit = commits.read_commit(fs, path)
            except FileNotFoundError:
                continue  # another partition's swap, which is done
            if own not in commit.directories:
                continue
            others = (files.parse_partition_dir(each) for each in commit.directories if each != own)
            logs = (self._logs.get(each) for each in others if each is not None)
            if all(log is None or log.failure is not None for log in logs):
                commits.finish(fs, self.path, path, commit)
                self.report(f"{path}: finished a commit that a failure had left")

    def _open_log(self, name: TopicPartition, *, recovery_point: int | None = None) -> Log:
        info = self._existing(name)
        self._settle(name, info)
        context = self._context(name, info, {})
        if recovery_point is None:
            # Given up for a deletion that then failed: it was not closed.
            recovery_point = self._given_up.get(name)
        if recovery_point is None and not self._was_clean:
            recovery_point = self._checkpoints.recovery_points.get(name, 0)
        clean_end = self._checkpoints.recovery_points.get(name)
        is_end = recovery_point is None and clean_end is not None
        recorded = RecordedEnd(recovery_point or clean_end or 0, is_end=is_end)
        deferrals = self._options.deferrals
        options = LogOptions(
            # Groups and transactions must go on; no answer depends on these topics' append times.
            watch=TrustedClock(self.env.clock) if name.topic in INTERNAL_TOPICS else self._watch,
            recovery_point=recovery_point,
            clean_end=clean_end,
            is_own=self._is_dense(name, info),
            log_start_offset=self._start_of(name, recorded),
            body_check=self._options.body_check,
            lower_checkpoints=lambda offset, end: self._checkpoints.lower(name, offset, end),
            save_log_start=lambda offset: self._checkpoints.save_start(name, offset),
            tiers=self._tiers,
            deferral=AT_ONCE if deferrals is None else deferrals(),
            leaves_flushes=deferrals is not None,
            producer_expiration_ms=lambda: self.producer_expiration_ms,
        )
        log = Log.open_writable(context, options)
        self._given_up.pop(name, None)
        if deferrals is not None:
            with typed_reads(context.directory):
                # So that recovery can tell a gap from a loss; of a partition made by others.
                begin_notes(self.env.files, context.directory)
        for line in log.recovery_report.actions:
            self.report(line)
        return log

    def _settle(self, name: TopicPartition, info: TopicInfo) -> None:
        """Let a partition's directory be there, and say durably whose it is."""
        with typed_reads(self.path):
            if self._registry.is_doubtful:
                with self._topic_change:
                    self._registry.settle()
            if not self.env.files.exists(self._dirs.path(name)):
                self._dirs.make_again(name, info.topic_id)
            elif not (self._was_clean or info.foreign or info.topic_id is None):
                self._dirs.mend(name, info.topic_id)
            self._dirs.settle(name)

    def _existing(self, name: TopicPartition) -> TopicInfo:
        info = self.topic(name.topic)
        if info.foreign and name.partition not in info.present:
            raise UnknownTopic(
                f"{self.path}: topic {name.topic} has no partition {name.partition} here, only"
                f" {', '.join(map(str, info.present))}"
            )
        if not 0 <= name.partition < info.partitions:
            raise UnknownTopic(
                f"{self.path}: topic {name.topic} has partitions 0 to {info.partitions - 1},"
                f" not {name.partition}"
            )
        return info

    def _context(
        self,
        name: TopicPartition,
        info: TopicInfo,
        overlay: Mapping[str, str],
    ) -> SegmentContext:
        return SegmentContext(
            env=self.env,
            directory=f"{self.path}/{files.partition_dir_name(name)}",
            topic_partition=name,
            topic_id=info.topic_id or NO_TOPIC_ID,
            config=info.config,
            pool=self._pool,
            maps=self._maps,
            report=self.report,
            overlay=overlay,
            recorded_end=lambda fresh: self._recorded_end(
                name, is_dense=self._is_dense(name, info), fresh=fresh
            ),
        )

    def _is_dense(self, name: TopicPartition, info: TopicInfo) -> bool:
        """Whether all appends to a partition are those of a leader, which leave no gap."""
        directory = f"{self.path}/{files.partition_dir_name(name)}"
        return not info.foreign and not has_copied_gaps(self.env.files, directory)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions, ascending; raises UnknownTopic.

        Of a foreign topic those that are here: a broker of a cluster holds only some.
        """
        info = self.topic(topic)
        # A stray directory may claim any number: what nobody could have created is not counted up.
        is_counted = not info.foreign and info.partitions <= PARTITION_COUNT_LIMIT
        numbers = range(info.partitions) if is_counted else info.present
        return [TopicPartition(topic, number) for number in numbers]

    # -- KIP-79 ------------------------------------------------------------------------------

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, clock: ClockName = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the earliest record whose time is the given one or later.

        Args:
            times: Time in ms for each partition asked.
            clock: Which of a record's two times is meant.

        Returns:
            Every partition asked, None where no record is that late. On the append clock with
            the number of records before it that have no time. Source: KIP-79.

        Raises:
            ValueError: A negative time; nothing was looked up.
            UnknownTopic: No such topic or partition.
        """
        for name, timestamp_ms in times.items():
            if timestamp_ms < 0:
                raise ValueError(f"{name}: time {timestamp_ms} is negative")
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for name, time_ms in times.items():
            reader = self.reader(name.topic, name.partition)
            answer = reader.offset_for_time(time_ms, clock=clock)
            if answer is not None and clock is ClockName.APPEND:
                without_time = reader.without_append_time(answer.offset)
                answer = answer._replace(without_time=without_time)
            found[name] = answer
        return found

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

    # -- starting ----------------------------------------------------------------------------

    def _load_after_hard_stop(self) -> None:
        for name, info in self._registry.topics.items():
            for number in info.present:
                self.log(name, number)
        self.env.files.sync_dir(self.path)  # a partition's name may be as new as what is in it

    def keep_reserve(self) -> None:
        """Keep room aside for changes on a full disk, in any thread; see `files.RESERVE_FILE`.

        Raises:
            StorageFailure: The disk failed, other than by being full.
        """
        try:
            files.keep_reserve(self.env.files, self.path)
        except OSError as error:
            raise as_storage_failure(error, self.path, "keep a reserve") from error

    def accept_clock(self) -> int:
        """Let appends go on although the clock jumped, durably.

        See `tidelog.storage.clocks.append_clock`.

        Opens all partitions. One that can't be opened counts for nothing here.

        Returns:
            The last append time that is accepted, in ms; -1 where none is known.

        Raises:
            ReadOnly: The directory was opened for reading.
            StorageFailure: It can't be kept; nothing was accepted.
        """
        self._ensure_writable()
        for info in self._registry.topics.values():
            for number in info.present:
                with suppress(TidelogError):
                    self.log(info.name, number)
        accepted_ms = self.append_time_to_accept()
        self.keep_accepted_clock(accepted_ms)
        self.take_clock(accepted_ms)
        return accepted_ms

    def append_time_to_accept(self) -> int:
        """Return the last append time of all open partitions in ms, -1 where none is known."""
        return max([self._watch.accepted_ms, *(log.last_append_ms for log in self._logs.values())])

    def keep_accepted_clock(self, accepted_ms: int) -> None:
        """Write down, durably and in any thread, up to which append time the clock is accepted.

        Raises:
            StorageFailure: The disk failed.
        """
        try:
            text_files.write_accepted_clock(self.env.files, self.path, accepted_ms)
        except OSError as error:
            raise as_storage_failure(error, self.path, "accept the clock") from error

    def take_clock(self, accepted_ms: int) -> None:
        """Let appends go on with append times up to this one, and with the wall clock as it is."""
        self._watch.accept(accepted_ms)
