"""ApiVersions, Metadata, DescribeCluster and DescribeTopicPartitions.

Metadata can create missing topics. It returns leader epochs, which may have to be read from files.
If more than a few epochs have to be read, the broker reads them in slices and responds later.

Source: Kafka's protocol guide, APIs 3, 18, 60 and 75; KIP-430 (authorized operations), KIP-511,
KIP-516 (topic ids), KIP-584 (features), KIP-700, KIP-890, KIP-919 (endpoint types), KIP-966,
KIP-1022 (features that begin at 0).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from tidelog import types
from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages import API_VERSIONS
from tidelog.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    FinalizedFeature,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    SupportedFeature,
)
from tidelog.protocol.schema import NO_OPERATIONS
from tidelog.protocol.wire import NO_UUID
from tidelog.server.admin.topic_rules import NEW_PARTITIONS_MAX, ensure_name
from tidelog.server.api import topic_changes
from tidelog.server.api.context import Answer, LargeResponse, RequestContext, sees_topics
from tidelog.server.api.guards import Access, Denied, Guarded, failed_item
from tidelog.server.api.node import Node
from tidelog.server.api.table import ROWS
from tidelog.server.partitions.partitions import numbers_of
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.loop import in_slices
from tidelog.server.security.operations import Operation, ResourceType
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.files import CLUSTER_METADATA_TOPIC
from tidelog.types import TopicPartition

# First version in which names can be null and topics can be named by id.
FIRST_WITH_IDS: Final = 12

# Bit sets of the operations that apply to a topic, and of the operations that apply to the cluster.
# Bit N stands for the operation with code N in Kafka's AclOperation (3 is READ, 11 is
# ALTER_CONFIGS). Without an authorizer, clients may perform all of these operations.
TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))

CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))

# Maximum number of topics in a response that is made in one step. A longer response to a request
# for all topics is made in slices. A request that names more topics is answered in parts
# (`long_requests`).
TOPICS_AT_ONCE: Final = 1000

# Maximum number of leader epochs that are read on the event loop.
EPOCHS_AT_ONCE: Final = 16


# Result of a topic's lookup: the topic, or the error of a missing topic.
_Lookup: TypeAlias = TopicInfo | MetadataTopic


def metadata(context: RequestContext, request: MetadataRequest) -> Answer:
    """Describe the broker and the requested topics. Missing topics may be created."""
    topics = request.topics
    if topics is not None and context.version < FIRST_WITH_IDS and any(map(_has_no_name, topics)):
        return _refused(topics)
    lookups = _look_up(context, topics)
    new_topics = _to_create(context, request, lookups)
    infos = [each for each in lookups if isinstance(each, TopicInfo)]
    stale = [info for info in infos if not _is_fresh(context.node, info)]
    unknown = context.node.partitions.unread_epochs(stale)
    if not new_topics and len(unknown) <= EPOCHS_AT_ONCE and len(lookups) <= TOPICS_AT_ONCE:
        return _response(context, request, [_topic(context.node, each) for each in lookups])
    return _later(context, request, new_topics)


async def _later(
    context: RequestContext, request: MetadataRequest, new_topics: Sequence[str]
) -> MetadataResponse | LargeResponse:
    """Create topics and read leader epochs, then respond.

    As in Kafka, the response still reports the new topics as missing; only responses to later
    requests contain them. Some clients expect a response to show the state at the time of the
    request.
    """
    node = context.node
    for name in new_topics:
        await _create(node, name)
    lookups = _look_up(context, request.topics)
    infos = [each for each in lookups if isinstance(each, TopicInfo)]
    await node.partitions.read_epochs(node.partitions.unread_epochs(infos), node.env.clock)
    lookups = _without(new_topics, _look_up(context, request.topics))
    topics = await in_slices(node.env.clock, (_topic(node, each) for each in lookups))
    response = _response(context, request, topics)
    return LargeResponse(response, topics) if len(topics) > TOPICS_AT_ONCE else response


async def _create(node: Node, name: str) -> None:
    """Try to create a topic. An internal topic is created by its coordinator."""
    match name:
        case types.OFFSETS_TOPIC:
            await node.groups.topic.ensure_topic()
        case types.TRANSACTIONS_TOPIC:
            await node.transactions.topic.ensure_topic()
        case types.SHARE_STATE_TOPIC:
            await node.shares.states.topic.ensure_topic()
        case _:
            with suppress(TidelogError):  # the client retries
                await topic_changes.create(node, name, node.config.num_partitions)


def _without(names: Sequence[str], lookups: Sequence[_Lookup]) -> list[_Lookup]:
    """Return the lookups, but report the topics with these names as missing."""
    hidden = frozenset(names)
    return [
        _unknown(each.name) if isinstance(each, TopicInfo) and each.name in hidden else each
        for each in lookups
    ]


def _response(
    context: RequestContext, request: MetadataRequest, topics: list[MetadataTopic]
) -> MetadataResponse:
    node, address = context.node, context.address
    with_operations = request.include_cluster_authorized_operations
    if request.include_topic_authorized_operations:
        for topic in topics:
            if (
                topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID
            ):  # as in Kafka, also for missing topics
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    return MetadataResponse(
        brokers=[
            MetadataBroker(
                node_id=node.node_id,
                host=address.host,
                port=address.port,
                rack=node.config.broker_rack,
            )
        ],
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NO_OPERATIONS,
    )


def _has_no_name(topic: MetadataRequestTopic) -> bool:
    return topic.name is None or topic.topic_id != NO_UUID


def _refused(topics: Iterable[MetadataRequestTopic]) -> MetadataResponse:
    """Refuse a request before version 12 in which a topic has an id or no name.

    All topics get INVALID_REQUEST. As in Kafka, all other fields of the response are empty.
    """
    return MetadataResponse(
        topics=[
            MetadataTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in topics
        ]
    )


# -- which topics --------------------------------------------------------------------------------


def _look_up(
    context: RequestContext, topics: Sequence[MetadataRequestTopic] | None
) -> list[_Lookup]:
    """Look up each requested topic once, or all topics if `topics` is None.

    In version 0 an empty list requests all topics, too. All names are ignored if any topic has an
    id, or has neither a name nor an id.
    """
    node = context.node
    if topics is None or (context.version == 0 and not topics):
        return [*node.topics.all().values()]
    ids = {topic.topic_id: None for topic in topics if topic.topic_id != NO_UUID}
    if ids or any(topic.name is None for topic in topics):
        return [_by_id(node, topic_id) for topic_id in ids or {NO_UUID: None}]
    return [
        _by_name(node, name) for name in {topic.name: None for topic in topics} if name is not None
    ]


def _by_id(node: Node, topic_id: UUID) -> _Lookup:
    missing = MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return node.topics.find_by_id(topic_id) or missing


def _by_name(node: Node, name: str) -> _Lookup:
    info = node.topics.find(name)
    if info is not None:
        return info
    try:
        ensure_name(name)
    except Refusal as refusal:
        return MetadataTopic(error_code=refusal.error_code, name=name)
    return _unknown(name)


def _unknown(name: str) -> MetadataTopic:
    code, is_internal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name in types.INTERNAL_TOPICS
    return MetadataTopic(error_code=code, name=name, is_internal=is_internal)


def _to_create(
    context: RequestContext, request: MetadataRequest, lookups: Iterable[_Lookup]
) -> list[str]:
    """Return the names of the missing topics that the request creates."""
    config = context.node.config
    if not request.allow_auto_topic_creation or not config.auto_create_topics_enable:
        return []
    names = [
        each.name
        for each in lookups
        if isinstance(each, MetadataTopic)
        and each.name is not None
        and each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        and each.name != CLUSTER_METADATA_TOPIC
    ]
    # CreateTopics would refuse so many partitions at once, so no topic is created.
    return names if len(names) * config.num_partitions <= NEW_PARTITIONS_MAX else []


# -- descriptions of topics ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Described:
    """Last description of a topic's partitions.

    The description is outdated if the topic's `info` or `epoch_changes` (a count) has changed
    since.
    """

    info: TopicInfo
    epoch_changes: int
    partitions: list[MetadataPartition]


# Cache of descriptions, because clients refresh metadata often, and describing thousands of
# partitions takes long.
_DESCRIBED: Final[WeakKeyDictionary[Node, dict[str, _Described]]] = WeakKeyDictionary()


def _topic(node: Node, lookup: _Lookup) -> MetadataTopic:
    if isinstance(lookup, MetadataTopic):
        return lookup
    return MetadataTopic(
        name=lookup.name,
        topic_id=lookup.topic_id or NO_UUID,
        is_internal=node.topics.is_internal(lookup.name),
        partitions=_partitions(node, lookup),
    )


def _is_fresh(node: Node, info: TopicInfo) -> bool:
    described = _DESCRIBED.setdefault(node, {}).get(info.name)
    changes = node.partitions.epoch_changes
    return described is not None and described.info is info and described.epoch_changes == changes


def _partitions(node: Node, info: TopicInfo) -> list[MetadataPartition]:
    described = _DESCRIBED.setdefault(node, {})
    if not _is_fresh(node, info):
        if len(described) > len(node.topics.all()):
            described.clear()  # some topics were deleted
        partitions = [_partition(node, info.name, number) for number in numbers_of(info)]
        described[info.name] = _Described(info, node.partitions.epoch_changes, partitions)
    return described[info.name].partitions


def _partition(node: Node, topic: str, number: int) -> MetadataPartition:
    return MetadataPartition(
        partition_index=number,
        leader_id=node.node_id,
        leader_epoch=node.partitions.leader_epoch(topic, number),
        replica_nodes=[node.node_id],
        isr_nodes=[node.node_id],
    )


BROKERS: Final = 1
CONTROLLERS: Final = 2

# Maximum number of partitions in a response to DescribeTopicPartitions: the default of Kafka's
# `max.request.partition.size.limit`.
PARTITIONS_MAX: Final = 2000


def describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Describe this broker."""
    node, address, kind = context.node, context.address, request.endpoint_type
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
    with_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id,
                host=address.host,
                port=address.port,
                rack=node.config.broker_rack,
            )
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NO_OPERATIONS,
    )


