"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

Source: Kafka's protocol guide, APIs 19, 20, 21 and 37; KIP-4, KIP-107, KIP-195, KIP-516 (topic
ids), KIP-525 (settings of created topics).
"""

from uuid import UUID

from tidelog.protocol.messages.shared import ConfigValue, ThrottledResponse
from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    message,
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@message
class CreatableReplicaAssignment:
    """Partition in the request, with the brokers of its replicas."""

    partition_index: int = wire(INT32)
    broker_ids: list[int] = wire(array(INT32))


@message
class CreatableTopic:
    """Topic to create.

    A partition count or replication factor of -1 means the broker's default. If the request assigns
    replicas to brokers, partition count and replication factor must be -1.
    """

    name: str = wire(STRING)
    num_partitions: int = wire(INT32)
    replication_factor: int = wire(INT16)
    assignments: list[CreatableReplicaAssignment] = wire(array(struct(CreatableReplicaAssignment)))
    configs: list[ConfigValue] = wire(array(struct(ConfigValue)))


@message
class CreateTopicsRequest:
    """Request to create topics or, with `validate_only`, only to check whether this is possible."""

    topics: list[CreatableTopic] = wire(array(struct(CreatableTopic)))
    timeout_ms: int = wire(INT32, default=60000)
    validate_only: bool = wire(BOOLEAN)


@message
class CreatableTopicConfigs:
    """Setting of the created topic."""

    name: str = wire(STRING, since=5)
    value: str | None = wire(nullable_string(), since=5)
    read_only: bool = wire(BOOLEAN, since=5)
    config_source: int = wire(INT8, since=5, default=-1)
    is_sensitive: bool = wire(BOOLEAN, since=5)


@message
class CreatableTopicResult:
    """Result for one topic, with its id, partition count and settings."""

    name: str = wire(STRING)
    topic_id: UUID = wire(UUID16, since=7)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    topic_config_error_code: int = wire(INT16, since=5, tag=0)
    num_partitions: int = wire(INT32, since=5, default=-1)
    replication_factor: int = wire(INT16, since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = wire(
        nullable_array(struct(CreatableTopicConfigs)), since=5
    )


@message
class CreateTopicsResponse(ThrottledResponse):
    """Response with a result for each topic."""

    topics: list[CreatableTopicResult] = wire(array(struct(CreatableTopicResult)))


@message
class DeleteTopicState:
    """Topic to delete, by name or id."""

    name: str | None = wire(nullable_string(), since=6)
    topic_id: UUID = wire(UUID16, since=6)


@message
class DeleteTopicsRequest:
    """Request to delete topics: by name up to version 5, by name or id from version 6."""

    topics: list[DeleteTopicState] = wire(array(struct(DeleteTopicState)), since=6)
    topic_names: list[str] = wire(array(STRING), until=5)
    timeout_ms: int = wire(INT32)


@message
class DeletableTopicResult:
    """Result for one topic."""

    name: str | None = wire(nullable_string(since=6), default="")
    topic_id: UUID = wire(UUID16, since=6)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string(), since=5)


@message
class DeleteTopicsResponse(ThrottledResponse):
    """Response with a result for each topic."""

    responses: list[DeletableTopicResult] = wire(array(struct(DeletableTopicResult)))


@message
class CreatePartitionsAssignment:
    """Brokers of a new partition's replicas."""

    broker_ids: list[int] = wire(array(INT32))


@message
class CreatePartitionsTopic:
    """Topic in the request, with its new total number of partitions."""

    name: str = wire(STRING)
    count: int = wire(INT32)
    assignments: list[CreatePartitionsAssignment] | None = wire(
        nullable_array(struct(CreatePartitionsAssignment))
    )


@message
class CreatePartitionsRequest:
    """Request to add partitions to topics or, with `validate_only`, only to check the addition."""

    topics: list[CreatePartitionsTopic] = wire(array(struct(CreatePartitionsTopic)))
    timeout_ms: int = wire(INT32)
    validate_only: bool = wire(BOOLEAN)


@message
class CreatePartitionsTopicResult:
    """Result for one topic."""

    name: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@message
class CreatePartitionsResponse(ThrottledResponse):
    """Response with a result for each topic."""

    results: list[CreatePartitionsTopicResult] = wire(array(struct(CreatePartitionsTopicResult)))


@message
class DeleteRecordsPartition:
    """Partition in the request, with its new log start offset; -1 means the high watermark."""

    partition_index: int = wire(INT32)
    offset: int = wire(INT64)


@message
class DeleteRecordsTopic:
    """Topic in the request, with its partitions."""

    name: str = wire(STRING)
    partitions: list[DeleteRecordsPartition] = wire(array(struct(DeleteRecordsPartition)))


@message
class DeleteRecordsRequest:
    """Request to delete records by advancing log start offsets."""

    topics: list[DeleteRecordsTopic] = wire(array(struct(DeleteRecordsTopic)))
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

    name: str = wire(STRING)
    partitions: list[DeleteRecordsPartitionResult] = wire(
        array(struct(DeleteRecordsPartitionResult))
    )


@message
class DeleteRecordsResponse(ThrottledResponse):
    """Response with the new log start offset of each partition."""

    topics: list[DeleteRecordsTopicResult] = wire(array(struct(DeleteRecordsTopicResult)))
