"""Records of consumer and share groups in `__consumer_offsets`: encoding, decoding, effect.

Each record is a change of a group. The change is applied when it is written and when it is
replayed. Five kinds of records exist for consumer groups and for share groups, under different
numbers (`RecordSet`). Subscriptions and current assignments have different encodings for these two
types of groups. Only consumer groups have records of regular expressions, and only share groups
have records of initialized topics. Records of classic groups and of offsets are in `records`.

Source: Kafka 4.3's records in that topic; KIP-848, KIP-932.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.messages.modern_group_records import (
    CONSUMER_GROUP_VALUE,
    CONSUMER_MEMBER_VALUE,
    CURRENT_ASSIGNMENT_VALUE,
    GROUP_KEYS,
    MEMBER_KEYS,
    MEMBER_TARGET_VALUE,
    PARTITION_METADATA,
    REGULAR_EXPRESSION,
    REGULAR_EXPRESSION_KEY,
    REGULAR_EXPRESSION_VALUE,
    SHARE_CURRENT_VALUE,
    SHARE_GROUP_VALUE,
    SHARE_MEMBER_VALUE,
    SHARE_STATE_PARTITIONS,
    SHARE_STATE_PARTITIONS_VALUE,
    TARGET_VALUE,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    CurrentPartitions,
    EpochValue,
    MemberTargetValue,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
    ShareGroupStatePartitionMetadataValue,
    TargetEpochValue,
)
from tidelog.protocol.messages.shared import DescribedPartitions, GroupProtocol, IdPartitions
from tidelog.server.coordinator.state_topic import KeyValue
from tidelog.server.groups.modern_group import (
    FIRST_EPOCH,
    Assigned,
    AssignmentT,
    ClassicPart,
    ConsumerGroup,
    MemberAssignment,
    MemberState,
    ModernGroup,
    ResolvedRegex,
    ShareAssignment,
    SharedTopic,
    ShareGroup,
    Subscription,
    Target,
)
from tidelog.server.runtime.name_cache import is_short, remembers_short

# Version of every value. No other version exists.
VALUE_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class RecordSet(Generic[AssignmentT]):
    """Kinds of records of one group protocol: type numbers of their keys, and value encodings.

    Attributes:
        member_key: Type number of the key of a member's subscription.
        write_subscription: Encodes the value for `member_key`.
        read_subscription: Decodes the value for `member_key`.
        epoch_key: Type number of the key of the group's epoch.
        epoch_value: Message of the value for `epoch_key`.
        target_epoch_key: Type number of the key of the target assignment's epoch.
        target_key: Type number of the key of a member's target assignment.
        current_key: Type number of the key of a member's current assignment.
        write_assignment: Encodes the value for `current_key`.
        read_assignment: Decodes the value for `current_key`.
    """

    member_key: int
    write_subscription: Callable[[Subscription], bytes]
    read_subscription: Callable[[bytes], Subscription]
    epoch_key: int
    epoch_value: DataMessage[EpochValue]
    target_epoch_key: int
    target_key: int
    current_key: int
    write_assignment: Callable[[AssignmentT], bytes]
    read_assignment: Callable[[bytes], AssignmentT]


@remembers_short(lambda _, group_id: is_short(group_id))
def group_key(number: int, group_id: str) -> bytes:
    """Encode a key that consists of a group id."""
    key = GROUP_KEYS[number]
    return key.write(number, key.kind(group_id=group_id))


@remembers_short(lambda _, group_id, member_id: is_short(group_id, member_id))
def member_key(number: int, group_id: str, member_id: str) -> bytes:
    """Encode a key that consists of a group id and a member id."""
    key = MEMBER_KEYS[number]
    return key.write(number, key.kind(group_id=group_id, member_id=member_id))


def parts_of(target: Target) -> list[IdPartitions]:
    """Convert a target to its form in records."""
    return [
        IdPartitions(topic_id=topic, partitions=sorted(numbers))
        for topic, numbers in target.items()
    ]


def target_of(parts: Iterable[IdPartitions]) -> Target:
    """Convert a target from its form in records."""
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
                GroupProtocol(name=name, metadata=data) for name, data in classic.protocols
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
    """Decode partitions and their epochs; use `member_epoch` where Kafka stored no epoch."""
    by_topic: dict[UUID, Mapping[int, int]] = {}
    for part in parts:
        epochs = part.assignment_epochs
        if epochs is None or len(epochs) != len(part.partitions):
            epochs = [member_epoch] * len(part.partitions)
        by_topic[part.topic_id] = dict(zip(part.partitions, epochs, strict=True))
    return by_topic


CONSUMER_RECORDS: Final = RecordSet(
    member_key=5,
    write_subscription=_write_consumer_subscription,
    read_subscription=_read_consumer_subscription,
    epoch_key=3,
    epoch_value=CONSUMER_GROUP_VALUE,
    target_epoch_key=6,
    target_key=7,
    current_key=8,
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
    member_key=10,
    write_subscription=_write_share_subscription,
    read_subscription=_read_share_subscription,
    epoch_key=11,
    epoch_value=SHARE_GROUP_VALUE,
    target_epoch_key=12,
    target_key=13,
    current_key=14,
    write_assignment=_write_share_assignment,
    read_assignment=_read_share_assignment,
)


_RECORDS: Final[Mapping[str, object]] = {
    ConsumerGroup.group_type: CONSUMER_RECORDS,
    ShareGroup.group_type: SHARE_RECORDS,
}


def records_of(group: ModernGroup[AssignmentT]) -> RecordSet[AssignmentT]:
    """Return the record kinds of a group's protocol."""
    return cast("RecordSet[AssignmentT]", _RECORDS[group.group_type])


