"""TxnOffsetCommit: what a group has read, as part of a transaction.

Source: Kafka's protocol guide, API 28; Kafka 4.3's GroupCoordinatorService; KIP-447, KIP-890.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.txn_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.commit_checks import Commit
from tidelog.server.groups.results import CommitAsked
from tidelog.server.handlers.produce_transactions import known_error
from tidelog.server.handlers.waiting import arrival
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext

# Since which version a client knows errors after which it aborts, and since which the group's
# partition is added by committing.
ABORTABLE_SINCE: Final = 4
ADDS_SINCE: Final = 5


async def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Keep offsets of partitions that there are until the transaction ends."""
    response = _Response()
    kept: list[Commit] = []
    for topic in request.topics:
        kept.extend(_known(context.node, topic, response))
    if kept:
        codes = await _commit(context, request, kept)
        for commit, code in zip(kept, codes, strict=True):
            response.put(commit.topic, commit.partition, code)
    return response.message


def _known(
    node: Node, topic: TxnOffsetCommitRequestTopic, response: "_Response"
) -> Iterable[Commit]:
    info = node.topics.find(topic.name)
    for each in topic.partitions:
        if info is None or not 0 <= each.partition_index < info.partitions:
            response.put(topic.name, each.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            yield Commit(
                info.name,
                each.partition_index,
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata,
                info.topic_id or NO_UUID,
            )


async def _commit(
    context: RequestContext, request: TxnOffsetCommitRequest, commits: Sequence[Commit]
) -> Sequence[int]:
    groups, group_id = context.node.groups, request.group_id
    producer = (request.producer_id, request.producer_epoch)
    code = groups.shards.code_for(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
    if code is not ErrorCode.NONE:
        return [code] * len(commits)
    adds = context.version >= ADDS_SINCE
    place, guard = groups.shards.guard(group_id, producer, raises_epochs=adds)
    if guard is not None:
        coordinator = context.node.transactions
        codes = await coordinator.verify_or_add(
            request.transactional_id, *producer, [place], add=adds
        )
        refused = known_error(codes[place], knows_abortable=context.version >= ABORTABLE_SINCE)
        if refused is not ErrorCode.NONE:
            return [refused] * len(commits)
        code = groups.shards.code_for(group_id)  # it may have been lost meanwhile
        if code is not ErrorCode.NONE:
            return [code] * len(commits)
    asked = CommitAsked(
        group_id=group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        is_late_version=False,
        is_transactional=True,
    )
    left = [each for each in commits if _is_there(context.node, each)]
    told = await arrival(groups.transactional.commit(asked, producer, guard, left))
    codes_left = dict(zip(left, told, strict=True))
    return [codes_left.get(each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for each in commits]


def _is_there(node: Node, commit: Commit) -> bool:
    """Whether a topic was not deleted meanwhile; there may be another one of its name."""
    info = node.topics.find(commit.topic)
    return info is not None and (info.topic_id or NO_UUID) == commit.topic_id


class _Response:
    """An answer under construction: topics in the order in which they got their first code."""

    def __init__(self) -> None:
        self._topics: dict[str, TxnOffsetCommitResponseTopic] = {}
        self.message = TxnOffsetCommitResponse()

    def put(self, name: str, partition: int, code: int) -> None:
        """Say how it went with one partition."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TxnOffsetCommitResponseTopic(name=name)
            self.message.topics.append(topic)
        topic.partitions.append(
            TxnOffsetCommitResponsePartition(partition_index=partition, error_code=code)
        )