# -- DescribeTopicPartitions ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a topic in one response: partitions [first, end)."""

    name: str
    first: int = 0
    end: int = 0


async def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe partitions from the cursor on, in the order of topic name and partition number.

    If the limit is reached and partitions are left, the response has the next request's cursor.
    """
    node = context.node
    try:
        names = _names(node, request, sees_topics(context))
    except Refusal as refusal:
        failed = [
            DescribedTopic(error_code=refusal.error_code, name=name)
            for name in sorted({topic.name for topic in request.topics})
        ]
        return DescribeTopicPartitionsResponse(topics=failed)
    limit = max(min(request.response_partition_limit, PARTITIONS_MAX), 1)
    infos = {name: node.topics.find(name) for name in names}
    counts = {name: 0 if info is None else info.partitions for name, info in infos.items()}
    parts, cursor = split(names, counts, request.cursor, limit)
    partitions = [
        TopicPartition(part.name, number)
        for part in parts
        for number in range(part.first, part.end)
    ]
    await node.partitions.read_epochs(partitions, node.env.clock)
    described = [_described(node, part) for part in parts]
    return DescribeTopicPartitionsResponse(topics=described, next_cursor=cursor)


def _names(
    node: Node, request: DescribeTopicPartitionsRequest, may_see: Callable[[str], bool]
) -> list[str]:
    """Return the sorted names of the requested topics, or of all visible topics.

    All visible topics are returned if the request names no topic. Names before the cursor's topic
    are left out. Raises Refusal for an invalid cursor.
    """
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        text = "the cursor's partition is negative"
        raise Refusal(ErrorCode.INVALID_REQUEST, text)
    requested = {topic.name for topic in request.topics}
    first = "" if cursor is None else cursor.topic_name
    visible = requested or filter(may_see, node.topics.names())
    names = sorted(name for name in visible if name >= first)
    if requested and cursor is not None and first not in requested:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, "the cursor's topic is not among the requested topics"
        )
    return names


def split(
    names: Sequence[str], counts: "dict[str, int]", start: Cursor | None, limit: int
) -> tuple[list[Part], Cursor | None]:
    """Return the parts of one response, and the next cursor or None.

    The parts have at most `limit` partitions together. The cursor is None after the last part.

    Args:
        names: Sorted names of topics, from the cursor's topic on.
        counts: Number of partitions of each topic, by name.
        start: The cursor: a topic, and the first partition of this topic to return. Other topics
            start at partition 0. None if the request has no cursor.
        limit: Maximum number of partitions, at least 1.
    """
    parts: list[Part] = []
    remaining = limit
    for name in names:
        if not remaining:
            return parts, Cursor(topic_name=name, partition_index=0)
        is_first = start is not None and start.topic_name == name
        first = min(start.partition_index, counts[name]) if start is not None and is_first else 0
        end = min(counts[name], first + remaining)
        parts.append(Part(name, first, end))
        remaining -= end - first
        if end < counts[name]:
            return parts, Cursor(topic_name=name, partition_index=end)
    return parts, None


def _described(node: Node, part: Part) -> DescribedTopic:
    try:
        ensure_name(part.name)
        info = node.topics.find(part.name)
        if info is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except Refusal as refusal:
        return DescribedTopic(
            error_code=refusal.error_code,
            name=part.name,
            topic_authorized_operations=TOPIC_OPERATIONS,
        )
    numbers = set(numbers_of(info))
    return DescribedTopic(
        name=info.name,
        topic_id=info.topic_id or NO_UUID,
        is_internal=node.topics.is_internal(info.name),
        partitions=[
            _described_partition(node, info.name, number)
            for number in range(part.first, part.end)
            if number in numbers
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described_partition(node: Node, topic: str, number: int) -> DescribedPartition:
    return DescribedPartition(
        partition_index=number,
        leader_id=node.node_id,
        leader_epoch=node.partitions.leader_epoch(topic, number),
        replica_nodes=[node.node_id],
        isr_nodes=[node.node_id],
        eligible_leader_replicas=[],
        last_known_elr=[],
    )


# Highest and lowest level of metadata.version. Clients and tools recognize a broker of Kafka 4.3 by
# the highest level.
METADATA_VERSION_LEVEL: Final = 30

METADATA_VERSION_FIRST: Final = 7

# Highest level of transaction.version. At level 2, a client adds a partition to a transaction by
# producing to the partition, and each transaction has a producer epoch of its own.
TRANSACTION_VERSION: Final = 2

# Name, lowest level and highest level of each feature. The highest level is in force. Level 1 of
# group.version adds the consumer protocol; level 1 of share.version adds share groups.
FEATURES: Final = (
    ("group.version", 0, 1),
    ("metadata.version", METADATA_VERSION_FIRST, METADATA_VERSION_LEVEL),
    ("share.version", 0, 1),
    ("transaction.version", 0, TRANSACTION_VERSION),
)

# First version of ApiVersions whose response includes features with the lowest level 0. Clients of
# Kafka 3.3 to 3.7 reject such features. These clients use lower versions of ApiVersions.
FEATURES_FROM_ZERO_SINCE: Final = 4

# Characters that Kafka allows in a client's software name and version.
_NAME_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."
)


def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Return all announced APIs.

    From version 3 on, an invalid name or version of the client's software gets INVALID_REQUEST.
    """
    if context.version >= 3:
        software = request.client_software_name, request.client_software_version
        if not all(_is_name(text) for text in software):
            return answer(legacy=False, error_code=ErrorCode.INVALID_REQUEST)
    return answer(legacy=context.node.config.tidelog_legacy_clients, version=context.version)


