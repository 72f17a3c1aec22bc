"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

Each item of a request is processed separately. A refused item doesn't affect the other items.
DeleteRecords advances the log start offset. With a timeout of 0 or less, CreateTopics, DeleteTopics
and CreatePartitions change nothing, as in Kafka. With such a timeout, all items get
REQUEST_TIMED_OUT if the request names at least one topic exactly once. If no topic is named exactly
once, each item gets its own error.

Source: Kafka's protocol guide, APIs 19, 20, 21 and 37; KIP-107; Kafka 4.3's
ReplicationControlManager, KafkaApis and ControllerApis (rights).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.admin.config_display import describe_topic
from tidelog.server.admin.topic_rules import (
    NEW_PARTITIONS_MAX,
    Layout,
    count_of,
    ensure_growth,
    ensure_name,
    ensure_new,
    topic_settings,
)
from tidelog.server.api import topic_changes
from tidelog.server.api.context import LargeResponse, RequestContext
from tidelog.server.api.guards import (
    TOPIC_DENIED_TEXT,
    Access,
    Denied,
    Guarded,
    failed_item,
)
from tidelog.server.api.node import LOGGER, Node
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.errors import (
    ID_NOT_HOSTED,
    NOT_HOSTED,
    Refusal,
    code_of,
    errors_in,
    refusal_of,
    set_error,
)
from tidelog.server.runtime.loop import Slices
from tidelog.server.security.operations import Operation
from tidelog.storage.directory.topic_registry import NewTopic, TopicInfo
from tidelog.storage.files import CLUSTER_METADATA_TOPIC, random_topic_id

# Maximum number of topics in a response to CreateTopics that is encoded on the event loop. The
# encoding takes long, because the response has all settings of each new topic.
AT_ONCE: Final = 8

# Offset in DeleteRecords that stands for the high watermark.
HIGH_WATERMARK: Final = -1

_NAMED_TWICE: Final = "The provided topic name maps to an ID that was already supplied."


# -- CreateTopics --------------------------------------------------------------------------------


async def create_topics(
    context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse | LargeResponse:
    """Create topics, or only check whether they could be created."""
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
    return LargeResponse(response, results) if len(results) > AT_ONCE else response


async def _create_all(
    node: Node, topics: Sequence[CreatableTopic], *, is_trial: bool
) -> list[CreatableTopicResult]:
    """Check all topics, then create the valid topics together; return the result of each topic."""
    is_too_much = _requested_partitions(node, topics) > NEW_PARTITIONS_MAX
    slices = Slices(node.env.clock)
    planned = list[NewTopic | CreatableTopicResult]()
    for topic in topics:
        await slices.rest()
        try:
            if is_too_much:
                text = "Excessively large number of partitions per request."
                raise Refusal(ErrorCode.POLICY_VIOLATION, text)
            planned.append(_new_topic(node, topic))
        except TidelogError as error:
            planned.append(_refused(topic.name, refusal_of(error)))
    new = [each for each in planned if isinstance(each, NewTopic)]
    outcomes: Sequence[TopicInfo | TidelogError] = ()
    if is_trial:
        outcomes = [_trial_topic(node, each) for each in new]
    elif new:
        outcomes = await topic_changes.create_all(node, new)
    created, results = iter(outcomes), []
    for each in planned:
        await slices.rest()
        results.append(_created(node, each, next(created)) if isinstance(each, NewTopic) else each)
    return results


def _requested_partitions(node: Node, topics: Sequence[CreatableTopic]) -> int:
    """Return the total number of requested partitions, to which an invalid count adds 0."""
    default = node.config.num_partitions
    counts = (default if topic.num_partitions == -1 else topic.num_partitions for topic in topics)
    return sum(
        len(topic.assignments) or max(count, 0) for topic, count in zip(topics, counts, strict=True)
    )


def _refused(name: str, refusal: Refusal) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=refusal.error_code, error_message=refusal.message, configs=[]
    )


