"""What groups are asked and what they say, without the wire's versions."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.server.groups.codes import Code

NO_GENERATION = -1
# A member's ways to assign with what it says for each, the one that it likes best first.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAsked:
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


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """How a JoinGroup ended."""

    code: Code = Code.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAsked:
    """A SyncGroup; the leader's has the assignments."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """How a SyncGroup ended."""

    code: Code = Code.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class MemberRef:
    """A member by its id, or a static one by its instance alone."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAsked:
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
