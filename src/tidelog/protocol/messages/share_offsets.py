"""Describe-, Alter- and DeleteShareGroupOffsets: the start offsets of share groups, for tools.

Source: Kafka's protocol guide, APIs 90 to 92; KIP-932, KIP-1226 (lag).
"""

from uuid import UUID

from tidelog.protocol.messages.shared import ErrorResponse, PartitionError, ThrottledResponse
from tidelog.protocol.schema import INT16, INT32, INT64, message, wire


@message
class DescribeShareGroupOffsetsRequestTopic:
    """Topic in the request, with the numbers of its partitions."""

    topic_name: str = wire()
    partitions: list[int] = wire(INT32)


@message
class DescribeShareGroupOffsetsRequestGroup:
    """Group in the request, with topics. Null `topics` request all topics of the group."""

    group_id: str = wire()
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = wire()


@message
class DescribeShareGroupOffsetsRequest:
    """Request for the start offsets of share groups."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = wire()


@message
class DescribeShareGroupOffsetsResponsePartition:
    """Partition in the response. If the partition has no delivery state, `start_offset` is -1."""

    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64, default=-1)
    leader_epoch: int = wire(INT32)
    lag: int = wire(INT64, since=1, default=-1)
    error_code: int = wire(INT16)
    error_message: str | None = wire()


@message
class DescribeShareGroupOffsetsResponseTopic:
    """Topic in the response, with its partitions."""

    topic_name: str = wire()
    topic_id: UUID = wire()
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = wire()


@message
class DescribeShareGroupOffsetsResponseGroup:
    """Group in the response, with its topics."""

    group_id: str = wire()
    topics: list[DescribeShareGroupOffsetsResponseTopic] = wire()
    error_code: int = wire(INT16)
    error_message: str | None = wire()


@message
class DescribeShareGroupOffsetsResponse(ThrottledResponse):
    """Response with the start offsets of each group."""

    groups: list[DescribeShareGroupOffsetsResponseGroup] = wire()


@message
class AlterShareGroupOffsetsRequestPartition:
    """Partition in the request, with its new start offset."""

    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64)


@message
class AlterShareGroupOffsetsRequestTopic:
    """Topic in the request, with its partitions."""

    topic_name: str = wire()
    partitions: list[AlterShareGroupOffsetsRequestPartition] = wire()


@message
class AlterShareGroupOffsetsRequest:
    """Request to set the start offsets of a share group."""

    group_id: str = wire()
    topics: list[AlterShareGroupOffsetsRequestTopic] = wire()


@message
class AlterShareGroupOffsetsResponseTopic:
    """Topic in the response, with its partitions."""

    topic_name: str = wire()
    topic_id: UUID = wire()
    partitions: list[PartitionError] = wire()


@message
class AlterShareGroupOffsetsResponse(ErrorResponse):
    """Response with a result for each partition."""

    responses: list[AlterShareGroupOffsetsResponseTopic] = wire()


@message
class DeleteShareGroupOffsetsRequestTopic:
    """Topic in the request."""

    topic_name: str = wire()


@message
class DeleteShareGroupOffsetsRequest:
    """Request to delete a share group's start offsets in the named topics."""

    group_id: str = wire()
    topics: list[DeleteShareGroupOffsetsRequestTopic] = wire()


@message
class DeleteShareGroupOffsetsResponseTopic:
    """Result for one topic."""

    topic_name: str = wire()
    topic_id: UUID = wire()
    error_code: int = wire(INT16)
    error_message: str | None = wire()


@message
class DeleteShareGroupOffsetsResponse(ErrorResponse):
    """Response with a result for each topic."""

    responses: list[DeleteShareGroupOffsetsResponseTopic] = wire()
