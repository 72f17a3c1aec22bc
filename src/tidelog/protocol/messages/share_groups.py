"""ShareGroupHeartbeat and ShareGroupDescribe: groups whose members share partitions.

Source: Kafka's protocol guide, APIs 76 and 77; KIP-932.
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.messages.common import NO_OPERATIONS
from tidelog.protocol.schema import (
    BOOLEAN,
    INT16,
    INT32,
    STRING,
    UUID16,
    array,
    nullable_array,
    nullable_string,
    nullable_struct,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class ShareGroupHeartbeatRequest:
    """A member is there (epoch 0: joins, -1: leaves).

    What is null has not changed since the last one.
    """

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    rack_id: str | None = wire(nullable_string())
    subscribed_topic_names: list[str] | None = wire(nullable_array(STRING))


@dataclass(slots=True, kw_only=True)
class ShareHeartbeatPartitions:
    """Partitions of one topic."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ShareHeartbeatAssignment:
    """What the member may read from now on."""

    topic_partitions: list[ShareHeartbeatPartitions] = wire(array(struct(ShareHeartbeatPartitions)))


@dataclass(slots=True, kw_only=True)
class ShareGroupHeartbeatResponse:
    """Where the member stands; the assignment only where it changed or was asked for."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    member_id: str | None = wire(nullable_string())
    member_epoch: int = wire(INT32)
    heartbeat_interval_ms: int = wire(INT32)
    assignment: ShareHeartbeatAssignment | None = wire(nullable_struct(ShareHeartbeatAssignment))


@dataclass(slots=True, kw_only=True)
class ShareGroupDescribeRequest:
    """Who is in these groups?"""

    group_ids: list[str] = wire(array(STRING))
    include_authorized_operations: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True)
class SharedPartitions:
    """Partitions of one topic, which is named as well."""

    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ShareAssignment:
    """What a member has."""

    topic_partitions: list[SharedPartitions] = wire(array(struct(SharedPartitions)))


@dataclass(slots=True, kw_only=True)
class DescribedShareMember:
    """A member."""

    member_id: str = wire(STRING)
    rack_id: str | None = wire(nullable_string())
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))
    assignment: ShareAssignment = wire(struct(ShareAssignment))


@dataclass(slots=True, kw_only=True)
class DescribedShareGroup:
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


@dataclass(slots=True, kw_only=True)
class ShareGroupDescribeResponse:
    """The groups."""

    throttle_time_ms: int = wire(INT32)
    groups: list[DescribedShareGroup] = wire(array(struct(DescribedShareGroup)))
