"""Opens logs and readers of a directory, at first use or in threads. Reopens and detaches logs.

`OpenPartitions` alone holds open logs, readers, their handles and maps. `OpenPartitions` does not
use the files of the lock, the registry and the checkpoints: `TopicAdmin` knows the partitions, and
`OffsetCheckpoints` stores their offsets. Opening a log reads files, may recover the log, and syncs
files. An event loop must not wait that long, so another thread can open the log. A log that another
thread has opened counts as open only after the directory's thread has taken it over. If the
directory's thread needs the log earlier, it waits for the other thread. If the other thread has not
begun, the directory's thread cancels the opening and opens the log itself. So two threads never
open the same partition at the same time.

A partition has at most one open log. A log that is offline because its disk failed is kept until
`reopen` replaces it.
"""

import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tidelog.errors import DamagedLog, MissingFile, StorageFailure, TidelogError
from tidelog.storage import commits, files
from tidelog.storage.clocks.append_clock import ClockWatch, TrustedClock
from tidelog.storage.commits import CommitRecords
from tidelog.storage.directory.topic_admin import DirectoryContext, TopicAdmin
from tidelog.storage.directory.topic_registry import MISSING_ADVICE, TopicInfo, missing_error
from tidelog.storage.log.log_reader import LogReader, LogView
from tidelog.storage.log.record_rules import BodyCheck
from tidelog.storage.open_files import FilePool, MapCache, as_storage_failure, typed_reads
from tidelog.storage.segment.log_end import RecordedEnd, has_copied_gaps
from tidelog.storage.segment.segment import SegmentContext
from tidelog.storage.segment.segment_notes import begin_notes
from tidelog.storage.tier.tier_files import TierAccess, TierFiles, tier_files_of
from tidelog.types import INTERNAL_TOPICS, NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from tidelog.storage.log.durability import Deferral
    from tidelog.storage.log.log import Log


NO_TOPIC_ID: Final = uuid.UUID(int=0)

# Starts a call in another thread.
Submit: TypeAlias = "Callable[[Callable[[], Log]], Future[Log]]"


class OpeningRules(NamedTuple):
    """Options for opening the logs of a directory for writing.

    Attributes:
        watch: The clock of the logs' append times.
        body_check: Function by which the validator checks records.
        deferrals: Creates the object that runs a log's deferred work; None to run such work
            immediately.
    """

    watch: ClockWatch
    body_check: BodyCheck
    deferrals: "Callable[[], Deferral] | None"


