"""Describe-, Alter- and DeleteShareGroupOffsets: the start offsets of a share group, for tools.

Source: Kafka's protocol guide, APIs 90 to 92; KIP-932, KIP-1226 (lag).
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
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeShareGroupOffsetsRequestTopic(Declaration):
    """Partitions of one topic."""

    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeShareGroupOffsetsRequestGroup(Declaration):
    """A group; null for all its topics."""

    group_id: str = wire(STRING)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = wire(
        nullable_array(struct(DescribeShareGroupOffsetsRequestTopic))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeShareGroupOffsetsRequest(Declaration):
    """From where on do these groups read?"""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = wire(
        array(struct(DescribeShareGroupOffsetsRequestGroup))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeShareGroupOffsetsResponsePartition(Declaration):
    """From where on a partition is read, -1 where nothing is known yet."""

    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64)
    leader_epoch: int = wire(INT32)
    lag: int = wire(INT64, since=1, default=-1)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeShareGroupOffsetsResponseTopic(Declaration):
    """A topic's partitions."""

    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = wire(
        array(struct(DescribeShareGroupOffsetsResponsePartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeShareGroupOffsetsResponseGroup(Declaration):
    """A group's topics."""

    group_id: str = wire(STRING)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = wire(
        array(struct(DescribeShareGroupOffsetsResponseTopic))
    )
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeShareGroupOffsetsResponse(Declaration):
    """The groups."""

    throttle_time_ms: int = wire(INT32)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = wire(
        array(struct(DescribeShareGroupOffsetsResponseGroup))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterShareGroupOffsetsRequestPartition(Declaration):
    """A partition, and from where on it is to be read."""

    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterShareGroupOffsetsRequestTopic(Declaration):
    """A topic's partitions."""

    topic_name: str = wire(STRING)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = wire(
        array(struct(AlterShareGroupOffsetsRequestPartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterShareGroupOffsetsRequest(Declaration):
    """Let a group read from elsewhere."""

    group_id: str = wire(STRING)
    topics: list[AlterShareGroupOffsetsRequestTopic] = wire(
        array(struct(AlterShareGroupOffsetsRequestTopic))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterShareGroupOffsetsResponsePartition(Declaration):
    """Whether that was done."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterShareGroupOffsetsResponseTopic(Declaration):
    """A topic's partitions."""

    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = wire(
        array(struct(AlterShareGroupOffsetsResponsePartition))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterShareGroupOffsetsResponse(Declaration):
    """What was done."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    responses: list[AlterShareGroupOffsetsResponseTopic] = wire(
        array(struct(AlterShareGroupOffsetsResponseTopic))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteShareGroupOffsetsRequestTopic(Declaration):
    """A topic."""

    topic_name: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteShareGroupOffsetsRequest(Declaration):
    """Forget where a group is in these topics."""

    group_id: str = wire(STRING)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = wire(
        array(struct(DeleteShareGroupOffsetsRequestTopic))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteShareGroupOffsetsResponseTopic(Declaration):
    """Whether a topic was forgotten."""

    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteShareGroupOffsetsResponse(Declaration):
    """What was forgotten."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    responses: list[DeleteShareGroupOffsetsResponseTopic] = wire(
        array(struct(DeleteShareGroupOffsetsResponseTopic))
    )
