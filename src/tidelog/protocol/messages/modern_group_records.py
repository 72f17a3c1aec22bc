"""Keys and values of the records of consumer and share groups in `__consumer_offsets`.

The int16 at the start of a key names the kind of the record:

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

from typing import Final
from uuid import UUID

from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.schema import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    message,
    nullable_array,
    nullable_string,
    nullable_struct,
    struct,
    wire,
)
from tidelog.types import Buffer


@message
class GroupKey:
    """Key that consists of a group id."""

    group_id: str = wire(STRING)


@message
class GroupMemberKey:
    """Key that consists of a group id and a member id."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@message
class EpochValue:
    """Epoch of a group, and a hash of the metadata of its subscribed topics."""

    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64)


@message
class TargetEpochValue:
    """Epoch of a target assignment, and the time in ms since 1970 when it was computed."""

    assignment_epoch: int = wire(INT32)
    assignment_timestamp: int = wire(INT64, tag=0)


@message
class TargetPartitions:
    """Partitions of one topic."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@message
class MemberTargetValue:
    """Target assignment of a member."""

    topic_partitions: list[TargetPartitions] = wire(array(struct(TargetPartitions)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupMetadataKey(GroupKey):
    """Key of a consumer group."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupMetadataValue(EpochValue):
    """Epoch of a consumer group, and a hash of its subscribed topics."""

    metadata_hash: int = wire(INT64, tag=0)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupPartitionMetadataKey(GroupKey):
    """Key of the topic metadata that an older Kafka wrote for a consumer group."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupMemberMetadataKey(GroupMemberKey):
    """Key of a consumer group's member."""


@message
class ClassicProtocol:
    """Assignment protocol that a classic member supports, and the member's metadata for it."""

    name: str = wire(STRING)
    metadata: Buffer = wire(BYTES)


@message
class ClassicMemberMetadata:
    """Attributes that only a member of the classic protocol has."""

    session_timeout_ms: int = wire(INT32)
    supported_protocols: list[ClassicProtocol] = wire(array(struct(ClassicProtocol)))


@message
class ConsumerGroupMemberMetadataValue:
    """Identity and subscription of a consumer group's member."""

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
    """Key of a consumer group's target assignment."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupTargetAssignmentMetadataValue(TargetEpochValue):
    """Epoch of a consumer group's target assignment, and the time of its computation."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupTargetAssignmentMemberKey(GroupMemberKey):
    """Key of a member's part of a consumer group's target assignment."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupTargetAssignmentMemberValue(MemberTargetValue):
    """Target assignment of a consumer group's member."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """Key of the current assignment of a consumer group's member."""


@message
class CurrentPartitions:
    """Partitions of one topic, and for each partition the epoch in which the member received it."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))
    assignment_epochs: list[int] | None = wire(nullable_array(INT32), tag=0)


@message
class ConsumerGroupCurrentMemberAssignmentValue:
    """Assigned partitions of a consumer group's member, and partitions that it must give up."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[CurrentPartitions] = wire(array(struct(CurrentPartitions)))
    partitions_pending_revocation: list[CurrentPartitions] = wire(array(struct(CurrentPartitions)))


@message
class ConsumerGroupRegularExpressionKey:
    """Key of a regular expression that members of a consumer group subscribe to."""

    group_id: str = wire(STRING)
    regular_expression: str = wire(STRING)


@message
class ConsumerGroupRegularExpressionValue:
    """Topics that the expression matched, the topic list's version, and the match's time in ms."""

    topics: list[str] = wire(array(STRING))
    version: int = wire(INT64)
    timestamp: int = wire(INT64)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupMemberMetadataKey(GroupMemberKey):
    """Key of a share group's member."""


@message
class ShareGroupMemberMetadataValue:
    """Identity and subscription of a share group's member."""

    rack_id: str | None = wire(nullable_string())
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupMetadataKey(GroupKey):
    """Key of a share group."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupMetadataValue(EpochValue):
    """Epoch of a share group, and a hash of its subscribed topics."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupTargetAssignmentMetadataKey(GroupKey):
    """Key of a share group's target assignment."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupTargetAssignmentMetadataValue(TargetEpochValue):
    """Epoch of a share group's target assignment, and the time in ms when it was computed."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupTargetAssignmentMemberKey(GroupMemberKey):
    """Key of a member's part of a share group's target assignment."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupTargetAssignmentMemberValue(MemberTargetValue):
    """Target assignment of a share group's member."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """Key of the current assignment of a share group's member."""


@message
class ShareGroupCurrentMemberAssignmentValue:
    """Current assignment of a share group's member."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[TargetPartitions] = wire(array(struct(TargetPartitions)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupStatePartitionMetadataKey(GroupKey):
    """Key of the partitions that have delivery state for a share group."""


@message
class ShareStatePartitions:
    """Partitions of one topic, with the topic's id and name."""

    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@message
class ShareStateTopic:
    """Topic by id and name."""

    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)


@message
class ShareGroupStatePartitionMetadataValue:
    """Topics whose delivery state is being created, exists, or is being deleted."""

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
