"""DescribeProducers: which producers a partition remembers, and which transactions are open in it.

Source: Kafka's protocol guide, API 61; KIP-664.
"""

from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    ProducerState,
)
from tidelog.server.asked_partitions import find_partition
from tidelog.server.errors import Refusal
from tidelog.server.requests import MANY, Long, RequestContext
from tidelog.server.slices import in_slices
from tidelog.server.topic_rules import ensure_name
from tidelog.storage.producer_entry import ProducerEntry
from tidelog.types import NO_OFFSET

NO_TOPIC: Final = "This server does not host this topic-partition."


async def describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse | Long:
    """The producers of each partition."""
    node = context.node
    missing = node.partitions.unopened(
        (topic.name, number) for topic in request.topics for number in topic.partition_indexes
    )
    if missing:
        await node.partitions.open_beside(missing, node.work)
    topics = [
        DescribeProducersTopicResponse(
            name=topic.name,
            partitions=[
                await _partition(context, topic.name, number) for number in topic.partition_indexes
            ],
        )
        for topic in request.topics
    ]
    response = DescribeProducersResponse(topics=topics)
    count = sum(len(each.active_producers) for topic in topics for each in topic.partitions)
    return Long(response, topics) if count > MANY else response


async def _partition(
    context: RequestContext, topic: str, number: int
) -> DescribeProducersPartitionResponse:
    found = find_partition(context.node, topic, number)
    if isinstance(found, int):
        why = _no_topic(topic) if context.node.topics.find(topic) is None else Refusal(found)
        return DescribeProducersPartitionResponse(
            partition_index=number, error_code=why.error_code, error_message=why.message
        )
    producers = map(_producer, found.log.producer_states().producers.values())  # of a copy
    return DescribeProducersPartitionResponse(
        partition_index=number,
        error_code=0,
        active_producers=await in_slices(context.node.env.clock, producers),
    )


def _no_topic(topic: str) -> Refusal:
    """Why there is none of that name."""
    try:
        ensure_name(topic)
    except Refusal as why:
        return why
    return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)


def _producer(entry: ProducerEntry) -> ProducerState:
    first = entry.txn_first_offset
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=NO_OFFSET if first is None else first,
    )
