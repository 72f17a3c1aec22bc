"""Records of groups whose coordinator assigns, read back into what has happened.

Source: Kafka 4.3's own records in `__consumer_offsets`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.protocol.data_messages import (
    CONSUMER_GROUP_KEY,
    CONSUMER_GROUP_VALUE,
    CONSUMER_MEMBER_KEY,
    CONSUMER_MEMBER_VALUE,
    CURRENT_ASSIGNMENT_KEY,
    CURRENT_ASSIGNMENT_VALUE,
    MEMBER_TARGET_KEY,
    MEMBER_TARGET_VALUE,
    PARTITION_METADATA_KEY,
    REGULAR_EXPRESSION_KEY,
    REGULAR_EXPRESSION_VALUE,
    TARGET_KEY,
    TARGET_VALUE,
)
from tidelog.protocol.messages.consumer_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentPartitions,
)
from tidelog.server.groups.consumer.changes import (
    Change,
    EpochChange,
    MemberChange,
    PartitionMetadataChange,
    PlaceChange,
    RegexChange,
    TargetChange,
    TargetEpochChange,
)
from tidelog.server.groups.consumer.group import ResolvedRegex
from tidelog.server.groups.consumer.member import (
    Asks,
    Assigned,
    ClassicPart,
    MemberState,
    Place,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """What a record says of a group whose coordinator assigns.

    Attributes:
        kind: The number of its key: applied in this order, records make the group.
        group_id: The group.
        change: What has happened.
    """

    kind: int
    group_id: str
    change: Change


def read_group_change(kind: int, key: bytes, value: bytes) -> ConsumerRecord | None:
    """What a record says; None for a kind that is none of such a group's.

    Raises:
        CorruptMessage: It breaks a rule.
        UnsupportedVersion: A value of a version that nobody knows.
    """
    reader = _READERS.get(kind)
    return None if reader is None else ConsumerRecord(kind, *reader(key, value))


def _read_epoch(key: bytes, value: bytes) -> tuple[str, Change]:
    found = CONSUMER_GROUP_VALUE.read(value)[1]
    named = CONSUMER_GROUP_KEY.read(key)[1]
    return named.group_id, EpochChange(found.epoch, found.metadata_hash)


def _read_partition_metadata(key: bytes, _value: bytes) -> tuple[str, Change]:
    return PARTITION_METADATA_KEY.read(key)[1].group_id, PartitionMetadataChange(is_there=True)


def _read_member(key: bytes, value: bytes) -> tuple[str, Change]:
    named = CONSUMER_MEMBER_KEY.read(key)[1]
    return named.group_id, MemberChange(
        named.member_id, _asks(CONSUMER_MEMBER_VALUE.read(value)[1])
    )


def _read_place(key: bytes, value: bytes) -> tuple[str, Change]:
    named = CURRENT_ASSIGNMENT_KEY.read(key)[1]
    found = CURRENT_ASSIGNMENT_VALUE.read(value)[1]
    return named.group_id, PlaceChange(named.member_id, _place(found))


def _read_target_epoch(key: bytes, value: bytes) -> tuple[str, Change]:
    found = TARGET_VALUE.read(value)[1]
    change = TargetEpochChange(found.assignment_epoch, found.assignment_timestamp)
    return TARGET_KEY.read(key)[1].group_id, change


def _read_target(key: bytes, value: bytes) -> tuple[str, Change]:
    named = MEMBER_TARGET_KEY.read(key)[1]
    parts = MEMBER_TARGET_VALUE.read(value)[1].topic_partitions
    target = {part.topic_id: frozenset(part.partitions) for part in parts}
    return named.group_id, TargetChange(named.member_id, target)


def _read_regex(key: bytes, value: bytes) -> tuple[str, Change]:
    named = REGULAR_EXPRESSION_KEY.read(key)[1]
    found = REGULAR_EXPRESSION_VALUE.read(value)[1]
    resolved = ResolvedRegex(frozenset(found.topics), found.version, found.timestamp)
    return named.group_id, RegexChange(named.regular_expression, resolved)


# In the order in which they make a group: a member has to be there before it has a place.
_READERS: Final = {
    3: _read_epoch,
    4: _read_partition_metadata,
    5: _read_member,
    6: _read_target_epoch,
    7: _read_target,
    8: _read_place,
    16: _read_regex,
}


def _asks(value: ConsumerGroupMemberMetadataValue) -> Asks:
    classic = value.classic_member_metadata
    return Asks(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicPart(
            classic.session_timeout_ms,
            tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
        ),
    )


def _place(value: ConsumerGroupCurrentMemberAssignmentValue) -> Place:
    known = value.state in MemberState._value2member_map_
    return Place(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNKNOWN,
        assigned=_assigned(value.assigned_partitions, value.member_epoch),
        revoking=_assigned(value.partitions_pending_revocation, value.member_epoch),
    )


def _assigned(parts: list[CurrentPartitions], member_epoch: int) -> Assigned:
    """Partitions with their epochs; those of an older Kafka have the member's."""
    found: dict[UUID, Mapping[int, int]] = {}
    for part in parts:
        epochs = part.assignment_epochs
        if epochs is None or len(epochs) != len(part.partitions):
            epochs = [member_epoch] * len(part.partitions)
        found[part.topic_id] = dict(zip(part.partitions, epochs, strict=True))
    return found
