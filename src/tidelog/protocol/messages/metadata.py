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
from tidelog.protocol.schema import INT8, INT16, INT32, INT64, NO_OPERATIONS, message, wire


@message
class ApiVersionsRequest:
    """Request for the APIs and versions that the broker supports."""

    client_software_name: str = wire(since=3)
    client_software_version: str = wire(since=3)


@message
class ApiVersion:
    """API with its first and last supported version, both inclusive."""

    api_key: int = wire(INT16)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


@message
class SupportedFeature:
    """Feature that the broker supports, with its range of levels."""

    name: str = wire(since=3)
    min_version: int = wire(INT16, since=3)
    max_version: int = wire(INT16, since=3)


@message
class FinalizedFeature:
    """Feature that is active in the cluster, with its range of levels."""

    name: str = wire(since=3)
    max_version_level: int = wire(INT16, since=3)
    min_version_level: int = wire(INT16, since=3)


@message
class ApiVersionsResponse:
    """Response with the supported APIs.

    A response with the error UNSUPPORTED_VERSION is encoded in version 0.
    """

    error_code: int = wire(INT16)
    api_keys: list[ApiVersion] = wire()
    throttle_time_ms: int = wire(INT32, since=1)
    supported_features: list[SupportedFeature] = wire(since=3, tag=0)
    finalized_features_epoch: int = wire(INT64, since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeature] = wire(since=3, tag=2)
    zk_migration_ready: bool = wire(since=3, tag=3)


@message
class MetadataRequestTopic:
    """Topic in the request, by name or (from version 12) by id."""

    topic_id: UUID = wire(since=10)
    name: str | None = wire(default="", null_since=10)


@message
class MetadataRequest:
    """Request for brokers and topics.

    Null `topics` mean all topics. In version 0, an empty list means all topics.
    """

    topics: list[MetadataRequestTopic] | None = wire(null_since=1)
    allow_auto_topic_creation: bool = wire(since=4, default=True)
    include_cluster_authorized_operations: bool = wire(since=8, until=10)
    include_topic_authorized_operations: bool = wire(since=8)


@message
class MetadataBroker:
    """Broker with its address."""

    node_id: int = wire(INT32)
    host: str = wire()
    port: int = wire(INT32)
    rack: str | None = wire(since=1)


@message
class MetadataPartition:
    """Partition with its leader and replicas. Without a leader, `leader_id` is -1."""

    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, since=7, default=-1)
    replica_nodes: list[int] = wire(INT32)
    isr_nodes: list[int] = wire(INT32)
    offline_replicas: list[int] = wire(INT32, since=5)


@message
class MetadataTopic:
    """Topic with its partitions, in no particular order."""

    error_code: int = wire(INT16)
    name: str | None = wire(default="", null_since=12)
    topic_id: UUID = wire(since=10)
    is_internal: bool = wire(since=1)
    partitions: list[MetadataPartition] = wire()
    topic_authorized_operations: int = wire(INT32, since=8, default=NO_OPERATIONS)


@message
class MetadataResponse:
    """Response with the brokers and topics."""

    throttle_time_ms: int = wire(INT32, since=3)
    brokers: list[MetadataBroker] = wire()
    cluster_id: str | None = wire(since=2)
    controller_id: int = wire(INT32, since=1, default=-1)
    topics: list[MetadataTopic] = wire()
    cluster_authorized_operations: int = wire(INT32, since=8, until=10, default=NO_OPERATIONS)
    error_code: int = wire(INT16, since=13)


@message
class DescribeClusterRequest:
    """Request for the brokers of the cluster."""

    include_cluster_authorized_operations: bool = wire()
    endpoint_type: int = wire(INT8, since=1, default=1)
    include_fenced_brokers: bool = wire(since=2)


@message
class DescribeClusterBroker:
    """Broker with its address."""

    broker_id: int = wire(INT32)
    host: str = wire()
    port: int = wire(INT32)
    rack: str | None = wire()
    is_fenced: bool = wire(since=2)


@message
class DescribeClusterResponse(ErrorResponse):
    """Response with the brokers of the cluster."""

    endpoint_type: int = wire(INT8, since=1, default=1)
    cluster_id: str = wire()
    controller_id: int = wire(INT32, default=-1)
    brokers: list[DescribeClusterBroker] = wire()
    cluster_authorized_operations: int = wire(INT32, default=NO_OPERATIONS)


@message
class Cursor:
    """Start of a page: its first topic and partition."""

    topic_name: str = wire()
    partition_index: int = wire(INT32)


@message
class DescribeTopicPartitionsRequest:
    """Request for the partitions of topics, in pages of at most `response_partition_limit`."""

    topics: list[TopicName] = wire()
    response_partition_limit: int = wire(INT32, default=2000)
    cursor: Cursor | None = wire()


@message
class DescribedPartition:
    """Partition with its leader and replicas. Without a leader, `leader_id` is -1."""

    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    replica_nodes: list[int] = wire(INT32)
    isr_nodes: list[int] = wire(INT32)
    eligible_leader_replicas: list[int] | None = wire(INT32)
    last_known_elr: list[int] | None = wire(INT32)
    offline_replicas: list[int] = wire(INT32)


@message
class DescribedTopic:
    """Topic with its partitions."""

    error_code: int = wire(INT16)
    name: str | None = wire()
    topic_id: UUID = wire()
    is_internal: bool = wire()
    partitions: list[DescribedPartition] = wire()
    topic_authorized_operations: int = wire(INT32, default=NO_OPERATIONS)


@message
class DescribeTopicPartitionsResponse(ThrottledResponse):
    """Response with one page of partitions, in order. On the last page, `next_cursor` is null."""

    topics: list[DescribedTopic] = wire()
    next_cursor: Cursor | None = wire()
