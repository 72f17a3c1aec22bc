"""Produce: record batches to append.

Versions below 13 identify topics by name. Version 13 and later versions identify topics by id.
Clients that don't know record batches use versions 0 to 2.

Source: Kafka's protocol guide, API 0; KIP-516 (topic ids), KIP-467 (errors of records), KIP-951
(the new leader in the response).
"""

from uuid import UUID

from tidelog.protocol.schema import INT16, INT32, INT64, message, wire
from tidelog.types import Buffer


@message
class PartitionProduceData:
    """Partition in the request, with the record batches to append."""

    index: int = wire(INT32)
    records: Buffer | None = wire()


@message
class TopicProduceData:
    """Topic in the request, with its partitions."""

    name: str = wire(until=12)
    topic_id: UUID = wire(since=13)
    partition_data: list[PartitionProduceData] = wire()


@message
class ProduceRequest:
    """Request to append record batches.

    With `acks` 0 there is no response. With `acks` 1, the broker responds when the leader has
    appended the batches; with `acks` -1, when all in-sync replicas have appended the batches.
    """

    transactional_id: str | None = wire(since=3)
    acks: int = wire(INT16)
    timeout_ms: int = wire(INT32)
    topic_data: list[TopicProduceData] = wire()


@message
class BatchIndexAndErrorMessage:
    """Rejected record: its index in the batch, and the reason."""

    batch_index: int = wire(INT32, since=8)
    batch_index_error_message: str | None = wire(since=8)


@message
class LeaderIdAndEpoch:
    """Current leader of the partition, for a client that sent its request to another broker."""

    leader_id: int = wire(INT32, since=10, default=-1)
    leader_epoch: int = wire(INT32, since=10, default=-1)


@message
class PartitionProduceResponse:
    """Partition in the response: the offset of the first record, or an error."""

    index: int = wire(INT32)
    error_code: int = wire(INT16)
    base_offset: int = wire(INT64, default=-1)
    log_append_time_ms: int = wire(INT64, since=2, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = wire(since=8)
    error_message: str | None = wire(since=8)
    current_leader: LeaderIdAndEpoch = wire(since=10, tag=0)


@message
class TopicProduceResponse:
    """Topic in the response, with its partitions."""

    name: str = wire(until=12)
    topic_id: UUID = wire(since=13)
    partition_responses: list[PartitionProduceResponse] = wire()


@message
class ProduceNodeEndpoint:
    """Address of a broker that `current_leader` refers to."""

    node_id: int = wire(INT32, since=10)
    host: str = wire(since=10)
    port: int = wire(INT32, since=10)
    rack: str | None = wire(since=10)


@message
class ProduceResponse:
    """Response with a result for each partition."""

    responses: list[TopicProduceResponse] = wire()
    throttle_time_ms: int = wire(INT32, since=1)
    node_endpoints: list[ProduceNodeEndpoint] = wire(since=10, tag=0)
