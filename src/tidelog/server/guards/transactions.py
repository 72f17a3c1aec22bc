"""Guards of APIs about producers and transactions. Source: Kafka 4.3's KafkaApis."""

from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransactionState,
    ListTransactionsRequest,
)
from tidelog.protocol.messages.txn_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.server.guards.common import Asker, then, then_keep
from tidelog.server.handlers.transactions import refusals, results_of
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation
from tidelog.types import TopicPartition

BROKERS_FIRST_VERSION: Final = 4


def init_producer_id(asker: Asker, request: InitProducerIdRequest) -> Answer:
    """WRITE on the transactional id; else IDEMPOTENT_WRITE on the cluster, or WRITE somewhere."""
    name = request.transactional_id
    code = 0
    if name is not None:
        code = (
            0
            if asker.may_transact(Operation.WRITE, name)
            else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
    elif not asker.may_cluster(Operation.IDEMPOTENT_WRITE) and not asker.may_write_somewhere():
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not code:
        return asker.go_on(request)
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def add_partitions_to_txn(asker: Asker, request: AddPartitionsToTxnRequest) -> Answer:
    """WRITE on the transactional id and on each topic: all of them, or none is added.

    Then each partition hears what is wrong with it itself. From version 4 on brokers ask, who need
    CLUSTER_ACTION.
    """
    if asker.context.version >= BROKERS_FIRST_VERSION:
        if asker.may_cluster(Operation.CLUSTER_ACTION):
            return asker.go_on(request)
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = request.v3_and_below_topics
    places = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
    codes: dict[TopicPartition, int]
    if not asker.may_transact(Operation.WRITE, request.v3_and_below_transactional_id):
        codes = dict.fromkeys(places, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    else:
        allowed, denied = asker.split(places, Operation.WRITE, lambda place: place.topic)
        if not denied:
            return asker.go_on(request)
        codes = refusals(asker.context, allowed) | dict.fromkeys(
            denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    results = results_of(
        topics, {place: codes.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED) for place in places}
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def add_offsets_to_txn(asker: Asker, request: AddOffsetsToTxnRequest) -> Answer:
    """WRITE on the transactional id, READ on the group."""
    if not asker.may_transact(Operation.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not asker.may_group(Operation.READ, request.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return asker.go_on(request)


def end_txn(asker: Asker, request: EndTxnRequest) -> Answer:
    """WRITE on the transactional id."""
    if asker.may_transact(Operation.WRITE, request.transactional_id):
        return asker.go_on(request)
    return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def write_txn_markers(asker: Asker, request: WriteTxnMarkersRequest) -> Answer:
    """ALTER or CLUSTER_ACTION on the cluster."""
    if asker.may_cluster(Operation.ALTER) or asker.may_cluster(Operation.CLUSTER_ACTION):
        return asker.go_on(request)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=number,
                                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                            )
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def txn_offset_commit(asker: Asker, request: TxnOffsetCommitRequest) -> Answer:
    """WRITE on the transactional id, READ on the group and on each topic."""
    code = 0
    if not asker.may_transact(Operation.WRITE, request.transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not asker.may_group(Operation.READ, request.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if code:
        topics = [_refused_commit(topic, code) for topic in request.topics]
        return TxnOffsetCommitResponse(topics=topics)
    request.topics, denied = asker.split(request.topics, Operation.READ, lambda t: t.name)
    refused = [_refused_commit(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in denied]
    if refused and not request.topics:
        return TxnOffsetCommitResponse(topics=refused)

    def add(said: TxnOffsetCommitResponse) -> None:
        said.topics.extend(refused)

    return then(asker.go_on(request), add)


def _refused_commit(topic: TxnOffsetCommitRequestTopic, code: int) -> TxnOffsetCommitResponseTopic:
    partitions = [
        TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
        for each in topic.partitions
    ]
    return TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions)


def describe_transactions(asker: Asker, request: DescribeTransactionsRequest) -> Answer:
    """DESCRIBE on each transactional id; topics that may not be described are not named."""
    names = dict.fromkeys(request.transactional_ids)
    denied = [name for name in names if not asker.may_transact(Operation.DESCRIBE, name)]
    for name in denied:
        del names[name]
    request.transactional_ids = [name for name in request.transactional_ids if name in names]

    def change(said: DescribeTransactionsResponse) -> None:
        for state in said.transaction_states:
            may = asker.may_topic
            state.topics = [t for t in state.topics if may(Operation.DESCRIBE, t.topic)]
        said.transaction_states.extend(
            DescribedTransactionState(
                error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transactional_id=name
            )
            for name in denied
        )

    return then(asker.go_on(request), change)


def list_transactions(asker: Asker, request: ListTransactionsRequest) -> Answer:
    """DESCRIBE on each transactional id: the others are not named."""

    def passes(state: ListedTransactionState) -> bool:
        return asker.may_transact(Operation.DESCRIBE, state.transactional_id)

    return then_keep(asker, asker.go_on(request), "transaction_states", passes)
