"""Keys and values of the records that groups of KIP-848 leave in `__consumer_offsets`.

A key's int16 says what the record is about: 3 the group, 4 topics as they were (no longer
written), 5 a member, 6 the target assignment, 7 a member's part of it, 8 what the member has, 16 a
regular expression. Source: Kafka 4.3's own records; KIP-848, KIP-1101 (hash), KIP-1251 (epochs of
partitions), KIP-1263 (time of an assignment).
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    nullable_array,
    nullable_string,
    nullable_struct,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMetadataKey:
    """A group."""

    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMetadataValue:
    """Its epoch, and a hash of the topics that it reads."""

    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64, tag=0)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupPartitionMetadataKey:
    """A group whose topics an older Kafka wrote down."""

    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMemberMetadataKey:
    """A member."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ClassicProtocol:
    """A way to assign that a classic member knows."""

    name: str = wire(STRING)
    metadata: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True)
class ClassicMemberMetadata:
    """What only a member of the classic protocol has."""

    session_timeout_ms: int = wire(INT32)
    supported_protocols: list[ClassicProtocol] = wire(array(struct(ClassicProtocol)))


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue:
    """Who a member is and what it asked for."""

    instance_id: str | None = wire(nullable_string())
    rack_id: str | None = wire(nullable_string())
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))
    subscribed_topic_regex: str | None = wire(nullable_string())
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    server_assignor: str | None = wire(nullable_string())
    classic_member_metadata: ClassicMemberMetadata | None = wire(
        nullable_struct(ClassicMemberMetadata), tag=0
    )


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    """A group's target assignment."""

    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    """For which epoch of the group it was made, and when (wall time)."""

    assignment_epoch: int = wire(INT32)
    assignment_timestamp: int = wire(INT64, tag=0)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberKey:
    """A member's part of the target assignment."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class TargetPartitions:
    """Partitions of one topic."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue:
    """What the member is to have."""

    topic_partitions: list[TargetPartitions] = wire(array(struct(TargetPartitions)))


@dataclass(slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    """A member."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class CurrentPartitions:
    """Partitions of one topic, and the epoch since when the member has each."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))
    assignment_epochs: list[int] | None = wire(nullable_array(INT32), tag=0)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    """What the member has, and how far it is on its way to the target."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[CurrentPartitions] = wire(array(struct(CurrentPartitions)))
    partitions_pending_revocation: list[CurrentPartitions] = wire(array(struct(CurrentPartitions)))


@dataclass(slots=True, kw_only=True)
class ConsumerGroupRegularExpressionKey:
    """A regular expression that members subscribed to."""

    group_id: str = wire(STRING)
    regular_expression: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue:
    """The topics that it means, of which state of the cluster, and when that was found out."""

    topics: list[str] = wire(array(STRING))
    version: int = wire(INT64)
    timestamp: int = wire(INT64)
