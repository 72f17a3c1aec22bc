"""OffsetForLeaderEpoch: where an epoch ends, by which a follower finds where logs part.

Source: Kafka's protocol guide, API 23; KIP-101, KIP-320.
"""

from collections.abc import Awaitable

from tidelog.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tidelog.server.asked_partitions import find_partition, opened_first
from tidelog.server.epoch_checks import end_of_epoch, epoch_problem
from tidelog.server.requests import RequestContext


def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    """The largest epoch not above the one asked, and its end."""
    missing = context.node.partitions.unopened(
        (topic.topic, asked.partition) for topic in request.topics for asked in topic.partitions
    )
    if missing:
        return opened_first(context.node, missing, lambda: _answers(context, request))
    return _answers(context, request)


def _answers(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_one(context, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _one(context: RequestContext, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    found = find_partition(context.node, topic, asked.partition)
    if isinstance(found, int):
        return EpochEndOffset(partition=asked.partition, error_code=found)
    log = found.log
    code = epoch_problem(log, asked.current_leader_epoch)
    if code:
        return EpochEndOffset(partition=asked.partition, error_code=code)
    epoch, end = end_of_epoch(log, asked.leader_epoch)
    return EpochEndOffset(
        partition=asked.partition, error_code=0, leader_epoch=epoch, end_offset=end
    )
