"""Records of classic groups and committed offsets; messages inside JoinGroup and SyncGroup.

A member sends its subscription in the metadata of JoinGroup, and receives its assignment in the
response of SyncGroup. Subscription and assignment have versions of their own. If a message has a
later version than the reader knows, the reader decodes it as the highest version that the reader
knows.

Source: Kafka's consumer protocol, KIP-429 (owned partitions), KIP-792 (generation), KIP-881
(racks); Kafka's records in `__consumer_offsets`; KIP-211 (offset expiry), KIP-848 (topic ids).
"""

from typing import Final
from uuid import UUID

from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.messages.shared import TopicPartitions
from tidelog.protocol.schema import INT32, INT64, message, wire
from tidelog.types import Buffer


@message
class OffsetCommitKey:
    """Key of a committed offset: group and partition. Key versions 0 and 1 are equivalent."""

    group: str = wire()
    topic: str = wire()
    partition: int = wire(INT32)


@message
class OffsetCommitValue:
    """Committed offset of a partition. Times are in ms since 1970."""

    offset: int = wire(INT64)
    leader_epoch: int = wire(INT32, since=3, default=-1)
    metadata: str = wire()
    commit_timestamp: int = wire(INT64)
    expire_timestamp: int = wire(INT64, since=1, until=1, default=-1)
    topic_id: UUID = wire(since=4, tag=0)


@message
class GroupMetadataKey:
    """Key of a classic group's metadata."""

    group: str = wire()


@message
class MemberMetadata:
    """Member in a group's metadata, with subscription and assignment. Timeouts are in ms."""

    member_id: str = wire()
    group_instance_id: str | None = wire(since=3)
    client_id: str = wire()
    client_host: str = wire()
    rebalance_timeout: int = wire(INT32, since=1, default=-1)
    session_timeout: int = wire(INT32)
    subscription: Buffer = wire()
    assignment: Buffer = wire()


@message
class GroupMetadataValue:
    """Metadata of a classic group: generation, protocol, leader and members."""

    protocol_type: str = wire()
    generation: int = wire(INT32)
    protocol: str | None = wire()
    leader: str | None = wire()
    current_state_timestamp: int = wire(INT64, since=2, default=-1)
    members: list[MemberMetadata] = wire()


@message
class OwnedPartitions:
    """Partitions of one topic that the member owns."""

    topic: str = wire(since=1)
    partitions: list[int] = wire(INT32, since=1)


@message
class ConsumerProtocolSubscription:
    """A member's subscription and the partitions that the member owns, in JoinGroup's metadata."""

    topics: list[str] = wire()
    user_data: Buffer | None = wire()
    owned_partitions: list[OwnedPartitions] = wire(since=1)
    generation_id: int = wire(INT32, since=2, default=-1)
    rack_id: str | None = wire(since=3)


@message
class ConsumerProtocolAssignment:
    """Assignment of a member, in SyncGroup."""

    assigned_partitions: list[TopicPartitions] = wire()
    user_data: Buffer | None = wire()


SUBSCRIPTION: Final = DataMessage(ConsumerProtocolSubscription, 0, 3, open_ended=True)
ASSIGNMENT: Final = DataMessage(ConsumerProtocolAssignment, 0, 3, open_ended=True)

# The version of a key is the kind of the record: 0 and 1 mean a committed offset, 2 means a group.
OFFSET_COMMIT_KEY: Final = DataMessage(OffsetCommitKey, 0, 1)

GROUP_METADATA_KEY: Final = DataMessage(GroupMetadataKey, 2, 2)
OFFSET_COMMIT_VALUE: Final = DataMessage(OffsetCommitValue, 0, 4, flexible=4)
GROUP_METADATA_VALUE: Final = DataMessage(GroupMetadataValue, 0, 4, flexible=4)
