"""Guards of APIs about topics. Source: Kafka 4.3's KafkaApis and ControllerApis."""

from collections import Counter
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptBatch
from tidelog.protocol.messages.cluster import (
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from tidelog.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.protocol.messages.producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
)
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.errors import Unanswered
from tidelog.server.guards.common import DENIED_TEXT, Asker, then, then_keep
from tidelog.server.handlers.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from tidelog.server.handlers.produce_plain import TOPIC_IDS_FIRST_VERSION
from tidelog.server.handlers.produce_transactions import has_transactional_records
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation, ResourceType
from tidelog.storage.files import CLUSTER_METADATA_TOPIC

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_TEXT: Final = DENIED_TEXT[ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def produce(asker: Asker, request: ProduceRequest) -> Answer:
    """WRITE on each topic, and on the transactional id where there is one.

    With acks=0 the connection closes where something is denied, once what is allowed was appended.
    """
    allowed, denied, code = _to_produce(asker, request)
    if not denied:
        return asker.go_on(request)
    request.topic_data = allowed
    if request.acks == 0:
        return _close_after(asker.go_on(request) if allowed else None, code)
    refusals = [_refused_produce(topic, code) for topic in denied]
    if not allowed:
        return ProduceResponse(responses=refusals)

    def add(said: ProduceResponse) -> None:
        said.responses.extend(refusals)

    return then(asker.go_on(request), add)


async def _close_after(said: Answer, code: int) -> "DataclassInstance":
    """Let what is allowed be appended, then close; raises Unanswered."""
    if isinstance(said, Awaitable):
        await said
    raise Unanswered(f"error {code} for a request that wants no answer (acks=0)", code)


def _to_produce(
    asker: Asker, request: ProduceRequest
) -> tuple[list[TopicProduceData], list[TopicProduceData], int]:
    name = request.transactional_id
    if _is_transactional(request) and not (
        name is not None and asker.may_transact(Operation.WRITE, name)
    ):
        return [], request.topic_data, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    by_id = asker.context.version >= TOPIC_IDS_FIRST_VERSION
    allowed, denied = asker.split(
        request.topic_data,
        Operation.WRITE,
        lambda topic: asker.name_of(topic.topic_id) if by_id else topic.name,
    )
    return allowed, denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _is_transactional(request: ProduceRequest) -> bool:
    try:
        return has_transactional_records(request)
    except CorruptBatch:
        return False  # the handler refuses all of it


def _refused_produce(topic: TopicProduceData, code: int) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
            for data in topic.partition_data
        ],
    )


def list_offsets(asker: Asker, request: ListOffsetsRequest) -> Answer:
    """DESCRIBE on each topic."""
    request.topics, denied = asker.split(request.topics, Operation.DESCRIBE, lambda t: t.name)

    def add(said: ListOffsetsResponse) -> None:
        for topic in denied:
            partitions = [
                ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                )
                for asked in topic.partitions
            ]
            said.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))

    return then(asker.go_on(request), add)


def offset_for_leader_epoch(asker: Asker, request: OffsetForLeaderEpochRequest) -> Answer:
    """DESCRIBE on each topic; CLUSTER_ACTION is enough for all, which brokers have."""
    if asker.may_cluster(Operation.CLUSTER_ACTION):
        return asker.go_on(request)
    request.topics, denied = asker.split(request.topics, Operation.DESCRIBE, lambda t: t.topic)

    def add(said: OffsetForLeaderEpochResponse) -> None:
        for topic in denied:
            partitions = [
                EpochEndOffset(
                    partition=asked.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
                for asked in topic.partitions
            ]
            said.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))

    return then(asker.go_on(request), add)


def delete_records(asker: Asker, request: DeleteRecordsRequest) -> Answer:
    """DELETE on each topic."""
    request.topics, denied = asker.split(request.topics, Operation.DELETE, lambda t: t.name)

    def add(said: DeleteRecordsResponse) -> None:
        for topic in denied:
            partitions = [
                DeleteRecordsPartitionResult(
                    partition_index=asked.partition_index,
                    low_watermark=-1,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                )
                for asked in topic.partitions
            ]
            said.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))

    return then(asker.go_on(request), add)


def describe_producers(asker: Asker, request: DescribeProducersRequest) -> Answer:
    """READ on each topic."""
    request.topics, denied = asker.split(request.topics, Operation.READ, lambda t: t.name)

    def add(said: DescribeProducersResponse) -> None:
        for topic in denied:
            partitions = [
                DescribeProducersPartitionResponse(
                    partition_index=number,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message=_TEXT,
                )
                for number in topic.partition_indexes
            ]
            said.topics.append(
                DescribeProducersTopicResponse(name=topic.name, partitions=partitions)
            )

    return then(asker.go_on(request), add)


# -- Metadata and its like -----------------------------------------------------------------------


