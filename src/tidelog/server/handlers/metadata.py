"""Metadata: the broker and its topics; topics that are not there may be created by asking.

A topic's answer has its partitions' leader epochs, which are read for it: at once where they are
few, else a slice at a time, and the answer comes later.

Source: Kafka's protocol guide, API 3; KIP-516 (topic ids), KIP-430 (authorized operations).
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID
from weakref import WeakKeyDictionary

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
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
from tidelog.server import topic_changes, topics
from tidelog.server.errors import Refusal
from tidelog.server.leader_epochs import AT_ONCE, numbers_of, read_in_slices, unread
from tidelog.server.node import Node
from tidelog.server.requests import Answer, Long, RequestContext
from tidelog.server.slices import Slices
from tidelog.server.topic_rules import NEW_PARTITIONS_MAX, ensure_name
from tidelog.storage.files import CLUSTER_METADATA_TOPIC
from tidelog.storage.topic_info import TopicInfo

# Names may be null, and ids count, from this version on.
FIRST_WITH_IDS: Final = 12
# Everything that Kafka's AclOperation lets anybody do to a topic (READ .. ALTER_CONFIGS) and to a
# cluster, as bits by the operation's code; there is no authorizer, so all is allowed.
TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
# Of a request for all topics; others are answered part by part (`long_requests`).
TOPICS_AT_ONCE: Final = 1000


@dataclass(slots=True)
class Found:
    """A topic that was asked for: what there is of it, or the answer that says why not."""

    info: TopicInfo | None
    missing: MetadataTopic | None = None


def metadata(context: RequestContext, request: MetadataRequest) -> Answer:
    """The broker and the topics asked for."""
    asked = request.topics
    if asked is not None and context.version < FIRST_WITH_IDS and any(map(_has_no_name, asked)):
        return _refused(asked)
    found = _look_up(context, asked)
    wanted = _to_create(context, request, found)
    infos = [each.info for each in found if each.info is not None]
    stale = [info for info in infos if not _is_fresh(context.node, info)]
    unknown = unread(context.node, stale)
    if not wanted and len(unknown) <= AT_ONCE and len(found) <= TOPICS_AT_ONCE:
        return _answer(context, request, [_topic(context.node, each) for each in found])
    return _later(context, request, wanted)


async def _later(
    context: RequestContext, request: MetadataRequest, wanted: Sequence[str]
) -> MetadataResponse | Long:
    """Create and read what it takes, then answer; what is new is told to who asks again.

    So does Kafka: there are clients that take the answer for what was there when they asked.
    """
    node = context.node
    for name in wanted:
        await _create(node, name)
    found = _look_up(context, request.topics)
    infos = [each.info for each in found if each.info is not None]
    await read_in_slices(node, unread(node, infos))
    told, slices = [], Slices(node.env.clock)
    for each in _without(wanted, _look_up(context, request.topics)):
        told.append(_topic(node, each))
        await slices.rest()
    response = _answer(context, request, told)
    return Long(response, told) if len(told) > TOPICS_AT_ONCE else response


async def _create(node: Node, name: str) -> None:
    """Make a topic, or try to; those of the broker's own are made by who keeps them."""
    match name:
        case topics.OFFSETS_TOPIC:
            await node.groups.shards.ensure_topic()
        case topics.TRANSACTIONS_TOPIC:
            await node.transactions.log.ensure_topic()
        case topics.SHARE_STATE_TOPIC:
            await node.shares.states.ensure_topic()
        case _:
            with suppress(TidelogError):  # the client asks again
                await topic_changes.create(node, name, node.config.num_partitions)


def _without(names: Sequence[str], found: Sequence[Found]) -> list[Found]:
    """What was found, and of topics with these names that they are not there."""
    hidden = frozenset(names)
    return [
        _unknown(each.info.name) if each.info is not None and each.info.name in hidden else each
        for each in found
    ]


def _answer(
    context: RequestContext, request: MetadataRequest, told: list[MetadataTopic]
) -> MetadataResponse:
    node, here = context.node, context.here
    wants_cluster = request.include_cluster_authorized_operations
    if request.include_topic_authorized_operations:
        for topic in told:
            if (
                topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID
            ):  # as Kafka: of what is not there, too
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    return MetadataResponse(
        brokers=[
            MetadataBroker(
                node_id=node.node_id, host=here.host, port=here.port, rack=node.config.broker_rack
            )
        ],
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=told,
        cluster_authorized_operations=CLUSTER_OPERATIONS if wants_cluster else NO_OPERATIONS,
    )


