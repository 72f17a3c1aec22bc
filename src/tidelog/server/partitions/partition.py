"""One partition behind the broker: appends, high watermark, shared syncs, and its transactions.

A producer's first batch of a transaction is accepted only after the coordinator has confirmed that
the partition belongs to it. The transaction may end between that question and the append; so the
request holds a `Guard`, which the marker removes. Later batches find the transaction open in the
log. Readers of committed records stop at a transaction until its marker is as durable as they
demand.

The coordinator decides how a transaction ends, writes that down, and has markers written to the
transaction's partitions. Both run on the event loop's thread.

Source: Kafka 4.3's ProducerStateManager, UnifiedLog and Partition; KIP-98 (markers), KIP-890
(verification, adding by producing), KIP-1228 (transaction version in markers).
"""

from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

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
from tidelog.server.runtime.reply import Reply, Watched
from tidelog.storage.log.append import FOREIGN, AppendResult, AppendTerms
from tidelog.storage.log.log import Log
from tidelog.storage.log.producers import EPOCH_BUMP_VERSION
from tidelog.types import Buffer, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.producers import ProducerStates


class TransactionEnd(NamedTuple):
    """How a producer's transaction ends, as its coordinator says.

    Attributes:
        producer_id: Whose.
        producer_epoch: Of the marker.
        coordinator_epoch: Of the coordinator.
        commit: False aborts.
        transaction_version: 2 where each transaction raises the producer's epoch.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0


class Guard:
    """A question to the coordinator about one producer; all that are asked meanwhile share it.

    Attributes:
        epoch: The producer's newest epoch that was asked about.
        lowest_sequence: Of what that epoch wanted to write, so that nothing goes before it.
        raises_epochs: Whether each of its transactions has an epoch of its own.
        since_ms: When it was first asked, by wall time.
    """

    __slots__ = ("epoch", "lowest_sequence", "raises_epochs", "since_ms")

    def __init__(self, epoch: int, sequence: int, *, raises_epochs: bool, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.raises_epochs = raises_epochs
        self.since_ms = since_ms

    def note(self, epoch: int, sequence: int) -> None:
        """Somebody asks for the same producer."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class OpenTransactions:
    """Of one partition. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._guards: dict[int, Guard] = {}
        # First offset and marker of transactions that were ended, and are not safe yet.
        self._unsafe: deque[tuple[int, int]] = deque()

    # -- beginning ---------------------------------------------------------------------------

    def guard(
        self,
        states: "ProducerStates",
        producer: tuple[int, int],
        sequence: int,
        *,
        raises_epochs: bool,
        now_ms: int,
    ) -> Guard | None:
        """What a producer holds while the coordinator is asked; None where it need not be.

        Args:
            states: The log's producers.
            producer: Id and epoch.
            sequence: First one that it wants to write, -1 for a coordinator's records.
            raises_epochs: Whether each of its transactions has an epoch of its own.
            now_ms: Wall time.
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
        """Do nothing where a batch of a transaction may be appended, as far as that goes.

        What the log has already, and what it refuses for its epoch, is left to the log.

        Raises:
            InvalidTxnState: No transaction is open, and the coordinator's word holds no more.
            OutOfOrderSequence: Something that goes before it was, or must be, written first.
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
                f"producer {producer_id} with epoch {epoch} has no transaction here"
            )
        if current is not None and batch.base_sequence >= 0:
            _check_sequence(current, batch, is_known=state is not None and bool(state.batches))

    def wrote(self, producer_id: int) -> None:
        """A batch of a transaction was appended: the log knows all about it now."""
        self._guards.pop(producer_id, None)

    def marked(self, end: TransactionEnd) -> None:
        """A marker was appended: the coordinator's word for what it ends holds no more.

        Where each transaction has an epoch, a marker of version 2 has that of the one after it,
        whose producer may have asked by then; the coordinator lets him wait until the end is
        complete. One of an older version has the transaction's own epoch.
        """
        guard = self._guards.get(end.producer_id)
        raises = end.transaction_version >= EPOCH_BUMP_VERSION
        is_next = guard is not None and guard.raises_epochs and guard.epoch == end.producer_epoch
        if not (raises and is_next):
            self._guards.pop(end.producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget questions that nobody has come back from."""
        for producer_id, guard in tuple(self._guards.items()):
            if now_ms - guard.since_ms >= expiration_ms:
                del self._guards[producer_id]

    # -- ending ------------------------------------------------------------------------------

    def ended(self, first_offset: int, marker_offset: int, high_watermark: int) -> None:
        """A transaction was ended by a marker that readers don't see yet."""
        self._drop_safe(high_watermark)
        self._unsafe.append((first_offset, marker_offset))

    def stable_end(self, stable: int, high_watermark: int) -> int:
        """Offset below which all transactions are ended by markers that are safe.

        Args:
            stable: Offset below which no transaction is open in the log.
            high_watermark: Offset behind the last record that readers may see.
        """
        if self._unsafe:
            self._drop_safe(high_watermark)
            stable = min((stable, *(first for first, _ in self._unsafe)))
        return min(stable, high_watermark)

    def _drop_safe(self, high_watermark: int) -> None:
        while self._unsafe and self._unsafe[0][1] < high_watermark:
            self._unsafe.popleft()

    def clear(self) -> None:
        """The log was opened anew."""
        self._guards.clear()
        self._unsafe.clear()


