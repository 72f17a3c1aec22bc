"""ListOffsets: where logs begin and end, and where a time does.

Source: Kafka's protocol guide, API 2; KIP-79, KIP-734 (-3), KIP-405 (-4), KIP-1005 (-5),
KIP-1023 (-6).
"""

from collections import Counter
from typing import Final

from tidelog.errors import StorageFailure, TidelogError
from tidelog.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.server.partitions import Partition
from tidelog.server.requests import RequestContext
from tidelog.types import NO_LEADER_EPOCH, IsolationLevel, OffsetAndTimestamp

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
# Since which version a special time may be asked for.
SPECIAL_SINCE: Final = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}

UNKNOWN_SERVER_ERROR: Final = -1
UNKNOWN_TOPIC: Final = 3
UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
STORAGE_ERROR: Final = 56
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75

Found = ListOffsetsPartitionResponse


def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """One answer for each partition that was asked about."""
    counts = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    topics = []
    for topic in request.topics:
        found = [
            _refused(asked, INVALID_REQUEST)
            if counts[topic.name, asked.partition_index] > 1
            else _one(context, request, topic.name, asked)
            for asked in topic.partitions
        ]
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
    return ListOffsetsResponse(topics=topics)


def _refused(asked: ListOffsetsPartition, code: int) -> Found:
    return Found(partition_index=asked.partition_index, error_code=code)


def _one(
    context: RequestContext, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition
) -> Found:
    if asked.timestamp < 0 and context.version < SPECIAL_SINCE.get(asked.timestamp, 1 << 15):
        return _refused(asked, UNSUPPORTED_VERSION)
    try:
        partition = context.node.partitions.get(topic, asked.partition_index)
        code = _epoch_problem(partition, asked.current_leader_epoch)
        return _refused(asked, code) if code else _answer(partition, request, asked)
    except StorageFailure:
        return _refused(asked, STORAGE_ERROR)
    except TidelogError as error:
        return _refused(asked, UNKNOWN_SERVER_ERROR if error.code is None else error.code)


def _epoch_problem(partition: Partition, epoch: int) -> int:
    if epoch in (NO_LEADER_EPOCH, partition.log.leader_epoch):
        return 0
    return FENCED_LEADER_EPOCH if epoch < partition.log.leader_epoch else UNKNOWN_LEADER_EPOCH


def _answer(
    partition: Partition, request: ListOffsetsRequest, asked: ListOffsetsPartition
) -> Found:
    log = partition.log
    end = (
        log.log_end_offset
        if request.replica_id >= 0
        else partition.end_offset(IsolationLevel(1 if request.isolation_level == 1 else 0))
    )
    found: OffsetAndTimestamp | None
    match asked.timestamp:
        case -1:
            found = OffsetAndTimestamp(end, -1, log.leader_epoch)
        case -2:
            found = _start(partition, log.log_start_offset)
        case -4:
            found = _start(partition, log.local_start_offset)
        case -5 | -6:
            found = None
        case -3:
            found = _visible(log.max_timestamp(), end)
        case timestamp:
            found = _visible(log.offset_for_time(timestamp), end)
    if found is None:
        return _refused(asked, 0)
    return Found(
        partition_index=asked.partition_index,
        error_code=0,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=NO_LEADER_EPOCH if found.leader_epoch is None else found.leader_epoch,
    )


def _start(partition: Partition, offset: int) -> OffsetAndTimestamp:
    """A start offset and its epoch: where no record is left it is the leader's, as in Kafka."""
    log = partition.log
    epoch = log.leader_epochs.epoch_for(offset)
    if epoch is None and offset == log.log_end_offset:
        epoch = log.leader_epoch
    return OffsetAndTimestamp(offset, -1, epoch)


def _visible(found: OffsetAndTimestamp | None, end: int) -> OffsetAndTimestamp | None:
    """What the asker may see."""
    return found if found is not None and found.offset < end else None