class OpenPartitions:
    """The open logs and readers of a directory. Only the directory's thread calls the methods.

    Attributes:
        producer_expiration_ms: Value of the setting `producer.id.expiration.ms`. Opening a
            partition drops producers that were idle for this time.
    """

    def __init__(
        self,
        context: DirectoryContext,
        topics: TopicAdmin,
        commit_records: CommitRecords,
        rules: OpeningRules,
        producer_expiration_ms: int,
    ) -> None:
        """Create the object without opening any partition."""
        self._context = context
        self._fs = context.env.files
        self._topics = topics
        self._checkpoints = context.checkpoints
        self._commits = commit_records
        self._rules = rules
        self.producer_expiration_ms = producer_expiration_ms
        self._pool = FilePool(self._fs, write=context.is_writable)
        self._maps = MapCache(self._fs)
        self._tiers = TierAccess.over(tier_files_of(context.env))
        self._logs: dict[TopicPartition, Log] = {}
        self._readers: dict[TopicPartition, LogReader] = {}
        # Partitions whose readers were opened or refreshed after the last `refresh` of this object.
        self._current: set[TopicPartition] = set()
        # Logs that other threads are opening. A thread that opens a log uses only the partition's
        # own files, and thread-safe state that all logs share.
        self._openings: dict[TopicPartition, Future[Log]] = {}

    @property
    def tier_files(self) -> TierFiles:
        """Object that reads data in tiers, and opens the stores of tiers."""
        return self._tiers.files

    # -- opening -----------------------------------------------------------------------------

    def reader(self, name: TopicPartition) -> LogView:
        """Return a partition's log for reading; in a writable directory, this is the open log.

        Raises:
            UnknownTopic: No such topic or partition.
            MissingFile: The topics file lists the partition, but it has no directory. (If it had no
                records, a directory that is open for writing creates an empty one.)
            CorruptFile, UnsupportedVersion: A reader can't read the list of topics, a commit record
                or the partition's `tidelog-tier.json`.
            StorageFailure: The disk failed.
        """
        if self._context.is_writable:
            return self.log(name)
        reader = self._readers.get(name)
        if reader is None or name not in self._current:
            reader = self._readers[name] = self._renewed(name, reader)
            self._current.add(name)
        return reader

    def _renewed(self, name: TopicPartition, reader: LogReader | None) -> LogReader:
        """Return a reader of the partition's current state.

        Refreshes `reader`, which keeps its loaded data. Opens a new reader instead in three cases:
        `reader` is None; the topic was created again, or its settings changed; or `reader` was
        opened while a commit was changing the partition's files.
        """
        info = self._topics.topic_of(name)
        if len(info.present) < info.partitions and name.partition not in info.present:
            error = missing_error(self._context.path, info.name, [name.partition])
            raise MissingFile(error.path, error.operation, f"{error.reason}; {MISSING_ADVICE}")
        recorded = self._checkpoints.recorded_end(name, is_dense=False, fresh=False)
        start = self._checkpoints.start_of(name, recorded)
        if reader is not None:
            context = reader.context
            is_same = (context.config, context.topic_id) == (
                info.config,
                info.topic_id or NO_TOPIC_ID,
            )
            if is_same and not context.overlay:
                reader.refresh(start)
                return reader
            context.forget_files()
        with typed_reads(self._context.path):
            overlay = self._commits.overlay(name)
        context = self._segment_context(name, info, overlay)
        return LogReader.open(context, log_start_offset=start, tiers=self._tiers)

    def log(self, name: TopicPartition) -> "Log":
        """Return a partition's log for writing.

        The log is opened (and recovered if needed) at first use.

        Raises:
            UnknownTopic: No such topic or partition.
            ReadOnly: The directory was opened for reading.
            MissingFile: The partition's directory is missing, and it had records.
            StorageFailure: The disk failed.
        """
        log = self._logs.get(name)
        if log is None:
            self._context.ensure_writable()
            log = self._take(name)
            if log is None:
                log = self._logs[name] = self._open(name)
            else:  # settings may have changed since the opening began
                log.configure(self._topics.topic_of(name).config)
        return log

    def _take(self, name: TopicPartition) -> "Log | None":
        """Wait for a log that another thread opens, and return this log.

        Returns None if no other thread opens the log. If the other thread has not begun the
        opening, this method cancels the opening and returns None. If the opening failed, this
        method raises the other thread's error once; the next call for the partition returns None.
        """
        opening = self._openings.pop(name, None)
        if opening is None or opening.cancel() or opening.cancelled():
            return None
        log = self._logs[name] = opening.result()
        return log

    def open_in_thread(
        self, name: TopicPartition, submit: Submit, *, to_write: bool = False
    ) -> "Future[Log] | None":
        """Start opening a partition in another thread; a later call of `log` returns the log.

        Args:
            name: The partition.
            submit: Runs the opening in another thread. If the opening raises an error, the next
                call of `log` for the partition raises the same error.
            to_write: Whether the thread also stores the leader epoch durably. If False, the first
                append stores the leader epoch.

        Returns:
            A future that is done when the partition is open or could not be opened; None if the
            partition is already open.

        Raises:
            UnknownTopic: No such topic or partition.
            ReadOnly: The directory was opened for reading.
        """
        if name in self._logs:
            return None
        self._context.ensure_writable()
        self._topics.topic_of(name)
        open_log = self._open_to_write if to_write else self._open
        opening = self._openings.get(name)
        if opening is None:
            opening = self._openings[name] = submit(lambda: open_log(name))
        return opening

    def _open_to_write(self, name: TopicPartition) -> "Log":
        log = self._open(name)
        if log.failure is None:
            with suppress(StorageFailure):  # a failure takes the log offline
                log.swaps.begin_epoch()
        return log

    def is_opened(self, name: TopicPartition) -> bool:
        """Return whether the partition is open, or its opening in a thread has ended or failed."""
        opening = self._openings.get(name)
        return name in self._logs or (opening is not None and opening.done())

    def _open(self, name: TopicPartition, *, recovery_point: int | None = None) -> "Log":
        # These modules are imported here, because a directory that is only read does not need them.
        from tidelog.storage.log.durability import AT_ONCE
        from tidelog.storage.log.log import Log
        from tidelog.storage.log.log_loader import LogOptions

        info = self._topics.topic_of(name)
        self._topics.ensure_directory(name, info)
        context = self._segment_context(name, info, {})
        checkpoints, rules = self._checkpoints, self._rules
        if recovery_point is None:
            recovery_point = checkpoints.recovery_point(name)
        clean_end = checkpoints.recovery_points.get(name)
        is_end = recovery_point is None and clean_end is not None
        recorded = RecordedEnd(recovery_point or clean_end or 0, is_end=is_end)
        is_internal = name.topic in INTERNAL_TOPICS
        options = LogOptions(
            # Groups and transactions must continue even if the wall clock jumps. Internal topics
            # can ignore such a jump, because no result depends on their append times.
            watch=TrustedClock(self._context.env.clock) if is_internal else rules.watch,
            recovery_point=recovery_point,
            clean_end=clean_end,
            is_own=self._is_dense(name, info),
            log_start_offset=checkpoints.start_of(name, recorded),
            body_check=rules.body_check,
            lower_checkpoints=lambda offset, end: checkpoints.lower(name, offset, end),
            save_log_start=lambda offset: checkpoints.save_start(name, offset),
            tiers=self._tiers,
            deferral=AT_ONCE if rules.deferrals is None else rules.deferrals(),
            leaves_flushes=rules.deferrals is not None,
            producer_expiration_ms=lambda: self.producer_expiration_ms,
        )
        log = Log.open_writable(context, options)
        checkpoints.unsynced_points.pop(name, None)
        if rules.deferrals is not None:
            with typed_reads(context.directory):
                # Creates the file of segment notes if another program created the partition.
                # Recovery uses segment notes to distinguish legitimate gaps from lost records.
                begin_notes(self._fs, context.directory)
        for line in log.recovery_report.actions:
            self._context.report(line)
        return log

    def _segment_context(
        self, name: TopicPartition, info: TopicInfo, overlay: "Mapping[str, str]"
    ) -> SegmentContext:
        return SegmentContext(
            env=self._context.env,
            directory=self._directory(name),
            topic_partition=name,
            topic_id=info.topic_id or NO_TOPIC_ID,
            config=info.config,
            pool=self._pool,
            maps=self._maps,
            report=self._context.report,
            overlay=overlay,
            recorded_end=lambda fresh: self._checkpoints.recorded_end(
                name, is_dense=self._is_dense(name, info), fresh=fresh
            ),
        )

    def _directory(self, name: TopicPartition) -> str:
        return f"{self._context.path}/{files.partition_dir_name(name)}"

    def _is_dense(self, name: TopicPartition, info: TopicInfo) -> bool:
        """Return whether it is certain that appends left no gap in a partition's offsets.

        This is not certain for appends of other programs, and for copies of a leader's log that has
        gaps.
        """
        return not info.foreign and not has_copied_gaps(self._fs, self._directory(name))

    # -- reopening and detaching -------------------------------------------------------------

    def reopen(self, name: TopicPartition) -> "Log":
        """Reopen a partition that went offline when its disk failed; return the open log.

        The log of a partition that is not offline is returned unchanged. A commit that the
        failure interrupted is completed first. Data that is not synced is rewritten before the
        recovery. The reason: after a failed sync, the operating system may treat pages that never
        reached the disk as written.

        Raises:
            UnknownTopic: No such topic or partition.
            ReadOnly: The directory was opened for reading.
            StorageFailure: The disk still fails, or a swap is in progress; the partition stays
                offline.
            CorruptFile, UnsupportedVersion: A commit record is damaged, or a later release wrote
                it; the partition stays offline.
        """
        failed = self.log(name)
        if failed.failure is None:
            return failed
        directory = failed.context.directory
        if any(name in names for names in tuple(self._commits.under_way.values())):
            raise StorageFailure(directory, "reopen", "its segments are being swapped; try again")
        failed.abandon()
        try:
            self._finish_commits(name)
            from tidelog.storage.log.recovery import rewrite_unsynced

            rewrite_unsynced(failed.context, failed.recovery_point)
        except OSError as error:
            raise as_storage_failure(error, directory, "reopen") from error
        log = self._logs[name] = self._open(name, recovery_point=failed.recovery_point)
        return log

    def _finish_commits(self, name: TopicPartition) -> None:
        """Carry out a partition's unfinished commits, except commits that change a log in use."""
        root, own = self._context.path, files.partition_dir_name(name)
        for path in commits.find_commits(self._fs, root):
            try:
                commit = commits.read_commit(self._fs, path)
            except FileNotFoundError:
                continue  # another thread completed the commit, which changes other partitions
            if own not in commit.directories:
                continue
            others = (files.parse_partition_dir(each) for each in commit.directories if each != own)
            logs = (self._logs.get(each) for each in others if each is not None)
            if all(log is None or log.failure is not None for log in logs):
                commits.finish(self._fs, root, path, commit)
                self._context.report(f"{path}: finished a commit that a failure had interrupted")

    def detach(self, topics: Collection[str]) -> Callable[[], None]:
        """Give up the logs of topics that will be deleted, including logs that are being opened.

        Returns:
            A function that finishes the work in three steps: it cancels openings that have not
            begun, waits until no thread works on any of the topics' logs, and gives up logs that
            were opened during the wait. Any thread may call the returned function.
        """
        logs = {name: log for name, log in self._logs.items() if name.topic in topics}
        for name, log in logs.items():
            del self._logs[name]
            self._checkpoints.unsynced_points[name] = log.recovery_point
        ends = [log.detach() for log in logs.values()]
        names = [name for name in self._openings if name.topic in topics]
        openings = [self._openings.pop(name) for name in names]

        def wait() -> None:
            for end in ends:
                end()
            for opening in openings:
                if not (opening.cancel() or opening.cancelled() or opening.exception() is not None):
                    opening.result().abandon()

        return wait

    # -- all open partitions -----------------------------------------------------------------

    @property
    def last_append_ms(self) -> int:
        """Latest append time of all open logs in ms, -1 if none is known."""
        return max((log.last_append_ms for log in self._logs.values()), default=NO_TIMESTAMP)

    def damage(self) -> DamagedLog | None:
        """Return the damage of an open log that refuses appends; None if no log is damaged."""
        failures = (log.failure for log in self._logs.values())
        return next((each.again() for each in failures if isinstance(each, DamagedLog)), None)

    def follow_settings(self, topic: str | None = None) -> None:
        """Make open logs use the current settings of one topic, or of all topics."""
        topics = self._topics.all()
        for name, log in self._logs.items():
            info = topics.get(name.topic) if topic in (None, name.topic) else None
            if info is not None:
                log.configure(info.config)

    def flush(self) -> None:
        """Make everything that was appended durable, except in offline partitions.

        Raises:
            StorageFailure: A partition's disk failed; that partition is offline.
        """
        for log in self._logs.values():
            if log.failure is None:
                log.flush()

    def note_checkpoints(self) -> None:
        """Copy recovery points and starts of open logs, except offline ones, into checkpoints.

        The checkpoints are changed in memory only.
        """
        for name, log in self._logs.items():
            if log.failure is None:
                self._checkpoints.note(name, log)

    def refresh(self) -> None:
        """Make the next call of `reader` for a partition return the partition's current state."""
        self._current.clear()

    def close(self) -> tuple[StorageFailure | None, bool]:
        """Close every log, even if closing another log fails.

        Returns:
            The first failure of a disk or None, and whether the directory may count as cleanly
            stopped.
        """
        failure: StorageFailure | None = None
        # If the previous stop was hard, recovery has found the damage. In this case, no clean stop
        # is recorded, because the next opening would then run no recovery and would not find the
        # damage. Damage that was found without a recovery is found again at the next opening.
        has_new_damage = False
        for name in list(self._openings):
            with suppress(TidelogError, OSError):  # no caller needs this log
                self._take(name)
        for log in self._logs.values():
            try:
                log.close()
            except StorageFailure as error:
                failure = failure or error
            if isinstance(log.failure, DamagedLog):
                has_new_damage |= not self._checkpoints.was_clean
            else:
                failure = failure or log.failure
        is_clean = failure is None and not has_new_damage and not self._checkpoints.unsynced_points
        return failure, is_clean

    def release(self) -> None:
        """Drop all handles and maps without writing anything."""
        for log in self._logs.values():
            log.drop_caches()  # the next opening may truncate the last segment
        for reader in self._readers.values():
            reader.close()
        self._pool.close()
        self._maps.clear()
