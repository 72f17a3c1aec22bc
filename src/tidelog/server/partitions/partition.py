"""One partition of the broker: appends, high watermark, shared syncs, and its transactions.

A producer's first batch of a transaction is accepted only after the coordinator has confirmed that
the partition belongs to the transaction. The transaction may end between that confirmation and the
append. So each such request holds a `Guard`, and appending the transaction's marker makes the guard
invalid. Later batches need no confirmation, because the transaction is already open in the log. For
readers of committed records, a transaction ends only when the high watermark is above the offset of
its marker.

The coordinator decides how a transaction ends, stores the decision, and has markers written to the
transaction's partitions. The coordinator and the partitions run in the event loop's thread.

Source: Kafka 4.3's ProducerStateManager, UnifiedLog and Partition; KIP-98 (markers), KIP-890
(verification, partitions added to a transaction by Produce), KIP-1228 (transaction version in
markers).
"""

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    InvalidTxnState,
    OutOfOrderSequence,
    StorageFailure,
    TidelogError,
    UnknownTopic,
)
from tidelog.record.batch_walk import Batch
from tidelog.server.partitions.segment_reads import ReadEnds, SegmentBytes
from tidelog.server.runtime.reply import Reply, Watchable
from tidelog.storage.log.append_types import FOREIGN, AppendResult, AppendTerms
from tidelog.storage.log.log import Log
from tidelog.storage.log.producers import EPOCH_BUMP_VERSION
from tidelog.types import Buffer, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.producers import ProducerStates


