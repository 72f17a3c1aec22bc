"""Metadata: the broker and its topics; topics that are not there may be created by asking.

Source: Kafka's protocol guide, API 3; KIP-516 (topic ids), KIP-430 (authorized operations).
"""

from collections.abc import Iterable
from typing import Final

from tidelog.errors import InvalidTopic, TidelogError, TopicExists
from tidelog.protocol.messages.common import NO_OPERATIONS
from tidelog.protocol.messages.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext
from tidelog.storage.files import check_topic_name
from tidelog.storage.topics import TopicInfo

UNKNOWN_TOPIC: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
INVALID_TOPIC: Final = 17
UNKNOWN_TOPIC_ID: Final = 100
# Everything that Kafka's AclOperation lets anybody do to a topic (READ .. ALTER_CONFIGS) and to a
# cluster, as bits by the operation's code; there is no authorizer, so all is allowed.
TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """The broker and the topics asked for."""
    node = context.node
    topics = list(_topics(context, request))
    if request.include_topic_authorized_operations:
        for topic in topics:
            if not topic.error_code:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    return MetadataResponse(
        brokers=[
            MetadataBroker(node_id=node.node_id, host=node.address.host, port=node.address.port)
        ],
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_OPERATIONS
        ),
    )


def _topics(context: RequestContext, request: MetadataRequest) -> Iterable[MetadataTopic]:
    node = context.node
    asked = request.topics
    if asked is None or (context.version == 0 and not asked):
        return [_described(node, info) for info in node.topics.all().values()]
    may_create = request.allow_auto_topic_creation and node.config.auto_create_topics_enable
    return [_one(node, topic, may_create=may_create) for topic in _distinct(asked)]


def _distinct(asked: Iterable[MetadataRequestTopic]) -> Iterable[MetadataRequestTopic]:
    """Each topic once, in the order of the first time it was named."""
    return {(topic.topic_id, topic.name): topic for topic in asked}.values()


def _one(node: Node, asked: MetadataRequestTopic, *, may_create: bool) -> MetadataTopic:
    if asked.name is None:
        info = node.topics.find_by_id(asked.topic_id)
        if info is None:
            return MetadataTopic(error_code=UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        return _described(node, info)
    info = node.topics.find(asked.name)
    if info is not None:
        return _described(node, info)
    return _missing(node, asked.name, may_create=may_create)


def _missing(node: Node, name: str, *, may_create: bool) -> MetadataTopic:
    """A topic that is not there: created now, or the error that says why not."""
    try:
        check_topic_name(name)
        if may_create and not node.topics.is_internal(name):
            return _described(node, node.topics.create(name))
    except (InvalidTopic, TopicExists):
        return MetadataTopic(error_code=INVALID_TOPIC, name=name)
    except TidelogError:
        # Kafka's answer while a creation has not come through: the client asks again.
        return MetadataTopic(error_code=LEADER_NOT_AVAILABLE, name=name)
    return MetadataTopic(
        error_code=UNKNOWN_TOPIC, name=name, is_internal=node.topics.is_internal(name)
    )


def _described(node: Node, info: TopicInfo) -> MetadataTopic:
    numbers = info.present if info.foreign else range(info.partitions)
    return MetadataTopic(
        error_code=0,
        name=info.name,
        topic_id=info.topic_id or NO_UUID,
        is_internal=node.topics.is_internal(info.name),
        partitions=[_partition(node, info.name, number) for number in numbers],
    )


def _partition(node: Node, topic: str, number: int) -> MetadataPartition:
    return MetadataPartition(
        error_code=0,
        partition_index=number,
        leader_id=node.node_id,
        leader_epoch=node.partitions.leader_epoch(topic, number),
        replica_nodes=[node.node_id],
        isr_nodes=[node.node_id],
    )
