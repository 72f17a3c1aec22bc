"""Records of share groups, read back into what has happened.

Source: Kafka 4.3's own records in `__consumer_offsets`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
from tidelog.protocol.messages.share_records import ShareTopicPartitions
from tidelog.server.groups.consumer.member import Target
from tidelog.server.groups.share.changes import (
    ShareChange,
    SharedTopicsChange,
    ShareEpochChange,
    ShareMemberChange,
    SharePlaceChange,
    ShareTargetChange,
    ShareTargetEpochChange,
)
from tidelog.server.groups.share.group import SharedTopic
from tidelog.server.groups.share.member import ShareAsks, SharePlace

if TYPE_CHECKING:
    from uuid import UUID


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
    reader = _READERS.get(kind)
    return None if reader is None else ShareRecord(kind, *reader(key, value))


def _read_member(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    named = SHARE_MEMBER_KEY.read(key)[1]
    found = SHARE_MEMBER_VALUE.read(value)[1]
    asks = ShareAsks(
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        topics=frozenset(found.subscribed_topic_names),
    )
    return named.group_id, ShareMemberChange(named.member_id, asks)


def _read_epoch(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    found = SHARE_GROUP_VALUE.read(value)[1]
    named = SHARE_GROUP_KEY.read(key)[1]
    return named.group_id, ShareEpochChange(found.epoch, found.metadata_hash)


def _read_target_epoch(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    found = SHARE_TARGET_VALUE.read(value)[1]
    change = ShareTargetEpochChange(found.assignment_epoch, found.assignment_timestamp)
    return SHARE_TARGET_KEY.read(key)[1].group_id, change


def _read_target(key: bytes, value: bytes) -> tuple[str, ShareChange]:
    named = SHARE_MEMBER_TARGET_KEY.read(key)[1]
    found = SHARE_MEMBER_TARGET_VALUE.read(value)[1]
    return named.group_id, ShareTargetChange(named.member_id, _target(found.topic_partitions))


def _read_place(key: bytes, value: bytes) -> tuple[str, ShareChange]:
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
_READERS: Final = {
    10: _read_member,
    11: _read_epoch,
    12: _read_target_epoch,
    13: _read_target,
    14: _read_place,
    15: _read_shared,
}


def _target(parts: Iterable[ShareTopicPartitions]) -> Target:
    return {part.topic_id: frozenset(part.partitions) for part in parts}