class TransactionEnd(NamedTuple):
    """The end of a producer's transaction, as its coordinator decided.

    Attributes:
        producer_id: Id of the producer.
        producer_epoch: Epoch of the marker. If `transaction_version` is 2, it is the epoch of the
            transaction's records plus one. Otherwise it is the epoch of these records or a later
            epoch.
        coordinator_epoch: Epoch of the coordinator.
        commit: True to commit, False to abort.
        transaction_version: 2 if each transaction raises the producer's epoch; 0 or 1 for
            transactions of older clients.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0


class Guard:
    """The coordinator's verification of one producer's transaction.

    Concurrent requests of the producer share one guard.

    Attributes:
        epoch: The producer's newest epoch that is being verified.
        lowest_sequence: Lowest sequence of the requests with that epoch. The batch with this
            sequence must be written first.
        raises_epochs: Whether each of the producer's transactions has an epoch of its own.
        since_ms: Wall time in ms at which the first request arrived.
    """

    __slots__ = ("epoch", "lowest_sequence", "raises_epochs", "since_ms")

    def __init__(self, epoch: int, sequence: int, *, raises_epochs: bool, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.raises_epochs = raises_epochs
        self.since_ms = since_ms

    def note(self, epoch: int, sequence: int) -> None:
        """Include another request of the same producer in this verification."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class OpenTransactions:
    """State of transactions that the log does not store. Used only in the event loop's thread."""

    def __init__(self) -> None:
        self._guards: dict[int, Guard] = {}
        # First offset and marker offset of transactions that have ended, but whose marker is not
        # visible yet.
        self._unsafe: deque[tuple[int, int]] = deque()

    # -- begin of a transaction --------------------------------------------------------------

    def guard(
        self,
        states: "ProducerStates",
        producer: tuple[int, int],
        sequence: int,
        *,
        raises_epochs: bool,
        now_ms: int,
    ) -> Guard | None:
        """Return the guard of a request that the coordinator must verify.

        The result is None if the log already has an open transaction of the producer.

        Args:
            states: The log's producers.
            producer: Producer id and epoch.
            sequence: First sequence to be written, -1 for a coordinator's records.
            raises_epochs: Whether each of the producer's transactions has an epoch of its own.
            now_ms: Current wall time, in ms.
        """
        producer_id, epoch = producer
        if states.has_open_transaction(producer_id, epoch):
            return None
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = Guard(epoch, sequence, raises_epochs=raises_epochs, since_ms=now_ms)
            self._guards[producer_id] = guard
        else:
            guard.note(epoch, sequence)
        return guard

    def check(self, states: "ProducerStates", batch: Batch, guard: Guard | None) -> None:
        """Ensure that a batch of a transaction may be appended, given the guard of its request.

        This method does not reject duplicates and batches with an old epoch. The log handles them.

        Raises:
            InvalidTxnState: No transaction is open, and the request has no valid guard.
            OutOfOrderSequence: A batch before this one has not been written yet, or the producer is
                new to the partition and its first sequence is not 0.
        """
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        state = states.find(producer_id)
        if state is not None and (epoch < state.epoch or state.find_duplicate(batch) is not None):
            return
        current = self._guards.get(producer_id)
        if not states.has_open_transaction(producer_id, epoch) and (
            current is None or current is not guard
        ):
            raise InvalidTxnState(
                f"no open transaction of producer {producer_id} with epoch {epoch}"
                " in this partition"
            )
        if current is not None and batch.base_sequence >= 0:
            _check_sequence(current, batch, is_known=state is not None and bool(state.batches))

    def wrote(self, producer_id: int) -> None:
        """Drop the guard after a batch was appended, because the log then knows the transaction."""
        self._guards.pop(producer_id, None)

    def marked(self, end: TransactionEnd) -> None:
        """Drop the guard of an ended transaction after its marker was appended.

        With transaction version 2, each transaction has an epoch of its own, and a marker has the
        epoch of the next transaction. So a guard with the marker's epoch belongs to a request of
        the next transaction: it stays, and the request waits until the coordinator has completed
        the ended transaction. With older versions, a marker has the epoch of the ended transaction.
        """
        guard = self._guards.get(end.producer_id)
        raises = end.transaction_version >= EPOCH_BUMP_VERSION
        is_next = guard is not None and guard.raises_epochs and guard.epoch == end.producer_epoch
        if not (raises and is_next):
            self._guards.pop(end.producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Drop guards of age `expiration_ms` or more, whose batches were never appended."""
        for producer_id, guard in tuple(self._guards.items()):
            if now_ms - guard.since_ms >= expiration_ms:
                del self._guards[producer_id]

    # -- end of a transaction ----------------------------------------------------------------

    def ended(self, first_offset: int, marker_offset: int, high_watermark: int) -> None:
        """Remember a transaction that was ended by a marker that readers don't see yet."""
        self._drop_safe(high_watermark)
        self._unsafe.append((first_offset, marker_offset))

    def stable_end(self, stable: int, high_watermark: int) -> int:
        """Return the offset below which all transactions have ended with visible markers.

        Args:
            stable: Offset below which no transaction is open in the log.
            high_watermark: End of what readers may see (exclusive).
        """
        if self._unsafe:
            self._drop_safe(high_watermark)
            stable = min((stable, *(first for first, _ in self._unsafe)))
        return min(stable, high_watermark)

    def _drop_safe(self, high_watermark: int) -> None:
        while self._unsafe and self._unsafe[0][1] < high_watermark:
            self._unsafe.popleft()

    def clear(self) -> None:
        """Drop the state of all transactions, because the log was reopened."""
        self._guards.clear()
        self._unsafe.clear()


def _check_sequence(guard: Guard, batch: Batch, *, is_known: bool) -> None:
    sequence = batch.base_sequence
    if guard.raises_epochs and sequence and not is_known:
        raise OutOfOrderSequence(
            f"producer {batch.producer_id}: first sequence must be 0, got {sequence}"
        )
    if sequence > guard.lowest_sequence:
        raise OutOfOrderSequence(
            f"producer {batch.producer_id}: sequence {sequence} must follow sequence"
            f" {guard.lowest_sequence}, which has not been written yet"
        )


_Result = TypeVar("_Result")
ALL_REPLICAS: Final = -1

# Number of newly opened partitions after which their objects are moved to the garbage collector's
# oldest generation. They belong there because they live as long as the broker.
OLD_EVERY: Final = 8


class Partition(Watchable):
    """One partition of the broker. Used only in the event loop's thread.

    Attributes:
        name: Topic and number.
        log: The open log.
        high_watermark: End of what consumers may see (exclusive).
        is_deleted: Whether the topic was deleted.
        last_deletion_ms: Wall time in ms of the last deletion by retention since the broker
            started; None if there was none.
        read_ends: Positions where earlier reads ended.
        loop_bytes: Reads the log's segments on the event loop.
        transactions: State of transactions that is not stored in the log.
    """

    def __init__(self, log: Log, *, syncs_all: bool = False) -> None:
        """Create a partition.

        Args:
            log: The partition's log.
            syncs_all: Whether readers see only synced records (`tidelog.durability=fsync`).

        If the records that recovery kept can't be synced, the partition begins offline, and its
        durable records can be read.
        """
        super().__init__()
        self.name: TopicPartition = log.topic_partition
        self.is_deleted = False
        self.last_deletion_ms: int | None = None
        self._syncs_all = syncs_all
        self._sync_end: int | None = None  # end of the running sync; None if no sync runs
        self._is_sync_due = False
        self._waiting: deque[tuple[int, Reply[ErrorCode]]] = deque()
        self._flushes: dict[Reply[TidelogError | None], None] = {}
        self.read_ends = ReadEnds()
        self.transactions = OpenTransactions()
        self._begin(log)

    def _begin(self, log: Log) -> None:
        """Use an opened log."""
        self.log = log
        self.loop_bytes = SegmentBytes(log.context.pool, may_block=False)
        self.high_watermark = _synced_end(log) if self._syncs_all else log.log_end_offset
        log.segment_list.visible_end = lambda: self.high_watermark
        log.guard.call_on_failure(self.notify)

    @property
    def failure(self) -> StorageFailure | None:
        """Why the partition is offline; None if it is online."""
        return self.log.failure

    @property
    def last_stable_offset(self) -> int:
        """Offset below which all transactions have ended with visible markers."""
        return self.transactions.stable_end(self.log.last_stable_offset, self.high_watermark)

    def end_offset(self, isolation_level: int, *, is_follower: bool = False) -> int:
        """Return the end offset (exclusive) of what readers of this isolation level see.

        Followers see records of every isolation level, up to the log end. With `fsync`, they see
        only synced records, because any client may claim to be a follower.
        """
        if is_follower and not self._syncs_all:
            return self.log.log_end_offset
        if isolation_level == IsolationLevel.READ_COMMITTED and not is_follower:
            return self.last_stable_offset
        return self.high_watermark

    def append(self, data: Buffer, terms: AppendTerms = FOREIGN) -> AppendResult:
        """Append batches. Readers see them at once, or after a sync if the settings require one.

        For arguments and errors see `Log.append_batches`.
        """
        result = self.log.append_batches(data, terms)
        self.advance_to(result)
        return result

    def advance_to(self, result: AppendResult) -> None:
        """Advance the high watermark after an append with this result."""
        if self._syncs_all or self._sync_end is not None or self.log.is_flush_due:
            self.advance()
        elif not result.is_duplicate:
            self.high_watermark = result.last_offset + 1
            if self._watchers:
                self.notify()

    def advance(self) -> None:
        """Advance the high watermark to the log end and notify watchers.

        If a sync is due or running, the advance and the notification happen after the sync.
        """
        if self._syncs_all or self.log.is_flush_due:
            self._is_sync_due |= self.log.log_end_offset > self.high_watermark
            self._sync()
        elif self._sync_end is None:
            self._show(self.log.log_end_offset)

    def flush_later(self) -> None:
        """Sync appended records in the background; raises StorageFailure if offline."""
        self._is_sync_due = True
        self._sync()

    async def flushed(self) -> None:
        """Make appended records durable in the background, and return once they are durable.

        Raises:
            StorageFailure: The partition was offline, or went offline meanwhile.
            UnknownTopic: The topic was deleted meanwhile.
        """
        done: Reply[TidelogError | None] = Reply()
        self.log.flush_later(done.try_complete)
        self._flushes[done] = None
        try:
            failure = await done
        finally:
            del self._flushes[done]
        if failure is not None:
            raise failure

    def _show(self, end: int) -> None:
        if end != self.high_watermark:
            self.high_watermark = end
            self.notify()

    # -- syncs, shared by waiting appends ----------------------------------------------------

    def _sync(self) -> None:
        """Begin a sync of all appended records, unless a sync is running or no sync is due.

        The records that are appended during this sync become durable by the next sync.
        """
        if self._sync_end is not None or not self._is_sync_due:
            return
        self._is_sync_due = False
        self._sync_end = self.log.log_end_offset
        try:
            self.log.flush_later(self._synced)
        except StorageFailure:
            self._sync_end = None  # no sync runs
            raise

    def _synced(self, failure: StorageFailure | None) -> None:
        end, self._sync_end = self._sync_end, None
        assert end is not None
        if failure is not None:
            self._release(ErrorCode.KAFKA_STORAGE_ERROR)
            self.notify()
            return
        is_next_due = self._is_sync_due
        self._sync()
        self._show(end if is_next_due or self._syncs_all else self.log.log_end_offset)
        waiting, visible_end = self._waiting, self.high_watermark
        self._waiting = deque(each for each in waiting if each[0] > visible_end)
        for end_offset, reply in waiting:  # not sorted: a duplicate of an old batch may be last
            if end_offset <= visible_end:
                reply.try_complete(ErrorCode.NONE)

    def must_wait(self, result: AppendResult, acks: int) -> bool:
        """Whether an acknowledgement has to wait until readers may see the records.

        With `--durability fsync`, only requests with acks=all wait for the sync. Without it,
        requests with acks=1 and acks=all wait if the topic's settings require a flush of the
        records.
        """
        if result.last_offset < self.high_watermark:
            return False
        return acks == ALL_REPLICAS or (acks != 0 and not self._syncs_all)

    def visible(self, end_offset: int) -> Reply[ErrorCode]:
        """Return a reply that completes with NONE when readers see all records below `end_offset`.

        If readers will not see the records, the reply completes with an error code.
        """
        if self.failure is not None:
            return Reply.of(ErrorCode.KAFKA_STORAGE_ERROR)
        reply: Reply[ErrorCode] = Reply()
        self._waiting.append((end_offset, reply))
        return reply

    def _release(self, code: ErrorCode) -> None:
        """Complete all replies of `visible` with a code, because readers won't see the records."""
        waiting, self._waiting = self._waiting, deque()
        for _, reply in waiting:
            reply.try_complete(code)

    def _give_up_flushes(self, reason: TidelogError) -> None:
        """Fail the pending flushes of a log that is no longer used, with `reason`."""
        for done in self._flushes:
            done.try_complete(reason)

    def close(self) -> None:
        """Mark the partition as deleted, and notify everything that waits for it."""
        self.is_deleted = True
        self._release(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._give_up_flushes(UnknownTopic(f"{self.name}: the topic was deleted"))
        self.notify()

    def use(self, log: Log) -> None:
        """Continue with a reopened log."""
        self._release(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.failure is not None:
            self._give_up_flushes(self.failure)
        self.notify()  # tells watchers that the old log has failed
        self._sync_end, self._is_sync_due = None, False
        self.transactions.clear()
        self._begin(log)
        self.notify()  # tells watchers to use the new log


def _synced_end(log: Log) -> int:
    """Sync the records that recovery kept; return the end, exclusive, of the durable records."""
    if log.failure is None and log.recovery_point < log.log_end_offset:
        with suppress(StorageFailure):
            log.flush()  # on failure the partition is offline
    return (
        log.log_end_offset if log.failure is None else max(log.recovery_point, log.log_start_offset)
    )


def append_in_transaction(
    partition: Partition, data: Buffer, batch: Batch, guard: Guard | None, terms: AppendTerms
) -> AppendResult:
    """Append a batch that belongs to a transaction.

    Args:
        partition: The partition.
        data: The batch. The append may change the bytes in place.
        batch: A view of `data`.
        guard: Result of `OpenTransactions.guard` before the verification.
        terms: Terms of a client's append, or of the group coordinator's append of offsets.

    Raises:
        InvalidTxnState, OutOfOrderSequence: See `OpenTransactions.check`.
        TidelogError: See `Log.append_batches`.
    """
    partition.transactions.check(partition.log.producer_states(), batch, guard)
    producer_id = batch.producer_id
    result = partition.append(data, terms)
    if not result.is_duplicate:
        partition.transactions.wrote(producer_id)
    return result


def end_transaction(partition: Partition, end: TransactionEnd) -> AppendResult:
    """Append the marker that ends a producer's transaction.

    Raises:
        TidelogError: See `Log.end_transaction`.
    """
    state = partition.log.producer_states().find(end.producer_id)
    result = partition.log.end_transaction(
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        coordinator_epoch=end.coordinator_epoch,
        commit=end.commit,
        transaction_version=end.transaction_version,
    )
    partition.transactions.marked(end)
    if state is not None and state.txn_first_offset is not None:
        partition.transactions.ended(
            state.txn_first_offset, result.last_offset, partition.high_watermark
        )
    partition.advance()
    return result
