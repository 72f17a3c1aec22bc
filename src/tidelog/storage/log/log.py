"""One partition, open for writing: append, truncate, delete, retain.

A `Log` is a `LogReader` whose last segment takes appends. Exactly one process has it: the holder
of the directory's lock.

Life cycle: open -> (append | roll | flush | truncate | retain)* -> close. Appends and changes
belong to one thread at a time; reads may go on in others.
Source: Kafka 4.x UnifiedLog, LocalLog; KIP-32, KIP-33.
"""

from collections.abc import Iterable

from tidelog.errors import ClockJump, FencedLeaderEpoch, InvalidRequest
from tidelog.record.builder import BATCH_BYTES, build_end_marker
from tidelog.storage.log.append import (
    AppendContext,
    AppendOrigin,
    AppendResult,
    LongCheck,
    ValidatedAppend,
    build_batches,
)
from tidelog.storage.log.append_writer import SteppingLog, may_have_producers
from tidelog.storage.log.log_loader import LogOptions
from tidelog.storage.log.message_sets import PreparedSet
from tidelog.storage.log.producers import Duplicate, ProducerStates
from tidelog.types import NO_TIMESTAMP, UNKNOWN_MS, Buffer, Codec, NewRecord, TimestampType

__all__ = ["AppendOrigin", "AppendResult", "Log", "LogOptions"]


