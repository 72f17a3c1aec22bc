"""ApiVersions, Metadata, DescribeCluster and DescribeTopicPartitions.

Source: Kafka's protocol guide, APIs 3, 18, 60 and 75; KIP-511, KIP-516 (topic ids), KIP-700,
KIP-966.
"""

from uuid import UUID

from tidelog.protocol.messages.shared import (
    ErrorResponse,
    ThrottledResponse,
    TopicName,
)
from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_OPERATIONS,
    STRING,
    UUID16,
    array,
    message,
    nullable_array,
    nullable_string,
    nullable_struct,
    struct,
    wire,
)


@message
class ApiVersionsRequest:
    """Request for the APIs and versions that the broker supports."""

    client_software_name: str = wire(STRING, since=3)
    client_software_version: str = wire(STRING, since=3)


@message
class ApiVersion:
    """API with its first and last supported version, both inclusive."""

    api_key: int = wire(INT16)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


@message
class SupportedFeature:
    """Feature that the broker supports, with its range of levels."""

    name: str = wire(STRING, since=3)
    min_version: int = wire(INT16, since=3)
    max_version: int = wire(INT16, since=3)


@message
class FinalizedFeature:
    """Feature that is active in the cluster, with its range of levels."""

    name: str = wire(STRING, since=3)
    max_version_level: int = wire(INT16, since=3)
    min_version_level: int = wire(INT16, since=3)


@message
class ApiVersionsResponse:
    """Response with the supported APIs.

    A response with the error UNSUPPORTED_VERSION is encoded in version 0.
    """

    error_code: int = wire(INT16)
    api_keys: list[ApiVersion] = wire(array(struct(ApiVersion)))
    throttle_time_ms: int = wire(INT32, since=1)
    supported_features: list[SupportedFeature] = wire(
        array(struct(SupportedFeature)), since=3, tag=0
    )
    finalized_features_epoch: int = wire(INT64, since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeature] = wire(
        array(struct(FinalizedFeature)), since=3, tag=2
    )
    zk_migration_ready: bool = wire(BOOLEAN, since=3, tag=3)


@message
class MetadataRequestTopic:
    """Topic in the request, by name or (from version 12) by id."""

    topic_id: UUID = wire(UUID16, since=10)
    name: str | None = wire(nullable_string(since=10), default="")


@message
class MetadataRequest:
    """Request for brokers and topics.

    Null `topics` mean all topics. In version 0, an empty list means all topics.
    """

    topics: list[MetadataRequestTopic] | None = wire(
        nullable_array(struct(MetadataRequestTopic), since=1)
    )
    allow_auto_topic_creation: bool = wire(BOOLEAN, since=4, default=True)
    include_cluster_authorized_operations: bool = wire(BOOLEAN, since=8, until=10)
    include_topic_authorized_operations: bool = wire(BOOLEAN, since=8)


@message
class MetadataBroker:
    """Broker with its address."""

    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(nullable_string(since=1), since=1)


@message
class MetadataPartition:
    """Partition with its leader and replicas. Without a leader, `leader_id` is -1."""

    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, since=7, default=-1)
    replica_nodes: list[int] = wire(array(INT32))
    isr_nodes: list[int] = wire(array(INT32))
    offline_replicas: list[int] = wire(array(INT32), since=5)


@message
class MetadataTopic:
    """Topic with its partitions, in no particular order."""

    error_code: int = wire(INT16)
    name: str | None = wire(nullable_string(since=12), default="")
    topic_id: UUID = wire(UUID16, since=10)
    is_internal: bool = wire(BOOLEAN, since=1)
    partitions: list[MetadataPartition] = wire(array(struct(MetadataPartition)))
    topic_authorized_operations: int = wire(INT32, since=8, default=NO_OPERATIONS)


@message
class MetadataResponse:
    """Response with the brokers and topics."""

    throttle_time_ms: int = wire(INT32, since=3)
    brokers: list[MetadataBroker] = wire(array(struct(MetadataBroker)))
    cluster_id: str | None = wire(nullable_string(since=2), since=2)
    controller_id: int = wire(INT32, since=1, default=-1)
    topics: list[MetadataTopic] = wire(array(struct(MetadataTopic)))
    cluster_authorized_operations: int = wire(INT32, since=8, until=10, default=NO_OPERATIONS)
    error_code: int = wire(INT16, since=13)


@message
class DescribeClusterRequest:
    """Request for the brokers of the cluster."""

    include_cluster_authorized_operations: bool = wire(BOOLEAN)
    endpoint_type: int = wire(INT8, since=1, default=1)
    include_fenced_brokers: bool = wire(BOOLEAN, since=2)


@message
class DescribeClusterBroker:
    """Broker with its address."""

    broker_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(nullable_string())
    is_fenced: bool = wire(BOOLEAN, since=2)


@message
class DescribeClusterResponse(ErrorResponse):
    """Response with the brokers of the cluster."""

    endpoint_type: int = wire(INT8, since=1, default=1)
    cluster_id: str = wire(STRING)
    controller_id: int = wire(INT32, default=-1)
    brokers: list[DescribeClusterBroker] = wire(array(struct(DescribeClusterBroker)))
    cluster_authorized_operations: int = wire(INT32, default=NO_OPERATIONS)


@message
class Cursor:
    """Start of a page: its first topic and partition."""

    topic_name: str = wire(STRING)
    partition_index: int = wire(INT32)


@message
class DescribeTopicPartitionsRequest:
    """Request for the partitions of topics, in pages of at most `response_partition_limit`."""

    topics: list[TopicName] = wire(array(struct(TopicName)))
    response_partition_limit: int = wire(INT32, default=2000)
    cursor: Cursor | None = wire(nullable_struct(Cursor))


@message
class DescribedPartition:
    """Partition with its leader and replicas. Without a leader, `leader_id` is -1."""

    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    replica_nodes: list[int] = wire(array(INT32))
    isr_nodes: list[int] = wire(array(INT32))
    eligible_leader_replicas: list[int] | None = wire(nullable_array(INT32))
    last_known_elr: list[int] | None = wire(nullable_array(INT32))
    offline_replicas: list[int] = wire(array(INT32))


@message
class DescribedTopic:
    """Topic with its partitions."""

    error_code: int = wire(INT16)
    name: str | None = wire(nullable_string())
    topic_id: UUID = wire(UUID16)
    is_internal: bool = wire(BOOLEAN)
    partitions: list[DescribedPartition] = wire(array(struct(DescribedPartition)))
    topic_authorized_operations: int = wire(INT32, default=NO_OPERATIONS)


@message
class DescribeTopicPartitionsResponse(ThrottledResponse):
    """Response with one page of partitions, in order. On the last page, `next_cursor` is null."""

    topics: list[DescribedTopic] = wire(array(struct(DescribedTopic)))
    next_cursor: Cursor | None = wire(nullable_struct(Cursor))