def answer(*, legacy: bool, error_code: int = 0, version: int = 0) -> ApiVersionsResponse:
    """Return an ApiVersions response in the form of `version`.

    A response with the error UNSUPPORTED_VERSION lists only ApiVersions, so that the client can
    retry. With INVALID_REQUEST, the response lists no API.
    """
    keys = [
        ApiVersion(
            api_key=row.key,
            min_version=row.announced_first_for(legacy=legacy),
            max_version=row.api.last,
        )
        for row in ROWS
    ]
    if error_code:
        itself = [key for key in keys if key.api_key == API_VERSIONS.key]
        return ApiVersionsResponse(
            error_code=error_code,
            api_keys=itself if error_code != ErrorCode.INVALID_REQUEST else [],
        )
    return ApiVersionsResponse(
        api_keys=keys,
        supported_features=[
            SupportedFeature(name=name, min_version=first, max_version=last)
            for name, first, last in FEATURES
            if first > 0 or version >= FEATURES_FROM_ZERO_SINCE
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeature(name=name, max_version_level=last, min_version_level=last)
            for name, _, last in FEATURES
        ],
    )


def _is_name(text: str) -> bool:
    """Whether a text is a valid name: ASCII letters, digits, dashes and dots.

    The first and the last character must be a letter or digit. An empty text is not valid.
    """
    return bool(text) and set(text) <= _NAME_CHARACTERS and text[0].isalnum() and text[-1].isalnum()