# -- changes ------------------------------------------------------------------------------------


GroupT_contra = TypeVar("GroupT_contra", contravariant=True)


class Change(Protocol[GroupT_contra]):
    """Change of a group."""

    def record(self, group: GroupT_contra) -> KeyValue:
        """Encode the change as a record."""
        ...

    def apply(self, group: GroupT_contra) -> None:
        """Apply the change to the group."""
        ...


AnyChange: TypeAlias = Change[ConsumerGroup] | Change[ShareGroup]


@dataclass(frozen=True, slots=True)
class EpochChange:
    """New epoch of the group and hash of its topics; an epoch of None deletes the record."""

    epoch: int | None
    metadata_hash: int = 0

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Encode a record of kind 3 (consumer group) or 11 (share group)."""
        kinds = records_of(group)
        key = group_key(kinds.epoch_key, group.group_id)
        if self.epoch is None:
            return KeyValue(key, None)
        message = kinds.epoch_value
        value = message.kind(epoch=self.epoch, metadata_hash=self.metadata_hash)
        return KeyValue(key, message.write(VALUE_VERSION, value))

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Set the epoch and hash."""
        if self.epoch is not None:
            group.epoch, group.metadata_hash = self.epoch, self.metadata_hash


@dataclass(frozen=True, slots=True)
class MemberChange:
    """New subscription of a member; None removes the member."""

    member_id: str
    subscription: Subscription | None

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Encode a record of kind 5 (consumer group) or 10 (share group)."""
        kinds = records_of(group)
        key = member_key(kinds.member_key, group.group_id, self.member_id)
        return KeyValue(
            key, None if self.subscription is None else kinds.write_subscription(self.subscription)
        )

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Add, change or remove the member."""
        if self.subscription is None:
            group.remove(self.member_id)
        else:
            group.put_subscription(self.member_id, self.subscription)


@dataclass(frozen=True, slots=True)
class TargetEpochChange:
    """New epoch of the target and time of its computation; an epoch of None deletes the record."""

    epoch: int | None
    target_ms: int = 0

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Encode a record of kind 6 (consumer group) or 12 (share group)."""
        key = group_key(records_of(group).target_epoch_key, group.group_id)
        if self.epoch is None:
            return KeyValue(key, None)
        value = TargetEpochValue(assignment_epoch=self.epoch, assignment_timestamp=self.target_ms)
        return KeyValue(key, TARGET_VALUE.write(VALUE_VERSION, value))

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Set the target's epoch and time."""
        group.target_epoch = FIRST_EPOCH if self.epoch is None else self.epoch
        group.target_ms = self.target_ms


