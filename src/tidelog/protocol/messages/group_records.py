"""Keys and values of the records in `__consumer_offsets`.

Each begins with an int16. In a key it says what the record is about (0 and 1 an offset, 2 a group),
in a value it is the value's version. Source: Kafka's own records in that topic; KIP-211 (offsets
expire with their group), KIP-848 (topic ids).
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    BYTES,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True)
class OffsetCommitKey:
    """A group and a partition; the key numbers 0 and 1 both mean it."""

    group: str = wire(STRING)
    topic: str = wire(STRING)
    partition: int = wire(INT32)


@dataclass(slots=True, kw_only=True)
class OffsetCommitValue:
    """What the group committed."""

    offset: int = wire(INT64)
    leader_epoch: int = wire(INT32, since=3, default=-1)
    metadata: str = wire(STRING)
    commit_timestamp: int = wire(INT64)
    expire_timestamp: int = wire(INT64, since=1, until=1, default=-1)
    topic_id: UUID = wire(UUID16, since=4, tag=0)


@dataclass(slots=True, kw_only=True)
class GroupMetadataKey:
    """A group."""

    group: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class MemberMetadata:
    """A member, what it asked for and what it got; times in ms."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    rebalance_timeout: int = wire(INT32, since=1, default=-1)
    session_timeout: int = wire(INT32)
    subscription: Buffer = wire(BYTES)
    assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True)
class GroupMetadataValue:
    """A generation of a group with its members."""

    protocol_type: str = wire(STRING)
    generation: int = wire(INT32)
    protocol: str | None = wire(nullable_string())
    leader: str | None = wire(nullable_string())
    current_state_timestamp: int = wire(INT64, since=2, default=-1)
    members: list[MemberMetadata] = wire(array(struct(MemberMetadata)))