# -- Metadata and related APIs -------------------------------------------------------------------


def guard_metadata(access: Access, request: MetadataRequest) -> Guarded[MetadataRequest]:
    """Require DESCRIBE on each topic, and for a new topic CREATE on the topic or the cluster.

    The response to a request for all topics leaves out the denied topics.
    """
    topics = request.topics
    is_all = topics is None or (access.context.version == 0 and not topics)
    refusals: list[MetadataTopic] = []
    allowed = topics
    if not is_all and topics is not None:
        allowed = [topic for topic in topics if _may_see(access, request, topic, refusals)]
    # In version 0 an empty list requests all topics. The guard passes an empty list to the handler,
    # too, if no requested topic is allowed. In this case the guard removes all topics from the
    # handler's response.
    is_emptied = access.context.version == 0 and not is_all and not allowed

    def is_shown(topic: MetadataTopic) -> bool:
        if is_emptied or (is_all and not access.may_describe(topic.name)):
            return False
        if request.include_topic_authorized_operations and topic.name is not None:
            # As in Kafka, authorized operations are also reported for a missing topic.
            kind, name = ResourceType.TOPIC, topic.name
            topic.topic_authorized_operations = access.bits(kind, name, TOPIC_OPERATIONS)
        return True

    def change(response: MetadataResponse) -> None:
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = access.cluster_bits(CLUSTER_OPERATIONS)
        response.topics.extend({(t.name, t.topic_id): t for t in refusals}.values())

    return replace(request, topics=allowed), Denied.hidden(access, "topics", is_shown, change)


