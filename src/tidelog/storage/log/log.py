"""One partition, open for writing: append, truncate, delete, retain.

A `Log` owns the parts of an open partition: `LogParts`, and the parts that it creates from them.
`Log` validates appends, and `AppendWriter` writes the validated appends. Only the process that
holds the directory's lock can have a log open for writing.

Life cycle: open -> (append | roll | flush | truncate | retain)* -> close. Appends and changes
belong to one thread at a time; other threads may read.

Source: Kafka 4.x UnifiedLog, LocalLog; KIP-32, KIP-33, KIP-101.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from tidelog.config import TopicConfig
from tidelog.errors import ClockJump, StorageFailure, TidelogError
from tidelog.record.builder import BATCH_BYTES, build_end_marker
from tidelog.storage import log_files
from tidelog.storage.clocks.append_clock import Moment
from tidelog.storage.commits import Commit
from tidelog.storage.log.append_types import (
    BUILT,
    COORDINATED,
    FOREIGN,
    AppendContext,
    AppendResult,
    AppendTerms,
    LongCheck,
    PendingAppend,
    stamps_by_append_clock,
)
from tidelog.storage.log.append_writer import AppendWriter, SegmentRoller
from tidelog.storage.log.batch_building import batch_bytes_for, build_batches, stored_codec
from tidelog.storage.log.deletion import Deleter
from tidelog.storage.log.follower_log import FollowerLog
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.log_loader import LogOptions, LogParts, load_log
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.message_sets import PreparedSet
from tidelog.storage.log.producer_loading import drop_other_snapshots
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.record_rules import RecordRules
from tidelog.storage.log.segment_swaps import Adoption, SegmentSwaps, Swap
from tidelog.storage.log.truncation import Truncator
from tidelog.storage.log.validator import AppendRules
from tidelog.storage.open_files import typed_failures
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.deletion_history import StartRule
from tidelog.storage.segment.retention import Deletion
from tidelog.storage.segment.roll import RollReason, SegmentNote
from tidelog.storage.segment.segment import Segment, SegmentContext
from tidelog.types import UNKNOWN_MS, Buffer, Codec, NewRecord

if TYPE_CHECKING:
    from tidelog.storage.segment.mapped_time_search import KernelSearch
    from tidelog.storage.tier.tier_record import TierRecord

# Terms with which `check_append` checks a batch.
_LONG: Final = AppendTerms(owned=True)
# Terms of a message set, for both `check_set` and `append_set`.
_LONG_SET: Final = AppendTerms(owned=True, takes_legacy=True)


class SwapAccess(Protocol):
    """Methods of `SegmentSwaps` that jobs call. `SegmentSwaps` documents these methods."""

    def prepare_adoption(self) -> Adoption:
        """Prepare to add segments at the log end; return the offset, epoch and times to use."""

    def finished_run(self, bases: Sequence[int]) -> list[ClosedSegment]:
        """Return the finished, consecutive local segments with these base offsets."""

    def cleanable_segments(self) -> list[ClosedSegment]:
        """Return the finished segments, oldest first."""

    def still_has(self, segments: Iterable[Segment]) -> bool:
        """Return whether the log still has all of these segment objects."""

    def show(self, swap: Swap, commit: Commit, operation: str) -> list[str]:
        """Rename the files of new segments into place, and show the segments."""

    def go_offline(self, operation: str, reason: str) -> None:
        """Take the partition offline."""


class LogAccess(LogView):
    """Methods of `Log` that long jobs call, from any thread. `Log` documents these methods.

    The long jobs are attaches, cleanings, erasures, and copies of segments to the tier. A job in
    the thread that owns the log gets the `Log` itself. In a broker, the event loop's thread owns
    the logs. A job in another thread gets a proxy of the log, which runs each call in the event
    loop's thread. The proxy has only the methods of `LogAccess`, so a job must not call any other
    method of a log.
    """

    @property
    @abstractmethod
    def swaps(self) -> SwapAccess:
        """The part of the log that adds or replaces finished segments."""

    def refresh(self) -> None:
        """Do nothing, because the writer's view is always current."""

    @property
    def active(self) -> ActiveSegment:
        """The segment that takes appends."""
        return self._list.active

    @property
    @abstractmethod
    def recovery_point(self) -> int:
        """Offset below which everything is durable."""

    @abstractmethod
    def append(
        self,
        records: Iterable[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> AppendResult:
        """Append records; return their offsets and times."""

    @abstractmethod
    def flush(self) -> None:
        """Make all appends durable."""

    @abstractmethod
    def roll(self, reason: RollReason = RollReason.REQUEST) -> bool:
        """Finish the active segment; return False if it was empty."""

    @abstractmethod
    def note_of(self, segment: Segment) -> tuple[SegmentNote | None, int]:
        """Return a local segment's note, and the time in ms by which its records had arrived."""

    @abstractmethod
    def apply_retention(self, *, by_age: bool = True) -> list[Deletion]:
        """Delete the segments that the retention rules select; return them, oldest first."""

    @abstractmethod
    def advance_start(self, offset: int, rule: StartRule = StartRule.COPY) -> None:
        """Move the log start forward to `offset`, whatever the topic's `cleanup.policy`."""

    @abstractmethod
    def take_tier(self, record: "TierRecord") -> None:
        """Store and use a new version of the partition's `tidelog-tier.json`."""


class Log(LogAccess):
    """A partition that takes appends.

    Attributes:
        segment_list: Segments of the partition, local and in the tier.
        guard: Takes the partition offline after a failure.
        writer: Writes validated appends.
        truncator: Truncates the end of the log.
        deleter: Moves the start of the log.
        follower: Copies a leader's batches.
        recovery_report: Repairs that were made when the log was opened.
        opened_end_offset: Log end offset when the log was opened.
    """

    def __init__(self, parts: LogParts) -> None:
        """Create a log from its parts; see `open_writable`."""
        segments = parts.segments
        super().__init__(segments)
        self.segment_list = segments
        self.recovery_report = parts.report
        self.opened_end_offset = segments.end_offset
        self.guard = parts.guard
        self._flusher = parts.flusher
        self._epochs = parts.epochs
        self._producers = parts.producers
        self._clock = parts.clock
        self._notes = parts.notes
        context, body_check = segments.context, parts.options.body_check
        self._rules = AppendRules(context.topic_partition, context.config, body_check)
        self._roller = roller = SegmentRoller(parts)
        self.writer = AppendWriter(parts, roller)
        self.truncator = Truncator(parts)
        self.deleter = Deleter(parts, roller)
        self._swaps = SegmentSwaps(parts, roller, self.deleter)
        self.follower = FollowerLog(parts, roller, self.writer, self._rules)
        self.configure(segments.context.config)

    @classmethod
    def open_writable(cls, context: SegmentContext, options: LogOptions) -> "Log":
        """Open a partition's directory for writing, after recovery if one is needed.

        Raises:
            StorageFailure: The disk failed; nothing valid was removed.
            CorruptFile, UnsupportedVersion: A file that can't be rebuilt, such as
                `leader-epoch-checkpoint` or `tidelog-tier.json`, is damaged, or a later release has
                written it.
        """
        return cls(load_log(context, options))

    # -- state -------------------------------------------------------------------------------

    @property
    def swaps(self) -> SegmentSwaps:
        """The part of the log that adds or replaces finished segments."""
        return self._swaps

    @property
    def failure(self) -> StorageFailure | None:
        """Why the partition is offline, None while it is online."""
        return self.guard.failure

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of appends from now on."""
        return self._epochs.leader_epoch

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """Leader epochs of the log's records, with the start offset of each epoch."""
        return self._epochs.epochs

    def producer_states(self) -> ProducerStates:
        """Return producers and open transactions at the log end."""
        return self._producers

    @property
    def recovery_point(self) -> int:
        """Offset below which everything is durable."""
        return self._flusher.recovery_point

    @property
    def is_flush_due(self) -> bool:
        """Whether the caller of an append has to call `flush_later`."""
        return self._flusher.is_flush_due

    @property
    def last_flush_ms(self) -> int:
        """Wall time in ms when the log was opened or last flushed; see `Flusher`."""
        return self._flusher.last_flush_ms

    @property
    def last_append_ms(self) -> int:
        """Last append time in ms that was assigned, copied or found on disk; -1 if unknown."""
        return self._clock.last_ms

    def note_of(self, segment: Segment) -> tuple[SegmentNote | None, int]:
        """Return a local segment's note, and the time in ms by which its records had arrived.

        Without a note, the first value is None. For an empty active segment, the time is -1.
        """
        seen_ms = self._notes.seen_ms(segment)
        return self._notes.note_of(segment), seen_ms

    def configure(self, config: TopicConfig) -> None:
        """Use new settings of the topic from the next append on."""
        for part in (self._list, self._notes, self._rules, self._roller, self._flusher):
            part.configure(config)
        self._has_append_times = config.tidelog_append_time_enable
        self._stamps_alone = stamps_by_append_clock(config)

    def use_kernels(self) -> "KernelSearch":
        """Use kernels for searches, checks of appends and zone maps; see `LogView.use_kernels`."""
        search = super().use_kernels()
        self._rules.use_kernels()
        self._roller.map_waiting()
        return search

    # -- appending ---------------------------------------------------------------------------

    def append(
        self,
        records: Iterable[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> AppendResult:
        """Append records, in batches of about `batch_bytes` before compression.

        A record without a timestamp gets the current wall time. If the disk fails, some of the
        records may be in the log. After any other error, no record was appended.

        Args:
            records: At least one.
            codec: Compression codec of the batches, unless `compression.type` sets another codec.
            batch_bytes: Size at which a batch is closed; a larger record gets a batch of its own.

        Raises:
            InvalidRequest: There is no record, or `batch_bytes` is below 1.
            InvalidRecord: The topic's rules refuse a record.
            InvalidTimestamp: A timestamp is outside the topic's limits.
            MessageTooLarge: A batch is larger than `max.message.bytes`, or has more than 128 MiB of
                records to compress.
            RecordListTooLarge: The batches together exceed `segment.bytes`.
            ClockJump: The wall clock jumped ahead, or the last append time on disk is far ahead of
                the wall clock; see `LogDir.accept_clock`.
            StorageFailure: The disk failed; the partition is offline.
        """
        return self.writer.append(self.prepare(records, codec=codec, batch_bytes=batch_bytes))

    def prepare(
        self, records: Iterable[NewRecord], *, codec: Codec, batch_bytes: int
    ) -> PendingAppend:
        """Validate an append of records for `AppendWriter`; see `append` and `prepare_append`.

        Raises:
            TidelogError: As in `append`, except StorageFailure; nothing was changed.
        """
        now_ms = self.context.env.clock.now_ms()
        config = self._rules.config
        batch_bytes = batch_bytes_for(batch_bytes, config.max_message_bytes)
        codec, level = stored_codec(config, codec)
        data = bytearray()
        batches = build_batches(records, codec, batch_bytes, now_ms, level=level)
        rules = RecordRules(str(self.context.topic_partition), config)
        for batch in rules.sized(batches):
            data += batch
        return self.prepare_append(data, BUILT)

    def append_batches(self, data: Buffer, terms: AppendTerms = FOREIGN) -> AppendResult:
        """Append prepared batches; this method assigns their offsets and leader epoch.

        Args:
            data: Whole batches of magic 2. A client or a coordinator may append only one batch at a
                time. If the terms have `takes_legacy`, `data` can be a message set of magic 0 or 1
                instead.
            terms: Origin of the append, and the checks that the batches need.

        Raises:
            CorruptBatch, CorruptRecord, InvalidRecord, InvalidTimestamp, MessageTooLarge,
                RecordListTooLarge, UnsupportedCompression: The batches are refused; nothing was
                changed.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState,
                TransactionCoordinatorFenced: The producer's state forbids the append.
            ClockJump, StorageFailure: As in `append`.
            LongCheck: `terms.is_bounded` is true, but the check takes long. Nothing was changed;
                `check_append` has to check the batches first.
        """
        return self.writer.append(self.prepare_append(data, terms))

    def prepare_append(
        self, data: Buffer, terms: AppendTerms, moment: Moment | None = None
    ) -> PendingAppend:
        """Validate an append for `AppendWriter`; the result is valid until the log is changed.

        Args:
            data: As in `append_batches`.
            terms: As in `append_batches`.
            moment: Clock reading that is shared by appends made together. If it is None, the clock
                is read for this append alone.

        Raises:
            TidelogError, LongCheck: As in `append_batches`, except the errors of the producer's
                state.
        """
        guard = self.guard
        if guard.failure is not None or guard.is_closed:
            guard.ensure_writable()
        context = self._context(terms, *self._times_ms(moment))
        return self._rules.validator.validate(data, context)

    def _context(
        self, terms: AppendTerms, append_ms: int, now_ms: int, stamp_ms: int
    ) -> AppendContext:
        end_offset = self._list.all[-1].end_offset
        epoch = self._epochs.leader_epoch
        return AppendContext(terms, end_offset, epoch, now_ms, append_ms, stamp_ms)

    def _times_ms(self, moment: Moment | None = None) -> tuple[int, int, int]:
        """Return an append's append time, wall time and LogAppendTime timestamp, in ms.

        The append time is -1 if the append clock is off.

        Raises:
            ClockJump: As in `append`.
        """
        if self._has_append_times:
            append_ms, now_ms = self._clock.next_and_now_ms(moment)
            return append_ms, now_ms, append_ms
        now_ms = self.context.env.clock.now_ms()
        return UNKNOWN_MS, now_ms, self._clock.next_ms() if self._stamps_alone else now_ms

    def check_append(self, data: Buffer) -> Buffer:
        """Check a client's batch as `append_batches` does, but append nothing.

        Any thread may call this method.

        Returns:
            The batch: `data`, possibly changed in place, or a rewritten copy. The caller appends
            this batch with terms whose `is_checked` is true.

        Raises:
            TidelogError: The batch is refused, with the errors of `append_batches`.
        """
        now_ms = self.context.env.clock.now_ms()
        context = AppendContext(_LONG, 0, 0, now_ms, now_ms, now_ms)
        return self._rules.validator.validate(data, context).data

    def check_set(self, data: Buffer) -> PreparedSet:
        """Check a message set of magic 0 or 1 for `append_set`; append nothing.

        Any thread may call this method.

        Raises:
            TidelogError: The set is refused, with the errors of `append_batches`.
        """
        now_ms = self.context.env.clock.now_ms()
        context = self._context(_LONG_SET, now_ms, now_ms, now_ms)
        return self._rules.validator.prepare_set(data, context)

    def append_set(self, prepared: PreparedSet) -> AppendResult:
        """Append a set that `check_set` has checked.

        Raises:
            LongCheck: Records were appended after `check_set` had assigned the set's offsets, so
                `check_set` has to run again.
            InvalidRecord, RecordListTooLarge, MessageTooLarge, ClockJump, StorageFailure: As in
                `append_batches`.
        """
        self.guard.ensure_writable()
        append = prepared.finish(self._context(_LONG_SET, *self._times_ms()))
        if append is None:
            raise LongCheck
        return self.writer.append(append)

    def end_transaction(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Append the marker that commits or aborts a producer's open transaction.

        If no transaction is open, the marker is still written, as in Kafka, but it ends nothing. A
        clock jump does not prevent a marker: a transaction without an end would block all readers
        of committed records.

        Args:
            producer_id: Producer of the transaction.
            producer_epoch: Epoch of the marker.
            coordinator_epoch: Epoch of the coordinator that decided to commit or abort.
            commit: Whether the marker commits; False aborts.
            transaction_version: From version 2 on, the marker's epoch must be above the producer's;
                only a retry of a marker that was already written may have the producer's epoch.

        Raises:
            InvalidProducerEpoch: The marker's epoch is older than the producer's; or, from
                transaction version 2 on, both epochs are equal and the marker is not a retry.
            TransactionCoordinatorFenced: A coordinator with a later epoch has written a marker for
                this producer.
            StorageFailure: As in `append`.
        """
        append_ms, now_ms = self._marker_times_ms()
        marker = build_end_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now_ms,
        )
        self.guard.ensure_writable()
        context = self._context(COORDINATED, append_ms, now_ms, now_ms)
        append = self._rules.validator.validate(marker, context)
        append.transaction_version = transaction_version
        return self.writer.append(append)

    def _marker_times_ms(self) -> tuple[int, int]:
        """Return a marker's append time and timestamp in ms, even after a clock jump."""
        try:
            append_ms, now_ms, stamp_ms = self._times_ms()
        except ClockJump as jump:
            fallback_ms = self._clock.fallback_ms(jump)
            return fallback_ms if self._has_append_times else UNKNOWN_MS, fallback_ms
        return append_ms, stamp_ms if self._stamps_alone else now_ms

    # -- methods that delegate to a part of the log ------------------------------------------

    def roll(self, reason: RollReason = RollReason.REQUEST) -> bool:
        """Finish the active segment; see `SegmentRoller.roll`."""
        return self._roller.roll(reason)

    def flush(self) -> None:
        """Make all appends durable; see `Flusher.flush`."""
        self._flusher.flush()

    def flush_later(self, done: Callable[[StorageFailure | None], None]) -> int:
        """Make all appends so far durable, without waiting; see `Flusher.flush_later`."""
        return self._flusher.flush_later(done)

    def truncate_to(self, offset: int) -> int:
        """Truncate the log's end; see `Truncator.truncate_to`."""
        return self.truncator.truncate_to(offset)

    def delete_records(self, offset: int) -> int:
        """Move the log start for a client; see `Deleter.delete_records`."""
        return self.deleter.delete_records(offset)

    def apply_retention(self, *, by_age: bool = True) -> list[Deletion]:
        """Delete the segments that the retention rules select; see `Deleter.apply_retention`."""
        return self.deleter.apply_retention(by_age=by_age)

    def advance_start(self, offset: int, rule: StartRule = StartRule.COPY) -> None:
        """Move the log start forward, whatever the policy; see `Deleter.advance_start`."""
        self.deleter.advance_start(offset, rule)

    def take_tier(self, record: "TierRecord") -> None:
        """Store and use a new version of `tidelog-tier.json`; see `Deleter.take_tier`."""
        self.deleter.take_tier(record)

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Write the last entries of the indexes and append times, sync, and write the checkpoints.

        The checkpoints are the producer snapshot and the append-time checkpoint. If the log is
        offline, nothing is written.

        Raises:
            StorageFailure: The disk failed; the log counts as not closed cleanly.
        """
        self.guard.close(self._close_cleanly)

    def _close_cleanly(self) -> None:
        active, end = self.active, self._list.end_offset
        fs, directory = self.context.env.files, self.context.directory
        with typed_failures(active.log_path, "close"):
            active.close_entries()
            active.sync()
            self._notes.closed(active)
            self._flusher.note_durable(end)
            self._roller.write_snapshot(end, self._producers.encode_snapshot())
            # The newest snapshot and the snapshots at base offsets of segments are kept, as in
            # Kafka.
            drop_other_snapshots(self.context, {*(s.base_offset for s in self._list.all), end})
            self.deleter.unlink_all()
            # With an append-time checkpoint, the next start can prove that the log was not
            # truncated below its current end.
            self._list.append_time_checkpoint(self._clock.last_ms).write(fs, directory)
            self._roller.map_rest()

    def abandon(self) -> None:
        """Stop using the log without writing, for example before its directory is removed."""
        self.detach()()

    def detach(self) -> Callable[[], None]:
        """Do the quick part of `abandon`; return a function that does the rest.

        Any thread may run the returned function. Until this function has returned, the log's files
        may be in use.
        """
        self._list.forget_maps()  # the next opening may truncate the last segment
        wait = self.guard.abandon()

        def release_files() -> None:
            wait()
            for segment in self._list.all:
                self.context.maps.forget(segment.log_path)
            # After a failed truncation there may be no segment.
            for active in self._list.all[-1:]:
                for suffix in log_files.SEGMENT_SUFFIXES:
                    self.context.pool.forget(self.context.path(active.base_offset, suffix))

        return release_files


def append_together(
    pairs: Sequence[tuple[Log, Buffer]], terms: AppendTerms
) -> list[AppendResult | TidelogError | LongCheck]:
    """Append a batch to each of several different logs; see `append_writer`.

    A callback of `FailureGuard.call_on_failure` may append to any of the logs. So these callbacks
    run at the end, when no log is between two steps of an append.

    Args:
        pairs: Each log, with the bytes to append to it.
        terms: Terms of all appends.

    Returns:
        For each append, its result or its error. An error of one append does not affect the other
        appends.
    """
    calls: list[Callable[[], None]] = []
    for log, _ in pairs:
        log.guard.deferred_calls = calls
    try:
        outcomes = _append_by_steps(pairs, terms)
    finally:
        for log, _ in pairs:
            log.guard.deferred_calls = None
    for call in calls:
        call()
    return outcomes


def _append_by_steps(
    pairs: Sequence[tuple[Log, Buffer]], terms: AppendTerms
) -> list[AppendResult | TidelogError | LongCheck]:
    moment = Moment()
    outcomes: list[PendingAppend | AppendResult | TidelogError | LongCheck] = []
    for log, data in pairs:
        try:
            outcomes.append(log.prepare_append(data, terms, moment))
        except (TidelogError, LongCheck) as error:
            _drop_frames(error)
            outcomes.append(error)
    for step in (AppendWriter.begin, AppendWriter.write, AppendWriter.finish):
        for number, outcome in enumerate(outcomes):
            if type(outcome) is PendingAppend:
                try:
                    result = step(pairs[number][0].writer, outcome)
                except TidelogError as error:
                    _drop_frames(error)
                    outcomes[number] = error
                else:
                    if result is not None:
                        outcomes[number] = result
    return cast("list[AppendResult | TidelogError | LongCheck]", outcomes)


def _drop_frames(error: BaseException | None) -> None:
    """Drop an error's frames, because they form a cycle that keeps the append's buffer alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
