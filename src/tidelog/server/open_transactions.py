"""What a partition knows of transactions beside its log: who may begin one, and which end is safe.

A producer's first batch of a transaction is taken only after the coordinator has said that the
partition is in it. Between that question and the append the transaction may be ended; so the asker
holds a `Guard`, which the marker takes away. Later batches find the transaction open in the log.

Readers of committed records stop at a transaction until its marker is as safe as they demand.

Source: Kafka 4.3's ProducerStateManager and UnifiedLog; KIP-890.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tidelog.errors import InvalidTxnState, OutOfOrderSequence
from tidelog.record.views import Batch
from tidelog.storage.producer_rules import EPOCH_BUMP_VERSION

if TYPE_CHECKING:
    from tidelog.storage.producers import ProducerStates


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
        found = self._guards.get(producer_id)
        if found is None:
            found = Guard(epoch, sequence, raises_epochs=raises_epochs, since_ms=now_ms)
            self._guards[producer_id] = found
        else:
            found.note(epoch, sequence)
        return found

    def check(self, states: "ProducerStates", batch: Batch, guard: Guard | None) -> None:
        """Do nothing where a batch of a transaction may be appended, as far as that goes.

        What the log has already, and what it refuses for its epoch, is left to the log.

        Raises:
            InvalidTxnState: No transaction is open, and the coordinator's word holds no more.
            OutOfOrderSequence: Something that goes before it was, or must be, written first.
        """
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        known = states.find(producer_id)
        if known is not None and (epoch < known.epoch or known.find_duplicate(batch) is not None):
            return
        current = self._guards.get(producer_id)
        if not states.has_open_transaction(producer_id, epoch) and (
            current is None or current is not guard
        ):
            raise InvalidTxnState(
                f"producer {producer_id} with epoch {epoch} has no transaction here"
            )
        if current is not None and batch.base_sequence >= 0:
            _check_sequence(current, batch, is_known=known is not None and bool(known.batches))

    def wrote(self, producer_id: int) -> None:
        """A batch of a transaction was appended: the log knows all about it now."""
        self._guards.pop(producer_id, None)

    def marked(self, end: TransactionEnd) -> None:
        """A marker was appended: the coordinator's word for what it ends holds no more.

        Where each transaction has an epoch, a marker of version 2 has that of the one after it,
        whose producer may have asked by then; the coordinator lets him wait until the end is
        complete. One of an older version has the transaction's own epoch.
        """
        found = self._guards.get(end.producer_id)
        raises = end.transaction_version >= EPOCH_BUMP_VERSION
        is_next = found is not None and found.raises_epochs and found.epoch == end.producer_epoch
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
