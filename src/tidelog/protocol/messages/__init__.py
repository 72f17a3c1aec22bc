"""Kafka's messages, declared from the public protocol. `BY_KEY` maps an API key to its `Api`.

To add an API, declare its request and response in a module here and add one row to `BY_KEY`. Tests
compare every declaration with Kafka's own, field by field. A row adds little time to the start of a
process, because the module with the declarations is imported only when the classes of the `Api` are
first needed.

For a new version, change the API's row in this module and the API's declaration. CONTRIBUTING.md
("A version of an API") lists the other places to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.protocol.schema import ANY_VERSION, Api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from tidelog.protocol.messages import (
        classic_groups,
        cluster,
        configs,
        fetch,
        group_offsets,
        list_offsets,
        metadata,
        modern_groups,
        produce,
        security,
        share_fetch,
        share_offsets,
        topics,
        transactions,
    )

AnyApi: TypeAlias = "Api[DataclassInstance, DataclassInstance]"

NEVER_FLEXIBLE: Final = ANY_VERSION + 1

# Arguments of each `Api`: name, API key, first and last version, first flexible version, module of
# the declarations, first declared version.
API_VERSIONS: Final[Api[metadata.ApiVersionsRequest, metadata.ApiVersionsResponse]] = Api(
    "ApiVersions", 18, 0, 4, 3, "metadata", 0
)
METADATA: Final[Api[metadata.MetadataRequest, metadata.MetadataResponse]] = Api(
    "Metadata", 3, 0, 13, 9, "metadata", 0
)
PRODUCE: Final[Api[produce.ProduceRequest, produce.ProduceResponse]] = Api(
    "Produce", 0, 3, 13, 9, "produce", 0
)
FETCH: Final[Api[fetch.FetchRequest, fetch.FetchResponse]] = Api("Fetch", 1, 4, 18, 12, "fetch", 0)
LIST_OFFSETS: Final[Api[list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse]] = Api(
    "ListOffsets", 2, 1, 11, 6, "list_offsets", 0
)
OFFSET_FOR_LEADER_EPOCH: Final[
    Api[list_offsets.OffsetForLeaderEpochRequest, list_offsets.OffsetForLeaderEpochResponse]
] = Api("OffsetForLeaderEpoch", 23, 2, 4, 4, "list_offsets", 2)
INIT_PRODUCER_ID: Final[
    Api[transactions.InitProducerIdRequest, transactions.InitProducerIdResponse]
] = Api("InitProducerId", 22, 0, 5, 2, "transactions", 0)
DESCRIBE_PRODUCERS: Final[
    Api[transactions.DescribeProducersRequest, transactions.DescribeProducersResponse]
] = Api("DescribeProducers", 61, 0, 0, 0, "transactions", 0)
CREATE_TOPICS: Final[Api[topics.CreateTopicsRequest, topics.CreateTopicsResponse]] = Api(
    "CreateTopics", 19, 2, 7, 5, "topics", 2
)
DELETE_TOPICS: Final[Api[topics.DeleteTopicsRequest, topics.DeleteTopicsResponse]] = Api(
    "DeleteTopics", 20, 1, 6, 4, "topics", 1
)
CREATE_PARTITIONS: Final[Api[topics.CreatePartitionsRequest, topics.CreatePartitionsResponse]] = (
    Api("CreatePartitions", 37, 0, 3, 2, "topics", 0)
)
DELETE_RECORDS: Final[Api[topics.DeleteRecordsRequest, topics.DeleteRecordsResponse]] = Api(
    "DeleteRecords", 21, 0, 2, 2, "topics", 0
)
DESCRIBE_CONFIGS: Final[Api[configs.DescribeConfigsRequest, configs.DescribeConfigsResponse]] = Api(
    "DescribeConfigs", 32, 1, 4, 4, "configs", 1
)
ALTER_CONFIGS: Final[Api[configs.AlterConfigsRequest, configs.AlterConfigsResponse]] = Api(
    "AlterConfigs", 33, 0, 2, 2, "configs", 0
)
INCREMENTAL_ALTER_CONFIGS: Final[
    Api[configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse]
] = Api("IncrementalAlterConfigs", 44, 0, 1, 1, "configs", 0)
LIST_CONFIG_RESOURCES: Final[
    Api[configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse]
] = Api("ListConfigResources", 74, 0, 1, 0, "configs", 0)
DESCRIBE_CLUSTER: Final[Api[metadata.DescribeClusterRequest, metadata.DescribeClusterResponse]] = (
    Api("DescribeCluster", 60, 0, 2, 0, "metadata", 0)
)
DESCRIBE_TOPIC_PARTITIONS: Final[
    Api[metadata.DescribeTopicPartitionsRequest, metadata.DescribeTopicPartitionsResponse]
] = Api("DescribeTopicPartitions", 75, 0, 0, 0, "metadata", 0)
DESCRIBE_LOG_DIRS: Final[Api[cluster.DescribeLogDirsRequest, cluster.DescribeLogDirsResponse]] = (
    Api("DescribeLogDirs", 35, 1, 5, 2, "cluster", 1)
)
ALTER_REPLICA_LOG_DIRS: Final[
    Api[cluster.AlterReplicaLogDirsRequest, cluster.AlterReplicaLogDirsResponse]
] = Api("AlterReplicaLogDirs", 34, 1, 2, 2, "cluster", 1)
ELECT_LEADERS: Final[Api[cluster.ElectLeadersRequest, cluster.ElectLeadersResponse]] = Api(
    "ElectLeaders", 43, 0, 2, 2, "cluster", 0
)
ALTER_PARTITION_REASSIGNMENTS: Final[
    Api[cluster.AlterPartitionReassignmentsRequest, cluster.AlterPartitionReassignmentsResponse]
] = Api("AlterPartitionReassignments", 45, 0, 1, 0, "cluster", 0)
LIST_PARTITION_REASSIGNMENTS: Final[
    Api[cluster.ListPartitionReassignmentsRequest, cluster.ListPartitionReassignmentsResponse]
] = Api("ListPartitionReassignments", 46, 0, 0, 0, "cluster", 0)
DESCRIBE_ACLS: Final[Api[security.DescribeAclsRequest, security.DescribeAclsResponse]] = Api(
    "DescribeAcls", 29, 1, 3, 2, "security", 1
)
DESCRIBE_CLIENT_QUOTAS: Final[
    Api[configs.DescribeClientQuotasRequest, configs.DescribeClientQuotasResponse]
] = Api("DescribeClientQuotas", 48, 0, 1, 1, "configs", 0)
ALTER_CLIENT_QUOTAS: Final[
    Api[configs.AlterClientQuotasRequest, configs.AlterClientQuotasResponse]
] = Api("AlterClientQuotas", 49, 0, 1, 1, "configs", 0)
DESCRIBE_QUORUM: Final[Api[cluster.DescribeQuorumRequest, cluster.DescribeQuorumResponse]] = Api(
    "DescribeQuorum", 55, 0, 2, 0, "cluster", 0
)
UPDATE_FEATURES: Final[Api[cluster.UpdateFeaturesRequest, cluster.UpdateFeaturesResponse]] = Api(
    "UpdateFeatures", 57, 0, 2, 0, "cluster", 0
)
UNREGISTER_BROKER: Final[Api[cluster.UnregisterBrokerRequest, cluster.UnregisterBrokerResponse]] = (
    Api("UnregisterBroker", 64, 0, 0, 0, "cluster", 0)
)
ADD_RAFT_VOTER: Final[Api[cluster.AddRaftVoterRequest, cluster.AddRaftVoterResponse]] = Api(
    "AddRaftVoter", 80, 0, 1, 0, "cluster", 0
)
REMOVE_RAFT_VOTER: Final[Api[cluster.RemoveRaftVoterRequest, cluster.RemoveRaftVoterResponse]] = (
    Api("RemoveRaftVoter", 81, 0, 0, 0, "cluster", 0)
)
CREATE_ACLS: Final[Api[security.CreateAclsRequest, security.CreateAclsResponse]] = Api(
    "CreateAcls", 30, 1, 3, 2, "security", 1
)
DELETE_ACLS: Final[Api[security.DeleteAclsRequest, security.DeleteAclsResponse]] = Api(
    "DeleteAcls", 31, 1, 3, 2, "security", 1
)
FIND_COORDINATOR: Final[
    Api[classic_groups.FindCoordinatorRequest, classic_groups.FindCoordinatorResponse]
] = Api("FindCoordinator", 10, 0, 6, 3, "classic_groups", 0)
JOIN_GROUP: Final[Api[classic_groups.JoinGroupRequest, classic_groups.JoinGroupResponse]] = Api(
    "JoinGroup", 11, 0, 9, 6, "classic_groups", 0
)
SYNC_GROUP: Final[Api[classic_groups.SyncGroupRequest, classic_groups.SyncGroupResponse]] = Api(
    "SyncGroup", 14, 0, 5, 4, "classic_groups", 0
)
HEARTBEAT: Final[Api[classic_groups.HeartbeatRequest, classic_groups.HeartbeatResponse]] = Api(
    "Heartbeat", 12, 0, 4, 4, "classic_groups", 0
)
LEAVE_GROUP: Final[Api[classic_groups.LeaveGroupRequest, classic_groups.LeaveGroupResponse]] = Api(
    "LeaveGroup", 13, 0, 5, 4, "classic_groups", 0
)
LIST_GROUPS: Final[Api[classic_groups.ListGroupsRequest, classic_groups.ListGroupsResponse]] = Api(
    "ListGroups", 16, 0, 5, 3, "classic_groups", 0
)
DESCRIBE_GROUPS: Final[
    Api[classic_groups.DescribeGroupsRequest, classic_groups.DescribeGroupsResponse]
] = Api("DescribeGroups", 15, 0, 6, 5, "classic_groups", 0)
DELETE_GROUPS: Final[
    Api[classic_groups.DeleteGroupsRequest, classic_groups.DeleteGroupsResponse]
] = Api("DeleteGroups", 42, 0, 2, 2, "classic_groups", 0)
CONSUMER_GROUP_HEARTBEAT: Final[
    Api[modern_groups.ConsumerGroupHeartbeatRequest, modern_groups.ConsumerGroupHeartbeatResponse]
] = Api("ConsumerGroupHeartbeat", 68, 0, 1, 0, "modern_groups", 0)
CONSUMER_GROUP_DESCRIBE: Final[
    Api[modern_groups.ConsumerGroupDescribeRequest, modern_groups.ConsumerGroupDescribeResponse]
] = Api("ConsumerGroupDescribe", 69, 0, 1, 0, "modern_groups", 0)
SHARE_GROUP_HEARTBEAT: Final[
    Api[modern_groups.ShareGroupHeartbeatRequest, modern_groups.ShareGroupHeartbeatResponse]
] = Api("ShareGroupHeartbeat", 76, 1, 1, 0, "modern_groups", 1)
SHARE_GROUP_DESCRIBE: Final[
    Api[modern_groups.ShareGroupDescribeRequest, modern_groups.ShareGroupDescribeResponse]
] = Api("ShareGroupDescribe", 77, 1, 1, 0, "modern_groups", 1)
SHARE_FETCH: Final[Api[share_fetch.ShareFetchRequest, share_fetch.ShareFetchResponse]] = Api(
    "ShareFetch", 78, 1, 2, 0, "share_fetch", 1
)
SHARE_ACKNOWLEDGE: Final[
    Api[share_fetch.ShareAcknowledgeRequest, share_fetch.ShareAcknowledgeResponse]
] = Api("ShareAcknowledge", 79, 1, 2, 0, "share_fetch", 1)
DESCRIBE_SHARE_GROUP_OFFSETS: Final[
    Api[
        share_offsets.DescribeShareGroupOffsetsRequest,
        share_offsets.DescribeShareGroupOffsetsResponse,
    ]
] = Api("DescribeShareGroupOffsets", 90, 0, 1, 0, "share_offsets", 0)
ALTER_SHARE_GROUP_OFFSETS: Final[
    Api[share_offsets.AlterShareGroupOffsetsRequest, share_offsets.AlterShareGroupOffsetsResponse]
] = Api("AlterShareGroupOffsets", 91, 0, 0, 0, "share_offsets", 0)
DELETE_SHARE_GROUP_OFFSETS: Final[
    Api[share_offsets.DeleteShareGroupOffsetsRequest, share_offsets.DeleteShareGroupOffsetsResponse]
] = Api("DeleteShareGroupOffsets", 92, 0, 0, 0, "share_offsets", 0)
OFFSET_COMMIT: Final[Api[group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse]] = (
    Api("OffsetCommit", 8, 2, 10, 8, "group_offsets", 2)
)
OFFSET_FETCH: Final[Api[group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse]] = Api(
    "OffsetFetch", 9, 1, 10, 6, "group_offsets", 1
)
OFFSET_DELETE: Final[Api[group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse]] = (
    Api("OffsetDelete", 47, 0, 0, NEVER_FLEXIBLE, "group_offsets", 0)
)
ADD_PARTITIONS_TO_TXN: Final[
    Api[transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse]
] = Api("AddPartitionsToTxn", 24, 0, 5, 3, "transactions", 0)
ADD_OFFSETS_TO_TXN: Final[
    Api[transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse]
] = Api("AddOffsetsToTxn", 25, 0, 4, 3, "transactions", 0)
END_TXN: Final[Api[transactions.EndTxnRequest, transactions.EndTxnResponse]] = Api(
    "EndTxn", 26, 0, 5, 3, "transactions", 0
)
DESCRIBE_TRANSACTIONS: Final[
    Api[transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse]
] = Api("DescribeTransactions", 65, 0, 0, 0, "transactions", 0)
LIST_TRANSACTIONS: Final[
    Api[transactions.ListTransactionsRequest, transactions.ListTransactionsResponse]
] = Api("ListTransactions", 66, 0, 2, 0, "transactions", 0)
WRITE_TXN_MARKERS: Final[
    Api[transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse]
] = Api("WriteTxnMarkers", 27, 1, 2, 1, "transactions", 1)
TXN_OFFSET_COMMIT: Final[
    Api[group_offsets.TxnOffsetCommitRequest, group_offsets.TxnOffsetCommitResponse]
] = Api("TxnOffsetCommit", 28, 0, 5, 3, "group_offsets", 0)

SASL_HANDSHAKE: Final[Api[security.SaslHandshakeRequest, security.SaslHandshakeResponse]] = Api(
    "SaslHandshake", 17, 0, 1, NEVER_FLEXIBLE, "security", 0
)
SASL_AUTHENTICATE: Final[
    Api[security.SaslAuthenticateRequest, security.SaslAuthenticateResponse]
] = Api("SaslAuthenticate", 36, 0, 2, 2, "security", 0)
DESCRIBE_USER_SCRAM_CREDENTIALS: Final[
    Api[security.DescribeUserScramCredentialsRequest, security.DescribeUserScramCredentialsResponse]
] = Api("DescribeUserScramCredentials", 50, 0, 0, 0, "security", 0)
ALTER_USER_SCRAM_CREDENTIALS: Final[
    Api[security.AlterUserScramCredentialsRequest, security.AlterUserScramCredentialsResponse]
] = Api("AlterUserScramCredentials", 51, 0, 0, 0, "security", 0)

BY_KEY: Final[Mapping[int, AnyApi]] = {
    api.key: api for api in tuple(globals().values()) if isinstance(api, Api)
}
