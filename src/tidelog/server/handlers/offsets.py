"""OffsetCommit, OffsetFetch and OffsetDelete: how far groups have read.

Source: Kafka's protocol guide, APIs 8, 9 and 47; KIP-709 (many groups at once), KIP-848 (topic
ids).
"""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Final
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.commit_checks import Commit
from tidelog.server.groups.results import CommitAsked
from tidelog.server.handlers.offset_fetch import TOPIC_IDS_FIRST_VERSION
from tidelog.server.handlers.waiting import arrival, respond
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext

GROUP_NOT_FOUND_FIRST_VERSION: Final = 9
# A topic as the client named it: by name, or by id.
Place = tuple[str, UUID, int]


def offset_commit(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Keep offsets of partitions that there are."""
    response = _CommitResponse(context.version)
    kept: list[tuple[Place, Commit]] = []
    for topic in request.topics:
        kept.extend(_known(context, topic, response))
    if not kept:
        return response.message
    code = context.node.groups.shards.code_for(request.group_id)
    if code is not ErrorCode.NONE:
        return response.add(kept, [code] * len(kept))
    asked = CommitAsked(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        retention_ms=request.retention_time_ms,
        is_late_version=context.version >= GROUP_NOT_FOUND_FIRST_VERSION,
    )
    reply = context.node.groups.commits.commit(asked, [commit for _, commit in kept])
    return respond(reply, lambda codes: response.add(kept, codes))


def _known(
    context: RequestContext, topic: OffsetCommitRequestTopic, response: "_CommitResponse"
) -> Iterable[tuple[Place, Commit]]:
    """Commits of partitions that there are; the others are refused in the response."""
    node = context.node
    by_id = context.version >= TOPIC_IDS_FIRST_VERSION
    info = node.topics.find_by_id(topic.topic_id) if by_id else node.topics.find(topic.name)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for each in topic.partitions:
        place = (topic.name, topic.topic_id, each.partition_index)
        if info is None:
            response.put(place, unknown)
        elif not 0 <= each.partition_index < info.partitions:
            response.put(place, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            commit = Commit(
                info.name,
                each.partition_index,
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata,
                info.topic_id or NO_UUID,
            )
            yield place, commit


def has_partition(node: Node, topic: str, partition: int) -> bool:
    """Whether there is such a partition."""
    info = node.topics.find(topic)
    return info is not None and 0 <= partition < info.partitions


class _CommitResponse:
    """An answer under construction: topics in the order in which they got their first code."""

    def __init__(self, version: int) -> None:
        self._by_id = version >= TOPIC_IDS_FIRST_VERSION
        self._topics: dict[str | UUID, OffsetCommitResponseTopic] = {}
        self.message = OffsetCommitResponse()

    def put(self, place: Place, code: ErrorCode) -> None:
        """Say how it went with one partition."""
        name, topic_id, partition = place
        key = topic_id if self._by_id else name
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = OffsetCommitResponseTopic(name=name, topic_id=topic_id)
            self.message.topics.append(topic)
        topic.partitions.append(
            OffsetCommitResponsePartition(partition_index=partition, error_code=code)
        )

    def add(
        self, kept: Sequence[tuple[Place, Commit]], codes: Sequence[ErrorCode]
    ) -> OffsetCommitResponse:
        """Say how it went with those that the coordinator was asked about; the whole answer."""
        for (place, _), code in zip(kept, codes, strict=True):
            self.put(place, code)
        return self.message


async def offset_delete(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Forget offsets of topics that the group does not read."""
    node = context.node
    places = [
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    ]
    known = [place for place in places if has_partition(node, *place)]
    code = node.groups.shards.code_for(request.group_id) if request.group_id else ErrorCode.NONE
    if code is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=code)
    deleted = node.groups.commits.delete_offsets(request.group_id, known)
    if isinstance(deleted, ErrorCode):
        return OffsetDeleteResponse(error_code=deleted)
    codes = dict.fromkeys(places, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    outcome = await arrival(deleted)
    codes |= zip(known, outcome, strict=True)
    topics: dict[str, OffsetDeleteResponseTopic] = {}
    for (name, partition), each in codes.items():
        topic = topics.setdefault(name, OffsetDeleteResponseTopic(name=name))
        topic.partitions.append(
            OffsetDeleteResponsePartition(partition_index=partition, error_code=each)
        )
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=list(topics.values()))
