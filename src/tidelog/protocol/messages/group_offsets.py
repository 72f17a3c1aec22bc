"""OffsetCommit, OffsetDelete and TxnOffsetCommit: offsets that groups commit.

Source: Kafka's protocol guide, APIs 8, 28 and 47; KIP-98, KIP-320 (leader epochs), KIP-447,
KIP-496, KIP-848 (topic ids), KIP-890.
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    """The offset to go on at, and what the group notes with it."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=6, default=-1)
    committed_metadata: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    """A topic's partitions, from version 10 on by id."""

    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitRequestPartition] = wire(
        array(struct(OffsetCommitRequestPartition))
    )


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequest:
    """We have read up to here."""

    group_id: str = wire(STRING)
    generation_id_or_member_epoch: int = wire(INT32, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=7)
    retention_time_ms: int = wire(INT64, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = wire(array(struct(OffsetCommitRequestTopic)))


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    """Whether it was kept."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    """A topic's partitions."""

    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitResponsePartition] = wire(
        array(struct(OffsetCommitResponsePartition))
    )


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponse:
    """What was kept."""

    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetCommitResponseTopic] = wire(array(struct(OffsetCommitResponseTopic)))


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequestPartition:
    """One partition."""

    partition_index: int = wire(INT32)


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequestTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[OffsetDeleteRequestPartition] = wire(
        array(struct(OffsetDeleteRequestPartition))
    )


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequest:
    """Forget what a group has read of these."""

    group_id: str = wire(STRING)
    topics: list[OffsetDeleteRequestTopic] = wire(array(struct(OffsetDeleteRequestTopic)))


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    """Whether it was forgotten."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[OffsetDeleteResponsePartition] = wire(
        array(struct(OffsetDeleteResponsePartition))
    )


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponse:
    """What was forgotten."""

    error_code: int = wire(INT16)
    throttle_time_ms: int = wire(INT32)
    topics: list[OffsetDeleteResponseTopic] = wire(array(struct(OffsetDeleteResponseTopic)))


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
