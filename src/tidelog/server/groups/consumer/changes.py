"""All that can happen to a group: each change is one record.

It is applied in the same way when it is made and when it is read again.

Source: Kafka 4.3's own records in `__consumer_offsets`.
"""

from dataclasses import dataclass
from typing import Final, Protocol

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
    TargetPartitions,
)
from tidelog.server.groups.consumer.group import FIRST_EPOCH, ConsumerGroup, ResolvedRegex
from tidelog.server.groups.consumer.member import (
    Asks,
    Assigned,
    Place,
    Target,
)
from tidelog.server.groups.records import GroupRecord
from tidelog.server.short_names import is_short, remembers_short

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
def _group_key(number: int, group_id: str) -> bytes:
    """A key that names a group: its epoch (3), its target's (6)."""
    if number == 3:
        return CONSUMER_GROUP_KEY.write(number, ConsumerGroupMetadataKey(group_id=group_id))
    return TARGET_KEY.write(number, ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id))


class Change(Protocol):
    """Something that happens to a group."""

    def record(self, group_id: str) -> GroupRecord:
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

    def record(self, group_id: str) -> GroupRecord:
        """Key 3."""
        key = _group_key(3, group_id)
        if self.epoch is None:
            return GroupRecord(key, None)
        value = ConsumerGroupMetadataValue(epoch=self.epoch, metadata_hash=self.metadata_hash)
        return GroupRecord(key, CONSUMER_GROUP_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Take epoch and hash."""
        if self.epoch is not None:
            group.epoch, group.metadata_hash = self.epoch, self.metadata_hash


@dataclass(frozen=True, slots=True)
class PartitionMetadataChange:
    """What an older Kafka wrote down of the topics is there, or is forgotten."""

    is_there: bool = False

    def record(self, group_id: str) -> GroupRecord:
        """Key 4, only ever to forget it."""
        named = ConsumerGroupPartitionMetadataKey(group_id=group_id)
        return GroupRecord(PARTITION_METADATA_KEY.write(4, named), None)

    def apply(self, group: ConsumerGroup) -> None:
        """Remember whether there is something to forget."""
        group.has_partition_metadata = self.is_there


# -- members -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A member came or asks for something else; None: it went."""

    member_id: str
    asks: Asks | None

    def record(self, group_id: str) -> GroupRecord:
        """Key 5."""
        key = _member_key(5, group_id, self.member_id)
        value = None if self.asks is None else _member_value(self.asks)
        return GroupRecord(
            key, None if value is None else CONSUMER_MEMBER_VALUE.write(_VALUE, value)
        )

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

    def record(self, group_id: str) -> GroupRecord:
        """Key 8."""
        key = _member_key(8, group_id, self.member_id)
        if self.place is None:
            return GroupRecord(key, None)
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.place.epoch,
            previous_member_epoch=self.place.previous_epoch,
            state=self.place.state,
            assigned_partitions=_current(self.place.assigned),
            partitions_pending_revocation=_current(self.place.revoking),
        )
        return GroupRecord(key, CURRENT_ASSIGNMENT_VALUE.write(_VALUE, value))

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

    def record(self, group_id: str) -> GroupRecord:
        """Key 6."""
        key = _group_key(6, group_id)
        if self.epoch is None:
            return GroupRecord(key, None)
        value = ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=self.epoch, assignment_timestamp=self.made_ms
        )
        return GroupRecord(key, TARGET_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Take epoch and time."""
        group.target_epoch = FIRST_EPOCH if self.epoch is None else self.epoch
        group.target_ms = self.made_ms


@dataclass(frozen=True, slots=True)
class TargetChange:
    """What a member is to have; None: nothing is planned for it any more."""

    member_id: str
    target: Target | None

    def record(self, group_id: str) -> GroupRecord:
        """Key 7."""
        key = _member_key(7, group_id, self.member_id)
        if self.target is None:
            return GroupRecord(key, None)
        parts = [
            TargetPartitions(topic_id=topic, partitions=sorted(numbers))
            for topic, numbers in self.target.items()
        ]
        value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=parts)
        return GroupRecord(key, MEMBER_TARGET_VALUE.write(_VALUE, value))

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

    def record(self, group_id: str) -> GroupRecord:
        """Key 16."""
        named = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=self.regex)
        key = REGULAR_EXPRESSION_KEY.write(16, named)
        if self.found is None:
            return GroupRecord(key, None)
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(self.found.topics),
            version=self.found.version,
            timestamp=self.found.resolved_ms,
        )
        return GroupRecord(key, REGULAR_EXPRESSION_VALUE.write(_VALUE, value))

    def apply(self, group: ConsumerGroup) -> None:
        """Take or forget the topics."""
        if self.found is None:
            group.regexes.pop(self.regex, None)
        else:
            group.regexes[self.regex] = self.found