@dataclass(frozen=True, slots=True)
class TargetChange:
    """New target of a member; None removes the target."""

    member_id: str
    target: Target | None

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Encode a record of kind 7 (consumer group) or 13 (share group)."""
        key = member_key(records_of(group).target_key, group.group_id, self.member_id)
        if self.target is None:
            return KeyValue(key, None)
        value = MemberTargetValue(topic_partitions=parts_of(self.target))
        return KeyValue(key, MEMBER_TARGET_VALUE.write(VALUE_VERSION, value))

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Set or remove the target."""
        if self.target is None:
            group.targets.pop(self.member_id, None)
        else:
            group.targets[self.member_id] = self.target


@dataclass(frozen=True, slots=True)
class AssignmentChange(Generic[AssignmentT]):
    """New current assignment of a member; None removes the assignment."""

    member_id: str
    assignment: AssignmentT | None

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Encode a record of kind 8 (consumer group) or 14 (share group)."""
        kinds = records_of(group)
        key = member_key(kinds.current_key, group.group_id, self.member_id)
        return KeyValue(
            key, None if self.assignment is None else kinds.write_assignment(self.assignment)
        )

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Set the member's assignment."""
        group.put_assignment(
            self.member_id, group.no_assignment if self.assignment is None else self.assignment
        )


# -- consumer groups only -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionMetadataChange:
    """Change of the record of the group's topics, which only older versions of Kafka wrote.

    Attributes:
        is_there: Whether the log has this record. If it has, the coordinator deletes the record.
    """

    is_there: bool = False

    def record(self, group: ConsumerGroup) -> KeyValue:
        """Encode the tombstone of kind 4. Other records of kind 4 are never written."""
        return KeyValue(group_key(PARTITION_METADATA, group.group_id), None)

    def apply(self, group: ConsumerGroup) -> None:
        """Set whether the group's record of its topics must still be deleted."""
        group.has_partition_metadata = self.is_there


