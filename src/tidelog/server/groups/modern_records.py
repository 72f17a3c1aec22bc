"""Encoding of the records of consumer and share groups in `__consumer_offsets`.

Both protocols have the same five kinds of records under different numbers (`RecordSet`). Only
subscriptions and current assignments are encoded differently. `modern_changes` applies the records.

Source: Kafka 4.3's records in that topic; KIP-848, KIP-932.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, cast

from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.messages.modern_group_records import (
    CONSUMER_GROUP_KEY,
    CONSUMER_GROUP_VALUE,
    CONSUMER_MEMBER_KEY,
    CONSUMER_MEMBER_VALUE,
    CURRENT_ASSIGNMENT_KEY,
    CURRENT_ASSIGNMENT_VALUE,
    MEMBER_TARGET_KEY,
    MEMBER_TARGET_VALUE,
    PARTITION_METADATA_KEY,
    SHARE_CURRENT_KEY,
    SHARE_CURRENT_VALUE,
    SHARE_GROUP_KEY,
    SHARE_GROUP_VALUE,
    SHARE_MEMBER_KEY,
    SHARE_MEMBER_TARGET_KEY,
    SHARE_MEMBER_TARGET_VALUE,
    SHARE_MEMBER_VALUE,
    SHARE_STATE_PARTITIONS_KEY,
    SHARE_TARGET_KEY,
    SHARE_TARGET_VALUE,
    TARGET_KEY,
    TARGET_VALUE,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentPartitions,
    EpochValue,
    GroupKey,
    GroupMemberKey,
    MemberTargetValue,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
    TargetEpochValue,
    TargetPartitions,
)
from tidelog.server.groups.modern_group import (
    Assigned,
    AssignmentT,
    ClassicPart,
    MemberAssignment,
    MemberState,
    ModernGroup,
    ShareAssignment,
    ShareGroup,
    Subscription,
    Target,
)
from tidelog.server.runtime.name_cache import is_short, remembers_short

if TYPE_CHECKING:
    from uuid import UUID

# The only version of all values.
VALUE_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class RecordSet(Generic[AssignmentT]):
    """The records of one protocol. A key's first version is the number of its kind.

    Attributes:
        member_key: What a member asks for.
        write_subscription: Its value.
        read_subscription: What that says.
        epoch_key: The group's epoch.
        epoch_value: Its value.
        target_epoch_key: The epoch of the group's target.
        target_epoch_value: Its value.
        target_key: What a member is to have.
        target_value: Its value.
        place_key: Where a member stands.
        write_assignment: Its value.
        read_assignment: What that says.
    """

    member_key: DataMessage[GroupMemberKey]
    write_subscription: Callable[[Subscription], bytes]
    read_subscription: Callable[[bytes], Subscription]
    epoch_key: DataMessage[GroupKey]
    epoch_value: DataMessage[EpochValue]
    target_epoch_key: DataMessage[GroupKey]
    target_epoch_value: DataMessage[TargetEpochValue]
    target_key: DataMessage[GroupMemberKey]
    target_value: DataMessage[MemberTargetValue]
    place_key: DataMessage[GroupMemberKey]
    write_assignment: Callable[[AssignmentT], bytes]
    read_assignment: Callable[[bytes], AssignmentT]


_GROUP_KEYS: Final = {
    key.first: key
    for key in (
        CONSUMER_GROUP_KEY,
        PARTITION_METADATA_KEY,
        TARGET_KEY,
        SHARE_GROUP_KEY,
        SHARE_TARGET_KEY,
        SHARE_STATE_PARTITIONS_KEY,
    )
}


MEMBER_KEYS: Final = {
    key.first: key
    for key in (
        CONSUMER_MEMBER_KEY,
        MEMBER_TARGET_KEY,
        CURRENT_ASSIGNMENT_KEY,
        SHARE_MEMBER_KEY,
        SHARE_MEMBER_TARGET_KEY,
        SHARE_CURRENT_KEY,
    )
}


@remembers_short(lambda _, group_id: is_short(group_id))
def group_key(number: int, group_id: str) -> bytes:
    """A key that names a group."""
    key = _GROUP_KEYS[number]
    return key.write(number, key.kind(group_id=group_id))


@remembers_short(lambda _, group_id, member_id: is_short(group_id, member_id))
def member_key(number: int, group_id: str, member_id: str) -> bytes:
    """A key that names a member."""
    key = MEMBER_KEYS[number]
    return key.write(number, key.kind(group_id=group_id, member_id=member_id))


def parts_of(target: Target) -> list[TargetPartitions]:
    """A target as records say it."""
    return [
        TargetPartitions(topic_id=topic, partitions=sorted(numbers))
        for topic, numbers in target.items()
    ]


def target_of(parts: Iterable[TargetPartitions]) -> Target:
    """What records say of a target."""
    return {part.topic_id: frozenset(part.partitions) for part in parts}


# -- consumer groups ---------------------------------------------------------------------------


def _write_consumer_subscription(subscription: Subscription) -> bytes:
    classic = subscription.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topics),
        subscribed_topic_regex=subscription.regex,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        server_assignor=subscription.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols
            ],
        ),
    )
    return CONSUMER_MEMBER_VALUE.write(VALUE_VERSION, value)


def _read_consumer_subscription(data: bytes) -> Subscription:
    value = CONSUMER_MEMBER_VALUE.read(data)[1]
    classic = value.classic_member_metadata
    return Subscription(
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


def _write_consumer_assignment(assignment: MemberAssignment) -> bytes:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=assignment.epoch,
        previous_member_epoch=assignment.previous_epoch,
        state=assignment.state,
        assigned_partitions=_current(assignment.assigned),
        partitions_pending_revocation=_current(assignment.revoking),
    )
    return CURRENT_ASSIGNMENT_VALUE.write(VALUE_VERSION, value)


def _current(assigned: Assigned) -> list[CurrentPartitions]:
    return [
        CurrentPartitions(
            topic_id=topic, partitions=list(numbers), assignment_epochs=list(numbers.values())
        )
        for topic, numbers in assigned.items()
    ]


def _read_consumer_assignment(data: bytes) -> MemberAssignment:
    value = CURRENT_ASSIGNMENT_VALUE.read(data)[1]
    is_known = value.state in MemberState._value2member_map_
    return MemberAssignment(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if is_known else MemberState.UNKNOWN,
        assigned=_assigned(value.assigned_partitions, value.member_epoch),
        revoking=_assigned(value.partitions_pending_revocation, value.member_epoch),
    )


def _assigned(parts: list[CurrentPartitions], member_epoch: int) -> Assigned:
    """Partitions with their epochs; those of an older Kafka have the member's."""
    by_topic: dict[UUID, Mapping[int, int]] = {}
    for part in parts:
        epochs = part.assignment_epochs
        if epochs is None or len(epochs) != len(part.partitions):
            epochs = [member_epoch] * len(part.partitions)
        by_topic[part.topic_id] = dict(zip(part.partitions, epochs, strict=True))
    return by_topic


