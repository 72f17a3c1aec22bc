"""State of one transactional id, and the steps that requests may take from it.

Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort

`plan_init`, `plan_add` and `plan_end` return a step: the next metadata to write, or the response's
error code. `NONE` means that the transactional id already has the requested state. A state is
written to the log before it applies (`state_topic`). A transaction is decided once PrepareCommit or
PrepareAbort is written. Then only the markers and the completed state have to be written, and these
writes can be retried (`markers`). This module does not read a clock and does not wait.

Source: Kafka 4.3's TransactionMetadata and TransactionCoordinator, including its order of checks;
KIP-98; KIP-360 (previous epoch); KIP-890 (an epoch for each transaction, next ids).
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.log.producers import EPOCH_BUMP_VERSION
from tidelog.types import (
    INT16_MAX,
    INT32_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TopicPartition,
)

LOGGER: Final = logging.getLogger("tidelog.server.transactions")

# The last usable epoch of a producer. The epoch after it is used only to fence the producer.
LAST_PRODUCER_EPOCH: Final = INT16_MAX - 1


class TransactionState(IntEnum):
    """State of a transactional id. The values are part of the log's format."""

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
        """Kafka's name of the state, as tools show it."""
        return "".join(word.title() for word in self.name.split("_"))


_ENDED: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)

# States that may precede each state. This broker fences a producer and aborts the producer's
# transaction in one transition, so no state precedes PREPARE_EPOCH_FENCE.
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


