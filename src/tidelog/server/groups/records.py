"""All records of `__consumer_offsets`: a table of kinds, encode, decode, apply.

What groups leave in `__consumer_offsets`: records of offsets and of generations.

Versions are those that Kafka 4.3 writes; all that it reads are read. Records of groups whose
coordinator assigns (keys 3 to 8 and 16) are those of `consumer.changes`; those of other protocols
are stepped over: only their offsets are known here.

Source: Kafka 4.3's own records in that topic.

All that can happen to a group: each change is one record.

It is applied in the same way when it is made and when it is read again.

Source: Kafka 4.3's own records in `__consumer_offsets`.

Records of groups whose coordinator assigns, read back into what has happened.

Source: Kafka 4.3's own records in `__consumer_offsets`.

What happens to a share group, each as a value: it says how it is written and lets it happen.

Source: Kafka 4.3's own records in `__consumer_offsets`; KIP-932.

Records of share groups, read back into what has happened.

Source: Kafka 4.3's own records in `__consumer_offsets`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from uuid import UUID

from tidelog.errors import CorruptMessage
from tidelog.protocol.messages.group_records import (
    CONSUMER_GROUP_KEY,
    CONSUMER_GROUP_VALUE,
    CONSUMER_MEMBER_KEY,
    CONSUMER_MEMBER_VALUE,
    CURRENT_ASSIGNMENT_KEY,
    CURRENT_ASSIGNMENT_VALUE,
    GROUP_METADATA_KEY,
    GROUP_METADATA_VALUE,
    MEMBER_TARGET_KEY,
    MEMBER_TARGET_VALUE,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
    PARTITION_METADATA_KEY,
    REGULAR_EXPRESSION_KEY,
    REGULAR_EXPRESSION_VALUE,
    SHARE_CURRENT_KEY,
    SHARE_CURRENT_VALUE,
    SHARE_GROUP_KEY,
    SHARE_GROUP_VALUE,
    SHARE_MEMBER_KEY,
    SHARE_MEMBER_TARGET_KEY,
    SHARE_MEMBER_TARGET_VALUE,
    SHARE_MEMBER_VALUE,
    SHARE_STATE_PARTITIONS_KEY,
    SHARE_STATE_PARTITIONS_VALUE,
    SHARE_TARGET_KEY,
    SHARE_TARGET_VALUE,
    TARGET_KEY,
    TARGET_VALUE,
    ClassicMemberMetadata,
    ClassicProtocol,
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
    CurrentPartitions,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
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
    ShareStatePartitions,
    ShareTopicPartitions,
    TargetPartitions,
)
from tidelog.protocol.wire import Reader
from tidelog.server.coordinator.state_topic import KeyValue
from tidelog.server.groups.committed_offsets import NO_EXPIRY, CommittedOffset
from tidelog.server.groups.modern_group import (
    FIRST_EPOCH,
    STABLE,
    Asks,
    Assigned,
    ClassicPart,
    ConsumerGroup,
    MemberState,
    Place,
    ResolvedRegex,
    ShareAsks,
    SharedTopic,
    ShareGroup,
    SharePlace,
    Target,
)
from tidelog.server.runtime.name_cache import is_short, remembers_short

if TYPE_CHECKING:
    from tidelog.server.groups.classic_group import ClassicGroup


_OFFSET_KEY: Final = 1


_GROUP_KEY: Final = 2


_GROUP_VALUE: Final = 3


_OFFSET_VALUE: Final = 4


# The only version that has room for a commit's own expiry.
_EXPIRING_OFFSET_VALUE: Final = 1


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A partition's offset was committed, or (None) forgotten."""

    group_id: str
    topic: str
    partition: int
    offset: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A generation began or ended, or (None) the group was deleted."""

    group_id: str
    value: GroupMetadataValue | None


Change: TypeAlias = OffsetChange | GroupChange


def offset_record(
    group_id: str, topic: str, partition: int, offset: CommittedOffset | None
) -> KeyValue:
    """A commit, or the end of one."""
    key = _offset_key(group_id, topic, partition)
    if offset is None:
        return KeyValue(key, None)
    version = _OFFSET_VALUE if offset.expire_ms == NO_EXPIRY else _EXPIRING_OFFSET_VALUE
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_ms,
        expire_timestamp=offset.expire_ms,
        topic_id=offset.topic_id,
    )
    return KeyValue(key, OFFSET_COMMIT_VALUE.write(version, value))


@remembers_short(lambda group_id, topic, _: is_short(group_id, topic))
def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    named = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return OFFSET_COMMIT_KEY.write(_OFFSET_KEY, named)


def group_record(
    group: "ClassicGroup",
    assignments: Mapping[str, bytes] | None = None,
    *,
    rebalances: bool = False,
) -> KeyValue:
    """The group as it is, with these assignments, or with those that its members have.

    Where its rebalance is still to come it has no leader, by which that is known after a restart.
    """
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=None if rebalances else group.leader,
        current_state_timestamp=group.state_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=(
                    member.assignment
                    if assignments is None
                    else assignments.get(member.member_id, b"")
                ),
            )
            for member in group.members.values()
        ],
    )
    return KeyValue(_group_key(group.group_id), GROUP_METADATA_VALUE.write(_GROUP_VALUE, value))


def tombstone(group_id: str) -> KeyValue:
    """The end of a group."""
    return KeyValue(_group_key(group_id), None)


def _group_key(group_id: str) -> bytes:
    return GROUP_METADATA_KEY.write(_GROUP_KEY, GroupMetadataKey(group=group_id))


def read_change(key: bytes | None, value: bytes | None, record_offset: int) -> Change | None:
    """What a record says; None where it is about something that is not kept here.

    Raises:
        CorruptMessage: It breaks a rule.
        UnsupportedVersion: A value of a version that nobody knows.
    """
    if key is None:
        raise CorruptMessage("a record of a group without a key", at=0)
    kind = Reader(key).int16()
    if kind in {0, _OFFSET_KEY}:
        return _offset_change(key, value, record_offset)
    if kind != _GROUP_KEY:
        return None
    group_id = GROUP_METADATA_KEY.read(key)[1].group
    return GroupChange(group_id, None if value is None else GROUP_METADATA_VALUE.read(value)[1])


def _offset_change(key: bytes, value: bytes | None, record_offset: int) -> OffsetChange:
    named = OFFSET_COMMIT_KEY.read(key)[1]
    if value is None:
        return OffsetChange(named.group, named.topic, named.partition, None)
    found = OFFSET_COMMIT_VALUE.read(value)[1]
    offset = CommittedOffset(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
        found.topic_id,
        record_offset,
    )
    return OffsetChange(named.group, named.topic, named.partition, offset)


# The only version of all these values.
_VALUE: Final = 0


@remembers_short(lambda _, group_id, member_id: is_short(group_id, member_id))
def _member_key(number: int, group_id: str, member_id: str) -> bytes:
    """A key that names a member: what it asks for (5), what it is to have (7), its place (8)."""
    match number:
        case 5:
            asks = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
            return CONSUMER_MEMBER_KEY.write(number, asks)
        case 7:
            target = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
            return MEMBER_TARGET_KEY.write(number, target)
        case _:
            place = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
            return CURRENT_ASSIGNMENT_KEY.write(number, place)


@remembers_short(lambda _, group_id: is_short(group_id))
def _member_group_key(number: int, group_id: str) -> bytes:
    """A key that names a group: its epoch (3), its target's (6)."""
    if number == 3:
        return CONSUMER_GROUP_KEY.write(number, ConsumerGroupMetadataKey(group_id=group_id))
    return TARGET_KEY.write(number, ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id))