class Log(SteppingLog):
    """A partition that takes appends."""

    # -- appending ---------------------------------------------------------------------------

    @property
    def last_append_ms(self) -> int:
        """The last append time given out or found on disk in ms, -1 where there is none."""
        return self._append_clock.last_ms

    def append(
        self,
        records: Iterable[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> AppendResult:
        """Append records, in batches of about `batch_bytes` before compression.

        A record without a timestamp gets the clock's time. Either all are appended or none, but
        for a failing disk.

        Args:
            records: At least one.
            codec: Compression of the batches, unless `compression.type` says another.
            batch_bytes: Where a batch is closed; a larger record gets a batch of its own.

        Raises:
            InvalidRecord: No record, or one that the topic's rules refuse.
            InvalidTimestamp: A timestamp outside the topic's limits.
            MessageTooLarge: A record larger than `max.message.bytes`, or records to compress of
                more than 128 MiB in one batch.
            ClockJump: The clock jumped; see `accept_clock`.
            StorageFailure: The disk failed; the partition is offline.
        """
        now = self.context.env.clock.now_ms()
        data = bytearray()
        for batch in build_batches(records, codec, batch_bytes, now):
            data += batch
        return self.append_batches(data, origin=AppendOrigin.SINK, owned=True, trusted=True)

    def append_batches(  # noqa: PLR0913 - what its caller knows of the batches
        self,
        data: Buffer,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        owned: bool = False,
        trusted: bool = False,
        takes_legacy: bool = False,
        transaction_version: int = 0,
        is_bounded: bool = False,
        is_checked: bool = False,
        times_ms: tuple[int, int] | None = None,
    ) -> AppendResult:
        """Append prepared batches of magic 2; offsets and leader epoch are assigned here.

        Args:
            data: Whole batches; one from a client.
            origin: Who appends, which decides what is checked.
            owned: Whether the buffer may be patched in place.
            trusted: The batches were built by us; records are not opened again. A coordinator's
                one batch, in a bytearray, is changed in place.
            takes_legacy: A message set of magic 0 or 1 may come instead, and stays one.
            transaction_version: Of transactions, where a marker comes; see `ProducerStates.check`.
            is_bounded: Whether a check that takes long raises LongCheck instead.
            is_checked: Whether the batches come from `check_append`.
            times_ms: Append time and wall time; None to ask the clocks.

        Raises:
            CorruptBatch, CorruptRecord, InvalidRecord, InvalidTimestamp, MessageTooLarge,
            RecordListTooLarge, UnsupportedCompression: Refused, nothing was changed.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, TransactionCoordinatorFenced:
                The producer's state forbids it.
            ClockJump, StorageFailure: As `append`.
            LongCheck: `check_append` has to be asked first; nothing was changed.
        """
        if self._failure is not None or self._is_closed:
            self._ensure_writable()
        append_ms, now_ms = self._append_times_ms() if times_ms is None else times_ms
        stamp_ms = now_ms if append_ms == UNKNOWN_MS else append_ms
        if self._stamps_alone and times_ms is None:
            stamp_ms = self._append_clock.next_ms()
        end, epoch = self._segments[-1].end_offset, self.leader_epoch
        batch = None
        if owned and origin is AppendOrigin.CLIENT and not is_checked:
            batch = self._plain.accept(data, end, epoch, now_ms)
        elif trusted and origin is AppendOrigin.COORDINATOR and isinstance(data, bytearray):
            batch = self._plain.accept_built(data, end, epoch)
        if batch is not None:
            return self._append_one(batch, data, append_ms, now_ms, origin, transaction_version)
        context = AppendContext(
            next_offset=end,
            leader_epoch=epoch,
            now_ms=now_ms,
            append_time_ms=stamp_ms,
            origin=origin,
            owned=owned,
            trusted=trusted,
            takes_legacy=takes_legacy,
            is_bounded=is_bounded,
            is_checked=is_checked,
        )
        valid = self._validator.validate(data, context)
        if may_have_producers(valid):
            duplicate = self._check_producers(valid, origin, transaction_version)
            if duplicate is not None:
                return self._duplicate_result(duplicate)
        self._write(valid, append_ms, origin, now_ms)
        return self._result(valid, append_ms, stamp_ms)

    def check_append(self, data: Buffer) -> Buffer:
        """Check a client's batch as `append_batches` does, in any thread; nothing is appended.

        Returns:
            The batch as it is to be appended, with `is_checked`: in `data`, or written anew.

        Raises:
            TidelogError: As `append_batches`, of batches that it refuses.
        """
        now_ms = self.context.env.clock.now_ms()
        context = AppendContext(
            next_offset=0, leader_epoch=0, now_ms=now_ms, append_time_ms=now_ms, owned=True
        )
        return self._validator.validate(data, context).data

    def check_set(self, data: Buffer) -> PreparedSet:
        """Check a message set of magic 0 or 1, in any thread; nothing is appended.

        Raises:
            TidelogError: As `append_batches`, of sets that it refuses.
        """
        now_ms = self.context.env.clock.now_ms()
        context = AppendContext(
            next_offset=self.log_end_offset,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            append_time_ms=now_ms,
            owned=True,
            takes_legacy=True,
        )
        return self._validator.prepare_set(data, context)

    def append_set(self, prepared: PreparedSet) -> AppendResult:
        """Append what `check_set` has checked.

        Raises:
            LongCheck: It has to be checked again, since others have appended meanwhile.
            InvalidRecord, RecordListTooLarge, MessageTooLarge, ClockJump, StorageFailure: As
                `append_batches`.
        """
        self._ensure_writable()
        append_ms, now_ms = self._append_times_ms()
        stamp_ms = now_ms if append_ms == UNKNOWN_MS else append_ms
        if self._stamps_alone:
            stamp_ms = self._append_clock.next_ms()
        context = AppendContext(
            next_offset=self.log_end_offset,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            append_time_ms=stamp_ms,
            owned=True,
            takes_legacy=True,
        )
        valid = prepared.finish(context)
        if valid is None:
            raise LongCheck
        self._write(valid, append_ms, AppendOrigin.CLIENT, now_ms)
        return self._result(valid, append_ms, stamp_ms)

    def append_as_follower(self, data: Buffer, *, append_ms: int = UNKNOWN_MS) -> AppendResult:
        """Append a leader's batches as they are: their offsets, epochs and timestamps stay.

        Args:
            data: Whole batches, in order.
            append_ms: When the leader took the records, where it says so; -1 for unknown. The time
                of arrival here is never their append time.

        Raises:
            CorruptBatch, CorruptRecord, InvalidRecord, InvalidRequest, RecordListTooLarge: Refused,
                nothing was changed.
            StorageFailure: As `append`.
        """
        self._ensure_writable()
        append_ms = self._copied_append_ms(append_ms)
        context = AppendContext(
            next_offset=self.log_end_offset,
            leader_epoch=self.leader_epoch,
            now_ms=append_ms,
            append_time_ms=append_ms,
            origin=AppendOrigin.REPLICATION,
        )
        valid = self._validator.validate(data, context)
        for batch in valid.batches:
            if batch.is_control and batch.has_producer_id:
                ProducerStates().update(batch)  # once written, a marker can't be refused any more
        self._note_gaps(valid.batches)
        now_ms = self.context.env.clock.now_ms()
        self._write(valid, append_ms, AppendOrigin.REPLICATION, now_ms)
        self._append_clock.observe(append_ms)
        self._note_stamps(valid.batches)
        self._outgrow_epochs()
        return self._result(valid, append_ms, valid.max_timestamp)

    def _copied_append_ms(self, append_ms: int) -> int:
        """The leader's append time, held against the last one."""
        if append_ms == UNKNOWN_MS or not self._config.tidelog_append_time_enable:
            return UNKNOWN_MS
        if append_ms < self._append_clock.last_ms:
            raise InvalidRequest(
                f"{self.topic_partition}: append time {append_ms} ms where"
                f" {self._append_clock.last_ms} ms was the last: append times never run back"
            )
        return append_ms

    def _check_producers(
        self, valid: ValidatedAppend, origin: AppendOrigin, transaction_version: int
    ) -> Duplicate | None:
        for batch in valid.batches:
            if batch.has_producer_id:
                duplicate = self._producers.check(
                    batch, origin=origin, transaction_version=transaction_version
                )
                if duplicate is not None:
                    return duplicate
        return None

    def _result(self, valid: ValidatedAppend, append_ms: int, stamp_ms: int) -> AppendResult:
        stamped = self._config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        return AppendResult(
            valid.first_offset,
            valid.last_offset,
            append_ms,
            stamp_ms if stamped else NO_TIMESTAMP,
            self._log_start_offset,
        )

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

        Where none is open the marker is written all the same, as Kafka does, and ends nothing. No
        clock stops a marker: a transaction that can't end holds up all that read committed records.

        Args:
            producer_id: Whose transaction.
            producer_epoch: Of the marker.
            coordinator_epoch: Of the coordinator that decided.
            commit: False aborts.
            transaction_version: From 2 on the epoch must be above the producer's, but for a
                marker that was written already.

        Raises:
            InvalidProducerEpoch: The epoch is older than the producer's, or not above it.
            TransactionCoordinatorFenced: A later coordinator has written a marker for it.
            StorageFailure: As `append`.
        """
        times_ms = self._marker_times_ms()
        marker = build_end_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=times_ms[1],
        )
        return self.append_batches(
            marker,
            origin=AppendOrigin.COORDINATOR,
            owned=True,
            trusted=True,
            transaction_version=transaction_version,
            times_ms=times_ms,
        )

    def _marker_times_ms(self) -> tuple[int, int]:
        """Append time and wall time of a marker, whatever the clock says."""
        try:
            if self._stamps_alone:
                return UNKNOWN_MS, self._append_clock.next_ms()
            return self._append_times_ms()
        except ClockJump as jump:
            held_ms = self._append_clock.held_ms(jump)
            return held_ms if self._has_append_times else UNKNOWN_MS, held_ms

    def fence(self, leader_epoch: int) -> None:
        """Write under this epoch from now on.

        Raises:
            FencedLeaderEpoch: It is older than one the log has seen.
        """
        if leader_epoch < self._epochs.latest_epoch:
            raise FencedLeaderEpoch(
                f"{self.topic_partition}: leader epoch {leader_epoch} is older than"
                f" {self._epochs.latest_epoch}"
            )
        self.leader_epoch = leader_epoch
        self._epoch_is_noted = False