def _new_topic(node: Node, topic: CreatableTopic) -> NewTopic:
    """Return the topic to create. Raises Refusal or ConfigError."""
    if topic.name == CLUSTER_METADATA_TOPIC:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {topic.name} is prohibited."
        )
    ensure_name(topic.name)
    ensure_new(topic.name, node.topics.all())
    pairs = [(config.name, config.value) for config in topic.configs]
    overrides, _ = topic_settings(pairs, node.config.topic_defaults)
    assignments = [(each.partition_index, each.broker_ids) for each in topic.assignments]
    layout = Layout(topic.num_partitions, topic.replication_factor, assignments)
    count = count_of(layout, default=node.config.num_partitions, node_id=node.node_id)
    node.log_dir.topic_admin.ensure_no_stray_among(topic.name, count)
    return NewTopic(topic.name, count, overrides)


def _trial_topic(node: Node, new: NewTopic) -> TopicInfo:
    return TopicInfo(
        name=new.name,
        topic_id=random_topic_id(node.env.random),
        partitions=new.partitions,
        given=new.config,
        config=TopicConfig.parse(new.config, broker=node.config.topic_defaults)[0],
    )


def _created(node: Node, new: NewTopic, outcome: TopicInfo | TidelogError) -> CreatableTopicResult:
    if isinstance(outcome, TidelogError):
        return _refused(new.name, refusal_of(outcome))
    settings = describe_topic(
        outcome.given, outcome.config, node.started_config.topic_defaults, node.changed
    )
    return CreatableTopicResult(
        name=outcome.name,
        topic_id=outcome.topic_id or NO_UUID,
        num_partitions=outcome.partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(
                name=entry.name, value=entry.value, config_source=entry.source, read_only=False
            )
            for entry in sorted(settings, key=lambda entry: entry.name)
        ],
    )


# -- DeleteTopics --------------------------------------------------------------------------------


