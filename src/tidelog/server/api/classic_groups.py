"""FindCoordinator, ListGroups, DeleteGroups, and the APIs of classic groups, such as JoinGroup.

FindCoordinator returns this broker for every group, transactional id and share partition.
ListGroups and DeleteGroups handle groups of all types, DescribeGroups only classic groups.

Source: Kafka's protocol guide, APIs 10 to 16 and 42; KIP-699 (many keys at once), KIP-932 (share
partitions); Kafka 4.3's KafkaApis (rights).
"""

import re
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.classic_groups import (
    GROUP_KEY_TYPE,
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.server.api.context import LargeResponse, RequestContext, large_if_many
from tidelog.server.api.guards import (
    DENIED_TEXT,
    Access,
    Denied,
    Guarded,
    denied_whole,
    failed_item,
)
from tidelog.server.coordinator.state_topic import Loaded, StateTopic
from tidelog.server.groups.classic_group import ClassicGroup, GroupState, Member
from tidelog.server.groups.modern_group import ShareGroup
from tidelog.server.groups.replay import AnyGroup
from tidelog.server.groups.requests import (
    JoinRequest,
    JoinResult,
    MemberRef,
    SyncRequest,
    SyncResult,
)
from tidelog.server.runtime.errors import Refusal, set_error
from tidelog.server.runtime.loop import in_slices
from tidelog.server.security.operations import Operation, ResourceType
from tidelog.types import INT32_MAX, TopicPartition

TRANSACTION_KEY_TYPE: Final = 1
SHARE_KEY_TYPE: Final = 2
SHARE_FIRST_VERSION: Final = 6
BATCHED_KEYS_FIRST_VERSION: Final = 4

# Before it responds to FindCoordinator, the broker opens the partitions of the state topic for at
# most this many keys of the request. For further keys, the first write opens the partition.
OPENED_KEYS_MAX: Final = 100

# GROUP:TOPIC_ID:PARTITION as Kafka's classes parse it: a group that isn't blank, 16 bytes in
# base64, a number that Java parses as an int. Trailing colons are ignored.
_SHARE_KEY: Final = re.compile(
    r"(?P<group>.*):[A-Za-z0-9_-]{22}(?:==)?:(?P<number>[+-]?\d{1,99}):*", re.DOTALL
)


def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Return this broker as coordinator.

    The first request for a group creates the topic that stores the state of all groups. The topics
    for the state of transactional ids and of share partitions are created in the same way.
    """
    node = context.node
    if request.key_type == GROUP_KEY_TYPE:
        return _find_coordinator(context, request, node.groups.topic)
    if request.key_type == TRANSACTION_KEY_TYPE:
        return _find_coordinator(context, request, node.transactions.topic)
    if request.key_type == SHARE_KEY_TYPE and context.version >= SHARE_FIRST_VERSION:
        return _of_share_partitions(context, request)
    return _coordinator_response(context, request, ErrorCode.INVALID_REQUEST)


async def _of_share_partitions(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    sound = {key for key in request.coordinator_keys if _names_share_partition(key)}
    code = await context.node.shares.states.topic.ensure_topic() if sound else ErrorCode.NONE
    return FindCoordinatorResponse(
        coordinators=[
            _coordinator(context, key, code if key in sound else ErrorCode.INVALID_REQUEST)
            for key in request.coordinator_keys
        ]
    )


def _names_share_partition(key: str) -> bool:
    match = _SHARE_KEY.fullmatch(key)
    return (
        match is not None
        and any(letter > " " for letter in match["group"])
        and -INT32_MAX - 1 <= int(match["number"]) <= INT32_MAX
    )


def _find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest, topic: StateTopic[Loaded]
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if not topic.has_topic:
        return _create_first(context, request, topic)
    if missing := _unopened(context, request, topic):
        return _when_open(context, request, missing)
    return _coordinator_response(context, request, ErrorCode.NONE)


def _unopened(
    context: RequestContext, request: FindCoordinatorRequest, topic: StateTopic[Loaded]
) -> list[TopicPartition]:
    """Return the unopened partitions of the state topic for the first `OPENED_KEYS_MAX` keys.

    The caller opens them in a thread; otherwise the first write would open them on the event loop.
    """
    is_batch = context.version >= BATCHED_KEYS_FIRST_VERSION
    keys = request.coordinator_keys[:OPENED_KEYS_MAX] if is_batch else [request.key]
    numbers = {topic.number_of(key) for key in keys if topic.error_for(key) == ErrorCode.NONE}
    return context.node.partitions.unopened((topic.name, number) for number in numbers)


async def _when_open(
    context: RequestContext, request: FindCoordinatorRequest, missing: Iterable[TopicPartition]
) -> FindCoordinatorResponse:
    await context.node.partitions.open_beside(missing, to_write=True)
    return _coordinator_response(context, request, ErrorCode.NONE)


async def _create_first(
    context: RequestContext, request: FindCoordinatorRequest, topic: StateTopic[Loaded]
) -> FindCoordinatorResponse:
    code = await topic.ensure_topic()
    if code is not ErrorCode.NONE:
        return _coordinator_response(context, request, code)
    return await _when_open(context, request, _unopened(context, request, topic))


def _coordinator_response(
    context: RequestContext, request: FindCoordinatorRequest, code: ErrorCode
) -> FindCoordinatorResponse:
    if context.version >= BATCHED_KEYS_FIRST_VERSION:
        return FindCoordinatorResponse(
            coordinators=[_coordinator(context, key, code) for key in request.coordinator_keys]
        )
    coordinator = _coordinator(context, request.key, code)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=_MESSAGES[code],
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _coordinator(context: RequestContext, key: str, code: ErrorCode) -> Coordinator:
    if code is not ErrorCode.NONE:
        return failed_item(Coordinator, key, code, "")
    node_id, address = context.node.node_id, context.address
    return Coordinator(
        key=key, node_id=node_id, host=address.host, port=address.port, error_message=""
    )


_MESSAGES: Final = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: (
        "Unsupported coordinator key type; this version supports 0 (groups) and 1 (transactional"
        " ids)."
    ),
}


def guard_find_coordinator(
    access: Access, request: FindCoordinatorRequest
) -> Guarded[FindCoordinatorRequest]:
    """Require DESCRIBE on each group or transactional id.

    For share partitions, require CLUSTER_ACTION on the cluster.
    """
    if access.context.version < BATCHED_KEYS_FIRST_VERSION:
        code = _key_code(access, request.key_type, request.key)
        if not code:
            return request, None
        return None, denied_whole(access, code)
    keys = request.coordinator_keys
    codes = {key: _key_code(access, request.key_type, key) for key in keys}
    refusals = [
        failed_item(Coordinator, key, codes[key], DENIED_TEXT[codes[key]])
        for key in keys
        if codes[key]
    ]
    if not refusals:
        return request, None
    allowed = [key for key in keys if not codes[key]]
    if not allowed:
        return None, Denied.whole(FindCoordinatorResponse(coordinators=refusals))
    return replace(request, coordinator_keys=allowed), Denied.rows("coordinators", refusals)


def _key_code(access: Access, kind: int, key: str) -> int:
    if kind == GROUP_KEY_TYPE and not access.may_group(Operation.DESCRIBE, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if kind == TRANSACTION_KEY_TYPE and not access.may_transact(Operation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_share = kind == SHARE_KEY_TYPE and access.context.version >= SHARE_FIRST_VERSION
    if is_share and not access.may_cluster(Operation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return 0


# JoinGroup
MEMBER_ID_FIRST_VERSION: Final = 4

NULL_NAMES_FIRST_VERSION: Final = 7
SKIPPING_FIRST_VERSION: Final = 9

# SyncGroup
NAMED_PROTOCOL_FIRST_VERSION: Final = 5

# LeaveGroup
BATCHED_LEAVE_FIRST_VERSION: Final = 3

# DescribeGroups
NOT_FOUND_FIRST_VERSION: Final = 6

# Bit set of the operations of Kafka's AclOperation that apply to groups: READ, DELETE, DESCRIBE,
# DESCRIBE_CONFIGS and ALTER_CONFIGS. Bit N stands for the operation with code N.
GROUP_OPERATIONS: Final = sum(1 << code for code in (3, 6, 8, 10, 11))


def join_group(
    context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    """Join a group. While the group rebalances, the response waits for the next generation."""
    coordinator = context.node.groups
    version = context.version
    code = coordinator.topic.error_for_member(request.group_id)
    if code is not ErrorCode.NONE:
        return _join_response(version, JoinResult(code=code, member_id=request.member_id))
    has_timeout = version >= 1
    join_request = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=context.connection.java_host,
        protocol_type=request.protocol_type,
        # The metadata is copied, because a view would keep the request's buffer for as long as the
        # member exists.
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms
        ),
        needs_member_id=version >= MEMBER_ID_FIRST_VERSION,
        knows_skipping=version >= SKIPPING_FIRST_VERSION,
    )
    reply = coordinator.members.join(join_request)
    return reply.map(lambda joined: _join_response(version, joined))


def _join_response(version: int, joined: JoinResult) -> JoinGroupResponse:
    name = joined.protocol_name
    if name is None and version < NULL_NAMES_FIRST_VERSION:
        name = ""
    return JoinGroupResponse(
        error_code=joined.code,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=name,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )


def sync_group(
    context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    """Return the member's assignment.

    If the leader has not sent the assignments yet, the response waits for them.
    """
    if context.version >= NAMED_PROTOCOL_FIRST_VERSION and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return _sync_response(SyncResult(code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    coordinator = context.node.groups
    code = coordinator.topic.error_for_member(request.group_id)
    if code is not ErrorCode.NONE:
        return _sync_response(SyncResult(code=code))
    sync_request = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=[(each.member_id, bytes(each.assignment)) for each in request.assignments],
    )
    return coordinator.members.sync(sync_request).map(_sync_response)


def _sync_response(synced: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=synced.code,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Keep a member's session alive.

    While the member's group is loading, every heartbeat succeeds.
    """
    coordinator = context.node.groups
    code = coordinator.topic.error_for_member(request.group_id)
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return HeartbeatResponse()
    if code is ErrorCode.NONE:
        member = MemberRef(request.member_id, request.group_instance_id)
        code = coordinator.members.heartbeat(request.group_id, member, request.generation_id)
    return HeartbeatResponse(error_code=code)


def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members from a group. Requests before version 3 name exactly one member."""
    coordinator = context.node.groups
    code = coordinator.topic.error_for_member(request.group_id)
    if code is not ErrorCode.NONE:
        return LeaveGroupResponse(error_code=code)
    if context.version < BATCHED_LEAVE_FIRST_VERSION:
        codes = coordinator.members.leave(request.group_id, [MemberRef(request.member_id)])
        return LeaveGroupResponse(error_code=codes[0])
    members = [MemberRef(each.member_id, each.group_instance_id) for each in request.members]
    codes = coordinator.members.leave(request.group_id, members)
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id, group_instance_id=member.instance_id, error_code=each
            )
            for member, each in zip(members, codes, strict=True)
        ],
    )


# -- requests of administrators -----------------------------------------------------------------


async def list_groups(
    context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse | LargeResponse:
    """List the groups with the requested states and types, ignoring case.

    An empty list of states or types matches all.
    """
    coordinator = context.node.groups
    if coordinator.topic.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}

    def passes(group: AnyGroup) -> bool:
        return (not states or group.state.value.lower() in states) and (
            not types or group.group_type in types
        )

    clock, groups = context.node.env.clock, tuple(coordinator.groups())
    listed = await in_slices(clock, (_listed(each) if passes(each) else None for each in groups))
    matches = [each for each in listed if each is not None]
    return large_if_many(ListGroupsResponse(groups=matches), matches)


def _listed(group: AnyGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=group.group_type,
    )


async def describe_groups(
    context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse | LargeResponse:
    """Describe the requested groups and their members; describe a group once if it is named twice.

    A group that doesn't exist or isn't a classic group is described as dead.
    """
    described = [await _describe(context, group_id) for group_id in dict.fromkeys(request.groups)]
    if request.include_authorized_operations:
        for group in described:
            if not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
    members = sum(len(group.members) for group in described)
    return large_if_many(DescribeGroupsResponse(groups=described), described, members)


async def _describe(context: RequestContext, group_id: str) -> DescribedGroup:
    coordinator = context.node.groups
    code = coordinator.topic.error_for(group_id)
    if code is not ErrorCode.NONE:
        return DescribedGroup(error_code=code, group_id=group_id)
    group = coordinator.find(group_id)
    if not isinstance(group, ClassicGroup):
        return _missing(context.version, group_id, is_there=group is not None)
    is_stable = group.state is GroupState.STABLE
    members = tuple(group.members.values())
    described = (_described_member(group, member, is_stable=is_stable) for member in members)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=await in_slices(context.node.env.clock, described),
    )


def _missing(version: int, group_id: str, *, is_there: bool) -> DescribedGroup:
    """Return a description with the state Dead, for a group that isn't there or isn't classic.

    From version 6 on, the description also has the error GROUP_ID_NOT_FOUND.
    """
    described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if version >= NOT_FOUND_FIRST_VERSION:
        fact = "is not a classic group" if is_there else "not found"
        refusal = Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {fact}.")
        set_error(described, refusal)
    return described


def _described_member(
    group: ClassicGroup, member: Member, *, is_stable: bool
) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
        member_assignment=member.assignment,
    )


async def delete_groups(
    context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Delete groups and their offsets. A group that has members is kept, and gets an error."""
    coordinator = context.node.groups
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        code = coordinator.topic.error_for(group_id)
        if code is ErrorCode.NONE:
            code = await _delete(context, group_id)
        results.append(DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=results)


async def _delete(context: RequestContext, group_id: str) -> ErrorCode:
    """Delete one group. If it is a share group, also delete the state of its share partitions."""
    coordinator = context.node.groups
    group = coordinator.find(group_id)
    if isinstance(group, ShareGroup) and group.is_empty:
        from tidelog.server.api.share_offsets import delete_share_group  # imported for share groups

        return await delete_share_group(context.node, group)
    return await coordinator.commits.delete_group(group_id)


def guard_join_group(access: Access, request: JoinGroupRequest) -> Guarded[JoinGroupRequest]:
    """Require READ on the group."""
    if access.may_group(Operation.READ, request.group_id):
        return request, None
    refusal = JoinGroupResponse(
        error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
        generation_id=-1,
        protocol_name="" if access.context.version < NULL_NAMES_FIRST_VERSION else None,
    )
    return None, Denied.whole(refusal)


def guard_describe_groups(
    access: Access, request: DescribeGroupsRequest
) -> Guarded[DescribeGroupsRequest]:
    """Require DESCRIBE on each group."""
    allowed, denied = access.split_groups(request.groups, Operation.DESCRIBE)

    def change(response: DescribeGroupsResponse) -> None:
        if request.include_authorized_operations:
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = access.bits(
                        ResourceType.GROUP, group.group_id, GROUP_OPERATIONS
                    )
        response.groups.extend(
            failed_item(DescribedGroup, name, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for name in dict.fromkeys(denied)
        )

    return replace(request, groups=allowed), Denied.changed(change)


def guard_list_groups(access: Access, request: ListGroupsRequest) -> Guarded[ListGroupsRequest]:
    """Require DESCRIBE on the cluster or on each group. Denied groups are left out."""
    if access.may_cluster(Operation.DESCRIBE):
        return request, None

    def is_shown(group: ListedGroup) -> bool:
        return access.may_group(Operation.DESCRIBE, group.group_id)

    return request, Denied.hidden(access, "groups", is_shown)


def guard_delete_groups(
    access: Access, request: DeleteGroupsRequest
) -> Guarded[DeleteGroupsRequest]:
    """Require DELETE on each group."""
    allowed, denied = access.split_groups(request.groups_names, Operation.DELETE)
    refusals = Denied.items(access, dict.fromkeys(denied), ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return replace(request, groups_names=allowed), refusals
