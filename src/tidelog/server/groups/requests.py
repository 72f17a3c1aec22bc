"""Requests and results of group rules, independent of protocol versions."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog.error_codes import ErrorCode

NO_GENERATION = -1


# A member's ways to assign with what it says for each, the one that it likes best first.
Protocols = tuple[tuple[str, bytes], ...]


class JoinRequest(NamedTuple):
    """A JoinGroup.

    Attributes:
        group_id: The group.
        member_id: Empty for a client that has none yet.
        instance_id: A static member's name for itself, None for a dynamic one.
        client_id: How the client calls itself.
        client_host: Where it asks from.
        protocol_type: What kind of group it means.
        protocols: In its order of preference.
        session_timeout_ms: How long it may be silent.
        rebalance_timeout_ms: How long it may take to join again.
        needs_member_id: Whether a dynamic member gets its id first and then joins with it.
        knows_skipping: Whether the client understands that a leader need not assign.
    """

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocol_type: str = "consumer"
    protocols: Protocols = ()
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    needs_member_id: bool = False
    knows_skipping: bool = False


class JoinedMember(NamedTuple):
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """How a JoinGroup ended."""

    code: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


class SyncRequest(NamedTuple):
    """A SyncGroup; the leader's has the assignments."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Sequence[tuple[str, bytes]] = ()


class SyncResult(NamedTuple):
    """How a SyncGroup ended."""

    code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class MemberRef(NamedTuple):
    """A member by its id, or a static one by its instance alone."""

    member_id: str
    instance_id: str | None = None


class CommitRequest(NamedTuple):
    """Who commits.

    Attributes:
        group_id: The group.
        member_id: Empty where the client uses no membership.
        instance_id: A static member's name.
        generation: -1 where the client uses no membership.
        retention_ms: How long the offsets are to be kept, -1 for the broker's setting.
        is_late_version: Whether an unknown group has a code of its own (OffsetCommit v9).
        is_transactional: Whether the commit is part of a transaction.
    """

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION
    retention_ms: int = -1
    is_late_version: bool = True
    is_transactional: bool = False


Owned = Mapping[UUID, frozenset[int]]


class HeartbeatRequest(NamedTuple):
    """A ConsumerGroupHeartbeat or ShareGroupHeartbeat; what is None has not changed since the last.

    A member of a share group says neither its instance, what it has, nor how it is to be assigned.

    Attributes:
        group_id: The group.
        member_id: The member's id, which it made itself.
        epoch: 0 to join, -1 to leave, -2 to leave for a while as a static member.
        instance_id: A static member's name for itself.
        rack_id: Where it is.
        rebalance_timeout_ms: How long it may take to give partitions up, -1 for no change.
        topics: Names that it reads.
        regex: An expression for further ones.
        assignor: Who is to assign.
        owned: What it has.
        client_id: How the client calls itself.
        client_host: Where it asks from.
        is_first_version: Whether it may leave its id to the coordinator (version 0).
        may_see: Which topics an expression may find, None for all.
    """

    group_id: str
    member_id: str = ""
    epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Owned | None = None
    client_id: str = ""
    client_host: str = ""
    is_first_version: bool = False
    may_see: Callable[[str], bool] | None = None


class HeartbeatResult(NamedTuple):
    """How a heartbeat to the coordinator ended; the assignment only where the member needs it."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Owned | None = None