@dataclass(frozen=True, slots=True)
class RegexChange:
    """Topics that an expression matches; None if no member subscribes to the expression."""

    regex: str
    resolved: ResolvedRegex | None

    def record(self, group: ConsumerGroup) -> KeyValue:
        """Encode the record of kind 16."""
        named = ConsumerGroupRegularExpressionKey(
            group_id=group.group_id, regular_expression=self.regex
        )
        key = REGULAR_EXPRESSION_KEY.write(REGULAR_EXPRESSION, named)
        if self.resolved is None:
            return KeyValue(key, None)
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(self.resolved.topics),
            version=self.resolved.version,
            timestamp=self.resolved.resolved_ms,
        )
        return KeyValue(key, REGULAR_EXPRESSION_VALUE.write(VALUE_VERSION, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Set or remove the expression's topics."""
        if self.resolved is None:
            group.regexes.pop(self.regex, None)
        else:
            group.regexes[self.regex] = self.resolved


# -- share groups only --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedTopicsChange:
    """All initialized topics of the group; None deletes the record."""

    shared: Mapping[UUID, SharedTopic] | None

    def record(self, group: ShareGroup) -> KeyValue:
        """Encode the record of kind 15."""
        key = group_key(SHARE_STATE_PARTITIONS, group.group_id)
        if self.shared is None:
            return KeyValue(key, None)
        topics = [
            DescribedPartitions(
                topic_id=topic_id, topic_name=each.name, partitions=sorted(each.partitions)
            )
            for topic_id, each in self.shared.items()
        ]
        value = ShareGroupStatePartitionMetadataValue(initialized_topics=topics)
        return KeyValue(key, SHARE_STATE_PARTITIONS_VALUE.write(VALUE_VERSION, value))

    def apply(self, group: ShareGroup) -> None:
        """Set the initialized topics."""
        group.shared = {} if self.shared is None else self.shared


# -- reading and ending ------------------------------------------------------------------------


def end_records(group: ConsumerGroup | ShareGroup) -> list[KeyValue]:
    """Return the records that delete a group."""
    if isinstance(group, ShareGroup):
        return _end(group, [SharedTopicsChange(None).record(group)])
    regexes = [RegexChange(regex, None).record(group) for regex in group.regexes]
    return _end(group, [*regexes, PartitionMetadataChange().record(group)])


def _end(group: ModernGroup[AssignmentT], more: Iterable[KeyValue]) -> list[KeyValue]:
    removals: list[AssignmentChange[AssignmentT]] = [
        AssignmentChange(member_id, None) for member_id in group.members
    ]
    return [
        *(change.record(group) for change in removals),
        *(TargetChange(member_id, None).record(group) for member_id in group.targets),
        TargetEpochChange(None).record(group),
        *(MemberChange(member_id, None).record(group) for member_id in group.members),
        *more,
        EpochChange(None).record(group),
    ]


class ModernRecord(NamedTuple):
    """Decoded record.

    Attributes:
        kind: Number of the record's key. Records are applied in ascending order of their kinds,
            because a member must exist before its assignment.
        group_id: Id of the group.
        change: Effect of the record.
    """

    kind: int
    group_id: str
    change: AnyChange

    @property
    def is_share(self) -> bool:
        """Whether the record belongs to a share group."""
        return SHARE_RECORDS.member_key <= self.kind <= SHARE_STATE_PARTITIONS

    def apply(self, group: ConsumerGroup | ShareGroup) -> None:
        """Apply the change to a group of the record's protocol."""
        cast("Change[ConsumerGroup | ShareGroup]", self.change).apply(group)


def read_modern_change(kind: int, key: bytes, value: bytes) -> ModernRecord | None:
    """Decode a record; None for a kind that does not belong to consumer or share groups.

    Raises:
        CorruptMessage: The record is invalid.
        UnsupportedVersion: The value has an unknown version.
    """
    if kind == PARTITION_METADATA:
        group_id = GROUP_KEYS[kind].read(key)[1].group_id
        return ModernRecord(kind, group_id, PartitionMetadataChange(is_there=True))
    if kind == REGULAR_EXPRESSION:
        regex_value = REGULAR_EXPRESSION_VALUE.read(value)[1]
        resolved = ResolvedRegex(
            frozenset(regex_value.topics), regex_value.version, regex_value.timestamp
        )
        named = REGULAR_EXPRESSION_KEY.read(key)[1]
        return ModernRecord(kind, named.group_id, RegexChange(named.regular_expression, resolved))
    if kind == SHARE_STATE_PARTITIONS:
        # Topics that Kafka was still initializing are left out. The group's next heartbeat
        # initializes these topics.
        shared = {
            each.topic_id: SharedTopic(each.topic_name, frozenset(each.partitions))
            for each in SHARE_STATE_PARTITIONS_VALUE.read(value)[1].initialized_topics
        }
        group_id = GROUP_KEYS[kind].read(key)[1].group_id
        return ModernRecord(kind, group_id, SharedTopicsChange(shared))
    if kind <= CONSUMER_RECORDS.current_key:
        return _read(CONSUMER_RECORDS, kind, key, value)
    return _read(SHARE_RECORDS, kind, key, value)


def _read(
    kinds: RecordSet[AssignmentT], kind: int, key: bytes, value: bytes
) -> ModernRecord | None:
    """Decode a record of a kind that both protocols have."""
    change: Change[ModernGroup[AssignmentT]]
    if kind in MEMBER_KEYS:
        member = MEMBER_KEYS[kind].read(key)[1]
        group_id, member_id = member.group_id, member.member_id
        if kind == kinds.member_key:
            change = MemberChange(member_id, kinds.read_subscription(value))
        elif kind == kinds.current_key:
            change = AssignmentChange(member_id, kinds.read_assignment(value))
        else:
            parts = MEMBER_TARGET_VALUE.read(value)[1].topic_partitions
            change = TargetChange(member_id, target_of(parts))
    elif kind in GROUP_KEYS:
        group_id = GROUP_KEYS[kind].read(key)[1].group_id
        if kind == kinds.epoch_key:
            epoch = kinds.epoch_value.read(value)[1]
            change = EpochChange(epoch.epoch, epoch.metadata_hash)
        else:
            target = TARGET_VALUE.read(value)[1]
            change = TargetEpochChange(target.assignment_epoch, target.assignment_timestamp)
    else:
        return None
    return ModernRecord(kind, group_id, cast("AnyChange", change))
