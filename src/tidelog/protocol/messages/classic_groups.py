"""FindCoordinator and classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ...

Source: Kafka's protocol guide, APIs 10 to 16 and 42; KIP-62, KIP-229, KIP-345 (static members),
KIP-394 (ids of dynamic members), KIP-699 (several groups in a request),
KIP-814 (a static leader that rejoins may skip the assignment).
"""

from typing import Final

from tidelog.protocol.messages.shared import GroupProtocol, ThrottledResponse
from tidelog.protocol.schema import INT8, INT16, INT32, NO_OPERATIONS, message, wire
from tidelog.types import Buffer

GROUP_KEY_TYPE: Final = 0


@message
class FindCoordinatorRequest:
    """Request for coordinators: of groups (key type 0), transactional ids or share partitions.

    Key type 1 means transactional ids. From version 6, key type 2 means share partitions.
    The request has one key up to version 3, several keys from version 4.
    """

    key: str = wire(until=3)
    key_type: int = wire(INT8, since=1)
    coordinator_keys: list[str] = wire(since=4)


@message
class Coordinator:
    """Coordinator of one key: the broker's id, host and port; or an error."""

    key: str = wire(since=4)
    node_id: int = wire(INT32, since=4, default=-1)
    host: str = wire(since=4)
    port: int = wire(INT32, since=4, default=-1)
    error_code: int = wire(INT16, since=4)
    error_message: str | None = wire(since=4)


@message
class FindCoordinatorResponse:
    """Response with one coordinator (up to version 3), or with a coordinator for each key."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16, until=3)
    error_message: str | None = wire(since=1, until=3)
    node_id: int = wire(INT32, until=3, default=-1)
    host: str = wire(until=3)
    port: int = wire(INT32, until=3, default=-1)
    coordinators: list[Coordinator] = wire(since=4)


@message
class ListGroupsRequest:
    """Request for the groups that the broker coordinates. An empty filter matches all groups."""

    states_filter: list[str] = wire(since=4)
    types_filter: list[str] = wire(since=5)


@message
class ListedGroup:
    """Group in the response: id, protocol type, state and type."""

    group_id: str = wire()
    protocol_type: str = wire()
    group_state: str = wire(since=4)
    group_type: str = wire(since=5)


@message
class ListGroupsResponse:
    """Response with the matching groups."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    groups: list[ListedGroup] = wire()


@message
class JoinGroupRequest:
    """Request to join or rejoin a group. With an empty member id, the broker assigns an id."""

    group_id: str = wire()
    session_timeout_ms: int = wire(INT32)
    rebalance_timeout_ms: int = wire(INT32, since=1, default=-1)
    member_id: str = wire()
    group_instance_id: str | None = wire(since=5)
    protocol_type: str = wire()
    protocols: list[GroupProtocol] = wire()
    reason: str | None = wire(since=8)


@message
class JoinGroupResponseMember:
    """Member in the response to the leader, with the member's metadata for the chosen protocol."""

    member_id: str = wire()
    group_instance_id: str | None = wire(since=5)
    metadata: Buffer = wire()


@message
class JoinGroupResponse:
    """Response with the generation. The response to the leader also contains all members."""

    throttle_time_ms: int = wire(INT32, since=2)
    error_code: int = wire(INT16)
    generation_id: int = wire(INT32, default=-1)
    protocol_type: str | None = wire(since=7)
    protocol_name: str | None = wire(default="", null_since=7)
    leader: str = wire()
    skip_assignment: bool = wire(since=9)
    member_id: str = wire()
    members: list[JoinGroupResponseMember] = wire()


@message
class SyncGroupRequestAssignment:
    """Assignment of one member, computed by the leader."""

    member_id: str = wire()
    assignment: Buffer = wire()


@message
class SyncGroupRequest:
    """Request for a member's assignment. The leader's request contains all assignments."""

    group_id: str = wire()
    generation_id: int = wire(INT32)
    member_id: str = wire()
    group_instance_id: str | None = wire(since=3)
    protocol_type: str | None = wire(since=5)
    protocol_name: str | None = wire(since=5)
    assignments: list[SyncGroupRequestAssignment] = wire()


@message
class SyncGroupResponse:
    """Response with the member's assignment."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    protocol_type: str | None = wire(since=5)
    protocol_name: str | None = wire(since=5)
    assignment: Buffer = wire()


@message
class HeartbeatRequest:
    """Request that keeps the member's session alive."""

    group_id: str = wire()
    generation_id: int = wire(INT32)
    member_id: str = wire()
    group_instance_id: str | None = wire(since=3)


@message
class HeartbeatResponse:
    """Response to a heartbeat. REBALANCE_IN_PROGRESS means that the member must rejoin."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)


@message
class MemberIdentity:
    """Member in the request: a dynamic member by member id, a static member by instance id."""

    member_id: str = wire(since=3)
    group_instance_id: str | None = wire(since=3)
    reason: str | None = wire(since=5)


@message
class LeaveGroupRequest:
    """Request to remove one member (up to version 2) or several members."""

    group_id: str = wire()
    member_id: str = wire(until=2)
    members: list[MemberIdentity] = wire(since=3)


@message
class MemberResponse:
    """Result for one member."""

    member_id: str = wire(since=3)
    group_instance_id: str | None = wire(since=3)
    error_code: int = wire(INT16, since=3)


@message
class LeaveGroupResponse:
    """Response with a result for each member."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    members: list[MemberResponse] = wire(since=3)


@message
class DescribeGroupsRequest:
    """Request for the state and members of groups."""

    groups: list[str] = wire()
    include_authorized_operations: bool = wire(since=3)


@message
class DescribedGroupMember:
    """Member in the response, with its metadata and assignment."""

    member_id: str = wire()
    group_instance_id: str | None = wire(since=4)
    client_id: str = wire()
    client_host: str = wire()
    member_metadata: Buffer = wire()
    member_assignment: Buffer = wire()


@message
class DescribedGroup:
    """Group in the response. A group that does not exist has the state Dead and no members."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(since=6)
    group_id: str = wire()
    group_state: str = wire()
    protocol_type: str = wire()
    protocol_data: str = wire()
    members: list[DescribedGroupMember] = wire()
    authorized_operations: int = wire(INT32, since=3, default=NO_OPERATIONS)


@message
class DescribeGroupsResponse:
    """Response with the groups."""

    throttle_time_ms: int = wire(INT32, since=1)
    groups: list[DescribedGroup] = wire()


@message
class DeleteGroupsRequest:
    """Request to delete groups; only groups without members are deleted."""

    groups_names: list[str] = wire()


@message
class DeletableGroupResult:
    """Result for one group."""

    group_id: str = wire()
    error_code: int = wire(INT16)


@message
class DeleteGroupsResponse(ThrottledResponse):
    """Response with a result for each group."""

    results: list[DeletableGroupResult] = wire()
