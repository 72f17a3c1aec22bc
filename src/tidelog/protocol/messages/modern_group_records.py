"""Keys and values of the records of consumer and share groups in `__consumer_offsets`.

The int16 at the start of a key names the kind of the record:

| consumer group | share group | record |
|---|---|---|
| 3 | 11 | the group |
| 4 | - | metadata of the group's topics (no longer written) |
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

from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.messages.shared import DescribedPartitions, GroupProtocol, IdPartitions
from tidelog.protocol.schema import INT8, INT32, INT64, message, wire


@message
class GroupKey:
    """Key that consists of a group id."""

    group_id: str = wire()


@message
class GroupMemberKey:
    """Key that consists of a group id and a member id."""

    group_id: str = wire()
    member_id: str = wire()


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
class MemberTargetValue:
    """Target assignment of a member."""

    topic_partitions: list[IdPartitions] = wire()


@message
class ConsumerGroupMetadataValue(EpochValue):
    """Epoch of a consumer group, and a hash of its subscribed topics."""

    metadata_hash: int = wire(INT64, tag=0)


@message
class ClassicMemberMetadata:
    """Attributes that only a member of the classic protocol has."""

    session_timeout_ms: int = wire(INT32)
    supported_protocols: list[GroupProtocol] = wire()


@message
class ConsumerGroupMemberMetadataValue:
    """Identity and subscription of a consumer group's member."""

    instance_id: str | None = wire()
    rack_id: str | None = wire()
    client_id: str = wire()
    client_host: str = wire()
    subscribed_topic_names: list[str] = wire()
    subscribed_topic_regex: str | None = wire()
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    server_assignor: str | None = wire()
    classic_member_metadata: ClassicMemberMetadata | None = wire(tag=0)


@message
class CurrentPartitions:
    """Partitions of one topic, and for each partition the epoch in which the member received it."""

    topic_id: UUID = wire()
    partitions: list[int] = wire(INT32)
    assignment_epochs: list[int] | None = wire(INT32, tag=0)


@message
class ConsumerGroupCurrentMemberAssignmentValue:
    """Assigned partitions of a consumer group's member, and partitions that it must give up."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[CurrentPartitions] = wire()
    partitions_pending_revocation: list[CurrentPartitions] = wire()


@message
class ConsumerGroupRegularExpressionKey:
    """Key of a regular expression that members of a consumer group subscribe to."""

    group_id: str = wire()
    regular_expression: str = wire()


@message
class ConsumerGroupRegularExpressionValue:
    """Topics that matched the expression, and the version and time in ms of the match.

    The version shows for which list of topics the match was computed. In Kafka it is the version of
    the cluster metadata; in tidelog it is the time at which topics were last added.
    """

    topics: list[str] = wire()
    version: int = wire(INT64)
    timestamp: int = wire(INT64)


@message
class ShareGroupMemberMetadataValue:
    """Identity and subscription of a share group's member."""

    rack_id: str | None = wire()
    client_id: str = wire()
    client_host: str = wire()
    subscribed_topic_names: list[str] = wire()


@message
class ShareGroupCurrentMemberAssignmentValue:
    """Current assignment of a share group's member."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[IdPartitions] = wire()


@message
class ShareStateTopic:
    """Topic by id and name."""

    topic_id: UUID = wire()
    topic_name: str = wire()


@message
class ShareGroupStatePartitionMetadataValue:
    """Topics whose delivery state is being created, exists, or is being deleted."""

    initializing_topics: list[DescribedPartitions] = wire()
    initialized_topics: list[DescribedPartitions] = wire()
    deleting_topics: list[ShareStateTopic] = wire()


# Kinds of records to which the code refers by name.
PARTITION_METADATA: Final = 4
SHARE_STATE_PARTITIONS: Final = 15
REGULAR_EXPRESSION: Final = 16

# Maps a kind to the declaration of its key: a group id, or a group id and a member id.
GROUP_KEYS: Final = {kind: DataMessage(GroupKey, kind, kind) for kind in (3, 4, 6, 11, 12, 15)}
MEMBER_KEYS: Final = {
    kind: DataMessage(GroupMemberKey, kind, kind) for kind in (5, 7, 8, 10, 13, 14)
}

REGULAR_EXPRESSION_KEY: Final = DataMessage(
    ConsumerGroupRegularExpressionKey, REGULAR_EXPRESSION, REGULAR_EXPRESSION
)

CONSUMER_GROUP_VALUE: Final[DataMessage[EpochValue]] = DataMessage(
    ConsumerGroupMetadataValue, 0, 0, flexible=0
)

SHARE_GROUP_VALUE: Final = DataMessage(EpochValue, 0, 0, flexible=0)
TARGET_VALUE: Final = DataMessage(TargetEpochValue, 0, 0, flexible=0)
MEMBER_TARGET_VALUE: Final = DataMessage(MemberTargetValue, 0, 0, flexible=0)
CONSUMER_MEMBER_VALUE: Final = DataMessage(ConsumerGroupMemberMetadataValue, 0, 0, flexible=0)
SHARE_MEMBER_VALUE: Final = DataMessage(ShareGroupMemberMetadataValue, 0, 0, flexible=0)

CURRENT_ASSIGNMENT_VALUE: Final = DataMessage(
    ConsumerGroupCurrentMemberAssignmentValue, 0, 0, flexible=0
)

SHARE_CURRENT_VALUE: Final = DataMessage(ShareGroupCurrentMemberAssignmentValue, 0, 0, flexible=0)
REGULAR_EXPRESSION_VALUE: Final = DataMessage(ConsumerGroupRegularExpressionValue, 0, 0, flexible=0)

SHARE_STATE_PARTITIONS_VALUE: Final = DataMessage(
    ShareGroupStatePartitionMetadataValue, 0, 0, flexible=0
)
