"""Versioned messages inside other messages and in records of classic groups and committed offsets.

version, subscription = SUBSCRIPTION.read(data)
    data = OFFSET_COMMIT_VALUE.write(3, OffsetCommitValue(offset=42))

Such a message starts with an int16. In a key of `__consumer_offsets` it names the kind of record (0
and 1 an offset, 2 a group), elsewhere it is the version. Consumers put versioned messages into the
metadata of JoinGroup and the assignments of SyncGroup; a reader uses the highest version that both
sides know.

Source: Kafka's consumer protocol, KIP-429 (owned partitions), KIP-792 (generation), KIP-881
(racks); Kafka's records in `__consumer_offsets`; KIP-211 (offset expiry), KIP-848 (topic ids).
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
from tidelog.protocol.wire import Reader, Writer
from tidelog.types import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance


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


SHARE_SNAPSHOT_KEY: Final = DataMessage(ShareSnapshotKey, 0, 0)


SHARE_SNAPSHOT_VALUE: Final = DataMessage(ShareSnapshotValue, 0, 0, flexible=0)


SHARE_UPDATE_KEY: Final = DataMessage(ShareUpdateKey, 1, 1)


SHARE_UPDATE_VALUE: Final = DataMessage(ShareUpdateValue, 0, 0, flexible=0)
