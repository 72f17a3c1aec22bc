"""CreateTopics, DeleteTopics and CreatePartitions.

Items of one request are looked at one by one: what one is refused for is not the others' business.

Source: Kafka's protocol guide, APIs 19, 20 and 37; Kafka 4.3's ReplicationControlManager.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from tidelog.config import TopicConfig
from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server import topic_changes
from tidelog.server.config_values import described_topic_settings
from tidelog.server.errors import Refusal, refusal_of
from tidelog.server.node import Node
from tidelog.server.requests import Long, RequestContext
from tidelog.server.slices import Slices
from tidelog.server.topic_rules import (
    NEW_PARTITIONS_MAX,
    Layout,
    count_of,
    ensure_growth,
    ensure_name,
    ensure_new,
    topic_settings,
)
from tidelog.storage.files import CLUSTER_METADATA_TOPIC, random_topic_id
from tidelog.storage.topic_info import TopicInfo
from tidelog.storage.topics import NewTopic

# What Kafka's controller says at once where it is given no time for what it could do: it does
# nothing then. What is refused by itself is refused all the same, where there is nothing else.
# Answers about so many new topics, with all their settings, are made into bytes at once.
AT_ONCE: Final = 8
NOT_HOSTED: Final = "This server does not host this topic-partition."
_NAMED_TWICE: Final = "The provided topic name maps to an ID that was already supplied."
_ID_NOT_HOSTED: Final = "This server does not host this topic ID."


# -- CreateTopics --------------------------------------------------------------------------------


async def create_topics(
    context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse | Long:
    """Create topics, or say whether they could be."""
    times = Counter(topic.name for topic in request.topics)
    single = [topic for topic in request.topics if times[topic.name] == 1]
    if single and request.timeout_ms <= 0:
        late = Refusal(ErrorCode.REQUEST_TIMED_OUT)
        return CreateTopicsResponse(topics=[_refused(topic.name, late) for topic in request.topics])
    results = [
        _refused(name, Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name, count in times.items()
        if count > 1
    ]
    results += await _create_all(context.node, single, is_trial=request.validate_only)
    response = CreateTopicsResponse(topics=results)
    return Long(response, results) if len(results) > AT_ONCE else response


async def _create_all(
    node: Node, topics: Sequence[CreatableTopic], *, is_trial: bool
) -> list[CreatableTopicResult]:
    """What comes of each topic: all are looked at, then made together, then told."""
    is_too_much = _wanted(node, topics) > NEW_PARTITIONS_MAX
    slices = Slices(node.env.clock)
    asked = list[NewTopic | CreatableTopicResult]()
    for topic in topics:
        await slices.rest()
        try:
            if is_too_much:
                text = "Excessively large number of partitions per request."
                raise Refusal(ErrorCode.POLICY_VIOLATION, text)
            asked.append(_asked(node, topic))
        except TidelogError as error:
            asked.append(_refused(topic.name, refusal_of(error)))
    new = [each for each in asked if isinstance(each, NewTopic)]
    made: Sequence[TopicInfo | TidelogError] = ()
    if is_trial:
        made = [_imagined(node, each) for each in new]
    elif new:
        made = await topic_changes.create_all(node, new)
    found, results = iter(made), []
    for each in asked:
        await slices.rest()
        results.append(_told(node, each, next(found)) if isinstance(each, NewTopic) else each)
    return results


def _wanted(node: Node, topics: Sequence[CreatableTopic]) -> int:
    """Partitions that are asked for in all; a count that can't be takes nothing off the others."""
    default = node.config.num_partitions
    counts = (default if topic.num_partitions == -1 else topic.num_partitions for topic in topics)
    return sum(
        len(topic.assignments) or max(count, 0) for topic, count in zip(topics, counts, strict=True)
    )


def _refused(name: str, why: Refusal) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=why.error_code, error_message=why.message, configs=[]
    )


def _asked(node: Node, topic: CreatableTopic) -> NewTopic:
    """What is to be made; raises Refusal, ConfigError."""
    if topic.name == CLUSTER_METADATA_TOPIC:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {topic.name} is prohibited."
        )
    ensure_name(topic.name)
    ensure_new(topic.name, node.topics.all())
    pairs = [(config.name, config.value) for config in topic.configs]
    given, _ = topic_settings(pairs, node.config.topic_defaults)
    assignments = [(each.partition_index, each.broker_ids) for each in topic.assignments]
    layout = Layout(topic.num_partitions, topic.replication_factor, assignments)
    count = count_of(layout, default=node.config.num_partitions, node_id=node.node_id)
    return NewTopic(topic.name, count, given)


def _imagined(node: Node, new: NewTopic) -> TopicInfo:
    return TopicInfo(
        name=new.name,
        topic_id=random_topic_id(node.env.random),
        partitions=new.partitions,
        given=new.config,
        config=TopicConfig.parse(new.config, broker=node.config.topic_defaults)[0],
    )


