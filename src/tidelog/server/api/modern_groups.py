"""Heartbeats and descriptions of consumer groups and of share groups, with their guards.

The APIs of consumer groups and of share groups use the same code for heartbeats, descriptions and
guards. Only the conversion of heartbeat requests and the descriptions of groups and members differ.

Source: Kafka's protocol guide, APIs 68, 69, 76 and 77; Kafka 4.3's KafkaApis.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.modern_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedShareGroup,
    DescribedShareMember,
    GroupDescribeRequest,
    HeartbeatAssignment,
    HeartbeatResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tidelog.protocol.messages.shared import DescribedPartitions, IdPartitions
from tidelog.server.api.classic_groups import GROUP_OPERATIONS
from tidelog.server.api.context import LargeResponse, RequestContext, large_if_many, sees_topics
from tidelog.server.api.guards import DENIED_TEXT, Access, Denied, Guarded
from tidelog.server.groups.assignors import SIMPLE
from tidelog.server.groups.modern_group import (
    NO_TARGET,
    ConsumerGroup,
    ConsumerMember,
    ShareGroup,
    ShareMember,
)
from tidelog.server.groups.modern_records import parts_of
from tidelog.server.groups.requests import HeartbeatRequest, HeartbeatResult
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.loop import in_slices
from tidelog.server.runtime.reply import Reply
from tidelog.server.security.operations import Operation, ResourceType

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
ResponseT = TypeVar("ResponseT", bound=HeartbeatResponse)


# -- heartbeats --------------------------------------------------------------------------------


def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """Let a member join, stay, move towards its target assignment, or leave."""
    names, owned = request.subscribed_topic_names, request.topic_partitions
    heartbeat = HeartbeatRequest(
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
        client_host=context.connection.java_host,
        is_first_version=context.version == 0,
        may_see=None if context.node.authorizer is None else sees_topics(context),
    )
    handle = context.node.groups.heartbeats.heartbeat
    return _heartbeat(context, handle, heartbeat, ConsumerGroupHeartbeatResponse)


def share_group_heartbeat(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    """Let a member join, stay, or leave."""
    names = request.subscribed_topic_names
    heartbeat = HeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        rack_id=request.rack_id,
        topics=None if names is None else frozenset(names),
        client_id=context.client_id or "",
        client_host=context.connection.java_host,
    )
    handle = context.node.groups.shares.heartbeat
    return _heartbeat(context, handle, heartbeat, ShareGroupHeartbeatResponse)


def _heartbeat(
    context: RequestContext,
    handle: Callable[[HeartbeatRequest], Reply[HeartbeatResult]],
    request: HeartbeatRequest,
    kind: type[ResponseT],
) -> ResponseT | Awaitable[ResponseT]:
    group_id = request.group_id
    code = context.node.groups.topic.error_for(group_id) if group_id else ErrorCode.NONE
    if code is not ErrorCode.NONE:
        return _response(kind, HeartbeatResult(code=code))
    return handle(request).map(partial(_response, kind))


def _owned(parts: Iterable[IdPartitions]) -> Mapping[UUID, frozenset[int]]:
    owned: dict[UUID, set[int]] = {}
    for part in parts:
        owned.setdefault(part.topic_id, set()).update(part.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _response(kind: type[ResponseT], result: HeartbeatResult) -> ResponseT:
    assigned = result.assignment
    return kind(
        error_code=result.code,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.interval_ms,
        assignment=None
        if assigned is None
        else HeartbeatAssignment(topic_partitions=parts_of(assigned)),
    )


# -- descriptions ------------------------------------------------------------------------------


class Described(Protocol):
    """A group in a response."""

    error_code: int
    group_id: str
    authorized_operations: int


Group = TypeVar("Group", bound=Described)
DescribeRequest = TypeVar("DescribeRequest", bound=GroupDescribeRequest)

GuardedHeartbeat = TypeVar(
    "GuardedHeartbeat", ConsumerGroupHeartbeatRequest, ShareGroupHeartbeatRequest
)


if TYPE_CHECKING:

    class _DescribeResponse(DataclassInstance, Protocol[Group]):
        groups: list[Group]


_GroupT = TypeVar("_GroupT", ConsumerGroup, ShareGroup)
Names = Mapping[UUID, str]


async def consumer_group_describe(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | LargeResponse:
    """Describe consumer groups, their members, and each member's current and target assignment."""
    described = await _describe_all(context, request, _describe_consumers, _refused_consumer)
    members = sum(len(group.members) for group in described)
    return large_if_many(ConsumerGroupDescribeResponse(groups=described), described, members)


