"""State of one transactional id, and the steps that requests may take from it.

Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort

A step (`plan_init`, `plan_add`, `plan_end`) is the next metadata to write, or the response's error
code; `NONE` means that the requested state already holds. A state is written to the log before it
applies (`state_topic`). A transaction is decided once PrepareCommit or PrepareAbort is written;
after that only its markers are missing, and they can be written again (`markers`). Nothing here
reads a clock or waits.

Source: Kafka 4.3's TransactionMetadata and TransactionCoordinator, including its order of checks;
KIP-98; KIP-360 (previous epoch); KIP-890 (an epoch for each transaction, next ids).
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from tidelog.error_codes import ErrorCode
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

    def with_partitions(
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

    def decided(
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
        is_unloaded: Whether it is not looked after any more: whoever holds it lets go of it.
        waiting: What waits, and what is called for it once no step is being taken.
    """

    metadata: TransactionMetadata
    coordinator_epoch: int
    pending: TransactionState | None = None
    is_unloaded: bool = False
    waiting: dict[object, Callable[[], None]] = field(default_factory=dict)

    def wake_waiting(self) -> None:
        """Tell who waits, unless another step has begun."""
        while self.waiting and (self.pending is None or self.is_unloaded):
            self.waiting.pop(next(iter(self.waiting)))()


Step: TypeAlias = TransactionMetadata | ErrorCode


# The version that the broker itself goes by where it aborts a transaction.
SERVER_VERSION: Final = EPOCH_BUMP_VERSION


class ProducerRef(NamedTuple):
    """Who a client says it is."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """A producer begins, or goes on after a failure.

    Attributes:
        transactional_id: Its name.
        timeout_ms: How long its transactions may be open.
        expected: Who it was before, None where it begins.
    """

    transactional_id: str
    timeout_ms: int
    expected: ProducerRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """Partitions are to be in a transaction.

    Attributes:
        transactional_id: Whose.
        producer: Who asks.
        partitions: Which.
        version: The version of transactions that the client speaks.
    """

    transactional_id: str
    producer: ProducerRef
    partitions: frozenset[TopicPartition]
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    """A transaction is to be ended.

    Attributes:
        transactional_id: Whose.
        producer: Who asks.
        commit: Commit, else abort.
        version: The version of transactions that the client speaks.
    """

    transactional_id: str
    producer: ProducerRef
    commit: bool
    version: int = 0


# -- a producer begins -------------------------------------------------------------------------


def plan_init(
    metadata: TransactionMetadata,
    *,
    is_pending: bool,
    request: InitRequest,
    new_id: int | None,
    now_ms: int,
) -> Step:
    """The step of InitProducerId.

    Args:
        metadata: What is known.
        is_pending: Whether a step is being taken.
        request: The request.
        new_id: An id that nobody has, needed where the epochs of this one are used up.
        now_ms: Wall time.

    Returns:
        Empty, with another epoch; or PrepareAbort of the transaction that is open: who asked is
        told to ask again, and gets an epoch above that then.
    """
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if request.expected is not None and not _may_go_on(metadata, request.expected):
        return ErrorCode.PRODUCER_FENCED
    if metadata.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if metadata.state is TransactionState.ONGOING:
        return plan_fencing(metadata, now_ms)
    return _renewed(metadata, request, new_id, now_ms)


def _may_go_on(metadata: TransactionMetadata, expected: ProducerRef) -> bool:
    """Whether this can be the producer: a new one, the same, or one before its last epoch."""
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
    """Abort the open transaction, under an epoch that its producer does not have."""
    assert metadata.state is TransactionState.ONGOING
    return metadata.decided(commit=False, version=SERVER_VERSION, now_ms=now_ms)


# -- partitions --------------------------------------------------------------------------------


def plan_add(
    metadata: TransactionMetadata, *, is_pending: bool, request: AddRequest, now_ms: int
) -> Step:
    """The step of AddPartitionsToTxn and AddOffsetsToTxn, or of producing with version 2."""
    # First, as in Kafka: who was told his next id asks with it before the end is complete.
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
    """Whether partitions are in the transaction; the log itself has the last word on an append."""
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
    """Why this is not the producer; NONE where it is.

    Nobody is let in above the last epoch, even who was told it by the answer to an end that came
    again: no marker could end what he begins there.
    """
    if metadata.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch > LAST_PRODUCER_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    if metadata.producer_epoch != producer.producer_epoch or metadata.producer_epoch < 0:
        return ErrorCode.PRODUCER_FENCED  # -1: it has not begun
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
    """The step of EndTxn.

    Args:
        metadata: What is known.
        is_pending: Whether a step is being taken.
        request: The request.
        new_id: An id that nobody has, needed where the epochs of this one are used up.
        now_ms: Wall time.

    Returns:
        PrepareCommit or PrepareAbort; `NONE` for a request that comes again after it was done.
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
    """Why this producer may not end anything; NONE where it may."""
    if is_repeated:
        # Where another one is open, or nothing was begun since, its end was not what is asked.
        is_late = metadata.state in {TransactionState.EMPTY, TransactionState.ONGOING}
        return ErrorCode.PRODUCER_FENCED if is_late else ErrorCode.NONE
    code = check_producer(metadata, producer)
    if code is ErrorCode.NONE and metadata.is_prepared:
        return ErrorCode.PRODUCER_FENCED  # its epoch is that of the next transaction already
    return code


def _is_repeated(metadata: TransactionMetadata, producer: ProducerRef) -> bool:
    """Whether a producer asks with the epoch that it had before the last end."""
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
    """With version 2 nothing may be open at an abort: the client can't know what was begun."""
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
