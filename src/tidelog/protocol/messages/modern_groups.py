"""Heartbeat and Describe of consumer and share groups, whose coordinator assigns partitions.

Both protocols share the common fields; each message has those of its protocol.

Source: Kafka's protocol guide, APIs 68, 69, 76 and 77; KIP-848, KIP-932, KIP-1082 (member ids made
by clients), KIP-1099 (kinds of members).
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    NO_OPERATIONS,
    STRING,
    UUID16,
    Declaration,
    array,
    nullable_array,
    nullable_string,
    nullable_struct,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class HeartbeatPartitions(Declaration):
    """Partitions of one topic."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupHeartbeatRequest(Declaration):
    """A member is there (epoch 0: joins, -1: leaves, -2: a static one leaves for a while).

    What is null, or -1 for the rebalance time-out, has not changed since the last one.
    """

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    instance_id: str | None = wire(nullable_string())
    rack_id: str | None = wire(nullable_string())
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    subscribed_topic_names: list[str] | None = wire(nullable_array(STRING))
    subscribed_topic_regex: str | None = wire(nullable_string(since=1), since=1)
    server_assignor: str | None = wire(nullable_string())
    topic_partitions: list[HeartbeatPartitions] | None = wire(
        nullable_array(struct(HeartbeatPartitions))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class HeartbeatAssignment(Declaration):
    """What the member may read now."""

    topic_partitions: list[HeartbeatPartitions] = wire(array(struct(HeartbeatPartitions)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class HeartbeatResponse(Declaration):
    """Where the member stands; the assignment only where it changed or was asked for."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    member_id: str | None = wire(nullable_string())
    member_epoch: int = wire(INT32)
    heartbeat_interval_ms: int = wire(INT32)
    assignment: HeartbeatAssignment | None = wire(nullable_struct(HeartbeatAssignment))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupHeartbeatResponse(HeartbeatResponse):
    """Where the member stands; the assignment only where it changed or was asked for."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class GroupDescribeRequest(Declaration):
    """Who is in these groups?"""

    group_ids: list[str] = wire(array(STRING))
    include_authorized_operations: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupDescribeRequest(GroupDescribeRequest):
    """Who is in these groups?"""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedPartitions(Declaration):
    """Partitions of one topic, which is named as well."""

    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedAssignment(Declaration):
    """What a member has, or is to have."""

    topic_partitions: list[DescribedPartitions] = wire(array(struct(DescribedPartitions)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedConsumer(Declaration):
    """A member."""

    member_id: str = wire(STRING)
    instance_id: str | None = wire(nullable_string())
    rack_id: str | None = wire(nullable_string())
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))
    subscribed_topic_regex: str | None = wire(nullable_string())
    assignment: DescribedAssignment = wire(struct(DescribedAssignment))
    target_assignment: DescribedAssignment = wire(struct(DescribedAssignment))
    member_type: int = wire(INT8, since=1, default=-1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedConsumerGroup(Declaration):
    """A group with its members."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    group_epoch: int = wire(INT32)
    assignment_epoch: int = wire(INT32)
    assignor_name: str = wire(STRING)
    members: list[DescribedConsumer] = wire(array(struct(DescribedConsumer)))
    authorized_operations: int = wire(INT32, default=NO_OPERATIONS)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupDescribeResponse(Declaration):
    """The groups."""

    throttle_time_ms: int = wire(INT32)
    groups: list[DescribedConsumerGroup] = wire(array(struct(DescribedConsumerGroup)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupHeartbeatRequest(Declaration):
    """A member is there (epoch 0: joins, -1: leaves).

    What is null has not changed since the last one.
    """

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    rack_id: str | None = wire(nullable_string())
    subscribed_topic_names: list[str] | None = wire(nullable_array(STRING))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupHeartbeatResponse(HeartbeatResponse):
    """Where the member stands; the assignment only where it changed or was asked for."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupDescribeRequest(GroupDescribeRequest):
    """Who is in these groups?"""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedShareMember(Declaration):
    """A member."""

    member_id: str = wire(STRING)
    rack_id: str | None = wire(nullable_string())
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))
    assignment: DescribedAssignment = wire(struct(DescribedAssignment))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedShareGroup(Declaration):
    """A group with its members."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    group_epoch: int = wire(INT32)
    assignment_epoch: int = wire(INT32)
    assignor_name: str = wire(STRING)
    members: list[DescribedShareMember] = wire(array(struct(DescribedShareMember)))
    authorized_operations: int = wire(INT32, default=NO_OPERATIONS)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupDescribeResponse(Declaration):
    """The groups."""

    throttle_time_ms: int = wire(INT32)
    groups: list[DescribedShareGroup] = wire(array(struct(DescribedShareGroup)))