async def share_group_describe(
    context: RequestContext, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse | LargeResponse:
    """Describe share groups, their members, and each member's assignment."""
    described = await _describe_all(context, request, _describe_sharers, _refused_share)
    members = sum(len(group.members) for group in described)
    return large_if_many(ShareGroupDescribeResponse(groups=described), described, members)


async def _describe_all(
    context: RequestContext,
    request: GroupDescribeRequest,
    describe: Callable[[RequestContext, str, Names], Awaitable[Group]],
    refused: Callable[[str, int, str | None], Group],
) -> list[Group]:
    """Return the description or the error of each requested group, in the request's order.

    A group that the request names several times is returned once.
    """
    names = {
        info.topic_id: name
        for name, info in context.node.topics.all().items()
        if info.topic_id is not None
    }
    described = []
    for group_id in dict.fromkeys(request.group_ids):
        try:
            group = await describe(context, group_id, names)
        except Refusal as refusal:
            group = refused(group_id, refusal.error_code, refusal.message)
        else:
            if request.include_authorized_operations:
                group.authorized_operations = GROUP_OPERATIONS
        described.append(group)
    return described


def _find(context: RequestContext, group_id: str, kind: type[_GroupT], type_name: str) -> _GroupT:
    """Return the group with this id, which must be of class `kind`.

    Raises:
        Refusal: The group id is invalid, the partition with the group's state is not available
            now, or no group of this class has the id.
    """
    groups = context.node.groups
    code = groups.topic.error_for_member(group_id)
    if code is not ErrorCode.NONE:
        raise Refusal(code)
    group = groups.find(group_id)
    if not isinstance(group, kind):
        reason = "not found" if group is None else f"is not a {type_name} group"
        raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
    return group


async def _describe_consumers(
    context: RequestContext, group_id: str, names: Names
) -> DescribedConsumerGroup:
    group = _find(context, group_id, ConsumerGroup, "consumer")
    members = tuple(group.members.values())
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor() or context.node.groups.default_assignor,
        members=await in_slices(
            context.node.env.clock, (_consumer(group, member, names) for member in members)
        ),
    )


def _consumer(group: ConsumerGroup, member: ConsumerMember, names: Names) -> DescribedConsumer:
    subscription = member.subscription
    target = group.targets.get(member.member_id, NO_TARGET)
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.assignment.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topics),
        subscribed_topic_regex=subscription.regex,
        assignment=_assignment(_has(member), names),
        target_assignment=_assignment(target, names),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _has(member: ConsumerMember) -> Mapping[UUID, Iterable[int]]:
    """Return a member's partitions, including partitions that it still has to revoke."""
    partitions: dict[UUID, set[int]] = {}
    for part in (member.assignment.assigned, member.assignment.revoking):
        for topic, numbers in part.items():
            partitions.setdefault(topic, set()).update(numbers)
    return partitions


async def _describe_sharers(
    context: RequestContext, group_id: str, names: Names
) -> DescribedShareGroup:
    group = _find(context, group_id, ShareGroup, "share")
    members = tuple(group.members.values())
    return DescribedShareGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=SIMPLE,
        members=await in_slices(
            context.node.env.clock, (_sharer(member, names) for member in members)
        ),
    )


def _sharer(member: ShareMember, names: Names) -> DescribedShareMember:
    subscription, assignment = member.subscription, member.assignment
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=subscription.rack_id,
        member_epoch=assignment.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topics),
        assignment=_assignment(assignment.assigned, names),
    )


