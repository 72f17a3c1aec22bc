"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets.

These APIs are about the start offsets of share groups. The offsets of a group may be changed only
while the group has no members.

Source: Kafka's protocol guide, APIs 90 to 92; KIP-932, KIP-1226 (lag); Kafka 4.3's group
coordinator and KafkaApis (rights).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from tidelog.protocol.messages.shared import PartitionError
from tidelog.protocol.wire import NO_UUID
from tidelog.server.api.context import RequestContext
from tidelog.server.api.guards import (
    DENIED_TEXT,
    Access,
    Denied,
    Guarded,
    denied_whole,
    failed_item,
)
from tidelog.server.api.node import Node
from tidelog.server.groups.modern_group import SharedTopic, ShareGroup
from tidelog.server.runtime.errors import NOT_HOSTED, Refusal
from tidelog.server.runtime.loop import Slices
from tidelog.server.runtime.reply import Reply
from tidelog.server.security.operations import Operation
from tidelog.server.shares.state_topic import UNKNOWN_COUNT, UNKNOWN_START, PersistedState, ShareKey

_BELOW: Final = "The start offset is below 0."
_NOTHING: Final = "There is no offset information to delete."

# Start offsets by topic and partition; -1 means the start that the group's settings define.
_Starts: TypeAlias = Mapping[str, Mapping[int, int]]


# -- describe ------------------------------------------------------------------------------------


async def describe_share_group_offsets(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Return the start offsets of share groups, by partition.

    The offset is -1 for a partition that the group has not started to read, for a partition of a
    missing topic, and for a partition with an error. A partition that an entry of the request names
    several times is reported once.
    """
    slices = Slices(context.node.env.clock)
    groups = [await _described_group(context.node, group, slices) for group in request.groups]
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _described_group(
    node: Node, request: DescribeShareGroupOffsetsRequestGroup, slices: Slices
) -> DescribeShareGroupOffsetsResponseGroup:
    await slices.rest()
    group_id = request.group_id
    code = node.groups.topic.error_for(group_id)
    if code is not ErrorCode.NONE:
        return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, error_code=code)
    topics = _started_topics(node, group_id) if request.topics is None else request.topics
    described = [await _described_topic(node, group_id, each, slices) for each in topics]
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, topics=described)


def _started_topics(node: Node, group_id: str) -> list[DescribeShareGroupOffsetsRequestTopic]:
    """Return the partitions of existing topics that a group has started to read."""
    group = node.groups.find(group_id)
    shared = group.shared if isinstance(group, ShareGroup) else {}
    return [
        DescribeShareGroupOffsetsRequestTopic(
            topic_name=topic.name, partitions=sorted(topic.partitions)
        )
        for topic_id, topic in shared.items()
        if node.topics.find_by_id(topic_id) is not None
    ]


async def _described_topic(
    node: Node, group_id: str, request: DescribeShareGroupOffsetsRequestTopic, slices: Slices
) -> DescribeShareGroupOffsetsResponseTopic:
    await slices.rest()
    name = request.topic_name
    topic_id = _id_of(node, name)
    result = DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id or NO_UUID)
    for number in dict.fromkeys(request.partitions):
        await slices.rest()
        if topic_id is None:
            described = _not_started(number)
        else:
            described = await _described(node, name, ShareKey(group_id, topic_id, number))
        result.partitions.append(described)
    return result


def _not_started(number: int) -> DescribeShareGroupOffsetsResponsePartition:
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=number, start_offset=UNKNOWN_START
    )


async def _described(
    node: Node, name: str, key: ShareKey
) -> DescribeShareGroupOffsetsResponsePartition:
    number = key.partition
    if not await node.shares.is_ready(key):
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=number,
            start_offset=UNKNOWN_START,
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
    state = node.shares.states.find(key)
    if state is None or state.start == UNKNOWN_START:
        return _not_started(number)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=number,
        start_offset=state.start,
        leader_epoch=state.leader_epoch,
        lag=_lag(node, name, number, state),
    )


def _lag(node: Node, name: str, number: int, state: PersistedState) -> int:
    """Return how many offsets between the start offset and the high watermark are not completed.

    The result is -1 if this number is unknown. The result is also negative if an administrator has
    set the start offset to an offset after the log end.
    """
    if state.complete_count == UNKNOWN_COUNT:
        return -1
    try:
        end = node.partitions.get(name, number).high_watermark
    except (TidelogError, OSError):
        return -1
    return end - state.start - state.complete_count


# -- alter ---------------------------------------------------------------------------------------


async def alter_share_group_offsets(
    context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Set the start offsets of a share group. If the group doesn't exist, create it.

    If none of the named topics exists, no group is created.

    For a partition that is named more than once, only the last offset is written.
    """
    node, group_id = context.node, request.group_id
    try:
        group = _idle_group(node, group_id, may_be_new=True)
    except Refusal as refusal:
        return AlterShareGroupOffsetsResponse(
            error_code=refusal.error_code, error_message=refusal.message
        )
    starts = _starts(request.topics)
    shared = _shared(node, starts)
    if shared:
        code = await node.groups.share_topics.share(group, shared)
        if code is not ErrorCode.NONE:
            return AlterShareGroupOffsetsResponse(error_code=code)
    slices = Slices(node.env.clock)
    results = [
        await _altered(node, group_id, name, offsets, slices) for name, offsets in starts.items()
    ]
    return AlterShareGroupOffsetsResponse(responses=results)


def _starts(topics: Iterable[AlterShareGroupOffsetsRequestTopic]) -> _Starts:
    """Return the requested start offset of each partition of each topic."""
    by_topic: dict[str, dict[int, int]] = {}
    for topic in topics:
        starts = by_topic.setdefault(topic.topic_name, {})
        starts.update({each.partition_index: each.start_offset for each in topic.partitions})
    return by_topic


def _shared(node: Node, starts: _Starts) -> Mapping[UUID, SharedTopic]:
    """Return the named partitions that exist and whose requested offset is valid."""
    topics: dict[UUID, SharedTopic] = {}
    for name, offsets in starts.items():
        info = node.topics.find(name)
        if info is not None and info.topic_id is not None:
            named = frozenset(number for number, start in offsets.items() if start >= UNKNOWN_START)
            numbers = named & frozenset(range(info.partitions))
            topics[info.topic_id] = SharedTopic(info.name, numbers)
    return topics


async def _altered(
    node: Node, group_id: str, name: str, starts: Mapping[int, int], slices: Slices
) -> AlterShareGroupOffsetsResponseTopic:
    topic_id = _id_of(node, name)
    result = AlterShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id or NO_UUID)
    for number, start in starts.items():
        await slices.rest()
        code, text = await _reset_offset(node, group_id, name, number, start)
        result.partitions.append(
            PartitionError(partition_index=number, error_code=code, error_message=text or None)
        )
    return result


