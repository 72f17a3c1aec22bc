"""Transactions and producers: InitProducerId, AddPartitionsToTxn, EndTxn, WriteTxnMarkers, ...

Source: Kafka's protocol guide, APIs 22, 24 to 27, 61, 65 and 66; KIP-98, KIP-360 (a new epoch),
KIP-664, KIP-890 (many transactions in a request, epochs in EndTxn's response), KIP-994, KIP-1152
(filters), KIP-1228 (transaction version in markers).
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Declaration,
    array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddPartitionsToTxnTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddPartitionsToTxnTransaction(Declaration):
    """A transaction, and what is to be in it, or (to be verified only) should be."""

    transactional_id: str = wire(STRING, since=4)
    producer_id: int = wire(INT64, since=4)
    producer_epoch: int = wire(INT16, since=4)
    verify_only: bool = wire(BOOLEAN, since=4)
    topics: list[AddPartitionsToTxnTopic] = wire(array(struct(AddPartitionsToTxnTopic)), since=4)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddPartitionsToTxnRequest(Declaration):
    """One transaction up to version 3, from a client; many after it, from brokers."""

    transactions: list[AddPartitionsToTxnTransaction] = wire(
        array(struct(AddPartitionsToTxnTransaction)), since=4
    )
    v3_and_below_transactional_id: str = wire(STRING, until=3)
    v3_and_below_producer_id: int = wire(INT64, until=3)
    v3_and_below_producer_epoch: int = wire(INT16, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = wire(
        array(struct(AddPartitionsToTxnTopic)), until=3
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddPartitionsToTxnPartitionResult(Declaration):
    """A partition."""

    partition_index: int = wire(INT32)
    partition_error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddPartitionsToTxnTopicResult(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire(
        array(struct(AddPartitionsToTxnPartitionResult))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddPartitionsToTxnResult(Declaration):
    """A transaction's partitions."""

    transactional_id: str = wire(STRING, since=4)
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(
        array(struct(AddPartitionsToTxnTopicResult)), since=4
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddPartitionsToTxnResponse(Declaration):
    """A code for each partition."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(
        array(struct(AddPartitionsToTxnResult)), since=4
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = wire(
        array(struct(AddPartitionsToTxnTopicResult)), until=3
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddOffsetsToTxnRequest(Declaration):
    """A group's offsets are to be committed with a transaction."""

    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    group_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddOffsetsToTxnResponse(Declaration):
    """Whether they may be."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class EndTxnRequest(Declaration):
    """Commit, or abort."""

    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    committed: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class EndTxnResponse(Declaration):
    """Whether it is; from version 5 on the id and epoch of the next transaction, -1 for none."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    producer_id: int = wire(INT64, since=5, default=-1)
    producer_epoch: int = wire(INT16, since=5, default=-1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeTransactionsRequest(Declaration):
    """What is known of these transactional ids?"""

    transactional_ids: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TopicData(Declaration):
    """A topic's partitions that are in a transaction."""

    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedTransactionState(Declaration):
    """What is known of one transactional id; times in ms."""

    error_code: int = wire(INT16)
    transactional_id: str = wire(STRING)
    transaction_state: str = wire(STRING)
    transaction_timeout_ms: int = wire(INT32)
    transaction_start_time_ms: int = wire(INT64)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    topics: list[TopicData] = wire(array(struct(TopicData)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeTransactionsResponse(Declaration):
    """What is known of each."""

    throttle_time_ms: int = wire(INT32)
    transaction_states: list[DescribedTransactionState] = wire(
        array(struct(DescribedTransactionState))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListTransactionsRequest(Declaration):
    """Which transactional ids are there? Empty filters, -1 and null let all pass."""

    state_filters: list[str] = wire(array(STRING))
    producer_id_filters: list[int] = wire(array(INT64))
    duration_filter: int = wire(INT64, since=1, default=-1)
    transactional_id_pattern: str | None = wire(nullable_string(), since=2)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListedTransactionState(Declaration):
    """One transactional id."""

    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    transaction_state: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListTransactionsResponse(Declaration):
    """Those that pass, and the names of states that nobody knows."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    unknown_state_filters: list[str] = wire(array(STRING))
    transaction_states: list[ListedTransactionState] = wire(array(struct(ListedTransactionState)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class InitProducerIdRequest(Declaration):
    """A producer id, or (from version 3 on) a new epoch for one."""

    transactional_id: str | None = wire(nullable_string())
    transaction_timeout_ms: int = wire(INT32)
    producer_id: int = wire(INT64, since=3, default=-1)
    producer_epoch: int = wire(INT16, since=3, default=-1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class InitProducerIdResponse(Declaration):
    """The id and its epoch; -1 with an error."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeProducersTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeProducersRequest(Declaration):
    """Which producers have written lately?"""

    topics: list[DescribeProducersTopic] = wire(array(struct(DescribeProducersTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ProducerState(Declaration):
    """What a log remembers of one producer; -1 for nothing."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeProducersPartitionResponse(Declaration):
    """The producers of one partition."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    active_producers: list[ProducerState] = wire(array(struct(ProducerState)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeProducersTopicResponse(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[DescribeProducersPartitionResponse] = wire(
        array(struct(DescribeProducersPartitionResponse))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeProducersResponse(Declaration):
    """The producers."""

    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeProducersTopicResponse] = wire(
        array(struct(DescribeProducersTopicResponse))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WritableTxnMarkerTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WritableTxnMarker(Declaration):
    """One producer's transaction, and how it ends."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    transaction_result: bool = wire(BOOLEAN)
    topics: list[WritableTxnMarkerTopic] = wire(array(struct(WritableTxnMarkerTopic)))
    coordinator_epoch: int = wire(INT32)
    transaction_version: int = wire(INT8, since=2)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WriteTxnMarkersRequest(Declaration):
    """End these transactions."""

    markers: list[WritableTxnMarker] = wire(array(struct(WritableTxnMarker)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WritableTxnMarkerPartitionResult(Declaration):
    """Whether a partition has its marker."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WritableTxnMarkerTopicResult(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[WritableTxnMarkerPartitionResult] = wire(
        array(struct(WritableTxnMarkerPartitionResult))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WritableTxnMarkerResult(Declaration):
    """One producer's."""

    producer_id: int = wire(INT64)
    topics: list[WritableTxnMarkerTopicResult] = wire(array(struct(WritableTxnMarkerTopicResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class WriteTxnMarkersResponse(Declaration):
    """How it went."""

    markers: list[WritableTxnMarkerResult] = wire(array(struct(WritableTxnMarkerResult)))
