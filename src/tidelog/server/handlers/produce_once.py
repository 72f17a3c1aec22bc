"""Produce: a request that names a partition, or a topic, more than once.

As in Kafka the last records that are named for a partition take the place of the others, and each
partition is answered once. Where some of a partition's records are refused before a log sees them,
the refusal is the answer; then none are appended (Kafka appends the last sound ones, unsaid).

Source: Kafka 4.3's KafkaApis.handleProduceRequest.
"""

from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

# Whether a partition's records are refused before a log sees them.
IsRefused: TypeAlias = Callable[[TopicProduceData, PartitionProduceData], bool]
_Named: TypeAlias = dict[tuple[str, UUID], tuple[TopicProduceData, dict[int, PartitionProduceData]]]


def named_once(request: ProduceRequest, is_refused: IsRefused) -> ProduceRequest:
    """The request with each topic and partition named once, topics without any left out.

    Where it is so already it is the request itself.

    Args:
        request: It is not changed.
        is_refused: Asked only about what is named more than once.
    """
    topics = request.topic_data
    if len({(topic.name, topic.topic_id) for topic in topics}) == len(topics) and all(
        0 < len({data.index for data in topic.partition_data}) == len(topic.partition_data)
        for topic in topics
    ):
        return request
    return ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=_merged(topics, is_refused),
    )


def _merged(topics: list[TopicProduceData], is_refused: IsRefused) -> list[TopicProduceData]:
    """Each topic with all of its partitions, in the order in which they were named first."""
    named: _Named = {}
    for topic in topics:
        if not topic.partition_data:
            continue
        _, chosen = named.setdefault((topic.name, topic.topic_id), (topic, {}))
        for data in topic.partition_data:
            earlier = chosen.get(data.index)
            if earlier is None or is_refused(topic, data) or not is_refused(topic, earlier):
                chosen[data.index] = data
    return [
        TopicProduceData(
            name=topic.name, topic_id=topic.topic_id, partition_data=list(chosen.values())
        )
        for topic, chosen in named.values()
    ]
