"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

Source: Kafka's protocol guide, APIs 19, 20, 21 and 37; KIP-4, KIP-107, KIP-195, KIP-516 (topic
ids), KIP-525 (settings of created topics).
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID16,
    Declaration,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatableReplicaAssignment(Declaration):
    """Which brokers have a partition."""

    partition_index: int = wire(INT32)
    broker_ids: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatableTopicConfig(Declaration):
    """A setting of the new topic."""

    name: str = wire(STRING)
    value: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatableTopic(Declaration):
    """A new topic; -1 for the default count or factor, or where assignments say it."""

    name: str = wire(STRING)
    num_partitions: int = wire(INT32)
    replication_factor: int = wire(INT16)
    assignments: list[CreatableReplicaAssignment] = wire(array(struct(CreatableReplicaAssignment)))
    configs: list[CreatableTopicConfig] = wire(array(struct(CreatableTopicConfig)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreateTopicsRequest(Declaration):
    """New topics."""

    topics: list[CreatableTopic] = wire(array(struct(CreatableTopic)))
    timeout_ms: int = wire(INT32, default=60000)
    validate_only: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatableTopicConfigs(Declaration):
    """A setting that the topic now has."""

    name: str = wire(STRING, since=5)
    value: str | None = wire(nullable_string(), since=5)
    read_only: bool = wire(BOOLEAN, since=5)
    config_source: int = wire(INT8, since=5, default=-1)
    is_sensitive: bool = wire(BOOLEAN, since=5)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatableTopicResult(Declaration):
    """A topic as it was created, or why it was not."""

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


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreateTopicsResponse(Declaration):
    """What was created."""

    throttle_time_ms: int = wire(INT32)
    topics: list[CreatableTopicResult] = wire(array(struct(CreatableTopicResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteTopicState(Declaration):
    """A topic, by name or by id."""

    name: str | None = wire(nullable_string(), since=6)
    topic_id: UUID = wire(UUID16, since=6)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteTopicsRequest(Declaration):
    """Topics to delete: names up to version 5, names or ids after it."""

    topics: list[DeleteTopicState] = wire(array(struct(DeleteTopicState)), since=6)
    topic_names: list[str] = wire(array(STRING), until=5)
    timeout_ms: int = wire(INT32)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeletableTopicResult(Declaration):
    """A topic, or why it is still there."""

    name: str | None = wire(nullable_string(since=6), default="")
    topic_id: UUID = wire(UUID16, since=6)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string(), since=5)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteTopicsResponse(Declaration):
    """What was deleted."""

    throttle_time_ms: int = wire(INT32)
    responses: list[DeletableTopicResult] = wire(array(struct(DeletableTopicResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatePartitionsAssignment(Declaration):
    """Which brokers have a new partition."""

    broker_ids: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatePartitionsTopic(Declaration):
    """A topic and how many partitions it shall have in all."""

    name: str = wire(STRING)
    count: int = wire(INT32)
    assignments: list[CreatePartitionsAssignment] | None = wire(
        nullable_array(struct(CreatePartitionsAssignment))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatePartitionsRequest(Declaration):
    """More partitions."""

    topics: list[CreatePartitionsTopic] = wire(array(struct(CreatePartitionsTopic)))
    timeout_ms: int = wire(INT32)
    validate_only: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatePartitionsTopicResult(Declaration):
    """A topic, or why it has no new partitions."""

    name: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CreatePartitionsResponse(Declaration):
    """What was added."""

    throttle_time_ms: int = wire(INT32)
    results: list[CreatePartitionsTopicResult] = wire(array(struct(CreatePartitionsTopicResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteRecordsPartition(Declaration):
    """The offset to begin at; -1 for the high watermark."""

    partition_index: int = wire(INT32)
    offset: int = wire(INT64)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteRecordsTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[DeleteRecordsPartition] = wire(array(struct(DeleteRecordsPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteRecordsRequest(Declaration):
    """Move the starts of logs."""

    topics: list[DeleteRecordsTopic] = wire(array(struct(DeleteRecordsTopic)))
    timeout_ms: int = wire(INT32)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteRecordsPartitionResult(Declaration):
    """The new log start offset; -1 with an error."""

    partition_index: int = wire(INT32)
    low_watermark: int = wire(INT64)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteRecordsTopicResult(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[DeleteRecordsPartitionResult] = wire(
        array(struct(DeleteRecordsPartitionResult))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteRecordsResponse(Declaration):
    """Where the logs begin now."""

    throttle_time_ms: int = wire(INT32)
    topics: list[DeleteRecordsTopicResult] = wire(array(struct(DeleteRecordsTopicResult)))