def _check_sequence(guard: Guard, batch: Batch, *, is_known: bool) -> None:
    sequence = batch.base_sequence
    if guard.raises_epochs and sequence and not is_known:
        raise OutOfOrderSequence(
            f"producer {batch.producer_id}: sequence {sequence} where 0 is first"
        )
    if sequence > guard.lowest_sequence:
        raise OutOfOrderSequence(
            f"producer {batch.producer_id}: sequence {sequence} before {guard.lowest_sequence},"
            " which was sent as well"
        )


_Result = TypeVar("_Result")


ALL_REPLICAS: Final = -1


# After so many openings their objects count as old: they stay as long as the broker.
OLD_EVERY: Final = 8


class Partition(Watched):
    """One partition behind the broker. Belongs to the loop's thread.

    Attributes:
        name: Topic and number.
        log: The open log.
        high_watermark: Offset behind the last record that consumers may see.
        is_gone: The topic was deleted; watchers were told.
        last_deletion_ms: When retention last took segments since the start; None for never.
        read_ends: Where fetches ended.
        loop_bytes: Reads the log's segments on the loop.
        transactions: What is known of them beside the log.
    """

    def __init__(self, log: Log, *, syncs_all: bool = False) -> None:
        """One partition.

        Args:
            log: Its log.
            syncs_all: Readers see only what was synced (`tidelog.durability=fsync`).

        Where what recovery left can't be synced it begins offline, and what is durable is read.
        """
        super().__init__()
        self.name: TopicPartition = log.topic_partition
        self.log = log
        self.high_watermark = _synced_end(log) if syncs_all else log.log_end_offset
        self.is_gone = False
        self.last_deletion_ms: int | None = None
        self._syncs_all = syncs_all
        self._sync_end: int | None = None  # what the running sync makes durable; None without one
        self._is_sync_due = False
        self._waiting: deque[tuple[int, Reply[ErrorCode]]] = deque()
        self._flushes: dict[Reply[TidelogError | None], None] = {}
        self.read_ends = ReadEnds()
        self.loop_bytes = SegmentBytes(log.context.pool, may_block=False)
        self.transactions = OpenTransactions()
        log.guard.call_on_failure(self.notify)

    @property
    def failure(self) -> StorageFailure | None:
        """Why it is offline, None while it works."""
        return self.log.failure

    @property
    def last_stable_offset(self) -> int:
        """Offset below which no transaction is open, at most the high watermark."""
        return self.transactions.stable_end(self.log.last_stable_offset, self.high_watermark)

    def end_offset(self, isolation: IsolationLevel) -> int:
        """Offset behind the last record that a reader of that isolation sees."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    @property
    def replica_end_offset(self) -> int:
        """Offset behind the last record for who says it copies the log, which anybody may say."""
        return self.high_watermark if self._syncs_all else self.log.log_end_offset

    def append(self, data: Buffer, terms: AppendTerms = FOREIGN) -> AppendResult:
        """Append batches and show them; arguments and errors as `Log.append_batches`."""
        result = self.log.append_batches(data, terms)
        self.advance_to(result)
        return result

    def advance_to(self, result: AppendResult) -> None:
        """`advance` after an append of which this was said."""
        if self._syncs_all or self._sync_end is not None or self.log.is_flush_due:
            self.advance()
        elif not result.is_duplicate:
            self.high_watermark = result.last_offset + 1
            if self._watchers:
                self.notify()

    def advance(self) -> None:
        """Let readers see up to the log end, and tell who waits; after a sync where one is due."""
        if self._syncs_all or self.log.is_flush_due:
            self._is_sync_due |= self.log.log_end_offset > self.high_watermark
            self._sync()
        elif self._sync_end is None:
            self._show(self.log.log_end_offset)

    def flush_later(self) -> None:
        """Make what was appended durable beside the loop; raises StorageFailure when offline."""
        self._is_sync_due = True
        self._sync()

    async def flushed(self) -> None:
        """Make what was appended durable beside the loop, and return when it is.

        Raises:
            StorageFailure: The partition is offline, or was.
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

    # -- group commit ------------------------------------------------------------------------

    def _sync(self) -> None:
        """Begin a sync of all that was appended; while one runs, the next group gathers."""
        if self._sync_end is not None or not self._is_sync_due:
            return
        self._is_sync_due = False
        self._sync_end = self.log.log_end_offset
        try:
            self.log.flush_later(self._synced)
        except StorageFailure:
            self._sync_end = None  # no sync runs, so nothing is to wait for one
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
        for end_offset, reply in waiting:  # a repeated batch may wait behind later ones
            if end_offset <= visible_end:
                reply.try_complete(ErrorCode.NONE)

    def must_wait(self, result: AppendResult, acks: int) -> bool:
        """Whether an acknowledgement has to wait until readers may see the records.

        With `fsync` only acks=all waits; a flush that the topic asks for holds up every one.
        """
        if result.last_offset < self.high_watermark:
            return False
        return acks == ALL_REPLICAS or (acks != 0 and not self._syncs_all)

    def visible(self, end_offset: int) -> Reply[ErrorCode]:
        """NONE once readers see all records below `end_offset`, an error if they never will."""
        if self.failure is not None:
            return Reply.of(ErrorCode.KAFKA_STORAGE_ERROR)
        reply: Reply[ErrorCode] = Reply()
        self._waiting.append((end_offset, reply))
        return reply

    def _release(self, code: ErrorCode) -> None:
        """Complete the replies of all records that readers will not see."""
        waiting, self._waiting = self._waiting, deque()
        for _, reply in waiting:
            reply.try_complete(code)

    def _give_up_flushes(self, reason: TidelogError) -> None:
        """A log that is not used any more never says how its flushes ended."""
        for done in self._flushes:
            done.try_complete(reason)

    def close(self) -> None:
        """The topic was deleted: tell who waits."""
        self.is_gone = True
        self._release(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._give_up_flushes(UnknownTopic(f"{self.name}: the topic was deleted"))
        self.notify()

    def use(self, log: Log) -> None:
        """Go on with a log that was opened anew."""
        self._release(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.failure is not None:
            self._give_up_flushes(self.failure)
        self.notify()  # who waits for what the old one has not kept learns that by its failure
        self.log, self._sync_end, self._is_sync_due = log, None, False
        self.loop_bytes = SegmentBytes(log.context.pool, may_block=False)
        self.transactions.clear()
        self.high_watermark = _synced_end(log) if self._syncs_all else log.log_end_offset
        log.guard.call_on_failure(self.notify)
        self.notify()  # who looks after the log itself has another one now


def _synced_end(log: Log) -> int:
    """Offset behind what is durable, after a sync of what recovery left."""
    if log.failure is None and log.recovery_point < log.log_end_offset:
        with suppress(StorageFailure):
            log.flush()  # a failure takes it offline, which is said to all who write
    return (
        log.log_end_offset if log.failure is None else max(log.recovery_point, log.log_start_offset)
    )


def append_in_transaction(
    partition: Partition, data: Buffer, batch: Batch, guard: Guard | None, terms: AppendTerms
) -> AppendResult:
    """Append a batch that belongs to a transaction.

    Args:
        partition: Where.
        data: The batch, which may be changed.
        batch: A view of it.
        guard: What `OpenTransactions.guard` gave before the coordinator was asked.
        terms: Those of a client, or of a coordinator for offsets of a group.

    Raises:
        InvalidTxnState, OutOfOrderSequence: As `OpenTransactions.check`.
        TidelogError: As `Log.append_batches`.
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
        TidelogError: As `Log.end_transaction`.
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


class Markers(Protocol):
    """Ends transactions in the logs of partitions."""

    def write(
        self,
        partitions: Sequence[TopicPartition],
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> Awaitable[Mapping[TopicPartition, ErrorCode]]:
        """Append a marker to each partition, and say when it is safe.

        Those of `__consumer_offsets` also take over, or drop, the group offsets of the transaction.
        A marker may come again after one that was written: that is no error, and ends nothing else.

        Args:
            partitions: In the transaction, each once.
            producer_id: Whose transaction.
            producer_epoch: Of the marker; with `transaction_version` 2 one above that of the
                records, else the same or a later one.
            coordinator_epoch: Of the coordinator; an older one than a log has seen is fenced.
            commit: Commit, else abort.
            transaction_version: 2 where each transaction raises the epoch, 0 or 1 for older ones.

        Returns:
            A code for each partition. The coordinator is done with those that have NONE,
            UNKNOWN_TOPIC_OR_PARTITION (deleted meanwhile) or one that says that a later coordinator
            or producer was there (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED); it asks
            again, later, for all others.
        """
        ...
