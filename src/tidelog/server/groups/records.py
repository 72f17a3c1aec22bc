"""Encoding of offsets and classic groups in `__consumer_offsets`.

Writes the versions that Kafka 4.3 writes, and reads all versions that Kafka 4.3 reads. Records of
consumer and share groups are in `modern_records`. Records of other kinds, such as the members of
streams groups, are skipped. The committed offsets of streams groups are read.

Source: Kafka 4.3's records in that topic.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tidelog.protocol.messages.group_records import (
    GROUP_METADATA_KEY,
    GROUP_METADATA_VALUE,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.protocol.wire import Reader
from tidelog.server.coordinator.state_topic import KeyValue
from tidelog.server.groups.committed_offsets import NO_EXPIRY, CommittedOffset, OffsetChange
from tidelog.server.runtime.name_cache import is_short, remembers_short

if TYPE_CHECKING:
    from tidelog.server.groups.classic_group import ClassicGroup
    from tidelog.server.groups.modern_records import ModernRecord


_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_GROUP_VALUE: Final = 3
_OFFSET_VALUE: Final = 4

# Version of an offset's value that contains an expiry time; no other version contains one.
_EXPIRING_OFFSET_VALUE: Final = 1


class GroupChange(NamedTuple):
    """New metadata of a classic group: generation and members."""

    group_id: str
    value: GroupMetadataValue


Change: TypeAlias = OffsetChange | GroupChange


def offset_record(
    group_id: str, topic: str, partition: int, offset: CommittedOffset | None
) -> KeyValue:
    """Encode a committed offset; None encodes its tombstone."""
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
    """Encode a classic group. Default `assignments`: the members' current assignments.

    If `rebalances` is true, the record names no leader. If the group is loaded from such a record,
    its members must rejoin.
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
    """Encode the tombstone of a classic group."""
    return KeyValue(_group_key(group_id), None)


def _group_key(group_id: str) -> bytes:
    return GROUP_METADATA_KEY.write(_GROUP_KEY, GroupMetadataKey(group=group_id))


def read_change(key: bytes, value: bytes, record_offset: int) -> "Change | ModernRecord | None":
    """Decode a record; None for an unknown kind.

    Raises:
        CorruptMessage: The record is invalid.
        UnsupportedVersion: The value has an unknown version.
    """
    kind = Reader(key).int16()
    if kind in {0, _OFFSET_KEY}:
        named, written = OFFSET_COMMIT_KEY.read(key)[1], OFFSET_COMMIT_VALUE.read(value)[1]
        offset = CommittedOffset(
            written.offset,
            written.leader_epoch,
            written.metadata,
            written.commit_timestamp,
            written.expire_timestamp,
            written.topic_id,
            record_offset,
        )
        return OffsetChange(named.group, named.topic, named.partition, offset)
    if kind == _GROUP_KEY:
        group_id = GROUP_METADATA_KEY.read(key)[1].group
        return GroupChange(group_id, GROUP_METADATA_VALUE.read(value)[1])
    from tidelog.server.groups.modern_records import read_modern_change  # imported only if needed

    return read_modern_change(kind, key, value)
