"""TxnOffsetCommit: what a group has read, as part of a transaction.

Source: Kafka's protocol guide, API 28; KIP-98, KIP-447 (who commits), KIP-890.
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequestPartition:
    """The offset to go on at once the transaction is committed."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=2, default=-1)
    committed_metadata: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = wire(
        array(struct(TxnOffsetCommitRequestPartition))
    )


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    """We will have read up to here."""

    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, since=3, default=-1)
    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(nullable_string(3), since=3)
    topics: list[TxnOffsetCommitRequestTopic] = wire(array(struct(TxnOffsetCommitRequestTopic)))


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponsePartition:
    """Whether it waits for the end of the transaction."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitResponsePartition] = wire(
        array(struct(TxnOffsetCommitResponsePartition))
    )


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    """How it went."""

    throttle_time_ms: int = wire(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = wire(array(struct(TxnOffsetCommitResponseTopic)))
