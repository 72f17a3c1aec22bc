"""OffsetFetch: how far groups have read. One group up to version 7, many after it.

Source: Kafka's protocol guide, API 9; KIP-447 (stable offsets), KIP-709 (many groups at once),
KIP-848 (topic ids).
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.groups import (
    OffsetFetchGroup,
    OffsetFetchGroupPartitionResponse,
    OffsetFetchGroupResponse,
    OffsetFetchGroupTopic,
    OffsetFetchGroupTopicResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopicResponse,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.commit_checks import fetch_error
from tidelog.server.groups.offsets import GroupOffsets
from tidelog.server.groups.pending import PendingOffsets
from tidelog.server.handlers.waiting import arrival
from tidelog.server.node import Node
from tidelog.server.requests import MANY, Long, RequestContext
from tidelog.server.slices import Slices
from tidelog.types import NO_OFFSET

TOP_ERROR_FIRST_VERSION: Final = 2
BATCHED_FIRST_VERSION: Final = 8
MEMBERS_FIRST_VERSION: Final = 9
TOPIC_IDS_FIRST_VERSION: Final = 10
# Groups that are answered before others have the loop.
GROUPS_AT_ONCE: Final = 100


async def offset_fetch(
    context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Long:
    """What groups committed; nothing is told that a crash could still take back.

    Groups and partitions are told once, however often they are named: metadata may be long.
    """
    if context.version >= BATCHED_FIRST_VERSION:
        asked_groups = {group.group_id: group for group in request.groups}
        groups = []
        for number, group in enumerate(asked_groups.values(), start=1):
            groups.append(await _group(context, group, is_stable=request.require_stable))
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        count = sum(len(topic.partitions) for group in groups for topic in group.topics)
        response = OffsetFetchResponse(groups=groups)
        return Long(response, groups) if count > MANY else response
    topics = request.topics
    asked = OffsetFetchGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [
            OffsetFetchGroupTopic(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in topics
        ],
    )
    found = await _group(context, asked, is_stable=request.require_stable)
    response = await _single(context, asked, found)
    count = sum(len(topic.partitions) for topic in response.topics)
    return Long(response, response.topics) if count > MANY else response


class _Told(NamedTuple):
    """What a group's answer is made of.

    Attributes:
        group_id: The group.
        offsets: What it has committed.
        pending: What is still pending, None where that does not matter to the client.
        by_id: Whether topics are named by their ids.
    """

    group_id: str
    offsets: GroupOffsets
    pending: PendingOffsets | None
    by_id: bool


async def _group(
    context: RequestContext, asked: OffsetFetchGroup, *, is_stable: bool
) -> OffsetFetchGroupResponse:
    coordinator = context.node.groups
    code = coordinator.shards.code_for(asked.group_id)
    if code is ErrorCode.NONE:
        code = await arrival(coordinator.shards.settled(asked.group_id))
    if code is ErrorCode.NONE:
        code = coordinator.shards.code_for(asked.group_id)  # it may have been lost meanwhile
    if code is not ErrorCode.NONE:
        return OffsetFetchGroupResponse(group_id=asked.group_id, error_code=code)
    group = coordinator.find(asked.group_id)
    if group is not None and context.version >= MEMBERS_FIRST_VERSION:
        code = fetch_error(group, asked.member_id, asked.member_epoch)
        if code is not ErrorCode.NONE:
            return OffsetFetchGroupResponse(group_id=asked.group_id, error_code=code)
    told = _Told(
        asked.group_id,
        GroupOffsets() if group is None else group.offsets,
        coordinator.pending if is_stable else None,
        context.version >= TOPIC_IDS_FIRST_VERSION,
    )
    topics = (
        await _all(context.node, told)
        if asked.topics is None
        else [_asked_topic(context.node, told, topic) for topic in _named_once(asked.topics)]
    )
    return OffsetFetchGroupResponse(
        group_id=asked.group_id, topics=topics, error_code=ErrorCode.NONE
    )


async def _all(node: Node, told: _Told) -> list[OffsetFetchGroupTopicResponse]:
    """All that was committed; by id only of topics that there are, and for them."""
    topics: list[OffsetFetchGroupTopicResponse] = []
    slices = Slices(node.env.clock)
    for name in told.offsets.topics():
        info = node.topics.find(name)
        topic_id = NO_UUID if info is None or info.topic_id is None else info.topic_id
        if told.by_id and topic_id == NO_UUID:
            continue
        numbers = [
            number
            for number, found in told.offsets.of_topic(name).items()
            if not (told.by_id and found.is_of_another(topic_id))
        ]
        partitions = []
        for number in numbers:
            partitions.append(_partition(told, name, NO_UUID, number))
            await slices.rest()
        if partitions:
            topics.append(
                OffsetFetchGroupTopicResponse(name=name, topic_id=topic_id, partitions=partitions)
            )
    return topics


def _named_once(asked: Iterable[OffsetFetchGroupTopic]) -> Iterable[OffsetFetchGroupTopic]:
    """Each topic once, with all partitions that are asked for wherever it is named."""
    found: dict[object, OffsetFetchGroupTopic] = {}
    for each in asked:
        key = each.name, each.topic_id
        found.setdefault(key, replace(each, partition_indexes=[]))
        found[key].partition_indexes += each.partition_indexes
    return found.values()


def _asked_topic(
    node: Node, told: _Told, asked: OffsetFetchGroupTopic
) -> OffsetFetchGroupTopicResponse:
    info = node.topics.find_by_id(asked.topic_id) if told.by_id else None
    if told.by_id and info is None:
        partitions = [
            OffsetFetchGroupPartitionResponse(
                partition_index=number,
                committed_offset=NO_OFFSET,
                metadata="",
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
            )
            for number in asked.partition_indexes
        ]
    else:
        name = asked.name if info is None else info.name
        numbers = dict.fromkeys(asked.partition_indexes)
        topic_id = asked.topic_id if told.by_id else NO_UUID
        partitions = [_partition(told, name, topic_id, number) for number in numbers]
    return OffsetFetchGroupTopicResponse(
        name=asked.name, topic_id=asked.topic_id, partitions=partitions
    )


def _partition(
    told: _Told, topic: str, topic_id: UUID, number: int
) -> OffsetFetchGroupPartitionResponse:
    """What is kept, but for another topic of the name than was asked for; no id stands for all."""
    found = told.offsets.get(topic, number)
    is_unstable = told.pending is not None and told.pending.is_pending(told.group_id, topic, number)
    if found is None or is_unstable or found.is_of_another(topic_id):
        return OffsetFetchGroupPartitionResponse(
            partition_index=number,
            committed_offset=NO_OFFSET,
            metadata="",
            error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE,
        )
    return OffsetFetchGroupPartitionResponse(
        partition_index=number,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=ErrorCode.NONE,
    )


async def _single(
    context: RequestContext, asked: OffsetFetchGroup, found: OffsetFetchGroupResponse
) -> OffsetFetchResponse:
    """The answer in the old form; the oldest says an error with each partition."""
    if found.error_code and context.version < TOP_ERROR_FIRST_VERSION:
        return OffsetFetchResponse(topics=list(_all_failed(asked, found.error_code)))
    response = OffsetFetchResponse(error_code=found.error_code)
    slices = Slices(context.node.env.clock)
    for topic in found.topics:
        told = OffsetFetchTopicResponse(name=topic.name)
        for each in topic.partitions:
            told.partitions.append(_in_old_form(each))
            await slices.rest()
        response.topics.append(told)
    return response


def _in_old_form(found: OffsetFetchGroupPartitionResponse) -> OffsetFetchPartitionResponse:
    return OffsetFetchPartitionResponse(
        partition_index=found.partition_index,
        committed_offset=found.committed_offset,
        committed_leader_epoch=found.committed_leader_epoch,
        metadata=found.metadata,
        error_code=found.error_code,
    )


def _all_failed(asked: OffsetFetchGroup, code: int) -> Iterable[OffsetFetchTopicResponse]:
    for topic in asked.topics or ():
        yield OffsetFetchTopicResponse(
            name=topic.name,
            partitions=[
                OffsetFetchPartitionResponse(
                    partition_index=number, committed_offset=NO_OFFSET, metadata="", error_code=code
                )
                for number in topic.partition_indexes
            ],
        )
