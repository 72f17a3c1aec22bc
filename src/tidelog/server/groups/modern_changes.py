"""Changes of consumer and share groups: each is one record.

A change makes its record and applies itself to a group, when it is written and when it is replayed.
Five changes belong to both protocols; consumer groups add regular expressions, share groups the
topics that they have started to read.

Source: Kafka 4.3's records in `__consumer_offsets`; KIP-848, KIP-932.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar
from uuid import UUID

from tidelog.protocol.messages.modern_group_records import (
    CURRENT_ASSIGNMENT_KEY,
    PARTITION_METADATA_KEY,
    REGULAR_EXPRESSION_KEY,
    REGULAR_EXPRESSION_VALUE,
    SHARE_STATE_PARTITIONS_KEY,
    SHARE_STATE_PARTITIONS_VALUE,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ShareGroupStatePartitionMetadataValue,
    ShareStatePartitions,
)
from tidelog.server.coordinator.state_topic import KeyValue
from tidelog.server.groups.modern_group import (
    FIRST_EPOCH,
    AssignmentT,
    ConsumerGroup,
    ModernGroup,
    ResolvedRegex,
    SharedTopic,
    ShareGroup,
    Subscription,
    Target,
)
from tidelog.server.groups.modern_records import (
    CONSUMER_RECORDS,
    MEMBER_KEYS,
    SHARE_RECORDS,
    VALUE_VERSION,
    RecordSet,
    group_key,
    member_key,
    parts_of,
    records_of,
    target_of,
)

AnyModernGroup: TypeAlias = ConsumerGroup | ShareGroup


GroupT_contra = TypeVar("GroupT_contra", contravariant=True)


class Change(Protocol[GroupT_contra]):
    """Something that happens to a group."""

    def record(self, group: GroupT_contra) -> KeyValue:
        """How it is written."""
        ...

    def apply(self, group: GroupT_contra) -> None:
        """Let it happen."""
        ...


@dataclass(frozen=True, slots=True)
class EpochChange:
    """The group is in a new epoch, with this hash of its topics; None ends the group."""

    epoch: int | None
    metadata_hash: int = 0

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Keys 3 and 11."""
        kinds = records_of(group)
        key = group_key(kinds.epoch_key.first, group.group_id)
        if self.epoch is None:
            return KeyValue(key, None)
        message = kinds.epoch_value
        value = message.kind(epoch=self.epoch, metadata_hash=self.metadata_hash)
        return KeyValue(key, message.write(VALUE_VERSION, value))

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Take epoch and hash."""
        if self.epoch is not None:
            group.epoch, group.metadata_hash = self.epoch, self.metadata_hash


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A member came or asks for something else; None: it went."""

    member_id: str
    subscription: Subscription | None

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Keys 5 and 10."""
        kinds = records_of(group)
        key = member_key(kinds.member_key.first, group.group_id, self.member_id)
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
    """A target assignment was made for this epoch, at this wall time; None forgets it."""

    epoch: int | None
    made_ms: int = 0

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Keys 6 and 12."""
        kinds = records_of(group)
        key = group_key(kinds.target_epoch_key.first, group.group_id)
        if self.epoch is None:
            return KeyValue(key, None)
        message = kinds.target_epoch_value
        value = message.kind(assignment_epoch=self.epoch, assignment_timestamp=self.made_ms)
        return KeyValue(key, message.write(VALUE_VERSION, value))

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Take epoch and time."""
        group.target_epoch = FIRST_EPOCH if self.epoch is None else self.epoch
        group.target_ms = self.made_ms


@dataclass(frozen=True, slots=True)
class TargetChange:
    """What a member is to have; None: nothing is planned for it any more."""

    member_id: str
    target: Target | None

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Keys 7 and 13."""
        kinds = records_of(group)
        key = member_key(kinds.target_key.first, group.group_id, self.member_id)
        if self.target is None:
            return KeyValue(key, None)
        message = kinds.target_value
        value = message.kind(topic_partitions=parts_of(self.target))
        return KeyValue(key, message.write(VALUE_VERSION, value))

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Take or forget the target."""
        if self.target is None:
            group.targets.pop(self.member_id, None)
        else:
            group.targets[self.member_id] = self.target


@dataclass(frozen=True, slots=True)
class AssignmentChange(Generic[AssignmentT]):
    """A member moved; None: it has no place any more."""

    member_id: str
    assignment: AssignmentT | None

    def record(self, group: ModernGroup[AssignmentT]) -> KeyValue:
        """Keys 8 and 14."""
        kinds = records_of(group)
        key = member_key(kinds.place_key.first, group.group_id, self.member_id)
        return KeyValue(
            key, None if self.assignment is None else kinds.write_assignment(self.assignment)
        )

    def apply(self, group: ModernGroup[AssignmentT]) -> None:
        """Move it."""
        group.put_assignment(
            self.member_id, group.no_assignment if self.assignment is None else self.assignment
        )


# -- of consumer groups alone -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionMetadataChange:
    """What an older Kafka wrote down of the topics is there, or is forgotten."""

    is_there: bool = False

    def record(self, group: ConsumerGroup) -> KeyValue:
        """Key 4, only ever to forget it."""
        return KeyValue(group_key(PARTITION_METADATA_KEY.first, group.group_id), None)

    def apply(self, group: ConsumerGroup) -> None:
        """Remember whether there is something to forget."""
        group.has_partition_metadata = self.is_there


@dataclass(frozen=True, slots=True)
class RegexChange:
    """An expression means these topics; None: nobody is subscribed to it any more."""

    regex: str
    found: ResolvedRegex | None

    def record(self, group: ConsumerGroup) -> KeyValue:
        """Key 16."""
        named = ConsumerGroupRegularExpressionKey(
            group_id=group.group_id, regular_expression=self.regex
        )
        key = REGULAR_EXPRESSION_KEY.write(REGULAR_EXPRESSION_KEY.first, named)
        if self.found is None:
            return KeyValue(key, None)
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(self.found.topics),
            version=self.found.version,
            timestamp=self.found.resolved_ms,
        )
        return KeyValue(key, REGULAR_EXPRESSION_VALUE.write(VALUE_VERSION, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Take or forget the topics."""
        if self.found is None:
            group.regexes.pop(self.regex, None)
        else:
            group.regexes[self.regex] = self.found


