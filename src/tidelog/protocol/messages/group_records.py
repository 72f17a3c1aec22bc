"""Keys and values of the records in `__consumer_offsets`.

Each begins with an int16. In a key it says what the record is about (0 and 1 an offset, 2 a group),
in a value it is the value's version. Source: Kafka's own records in that topic; KIP-211 (offsets
expire with their group), KIP-848 (topic ids).

Messages that lie inside others or in records: an int16 with the version, then the fields.

    version, subscription = SUBSCRIPTION.read(data)
    data = OFFSET_COMMIT_VALUE.write(3, OffsetCommitValue(offset=42))

Source: Kafka's consumer protocol (KIP-429 and others), records of `__consumer_offsets`, of
`__transaction_state` and of `__share_group_state`.

Keys and values of the records that groups of KIP-848 leave in `__consumer_offsets`.

A key's int16 says what the record is about: 3 the group, 4 topics as they were (no longer
written), 5 a member, 6 the target assignment, 7 a member's part of it, 8 what the member has, 16 a
regular expression. Source: Kafka 4.3's own records; KIP-848, KIP-1101 (hash), KIP-1251 (epochs of
partitions), KIP-1263 (time of an assignment).

What consumers put into JoinGroup's metadata and SyncGroup's assignments.

These lie in the requests as bytes and begin with their version, an int16; whoever reads one takes
the highest version that both know. Source: KIP-429 (owned partitions), KIP-792 (generation),
KIP-881 (racks).

Keys and values of the records that share groups leave in `__consumer_offsets`.

A key's int16 says what the record is about: 10 a member, 11 the group, 12 the target assignment, 13
a member's part of it, 14 what the member has, 15 which partitions have a state with the share
coordinator. Source: Kafka 4.3's own records; KIP-932, KIP-1263 (time of an assignment).
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from uuid import UUID

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.messages.state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    TransactionLogKey,
    TransactionLogValue,
)
from tidelog.protocol.schema import (
    ANY_VERSION,
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    nullable_array,
    nullable_bytes,
    nullable_string,
    nullable_struct,
    struct,
    wire,
)
from tidelog.protocol.wire import Reader, Writer
from tidelog.types import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance


@dataclass(slots=True, kw_only=True)
class OffsetCommitKey:
    """A group and a partition; the key numbers 0 and 1 both mean it."""

    group: str = wire(STRING)
    topic: str = wire(STRING)
    partition: int = wire(INT32)


@dataclass(slots=True, kw_only=True)
class OffsetCommitValue:
    """What the group committed."""

    offset: int = wire(INT64)
    leader_epoch: int = wire(INT32, since=3, default=-1)
    metadata: str = wire(STRING)
    commit_timestamp: int = wire(INT64)
    expire_timestamp: int = wire(INT64, since=1, until=1, default=-1)
    topic_id: UUID = wire(UUID16, since=4, tag=0)


@dataclass(slots=True, kw_only=True)
class GroupMetadataKey:
    """A group."""

    group: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class MemberMetadata:
    """A member, what it asked for and what it got; times in ms."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    rebalance_timeout: int = wire(INT32, since=1, default=-1)
    session_timeout: int = wire(INT32)
    subscription: Buffer = wire(BYTES)
    assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True)
class GroupMetadataValue:
    """A generation of a group with its members."""

    protocol_type: str = wire(STRING)
    generation: int = wire(INT32)
    protocol: str | None = wire(nullable_string())
    leader: str | None = wire(nullable_string())
    current_state_timestamp: int = wire(INT64, since=2, default=-1)
    members: list[MemberMetadata] = wire(array(struct(MemberMetadata)))


@dataclass(slots=True, kw_only=True)
class GroupKey:
    """A key that names a group."""

    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class GroupMemberKey:
    """A key that names a member."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class EpochValue:
    """A group's epoch, and a hash of the topics that it reads."""

    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64)


@dataclass(slots=True, kw_only=True)
class TargetEpochValue:
    """The epoch of a target assignment, and when it was made."""

    assignment_epoch: int = wire(INT32)
    assignment_timestamp: int = wire(INT64, tag=0)


@dataclass(slots=True, kw_only=True)
class TargetPartitions:
    """Partitions of one topic."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class MemberTargetValue:
    """What a member is to have."""

    topic_partitions: list[TargetPartitions] = wire(array(struct(TargetPartitions)))


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMetadataKey(GroupKey):
    """A group."""


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMetadataValue(EpochValue):
    """Its epoch, and a hash of the topics that it reads."""

    metadata_hash: int = wire(INT64, tag=0)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupPartitionMetadataKey(GroupKey):
    """A group whose topics an older Kafka wrote down."""


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMemberMetadataKey(GroupMemberKey):
    """A member."""


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
class ConsumerGroupTargetAssignmentMetadataKey(GroupKey):
    """A group's target assignment."""


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue(TargetEpochValue):
    """For which epoch of the group it was made, and when (wall time)."""


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberKey(GroupMemberKey):
    """A member's part of the target assignment."""


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue(MemberTargetValue):
    """What the member is to have."""


