"""One partition, open for writing: append, truncate, delete, retain.

A `Log` is a `LogReader` whose last segment takes appends. Exactly one process has it: the holder
of the directory's lock.

Life cycle: open -> (append | roll | flush | truncate | retain)* -> close. Appends and changes
belong to one thread at a time; reads may go on in others.
Source: Kafka 4.x UnifiedLog, LocalLog; KIP-32, KIP-33.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.errors import FencedLeaderEpoch, InvalidRequest, StorageFailure
from tidelog.record.batch import MAGIC_2, RecordBatch
from tidelog.record.builder import build_end_marker
from tidelog.record.views import Batch
from tidelog.storage import roll
from tidelog.storage.active import UNKNOWN_MS, ActiveSegment
from tidelog.storage.appends import AppendContext, AppendOrigin, ValidatedAppend
from tidelog.storage.following import FollowingLog
from tidelog.storage.grouping import build_batches
from tidelog.storage.opening import LogOptions
from tidelog.storage.producers import Duplicate, ProducerStates
from tidelog.types import INT32_MAX, NO_TIMESTAMP, Buffer, Codec, NewRecord, TimestampType

BATCH_BYTES: Final = 16_384


@dataclass(slots=True)
class AppendResult:
    """What an append says to whoever asked for it.

    Attributes:
        base_offset: Offset of the first record.
        last_offset: Offset of the last record, inclusive.
        append_time_ms: When the log took the records; -1 where the append clock is off.
        log_append_time_ms: What Kafka's produce answer says: -1 on CreateTime topics.
        log_start_offset: First offset of the log.
        is_duplicate: An idempotent producer's batch that was there already; nothing was written.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


