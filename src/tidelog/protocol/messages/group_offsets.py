"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit: offsets that groups commit.

Source: Kafka's protocol guide, APIs 8, 9, 28 and 47; KIP-98, KIP-320 (leader epochs), KIP-447,
KIP-496, KIP-709 (several groups in a request), KIP-848 (topic ids), KIP-890.
"""

from uuid import UUID

from tidelog.protocol.messages.shared import PartitionCode, PartitionIndex, ThrottledResponse
from tidelog.protocol.schema import INT16, INT32, INT64, message, wire


@message
class OffsetCommitRequestPartition:
    """Partition in the request: the next offset to read, and the client's metadata."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=6, default=-1)
    committed_metadata: str | None = wire()


@message
class OffsetCommitRequestTopic:
    """Topic in the request, with its partitions. Version 10 names the topic by its id."""

    name: str = wire(until=9)
    topic_id: UUID = wire(since=10)
    partitions: list[OffsetCommitRequestPartition] = wire()


@message
class OffsetCommitRequest:
    """Request to commit a group's offsets."""

    group_id: str = wire()
    generation_id_or_member_epoch: int = wire(INT32, default=-1)
    member_id: str = wire()
    group_instance_id: str | None = wire(since=7)
    retention_time_ms: int = wire(INT64, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = wire()


@message
class OffsetCommitResponseTopic:
    """Topic in the response of OffsetCommit, OffsetDelete and TxnOffsetCommit, with its partitions.

    Version 10 of OffsetCommit names the topic by its id. OffsetDelete and TxnOffsetCommit have no
    version 10.
    """

    name: str = wire(until=9)
    topic_id: UUID = wire(since=10)
    partitions: list[PartitionCode] = wire()


@message
class OffsetCommitResponse:
    """Response with a result for each partition."""

    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetCommitResponseTopic] = wire()


@message
class OffsetDeleteRequestTopic:
    """Topic in the request, with its partitions."""

    name: str = wire()
    partitions: list[PartitionIndex] = wire()


@message
class OffsetDeleteRequest:
    """Request to delete a group's committed offsets."""

    group_id: str = wire()
    topics: list[OffsetDeleteRequestTopic] = wire()


@message
class OffsetDeleteResponse:
    """Response with a result for each partition, or an error for the whole request."""

    error_code: int = wire(INT16)
    throttle_time_ms: int = wire(INT32)
    topics: list[OffsetCommitResponseTopic] = wire()


@message
class TxnOffsetCommitRequestPartition:
    """Partition in the request: the next offset to read after the transaction commits."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=2, default=-1)
    committed_metadata: str | None = wire()


@message
class TxnOffsetCommitRequestTopic:
    """Topic in the request, with its partitions."""

    name: str = wire()
    partitions: list[TxnOffsetCommitRequestPartition] = wire()


@message
class TxnOffsetCommitRequest:
    """Request to commit a group's offsets as part of a transaction."""

    transactional_id: str = wire()
    group_id: str = wire()
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, since=3, default=-1)
    member_id: str = wire(since=3)
    group_instance_id: str | None = wire(since=3)
    topics: list[TxnOffsetCommitRequestTopic] = wire()


@message
class TxnOffsetCommitResponse(ThrottledResponse):
    """Response with a result for each partition.

    The offsets are committed only when the transaction commits.
    """

    topics: list[OffsetCommitResponseTopic] = wire()


@message
class OffsetFetchTopic:
    """Topic in the request, by name (up to version 9) or by id, with its partitions' numbers."""

    name: str = wire(until=9)
    topic_id: UUID = wire(since=10)
    partition_indexes: list[int] = wire(INT32)


@message
class OffsetFetchGroup:
    """Group in the request, with topics. If `topics` is null, all topics are requested."""

    group_id: str = wire(since=8)
    member_id: str | None = wire(since=9)
    member_epoch: int = wire(INT32, since=9, default=-1)
    topics: list[OffsetFetchTopic] | None = wire(since=8)


@message
class OffsetFetchRequest:
    """Request for the offsets committed by one group (up to version 7) or several groups."""

    group_id: str = wire(until=7)
    topics: list[OffsetFetchTopic] | None = wire(until=7, null_since=2)
    groups: list[OffsetFetchGroup] = wire(since=8)
    require_stable: bool = wire(since=7)


@message
class OffsetFetchPartitionResponse:
    """Partition in the response. Without a committed offset, `committed_offset` is -1."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64, default=-1)
    committed_leader_epoch: int = wire(INT32, since=5, default=-1)
    metadata: str | None = wire(default="")
    error_code: int = wire(INT16)


@message
class OffsetFetchTopicResponse:
    """Topic in the response, by name (up to version 9) or by id, with its partitions."""

    name: str = wire(until=9)
    topic_id: UUID = wire(since=10)
    partitions: list[OffsetFetchPartitionResponse] = wire()


@message
class OffsetFetchGroupResponse:
    """Group in the response, with its topics."""

    group_id: str = wire(since=8)
    topics: list[OffsetFetchTopicResponse] = wire(since=8)
    error_code: int = wire(INT16, since=8)


@message
class OffsetFetchResponse:
    """Response with the committed offsets of one group (up to version 7) or several groups."""

    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetFetchTopicResponse] = wire(until=7)
    error_code: int = wire(INT16, since=2, until=7)
    groups: list[OffsetFetchGroupResponse] = wire(since=8)
