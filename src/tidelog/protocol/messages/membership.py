"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: members of classic groups.

Source: Kafka's protocol guide, APIs 11, 14, 12 and 13; KIP-62, KIP-345 (static members), KIP-394
(a member id first), KIP-814 (who goes on without an assignment).
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BOOLEAN,
    BYTES,
    INT16,
    INT32,
    STRING,
    array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True)
class JoinGroupRequestProtocol:
    """A way to assign that the member knows, with its subscription."""

    name: str = wire(STRING)
    metadata: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True)
class JoinGroupRequest:
    """Become a member; an empty member id asks for one."""

    group_id: str = wire(STRING)
    session_timeout_ms: int = wire(INT32)
    rebalance_timeout_ms: int = wire(INT32, since=1, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=5)
    protocol_type: str = wire(STRING)
    protocols: list[JoinGroupRequestProtocol] = wire(array(struct(JoinGroupRequestProtocol)))
    reason: str | None = wire(nullable_string(), since=8)


@dataclass(slots=True, kw_only=True)
class JoinGroupResponseMember:
    """A member with its subscription."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=5)
    metadata: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True)
class JoinGroupResponse:
    """The generation; its leader also gets the members."""

    throttle_time_ms: int = wire(INT32, since=2)
    error_code: int = wire(INT16)
    generation_id: int = wire(INT32, default=-1)
    protocol_type: str | None = wire(nullable_string(), since=7)
    protocol_name: str | None = wire(nullable_string(since=7), default="")
    leader: str = wire(STRING)
    skip_assignment: bool = wire(BOOLEAN, since=9)
    member_id: str = wire(STRING)
    members: list[JoinGroupResponseMember] = wire(array(struct(JoinGroupResponseMember)))


@dataclass(slots=True, kw_only=True)
class SyncGroupRequestAssignment:
    """What a member gets."""

    member_id: str = wire(STRING)
    assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True)
class SyncGroupRequest:
    """What is mine? The leader brings everybody's."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    protocol_type: str | None = wire(nullable_string(), since=5)
    protocol_name: str | None = wire(nullable_string(), since=5)
    assignments: list[SyncGroupRequestAssignment] = wire(array(struct(SyncGroupRequestAssignment)))


@dataclass(slots=True, kw_only=True)
class SyncGroupResponse:
    """What this member gets."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    protocol_type: str | None = wire(nullable_string(), since=5)
    protocol_name: str | None = wire(nullable_string(), since=5)
    assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True)
class HeartbeatRequest:
    """I am still here."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=3)


@dataclass(slots=True, kw_only=True)
class HeartbeatResponse:
    """Go on, or join again."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class MemberIdentity:
    """A member by its id, or a static one by its instance."""

    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    reason: str | None = wire(nullable_string(), since=5)


@dataclass(slots=True, kw_only=True)
class LeaveGroupRequest:
    """Go: one member up to version 2, many after it."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING, until=2)
    members: list[MemberIdentity] = wire(array(struct(MemberIdentity)), since=3)


@dataclass(slots=True, kw_only=True)
class MemberResponse:
    """A member that has gone, or why it has not."""

    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    error_code: int = wire(INT16, since=3)


@dataclass(slots=True, kw_only=True)
class LeaveGroupResponse:
    """Who has gone."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    members: list[MemberResponse] = wire(array(struct(MemberResponse)), since=3)