def _told(node: Node, new: NewTopic, made: TopicInfo | TidelogError) -> CreatableTopicResult:
    if isinstance(made, TidelogError):
        return _refused(new.name, refusal_of(made))
    settings = described_topic_settings(
        made.given, made.config, node.started_config.topic_defaults, node.changed
    )
    return CreatableTopicResult(
        name=made.name,
        topic_id=made.topic_id or NO_UUID,
        error_code=0,
        num_partitions=made.partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(
                name=found.name, value=found.value, config_source=found.source, read_only=False
            )
            for found in sorted(settings, key=lambda found: found.name)
        ],
    )


# -- DeleteTopics --------------------------------------------------------------------------------


async def delete_topics(
    context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete topics by name, or by id."""
    states = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    # A name that came with an id is refused by itself, and is nobody's double.
    names = Counter(s.name for s in states if s.name is not None and s.topic_id == NO_UUID)
    ids = Counter(state.topic_id for state in states if state.name is None)
    if request.timeout_ms <= 0 and any(_names_one(state, names, ids) for state in states):
        return DeleteTopicsResponse(responses=[_too_late(state) for state in states])
    results, slices = [], Slices(context.node.env.clock)
    asked = list[tuple[TopicInfo, DeletableTopicResult]]()
    for state in {(state.name, state.topic_id): state for state in states}.values():
        await slices.rest()
        found = DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=0)
        try:
            info = _to_delete(context.node, state, names, ids)
            found.name, found.topic_id = info.name, info.topic_id or NO_UUID
            asked.append((info, found))
        except TidelogError as error:
            _say(found, error)
        results.append(found)
    failures = await topic_changes.delete_all(context.node, [info for info, _ in asked])
    for (_, found), failure in zip(asked, failures, strict=True):
        if failure is not None:
            _say(found, failure)
    return DeleteTopicsResponse(responses=results)


def _names_one(state: DeleteTopicState, names: Counter[str], ids: Counter[UUID]) -> bool:
    """Whether a topic is named in one way, and once."""
    if state.name is None:
        return state.topic_id != NO_UUID and ids[state.topic_id] == 1
    return state.topic_id == NO_UUID and names[state.name] == 1


def _too_late(state: DeleteTopicState) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=state.name, topic_id=state.topic_id, error_code=ErrorCode.REQUEST_TIMED_OUT
    )


def _to_delete(
    node: Node, state: DeleteTopicState, names: Counter[str], ids: Counter[UUID]
) -> TopicInfo:
    """The topic meant; raises Refusal."""
    if not node.config.delete_topic_enable:
        raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    if state.name is not None and state.topic_id != NO_UUID:
        text = "You may not specify both topic name and topic id."
        raise Refusal(ErrorCode.INVALID_REQUEST, text)
    if state.name is not None:
        return _named(node, state.name, names, ids)
    if state.topic_id == NO_UUID:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if ids[state.topic_id] > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
    info = node.topics.find_by_id(state.topic_id)
    if info is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, _ID_NOT_HOSTED)
    if info.name in names:
        raise Refusal(ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
    return info


def _named(node: Node, name: str, names: Counter[str], ids: Counter[UUID]) -> TopicInfo:
    if names[name] > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    info = node.topics.find(name)
    if info is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
    if info.topic_id in ids:
        raise Refusal(ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
    return info


# -- CreatePartitions ----------------------------------------------------------------------------


async def create_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to topics, or say whether they could be."""
    times = Counter(topic.name for topic in request.topics)
    if request.timeout_ms <= 0 and 1 in times.values():
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(
                    name=topic.name, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=None
                )
                for topic in request.topics
            ]
        )
    results, slices = [], Slices(context.node.env.clock)
    counts = dict[str, int]()
    for topic in {topic.name: topic for topic in request.topics}.values():
        await slices.rest()
        found = CreatePartitionsTopicResult(name=topic.name, error_code=0, error_message=None)
        try:
            if times[topic.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _ensure_growth(context.node, topic)
            counts[topic.name] = topic.count
        except TidelogError as error:
            _say(found, error)
        results.append(found)
    if counts and not request.validate_only:
        grown = await topic_changes.grow_all(context.node, counts)
        ended = dict(zip(counts, grown, strict=True))
        for found in results:
            end = ended.get(found.name)
            if isinstance(end, TidelogError):
                _say(found, end)
    return CreatePartitionsResponse(results=results)


def _say(result: CreatePartitionsTopicResult | DeletableTopicResult, error: TidelogError) -> None:
    why = refusal_of(error)
    result.error_code, result.error_message = why.error_code, why.message


def _ensure_growth(node: Node, topic: CreatePartitionsTopic) -> None:
    info = node.topics.find(topic.name)
    if info is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    brokers = None if topic.assignments is None else [each.broker_ids for each in topic.assignments]
    ensure_growth(topic.name, info.partitions, topic.count, brokers, node.node_id)
    if topic.count - info.partitions > NEW_PARTITIONS_MAX:
        raise Refusal(
            ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
        )