def metadata(asker: Asker, request: MetadataRequest) -> Answer:
    """DESCRIBE on each topic, and CREATE (there or on the cluster) for those that would be made.

    Where all are asked for, those that are denied are not named.
    """
    asked = request.topics
    is_all = asked is None or (asker.context.version == 0 and not asked)
    refused: list[MetadataTopic] = []
    if not is_all and asked is not None:
        request.topics = [topic for topic in asked if _may_see(asker, request, topic, refused)]
    # In version 0 nothing asked for is everything: none of that is meant here.
    is_emptied = asker.context.version == 0 and not is_all and not request.topics

    def passes(topic: MetadataTopic) -> bool:
        if is_emptied or (is_all and not asker.may_describe(topic.name)):
            return False
        if request.include_topic_authorized_operations and topic.name is not None:
            # Also of one that is not there.
            kind, name = ResourceType.TOPIC, topic.name
            topic.topic_authorized_operations = asker.bits(kind, name, TOPIC_OPERATIONS)
        return True

    def change(said: MetadataResponse) -> None:
        if request.include_cluster_authorized_operations:
            said.cluster_authorized_operations = asker.cluster_bits(CLUSTER_OPERATIONS)
        said.topics.extend({(t.name, t.topic_id): t for t in refused}.values())

    return then(then_keep(asker, asker.go_on(request), "topics", passes), change)


def _may_see(
    asker: Asker,
    request: MetadataRequest,
    topic: MetadataRequestTopic,
    refused: list[MetadataTopic],
) -> bool:
    """Whether a topic may be looked up; where not, its refusal is noted."""
    topics, name = asker.context.node.topics, topic.name
    if topic.topic_id != NO_UUID:
        found = asker.name_of(topic.topic_id)
        if found is None or asker.may_topic(Operation.DESCRIBE, found):
            return True
        told = MetadataTopic(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=None, topic_id=topic.topic_id
        )
        refused.append(told)
        return False
    if name is None:
        return True
    may = asker.may_topic(Operation.DESCRIBE, name)
    if may and topics.find(name) is None and request.allow_auto_topic_creation:
        may = not asker.context.node.config.auto_create_topics_enable or _may_create(asker, name)
    if not may:
        refused.append(MetadataTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name))
    return may


def _may_create(asker: Asker, name: str) -> bool:
    return asker.may_cluster(Operation.CREATE) or asker.may_topic(Operation.CREATE, name)


def describe_topic_partitions(asker: Asker, request: DescribeTopicPartitionsRequest) -> Answer:
    """DESCRIBE on each topic; where all are asked for, those that are denied are not named."""
    is_all = not request.topics
    request.topics, denied = asker.split(request.topics, Operation.DESCRIBE, lambda t: t.name)
    refused = [
        DescribedTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=topic.name)
        for topic in denied
    ]
    if not is_all and not request.topics:
        return DescribeTopicPartitionsResponse(topics=refused)

    def change(said: DescribeTopicPartitionsResponse) -> None:
        if is_all:
            said.topics = [t for t in said.topics if asker.may_describe(t.name)]
        for topic in said.topics:
            if topic.name is not None:
                kind, name = ResourceType.TOPIC, topic.name
                topic.topic_authorized_operations = asker.bits(kind, name, TOPIC_OPERATIONS)
        said.topics.extend(refused)

    return then(asker.go_on(request), change)


# -- changes -------------------------------------------------------------------------------------


def create_topics(asker: Asker, request: CreateTopicsRequest) -> Answer:
    """CREATE on the cluster or on each topic; its settings are told to who may describe them.

    One that is named twice, or that nobody may create, is refused for that.
    """
    times = Counter(topic.name for topic in request.topics)

    def asked_for(topic: CreatableTopic) -> str | None:
        is_refused = times[topic.name] > 1 or topic.name == CLUSTER_METADATA_TOPIC
        return None if is_refused else topic.name

    denied: list[CreatableTopic] = []
    if not asker.may_cluster(Operation.CREATE):
        request.topics, denied = asker.split(request.topics, Operation.CREATE, asked_for)

    def change(said: CreateTopicsResponse) -> None:
        for topic in said.topics:
            if not topic.error_code and not asker.may_topic(Operation.DESCRIBE_CONFIGS, topic.name):
                topic.configs = []
                topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topic.num_partitions = topic.replication_factor = -1
        said.topics.extend(
            CreatableTopicResult(
                name=topic.name,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message=_TEXT,
                configs=[],
            )
            for topic in denied
        )

    return then(asker.go_on(request), change)


def create_partitions(asker: Asker, request: CreatePartitionsRequest) -> Answer:
    """ALTER on each topic; one that is named twice is refused for that."""
    times = Counter(topic.name for topic in request.topics)
    request.topics, denied = asker.split(
        request.topics, Operation.ALTER, lambda t: None if times[t.name] > 1 else t.name
    )

    def add(said: CreatePartitionsResponse) -> None:
        said.results.extend(
            CreatePartitionsTopicResult(
                name=topic.name,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message=_TEXT,
            )
            for topic in denied
        )

    return then(asker.go_on(request), add)