def _assignment(parts: Mapping[UUID, Iterable[int]], names: Names) -> DescribedAssignment:
    """Return an assignment, without topics that no longer exist."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedPartitions(topic_id=topic, topic_name=names[topic], partitions=sorted(numbers))
            for topic, numbers in parts.items()
            if topic in names
        ]
    )


# -- guards ------------------------------------------------------------------------------------


_HIDDEN: Final = "The group described uses topics that the client is not authorized to describe."


def guard_consumer_group_heartbeat(
    access: Access, request: ConsumerGroupHeartbeatRequest
) -> Guarded[ConsumerGroupHeartbeatRequest]:
    """Require READ on the group and DESCRIBE on each named topic.

    The guard does not check the topics that a regular expression matches, because the expression is
    applied only to topics that the client may describe.
    """
    return _guard_heartbeat(access, request, ConsumerGroupHeartbeatResponse)


def guard_share_group_heartbeat(
    access: Access, request: ShareGroupHeartbeatRequest
) -> Guarded[ShareGroupHeartbeatRequest]:
    """Require READ on the group and DESCRIBE on each named topic."""
    return _guard_heartbeat(access, request, ShareGroupHeartbeatResponse)


def _guard_heartbeat(
    access: Access, request: GuardedHeartbeat, kind: type[HeartbeatResponse]
) -> Guarded[GuardedHeartbeat]:
    if not access.may_group(Operation.READ, request.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif not all(map(access.may_describe, request.subscribed_topic_names or ())):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    else:
        return request, None
    refusal = kind(error_code=code, error_message=None, member_id=None, assignment=None)
    return None, Denied.whole(refusal)


def guard_consumer_group_describe(
    access: Access, request: ConsumerGroupDescribeRequest
) -> Guarded[ConsumerGroupDescribeRequest]:
    """Require DESCRIBE on each group, and on its members' assigned and subscribed topics."""
    return _guard_describe(access, request, _consumer_topics_of, _refused_consumer)


def guard_share_group_describe(
    access: Access, request: ShareGroupDescribeRequest
) -> Guarded[ShareGroupDescribeRequest]:
    """Require DESCRIBE on each group, and on its members' assigned and subscribed topics."""
    return _guard_describe(access, request, _share_topics_of, _refused_share)


def _guard_describe(
    access: Access,
    request: DescribeRequest,
    topics_of: Callable[[Group], Iterable[str]],
    refuse: Callable[[str, int, str | None], Group],
) -> Guarded[DescribeRequest]:
    """Guard a request. Denied groups are at the end of the response.

    If the client is not authorized to describe a topic of a group, the group is replaced by its id
    and an error.

    Args:
        access: Rights of the client.
        request: The request.
        topics_of: Returns the names of the topics in a group's description: topics to which a
            member subscribes by name, and topics in members' assignments.
        refuse: Returns a group with only its id, an error code and an error message.
    """
    allowed, denied = access.split_groups(request.group_ids, Operation.DESCRIBE)
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with_operations = request.include_authorized_operations

    def visible(group: Group) -> Group:
        if not all(map(access.may_describe, set(topics_of(group)))):
            return refuse(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN)
        if with_operations and not group.error_code:
            kind = ResourceType.GROUP
            group.authorized_operations = access.bits(kind, group.group_id, GROUP_OPERATIONS)
        return group

    def change(response: "_DescribeResponse[Group]") -> None:
        refused = (refuse(name, code, DENIED_TEXT[code]) for name in dict.fromkeys(denied))
        response.groups = [*map(visible, response.groups), *refused]

    return replace(request, group_ids=allowed), Denied.changed(change)


def _refused_consumer(name: str, code: int, text: str | None) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(error_code=code, error_message=text, group_id=name)


def _consumer_topics_of(group: DescribedConsumerGroup) -> Iterator[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        for part in (member.assignment, member.target_assignment):
            yield from (topic.topic_name for topic in part.topic_partitions)


def _refused_share(name: str, code: int, text: str | None) -> DescribedShareGroup:
    return DescribedShareGroup(error_code=code, error_message=text, group_id=name)


def _share_topics_of(group: DescribedShareGroup) -> Iterator[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        yield from (topic.topic_name for topic in member.assignment.topic_partitions)
