"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

Source: Kafka's protocol guide, APIs 19, 20, 21 and 37; KIP-4, KIP-107, KIP-195, KIP-516 (topic
ids), KIP-525 (settings of created topics).
"""

from uuid import UUID

from tidelog.protocol.messages.shared import ConfigValue, ThrottledResponse
from tidelog.protocol.schema import INT8, INT16, INT32, INT64, message, wire


@message
class CreatableReplicaAssignment:
    """Partition in the request, with the brokers of its replicas."""

    partition_index: int = wire(INT32)
    broker_ids: list[int] = wire(INT32)


@message
class CreatableTopic:
    """Topic to create.

    A partition count or replication factor of -1 means the broker's default. If the request assigns
    replicas to brokers, partition count and replication factor must be -1.
    """

    name: str = wire()
    num_partitions: int = wire(INT32)
    replication_factor: int = wire(INT16)
    assignments: list[CreatableReplicaAssignment] = wire()
    configs: list[ConfigValue] = wire()


@message
class CreateTopicsRequest:
    """Request to create topics or, with `validate_only`, only to check whether this is possible."""

    topics: list[CreatableTopic] = wire()
    timeout_ms: int = wire(INT32, default=60000)
    validate_only: bool = wire()


@message
class CreatableTopicConfigs:
    """Setting of the created topic."""

    name: str = wire(since=5)
    value: str | None = wire(since=5)
    read_only: bool = wire(since=5)
    config_source: int = wire(INT8, since=5, default=-1)
    is_sensitive: bool = wire(since=5)


@message
class CreatableTopicResult:
    """Result for one topic, with its id, partition count and settings."""

    name: str = wire()
    topic_id: UUID = wire(since=7)
    error_code: int = wire(INT16)
    error_message: str | None = wire()
    topic_config_error_code: int = wire(INT16, since=5, tag=0)
    num_partitions: int = wire(INT32, since=5, default=-1)
    replication_factor: int = wire(INT16, since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = wire(since=5)


@message
class CreateTopicsResponse(ThrottledResponse):
    """Response with a result for each topic."""

    topics: list[CreatableTopicResult] = wire()


@message
class DeleteTopicState:
    """Topic to delete, by name or id."""

    name: str | None = wire(since=6)
    topic_id: UUID = wire(since=6)


@message
class DeleteTopicsRequest:
    """Request to delete topics: by name up to version 5, by name or id from version 6."""

    topics: list[DeleteTopicState] = wire(since=6)
    topic_names: list[str] = wire(until=5)
    timeout_ms: int = wire(INT32)


@message
class DeletableTopicResult:
    """Result for one topic."""

    name: str | None = wire(default="", null_since=6)
    topic_id: UUID = wire(since=6)
    error_code: int = wire(INT16)
    error_message: str | None = wire(since=5)


@message
class DeleteTopicsResponse(ThrottledResponse):
    """Response with a result for each topic."""

    responses: list[DeletableTopicResult] = wire()


@message
class CreatePartitionsAssignment:
    """Brokers of a new partition's replicas."""

    broker_ids: list[int] = wire(INT32)


@message
class CreatePartitionsTopic:
    """Topic in the request, with its new total number of partitions."""

    name: str = wire()
    count: int = wire(INT32)
    assignments: list[CreatePartitionsAssignment] | None = wire()


@message
class CreatePartitionsRequest:
    """Request to add partitions to topics or, with `validate_only`, only to check the addition."""

    topics: list[CreatePartitionsTopic] = wire()
    timeout_ms: int = wire(INT32)
    validate_only: bool = wire()


@message
class CreatePartitionsTopicResult:
    """Result for one topic."""

    name: str = wire()
    error_code: int = wire(INT16)
    error_message: str | None = wire()


@message
class CreatePartitionsResponse(ThrottledResponse):
    """Response with a result for each topic."""

    results: list[CreatePartitionsTopicResult] = wire()


@message
class DeleteRecordsPartition:
    """Partition in the request, with its new log start offset; -1 means the high watermark."""

    partition_index: int = wire(INT32)
    offset: int = wire(INT64)


@message
class DeleteRecordsTopic:
    """Topic in the request, with its partitions."""

    name: str = wire()
    partitions: list[DeleteRecordsPartition] = wire()


@message
class DeleteRecordsRequest:
    """Request to delete records by advancing log start offsets."""

    topics: list[DeleteRecordsTopic] = wire()
    timeout_ms: int = wire(INT32)


@message
class DeleteRecordsPartitionResult:
    """Partition in the response, with its new log start offset; -1 after an error."""

    partition_index: int = wire(INT32)
    low_watermark: int = wire(INT64, default=-1)
    error_code: int = wire(INT16)


@message
class DeleteRecordsTopicResult:
    """Topic in the response, with its partitions."""

    name: str = wire()
    partitions: list[DeleteRecordsPartitionResult] = wire()


@message
class DeleteRecordsResponse(ThrottledResponse):
    """Response with the new log start offset of each partition."""

    topics: list[DeleteRecordsTopicResult] = wire()