class Log(FollowingLog):
    """A partition that takes appends."""

    # -- appending ---------------------------------------------------------------------------

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

    def append_batches(
        self,
        data: Buffer,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        owned: bool = False,
        trusted: bool = False,
        takes_legacy: bool = False,
        transaction_version: int = 0,
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

        Raises:
            CorruptBatch, CorruptRecord, InvalidRecord, InvalidTimestamp, MessageTooLarge,
            RecordListTooLarge, UnsupportedCompression: Refused, nothing was changed.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, TransactionCoordinatorFenced:
                The producer's state forbids it.
            ClockJump, StorageFailure: As `append`.
        """
        self._ensure_writable()
        append_ms = self._next_append_ms()
        now_ms = self.context.env.clock.now_ms()
        stamp_ms = max(append_ms, now_ms) if append_ms != UNKNOWN_MS else now_ms
        end, epoch = self.log_end_offset, self.leader_epoch
        valid = None
        if owned and origin is AppendOrigin.CLIENT:
            valid = self._plain.accept(data, end, epoch, now_ms)
        elif trusted and origin is AppendOrigin.COORDINATOR and isinstance(data, bytearray):
            valid = self._plain.accept_built(data, end, epoch)
        if valid is None:
            context = AppendContext(
                next_offset=end,
                leader_epoch=epoch,
                now_ms=now_ms,
                append_time_ms=stamp_ms,
                origin=origin,
                owned=owned,
                trusted=trusted,
                takes_legacy=takes_legacy,
            )
            valid = self._validator.validate(data, context)
        if _may_have_producers(valid):
            duplicate = self._check_producers(valid, origin, transaction_version)
            if duplicate is not None:
                return self._duplicate_result(duplicate)
        self._write(valid, append_ms, origin, now_ms)
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

    def _next_append_ms(self) -> int:
        if not self._config.tidelog_append_time_enable:
            return UNKNOWN_MS
        return self._append_clock.next_ms()

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

    def _write(
        self, valid: ValidatedAppend, append_ms: int, origin: AppendOrigin, now_ms: int
    ) -> None:
        """As `_guarded_now` would do it, without the calls: this is done for each append."""
        begun = self.active
        self._ensure_writable()
        self._is_changed = True
        try:
            if origin is AppendOrigin.REPLICATION or not self._epoch_is_noted:
                self._note_epochs(valid, origin)
            self._maybe_roll(begun, valid, now_ms)
            active = self.active
            active.append(valid.batches, (valid.data,), append_ms)
            if _may_have_producers(valid):
                self._update_producers(valid.batches, now_ms)
            self._acknowledge(active, valid, now_ms)
        except (OSError, StorageFailure) as error:
            self._give_out(error, begun.log_path, "append")
        last = valid.batches[-1]
        if isinstance(last, RecordBatch):
            last.let_go()  # the segment keeps it, a request's buffer is to serve again

    def _note_epochs(self, valid: ValidatedAppend, origin: AppendOrigin) -> None:
        """The epoch file says who wrote an offset before the offset is written."""
        if origin is not AppendOrigin.REPLICATION:
            if self._epoch_is_noted:
                return
            changed = self._epochs.assign(self.leader_epoch, valid.first_offset)
            self._epoch_is_noted = True
        else:
            changed = self._note_leader_epochs(valid.batches)
        if changed:
            self._write_epochs()

    def _note_leader_epochs(self, batches: Sequence[Batch]) -> bool:
        changed = False
        for batch in batches:
            if batch.leader_epoch >= 0:
                changed |= self._epochs.assign(batch.leader_epoch, batch.base_offset)
            elif self._epochs.latest is not None:
                self._epochs.clear()
                changed = True
        return changed

    def _update_producers(self, batches: Sequence[Batch], now_ms: int) -> None:
        for batch in batches:
            if not batch.has_producer_id:
                continue
            completed = self._producers.update(batch, now_ms)
            if completed is not None and completed.is_aborted:
                self.active.append_aborted(self._producers.aborted_entry(completed))

    def _acknowledge(self, active: ActiveSegment, valid: ValidatedAppend, now: int) -> None:
        """Show the append, after a flush where `flush.messages` or `flush.ms` want one.

        The flush may be left to the caller, see `LogOptions.leaves_flushes`.
        """
        self._unflushed_records += valid.last_offset - valid.first_offset + 1
        config = self._config
        if now > self._notes.arrived_ms:
            self._notes.arrived_ms = now
        is_due = (
            self._unflushed_records >= config.flush_messages
            or now - self._last_flush_ms >= config.flush_ms
        )
        is_left = is_due and self._options.leaves_flushes
        if is_due and not is_left:
            active.sync_records()
        active.acknowledge()
        if is_left:
            self.is_flush_due = True
        elif is_due:
            self._note_flush(now, self.log_end_offset)

    def _result(self, valid: ValidatedAppend, append_ms: int, stamp_ms: int) -> AppendResult:
        stamped = self._config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        return AppendResult(
            valid.first_offset,
            valid.last_offset,
            append_ms,
            stamp_ms if stamped else NO_TIMESTAMP,
            self._log_start_offset,
        )

    def _duplicate_result(self, found: Duplicate) -> AppendResult:
        """The original offsets and the stored batch's timestamp, as Kafka answers."""
        known = self.append_time_of(found.first_offset)
        return AppendResult(
            found.first_offset,
            found.last_offset,
            UNKNOWN_MS if known is None else known,
            found.timestamp,
            self._log_start_offset,
            is_duplicate=True,
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

        Where none is open the marker is written all the same, as Kafka does, and ends nothing.

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
            ClockJump, StorageFailure: As `append`.
        """
        marker = build_end_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self.context.env.clock.now_ms(),
        )
        return self.append_batches(
            marker,
            origin=AppendOrigin.COORDINATOR,
            owned=True,
            trusted=True,
            transaction_version=transaction_version,
        )

    def _maybe_roll(self, active: ActiveSegment, valid: ValidatedAppend, now_ms: int) -> None:
        reason = roll.should_roll(
            roll.RollFacts(
                size_bytes=active.size_bytes,
                append_bytes=len(valid.data),
                base_offset=active.base_offset,
                append_last_offset=valid.last_offset,
                first_timestamp=active.first_timestamp,
                append_max_timestamp=valid.max_timestamp,
                created_ms=active.created_ms,
                now_ms=now_ms,
                offset_index_full=active.offset_index.is_full,
                time_index_full=active.time_index.is_full,
                jitter_ms=self._jitter_ms,
            ),
            self._roll_config,
        )
        if reason is not None:
            self._roll(max(_first_sure_offset(valid), self.log_end_offset), reason)

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


def _may_have_producers(valid: ValidatedAppend) -> bool:
    """Whether some batch may name a producer; most appends are one batch that names none."""
    return len(valid.batches) > 1 or valid.batches[0].has_producer_id


def _first_sure_offset(valid: ValidatedAppend) -> int:
    """The first offset of an append, as far as it is known without decompression, as in Kafka."""
    if valid.batches[0].magic == MAGIC_2:
        return valid.first_offset
    return valid.batches[0].last_offset - INT32_MAX


__all__ = ["AppendOrigin", "AppendResult", "Log", "LogOptions"]