# -- of share groups alone ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedTopicsChange:
    """The group has begun to read these topics, all told; None: it reads nothing any more."""

    shared: Mapping[UUID, SharedTopic] | None

    def record(self, group: ShareGroup) -> KeyValue:
        """Key 15."""
        key = group_key(SHARE_STATE_PARTITIONS_KEY.first, group.group_id)
        if self.shared is None:
            return KeyValue(key, None)
        topics = [
            ShareStatePartitions(
                topic_id=topic_id, topic_name=each.name, partitions=sorted(each.partitions)
            )
            for topic_id, each in self.shared.items()
        ]
        value = ShareGroupStatePartitionMetadataValue(initialized_topics=topics)
        return KeyValue(key, SHARE_STATE_PARTITIONS_VALUE.write(VALUE_VERSION, value))

    def apply(self, group: ShareGroup) -> None:
        """Take the topics."""
        group.shared = {} if self.shared is None else self.shared


# -- reading and ending ------------------------------------------------------------------------


def end_records(group: AnyModernGroup) -> list[KeyValue]:
    """What ends a group."""
    if isinstance(group, ShareGroup):
        return _end(group, [SharedTopicsChange(None).record(group)])
    regexes = [RegexChange(regex, None).record(group) for regex in group.regexes]
    return _end(group, [*regexes, PartitionMetadataChange().record(group)])


def _end(group: ModernGroup[AssignmentT], more: Iterable[KeyValue]) -> list[KeyValue]:
    return [
        *(_left(group, member_id) for member_id in group.members),
        *(TargetChange(member_id, None).record(group) for member_id in group.targets),
        TargetEpochChange(None).record(group),
        *(MemberChange(member_id, None).record(group) for member_id in group.members),
        *more,
        EpochChange(None).record(group),
    ]