def _has_no_name(topic: MetadataRequestTopic) -> bool:
    return topic.name is None or topic.topic_id != NO_UUID


def _refused(asked: Iterable[MetadataRequestTopic]) -> MetadataResponse:
    """Versions before 12 know names alone; as Kafka, nothing else is said then."""
    return MetadataResponse(
        topics=[
            MetadataTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in asked
        ]
    )


# -- which topics --------------------------------------------------------------------------------


def _look_up(context: RequestContext, asked: Sequence[MetadataRequestTopic] | None) -> list[Found]:
    """What was asked for, each topic once; where one is named by its id, only ids count."""
    node = context.node
    if asked is None or (context.version == 0 and not asked):
        return [Found(info) for info in node.topics.all().values()]
    ids = {topic.topic_id: None for topic in asked if topic.topic_id != NO_UUID}
    if ids or any(topic.name is None for topic in asked):
        return [_by_id(node, topic_id) for topic_id in ids or {NO_UUID: None}]
    return [
        _by_name(node, name) for name in {topic.name: None for topic in asked} if name is not None
    ]


def _by_id(node: Node, topic_id: UUID) -> Found:
    info = node.topics.find_by_id(topic_id)
    if info is not None:
        return Found(info)
    return Found(
        None, MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    )


def _by_name(node: Node, name: str) -> Found:
    info = node.topics.find(name)
    if info is not None:
        return Found(info)
    try:
        ensure_name(name)
    except Refusal as why:
        return Found(None, MetadataTopic(error_code=why.error_code, name=name))
    return _unknown(name)


def _unknown(name: str) -> Found:
    is_internal = name in topics.INTERNAL_TOPICS
    return Found(
        None,
        MetadataTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, is_internal=is_internal
        ),
    )


def _to_create(
    context: RequestContext, request: MetadataRequest, found: Iterable[Found]
) -> list[str]:
    """Topics that are made because somebody asks for them."""
    config = context.node.config
    if not request.allow_auto_topic_creation or not config.auto_create_topics_enable:
        return []
    names = [
        each.missing.name
        for each in found
        if each.missing is not None
        and each.missing.name is not None
        and each.missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        and each.missing.name != CLUSTER_METADATA_TOPIC
    ]
    # As CreateTopics refuses so many at once, none is made.
    return names if len(names) * config.num_partitions <= NEW_PARTITIONS_MAX else []


# -- what is said of them ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Described:
    """A topic's partitions as they were last told, and what that rested on."""

    info: TopicInfo
    epoch_changes: int
    partitions: list[MetadataPartition]


# Clients ask again and again, and of thousands of partitions each answer would take long.
_DESCRIBED: Final[WeakKeyDictionary[Node, dict[str, _Described]]] = WeakKeyDictionary()


def _topic(node: Node, found: Found) -> MetadataTopic:
    if found.info is None:
        assert found.missing is not None
        return found.missing
    info = found.info
    return MetadataTopic(
        error_code=0,
        name=info.name,
        topic_id=info.topic_id or NO_UUID,
        is_internal=node.topics.is_internal(info.name),
        partitions=_partitions(node, info),
    )


def _is_fresh(node: Node, info: TopicInfo) -> bool:
    known = _DESCRIBED.setdefault(node, {}).get(info.name)
    changes = node.partitions.epoch_changes
    return known is not None and known.info is info and known.epoch_changes == changes


def _partitions(node: Node, info: TopicInfo) -> list[MetadataPartition]:
    kept = _DESCRIBED.setdefault(node, {})
    if not _is_fresh(node, info):
        if len(kept) > len(node.topics.all()):
            kept.clear()  # some were deleted
        partitions = [_partition(node, info.name, number) for number in numbers_of(info)]
        kept[info.name] = _Described(info, node.partitions.epoch_changes, partitions)
    return kept[info.name].partitions


def _partition(node: Node, topic: str, number: int) -> MetadataPartition:
    return MetadataPartition(
        error_code=0,
        partition_index=number,
        leader_id=node.node_id,
        leader_epoch=node.partitions.leader_epoch(topic, number),
        replica_nodes=[node.node_id],
        isr_nodes=[node.node_id],
    )
