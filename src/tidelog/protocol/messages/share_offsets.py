"""Describe-, Alter- and DeleteShareGroupOffsets: the start offsets of share groups, for tools.

Source: Kafka's protocol guide, APIs 90 to 92; KIP-932, KIP-1226 (lag).
"""

from uuid import UUID

from tidelog.protocol.messages.shared import ErrorResponse, PartitionError, ThrottledResponse
from tidelog.protocol.schema import (
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
class DescribeShareGroupOffsetsRequestTopic:
    """Topic in the request, with the numbers of its partitions."""

    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@message
class DescribeShareGroupOffsetsRequestGroup:
    """Group in the request, with topics. If `topics` is null, all the group's topics are meant."""

    group_id: str = wire(STRING)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = wire(
        nullable_array(struct(DescribeShareGroupOffsetsRequestTopic))
    )


@message
class DescribeShareGroupOffsetsRequest:
    """Request for the start offsets of share groups."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = wire(
        array(struct(DescribeShareGroupOffsetsRequestGroup))
    )


@message
class DescribeShareGroupOffsetsResponsePartition:
    """Partition in the response. If the partition has no delivery state, `start_offset` is -1."""

    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64, default=-1)
    leader_epoch: int = wire(INT32)
    lag: int = wire(INT64, since=1, default=-1)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@message
class DescribeShareGroupOffsetsResponseTopic:
    """Topic in the response, with its partitions."""

    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = wire(
        array(struct(DescribeShareGroupOffsetsResponsePartition))
    )


@message
class DescribeShareGroupOffsetsResponseGroup:
    """Group in the response, with its topics."""

    group_id: str = wire(STRING)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = wire(
        array(struct(DescribeShareGroupOffsetsResponseTopic))
    )
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@message
class DescribeShareGroupOffsetsResponse(ThrottledResponse):
    """Response with the start offsets of each group."""

    groups: list[DescribeShareGroupOffsetsResponseGroup] = wire(
        array(struct(DescribeShareGroupOffsetsResponseGroup))
    )


@message
class AlterShareGroupOffsetsRequestPartition:
    """Partition in the request, with its new start offset."""

    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64)


@message
class AlterShareGroupOffsetsRequestTopic:
    """Topic in the request, with its partitions."""

    topic_name: str = wire(STRING)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = wire(
        array(struct(AlterShareGroupOffsetsRequestPartition))
    )


@message
class AlterShareGroupOffsetsRequest:
    """Request to set the start offsets of a share group."""

    group_id: str = wire(STRING)
    topics: list[AlterShareGroupOffsetsRequestTopic] = wire(
        array(struct(AlterShareGroupOffsetsRequestTopic))
    )


@message
class AlterShareGroupOffsetsResponseTopic:
    """Topic in the response, with its partitions."""

    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partitions: list[PartitionError] = wire(array(struct(PartitionError)))


@message
class AlterShareGroupOffsetsResponse(ErrorResponse):
    """Response with a result for each partition."""

    responses: list[AlterShareGroupOffsetsResponseTopic] = wire(
        array(struct(AlterShareGroupOffsetsResponseTopic))
    )


@message
class DeleteShareGroupOffsetsRequestTopic:
    """Topic in the request."""

    topic_name: str = wire(STRING)


@message
class DeleteShareGroupOffsetsRequest:
    """Request to delete a share group's start offsets in the named topics."""

    group_id: str = wire(STRING)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = wire(
        array(struct(DeleteShareGroupOffsetsRequestTopic))
    )


@message
class DeleteShareGroupOffsetsResponseTopic:
    """Result for one topic."""

    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@message
class DeleteShareGroupOffsetsResponse(ErrorResponse):
    """Response with a result for each topic."""

    responses: list[DeleteShareGroupOffsetsResponseTopic] = wire(
        array(struct(DeleteShareGroupOffsetsResponseTopic))
    )