def _left(group: ModernGroup[AssignmentT], member_id: str) -> KeyValue:
    removal: AssignmentChange[AssignmentT] = AssignmentChange(member_id, None)
    return removal.record(group)


@dataclass(frozen=True, slots=True)
class ModernRecord(Generic[GroupT_contra]):
    """What a record says of a group.

    Attributes:
        kind: The number of its key: applied in this order, records make the group, for a member
            has to be there before it has a place.
        group_id: The group.
        change: What has happened.
    """

    kind: int
    group_id: str
    change: Change[GroupT_contra]


class ConsumerRecord(ModernRecord[ConsumerGroup]):
    """Of a consumer group."""

    is_share: Literal[False] = False


class ShareRecord(ModernRecord[ShareGroup]):
    """Of a share group."""

    is_share: Literal[True] = True


def read_modern_change(kind: int, key: bytes, value: bytes) -> ConsumerRecord | ShareRecord | None:
    """What a record says; None for a kind that is none of such a group's.

    Raises:
        CorruptMessage: It breaks a rule.
        UnsupportedVersion: A value of a version that nobody knows.
    """
    if kind == PARTITION_METADATA_KEY.first:
        group_id = PARTITION_METADATA_KEY.read(key)[1].group_id
        return ConsumerRecord(kind, group_id, PartitionMetadataChange(is_there=True))
    if kind == REGULAR_EXPRESSION_KEY.first:
        regex_value = REGULAR_EXPRESSION_VALUE.read(value)[1]
        resolved = ResolvedRegex(
            frozenset(regex_value.topics), regex_value.version, regex_value.timestamp
        )
        named = REGULAR_EXPRESSION_KEY.read(key)[1]
        return ConsumerRecord(kind, named.group_id, RegexChange(named.regular_expression, resolved))
    if kind == SHARE_STATE_PARTITIONS_KEY.first:
        # Topics that Kafka was about to begin are not begun: the next heartbeat does so.
        shared = {
            each.topic_id: SharedTopic(each.topic_name, frozenset(each.partitions))
            for each in SHARE_STATE_PARTITIONS_VALUE.read(value)[1].initialized_topics
        }
        group_id = SHARE_STATE_PARTITIONS_KEY.read(key)[1].group_id
        return ShareRecord(kind, group_id, SharedTopicsChange(shared))
    if kind <= CURRENT_ASSIGNMENT_KEY.first:
        record = _read(CONSUMER_RECORDS, kind, key, value)
        return None if record is None else ConsumerRecord(kind, *record)
    shares = _read(SHARE_RECORDS, kind, key, value)
    return None if shares is None else ShareRecord(kind, *shares)


def _read(
    kinds: RecordSet[AssignmentT], kind: int, key: bytes, value: bytes
) -> tuple[str, Change[ModernGroup[AssignmentT]]] | None:
    """What a record says that both protocols have."""
    if kind in MEMBER_KEYS:
        member = MEMBER_KEYS[kind].read(key)[1]
        group_id, member_id = member.group_id, member.member_id
        if kind == kinds.member_key.first:
            return group_id, MemberChange(member_id, kinds.read_subscription(value))
        if kind == kinds.place_key.first:
            return group_id, AssignmentChange(member_id, kinds.read_assignment(value))
        parts = kinds.target_value.read(value)[1].topic_partitions
        return group_id, TargetChange(member_id, target_of(parts))
    if kind == kinds.epoch_key.first:
        epoch = kinds.epoch_value.read(value)[1]
        group_id = kinds.epoch_key.read(key)[1].group_id
        return group_id, EpochChange(epoch.epoch, epoch.metadata_hash)
    if kind == kinds.target_epoch_key.first:
        target = kinds.target_epoch_value.read(value)[1]
        group_id = kinds.target_epoch_key.read(key)[1].group_id
        return group_id, TargetEpochChange(target.assignment_epoch, target.assignment_timestamp)
    return None
