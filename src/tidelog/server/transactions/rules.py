"""Steps that a request may take: the next metadata to write, or the response's error code. Pure.

`NONE` means that the requested state already holds.

Source: Kafka 4.3's TransactionCoordinator, including its order of checks; KIP-360, KIP-890.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.server.transactions.metadata import (
    LAST_PRODUCER_EPOCH,
    TransactionMetadata,
    TransactionState,
)
from tidelog.storage.log.producers import EPOCH_BUMP_VERSION
from tidelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

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
    is_again = epoch is not None and epoch == metadata.last_producer_epoch
    if epoch is not None and not is_current and not is_again:
        return ErrorCode.PRODUCER_FENCED
    producer_id, next_epoch = metadata.producer_id, metadata.producer_epoch + 1
    last_epoch = NO_PRODUCER_EPOCH if epoch is None else metadata.producer_epoch
    if metadata.is_exhausted:
        assert new_id is not None
        producer_id, next_epoch = new_id, 0
    elif is_again and not is_current:
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
    return metadata.prepared(commit=False, version=SERVER_VERSION, now_ms=now_ms)


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
    return metadata.begun(request.partitions, request.version, now_ms)


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
    is_again = _comes_again(metadata, request.producer)
    code = _refusal_to_end(metadata, request.producer, is_again=is_again)
    if code is not ErrorCode.NONE:
        return code
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if is_again:
        return _end_again(metadata, request)
    return _end_now(metadata, request, new_id, now_ms)


def _refusal_to_end(
    metadata: TransactionMetadata, producer: ProducerRef, *, is_again: bool
) -> ErrorCode:
    """Why this producer may not end anything; NONE where it may."""
    if is_again:
        # Where another one is open, or nothing was begun since, its end was not what is asked.
        is_late = metadata.state in {TransactionState.EMPTY, TransactionState.ONGOING}
        return ErrorCode.PRODUCER_FENCED if is_late else ErrorCode.NONE
    code = check_producer(metadata, producer)
    if code is ErrorCode.NONE and metadata.is_prepared:
        return ErrorCode.PRODUCER_FENCED  # its epoch is that of the next transaction already
    return code


def _comes_again(metadata: TransactionMetadata, producer: ProducerRef) -> bool:
    """Whether a producer asks with the epoch that it had before the last end."""
    if metadata.producer_epoch == producer.producer_epoch + 1:
        return metadata.producer_id == producer.producer_id
    return (
        metadata.producer_epoch == 0
        and metadata.previous_producer_id == producer.producer_id
        and producer.producer_epoch == LAST_PRODUCER_EPOCH
    )


def _end_again(metadata: TransactionMetadata, request: EndRequest) -> ErrorCode:
    is_commit = metadata.state in {
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    }
    if is_commit is not request.commit:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if metadata.is_prepared else ErrorCode.NONE


def _end_now(
    metadata: TransactionMetadata, request: EndRequest, new_id: int | None, now_ms: int
) -> Step:
    """With version 2 nothing may be open at an abort: the client can't know what was begun."""
    if metadata.state is not TransactionState.ONGOING and request.commit:
        return ErrorCode.INVALID_TXN_STATE
    next_id = NO_PRODUCER_ID
    if metadata.is_exhausted:
        assert new_id is not None
        next_id = new_id
    return metadata.prepared(
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
        return metadata.prepared(commit=request.commit, version=0, now_ms=now_ms)
    if metadata.state is TransactionState.EMPTY:
        return ErrorCode.INVALID_TXN_STATE
    return _end_again(metadata, request)
