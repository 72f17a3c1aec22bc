"""DeleteRecords: the start of a log moves up. Source: Kafka's protocol guide, API 21; KIP-107."""

from collections.abc import Awaitable

from tidelog.error_codes import ErrorCode
from tidelog.errors import StorageFailure, TidelogError
from tidelog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tidelog.server.node import Node
from tidelog.server.partitions import Partition
from tidelog.server.requests import RequestContext
from tidelog.storage.trimming import HIGH_WATERMARK
from tidelog.types import NO_OFFSET


def delete_records(
    context: RequestContext, request: DeleteRecordsRequest
) -> Awaitable[DeleteRecordsResponse]:
    """The new starts, once they are durable."""
    return _delete(context.node, request)


async def _delete(node: Node, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    topics = []
    partitions, named = node.partitions, _named_once(request)
    names = [(topic, number) for topic, places in named.items() for number in places]
    await partitions.open_beside(partitions.unopened(names), node.work)
    await partitions.holds.wait(named)
    for topic, places in named.items():
        results = [await _one(node, topic, asked) for asked in places.values()]
        topics.append(DeleteRecordsTopicResult(name=topic, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def _named_once(
    request: DeleteRecordsRequest,
) -> dict[str, dict[int, DeleteRecordsPartition]]:
    """Each partition as it was named last; topics without partitions are left out, as by Kafka."""
    found: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            found.setdefault(topic.name, {})[asked.partition_index] = asked
    return found


async def _one(
    node: Node, topic: str, asked: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    try:
        partition = node.partitions.get(topic, asked.partition_index)
        if node.topics.is_internal(topic):
            return _result(asked, ErrorCode.INVALID_TOPIC_EXCEPTION)
        start = _moved(partition, asked.offset)
        if start is None:
            return _result(asked, ErrorCode.OFFSET_OUT_OF_RANGE)
        await partition.flushed()
    except StorageFailure:
        return _result(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    except TidelogError as error:
        return _result(asked, ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code)
    return _result(asked, 0, start)


def _moved(partition: Partition, offset: int) -> int | None:
    """The new log start; None where the offset is none that can be deleted up to."""
    end = partition.high_watermark
    target = end if offset == HIGH_WATERMARK else offset
    if not 0 <= target <= end:
        # Asked for its policy all the same: Kafka looks at that first.
        partition.log.delete_records(partition.log.log_start_offset)
        return None
    return partition.log.delete_records(target)


def _result(
    asked: DeleteRecordsPartition, code: int, start: int = NO_OFFSET
) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=start, error_code=code
    )
