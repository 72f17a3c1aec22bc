"""Records of classic groups and committed offsets; messages inside JoinGroup and SyncGroup.

Members send versioned messages as metadata of JoinGroup and get them as assignments of SyncGroup;
a reader uses the highest version that both sides know.

Source: Kafka's consumer protocol, KIP-429 (owned partitions), KIP-792 (generation), KIP-881
(racks); Kafka's records in `__consumer_offsets`; KIP-211 (offset expiry), KIP-848 (topic ids).
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.schema import (
    BYTES,
    INT32,
    INT64,
    STRING,
    UUID16,
    Declaration,
    array,
    nullable_bytes,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetCommitKey(Declaration):
    """A group and a partition; the key numbers 0 and 1 both mean it."""

    group: str = wire(STRING)
    topic: str = wire(STRING)
    partition: int = wire(INT32)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetCommitValue(Declaration):
    """What the group committed."""

    offset: int = wire(INT64)
    leader_epoch: int = wire(INT32, since=3, default=-1)
    metadata: str = wire(STRING)
    commit_timestamp: int = wire(INT64)
    expire_timestamp: int = wire(INT64, since=1, until=1, default=-1)
    topic_id: UUID = wire(UUID16, since=4, tag=0)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class GroupMetadataKey(Declaration):
    """A group."""

    group: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MemberMetadata(Declaration):
    """A member, what it asked for and what it got; times in ms."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    rebalance_timeout: int = wire(INT32, since=1, default=-1)
    session_timeout: int = wire(INT32)
    subscription: Buffer = wire(BYTES)
    assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class GroupMetadataValue(Declaration):
    """A generation of a group with its members."""

    protocol_type: str = wire(STRING)
    generation: int = wire(INT32)
    protocol: str | None = wire(nullable_string())
    leader: str | None = wire(nullable_string())
    current_state_timestamp: int = wire(INT64, since=2, default=-1)
    members: list[MemberMetadata] = wire(array(struct(MemberMetadata)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OwnedPartitions(Declaration):
    """Partitions of one topic that the member still has."""

    topic: str = wire(STRING, since=1)
    partitions: list[int] = wire(array(INT32), since=1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerProtocolSubscription(Declaration):
    """What a member wants, and what it had."""

    topics: list[str] = wire(array(STRING))
    user_data: Buffer | None = wire(nullable_bytes())
    owned_partitions: list[OwnedPartitions] = wire(array(struct(OwnedPartitions)), since=1)
    generation_id: int = wire(INT32, since=2, default=-1)
    rack_id: str | None = wire(nullable_string(), since=3)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AssignedPartitions(Declaration):
    """Partitions of one topic."""

    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ConsumerProtocolAssignment(Declaration):
    """What a member gets."""

    assigned_partitions: list[AssignedPartitions] = wire(array(struct(AssignedPartitions)))
    user_data: Buffer | None = wire(nullable_bytes())


SUBSCRIPTION: Final = DataMessage(ConsumerProtocolSubscription, 0, 3, open_ended=True)


ASSIGNMENT: Final = DataMessage(ConsumerProtocolAssignment, 0, 3, open_ended=True)


# In keys the number says what the record is about.
OFFSET_COMMIT_KEY: Final = DataMessage(OffsetCommitKey, 0, 1)


GROUP_METADATA_KEY: Final = DataMessage(GroupMetadataKey, 2, 2)


OFFSET_COMMIT_VALUE: Final = DataMessage(OffsetCommitValue, 0, 4, flexible=4)


GROUP_METADATA_VALUE: Final = DataMessage(GroupMetadataValue, 0, 4, flexible=4)
