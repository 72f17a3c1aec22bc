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
    Declaration,
    array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetCommitRequestPartition(Declaration):
    """The offset to go on at, and what the group notes with it."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=6, default=-1)
    committed_metadata: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetCommitRequestTopic(Declaration):
    """A topic's partitions, from version 10 on by id."""

    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitRequestPartition] = wire(
        array(struct(OffsetCommitRequestPartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetCommitRequest(Declaration):
    """We have read up to here."""

    group_id: str = wire(STRING)
    generation_id_or_member_epoch: int = wire(INT32, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=7)
    retention_time_ms: int = wire(INT64, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = wire(array(struct(OffsetCommitRequestTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetCommitResponsePartition(Declaration):
    """Whether it was kept."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetCommitResponseTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitResponsePartition] = wire(
        array(struct(OffsetCommitResponsePartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetCommitResponse(Declaration):
    """What was kept."""

    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetCommitResponseTopic] = wire(array(struct(OffsetCommitResponseTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetDeleteRequestPartition(Declaration):
    """One partition."""

    partition_index: int = wire(INT32)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetDeleteRequestTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[OffsetDeleteRequestPartition] = wire(
        array(struct(OffsetDeleteRequestPartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetDeleteRequest(Declaration):
    """Forget what a group has read of these."""

    group_id: str = wire(STRING)
    topics: list[OffsetDeleteRequestTopic] = wire(array(struct(OffsetDeleteRequestTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetDeleteResponsePartition(Declaration):
    """Whether it was forgotten."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetDeleteResponseTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[OffsetDeleteResponsePartition] = wire(
        array(struct(OffsetDeleteResponsePartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetDeleteResponse(Declaration):
    """What was forgotten."""

    error_code: int = wire(INT16)
    throttle_time_ms: int = wire(INT32)
    topics: list[OffsetDeleteResponseTopic] = wire(array(struct(OffsetDeleteResponseTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TxnOffsetCommitRequestPartition(Declaration):
    """The offset to go on at once the transaction is committed."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=2, default=-1)
    committed_metadata: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TxnOffsetCommitRequestTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = wire(
        array(struct(TxnOffsetCommitRequestPartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TxnOffsetCommitRequest(Declaration):
    """We will have read up to here."""

    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, since=3, default=-1)
    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(nullable_string(3), since=3)
    topics: list[TxnOffsetCommitRequestTopic] = wire(array(struct(TxnOffsetCommitRequestTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TxnOffsetCommitResponsePartition(Declaration):
    """Whether it waits for the end of the transaction."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TxnOffsetCommitResponseTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitResponsePartition] = wire(
        array(struct(TxnOffsetCommitResponsePartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TxnOffsetCommitResponse(Declaration):
    """How it went."""

    throttle_time_ms: int = wire(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = wire(array(struct(TxnOffsetCommitResponseTopic)))
