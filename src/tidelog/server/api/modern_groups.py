"""Consumer- and ShareGroupHeartbeat and -Describe: one heartbeat, one describe, two message sets.

ConsumerGroupHeartbeat and ConsumerGroupDescribe. Source: Kafka's protocol guide, APIs 68, 69.

ShareGroupHeartbeat and ShareGroupDescribe. Source: Kafka's protocol guide, APIs 76 and 77.

What guards of consumer and of share groups have in common: whose members the broker assigns.

Source: Kafka 4.3's KafkaApis.

Guards of the consumer protocol of groups (KIP-848). Source: Kafka 4.3's KafkaApis.

Guards of share groups (KIP-932). Source: Kafka 4.3's KafkaApis.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar
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
    DescribedPartitions,
    DescribedShareGroup,
    DescribedShareMember,
    HeartbeatAssignment,
    HeartbeatPartitions,
    ShareAssignment,
    SharedPartitions,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareHeartbeatAssignment,
    ShareHeartbeatPartitions,
)
from tidelog.server.api.classic_groups import GROUP_OPERATIONS
from tidelog.server.api.context import MANY, Answer, Long, RequestContext, sees_topics
from tidelog.server.api.node import Node
from tidelog.server.api.table import DENIED_TEXT, Asker, then
from tidelog.server.api.waiting import respond
from tidelog.server.groups.assignors import SIMPLE
from tidelog.server.groups.modern_group import (
    NO_TARGET,
    ConsumerGroup,
    ConsumerMember,
    ShareGroup,
    ShareMember,
)
from tidelog.server.groups.requests import Beat, BeatAsked, ShareBeatAsked
from tidelog.server.runtime.loop import in_slices
from tidelog.server.security.operations import Operation, ResourceType

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


def share_group_heartbeat(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    """Join, stay, or leave."""
    coordinator = context.node.groups
    code = coordinator.shards.code_for(request.group_id) if request.group_id else ErrorCode.NONE
    if code is not ErrorCode.NONE:
        return _share_beat_response(Beat(code=code))
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
    return respond(coordinator.shares.beat(asked), _share_beat_response)


def _share_beat_response(beat: Beat) -> ShareGroupHeartbeatResponse:
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
        await _describe_share(context.node, name, names)
        for name in dict.fromkeys(request.group_ids)
    ]
    if request.include_authorized_operations:
        for group in described:
            if not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
    response = ShareGroupDescribeResponse(groups=described)
    members = sum(len(group.members) for group in described)
    return Long(response, described) if members > MANY else response


async def _describe_share(
    node: Node, group_id: str, names: Mapping[UUID, str]
) -> DescribedShareGroup:
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
        members=await in_slices(
            node.env.clock, (_share_member(member, names) for member in members)
        ),
    )


def _share_member(member: ShareMember, names: Mapping[UUID, str]) -> DescribedShareMember:
    asks, place = member.asks, member.place
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=asks.rack_id,
        member_epoch=place.epoch,
        client_id=asks.client_id,
        client_host=asks.client_host,
        subscribed_topic_names=sorted(asks.topics),
        assignment=_share_assignment(place.assigned, names),
    )


def _share_assignment(
    parts: Mapping[UUID, Iterable[int]], names: Mapping[UUID, str]
) -> ShareAssignment:
    """Partitions of topics that there are."""
    return ShareAssignment(
        topic_partitions=[
            SharedPartitions(topic_id=topic, topic_name=names[topic], partitions=sorted(numbers))
            for topic, numbers in parts.items()
            if topic in names
        ]
    )


_HIDDEN: Final = "The group described uses topics that the client is not authorized to describe."


class Described(Protocol):
    """A group in an answer."""

    error_code: int
    group_id: str
    authorized_operations: int


Group = TypeVar("Group", bound=Described)


def heartbeat_refusal(asker: Asker, group_id: str, names: Iterable[str] | None) -> int:
    """Why a member's heartbeat is refused, 0 for not: READ on the group, DESCRIBE on its topics."""
    if not asker.may_group(Operation.READ, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return 0 if all(map(asker.may_describe, names or ())) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class Shown(Generic[Group]):
    """What is told of groups.

    Attributes:
        asker: To whom.
        topics_of: The topics that a group's members read or ask for.
        refused: A group of which nothing is told but its name: name, code and text.
    """

    asker: Asker
    topics_of: Callable[[Group], Iterable[str]]
    refused: Callable[[str, int, str], Group]

    def groups(
        self, found: Iterable[Group], denied: Iterable[str], *, with_operations: bool
    ) -> list[Group]:
        """Those that were found, each whole or by its name; behind them those that were denied.

        Args:
            found: Those that may be described.
            denied: Names of the others.
            with_operations: Whether what the asker may do is told too.
        """
        shown = [self._shown(each, with_operations=with_operations) for each in found]
        text = DENIED_TEXT[ErrorCode.GROUP_AUTHORIZATION_FAILED]
        return shown + [
            self.refused(name, ErrorCode.GROUP_AUTHORIZATION_FAILED, text)
            for name in dict.fromkeys(denied)
        ]

    def _shown(self, group: Group, *, with_operations: bool) -> Group:
        if not all(map(self.asker.may_describe, set(self.topics_of(group)))):
            return self.refused(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN)
        if with_operations and not group.error_code:
            kind = ResourceType.GROUP
            group.authorized_operations = self.asker.bits(kind, group.group_id, GROUP_OPERATIONS)
        return group


def guard_consumer_group_heartbeat(asker: Asker, request: ConsumerGroupHeartbeatRequest) -> Answer:
    """READ on the group, DESCRIBE on each topic named; expressions find what may be seen."""
    code = heartbeat_refusal(asker, request.group_id, request.subscribed_topic_names)
    if not code:
        return asker.go_on(request)
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=None, member_id=None, assignment=None
    )


