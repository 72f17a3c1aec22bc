"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit: offsets that groups commit.

Source: Kafka's protocol guide, APIs 8, 9, 28 and 47; KIP-98, KIP-320 (leader epochs), KIP-447,
KIP-496, KIP-709 (several groups in a request), KIP-848 (topic ids), KIP-890.
"""

from uuid import UUID

from tidelog.protocol.messages.shared import PartitionCode, PartitionIndex, ThrottledResponse
from tidelog.protocol.schema import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    message,
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@message
class OffsetCommitRequestPartition:
    """Partition in the request: the next offset to read, and the client's metadata."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=6, default=-1)
    committed_metadata: str | None = wire(nullable_string())


@message
class OffsetCommitRequestTopic:
    """Topic in the request, with its partitions. Version 10 names the topic by its id."""

    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitRequestPartition] = wire(
        array(struct(OffsetCommitRequestPartition))
    )


@message
class OffsetCommitRequest:
    """Request to commit a group's offsets."""

    group_id: str = wire(STRING)
    generation_id_or_member_epoch: int = wire(INT32, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=7)
    retention_time_ms: int = wire(INT64, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = wire(array(struct(OffsetCommitRequestTopic)))


@message
class OffsetCommitResponseTopic:
    """Topic in the response of OffsetCommit, OffsetDelete and TxnOffsetCommit, with its partitions.

    Version 10 of OffsetCommit names the topic by its id. OffsetDelete and TxnOffsetCommit have no
    version 10.
    """

    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[PartitionCode] = wire(array(struct(PartitionCode)))


@message
class OffsetCommitResponse:
    """Response with a result for each partition."""

    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetCommitResponseTopic] = wire(array(struct(OffsetCommitResponseTopic)))


@message
class OffsetDeleteRequestTopic:
    """Topic in the request, with its partitions."""

    name: str = wire(STRING)
    partitions: list[PartitionIndex] = wire(array(struct(PartitionIndex)))


@message
class OffsetDeleteRequest:
    """Request to delete a group's committed offsets."""

    group_id: str = wire(STRING)
    topics: list[OffsetDeleteRequestTopic] = wire(array(struct(OffsetDeleteRequestTopic)))


@message
class OffsetDeleteResponse:
    """Response with a result for each partition, or an error for the whole request."""

    error_code: int = wire(INT16)
    throttle_time_ms: int = wire(INT32)
    topics: list[OffsetCommitResponseTopic] = wire(array(struct(OffsetCommitResponseTopic)))


@message
class TxnOffsetCommitRequestPartition:
    """Partition in the request: the next offset to read after the transaction commits."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=2, default=-1)
    committed_metadata: str | None = wire(nullable_string())


@message
class TxnOffsetCommitRequestTopic:
    """Topic in the request, with its partitions."""

    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = wire(
        array(struct(TxnOffsetCommitRequestPartition))
    )


@message
class TxnOffsetCommitRequest:
    """Request to commit a group's offsets as part of a transaction."""

    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, since=3, default=-1)
    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(nullable_string(3), since=3)
    topics: list[TxnOffsetCommitRequestTopic] = wire(array(struct(TxnOffsetCommitRequestTopic)))


@message
class TxnOffsetCommitResponse(ThrottledResponse):
    """Response with a result for each partition.

    The offsets are committed only when the transaction commits.
    """

    topics: list[OffsetCommitResponseTopic] = wire(array(struct(OffsetCommitResponseTopic)))


@message
class OffsetFetchTopic:
    """Topic in the request, by name (up to version 9) or by id, with its partitions' numbers."""

    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partition_indexes: list[int] = wire(array(INT32))


@message
class OffsetFetchGroup:
    """Group in the request, with topics. If `topics` is null, all topics are requested."""

    group_id: str = wire(STRING, since=8)
    member_id: str | None = wire(nullable_string(since=9), since=9)
    member_epoch: int = wire(INT32, since=9, default=-1)
    topics: list[OffsetFetchTopic] | None = wire(
        nullable_array(struct(OffsetFetchTopic), since=8), since=8
    )


@message
class OffsetFetchRequest:
    """Request for the offsets committed by one group (up to version 7) or several groups."""

    group_id: str = wire(STRING, until=7)
    topics: list[OffsetFetchTopic] | None = wire(
        nullable_array(struct(OffsetFetchTopic), since=2), until=7
    )
    groups: list[OffsetFetchGroup] = wire(array(struct(OffsetFetchGroup)), since=8)
    require_stable: bool = wire(BOOLEAN, since=7)


@message
class OffsetFetchPartitionResponse:
    """Partition in the response. Without a committed offset, `committed_offset` is -1."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64, default=-1)
    committed_leader_epoch: int = wire(INT32, since=5, default=-1)
    metadata: str | None = wire(nullable_string(), default="")
    error_code: int = wire(INT16)


@message
class OffsetFetchTopicResponse:
    """Topic in the response, by name (up to version 9) or by id, with its partitions."""

    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetFetchPartitionResponse] = wire(
        array(struct(OffsetFetchPartitionResponse))
    )


@message
class OffsetFetchGroupResponse:
    """Group in the response, with its topics."""

    group_id: str = wire(STRING, since=8)
    topics: list[OffsetFetchTopicResponse] = wire(array(struct(OffsetFetchTopicResponse)), since=8)
    error_code: int = wire(INT16, since=8)


@message
class OffsetFetchResponse:
    """Response with the committed offsets of one group (up to version 7) or several groups."""

    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetFetchTopicResponse] = wire(array(struct(OffsetFetchTopicResponse)), until=7)
    error_code: int = wire(INT16, since=2, until=7)
    groups: list[OffsetFetchGroupResponse] = wire(array(struct(OffsetFetchGroupResponse)), since=8)
