"""Transactions and producers: InitProducerId, AddPartitionsToTxn, EndTxn, WriteTxnMarkers, ...

Source: Kafka's protocol guide, APIs 22, 24 to 27, 61, 65 and 66; KIP-98, KIP-360 (a new epoch),
KIP-664, KIP-890 (several transactions in a request, epochs in EndTxn's response), KIP-994, KIP-1152
(filters), KIP-1228 (transaction version in markers).
"""

from tidelog.protocol.messages.shared import (
    CodeResponse,
    NamedIndexes,
    NamedPartitions,
    PartitionCode,
    PartitionError,
    ThrottledResponse,
    TopicPartitions,
)
from tidelog.protocol.schema import INT8, INT16, INT32, INT64, message, wire


@message
class AddPartitionsToTxnTransaction:
    """Transaction in the request, with partitions to add (or to verify if `verify_only`)."""

    transactional_id: str = wire(since=4)
    producer_id: int = wire(INT64, since=4)
    producer_epoch: int = wire(INT16, since=4)
    verify_only: bool = wire(since=4)
    topics: list[NamedPartitions] = wire(since=4)


@message
class AddPartitionsToTxnRequest:
    """Request to add partitions to transactions, or to verify that they were added.

    Up to version 3 a client sends one transaction; from version 4 brokers send several.
    """

    transactions: list[AddPartitionsToTxnTransaction] = wire(since=4)
    v3_and_below_transactional_id: str = wire(until=3)
    v3_and_below_producer_id: int = wire(INT64, until=3)
    v3_and_below_producer_epoch: int = wire(INT16, until=3)
    v3_and_below_topics: list[NamedPartitions] = wire(until=3)


@message
class AddPartitionsToTxnPartitionResult:
    """Result for one partition."""

    partition_index: int = wire(INT32)
    partition_error_code: int = wire(INT16)


@message
class AddPartitionsToTxnTopicResult:
    """Topic in the response, with its partitions."""

    name: str = wire()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire()


@message
class AddPartitionsToTxnResult:
    """Transaction in the response, with its partitions."""

    transactional_id: str = wire(since=4)
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(since=4)


@message
class AddPartitionsToTxnResponse(ThrottledResponse):
    """Response with a result for each partition."""

    error_code: int = wire(INT16, since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = wire(until=3)


@message
class AddOffsetsToTxnRequest:
    """Request to add the offsets of a group to a transaction."""

    transactional_id: str = wire()
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    group_id: str = wire()


@message
class AddOffsetsToTxnResponse(CodeResponse):
    """Response to the addition of a group's offsets."""


@message
class EndTxnRequest:
    """Request to commit or abort a transaction."""

    transactional_id: str = wire()
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    committed: bool = wire()


@message
class EndTxnResponse(CodeResponse):
    """Response to the end of a transaction.

    From version 5 on, the response has the producer id and epoch for the next transaction. After an
    error, both are -1.
    """

    producer_id: int = wire(INT64, since=5, default=-1)
    producer_epoch: int = wire(INT16, since=5, default=-1)


@message
class DescribeTransactionsRequest:
    """Request for the state of transactional ids."""

    transactional_ids: list[str] = wire()


@message
class DescribedTransactionState:
    """State of one transactional id. Times are in ms."""

    error_code: int = wire(INT16)
    transactional_id: str = wire()
    transaction_state: str = wire()
    transaction_timeout_ms: int = wire(INT32)
    transaction_start_time_ms: int = wire(INT64)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    topics: list[TopicPartitions] = wire()


@message
class DescribeTransactionsResponse(ThrottledResponse):
    """Response with the state of each transactional id."""

    transaction_states: list[DescribedTransactionState] = wire()


@message
class ListTransactionsRequest:
    """Request for transactional ids that match filters.

    An empty list, the duration -1, and a null pattern match all transactional ids.
    """

    state_filters: list[str] = wire()
    producer_id_filters: list[int] = wire(INT64)
    duration_filter: int = wire(INT64, since=1, default=-1)
    transactional_id_pattern: str | None = wire(since=2)


@message
class ListedTransactionState:
    """Transactional id with its producer id and state."""

    transactional_id: str = wire()
    producer_id: int = wire(INT64)
    transaction_state: str = wire()


@message
class ListTransactionsResponse(CodeResponse):
    """Response with the matching transactional ids.

    `unknown_state_filters` has the states in the request's filter that the broker does not know.
    """

    unknown_state_filters: list[str] = wire()
    transaction_states: list[ListedTransactionState] = wire()


@message
class InitProducerIdRequest:
    """Request for a producer id, or (from version 3) for a new epoch of an existing producer id."""

    transactional_id: str | None = wire()
    transaction_timeout_ms: int = wire(INT32)
    producer_id: int = wire(INT64, since=3, default=-1)
    producer_epoch: int = wire(INT16, since=3, default=-1)


@message
class InitProducerIdResponse(CodeResponse):
    """Response with the producer id and its epoch. After an error, both are -1."""

    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16)


@message
class DescribeProducersRequest:
    """Request for the active producers of partitions."""

    topics: list[NamedIndexes] = wire()


@message
class ProducerState:
    """State of one producer in a partition. In a field, -1 means unknown."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


@message
class DescribeProducersPartitionResponse(PartitionError):
    """Partition in the response, with its active producers."""

    active_producers: list[ProducerState] = wire()


@message
class DescribeProducersTopicResponse:
    """Topic in the response, with its partitions."""

    name: str = wire()
    partitions: list[DescribeProducersPartitionResponse] = wire()


@message
class DescribeProducersResponse(ThrottledResponse):
    """Response with the active producers of each partition."""

    topics: list[DescribeProducersTopicResponse] = wire()


@message
class WritableTxnMarker:
    """Transaction of one producer to commit or abort, with its partitions."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    transaction_result: bool = wire()
    topics: list[NamedIndexes] = wire()
    coordinator_epoch: int = wire(INT32)
    transaction_version: int = wire(INT8, since=2)


@message
class WriteTxnMarkersRequest:
    """Request to write the markers that commit or abort transactions."""

    markers: list[WritableTxnMarker] = wire()


@message
class WritableTxnMarkerTopicResult:
    """Topic in the response, with its partitions."""

    name: str = wire()
    partitions: list[PartitionCode] = wire()


@message
class WritableTxnMarkerResult:
    """Producer in the response, with its topics."""

    producer_id: int = wire(INT64)
    topics: list[WritableTxnMarkerTopicResult] = wire()


@message
class WriteTxnMarkersResponse:
    """Response with a result for each partition."""

    markers: list[WritableTxnMarkerResult] = wire()
