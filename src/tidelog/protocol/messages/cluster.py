"""Controllers, features, leaders and replicas: DescribeQuorum, UpdateFeatures, ElectLeaders, ...

Source: Kafka's protocol guide, APIs 34, 43, 45, 46, 55, 57, 64, 80 and 81; KIP-113, KIP-183,
KIP-455, KIP-460, KIP-584, KIP-595, KIP-836, KIP-853.
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
    UINT16,
    UUID16,
    Declaration,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuorumPartition(Declaration):
    """A partition that is asked about."""

    partition_index: int = wire(INT32)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuorumTopic(Declaration):
    """A topic's partitions."""

    topic_name: str = wire(STRING)
    partitions: list[QuorumPartition] = wire(array(struct(QuorumPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeQuorumRequest(Declaration):
    """Who votes on the cluster's metadata, and how far is everybody?"""

    topics: list[QuorumTopic] = wire(array(struct(QuorumTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuorumReplica(Declaration):
    """A voter or an observer; times in ms since 1970, -1 where not known."""

    replica_id: int = wire(INT32)
    replica_directory_id: UUID = wire(UUID16, since=2)
    log_end_offset: int = wire(INT64)
    last_fetch_timestamp: int = wire(INT64, since=1, default=-1)
    last_caught_up_timestamp: int = wire(INT64, since=1, default=-1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedQuorumPartition(Declaration):
    """A partition's leader, voters and observers."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string(2), since=2)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    high_watermark: int = wire(INT64)
    current_voters: list[QuorumReplica] = wire(array(struct(QuorumReplica)))
    observers: list[QuorumReplica] = wire(array(struct(QuorumReplica)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedQuorumTopic(Declaration):
    """A topic's partitions."""

    topic_name: str = wire(STRING)
    partitions: list[DescribedQuorumPartition] = wire(array(struct(DescribedQuorumPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuorumListener(Declaration):
    """Where a voter listens."""

    name: str = wire(STRING)
    host: str = wire(STRING)
    port: int = wire(UINT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuorumNode(Declaration):
    """A voter's places."""

    node_id: int = wire(INT32)
    listeners: list[QuorumListener] = wire(array(struct(QuorumListener)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeQuorumResponse(Declaration):
    """The quorum."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string(2), since=2)
    topics: list[DescribedQuorumTopic] = wire(array(struct(DescribedQuorumTopic)))
    nodes: list[QuorumNode] = wire(array(struct(QuorumNode)), since=2)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class FeatureUpdate(Declaration):
    """A feature's new level: 1 upgrade, 2 and 3 down without and with loss; level 0 ends it."""

    feature: str = wire(STRING)
    max_version_level: int = wire(INT16)
    allow_downgrade: bool = wire(BOOLEAN, until=0)
    upgrade_type: int = wire(INT8, since=1, default=1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UpdateFeaturesRequest(Declaration):
    """Change the levels of features, or see whether they could be changed."""

    timeout_ms: int = wire(INT32, default=60000)
    feature_updates: list[FeatureUpdate] = wire(array(struct(FeatureUpdate)))
    validate_only: bool = wire(BOOLEAN, since=1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UpdatedFeature(Declaration):
    """Whether one feature's level was changed."""

    feature: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UpdateFeaturesResponse(Declaration):
    """What was changed; from version 2 on all of it or nothing."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    results: list[UpdatedFeature] = wire(array(struct(UpdatedFeature)), until=1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UnregisterBrokerRequest(Declaration):
    """Forget a broker that is gone."""

    broker_id: int = wire(INT32)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UnregisterBrokerResponse(Declaration):
    """Whether it was forgotten."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddRaftVoterRequest(Declaration):
    """Let a controller vote."""

    cluster_id: str | None = wire(nullable_string())
    timeout_ms: int = wire(INT32)
    voter_id: int = wire(INT32)
    voter_directory_id: UUID = wire(UUID16)
    listeners: list[QuorumListener] = wire(array(struct(QuorumListener)))
    ack_when_committed: bool = wire(BOOLEAN, since=1, default=True)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AddRaftVoterResponse(Declaration):
    """Whether it may."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RemoveRaftVoterRequest(Declaration):
    """Let a controller vote no more."""

    cluster_id: str | None = wire(nullable_string())
    voter_id: int = wire(INT32)
    voter_directory_id: UUID = wire(UUID16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RemoveRaftVoterResponse(Declaration):
    """Whether it was done."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ElectLeadersTopic(Declaration):
    """A topic's partitions."""

    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ElectLeadersRequest(Declaration):
    """Elect leaders: 0 the preferred ones, 1 any; null for all partitions."""

    election_type: int = wire(INT8, since=1)
    topic_partitions: list[ElectLeadersTopic] | None = wire(
        nullable_array(struct(ElectLeadersTopic))
    )
    timeout_ms: int = wire(INT32, default=60000)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ElectionPartitionResult(Declaration):
    """What became of a partition."""

    partition_id: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ElectionTopicResult(Declaration):
    """A topic's partitions."""

    topic: str = wire(STRING)
    partition_result: list[ElectionPartitionResult] = wire(array(struct(ElectionPartitionResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ElectLeadersResponse(Declaration):
    """What was elected."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=1)
    replica_election_results: list[ElectionTopicResult] = wire(array(struct(ElectionTopicResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReassignablePartition(Declaration):
    """A partition and where it is to lie; null takes back what was asked before."""

    partition_index: int = wire(INT32)
    replicas: list[int] | None = wire(nullable_array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReassignableTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[ReassignablePartition] = wire(array(struct(ReassignablePartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterPartitionReassignmentsRequest(Declaration):
    """Move partitions to other brokers."""

    timeout_ms: int = wire(INT32, default=60000)
    allow_replication_factor_change: bool = wire(BOOLEAN, since=1, default=True)
    topics: list[ReassignableTopic] = wire(array(struct(ReassignableTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReassignedPartition(Declaration):
    """Whether a partition is on its way."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReassignedTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[ReassignedPartition] = wire(array(struct(ReassignedPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterPartitionReassignmentsResponse(Declaration):
    """What is on its way."""

    throttle_time_ms: int = wire(INT32)
    allow_replication_factor_change: bool = wire(BOOLEAN, since=1, default=True)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    responses: list[ReassignedTopic] = wire(array(struct(ReassignedTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListedTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListPartitionReassignmentsRequest(Declaration):
    """Which partitions are on their way? Null for all."""

    timeout_ms: int = wire(INT32, default=60000)
    topics: list[ListedTopic] | None = wire(nullable_array(struct(ListedTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OngoingPartition(Declaration):
    """A partition on its way."""

    partition_index: int = wire(INT32)
    replicas: list[int] = wire(array(INT32))
    adding_replicas: list[int] = wire(array(INT32))
    removing_replicas: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OngoingTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[OngoingPartition] = wire(array(struct(OngoingPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListPartitionReassignmentsResponse(Declaration):
    """What is on its way."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    topics: list[OngoingTopic] = wire(array(struct(OngoingTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterReplicaLogDirTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterReplicaLogDir(Declaration):
    """A directory and what is to lie there."""

    path: str = wire(STRING)
    topics: list[AlterReplicaLogDirTopic] = wire(array(struct(AlterReplicaLogDirTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterReplicaLogDirsRequest(Declaration):
    """Move partitions to other directories."""

    dirs: list[AlterReplicaLogDir] = wire(array(struct(AlterReplicaLogDir)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterReplicaLogDirPartition(Declaration):
    """Whether a partition is on its way."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterReplicaLogDirTopicResult(Declaration):
    """A topic's partitions."""

    topic_name: str = wire(STRING)
    partitions: list[AlterReplicaLogDirPartition] = wire(array(struct(AlterReplicaLogDirPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterReplicaLogDirsResponse(Declaration):
    """What is on its way."""

    throttle_time_ms: int = wire(INT32)
    results: list[AlterReplicaLogDirTopicResult] = wire(
        array(struct(AlterReplicaLogDirTopicResult))
    )
