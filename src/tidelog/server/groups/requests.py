"""Requests and results of group rules, independent of protocol versions."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog.error_codes import ErrorCode

NO_GENERATION = -1

# Assignment protocols of a member, each with the member's metadata, in the member's order of
# preference.
Protocols = tuple[tuple[str, bytes], ...]


class JoinRequest(NamedTuple):
    """JoinGroup request.

    Attributes:
        group_id: Id of the group.
        member_id: Member id; empty for a client that has no id yet.
        instance_id: Group instance id; None for a dynamic member.
        client_id: Client id of the request.
        client_host: Address of the client.
        protocol_type: Protocol type, such as "consumer".
        protocols: Assignment protocols in the client's order of preference.
        session_timeout_ms: Time without a request after which the member is removed.
        rebalance_timeout_ms: Time within which the member must rejoin in a rebalance.
        needs_member_id: Whether a dynamic member first gets an id, and must then join with this id.
        knows_skipping: Whether the client supports a response with `skip_assignment`, after which a
            leader computes no assignments.
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
    """Member in the leader's JoinGroup response."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """Result of a JoinGroup request."""

    code: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


class SyncRequest(NamedTuple):
    """SyncGroup request. The leader's request contains the assignments."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Sequence[tuple[str, bytes]] = ()


class SyncResult(NamedTuple):
    """Result of a SyncGroup request."""

    code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class MemberRef(NamedTuple):
    """Reference to a member by its id, or to a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class CommitRequest(NamedTuple):
    """Group and member of an OffsetCommit or TxnOffsetCommit request.

    Attributes:
        group_id: Id of the group.
        member_id: Member id; empty if the client is not a member.
        instance_id: Group instance id; None for a dynamic member.
        generation: Generation or member epoch; -1 if the client is not a member.
        retention_ms: Time to keep the offsets; -1 for the broker's setting.
        is_late_version: Whether the client knows GROUP_ID_NOT_FOUND (OffsetCommit version 9).
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
    """ConsumerGroupHeartbeat or ShareGroupHeartbeat request.

    None in `rack_id`, `topics`, `regex`, `assignor` or `owned` means no change since the last
    heartbeat. A member of a share group sends no instance id, owned partitions, expression or
    assignor.

    Attributes:
        group_id: Id of the group.
        member_id: Member id, which the client generated.
        epoch: Member epoch; 0 to join, -1 to leave, -2 to leave temporarily as a static member.
        instance_id: Group instance id; None for a dynamic member.
        rack_id: Rack of the client.
        rebalance_timeout_ms: Time within which the member must revoke partitions; -1 for no change.
        topics: Names of the topics that the member subscribes to.
        regex: Regular expression for further topics.
        assignor: Requested server-side assignor.
        owned: Partitions that the member owns.
        client_id: Client id of the request.
        client_host: Address of the client.
        is_first_version: Whether the coordinator generates a missing member id (version 0).
        may_see: Returns whether an expression may match a topic; None if all topics are visible.
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
    """Result of a heartbeat.

    Without an error, an assignment of None means no change since the last response.
    """

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Owned | None = None
