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
# Of each topic what is chosen of each partition, and which of them were refused.
_Named: TypeAlias = dict[tuple[str, UUID], tuple[dict[int, PartitionProduceData], set[int]]]


def named_once(request: ProduceRequest, is_refused: IsRefused) -> ProduceRequest:
    """The request with each topic and partition named once, topics without any left out.

    Where it is so already it is the request itself.

    Args:
        request: It is not changed.
        is_refused: Asked about each part once, where any is named more than once.
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
        chosen, refused = named.setdefault((topic.name, topic.topic_id), ({}, set()))
        for data in topic.partition_data:
            if is_refused(topic, data):
                refused.add(data.index)
                chosen[data.index] = data
            elif data.index not in refused:
                chosen[data.index] = data
    return [
        TopicProduceData(name=name, topic_id=topic_id, partition_data=list(chosen.values()))
        for (name, topic_id), (chosen, _) in named.items()
    ]
