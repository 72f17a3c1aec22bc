"""DescribeCluster and DescribeTopicPartitions.

Source: Kafka's protocol guide, APIs 60 and 75; KIP-700, KIP-919 (endpoint types), KIP-966.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.cluster import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.protocol.messages.common import NO_OPERATIONS
from tidelog.protocol.wire import NO_UUID
from tidelog.server.errors import Refusal
from tidelog.server.handlers.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from tidelog.server.leader_epochs import numbers_of, read_in_slices
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext
from tidelog.server.seen_topics import sees_topics
from tidelog.server.topic_rules import ensure_name
from tidelog.storage.topic_info import TopicInfo
from tidelog.types import TopicPartition

BROKERS: Final = 1
CONTROLLERS: Final = 2
# Kafka's `max.request.partition.size.limit`.
PARTITIONS_MAX: Final = 2000


def describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """This broker."""
    node, here, kind = context.node, context.here, request.endpoint_type
    if kind == CONTROLLERS:
        text = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type"
            " CONTROLLER"
        )
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, error_message=text
        )
    if kind != BROKERS:
        text = f"Unsupported endpoint type {kind}"
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=text
        )
    wants = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id, host=here.host, port=here.port, rack=node.config.broker_rack
            )
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if wants else NO_OPERATIONS,
    )


# -- DescribeTopicPartitions ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A topic's part of one answer: partitions [first, end)."""

    name: str
    first: int = 0
    end: int = 0


async def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Partitions in the order of names and numbers, as many as fit, and where to go on."""
    node = context.node
    try:
        names = _names(node, request, sees_topics(context))
    except Refusal as why:
        failed = [
            DescribedTopic(error_code=why.error_code, name=name)
            for name in sorted({topic.name for topic in request.topics})
        ]
        return DescribeTopicPartitionsResponse(topics=failed)
    limit = max(min(request.response_partition_limit, PARTITIONS_MAX), 1)
    counts = {name: _count(node.topics.find(name)) for name in names}
    parts, cursor = split(names, counts, request.cursor, limit)
    await read_in_slices(
        node,
        [
            TopicPartition(part.name, number)
            for part in parts
            for number in range(part.first, part.end)
        ],
    )
    described = [_described(node, part) for part in parts]
    return DescribeTopicPartitionsResponse(topics=described, next_cursor=cursor)


def _count(info: TopicInfo | None) -> int:
    return 0 if info is None else info.partitions


def _names(
    node: Node, request: DescribeTopicPartitionsRequest, may_see: Callable[[str], bool]
) -> list[str]:
    """The topics from the cursor on, sorted, of all those that may be seen; raises Refusal."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        text = "the cursor's partition is negative"
        raise Refusal(ErrorCode.INVALID_REQUEST, text)
    asked = {topic.name for topic in request.topics}
    first = "" if cursor is None else cursor.topic_name
    known = asked or filter(may_see, node.topics.names())
    names = sorted(name for name in known if name >= first)
    if asked and cursor is not None and first not in asked:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, "the cursor's topic is not among those that are asked for"
        )
    return names


def split(
    names: Sequence[str], counts: "dict[str, int]", start: Cursor | None, limit: int
) -> tuple[list[Part], Cursor | None]:
    """What goes into one answer of at most `limit` partitions, and where the next one begins.

    Args:
        names: Topics, sorted, from the cursor's on.
        counts: How many partitions each has.
        start: The cursor; its partition counts for its topic alone.
        limit: At least 1.
    """
    parts: list[Part] = []
    left = limit
    for name in names:
        if not left:
            return parts, Cursor(topic_name=name, partition_index=0)
        is_first = start is not None and start.topic_name == name
        first = min(start.partition_index, counts[name]) if start is not None and is_first else 0
        end = min(counts[name], first + left)
        parts.append(Part(name, first, end))
        left -= end - first
        if end < counts[name]:
            return parts, Cursor(topic_name=name, partition_index=end)
    return parts, None


def _described(node: Node, part: Part) -> DescribedTopic:
    try:
        ensure_name(part.name)
        info = node.topics.find(part.name)
        if info is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except Refusal as why:
        return DescribedTopic(
            error_code=why.error_code,
            name=part.name,
            topic_authorized_operations=TOPIC_OPERATIONS,
        )
    there = set(numbers_of(info))
    return DescribedTopic(
        error_code=0,
        name=info.name,
        topic_id=info.topic_id or NO_UUID,
        is_internal=node.topics.is_internal(info.name),
        partitions=[
            _partition(node, info.name, number)
            for number in range(part.first, part.end)
            if number in there
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(node: Node, topic: str, number: int) -> DescribedPartition:
    return DescribedPartition(
        error_code=0,
        partition_index=number,
        leader_id=node.node_id,
        leader_epoch=node.partitions.leader_epoch(topic, number),
        replica_nodes=[node.node_id],
        isr_nodes=[node.node_id],
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
