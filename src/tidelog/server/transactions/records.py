"""What the coordinator leaves in `__transaction_state`: the last record of a key is what is so.

Values are written in version 1, as Kafka does where transactions of version 2 are finalized; both
versions are read. A key of another version is of a kind that nobody knows, and stepped over. A
value that can't be read is an error: what it says may have to be completed.

Source: Kafka 4.3's own records in that topic; KIP-915 (later fields are tagged).
"""

from collections.abc import Iterable
from typing import Final

from tidelog.errors import CorruptMessage
from tidelog.protocol.data_messages import TRANSACTION_LOG_KEY, TRANSACTION_LOG_VALUE
from tidelog.protocol.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from tidelog.protocol.wire import Reader
from tidelog.server.short_names import is_short, remembers_short
from tidelog.server.transactions.metadata import TransactionMetadata, TransactionState
from tidelog.types import TopicPartition

_KEY: Final = 0
_VALUE: Final = 1
# What a log may say: nobody is dead in it (that is a record without a value), or being fenced.
_WRITTEN: Final = frozenset(TransactionState) - {
    TransactionState.DEAD,
    TransactionState.PREPARE_EPOCH_FENCE,
}


@remembers_short(is_short)
def encode_key(transactional_id: str) -> bytes:
    """A record's key."""
    return TRANSACTION_LOG_KEY.write(_KEY, TransactionLogKey(transactional_id=transactional_id))


def encode_value(known: TransactionMetadata) -> bytes:
    """A record's value."""
    assert known.state in _WRITTEN
    is_empty = known.state is TransactionState.EMPTY
    assert not (is_empty and known.partitions)
    value = TransactionLogValue(
        producer_id=known.producer_id,
        previous_producer_id=known.previous_producer_id,
        next_producer_id=known.next_producer_id,
        producer_epoch=known.producer_epoch,
        transaction_timeout_ms=known.timeout_ms,
        transaction_status=known.state,
        transaction_partitions=None if is_empty else _by_topic(known.partitions),
        transaction_last_update_timestamp_ms=known.update_ms,
        transaction_start_timestamp_ms=known.start_ms,
        client_transaction_version=known.client_version,
    )
    return TRANSACTION_LOG_VALUE.write(_VALUE, value)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    topics = by_topic(partitions)
    return [PartitionsSchema(topic=name, partition_ids=topics[name]) for name in topics]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Numbers of partitions by topic, both in order."""
    found: dict[str, list[int]] = {}
    for each in sorted(partitions, key=lambda each: (each.topic, each.partition)):
        found.setdefault(each.topic, []).append(each.partition)
    return found


def decode_key(key: bytes | None) -> str | None:
    """The transactional id that a record is about; None for a kind that nobody knows.

    Raises:
        CorruptMessage: It breaks a rule.
    """
    if key is None:
        raise CorruptMessage("a record of a transaction without a key", at=0)
    if Reader(key).int16() != _KEY:
        return None
    return TRANSACTION_LOG_KEY.read(key)[1].transactional_id


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """What a record says of a transactional id.

    Raises:
        CorruptMessage: It breaks a rule.
        UnsupportedVersion: A value of a version that nobody knows.
    """
    found = TRANSACTION_LOG_VALUE.read(value)[1]
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=found.producer_id,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=_state_of(found.transaction_status),
        partitions=_partitions_of(found.transaction_partitions or ()),
        start_ms=found.transaction_start_timestamp_ms,
        update_ms=found.transaction_last_update_timestamp_ms,
        client_version=found.client_transaction_version,
    )


def _state_of(status: int) -> TransactionState:
    for state in _WRITTEN:
        if state == status:
            return state
    raise CorruptMessage(f"a transaction in state {status}, 0 to 5 are written", at=0)


def _partitions_of(topics: Iterable[PartitionsSchema]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic, number) for topic in topics for number in topic.partition_ids
    )
