"""State of one transactional id.

Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort

A state is written to the log before it applies. A transaction is decided once PrepareCommit or
PrepareAbort is written; after that only its markers are missing, and they can be written again.

Source: KIP-98; KIP-360 (previous epoch); KIP-890 (an epoch for each transaction, next ids).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from tidelog.storage.log.producers import EPOCH_BUMP_VERSION
from tidelog.types import (
    INT16_MAX,
    INT32_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TopicPartition,
)

# The last epoch that a producer may have; one more is kept to fence it with.
LAST_PRODUCER_EPOCH: Final = INT16_MAX - 1


class TransactionState(IntEnum):
    """Where a transactional id stands; the values are part of the log's format."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's name of it, as tools show it."""
        return "".join(word.title() for word in self.name.split("_"))


_ENDED: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)


# A producer is fenced and its transaction aborted in one step here: nothing goes through the last.
_BEFORE: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _ENDED,
    TransactionState.ONGOING: _ENDED | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _ENDED | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _ENDED,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset(),
}


def may_follow(state: TransactionState, after: TransactionState) -> bool:
    """Whether one state may come after another."""
    return after in _BEFORE[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """What is written down of a transactional id; -1 for none in ids, epochs and times.

    Attributes:
        transactional_id: Its name.
        producer_id: Who writes.
        previous_producer_id: The id before the last step.
        next_producer_id: What the producer goes on with, where the epochs of this one are used up.
        producer_epoch: Which instance of it; above `LAST_PRODUCER_EPOCH` only to fence.
        last_producer_epoch: The epoch before, by which a repeated request is known; not kept in
            the log.
        timeout_ms: How long a transaction may be open.
        state: Where it stands.
        partitions: What is in the transaction.
        start_ms: When it began.
        update_ms: When a step was taken last.
        client_version: The version of transactions that the last step's client speaks.
    """

    transactional_id: str
    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    update_ms: int = NO_TIMESTAMP
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer's epochs are used up: it needs another id to go on."""
        return self.producer_epoch >= LAST_PRODUCER_EPOCH

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided, and markers are being written."""
        return self.state in {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}

    @property
    def completed_state(self) -> TransactionState:
        """What follows when all markers are written; it must be decided."""
        assert self.is_prepared
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        return TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT

    @property
    def is_ended(self) -> bool:
        """Whether no transaction is open or being ended."""
        return self.state in _ENDED

    @property
    def bumps_epoch(self) -> bool:
        """Whether the transaction ends with an epoch of its own."""
        return self.client_version >= EPOCH_BUMP_VERSION

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether it was open for too long. The longest time-out there is stands for never."""
        return (
            self.state is TransactionState.ONGOING
            and self.timeout_ms != INT32_MAX
            and self.start_ms + self.timeout_ms < now_ms
        )

    def begun(
        self, partitions: frozenset[TopicPartition], version: int, now_ms: int
    ) -> "TransactionMetadata":
        """With more partitions; the transaction begins where none is open."""
        return replace(
            self,
            previous_producer_id=self.producer_id,
            state=TransactionState.ONGOING,
            partitions=self.partitions | partitions,
            start_ms=now_ms if self.is_ended else self.start_ms,
            update_ms=now_ms,
            client_version=version,
        )

    def prepared(
        self, *, commit: bool, version: int, now_ms: int, next_producer_id: int = NO_PRODUCER_ID
    ) -> "TransactionMetadata":
        """Decided. What has no partitions is aborted all the same, for the sake of its epoch."""
        bumps = version >= EPOCH_BUMP_VERSION
        return replace(
            self,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            producer_epoch=min(self.producer_epoch + bumps, INT16_MAX),
            last_producer_epoch=self.producer_epoch if bumps else self.last_producer_epoch,
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            start_ms=now_ms if self.is_ended else self.start_ms,
            update_ms=now_ms,
            client_version=version,
        )

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """All markers are written; used-up epochs begin again, with the next id."""
        rotates = self.bumps_epoch and self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            state=self.completed_state,
            partitions=frozenset(),
            update_ms=now_ms,
        )

    def renewed(
        self, *, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> "TransactionMetadata":
        """With the id and epoch of another instance of the producer."""
        return replace(
            self,
            previous_producer_id=self.producer_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            update_ms=now_ms,
        )


@dataclass(slots=True, eq=False)
class Transaction:
    """A transactional id in memory. Belongs to the loop's thread.

    Attributes:
        metadata: What the log says of it.
        coordinator_epoch: The leader epoch of its partition of the log.
        pending: The state that is being written, None for none; one step is taken at a time.
        is_gone: Whether it is not looked after any more: whoever holds it lets go of it.
        waiting: What waits, and what is called for it once no step is being taken.
    """

    metadata: TransactionMetadata
    coordinator_epoch: int
    pending: TransactionState | None = None
    is_gone: bool = False
    waiting: dict[object, Callable[[], None]] = field(default_factory=dict)

    def settle(self) -> None:
        """Tell who waits, unless another step has begun."""
        while self.waiting and (self.pending is None or self.is_gone):
            self.waiting.pop(next(iter(self.waiting)))()


LOGGER: Final = logging.getLogger("tidelog.server.transactions")