def may_follow(state: TransactionState, previous: TransactionState) -> bool:
    """Whether a transaction may change from the state `previous` to `state`."""
    return previous in _BEFORE[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """Stored state of a transactional id; -1 stands for no id, no epoch or no time.

    Attributes:
        transactional_id: Transactional id.
        producer_id: Current producer id.
        previous_producer_id: Producer id before the last transition.
        next_producer_id: Producer id to continue with when the epochs of `producer_id` are used up.
        producer_epoch: Current epoch; above `LAST_PRODUCER_EPOCH` only for fencing.
        last_producer_epoch: Previous epoch, which identifies a retried request; not stored in the
            log.
        timeout_ms: Maximum duration of a transaction.
        state: Current state.
        partitions: Partitions of the transaction.
        start_ms: Wall time when the transaction began.
        update_ms: Wall time of the last transition.
        client_version: Transaction version used when partitions were last added or a transaction
            was last decided.
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
        """Whether the epochs of the producer id are used up, so that a new id is needed."""
        return self.producer_epoch >= LAST_PRODUCER_EPOCH

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction is decided and markers are being written."""
        return self.state in {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}

    @property
    def completed_state(self) -> TransactionState:
        """State after all markers are written. Call this only for a decided transaction."""
        assert self.is_prepared
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        return TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT

    @property
    def is_ended(self) -> bool:
        """Whether no transaction is open or being completed."""
        return self.state in _ENDED

    @property
    def bumps_epoch(self) -> bool:
        """Whether the end of the transaction increments the epoch (transaction version 2)."""
        return self.client_version >= EPOCH_BUMP_VERSION

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether the transaction has been open for longer than its timeout.

        A timeout of `INT32_MAX` sets no limit.
        """
        return (
            self.state is TransactionState.ONGOING
            and self.timeout_ms != INT32_MAX
            and self.start_ms + self.timeout_ms < now_ms
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], version: int, now_ms: int
    ) -> "TransactionMetadata":
        """Return the state with more partitions, in a new transaction if none is open."""
        return replace(
            self,
            previous_producer_id=self.producer_id,
            state=TransactionState.ONGOING,
            partitions=self.partitions | partitions,
            start_ms=now_ms if self.is_ended else self.start_ms,
            update_ms=now_ms,
            client_version=version,
        )

    def decided(
        self, *, commit: bool, version: int, now_ms: int, next_producer_id: int = NO_PRODUCER_ID
    ) -> "TransactionMetadata":
        """Return the state after the decision to commit or abort.

        Transaction version 2 increments the epoch, even if the transaction has no partitions.
        """
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
        """Return the completed state, with the next producer id if the epochs are used up."""
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
        """Return the metadata in state Empty, for a producer that has just been initialized."""
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
    """Transactional id in memory. Used only in the event loop's thread.

    Attributes:
        metadata: State in the log.
        coordinator_epoch: Leader epoch of the partition of `__transaction_state` in which the id is
            stored.
        pending: State that is being written; None if no state is being written. Only one transition
            runs at a time.
        is_unloaded: Whether the transactional id was unloaded. The object must then not be used.
        waiting: Callbacks by waiter, which run when no transition is in progress.
    """

    metadata: TransactionMetadata
    coordinator_epoch: int
    pending: TransactionState | None = None
    is_unloaded: bool = False
    waiting: dict[object, Callable[[], None]] = field(default_factory=dict)

    def wake_waiting(self) -> None:
        """Run the waiting callbacks until one of them starts another transition."""
        while self.waiting and (self.pending is None or self.is_unloaded):
            self.waiting.pop(next(iter(self.waiting)))()


Step: TypeAlias = TransactionMetadata | ErrorCode

# Transaction version that the broker uses when it aborts a transaction itself, and when it adds the
# partitions of Produce and TxnOffsetCommit requests to a transaction.
SERVER_VERSION: Final = EPOCH_BUMP_VERSION


class ProducerRef(NamedTuple):
    """Producer id and epoch in a request."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """Request to initialize a producer.

    Attributes:
        transactional_id: Transactional id.
        timeout_ms: Maximum duration of the producer's transactions.
        expected: Current id and epoch of a producer that recovers; None for a new producer.
    """

    transactional_id: str
    timeout_ms: int
    expected: ProducerRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """Request to add partitions to a transaction.

    Attributes:
        transactional_id: Transactional id.
        producer: Producer of the request.
        partitions: Partitions to add.
        version: Transaction version of the client.
    """

    transactional_id: str
    producer: ProducerRef
    partitions: frozenset[TopicPartition]
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    """Request to end a transaction.

    Attributes:
        transactional_id: Transactional id.
        producer: Producer of the request.
        commit: Whether to commit; otherwise abort.
        version: Transaction version of the client.
    """

    transactional_id: str
    producer: ProducerRef
    commit: bool
    version: int = 0


# -- initialization ----------------------------------------------------------------------------


def plan_init(
    metadata: TransactionMetadata,
    *,
    is_pending: bool,
    request: InitRequest,
    new_id: int | None,
    now_ms: int,
) -> Step:
    """Plan the transition for InitProducerId.

    Args:
        metadata: Current state.
        is_pending: Whether a transition is in progress.
        request: Request of the client.
        new_id: Unused producer id; required if the epochs of the current id are used up.
        now_ms: Current wall time, in ms.

    Returns:
        The next metadata, or an error code. If no transaction is open, the next metadata is in
        state Empty. It has the next epoch, or the current epoch if the request is a retry. If a
        transaction is open, the next metadata is in state PrepareAbort: the client retries after
        the abort, and then gets a higher epoch. If the request is refused, the result is the error
        code CONCURRENT_TRANSACTIONS or PRODUCER_FENCED.
    """
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if request.expected is not None and not _may_continue(metadata, request.expected):
        return ErrorCode.PRODUCER_FENCED
    if metadata.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if metadata.state is TransactionState.ONGOING:
        return plan_fencing(metadata, now_ms)
    return _renewed(metadata, request, new_id, now_ms)


def _may_continue(metadata: TransactionMetadata, expected: ProducerRef) -> bool:
    """Whether a request with this expected id and epoch may come from the current producer.

    The result is True in three cases: the transactional id has no producer yet; the expected id is
    the current producer id; the expected id and epoch are the previous producer id and its last
    epoch.
    """
    return (
        metadata.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == metadata.producer_id
        or (
            expected.producer_id == metadata.previous_producer_id
            and expected.producer_epoch >= LAST_PRODUCER_EPOCH
        )
    )


def _renewed(
    metadata: TransactionMetadata, request: InitRequest, new_id: int | None, now_ms: int
) -> Step:
    epoch = None if request.expected is None else request.expected.producer_epoch
    is_current = metadata.producer_epoch in {NO_PRODUCER_EPOCH, epoch}
    is_repeated = epoch is not None and epoch == metadata.last_producer_epoch
    if epoch is not None and not is_current and not is_repeated:
        return ErrorCode.PRODUCER_FENCED
    producer_id, next_epoch = metadata.producer_id, metadata.producer_epoch + 1
    last_epoch = NO_PRODUCER_EPOCH if epoch is None else metadata.producer_epoch
    if metadata.is_exhausted:
        assert new_id is not None
        producer_id, next_epoch = new_id, 0
    elif is_repeated and not is_current:
        next_epoch, last_epoch = metadata.producer_epoch, metadata.last_producer_epoch
    return metadata.renewed(
        producer_id=producer_id,
        epoch=next_epoch,
        last_epoch=last_epoch,
        timeout_ms=request.timeout_ms,
        now_ms=now_ms,
    )


def plan_fencing(metadata: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Return the metadata after the decision to abort the open transaction.

    The metadata has a new epoch, which the transaction's producer does not know.
    """
    assert metadata.state is TransactionState.ONGOING
    return metadata.decided(commit=False, version=SERVER_VERSION, now_ms=now_ms)


# -- partitions --------------------------------------------------------------------------------


def plan_add(
    metadata: TransactionMetadata, *, is_pending: bool, request: AddRequest, now_ms: int
) -> Step:
    """Plan the addition of partitions, for AddPartitionsToTxn or for a write (KIP-890)."""
    # As in Kafka, this check is made before the checks of id and epoch: a client that has received
    # its next producer id may use this id before the previous transaction is completed.
    if is_pending or metadata.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    code = check_producer(metadata, request.producer)
    if code is not ErrorCode.NONE:
        return code
    if metadata.state is TransactionState.ONGOING and request.partitions <= metadata.partitions:
        return ErrorCode.NONE
    return metadata.with_partitions(request.partitions, request.version, now_ms)


def verify(
    metadata: TransactionMetadata, producer: ProducerRef, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Check that partitions are in the transaction. The log checks each append once more."""
    code = check_producer(metadata, producer)
    if code is ErrorCode.NONE and metadata.is_prepared:
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    if code is not ErrorCode.NONE:
        return dict.fromkeys(partitions, code)
    return {
        each: ErrorCode.NONE if each in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for each in partitions
    }


def check_producer(metadata: TransactionMetadata, producer: ProducerRef) -> ErrorCode:
    """Return the error code for a producer that is not the current producer; NONE if it is.

    An epoch above the last usable epoch is refused, because no marker could end a transaction with
    this epoch. Such an epoch is refused even if the client got it in the response to a retried
    EndTxn.
    """
    if metadata.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch > LAST_PRODUCER_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    if metadata.producer_epoch != producer.producer_epoch or metadata.producer_epoch < 0:
        return ErrorCode.PRODUCER_FENCED  # an epoch of -1 means not initialized
    return ErrorCode.NONE


# -- the end -----------------------------------------------------------------------------------


def plan_end(
    metadata: TransactionMetadata,
    *,
    is_pending: bool,
    request: EndRequest,
    new_id: int | None,
    now_ms: int,
) -> Step:
    """Plan the transition for EndTxn.

    Args:
        metadata: Current state.
        is_pending: Whether a transition is in progress.
        request: Request of the client.
        new_id: Unused producer id; required if the epochs of the current id are used up.
        now_ms: Current wall time, in ms.

    Returns:
        The next metadata, in state PrepareCommit or PrepareAbort. `NONE` if the request is a retry
        whose transaction is already completed. Otherwise an error code.
    """
    if request.version < EPOCH_BUMP_VERSION:
        return _end_classic(metadata, is_pending, request, now_ms)
    is_repeated = _is_repeated(metadata, request.producer)
    code = _refusal_to_end(metadata, request.producer, is_repeated=is_repeated)
    if code is not ErrorCode.NONE:
        return code
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if is_repeated:
        return _repeat_end(metadata, request)
    return _decide(metadata, request, new_id, now_ms)


def _refusal_to_end(
    metadata: TransactionMetadata, producer: ProducerRef, *, is_repeated: bool
) -> ErrorCode:
    """Return the error code for a producer that must not end the transaction, otherwise NONE."""
    if is_repeated:
        # If the state is Empty or Ongoing, the id was initialized again or a transaction was begun
        # after the last EndTxn. So this request is not a retry of the last EndTxn.
        is_late = metadata.state in {TransactionState.EMPTY, TransactionState.ONGOING}
        return ErrorCode.PRODUCER_FENCED if is_late else ErrorCode.NONE
    code = check_producer(metadata, producer)
    if code is ErrorCode.NONE and metadata.is_prepared:
        return ErrorCode.PRODUCER_FENCED  # the request has the next transaction's epoch
    return code


def _is_repeated(metadata: TransactionMetadata, producer: ProducerRef) -> bool:
    """Whether the request repeats the last EndTxn: its epoch was current before that EndTxn."""
    if metadata.producer_epoch == producer.producer_epoch + 1:
        return metadata.producer_id == producer.producer_id
    return (
        metadata.producer_epoch == 0
        and metadata.previous_producer_id == producer.producer_id
        and producer.producer_epoch == LAST_PRODUCER_EPOCH
    )


def _repeat_end(metadata: TransactionMetadata, request: EndRequest) -> ErrorCode:
    is_commit = metadata.state in {
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    }
    if is_commit is not request.commit:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if metadata.is_prepared else ErrorCode.NONE


def _decide(
    metadata: TransactionMetadata, request: EndRequest, new_id: int | None, now_ms: int
) -> Step:
    """Plan the end of a transaction of version 2.

    A client may abort even if no transaction is open, because the client can't know whether one of
    its requests has begun a transaction.
    """
    if metadata.state is not TransactionState.ONGOING and request.commit:
        return ErrorCode.INVALID_TXN_STATE
    next_id = NO_PRODUCER_ID
    if metadata.is_exhausted:
        assert new_id is not None
        next_id = new_id
    return metadata.decided(
        commit=request.commit, version=request.version, now_ms=now_ms, next_producer_id=next_id
    )


def _end_classic(
    metadata: TransactionMetadata, is_pending: bool, request: EndRequest, now_ms: int
) -> Step:
    code = check_producer(metadata, request.producer)
    if code is not ErrorCode.NONE:
        return code
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if metadata.state is TransactionState.ONGOING:
        return metadata.decided(commit=request.commit, version=0, now_ms=now_ms)
    if metadata.state is TransactionState.EMPTY:
        return ErrorCode.INVALID_TXN_STATE
    return _repeat_end(metadata, request)