async def delete_topics(
    context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete topics by name or by id."""
    states, times = _states_of(request)
    if request.timeout_ms <= 0 and any(_names_one(state, times) for state in states):
        late = ErrorCode.REQUEST_TIMED_OUT
        return DeleteTopicsResponse(
            responses=[failed_item(DeletableTopicResult, state, late) for state in states]
        )
    results, slices = [], Slices(context.node.env.clock)
    deletions = list[tuple[TopicInfo, DeletableTopicResult]]()
    for state in {(state.name, state.topic_id): state for state in states}.values():
        await slices.rest()
        result = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        with errors_in(result):
            info = _to_delete(context.node, state, times)
            result.name, result.topic_id = info.name, info.topic_id or NO_UUID
            deletions.append((info, result))
        results.append(result)
    failures = await topic_changes.delete_all(context.node, [info for info, _ in deletions])
    for (_, result), failure in zip(deletions, failures, strict=True):
        if failure is not None:
            set_error(result, failure)
    return DeleteTopicsResponse(responses=results)


def _states_of(
    request: DeleteTopicsRequest,
) -> tuple[list[DeleteTopicState], Counter[str | UUID]]:
    """Return the entries of a request, and how many entries have each name and each id.

    An entry with both name and id is refused. Such an entry is not counted, because it does not
    make another entry a duplicate.
    """
    states = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    return states, Counter(_key_of(state) for state in states if not _has_both(state))


def _key_of(state: DeleteTopicState) -> str | UUID:
    return state.topic_id if state.name is None else state.name


def _has_both(state: DeleteTopicState) -> bool:
    return state.name is not None and state.topic_id != NO_UUID


def _names_one(state: DeleteTopicState, times: Counter[str | UUID]) -> bool:
    """Whether an entry has either a name or an id, and no other entry names the same topic."""
    key = _key_of(state)
    return not _has_both(state) and key != NO_UUID and times[key] == 1


def _to_delete(node: Node, state: DeleteTopicState, times: Counter[str | UUID]) -> TopicInfo:
    """Return the topic to delete. Raises Refusal."""
    if not node.config.delete_topic_enable:
        raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    if _has_both(state):
        text = "You may not specify both topic name and topic id."
        raise Refusal(ErrorCode.INVALID_REQUEST, text)
    key, by_name = _key_of(state), state.name is not None
    if key == NO_UUID:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if times[key] > 1:
        kind = "name" if by_name else "id"
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Duplicate topic {kind}.")
    info = node.topics.find(key) if isinstance(key, str) else node.topics.find_by_id(key)
    if info is None and by_name:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
    if info is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, ID_NOT_HOSTED)
    if (info.topic_id if by_name else info.name) in times:
        raise Refusal(ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
    return info


# -- CreatePartitions ----------------------------------------------------------------------------


async def create_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to topics, or only check whether they could be added."""
    times = Counter(topic.name for topic in request.topics)
    if request.timeout_ms <= 0 and 1 in times.values():
        return CreatePartitionsResponse(
            results=[
                failed_item(CreatePartitionsTopicResult, topic, ErrorCode.REQUEST_TIMED_OUT)
                for topic in request.topics
            ]
        )
    results, slices = [], Slices(context.node.env.clock)
    counts = dict[str, int]()
    for topic in {topic.name: topic for topic in request.topics}.values():
        await slices.rest()
        result = CreatePartitionsTopicResult(name=topic.name, error_message=None)
        with errors_in(result):
            if times[topic.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _ensure_growth(context.node, topic)
            counts[topic.name] = topic.count
        results.append(result)
    if counts and not request.validate_only:
        grown = await topic_changes.grow_all(context.node, counts)
        ended = dict(zip(counts, grown, strict=True))
        for result in results:
            end = ended.get(result.name)
            if isinstance(end, TidelogError):
                set_error(result, end)
    return CreatePartitionsResponse(results=results)


def _ensure_growth(node: Node, topic: CreatePartitionsTopic) -> None:
    info = node.topics.find(topic.name)
    if info is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    brokers = None if topic.assignments is None else [each.broker_ids for each in topic.assignments]
    ensure_growth(topic.name, info.partitions, topic.count, brokers, node.node_id)
    node.log_dir.topic_admin.ensure_no_stray_among(topic.name, topic.count)
    if topic.count - info.partitions > NEW_PARTITIONS_MAX:
        raise Refusal(
            ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
        )


# -- rights to topics ----------------------------------------------------------------------------


def guard_create_topics(
    access: Access, request: CreateTopicsRequest
) -> Guarded[CreateTopicsRequest]:
    """Require CREATE on the cluster or on each topic.

    The response has a topic's settings, partition count and replica count only if the client has
    DESCRIBE_CONFIGS on the topic. A topic gets INVALID_REQUEST if it is named twice or has the name
    of Kafka's metadata topic, even if the client has no right to create it.
    """
    times = Counter(topic.name for topic in request.topics)

    def name_of(topic: CreatableTopic) -> str | None:
        is_refused = times[topic.name] > 1 or topic.name == CLUSTER_METADATA_TOPIC
        return None if is_refused else topic.name

    allowed, denied = request.topics, list[CreatableTopic]()
    if not access.may_cluster(Operation.CREATE):
        allowed, denied = access.split(request.topics, Operation.CREATE, name_of)

    def change(response: CreateTopicsResponse) -> None:
        for topic in response.topics:
            may = access.may_topic
            if not topic.error_code and not may(Operation.DESCRIBE_CONFIGS, topic.name):
                topic.configs = []
                topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topic.num_partitions = topic.replication_factor = -1
        refusal = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, TOPIC_DENIED_TEXT)
        response.topics.extend(_refused(topic.name, refusal) for topic in denied)

    return replace(request, topics=allowed), Denied.changed(change)


def guard_create_partitions(
    access: Access, request: CreatePartitionsRequest
) -> Guarded[CreatePartitionsRequest]:
    """Require ALTER on each topic. A topic named twice gets the error for a duplicate instead."""
    times = Counter(topic.name for topic in request.topics)
    allowed, denied = access.split(
        request.topics, Operation.ALTER, lambda t: None if times[t.name] > 1 else t.name
    )
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return replace(request, topics=allowed), Denied.items(access, denied, code)


def guard_delete_topics(
    access: Access, request: DeleteTopicsRequest
) -> Guarded[DeleteTopicsRequest]:
    """Require DELETE on the cluster or on each topic.

    Without DESCRIBE on a topic that was named by id, the client doesn't get the topic's name. If a
    topic does not exist, a client with DESCRIBE on the topic gets the error for a missing topic
    instead of the error for missing rights. The handler refuses a topic that is named twice, or by
    name and id.
    """
    states, times = _states_of(request)

    def name_of(state: DeleteTopicState) -> str | None:
        return access.name_of(state.topic_id) if state.name is None else state.name

    def denied_name_of(state: DeleteTopicState) -> str | None:
        name = name_of(state)
        if _has_both(state) or times[_key_of(state)] > 1:
            return None
        is_there = name is not None and access.context.node.topics.find(name) is not None
        return None if not is_there and access.may_describe(name) else name

    if access.may_cluster(Operation.DELETE):
        return request, None
    allowed, denied = access.split(states, Operation.DELETE, denied_name_of)
    absent, allowed = _absent_of(access, allowed, times)
    refusals = [
        failed_item(DeletableTopicResult, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
        for name in absent
    ]
    for state in denied:
        code, name = ErrorCode.TOPIC_AUTHORIZATION_FAILED, name_of(state)
        refusal = failed_item(DeletableTopicResult, state, code, TOPIC_DENIED_TEXT)
        if access.may_describe(name):
            refusal.name = name
        refusals.append(refusal)
    if not allowed:
        return None, Denied.whole(DeleteTopicsResponse(responses=refusals))
    rest = replace(request, topics=allowed, topic_names=[])
    return rest, Denied.rows("responses", refusals)


def _absent_of(
    access: Access, states: list[DeleteTopicState], times: Counter[str | UUID]
) -> tuple[dict[str, None], list[DeleteTopicState]]:
    """Return the missing topics that the client is not authorized to delete, and the other entries.

    The guard refuses these missing topics and does not pass them to the handler. If the handler
    looked up such a topic again, it could find a topic that was created after this check, and would
    delete this topic without authorization. If deletion is disabled, the handler reports this for
    all topics.
    """
    absent: dict[str, None] = {}
    others = []
    is_enabled = access.context.node.config.delete_topic_enable
    for state in states:
        name = state.name
        if (
            name is None
            or not is_enabled
            or state.topic_id != NO_UUID
            or times[name] > 1
            or access.may_topic(Operation.DELETE, name)
        ):
            others.append(state)
        else:
            absent[name] = None
    return absent, others


# -- DeleteRecords -------------------------------------------------------------------------------


async def delete_records(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Delete records below an offset.

    The response has the new log start offsets, which are durable.
    """
    topics, named = [], _named_once(request)
    partitions = context.node.partitions
    await partitions.ensure_open((name, number) for name, rows in named.items() for number in rows)
    for topic, rows in named.items():
        results = []
        for row in rows.values():
            # a change of the topic's segments may begin while the previous partition is synced
            await partitions.holds.wait([topic])
            results.append(await _delete_until(context.node, topic, row))
        topics.append(DeleteRecordsTopicResult(name=topic, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def _named_once(
    request: DeleteRecordsRequest,
) -> dict[str, dict[int, DeleteRecordsPartition]]:
    """Return the request's last entry for each partition, by topic and partition number.

    Topics without partitions are left out, as in Kafka.
    """
    topics: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for topic in request.topics:
        for row in topic.partitions:
            topics.setdefault(topic.name, {})[row.partition_index] = row
    return topics


async def _delete_until(
    node: Node, topic: str, row: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult
    try:
        partition = node.partitions.get(topic, row.partition_index)
        if node.topics.is_internal(topic):
            return failed_item(result, row, ErrorCode.INVALID_TOPIC_EXCEPTION)
        start = _move_start(partition, row.offset)
        if start is None:
            return failed_item(result, row, ErrorCode.OFFSET_OUT_OF_RANGE)
        await partition.flushed()
    except TidelogError as error:
        return failed_item(result, row, code_of(error))
    return result(partition_index=row.partition_index, low_watermark=start)


def _move_start(partition: Partition, offset: int) -> int | None:
    """Advance the log start offset to `offset`, and return the new log start offset.

    Return None if `offset` is out of range.
    """
    end = partition.high_watermark
    target = end if offset == HIGH_WATERMARK else offset
    if not 0 <= target <= end:
        # This call deletes nothing. It raises the error for a wrong cleanup policy, because Kafka
        # checks the policy before the offset.
        partition.log.delete_records(partition.log.log_start_offset)
        return None
    before = partition.log.log_start_offset
    start = partition.log.delete_records(target)
    if start > before:
        LOGGER.info(
            "%s: DeleteRecords moved the log start from %d to %d", partition.name, before, start
        )
    return start
