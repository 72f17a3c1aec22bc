"""Keys and values of the records of consumer and share groups in `__consumer_offsets`.

The int16 of a key names the kind of record:

| consumer group | share group | record |
|---|---|---|
| 3 | 11 | the group |
| 4 | - | metadata of its topics (no longer written) |
| 5 | 10 | a member |
| 6 | 12 | the target assignment |
| 7 | 13 | a member's part of the target assignment |
| 8 | 14 | a member's current assignment |
| 16 | - | a regular expression |
| - | 15 | partitions with a state at the share coordinator |

Source: Kafka 4.3's records; KIP-848, KIP-932, KIP-1101 (hash), KIP-1251 (epochs of partitions),
KIP-1263 (time of an assignment).
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.schema import (
    BYTES,
    INT8,
    INT32,
    INT64,
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
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class GroupKey(Declaration):
    """A key that names a group."""

    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class GroupMemberKey(Declaration):
    """A key that names a member."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class EpochValue(Declaration):
    """A group's epoch, and a hash of the topics that it reads."""

    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TargetEpochValue(Declaration):
    """The epoch of a target assignment, and when it was made."""

    assignment_epoch: int = wire(INT32)
    assignment_timestamp: int = wire(INT64, tag=0)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TargetPartitions(Declaration):
    """Partitions of one topic."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MemberTargetValue(Declaration):
    """What a member is to have."""

    topic_partitions: list[TargetPartitions] = wire(array(struct(TargetPartitions)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupMetadataKey(GroupKey):
    """A group."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupMetadataValue(EpochValue):
    """Its epoch, and a hash of the topics that it reads."""

    metadata_hash: int = wire(INT64, tag=0)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupPartitionMetadataKey(GroupKey):
    """A group whose topics an older Kafka wrote down."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupMemberMetadataKey(GroupMemberKey):
    """A member."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ClassicProtocol(Declaration):
    """A way to assign that a classic member knows."""

    name: str = wire(STRING)
    metadata: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ClassicMemberMetadata(Declaration):
    """What only a member of the classic protocol has."""

    session_timeout_ms: int = wire(INT32)
    supported_protocols: list[ClassicProtocol] = wire(array(struct(ClassicProtocol)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupMemberMetadataValue(Declaration):
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


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupTargetAssignmentMetadataKey(GroupKey):
    """A group's target assignment."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupTargetAssignmentMetadataValue(TargetEpochValue):
    """For which epoch of the group it was made, and when (wall time)."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupTargetAssignmentMemberKey(GroupMemberKey):
    """A member's part of the target assignment."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupTargetAssignmentMemberValue(MemberTargetValue):
    """What the member is to have."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """A member."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CurrentPartitions(Declaration):
    """Partitions of one topic, and the epoch since when the member has each."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))
    assignment_epochs: list[int] | None = wire(nullable_array(INT32), tag=0)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupCurrentMemberAssignmentValue(Declaration):
    """What the member has, and how far it is on its way to the target."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[CurrentPartitions] = wire(array(struct(CurrentPartitions)))
    partitions_pending_revocation: list[CurrentPartitions] = wire(array(struct(CurrentPartitions)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupRegularExpressionKey(Declaration):
    """A regular expression that members subscribed to."""

    group_id: str = wire(STRING)
    regular_expression: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupRegularExpressionValue(Declaration):
    """The topics that it means, of which state of the cluster, and when that was found out."""

    topics: list[str] = wire(array(STRING))
    version: int = wire(INT64)
    timestamp: int = wire(INT64)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupMemberMetadataKey(GroupMemberKey):
    """A member."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupMemberMetadataValue(Declaration):
    """Who a member is and what it asked for."""

    rack_id: str | None = wire(nullable_string())
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupMetadataKey(GroupKey):
    """A group."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupMetadataValue(EpochValue):
    """Its epoch, and a hash of the topics that it reads."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupTargetAssignmentMetadataKey(GroupKey):
    """A group's target assignment."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupTargetAssignmentMetadataValue(TargetEpochValue):
    """For which epoch of the group it was made, and when (wall time)."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupTargetAssignmentMemberKey(GroupMemberKey):
    """A member's part of the target assignment."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupTargetAssignmentMemberValue(MemberTargetValue):
    """What the member is to have."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """A member."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupCurrentMemberAssignmentValue(Declaration):
    """What the member has."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[TargetPartitions] = wire(array(struct(TargetPartitions)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupStatePartitionMetadataKey(GroupKey):
    """A group."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareStatePartitions(Declaration):
    """Partitions of one topic, which is named as well."""

    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareStateTopic(Declaration):
    """A topic."""

    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupStatePartitionMetadataValue(Declaration):
    """Which partitions get a state, which have one, and whose states are being deleted."""

    initializing_topics: list[ShareStatePartitions] = wire(array(struct(ShareStatePartitions)))
    initialized_topics: list[ShareStatePartitions] = wire(array(struct(ShareStatePartitions)))
    deleting_topics: list[ShareStateTopic] = wire(array(struct(ShareStateTopic)))


CONSUMER_GROUP_KEY: Final[DataMessage[GroupKey]] = DataMessage(ConsumerGroupMetadataKey, 3, 3)


CONSUMER_GROUP_VALUE: Final[DataMessage[EpochValue]] = DataMessage(
    ConsumerGroupMetadataValue, 0, 0, flexible=0
)


PARTITION_METADATA_KEY: Final[DataMessage[GroupKey]] = DataMessage(
    ConsumerGroupPartitionMetadataKey, 4, 4
)


CONSUMER_MEMBER_KEY: Final[DataMessage[GroupMemberKey]] = DataMessage(
    ConsumerGroupMemberMetadataKey, 5, 5
)


CONSUMER_MEMBER_VALUE: Final = DataMessage(ConsumerGroupMemberMetadataValue, 0, 0, flexible=0)


TARGET_KEY: Final[DataMessage[GroupKey]] = DataMessage(
    ConsumerGroupTargetAssignmentMetadataKey, 6, 6
)


TARGET_VALUE: Final[DataMessage[TargetEpochValue]] = DataMessage(
    ConsumerGroupTargetAssignmentMetadataValue, 0, 0, flexible=0
)


MEMBER_TARGET_KEY: Final[DataMessage[GroupMemberKey]] = DataMessage(
    ConsumerGroupTargetAssignmentMemberKey, 7, 7
)


MEMBER_TARGET_VALUE: Final[DataMessage[MemberTargetValue]] = DataMessage(
    ConsumerGroupTargetAssignmentMemberValue, 0, 0, flexible=0
)


CURRENT_ASSIGNMENT_KEY: Final[DataMessage[GroupMemberKey]] = DataMessage(
    ConsumerGroupCurrentMemberAssignmentKey, 8, 8
)


CURRENT_ASSIGNMENT_VALUE: Final = DataMessage(
    ConsumerGroupCurrentMemberAssignmentValue, 0, 0, flexible=0
)


REGULAR_EXPRESSION_KEY: Final = DataMessage(ConsumerGroupRegularExpressionKey, 16, 16)


REGULAR_EXPRESSION_VALUE: Final = DataMessage(ConsumerGroupRegularExpressionValue, 0, 0, flexible=0)


SHARE_MEMBER_KEY: Final[DataMessage[GroupMemberKey]] = DataMessage(
    ShareGroupMemberMetadataKey, 10, 10
)


SHARE_MEMBER_VALUE: Final = DataMessage(ShareGroupMemberMetadataValue, 0, 0, flexible=0)


SHARE_GROUP_KEY: Final[DataMessage[GroupKey]] = DataMessage(ShareGroupMetadataKey, 11, 11)


SHARE_GROUP_VALUE: Final[DataMessage[EpochValue]] = DataMessage(
    ShareGroupMetadataValue, 0, 0, flexible=0
)


SHARE_TARGET_KEY: Final[DataMessage[GroupKey]] = DataMessage(
    ShareGroupTargetAssignmentMetadataKey, 12, 12
)


SHARE_TARGET_VALUE: Final[DataMessage[TargetEpochValue]] = DataMessage(
    ShareGroupTargetAssignmentMetadataValue, 0, 0, flexible=0
)


SHARE_MEMBER_TARGET_KEY: Final[DataMessage[GroupMemberKey]] = DataMessage(
    ShareGroupTargetAssignmentMemberKey, 13, 13
)


SHARE_MEMBER_TARGET_VALUE: Final[DataMessage[MemberTargetValue]] = DataMessage(
    ShareGroupTargetAssignmentMemberValue, 0, 0, flexible=0
)


SHARE_CURRENT_KEY: Final[DataMessage[GroupMemberKey]] = DataMessage(
    ShareGroupCurrentMemberAssignmentKey, 14, 14
)


SHARE_CURRENT_VALUE: Final = DataMessage(ShareGroupCurrentMemberAssignmentValue, 0, 0, flexible=0)


SHARE_STATE_PARTITIONS_KEY: Final[DataMessage[GroupKey]] = DataMessage(
    ShareGroupStatePartitionMetadataKey, 15, 15
)


SHARE_STATE_PARTITIONS_VALUE: Final = DataMessage(
    ShareGroupStatePartitionMetadataValue, 0, 0, flexible=0
)