async def _reset_offset(
    node: Node, group_id: str, name: str, number: int, start: int
) -> tuple[ErrorCode, str]:
    """Set the start offset of one partition; return an error code and its message.

    The topic may be deleted at any time during this call.
    """
    info = node.topics.find(name)
    if info is None or info.topic_id is None or not 0 <= number < info.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED
    if start < UNKNOWN_START:
        return ErrorCode.INVALID_REQUEST, _BELOW
    return await node.shares.reset(ShareKey(group_id, info.topic_id, number), start), ""


# -- delete --------------------------------------------------------------------------------------


async def delete_share_group_offsets(
    context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Delete a group's offsets of the named topics."""
    node, group_id = context.node, request.group_id
    try:
        group = _idle_group(node, group_id, may_be_new=False)
    except Refusal as refusal:
        return DeleteShareGroupOffsetsResponse(
            error_code=refusal.error_code, error_message=refusal.message
        )
    code = await _ensure_forgettable(node, group)
    if code is not ErrorCode.NONE:
        return DeleteShareGroupOffsetsResponse(error_code=code)
    # These steps run in one iteration of the event loop, so meanwhile no member can join, and the
    # group can't be deleted.
    named = {each.topic_name: _forget(node, group, each.topic_name) for each in request.topics}
    topic_ids = [
        topic_id for topic_id, replies in named.values() if topic_id and not _failed(replies)
    ]
    unshared = node.groups.share_topics.unshare(group, topic_ids)
    results = [await _forgotten(node, name, *each) for name, each in named.items()]
    code = await unshared
    if code is not ErrorCode.NONE:
        return DeleteShareGroupOffsetsResponse(error_code=code)
    return DeleteShareGroupOffsetsResponse(responses=results)


def _forget(
    node: Node, group: ShareGroup, name: str
) -> tuple[UUID | None, Sequence[Reply[ErrorCode]]]:
    """Start deleting a group's state of a topic; return the topic's id and the replies.

    If the group has no state of the topic, return None and an empty sequence.
    """
    topic_id = _id_of(node, name)
    if topic_id is None or topic_id not in group.shared:
        return None, ()
    return topic_id, [node.shares.change_now(key, None) for key in _keys(group, topic_id)]


def _failed(replies: Iterable[Reply[ErrorCode]]) -> bool:
    """Whether one of the writes was refused at once. A refused write has written nothing."""
    return any(each.is_done and each.value is not ErrorCode.NONE for each in replies)


async def _forgotten(
    node: Node, name: str, topic_id: UUID | None, replies: Iterable[Reply[ErrorCode]]
) -> DeleteShareGroupOffsetsResponseTopic:
    if topic_id is None:
        return DeleteShareGroupOffsetsResponseTopic(
            topic_name=name,
            topic_id=NO_UUID,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=NOT_HOSTED if _id_of(node, name) is None else _NOTHING,
        )
    code = await _first_failure(replies)
    return DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id, error_code=code)