class ConsumerChange(Protocol):
    """Something that happens to a group."""

    def record(self, group_id: str) -> KeyValue:
        """How it is written."""
        ...

    def apply(self, group: ConsumerGroup) -> None:
        """Let it happen."""
        ...


# -- the group ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochChange:
    """The group is in a new epoch, with this hash of its topics; None ends the group."""

    epoch: int | None
    metadata_hash: int = 0

    def record(self, group_id: str) -> KeyValue:
        """Key 3."""
        key = _member_group_key(3, group_id)
        if self.epoch is None:
            return KeyValue(key, None)
        value = ConsumerGroupMetadataValue(epoch=self.epoch, metadata_hash=self.metadata_hash)
        return KeyValue(key, CONSUMER_GROUP_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Take epoch and hash."""
        if self.epoch is not None:
            group.epoch, group.metadata_hash = self.epoch, self.metadata_hash


@dataclass(frozen=True, slots=True)
class PartitionMetadataChange:
    """What an older Kafka wrote down of the topics is there, or is forgotten."""

    is_there: bool = False

    def record(self, group_id: str) -> KeyValue:
        """Key 4, only ever to forget it."""
        named = ConsumerGroupPartitionMetadataKey(group_id=group_id)
        return KeyValue(PARTITION_METADATA_KEY.write(4, named), None)

    def apply(self, group: ConsumerGroup) -> None:
        """Remember whether there is something to forget."""
        group.has_partition_metadata = self.is_there


# -- members -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A member came or asks for something else; None: it went."""

    member_id: str
    asks: Asks | None

    def record(self, group_id: str) -> KeyValue:
        """Key 5."""
        key = _member_key(5, group_id, self.member_id)
        value = None if self.asks is None else _member_value(self.asks)
        return KeyValue(key, None if value is None else CONSUMER_MEMBER_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Add, change or remove the member."""
        if self.asks is None:
            group.remove(self.member_id)
        else:
            group.put_asks(self.member_id, self.asks)


def _member_value(asks: Asks) -> ConsumerGroupMemberMetadataValue:
    classic = asks.classic
    return ConsumerGroupMemberMetadataValue(
        instance_id=asks.instance_id,
        rack_id=asks.rack_id,
        client_id=asks.client_id,
        client_host=asks.client_host,
        subscribed_topic_names=sorted(asks.topics),
        subscribed_topic_regex=asks.regex,
        rebalance_timeout_ms=asks.rebalance_timeout_ms,
        server_assignor=asks.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols
            ],
        ),
    )


@dataclass(frozen=True, slots=True)
class PlaceChange:
    """A member moved; None: it has no place any more."""

    member_id: str
    place: Place | None

    def record(self, group_id: str) -> KeyValue:
        """Key 8."""
        key = _member_key(8, group_id, self.member_id)
        if self.place is None:
            return KeyValue(key, None)
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.place.epoch,
            previous_member_epoch=self.place.previous_epoch,
            state=self.place.state,
            assigned_partitions=_current(self.place.assigned),
            partitions_pending_revocation=_current(self.place.revoking),
        )
        return KeyValue(key, CURRENT_ASSIGNMENT_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Move it."""
        group.put_place(self.member_id, self.place or Place())


def _current(assigned: Assigned) -> list[CurrentPartitions]:
    return [
        CurrentPartitions(
            topic_id=topic, partitions=list(numbers), assignment_epochs=list(numbers.values())
        )
        for topic, numbers in assigned.items()
    ]


# -- the target --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetEpochChange:
    """A target assignment was made for this epoch, at this wall time; None forgets it."""

    epoch: int | None
    made_ms: int = 0

    def record(self, group_id: str) -> KeyValue:
        """Key 6."""
        key = _member_group_key(6, group_id)
        if self.epoch is None:
            return KeyValue(key, None)
        value = ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=self.epoch, assignment_timestamp=self.made_ms
        )
        return KeyValue(key, TARGET_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Take epoch and time."""
        group.target_epoch = FIRST_EPOCH if self.epoch is None else self.epoch
        group.target_ms = self.made_ms


@dataclass(frozen=True, slots=True)
class TargetChange:
    """What a member is to have; None: nothing is planned for it any more."""

    member_id: str
    target: Target | None

    def record(self, group_id: str) -> KeyValue:
        """Key 7."""
        key = _member_key(7, group_id, self.member_id)
        if self.target is None:
            return KeyValue(key, None)
        parts = [
            TargetPartitions(topic_id=topic, partitions=sorted(numbers))
            for topic, numbers in self.target.items()
        ]
        value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=parts)
        return KeyValue(key, MEMBER_TARGET_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Take or forget the target."""
        if self.target is None:
            group.targets.pop(self.member_id, None)
        else:
            group.targets[self.member_id] = self.target


# -- regular expressions -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegexChange:
    """An expression means these topics; None: nobody is subscribed to it any more."""

    regex: str
    found: ResolvedRegex | None

    def record(self, group_id: str) -> KeyValue:
        """Key 16."""
        named = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=self.regex)
        key = REGULAR_EXPRESSION_KEY.write(16, named)
        if self.found is None:
            return KeyValue(key, None)
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(self.found.topics),
            version=self.found.version,
            timestamp=self.found.resolved_ms,
        )
        return KeyValue(key, REGULAR_EXPRESSION_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Take or forget the topics."""
        if self.found is None:
            group.regexes.pop(self.regex, None)
        else:
            group.regexes[self.regex] = self.found


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
    change: ConsumerChange


def read_group_change(kind: int, key: bytes, value: bytes) -> ConsumerRecord | None:
    """What a record says; None for a kind that is none of such a group's.

    Raises:
        CorruptMessage: It breaks a rule.
        UnsupportedVersion: A value of a version that nobody knows.
    """
    reader = _READERS.get(kind)
    return None if reader is None else ConsumerRecord(kind, *reader(key, value))


def _read_epoch(key: bytes, value: bytes) -> tuple[str, ConsumerChange]:
    found = CONSUMER_GROUP_VALUE.read(value)[1]
    named = CONSUMER_GROUP_KEY.read(key)[1]
    return named.group_id, EpochChange(found.epoch, found.metadata_hash)


def _read_partition_metadata(key: bytes, _value: bytes) -> tuple[str, ConsumerChange]:
    return PARTITION_METADATA_KEY.read(key)[1].group_id, PartitionMetadataChange(is_there=True)


def _read_member(key: bytes, value: bytes) -> tuple[str, ConsumerChange]:
    named = CONSUMER_MEMBER_KEY.read(key)[1]
    return named.group_id, MemberChange(
        named.member_id, _asks(CONSUMER_MEMBER_VALUE.read(value)[1])
    )


def _read_place(key: bytes, value: bytes) -> tuple[str, ConsumerChange]:
    named = CURRENT_ASSIGNMENT_KEY.read(key)[1]
    found = CURRENT_ASSIGNMENT_VALUE.read(value)[1]
    return named.group_id, PlaceChange(named.member_id, _place(found))


def _read_target_epoch(key: bytes, value: bytes) -> tuple[str, ConsumerChange]:
    found = TARGET_VALUE.read(value)[1]
    change = TargetEpochChange(found.assignment_epoch, found.assignment_timestamp)
    return TARGET_KEY.read(key)[1].group_id, change


def _read_target(key: bytes, value: bytes) -> tuple[str, ConsumerChange]:
    named = MEMBER_TARGET_KEY.read(key)[1]
    parts = MEMBER_TARGET_VALUE.read(value)[1].topic_partitions
    target = {part.topic_id: frozenset(part.partitions) for part in parts}
    return named.group_id, TargetChange(named.member_id, target)


def _read_regex(key: bytes, value: bytes) -> tuple[str, ConsumerChange]:
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


class ShareChange(Protocol):
    """Something that happens to a group."""

    def record(self, group_id: str) -> KeyValue:
        """How it is written."""
        ...

    def apply(self, group: ShareGroup) -> None:
        """Let it happen."""
        ...


@dataclass(frozen=True, slots=True)
class ShareMemberChange:
    """A member came or asks for something else; None: it went."""

    member_id: str
    asks: ShareAsks | None

    def record(self, group_id: str) -> KeyValue:
        """Key 10."""
        named = ShareGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id)
        key = SHARE_MEMBER_KEY.write(10, named)
        if self.asks is None:
            return KeyValue(key, None)
        value = ShareGroupMemberMetadataValue(
            rack_id=self.asks.rack_id,
            client_id=self.asks.client_id,
            client_host=self.asks.client_host,
            subscribed_topic_names=sorted(self.asks.topics),
        )
        return KeyValue(key, SHARE_MEMBER_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Add, change or remove the member."""
        if self.asks is None:
            group.remove(self.member_id)
        else:
            group.put_asks(self.member_id, self.asks)


@dataclass(frozen=True, slots=True)
class ShareEpochChange:
    """The group is in a new epoch, with this hash of its topics; None ends the group."""

    epoch: int | None
    metadata_hash: int = 0

    def record(self, group_id: str) -> KeyValue:
        """Key 11."""
        key = SHARE_GROUP_KEY.write(11, ShareGroupMetadataKey(group_id=group_id))
        if self.epoch is None:
            return KeyValue(key, None)
        value = ShareGroupMetadataValue(epoch=self.epoch, metadata_hash=self.metadata_hash)
        return KeyValue(key, SHARE_GROUP_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Take epoch and hash."""
        if self.epoch is not None:
            group.epoch, group.metadata_hash = self.epoch, self.metadata_hash


@dataclass(frozen=True, slots=True)
class ShareTargetEpochChange:
    """A target assignment was made for this epoch, at this wall time; None forgets it."""

    epoch: int | None
    made_ms: int = 0

    def record(self, group_id: str) -> KeyValue:
        """Key 12."""
        named = ShareGroupTargetAssignmentMetadataKey(group_id=group_id)
        key = SHARE_TARGET_KEY.write(12, named)
        if self.epoch is None:
            return KeyValue(key, None)
        value = ShareGroupTargetAssignmentMetadataValue(
            assignment_epoch=self.epoch, assignment_timestamp=self.made_ms
        )
        return KeyValue(key, SHARE_TARGET_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Take epoch and time."""
        group.target_epoch = FIRST_EPOCH if self.epoch is None else self.epoch
        group.target_ms = self.made_ms


@dataclass(frozen=True, slots=True)
class ShareTargetChange:
    """What a member is to have; None: nothing is planned for it any more."""

    member_id: str
    target: Target | None

    def record(self, group_id: str) -> KeyValue:
        """Key 13."""
        named = ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=self.member_id)
        key = SHARE_MEMBER_TARGET_KEY.write(13, named)
        if self.target is None:
            return KeyValue(key, None)
        value = ShareGroupTargetAssignmentMemberValue(topic_partitions=_parts(self.target))
        return KeyValue(key, SHARE_MEMBER_TARGET_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Take or forget the target."""
        if self.target is None:
            group.targets.pop(self.member_id, None)
        else:
            group.targets[self.member_id] = self.target


@dataclass(frozen=True, slots=True)
class SharePlaceChange:
    """A member moved; None: it has no place any more."""

    member_id: str
    place: SharePlace | None

    def record(self, group_id: str) -> KeyValue:
        """Key 14."""
        named = ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id)
        key = SHARE_CURRENT_KEY.write(14, named)
        if self.place is None:
            return KeyValue(key, None)
        value = ShareGroupCurrentMemberAssignmentValue(
            member_epoch=self.place.epoch,
            previous_member_epoch=self.place.previous_epoch,
            state=STABLE,
            assigned_partitions=_parts(self.place.assigned),
        )
        return KeyValue(key, SHARE_CURRENT_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Move it."""
        group.put_place(self.member_id, self.place or SharePlace())


@dataclass(frozen=True, slots=True)
class SharedTopicsChange:
    """The group has begun to read these topics, all told; None: it reads nothing any more."""

    shared: Mapping[UUID, SharedTopic] | None

    def record(self, group_id: str) -> KeyValue:
        """Key 15."""
        named = ShareGroupStatePartitionMetadataKey(group_id=group_id)
        key = SHARE_STATE_PARTITIONS_KEY.write(15, named)
        if self.shared is None:
            return KeyValue(key, None)
        value = ShareGroupStatePartitionMetadataValue(initialized_topics=_states(self.shared))
        return KeyValue(key, SHARE_STATE_PARTITIONS_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Take the topics."""
        group.shared = {} if self.shared is None else self.shared


def _parts(target: Target) -> list[ShareTopicPartitions]:
    return [
        ShareTopicPartitions(topic_id=topic, partitions=sorted(numbers))
        for topic, numbers in target.items()
    ]


def _states(shared: Mapping[UUID, SharedTopic]) -> list[ShareStatePartitions]:
    return [
        ShareStatePartitions(
            topic_id=topic_id, topic_name=each.name, partitions=sorted(each.partitions)
        )
        for topic_id, each in shared.items()
    ]


def share_end_records(group: ShareGroup) -> list[KeyValue]:
    """What ends a share group."""
    return [change.record(group.group_id) for change in _end(group)]


def _end(group: ShareGroup) -> Iterable[ShareChange]:
    for member_id in group.members:
        yield SharePlaceChange(member_id, None)
    for member_id in group.targets:
        yield ShareTargetChange(member_id, None)
    yield ShareTargetEpochChange(None)
    for member_id in group.members:
        yield ShareMemberChange(member_id, None)
    yield SharedTopicsChange(None)
    yield ShareEpochChange(None)


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """What a record says of a share group.

    Attributes:
        kind: The number of its key: applied in this order, records make the group.
        group_id: The group.
        change: What has happened.
    """

    kind: int
    group_id: str
    change: ShareChange


def read_share_change(kind: int, key: bytes, value: bytes) -> ShareRecord | None:
    """What a record says; None for a kind that is none of a share group's.

    Raises:
        CorruptMessage: It breaks a rule.
        UnsupportedVersion: A value of a version that nobody knows.
    """
    reader = _SHARE_READERS.get(kind)
    return None if reader is None else ShareRecord(kind, *reader(key, value))


def _read_share_member(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    named = SHARE_MEMBER_KEY.read(key)[1]
    found = SHARE_MEMBER_VALUE.read(value)[1]
    asks = ShareAsks(
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        topics=frozenset(found.subscribed_topic_names),
    )
    return named.group_id, ShareMemberChange(named.member_id, asks)


def _read_share_epoch(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    found = SHARE_GROUP_VALUE.read(value)[1]
    named = SHARE_GROUP_KEY.read(key)[1]
    return named.group_id, ShareEpochChange(found.epoch, found.metadata_hash)


def _read_share_target_epoch(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    found = SHARE_TARGET_VALUE.read(value)[1]
    change = ShareTargetEpochChange(found.assignment_epoch, found.assignment_timestamp)
    return SHARE_TARGET_KEY.read(key)[1].group_id, change


def _read_share_target(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    named = SHARE_MEMBER_TARGET_KEY.read(key)[1]
    found = SHARE_MEMBER_TARGET_VALUE.read(value)[1]
    return named.group_id, ShareTargetChange(named.member_id, _target(found.topic_partitions))


def _read_share_place(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    named = SHARE_CURRENT_KEY.read(key)[1]
    found = SHARE_CURRENT_VALUE.read(value)[1]
    place = SharePlace(
        epoch=found.member_epoch,
        previous_epoch=found.previous_member_epoch,
        assigned=_target(found.assigned_partitions),
    )
    return named.group_id, SharePlaceChange(named.member_id, place)


def _read_shared(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    """Topics that Kafka was about to begin are not begun: the next heartbeat does so."""
    found = SHARE_STATE_PARTITIONS_VALUE.read(value)[1]
    shared: dict[UUID, SharedTopic] = {
        each.topic_id: SharedTopic(each.topic_name, frozenset(each.partitions))
        for each in found.initialized_topics
    }
    return SHARE_STATE_PARTITIONS_KEY.read(key)[1].group_id, SharedTopicsChange(shared)


# In the order in which they make a group: a member has to be there before it has a place.
_SHARE_READERS: Final = {
    10: _read_share_member,
    11: _read_share_epoch,
    12: _read_share_target_epoch,
    13: _read_share_target,
    14: _read_share_place,
    15: _read_shared,
}


def _target(parts: Iterable[ShareTopicPartitions]) -> Target:
    return {part.topic_id: frozenset(part.partitions) for part in parts}