def _may_see(
    access: Access,
    request: MetadataRequest,
    topic: MetadataRequestTopic,
    refusals: list[MetadataTopic],
) -> bool:
    """Whether the client may look up a topic; if not, append a refusal to `refusals`."""
    topics, name = access.context.node.topics, topic.name
    if topic.topic_id != NO_UUID:
        topic_name = access.name_of(topic.topic_id)
        if topic_name is None or access.may_topic(Operation.DESCRIBE, topic_name):
            return True
        refusals.append(
            MetadataTopic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=None, topic_id=topic.topic_id
            )
        )
        return False
    if name is None:
        return True
    may = access.may_topic(Operation.DESCRIBE, name)
    if may and topics.find(name) is None and request.allow_auto_topic_creation:
        may = not access.context.node.config.auto_create_topics_enable or _may_create(access, name)
    if not may:
        refusals.append(MetadataTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name))
    return may


def _may_create(access: Access, name: str) -> bool:
    return access.may_cluster(Operation.CREATE) or access.may_topic(Operation.CREATE, name)


def guard_describe_topic_partitions(
    access: Access, request: DescribeTopicPartitionsRequest
) -> Guarded[DescribeTopicPartitionsRequest]:
    """Require DESCRIBE on each topic. For a request for all topics, leave out denied topics."""
    is_all = not request.topics
    allowed, denied = access.split_topics(request.topics, Operation.DESCRIBE)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refusals = [failed_item(DescribedTopic, topic, code) for topic in denied]
    if not is_all and not allowed:
        return None, Denied.whole(DescribeTopicPartitionsResponse(topics=refusals))

    def change(response: DescribeTopicPartitionsResponse) -> None:
        if is_all:
            response.topics = [t for t in response.topics if access.may_describe(t.name)]
        for topic in response.topics:
            if topic.name is not None:
                kind, name = ResourceType.TOPIC, topic.name
                topic.topic_authorized_operations = access.bits(kind, name, TOPIC_OPERATIONS)
        response.topics.extend(refusals)

    return replace(request, topics=allowed), Denied.changed(change)


# -- the cluster itself --------------------------------------------------------------------------


def guard_describe_cluster(
    access: Access, request: DescribeClusterRequest
) -> Guarded[DescribeClusterRequest]:
    """Allow all clients.

    Only a client that may describe the cluster gets the authorized operations.
    """

    def change(response: DescribeClusterResponse) -> None:
        if not response.error_code:
            response.cluster_authorized_operations = access.cluster_bits(CLUSTER_OPERATIONS)

    if not request.include_cluster_authorized_operations:
        return request, None
    return request, Denied.changed(change)