async def delete_share_group(node: Node, group: ShareGroup) -> ErrorCode:
    """Delete a group without members, then its offsets.

    If a member joins before the group is deleted, the group keeps its offsets.
    """
    code = await _ensure_forgettable(node, group)
    if code is not ErrorCode.NONE:
        return code
    # These steps run in one iteration of the event loop, so meanwhile no member can join.
    ended = node.groups.commits.delete_group(group.group_id)
    if _failed([ended]):
        return ended.value
    keys = [key for topic_id in group.shared for key in _keys(group, topic_id)]
    forgotten = [node.shares.change_now(key, None) for key in keys]
    return await _first_failure([ended, *forgotten])


async def _ensure_forgettable(node: Node, group: ShareGroup) -> ErrorCode:
    """Wait until a group's state can be deleted.

    Return NONE if the state may be deleted after the wait, otherwise an error code.
    """
    for topic_id in tuple(group.shared):
        for key in _keys(group, topic_id):
            if not await node.shares.is_ready(key):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
    code = node.groups.topic.error_for(group.group_id)
    if code is not ErrorCode.NONE:
        return code
    if node.groups.find(group.group_id) is not group:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.is_empty else ErrorCode.NON_EMPTY_GROUP


def _keys(group: ShareGroup, topic_id: UUID) -> list[ShareKey]:
    topic = group.shared.get(topic_id)
    numbers = () if topic is None else sorted(topic.partitions)
    return [ShareKey(group.group_id, topic_id, number) for number in numbers]


async def _first_failure(replies: Iterable[Reply[ErrorCode]]) -> ErrorCode:
    codes = [await each for each in replies]
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)


# -- shared by the three APIs --------------------------------------------------------------------


def _idle_group(node: Node, group_id: str, *, may_be_new: bool) -> ShareGroup:
    if not group_id:
        raise Refusal(ErrorCode.INVALID_GROUP_ID, "The group id is invalid.")
    code = node.groups.topic.error_for(group_id)
    if code is not ErrorCode.NONE:
        raise Refusal(code, "The group's coordinator is not available.")
    return node.groups.share_topics.idle_group(group_id, may_be_new=may_be_new)


def _id_of(node: Node, name: str) -> UUID | None:
    info = node.topics.find(name)
    return None if info is None else info.topic_id


def guard_describe_share_group_offsets(
    access: Access, request: DescribeShareGroupOffsetsRequest
) -> Guarded[DescribeShareGroupOffsetsRequest]:
    """Require DESCRIBE on each group and each topic.

    If all topics are requested, denied topics are left out.
    """
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    may = [access.may_group(Operation.DESCRIBE, group.group_id) for group in request.groups]
    split = [
        _split_topics(access, group)
        for group, is_allowed in zip(request.groups, may, strict=True)
        if is_allowed
    ]

    def change(response: DescribeShareGroupOffsetsResponse) -> None:
        visible = map(partial(_visible_group, access), split, response.groups)
        response.groups = [
            next(visible)
            if is_allowed
            else failed_item(
                DescribeShareGroupOffsetsResponseGroup, group.group_id, code, DENIED_TEXT[code]
            )
            for group, is_allowed in zip(request.groups, may, strict=True)
        ]

    return replace(request, groups=[group for group, _ in split]), Denied.changed(change)


_SplitGroup: TypeAlias = tuple[
    DescribeShareGroupOffsetsRequestGroup, list[DescribeShareGroupOffsetsRequestTopic]
]


def _split_topics(access: Access, group: DescribeShareGroupOffsetsRequestGroup) -> _SplitGroup:
    """Return the group with its allowed topics, and the denied topics.

    The group's topics are None if all topics are requested.
    """
    if group.topics is None:
        return group, []
    allowed, denied = access.split_topics(group.topics, Operation.DESCRIBE)
    return replace(group, topics=allowed), denied


def _visible_group(
    access: Access, split: _SplitGroup, described: DescribeShareGroupOffsetsResponseGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    group, denied = split
    if group.topics is None:
        described.topics = [t for t in described.topics if access.may_describe(t.topic_name)]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    described.topics += [
        failed_item(DescribeShareGroupOffsetsResponseTopic, topic, code, DENIED_TEXT[code])
        for topic in denied
    ]
    return described


def guard_alter_share_group_offsets(
    access: Access, request: AlterShareGroupOffsetsRequest
) -> Guarded[AlterShareGroupOffsetsRequest]:
    """Require READ on the group and on each topic. A refusal has the topic's id, as in Kafka."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not access.may_group(Operation.READ, request.group_id):
        return None, denied_whole(access, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    allowed, denied = access.split_topics(request.topics, Operation.READ)
    refusals = [
        failed_item(AlterShareGroupOffsetsResponseTopic, topic, code, DENIED_TEXT[code])
        for topic in denied
    ]
    for refusal in refusals:
        refusal.topic_id = _id_of(access.context.node, refusal.topic_name) or NO_UUID
    return replace(request, topics=allowed), Denied.rows("responses", refusals)
