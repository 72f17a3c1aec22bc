"""ShareGroupHeartbeat and ShareGroupDescribe. Source: Kafka's protocol guide, APIs 76 and 77."""

from collections.abc import Awaitable, Iterable, Mapping
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.share_groups import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareAssignment,
    SharedPartitions,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareHeartbeatAssignment,
    ShareHeartbeatPartitions,
)
from tidelog.server.groups.results import Beat, ShareBeatAsked
from tidelog.server.groups.share.assignor import SIMPLE
from tidelog.server.groups.share.group import ShareGroup
from tidelog.server.groups.share.member import ShareMember
from tidelog.server.handlers.groups import GROUP_OPERATIONS
from tidelog.server.handlers.waiting import respond
from tidelog.server.node import Node
from tidelog.server.requests import MANY, Long, RequestContext
from tidelog.server.slices import in_slices


def share_group_heartbeat(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    """Join, stay, or leave."""
    coordinator = context.node.groups
    code = coordinator.shards.code_for(request.group_id) if request.group_id else ErrorCode.NONE
    if code is not ErrorCode.NONE:
        return _beat_response(Beat(code=code))
    names = request.subscribed_topic_names
    asked = ShareBeatAsked(
        group_id=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        rack_id=request.rack_id,
        topics=None if names is None else frozenset(names),
        client_id=context.client_id or "",
        client_host=f"/{context.connection.host}",
    )
    return respond(coordinator.shares.beat(asked), _beat_response)


def _beat_response(beat: Beat) -> ShareGroupHeartbeatResponse:
    assigned = beat.assignment
    return ShareGroupHeartbeatResponse(
        error_code=beat.code,
        error_message=beat.message,
        member_id=beat.member_id,
        member_epoch=beat.epoch,
        heartbeat_interval_ms=beat.interval_ms,
        assignment=None
        if assigned is None
        else ShareHeartbeatAssignment(
            topic_partitions=[
                ShareHeartbeatPartitions(topic_id=topic, partitions=sorted(numbers))
                for topic, numbers in assigned.items()
            ]
        ),
    )


# -- what administrators ask -----------------------------------------------------------------


async def share_group_describe(
    context: RequestContext, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse | Long:
    """Groups with their members, and what these may read."""
    names = {
        info.topic_id: name
        for name, info in context.node.topics.all().items()
        if info.topic_id is not None
    }
    described = [
        await _describe(context.node, name, names) for name in dict.fromkeys(request.group_ids)
    ]
    if request.include_authorized_operations:
        for group in described:
            if not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
    response = ShareGroupDescribeResponse(groups=described)
    members = sum(len(group.members) for group in described)
    return Long(response, described) if members > MANY else response


async def _describe(node: Node, group_id: str, names: Mapping[UUID, str]) -> DescribedShareGroup:
    if not group_id:
        return DescribedShareGroup(error_code=ErrorCode.INVALID_GROUP_ID, group_id=group_id)
    code = node.groups.shards.code_for(group_id)
    if code is not ErrorCode.NONE:
        return DescribedShareGroup(error_code=code, group_id=group_id)
    group = node.groups.find(group_id)
    if not isinstance(group, ShareGroup):
        what = "not found" if group is None else "is not a share group"
        return DescribedShareGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {what}.",
            group_id=group_id,
        )
    members = tuple(group.members.values())
    return DescribedShareGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=SIMPLE,
        members=await in_slices(node.env.clock, (_member(member, names) for member in members)),
    )


def _member(member: ShareMember, names: Mapping[UUID, str]) -> DescribedShareMember:
    asks, place = member.asks, member.place
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=asks.rack_id,
        member_epoch=place.epoch,
        client_id=asks.client_id,
        client_host=asks.client_host,
        subscribed_topic_names=sorted(asks.topics),
        assignment=_assignment(place.assigned, names),
    )


def _assignment(parts: Mapping[UUID, Iterable[int]], names: Mapping[UUID, str]) -> ShareAssignment:
    """Partitions of topics that there are."""
    return ShareAssignment(
        topic_partitions=[
            SharedPartitions(topic_id=topic, topic_name=names[topic], partitions=sorted(numbers))
            for topic, numbers in parts.items()
            if topic in names
        ]
    )
