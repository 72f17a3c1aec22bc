"""Keys and values of the records that share groups leave in `__consumer_offsets`.

A key's int16 says what the record is about: 10 a member, 11 the group, 12 the target assignment, 13
a member's part of it, 14 what the member has, 15 which partitions have a state with the share
coordinator. Source: Kafka 4.3's own records; KIP-932, KIP-1263 (time of an assignment).
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    INT8,
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
class ShareGroupMemberMetadataKey:
    """A member."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ShareGroupMemberMetadataValue:
    """Who a member is and what it asked for."""

    rack_id: str | None = wire(nullable_string())
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True)
class ShareGroupMetadataKey:
    """A group."""

    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ShareGroupMetadataValue:
    """Its epoch, and a hash of the topics that it reads."""

    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64)


@dataclass(slots=True, kw_only=True)
class ShareGroupTargetAssignmentMetadataKey:
    """A group's target assignment."""

    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ShareGroupTargetAssignmentMetadataValue:
    """For which epoch of the group it was made, and when (wall time)."""

    assignment_epoch: int = wire(INT32)
    assignment_timestamp: int = wire(INT64, tag=0)


@dataclass(slots=True, kw_only=True)
class ShareGroupTargetAssignmentMemberKey:
    """A member's part of the target assignment."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ShareTopicPartitions:
    """Partitions of one topic."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ShareGroupTargetAssignmentMemberValue:
    """What the member is to have."""

    topic_partitions: list[ShareTopicPartitions] = wire(array(struct(ShareTopicPartitions)))


@dataclass(slots=True, kw_only=True)
class ShareGroupCurrentMemberAssignmentKey:
    """A member."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ShareGroupCurrentMemberAssignmentValue:
    """What the member has."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[ShareTopicPartitions] = wire(array(struct(ShareTopicPartitions)))


@dataclass(slots=True, kw_only=True)
class ShareGroupStatePartitionMetadataKey:
    """A group."""

    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ShareStatePartitions:
    """Partitions of one topic, which is named as well."""

    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ShareStateTopic:
    """A topic."""

    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ShareGroupStatePartitionMetadataValue:
    """Which partitions get a state, which have one, and whose states are being deleted."""

    initializing_topics: list[ShareStatePartitions] = wire(array(struct(ShareStatePartitions)))
    initialized_topics: list[ShareStatePartitions] = wire(array(struct(ShareStatePartitions)))
    deleting_topics: list[ShareStateTopic] = wire(array(struct(ShareStateTopic)))
