"""What happens to a share group, each as a value: it says how it is written and lets it happen.

Source: Kafka 4.3's own records in `__consumer_offsets`; KIP-932.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from tidelog.protocol.data_messages import (
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
    ShareStatePartitions,
    ShareTopicPartitions,
)
from tidelog.server.groups.consumer.group import FIRST_EPOCH
from tidelog.server.groups.consumer.member import Target
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.share.group import SharedTopic, ShareGroup
from tidelog.server.groups.share.member import STABLE, ShareAsks, SharePlace

# The only version of all these values.
_VALUE: Final = 0


class ShareChange(Protocol):
    """Something that happens to a group."""

    def record(self, group_id: str) -> GroupRecord:
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

    def record(self, group_id: str) -> GroupRecord:
        """Key 10."""
        named = ShareGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id)
        key = SHARE_MEMBER_KEY.write(10, named)
        if self.asks is None:
            return GroupRecord(key, None)
        value = ShareGroupMemberMetadataValue(
            rack_id=self.asks.rack_id,
            client_id=self.asks.client_id,
            client_host=self.asks.client_host,
            subscribed_topic_names=sorted(self.asks.topics),
        )
        return GroupRecord(key, SHARE_MEMBER_VALUE.write(_VALUE, value))

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

    def record(self, group_id: str) -> GroupRecord:
        """Key 11."""
        key = SHARE_GROUP_KEY.write(11, ShareGroupMetadataKey(group_id=group_id))
        if self.epoch is None:
            return GroupRecord(key, None)
        value = ShareGroupMetadataValue(epoch=self.epoch, metadata_hash=self.metadata_hash)
        return GroupRecord(key, SHARE_GROUP_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Take epoch and hash."""
        if self.epoch is not None:
            group.epoch, group.metadata_hash = self.epoch, self.metadata_hash


@dataclass(frozen=True, slots=True)
class ShareTargetEpochChange:
    """A target assignment was made for this epoch, at this wall time; None forgets it."""

    epoch: int | None
    made_ms: int = 0

    def record(self, group_id: str) -> GroupRecord:
        """Key 12."""
        named = ShareGroupTargetAssignmentMetadataKey(group_id=group_id)
        key = SHARE_TARGET_KEY.write(12, named)
        if self.epoch is None:
            return GroupRecord(key, None)
        value = ShareGroupTargetAssignmentMetadataValue(
            assignment_epoch=self.epoch, assignment_timestamp=self.made_ms
        )
        return GroupRecord(key, SHARE_TARGET_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Take epoch and time."""
        group.target_epoch = FIRST_EPOCH if self.epoch is None else self.epoch
        group.target_ms = self.made_ms


@dataclass(frozen=True, slots=True)
class ShareTargetChange:
    """What a member is to have; None: nothing is planned for it any more."""

    member_id: str
    target: Target | None

    def record(self, group_id: str) -> GroupRecord:
        """Key 13."""
        named = ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=self.member_id)
        key = SHARE_MEMBER_TARGET_KEY.write(13, named)
        if self.target is None:
            return GroupRecord(key, None)
        value = ShareGroupTargetAssignmentMemberValue(topic_partitions=_parts(self.target))
        return GroupRecord(key, SHARE_MEMBER_TARGET_VALUE.write(_VALUE, value))

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

    def record(self, group_id: str) -> GroupRecord:
        """Key 14."""
        named = ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id)
        key = SHARE_CURRENT_KEY.write(14, named)
        if self.place is None:
            return GroupRecord(key, None)
        value = ShareGroupCurrentMemberAssignmentValue(
            member_epoch=self.place.epoch,
            previous_member_epoch=self.place.previous_epoch,
            state=STABLE,
            assigned_partitions=_parts(self.place.assigned),
        )
        return GroupRecord(key, SHARE_CURRENT_VALUE.write(_VALUE, value))

    def apply(self, group: ShareGroup) -> None:
        """Move it."""
        group.put_place(self.member_id, self.place or SharePlace())


@dataclass(frozen=True, slots=True)
class SharedTopicsChange:
    """The group has begun to read these topics, all told; None: it reads nothing any more."""

    shared: Mapping[UUID, SharedTopic] | None

    def record(self, group_id: str) -> GroupRecord:
        """Key 15."""
        named = ShareGroupStatePartitionMetadataKey(group_id=group_id)
        key = SHARE_STATE_PARTITIONS_KEY.write(15, named)
        if self.shared is None:
            return GroupRecord(key, None)
        value = ShareGroupStatePartitionMetadataValue(initialized_topics=_states(self.shared))
        return GroupRecord(key, SHARE_STATE_PARTITIONS_VALUE.write(_VALUE, value))

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


def share_end_records(group: ShareGroup) -> list[GroupRecord]:
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