CONSUMER_RECORDS: Final = RecordSet(
    member_key=CONSUMER_MEMBER_KEY,
    write_subscription=_write_consumer_subscription,
    read_subscription=_read_consumer_subscription,
    epoch_key=CONSUMER_GROUP_KEY,
    epoch_value=CONSUMER_GROUP_VALUE,
    target_epoch_key=TARGET_KEY,
    target_epoch_value=TARGET_VALUE,
    target_key=MEMBER_TARGET_KEY,
    target_value=MEMBER_TARGET_VALUE,
    place_key=CURRENT_ASSIGNMENT_KEY,
    write_assignment=_write_consumer_assignment,
    read_assignment=_read_consumer_assignment,
)


# -- share groups ------------------------------------------------------------------------------


def _write_share_subscription(subscription: Subscription) -> bytes:
    value = ShareGroupMemberMetadataValue(
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topics),
    )
    return SHARE_MEMBER_VALUE.write(VALUE_VERSION, value)


def _read_share_subscription(data: bytes) -> Subscription:
    value = SHARE_MEMBER_VALUE.read(data)[1]
    return Subscription(
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )


def _write_share_assignment(assignment: ShareAssignment) -> bytes:
    value = ShareGroupCurrentMemberAssignmentValue(
        member_epoch=assignment.epoch,
        previous_member_epoch=assignment.previous_epoch,
        state=MemberState.STABLE,
        assigned_partitions=parts_of(assignment.assigned),
    )
    return SHARE_CURRENT_VALUE.write(VALUE_VERSION, value)


def _read_share_assignment(data: bytes) -> ShareAssignment:
    value = SHARE_CURRENT_VALUE.read(data)[1]
    return ShareAssignment(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned=target_of(value.assigned_partitions),
    )


SHARE_RECORDS: Final = RecordSet(
    member_key=SHARE_MEMBER_KEY,
    write_subscription=_write_share_subscription,
    read_subscription=_read_share_subscription,
    epoch_key=SHARE_GROUP_KEY,
    epoch_value=SHARE_GROUP_VALUE,
    target_epoch_key=SHARE_TARGET_KEY,
    target_epoch_value=SHARE_TARGET_VALUE,
    target_key=SHARE_MEMBER_TARGET_KEY,
    target_value=SHARE_MEMBER_TARGET_VALUE,
    place_key=SHARE_CURRENT_KEY,
    write_assignment=_write_share_assignment,
    read_assignment=_read_share_assignment,
)


def records_of(group: ModernGroup[AssignmentT]) -> RecordSet[AssignmentT]:
    """The records of a group's protocol."""
    records = SHARE_RECORDS if isinstance(group, ShareGroup) else CONSUMER_RECORDS
    return cast("RecordSet[AssignmentT]", records)
