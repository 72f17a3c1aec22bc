"""Kafka's messages, declared from the public protocol. `BY_KEY` maps an API key to its `Api`.

To add an API, declare its request and response in a module here and add one row to `BY_KEY`. Tests
compare every declaration with Kafka's own, field by field. A row costs little: the module with the
declarations is imported when the classes of an `Api` are first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.protocol.schema import ANY_VERSION, Api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from tidelog.protocol.messages.classic_groups import (
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DescribeGroupsRequest,
        DescribeGroupsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        ListGroupsRequest,
        ListGroupsResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )
    from tidelog.protocol.messages.cluster import (
        AddRaftVoterRequest,
        AddRaftVoterResponse,
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
        AlterReplicaLogDirsRequest,
        AlterReplicaLogDirsResponse,
        DescribeQuorumRequest,
        DescribeQuorumResponse,
        ElectLeadersRequest,
        ElectLeadersResponse,
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
        RemoveRaftVoterRequest,
        RemoveRaftVoterResponse,
        UnregisterBrokerRequest,
        UnregisterBrokerResponse,
        UpdateFeaturesRequest,
        UpdateFeaturesResponse,
    )
    from tidelog.protocol.messages.configs import (
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
        AlterConfigsRequest,
        AlterConfigsResponse,
        DescribeClientQuotasRequest,
        DescribeClientQuotasResponse,
        DescribeConfigsRequest,
        DescribeConfigsResponse,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        ListConfigResourcesRequest,
        ListConfigResourcesResponse,
    )
    from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
    from tidelog.protocol.messages.group_offsets import (
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
    )
    from tidelog.protocol.messages.list_offsets import (
        ListOffsetsRequest,
        ListOffsetsResponse,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
    )
    from tidelog.protocol.messages.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        DescribeClusterRequest,
        DescribeClusterResponse,
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from tidelog.protocol.messages.modern_groups import (
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponse,
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
        ShareGroupDescribeRequest,
        ShareGroupDescribeResponse,
        ShareGroupHeartbeatRequest,
        ShareGroupHeartbeatResponse,
    )
    from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
    from tidelog.protocol.messages.security import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
        CreateAclsRequest,
        CreateAclsResponse,
        DeleteAclsRequest,
        DeleteAclsResponse,
        DescribeAclsRequest,
        DescribeAclsResponse,
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )
    from tidelog.protocol.messages.share_fetch import (
        ShareAcknowledgeRequest,
        ShareAcknowledgeResponse,
        ShareFetchRequest,
        ShareFetchResponse,
    )
    from tidelog.protocol.messages.share_offsets import (
        AlterShareGroupOffsetsRequest,
        AlterShareGroupOffsetsResponse,
        DeleteShareGroupOffsetsRequest,
        DeleteShareGroupOffsetsResponse,
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsResponse,
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
    from tidelog.protocol.messages.transactions import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        DescribeProducersRequest,
        DescribeProducersResponse,
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ListTransactionsRequest,
        ListTransactionsResponse,
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )

AnyApi: TypeAlias = "Api[DataclassInstance, DataclassInstance]"

NEVER_FLEXIBLE: Final = ANY_VERSION + 1

# Arguments: name, API key, first and last version, first flexible version, module, first declared
# version.
API_VERSIONS: Final[Api[ApiVersionsRequest, ApiVersionsResponse]] = Api(
    "ApiVersions", 18, 0, 4, 3, "metadata", 0
)
METADATA: Final[Api[MetadataRequest, MetadataResponse]] = Api(
    "Metadata", 3, 0, 13, 9, "metadata", 0
)
PRODUCE: Final[Api[ProduceRequest, ProduceResponse]] = Api("Produce", 0, 3, 13, 9, "produce", 0)
FETCH: Final[Api[FetchRequest, FetchResponse]] = Api("Fetch", 1, 4, 18, 12, "fetch", 0)
LIST_OFFSETS: Final[Api[ListOffsetsRequest, ListOffsetsResponse]] = Api(
    "ListOffsets", 2, 1, 11, 6, "list_offsets", 0
)
OFFSET_FOR_LEADER_EPOCH: Final[Api[OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse]] = (
    Api("OffsetForLeaderEpoch", 23, 2, 4, 4, "list_offsets", 2)
)
INIT_PRODUCER_ID: Final[Api[InitProducerIdRequest, InitProducerIdResponse]] = Api(
    "InitProducerId", 22, 0, 5, 2, "transactions", 0
)
DESCRIBE_PRODUCERS: Final[Api[DescribeProducersRequest, DescribeProducersResponse]] = Api(
    "DescribeProducers", 61, 0, 0, 0, "transactions", 0
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
    "AlterConfigs", 33, 0, 2, 2, "configs", 0
)
INCREMENTAL_ALTER_CONFIGS: Final[
    Api[IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse]
] = Api("IncrementalAlterConfigs", 44, 0, 1, 1, "configs", 0)
LIST_CONFIG_RESOURCES: Final[Api[ListConfigResourcesRequest, ListConfigResourcesResponse]] = Api(
    "ListConfigResources", 74, 0, 1, 0, "configs", 0
)
DESCRIBE_CLUSTER: Final[Api[DescribeClusterRequest, DescribeClusterResponse]] = Api(
    "DescribeCluster", 60, 0, 2, 0, "metadata", 0
)
DESCRIBE_TOPIC_PARTITIONS: Final[
    Api[DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse]
] = Api("DescribeTopicPartitions", 75, 0, 0, 0, "metadata", 0)
DESCRIBE_LOG_DIRS: Final[Api[DescribeLogDirsRequest, DescribeLogDirsResponse]] = Api(
    "DescribeLogDirs", 35, 1, 5, 2, "metadata", 1
)
ALTER_REPLICA_LOG_DIRS: Final[Api[AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse]] = Api(
    "AlterReplicaLogDirs", 34, 1, 2, 2, "cluster", 1
)
ELECT_LEADERS: Final[Api[ElectLeadersRequest, ElectLeadersResponse]] = Api(
    "ElectLeaders", 43, 0, 2, 2, "cluster", 0
)
ALTER_PARTITION_REASSIGNMENTS: Final[
    Api[AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse]
] = Api("AlterPartitionReassignments", 45, 0, 1, 0, "cluster", 0)
LIST_PARTITION_REASSIGNMENTS: Final[
    Api[ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse]
] = Api("ListPartitionReassignments", 46, 0, 0, 0, "cluster", 0)
DESCRIBE_ACLS: Final[Api[DescribeAclsRequest, DescribeAclsResponse]] = Api(
    "DescribeAcls", 29, 1, 3, 2, "security", 1
)
DESCRIBE_CLIENT_QUOTAS: Final[Api[DescribeClientQuotasRequest, DescribeClientQuotasResponse]] = Api(
    "DescribeClientQuotas", 48, 0, 1, 1, "configs", 0
)
ALTER_CLIENT_QUOTAS: Final[Api[AlterClientQuotasRequest, AlterClientQuotasResponse]] = Api(
    "AlterClientQuotas", 49, 0, 1, 1, "configs", 0
)
DESCRIBE_QUORUM: Final[Api[DescribeQuorumRequest, DescribeQuorumResponse]] = Api(
    "DescribeQuorum", 55, 0, 2, 0, "cluster", 0
)
UPDATE_FEATURES: Final[Api[UpdateFeaturesRequest, UpdateFeaturesResponse]] = Api(
    "UpdateFeatures", 57, 0, 2, 0, "cluster", 0
)
UNREGISTER_BROKER: Final[Api[UnregisterBrokerRequest, UnregisterBrokerResponse]] = Api(
    "UnregisterBroker", 64, 0, 0, 0, "cluster", 0
)
ADD_RAFT_VOTER: Final[Api[AddRaftVoterRequest, AddRaftVoterResponse]] = Api(
    "AddRaftVoter", 80, 0, 1, 0, "cluster", 0
)
REMOVE_RAFT_VOTER: Final[Api[RemoveRaftVoterRequest, RemoveRaftVoterResponse]] = Api(
    "RemoveRaftVoter", 81, 0, 0, 0, "cluster", 0
)
CREATE_ACLS: Final[Api[CreateAclsRequest, CreateAclsResponse]] = Api(
    "CreateAcls", 30, 1, 3, 2, "security", 1
)
DELETE_ACLS: Final[Api[DeleteAclsRequest, DeleteAclsResponse]] = Api(
    "DeleteAcls", 31, 1, 3, 2, "security", 1
)
FIND_COORDINATOR: Final[Api[FindCoordinatorRequest, FindCoordinatorResponse]] = Api(
    "FindCoordinator", 10, 0, 6, 3, "classic_groups", 0
)
JOIN_GROUP: Final[Api[JoinGroupRequest, JoinGroupResponse]] = Api(
    "JoinGroup", 11, 0, 9, 6, "classic_groups", 0
)
SYNC_GROUP: Final[Api[SyncGroupRequest, SyncGroupResponse]] = Api(
    "SyncGroup", 14, 0, 5, 4, "classic_groups", 0
)
HEARTBEAT: Final[Api[HeartbeatRequest, HeartbeatResponse]] = Api(
    "Heartbeat", 12, 0, 4, 4, "classic_groups", 0
)
LEAVE_GROUP: Final[Api[LeaveGroupRequest, LeaveGroupResponse]] = Api(
    "LeaveGroup", 13, 0, 5, 4, "classic_groups", 0
)
LIST_GROUPS: Final[Api[ListGroupsRequest, ListGroupsResponse]] = Api(
    "ListGroups", 16, 0, 5, 3, "classic_groups", 0
)
DESCRIBE_GROUPS: Final[Api[DescribeGroupsRequest, DescribeGroupsResponse]] = Api(
    "DescribeGroups", 15, 0, 6, 5, "classic_groups", 0
)
DELETE_GROUPS: Final[Api[DeleteGroupsRequest, DeleteGroupsResponse]] = Api(
    "DeleteGroups", 42, 0, 2, 2, "classic_groups", 0
)
CONSUMER_GROUP_HEARTBEAT: Final[
    Api[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse]
] = Api("ConsumerGroupHeartbeat", 68, 0, 1, 0, "modern_groups", 0)
CONSUMER_GROUP_DESCRIBE: Final[Api[ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse]] = (
    Api("ConsumerGroupDescribe", 69, 0, 1, 0, "modern_groups", 0)
)
SHARE_GROUP_HEARTBEAT: Final[Api[ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse]] = Api(
    "ShareGroupHeartbeat", 76, 1, 1, 0, "modern_groups", 1
)
SHARE_GROUP_DESCRIBE: Final[Api[ShareGroupDescribeRequest, ShareGroupDescribeResponse]] = Api(
    "ShareGroupDescribe", 77, 1, 1, 0, "modern_groups", 1
)
SHARE_FETCH: Final[Api[ShareFetchRequest, ShareFetchResponse]] = Api(
    "ShareFetch", 78, 1, 2, 0, "share_fetch", 1
)
SHARE_ACKNOWLEDGE: Final[Api[ShareAcknowledgeRequest, ShareAcknowledgeResponse]] = Api(
    "ShareAcknowledge", 79, 1, 2, 0, "share_fetch", 1
)
DESCRIBE_SHARE_GROUP_OFFSETS: Final[
    Api[DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse]
] = Api("DescribeShareGroupOffsets", 90, 0, 1, 0, "share_offsets", 0)
ALTER_SHARE_GROUP_OFFSETS: Final[
    Api[AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse]
] = Api("AlterShareGroupOffsets", 91, 0, 0, 0, "share_offsets", 0)
DELETE_SHARE_GROUP_OFFSETS: Final[
    Api[DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse]
] = Api("DeleteShareGroupOffsets", 92, 0, 0, 0, "share_offsets", 0)
OFFSET_COMMIT: Final[Api[OffsetCommitRequest, OffsetCommitResponse]] = Api(
    "OffsetCommit", 8, 2, 10, 8, "group_offsets", 2
)
OFFSET_FETCH: Final[Api[OffsetFetchRequest, OffsetFetchResponse]] = Api(
    "OffsetFetch", 9, 1, 10, 6, "classic_groups", 1
)
OFFSET_DELETE: Final[Api[OffsetDeleteRequest, OffsetDeleteResponse]] = Api(
    "OffsetDelete", 47, 0, 0, NEVER_FLEXIBLE, "group_offsets", 0
)
ADD_PARTITIONS_TO_TXN: Final[Api[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse]] = Api(
    "AddPartitionsToTxn", 24, 0, 5, 3, "transactions", 0
)
ADD_OFFSETS_TO_TXN: Final[Api[AddOffsetsToTxnRequest, AddOffsetsToTxnResponse]] = Api(
    "AddOffsetsToTxn", 25, 0, 4, 3, "transactions", 0
)
END_TXN: Final[Api[EndTxnRequest, EndTxnResponse]] = Api("EndTxn", 26, 0, 5, 3, "transactions", 0)
DESCRIBE_TRANSACTIONS: Final[Api[DescribeTransactionsRequest, DescribeTransactionsResponse]] = Api(
    "DescribeTransactions", 65, 0, 0, 0, "transactions", 0
)
LIST_TRANSACTIONS: Final[Api[ListTransactionsRequest, ListTransactionsResponse]] = Api(
    "ListTransactions", 66, 0, 2, 0, "transactions", 0
)
WRITE_TXN_MARKERS: Final[Api[WriteTxnMarkersRequest, WriteTxnMarkersResponse]] = Api(
    "WriteTxnMarkers", 27, 1, 2, 1, "transactions", 1
)
TXN_OFFSET_COMMIT: Final[Api[TxnOffsetCommitRequest, TxnOffsetCommitResponse]] = Api(
    "TxnOffsetCommit", 28, 0, 5, 3, "group_offsets", 0
)

SASL_HANDSHAKE: Final[Api[SaslHandshakeRequest, SaslHandshakeResponse]] = Api(
    "SaslHandshake", 17, 0, 1, NEVER_FLEXIBLE, "security", 0
)
SASL_AUTHENTICATE: Final[Api[SaslAuthenticateRequest, SaslAuthenticateResponse]] = Api(
    "SaslAuthenticate", 36, 0, 2, 2, "security", 0
)
DESCRIBE_USER_SCRAM_CREDENTIALS: Final[
    Api[DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse]
] = Api("DescribeUserScramCredentials", 50, 0, 0, 0, "security", 0)
ALTER_USER_SCRAM_CREDENTIALS: Final[
    Api[AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse]
] = Api("AlterUserScramCredentials", 51, 0, 0, 0, "security", 0)


def _by_key(*apis: AnyApi) -> Mapping[int, AnyApi]:
    return {api.key: api for api in apis}


BY_KEY: Final = _by_key(
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_CLIENT_QUOTAS,
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_QUORUM,
    UPDATE_FEATURES,
    UNREGISTER_BROKER,
    ADD_RAFT_VOTER,
    REMOVE_RAFT_VOTER,
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
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
    DESCRIBE_TRANSACTIONS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ELECT_LEADERS,
    END_TXN,
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
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
    WRITE_TXN_MARKERS,
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
)

__all__ = [
    "ADD_OFFSETS_TO_TXN",
    "ADD_PARTITIONS_TO_TXN",
    "ADD_RAFT_VOTER",
    "ALTER_CLIENT_QUOTAS",
    "ALTER_CONFIGS",
    "ALTER_PARTITION_REASSIGNMENTS",
    "ALTER_REPLICA_LOG_DIRS",
    "ALTER_SHARE_GROUP_OFFSETS",
    "ALTER_USER_SCRAM_CREDENTIALS",
    "API_VERSIONS",
    "BY_KEY",
    "CREATE_ACLS",
    "CREATE_PARTITIONS",
    "CREATE_TOPICS",
    "DELETE_ACLS",
    "DELETE_GROUPS",
    "DELETE_RECORDS",
    "DELETE_SHARE_GROUP_OFFSETS",
    "DELETE_TOPICS",
    "DESCRIBE_ACLS",
    "DESCRIBE_CLIENT_QUOTAS",
    "DESCRIBE_CLUSTER",
    "DESCRIBE_CONFIGS",
    "DESCRIBE_GROUPS",
    "DESCRIBE_LOG_DIRS",
    "DESCRIBE_PRODUCERS",
    "DESCRIBE_QUORUM",
    "DESCRIBE_SHARE_GROUP_OFFSETS",
    "DESCRIBE_TOPIC_PARTITIONS",
    "DESCRIBE_TRANSACTIONS",
    "DESCRIBE_USER_SCRAM_CREDENTIALS",
    "ELECT_LEADERS",
    "END_TXN",
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
    "LIST_TRANSACTIONS",
    "METADATA",
    "NEVER_FLEXIBLE",
    "OFFSET_COMMIT",
    "OFFSET_DELETE",
    "OFFSET_FETCH",
    "OFFSET_FOR_LEADER_EPOCH",
    "PRODUCE",
    "REMOVE_RAFT_VOTER",
    "SASL_AUTHENTICATE",
    "SASL_HANDSHAKE",
    "SHARE_ACKNOWLEDGE",
    "SHARE_FETCH",
    "SHARE_GROUP_DESCRIBE",
    "SHARE_GROUP_HEARTBEAT",
    "SYNC_GROUP",
    "TXN_OFFSET_COMMIT",
    "UNREGISTER_BROKER",
    "UPDATE_FEATURES",
    "WRITE_TXN_MARKERS",
    "AnyApi",
    "Api",
]