@dataclass(slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """A member."""


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


@dataclass(slots=True, kw_only=True)
class OwnedPartitions:
    """Partitions of one topic that the member still has."""

    topic: str = wire(STRING, since=1)
    partitions: list[int] = wire(array(INT32), since=1)


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolSubscription:
    """What a member wants, and what it had."""

    topics: list[str] = wire(array(STRING))
    user_data: Buffer | None = wire(nullable_bytes())
    owned_partitions: list[OwnedPartitions] = wire(array(struct(OwnedPartitions)), since=1)
    generation_id: int = wire(INT32, since=2, default=-1)
    rack_id: str | None = wire(nullable_string(), since=3)


@dataclass(slots=True, kw_only=True)
class AssignedPartitions:
    """Partitions of one topic."""

    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolAssignment:
    """What a member gets."""

    assigned_partitions: list[AssignedPartitions] = wire(array(struct(AssignedPartitions)))
    user_data: Buffer | None = wire(nullable_bytes())


@dataclass(slots=True, kw_only=True)
class ShareGroupMemberMetadataKey(GroupMemberKey):
    """A member."""


@dataclass(slots=True, kw_only=True)
class ShareGroupMemberMetadataValue:
    """Who a member is and what it asked for."""

    rack_id: str | None = wire(nullable_string())
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True)
class ShareGroupMetadataKey(GroupKey):
    """A group."""


@dataclass(slots=True, kw_only=True)
class ShareGroupMetadataValue(EpochValue):
    """Its epoch, and a hash of the topics that it reads."""


@dataclass(slots=True, kw_only=True)
class ShareGroupTargetAssignmentMetadataKey(GroupKey):
    """A group's target assignment."""


@dataclass(slots=True, kw_only=True)
class ShareGroupTargetAssignmentMetadataValue(TargetEpochValue):
    """For which epoch of the group it was made, and when (wall time)."""


@dataclass(slots=True, kw_only=True)
class ShareGroupTargetAssignmentMemberKey(GroupMemberKey):
    """A member's part of the target assignment."""


@dataclass(slots=True, kw_only=True)
class ShareGroupTargetAssignmentMemberValue(MemberTargetValue):
    """What the member is to have."""


@dataclass(slots=True, kw_only=True)
class ShareGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """A member."""


@dataclass(slots=True, kw_only=True)
class ShareGroupCurrentMemberAssignmentValue:
    """What the member has."""

    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[TargetPartitions] = wire(array(struct(TargetPartitions)))


@dataclass(slots=True, kw_only=True)
class ShareGroupStatePartitionMetadataKey(GroupKey):
    """A group."""


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


Message = TypeVar("Message", bound="DataclassInstance")


VERSION_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class DataMessage(Generic[Message]):
    """One such message.

    Attributes:
        kind: Its declaration.
        first: Lowest version.
        last: Highest version that the declaration knows, inclusive.
        flexible: First version with compact lengths and tagged fields.
        open_ended: Whether a later version is read as the last one known, its further fields left
            aside, as members of a group do with each other's.
    """

    kind: type[Message]
    first: int
    last: int
    flexible: int = ANY_VERSION + 1
    open_ended: bool = False

    def read(self, data: Buffer) -> tuple[int, Message]:
        """The version as it stands in the data, and the message.

        Raises:
            UnsupportedVersion: A version that nobody here knows.
            CorruptMessage: It breaks a rule.
        """
        reader = Reader(data)
        version = reader.int16()
        known = min(version, self.last) if self.open_ended else version
        self._check(known)
        message = struct_codec(self.kind, known, known >= self.flexible).read(reader)
        if reader.left and not self.open_ended:
            raise CorruptMessage(
                f"{self.kind.__name__} v{version}: {reader.left} bytes behind it", at=reader.at
            )
        return version, message

    def write(self, version: int, message: Message) -> bytes:
        """The message in one version.

        Raises:
            UnsupportedVersion: The declaration doesn't know the version.
            InvalidRequest: A value doesn't fit into its field.
        """
        self._check(version)
        head, write = _written(self.kind, version, version >= self.flexible)
        writer = Writer()
        writer.add(head)
        write(writer, message)
        whole = writer.whole()
        return b"".join(writer.parts()) if whole is None else whole

    def _check(self, version: int) -> None:
        if not self.first <= version <= self.last:
            raise UnsupportedVersion(
                f"{self.kind.__name__} v{version}: versions {self.first} to {self.last} are known"
            )


@cache
def _written(
    kind: "type[DataclassInstance]", version: int, flexible: bool
) -> "tuple[bytes, Callable[[Writer, DataclassInstance], None]]":
    """The version as it stands in front of a message, and what writes the rest."""
    return version.to_bytes(VERSION_BYTES, "big"), struct_codec(kind, version, flexible).write


SUBSCRIPTION: Final = DataMessage(ConsumerProtocolSubscription, 0, 3, open_ended=True)


ASSIGNMENT: Final = DataMessage(ConsumerProtocolAssignment, 0, 3, open_ended=True)


# In keys the number says what the record is about.
OFFSET_COMMIT_KEY: Final = DataMessage(OffsetCommitKey, 0, 1)


GROUP_METADATA_KEY: Final = DataMessage(GroupMetadataKey, 2, 2)


OFFSET_COMMIT_VALUE: Final = DataMessage(OffsetCommitValue, 0, 4, flexible=4)


GROUP_METADATA_VALUE: Final = DataMessage(GroupMetadataValue, 0, 4, flexible=4)


TRANSACTION_LOG_KEY: Final = DataMessage(TransactionLogKey, 0, 0)


TRANSACTION_LOG_VALUE: Final = DataMessage(TransactionLogValue, 0, 1, flexible=1)


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


SHARE_SNAPSHOT_KEY: Final = DataMessage(ShareSnapshotKey, 0, 0)


SHARE_SNAPSHOT_VALUE: Final = DataMessage(ShareSnapshotValue, 0, 0, flexible=0)


SHARE_UPDATE_KEY: Final = DataMessage(ShareUpdateKey, 1, 1)


SHARE_UPDATE_VALUE: Final = DataMessage(ShareUpdateValue, 0, 0, flexible=0)
