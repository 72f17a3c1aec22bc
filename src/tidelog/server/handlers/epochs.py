"""OffsetForLeaderEpoch: where an epoch ends, by which a follower finds where logs part.

Source: Kafka's protocol guide, API 23; KIP-101, KIP-320.
"""

from typing import Final

from tidelog.errors import StorageFailure, TidelogError
from tidelog.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tidelog.server.epoch_checks import end_of_epoch, epoch_problem
from tidelog.server.requests import RequestContext

UNKNOWN_TOPIC: Final = 3
STORAGE_ERROR: Final = 56


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
    try:
        log = context.node.partitions.get(topic, asked.partition).log
    except StorageFailure:
        return EpochEndOffset(partition=asked.partition, error_code=STORAGE_ERROR)
    except TidelogError:
        return EpochEndOffset(partition=asked.partition, error_code=UNKNOWN_TOPIC)
    code = epoch_problem(log, asked.current_leader_epoch)
    if code:
        return EpochEndOffset(partition=asked.partition, error_code=code)
    epoch, end = end_of_epoch(log, asked.leader_epoch)
    return EpochEndOffset(
        partition=asked.partition, error_code=0, leader_epoch=epoch, end_offset=end
    )
