"""Messages that lie inside others or in records: an int16 with the version, then the fields.

    version, subscription = SUBSCRIPTION.read(data)
    data = OFFSET_COMMIT_VALUE.write(3, OffsetCommitValue(offset=42))

Source: Kafka's consumer protocol (KIP-429 and others), records of `__consumer_offsets`, of
`__transaction_state` and of `__share_group_state`.
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.compiler import struct_codec
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tidelog.protocol.messages.consumer_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from tidelog.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.protocol.messages.share_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from tidelog.protocol.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from tidelog.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from tidelog.protocol.schema import ANY_VERSION
from tidelog.protocol.wire import Reader, Writer
from tidelog.types import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

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
CONSUMER_GROUP_KEY: Final = DataMessage(ConsumerGroupMetadataKey, 3, 3)
CONSUMER_GROUP_VALUE: Final = DataMessage(ConsumerGroupMetadataValue, 0, 0, flexible=0)
PARTITION_METADATA_KEY: Final = DataMessage(ConsumerGroupPartitionMetadataKey, 4, 4)
CONSUMER_MEMBER_KEY: Final = DataMessage(ConsumerGroupMemberMetadataKey, 5, 5)
CONSUMER_MEMBER_VALUE: Final = DataMessage(ConsumerGroupMemberMetadataValue, 0, 0, flexible=0)
TARGET_KEY: Final = DataMessage(ConsumerGroupTargetAssignmentMetadataKey, 6, 6)
TARGET_VALUE: Final = DataMessage(ConsumerGroupTargetAssignmentMetadataValue, 0, 0, flexible=0)
MEMBER_TARGET_KEY: Final = DataMessage(ConsumerGroupTargetAssignmentMemberKey, 7, 7)
MEMBER_TARGET_VALUE: Final = DataMessage(ConsumerGroupTargetAssignmentMemberValue, 0, 0, flexible=0)
CURRENT_ASSIGNMENT_KEY: Final = DataMessage(ConsumerGroupCurrentMemberAssignmentKey, 8, 8)
CURRENT_ASSIGNMENT_VALUE: Final = DataMessage(
    ConsumerGroupCurrentMemberAssignmentValue, 0, 0, flexible=0
)
REGULAR_EXPRESSION_KEY: Final = DataMessage(ConsumerGroupRegularExpressionKey, 16, 16)
REGULAR_EXPRESSION_VALUE: Final = DataMessage(ConsumerGroupRegularExpressionValue, 0, 0, flexible=0)
SHARE_MEMBER_KEY: Final = DataMessage(ShareGroupMemberMetadataKey, 10, 10)
SHARE_MEMBER_VALUE: Final = DataMessage(ShareGroupMemberMetadataValue, 0, 0, flexible=0)
SHARE_GROUP_KEY: Final = DataMessage(ShareGroupMetadataKey, 11, 11)
SHARE_GROUP_VALUE: Final = DataMessage(ShareGroupMetadataValue, 0, 0, flexible=0)
SHARE_TARGET_KEY: Final = DataMessage(ShareGroupTargetAssignmentMetadataKey, 12, 12)
SHARE_TARGET_VALUE: Final = DataMessage(ShareGroupTargetAssignmentMetadataValue, 0, 0, flexible=0)
SHARE_MEMBER_TARGET_KEY: Final = DataMessage(ShareGroupTargetAssignmentMemberKey, 13, 13)
SHARE_MEMBER_TARGET_VALUE: Final = DataMessage(
    ShareGroupTargetAssignmentMemberValue, 0, 0, flexible=0
)
SHARE_CURRENT_KEY: Final = DataMessage(ShareGroupCurrentMemberAssignmentKey, 14, 14)
SHARE_CURRENT_VALUE: Final = DataMessage(ShareGroupCurrentMemberAssignmentValue, 0, 0, flexible=0)
SHARE_STATE_PARTITIONS_KEY: Final = DataMessage(ShareGroupStatePartitionMetadataKey, 15, 15)
SHARE_STATE_PARTITIONS_VALUE: Final = DataMessage(
    ShareGroupStatePartitionMetadataValue, 0, 0, flexible=0
)
SHARE_SNAPSHOT_KEY: Final = DataMessage(ShareSnapshotKey, 0, 0)
SHARE_SNAPSHOT_VALUE: Final = DataMessage(ShareSnapshotValue, 0, 0, flexible=0)
SHARE_UPDATE_KEY: Final = DataMessage(ShareUpdateKey, 1, 1)
SHARE_UPDATE_VALUE: Final = DataMessage(ShareUpdateValue, 0, 0, flexible=0)
