"""ConsumerGroupHeartbeat and ConsumerGroupDescribe. Source: Kafka's protocol guide, APIs 68, 69."""

from collections.abc import Awaitable, Iterable, Mapping
from typing import Final
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedPartitions,
    HeartbeatAssignment,
    HeartbeatPartitions,
)
from tidelog.server.groups.consumer.group import NO_TARGET, ConsumerGroup
from tidelog.server.groups.consumer.member import ConsumerMember
from tidelog.server.groups.results import Beat, BeatAsked
from tidelog.server.handlers.groups import GROUP_OPERATIONS
from tidelog.server.handlers.waiting import respond
from tidelog.server.node import Node
from tidelog.server.requests import MANY, Long, RequestContext
from tidelog.server.seen_topics import sees_topics
from tidelog.server.slices import in_slices

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """Join, stay, move towards one's assignment, or leave."""
    coordinator = context.node.groups
    code = coordinator.shards.code_for(request.group_id) if request.group_id else ErrorCode.NONE
    if code is not ErrorCode.NONE:
        return _beat_response(Beat(code=code))
    names, owned = request.subscribed_topic_names, request.topic_partitions
    asked = BeatAsked(
        group_id=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else frozenset(names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else _owned(owned),
        client_id=context.client_id or "",
        client_host=f"/{context.connection.host}",
        is_first_version=context.version == 0,
        may_see=None if context.node.authorizer is None else sees_topics(context),
    )
    return respond(coordinator.heartbeats.beat(asked), _beat_response)


def _owned(parts: Iterable[HeartbeatPartitions]) -> Mapping[UUID, frozenset[int]]:
    owned: dict[UUID, set[int]] = {}
    for part in parts:
        owned.setdefault(part.topic_id, set()).update(part.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _beat_response(beat: Beat) -> ConsumerGroupHeartbeatResponse:
    assigned = beat.assignment
    return ConsumerGroupHeartbeatResponse(
        error_code=beat.code,
        error_message=beat.message,
        member_id=beat.member_id,
        member_epoch=beat.epoch,
        heartbeat_interval_ms=beat.interval_ms,
        assignment=None
        if assigned is None
        else HeartbeatAssignment(
            topic_partitions=[
                HeartbeatPartitions(topic_id=topic, partitions=sorted(numbers))
                for topic, numbers in assigned.items()
            ]
        ),
    )


# -- what administrators ask -----------------------------------------------------------------


async def consumer_group_describe(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Long:
    """Groups with their members, what these have and what they are to have."""
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
    response = ConsumerGroupDescribeResponse(groups=described)
    members = sum(len(group.members) for group in described)
    return Long(response, described) if members > MANY else response


async def _describe(node: Node, group_id: str, names: Mapping[UUID, str]) -> DescribedConsumerGroup:
    if not group_id:
        return DescribedConsumerGroup(error_code=ErrorCode.INVALID_GROUP_ID, group_id=group_id)
    code = node.groups.shards.code_for(group_id)
    if code is not ErrorCode.NONE:
        return DescribedConsumerGroup(error_code=code, group_id=group_id)
    group = node.groups.find(group_id)
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        return DescribedConsumerGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {what}.",
            group_id=group_id,
        )
    members = tuple(group.members.values())
    return DescribedConsumerGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor() or node.groups.default_assignor,
        members=await in_slices(
            node.env.clock, (_member(group, member, names) for member in members)
        ),
    )


def _member(
    group: ConsumerGroup, member: ConsumerMember, names: Mapping[UUID, str]
) -> DescribedConsumer:
    asks = member.asks
    target = group.targets.get(member.member_id, NO_TARGET)
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=asks.instance_id,
        rack_id=asks.rack_id,
        member_epoch=member.place.epoch,
        client_id=asks.client_id,
        client_host=asks.client_host,
        subscribed_topic_names=sorted(asks.topics),
        subscribed_topic_regex=asks.regex,
        assignment=_assignment(_has(member), names),
        target_assignment=_assignment(target, names),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _has(member: ConsumerMember) -> Mapping[UUID, Iterable[int]]:
    """What a member has, what it is giving up included."""
    found: dict[UUID, set[int]] = {}
    for part in (member.place.assigned, member.place.revoking):
        for topic, numbers in part.items():
            found.setdefault(topic, set()).update(numbers)
    return found


def _assignment(
    parts: Mapping[UUID, Iterable[int]], names: Mapping[UUID, str]
) -> DescribedAssignment:
    """Partitions of topics that there are."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedPartitions(topic_id=topic, topic_name=names[topic], partitions=sorted(numbers))
            for topic, numbers in parts.items()
            if topic in names
        ]
    )
