"""ApiVersions and Metadata: what a broker can do, which brokers and topics there are.

Source: Kafka's protocol guide, APIs 18 and 3; KIP-511, KIP-516 (topic ids).
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.messages.common import NO_OPERATIONS
from tidelog.protocol.schema import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class ApiVersionsRequest:
    """Which APIs do you speak?"""

    client_software_name: str = wire(STRING, since=3)
    client_software_version: str = wire(STRING, since=3)


@dataclass(slots=True, kw_only=True)
class ApiVersion:
    """One API and its versions, both ends inclusive."""

    api_key: int = wire(INT16)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class SupportedFeature:
    """A feature that the broker could have."""

    name: str = wire(STRING, since=3)
    min_version: int = wire(INT16, since=3)
    max_version: int = wire(INT16, since=3)


@dataclass(slots=True, kw_only=True)
class FinalizedFeature:
    """A feature that the cluster has agreed on."""

    name: str = wire(STRING, since=3)
    max_version_level: int = wire(INT16, since=3)
    min_version_level: int = wire(INT16, since=3)


@dataclass(slots=True, kw_only=True)
class ApiVersionsResponse:
    """The APIs. With error 35 it is of version 0, whatever was asked."""

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


@dataclass(slots=True, kw_only=True)
class MetadataRequestTopic:
    """A topic, by name or (from version 12 on) by id."""

    topic_id: UUID = wire(UUID16, since=10)
    name: str | None = wire(nullable_string(since=10), default="")


@dataclass(slots=True, kw_only=True)
class MetadataRequest:
    """Which brokers and topics are there? Null asks for all topics (in version 0 none does)."""

    topics: list[MetadataRequestTopic] | None = wire(
        nullable_array(struct(MetadataRequestTopic), since=1)
    )
    allow_auto_topic_creation: bool = wire(BOOLEAN, since=4, default=True)
    include_cluster_authorized_operations: bool = wire(BOOLEAN, since=8, until=10)
    include_topic_authorized_operations: bool = wire(BOOLEAN, since=8)


@dataclass(slots=True, kw_only=True)
class MetadataBroker:
    """A broker and where it listens."""

    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(nullable_string(since=1), since=1)


@dataclass(slots=True, kw_only=True)
class MetadataPartition:
    """A partition and who leads it; leader -1 for nobody."""

    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, since=7, default=-1)
    replica_nodes: list[int] = wire(array(INT32))
    isr_nodes: list[int] = wire(array(INT32))
    offline_replicas: list[int] = wire(array(INT32), since=5)


@dataclass(slots=True, kw_only=True)
class MetadataTopic:
    """A topic with its partitions, in no order."""

    error_code: int = wire(INT16)
    name: str | None = wire(nullable_string(since=12), default="")
    topic_id: UUID = wire(UUID16, since=10)
    is_internal: bool = wire(BOOLEAN, since=1)
    partitions: list[MetadataPartition] = wire(array(struct(MetadataPartition)))
    topic_authorized_operations: int = wire(INT32, since=8, default=NO_OPERATIONS)


@dataclass(slots=True, kw_only=True)
class MetadataResponse:
    """Brokers and topics."""

    throttle_time_ms: int = wire(INT32, since=3)
    brokers: list[MetadataBroker] = wire(array(struct(MetadataBroker)))
    cluster_id: str | None = wire(nullable_string(since=2), since=2)
    controller_id: int = wire(INT32, since=1, default=-1)
    topics: list[MetadataTopic] = wire(array(struct(MetadataTopic)))
    cluster_authorized_operations: int = wire(INT32, since=8, until=10, default=NO_OPERATIONS)
    error_code: int = wire(INT16, since=13)
