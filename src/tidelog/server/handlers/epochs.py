"""OffsetForLeaderEpoch: where an epoch ends, by which a follower finds where logs part.

Source: Kafka's protocol guide, API 23; KIP-101, KIP-320.
"""

from tidelog.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tidelog.server.asked_partitions import find_partition
from tidelog.server.epoch_checks import end_of_epoch, epoch_problem
from tidelog.server.requests import RequestContext


def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """The largest epoch not above the one asked, and its end."""
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