def guard_consumer_group_describe(asker: Asker, request: ConsumerGroupDescribeRequest) -> Answer:
    """DESCRIBE on each group, and on all topics that its members read or ask for."""
    request.group_ids, denied = asker.split_groups(request.group_ids, Operation.DESCRIBE)
    shown = Shown(asker, _consumer_topics_of, _refused_consumer)

    def change(said: ConsumerGroupDescribeResponse) -> None:
        with_operations = request.include_authorized_operations
        said.groups = shown.groups(said.groups, denied, with_operations=with_operations)

    return then(asker.go_on(request), change)


def _refused_consumer(name: str, code: int, text: str) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(error_code=code, error_message=text, group_id=name)


def _consumer_topics_of(group: DescribedConsumerGroup) -> Iterator[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        for part in (member.assignment, member.target_assignment):
            yield from (topic.topic_name for topic in part.topic_partitions)


def guard_share_group_heartbeat(asker: Asker, request: ShareGroupHeartbeatRequest) -> Answer:
    """READ on the group, DESCRIBE on each topic named."""
    code = heartbeat_refusal(asker, request.group_id, request.subscribed_topic_names)
    if not code:
        return asker.go_on(request)
    return ShareGroupHeartbeatResponse(
        error_code=code, error_message=None, member_id=None, assignment=None
    )


def guard_share_group_describe(asker: Asker, request: ShareGroupDescribeRequest) -> Answer:
    """DESCRIBE on each group, and on all topics that its members read or ask for."""
    request.group_ids, denied = asker.split_groups(request.group_ids, Operation.DESCRIBE)
    shown = Shown(asker, _share_topics_of, _refused_share)

    def change(said: ShareGroupDescribeResponse) -> None:
        with_operations = request.include_authorized_operations
        said.groups = shown.groups(said.groups, denied, with_operations=with_operations)

    return then(asker.go_on(request), change)


def _refused_share(name: str, code: int, text: str) -> DescribedShareGroup:
    return DescribedShareGroup(error_code=code, error_message=text, group_id=name)


def _share_topics_of(group: DescribedShareGroup) -> Iterator[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        yield from (topic.topic_name for topic in member.assignment.topic_partitions)
