"""Kafka's messages, declared from the public protocol; `BY_KEY` finds an API by its number.

A new API is one declaration of its request and response in a module here, a row for both, and its
name in `BY_KEY`; tests compare every declaration with Kafka's own, field by field. The rows are
light: a module of declarations is imported when an `Api` is first asked for its classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.protocol.messages.common import Api
from tidelog.protocol.schema import ANY_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from tidelog.protocol.messages.acls import (
        CreateAclsRequest,
        CreateAclsResponse,
        DeleteAclsRequest,
        DeleteAclsResponse,
        DescribeAclsRequest,
        DescribeAclsResponse,
    )
    from tidelog.protocol.messages.altered_configs import (
        AlterConfigsRequest,
        AlterConfigsResponse,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        ListConfigResourcesRequest,
        ListConfigResourcesResponse,
    )
    from tidelog.protocol.messages.cluster import (
        DescribeClusterRequest,
        DescribeClusterResponse,
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
    )
    from tidelog.protocol.messages.commits import (
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
    )
    from tidelog.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResponse
    from tidelog.protocol.messages.described_groups import (
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DescribeGroupsRequest,
        DescribeGroupsResponse,
    )
    from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
    from tidelog.protocol.messages.groups import (
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        ListGroupsRequest,
        ListGroupsResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
    )
    from tidelog.protocol.messages.membership import (
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )
    from tidelog.protocol.messages.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from tidelog.protocol.messages.offsets import (
        ListOffsetsRequest,
        ListOffsetsResponse,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
    )
    from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
    from tidelog.protocol.messages.producers import (
        DescribeProducersRequest,
        DescribeProducersResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
    )
    from tidelog.protocol.messages.replicas import (
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
        AlterReplicaLogDirsRequest,
        AlterReplicaLogDirsResponse,
        ElectLeadersRequest,
        ElectLeadersResponse,
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    )
    from tidelog.protocol.messages.topics import (
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DeleteTopicsRequest,
        DeleteTopicsResponse,
    )

AnyApi: TypeAlias = "Api[DataclassInstance, DataclassInstance]"

NEVER_FLEXIBLE: Final = ANY_VERSION + 1

# name, number, first and last version, first flexible version, module, first declared version
API_VERSIONS: Final[Api[ApiVersionsRequest, ApiVersionsResponse]] = Api(
    "ApiVersions", 18, 0, 4, 3, "metadata", 0
)
METADATA: Final[Api[MetadataRequest, MetadataResponse]] = Api(
    "Metadata", 3, 0, 13, 9, "metadata", 0
)
PRODUCE: Final[Api[ProduceRequest, ProduceResponse]] = Api("Produce", 0, 3, 13, 9, "produce", 0)
FETCH: Final[Api[FetchRequest, FetchResponse]] = Api("Fetch", 1, 4, 18, 12, "fetch", 0)
LIST_OFFSETS: Final[Api[ListOffsetsRequest, ListOffsetsResponse]] = Api(
    "ListOffsets", 2, 1, 11, 6, "offsets", 0
)
OFFSET_FOR_LEADER_EPOCH: Final[Api[OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse]] = (
    Api("OffsetForLeaderEpoch", 23, 2, 4, 4, "offsets", 2)
)
INIT_PRODUCER_ID: Final[Api[InitProducerIdRequest, InitProducerIdResponse]] = Api(
    "InitProducerId", 22, 0, 5, 2, "producers", 0
)
DESCRIBE_PRODUCERS: Final[Api[DescribeProducersRequest, DescribeProducersResponse]] = Api(
    "DescribeProducers", 61, 0, 0, 0, "producers", 0
)
CREATE_TOPICS: Final[Api[CreateTopicsRequest, CreateTopicsResponse]] = Api(
    "CreateTopics", 19, 2, 7, 5, "topics", 2
)
DELETE_TOPICS: Final[Api[DeleteTopicsRequest, DeleteTopicsResponse]] = Api(
    "DeleteTopics", 20, 1, 6, 4, "topics", 1
)
CREATE_PARTITIONS: Final[Api[CreatePartitionsRequest, CreatePartitionsResponse]] = Api(
    "CreatePartitions", 37, 0, 3, 2, "topics", 0
)
DELETE_RECORDS: Final[Api[DeleteRecordsRequest, DeleteRecordsResponse]] = Api(
    "DeleteRecords", 21, 0, 2, 2, "topics", 0
)
DESCRIBE_CONFIGS: Final[Api[DescribeConfigsRequest, DescribeConfigsResponse]] = Api(
    "DescribeConfigs", 32, 1, 4, 4, "configs", 1
)
ALTER_CONFIGS: Final[Api[AlterConfigsRequest, AlterConfigsResponse]] = Api(
    "AlterConfigs", 33, 0, 2, 2, "altered_configs", 0
)
INCREMENTAL_ALTER_CONFIGS: Final[
    Api[IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse]
] = Api("IncrementalAlterConfigs", 44, 0, 1, 1, "altered_configs", 0)
LIST_CONFIG_RESOURCES: Final[Api[ListConfigResourcesRequest, ListConfigResourcesResponse]] = Api(
    "ListConfigResources", 74, 0, 1, 0, "altered_configs", 0
)
DESCRIBE_CLUSTER: Final[Api[DescribeClusterRequest, DescribeClusterResponse]] = Api(
    "DescribeCluster", 60, 0, 2, 0, "cluster", 0
)
DESCRIBE_TOPIC_PARTITIONS: Final[
    Api[DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse]
] = Api("DescribeTopicPartitions", 75, 0, 0, 0, "cluster", 0)
DESCRIBE_LOG_DIRS: Final[Api[DescribeLogDirsRequest, DescribeLogDirsResponse]] = Api(
    "DescribeLogDirs", 35, 1, 5, 2, "cluster", 1
)
ALTER_REPLICA_LOG_DIRS: Final[Api[AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse]] = Api(
    "AlterReplicaLogDirs", 34, 1, 2, 2, "replicas", 1
)
ELECT_LEADERS: Final[Api[ElectLeadersRequest, ElectLeadersResponse]] = Api(
    "ElectLeaders", 43, 0, 2, 2, "replicas", 0
)
ALTER_PARTITION_REASSIGNMENTS: Final[
    Api[AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse]
] = Api("AlterPartitionReassignments", 45, 0, 1, 0, "replicas", 0)
LIST_PARTITION_REASSIGNMENTS: Final[
    Api[ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse]
] = Api("ListPartitionReassignments", 46, 0, 0, 0, "replicas", 0)
DESCRIBE_ACLS: Final[Api[DescribeAclsRequest, DescribeAclsResponse]] = Api(
    "DescribeAcls", 29, 1, 3, 2, "acls", 1
)
CREATE_ACLS: Final[Api[CreateAclsRequest, CreateAclsResponse]] = Api(
    "CreateAcls", 30, 1, 3, 2, "acls", 1
)
DELETE_ACLS: Final[Api[DeleteAclsRequest, DeleteAclsResponse]] = Api(
    "DeleteAcls", 31, 1, 3, 2, "acls", 1
)
FIND_COORDINATOR: Final[Api[FindCoordinatorRequest, FindCoordinatorResponse]] = Api(
    "FindCoordinator", 10, 0, 6, 3, "groups", 0
)
JOIN_GROUP: Final[Api[JoinGroupRequest, JoinGroupResponse]] = Api(
    "JoinGroup", 11, 0, 9, 6, "membership", 0
)
SYNC_GROUP: Final[Api[SyncGroupRequest, SyncGroupResponse]] = Api(
    "SyncGroup", 14, 0, 5, 4, "membership", 0
)
HEARTBEAT: Final[Api[HeartbeatRequest, HeartbeatResponse]] = Api(
    "Heartbeat", 12, 0, 4, 4, "membership", 0
)
LEAVE_GROUP: Final[Api[LeaveGroupRequest, LeaveGroupResponse]] = Api(
    "LeaveGroup", 13, 0, 5, 4, "membership", 0
)
LIST_GROUPS: Final[Api[ListGroupsRequest, ListGroupsResponse]] = Api(
    "ListGroups", 16, 0, 5, 3, "groups", 0
)
DESCRIBE_GROUPS: Final[Api[DescribeGroupsRequest, DescribeGroupsResponse]] = Api(
    "DescribeGroups", 15, 0, 6, 5, "described_groups", 0
)
DELETE_GROUPS: Final[Api[DeleteGroupsRequest, DeleteGroupsResponse]] = Api(
    "DeleteGroups", 42, 0, 2, 2, "described_groups", 0
)
OFFSET_COMMIT: Final[Api[OffsetCommitRequest, OffsetCommitResponse]] = Api(
    "OffsetCommit", 8, 2, 10, 8, "commits", 2
)
OFFSET_FETCH: Final[Api[OffsetFetchRequest, OffsetFetchResponse]] = Api(
    "OffsetFetch", 9, 1, 10, 6, "groups", 1
)
OFFSET_DELETE: Final[Api[OffsetDeleteRequest, OffsetDeleteResponse]] = Api(
    "OffsetDelete", 47, 0, 0, NEVER_FLEXIBLE, "commits", 0
)


def _by_key(*apis: AnyApi) -> Mapping[int, AnyApi]:
    return {api.key: api for api in apis}


BY_KEY: Final = _by_key(
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    API_VERSIONS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    ELECT_LEADERS,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_CONFIG_RESOURCES,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SYNC_GROUP,
)

__all__ = [
    "ALTER_CONFIGS",
    "ALTER_PARTITION_REASSIGNMENTS",
    "ALTER_REPLICA_LOG_DIRS",
    "API_VERSIONS",
    "BY_KEY",
    "CREATE_ACLS",
    "CREATE_PARTITIONS",
    "CREATE_TOPICS",
    "DELETE_ACLS",
    "DELETE_GROUPS",
    "DELETE_RECORDS",
    "DELETE_TOPICS",
    "DESCRIBE_ACLS",
    "DESCRIBE_CLUSTER",
    "DESCRIBE_CONFIGS",
    "DESCRIBE_GROUPS",
    "DESCRIBE_LOG_DIRS",
    "DESCRIBE_PRODUCERS",
    "DESCRIBE_TOPIC_PARTITIONS",
    "ELECT_LEADERS",
    "FETCH",
    "FIND_COORDINATOR",
    "HEARTBEAT",
    "INCREMENTAL_ALTER_CONFIGS",
    "INIT_PRODUCER_ID",
    "JOIN_GROUP",
    "LEAVE_GROUP",
    "LIST_CONFIG_RESOURCES",
    "LIST_GROUPS",
    "LIST_OFFSETS",
    "LIST_PARTITION_REASSIGNMENTS",
    "METADATA",
    "NEVER_FLEXIBLE",
    "OFFSET_COMMIT",
    "OFFSET_DELETE",
    "OFFSET_FETCH",
    "OFFSET_FOR_LEADER_EPOCH",
    "PRODUCE",
    "SYNC_GROUP",
    "AnyApi",
    "Api",
]
