"""Controllers, features, leaders and replicas: DescribeQuorum, UpdateFeatures, ElectLeaders, ...

Source: Kafka's protocol guide, APIs 34, 35, 43, 45, 46, 55, 57, 64, 80 and 81; KIP-113, KIP-183,
KIP-455, KIP-460, KIP-584, KIP-595, KIP-827, KIP-836, KIP-853.
"""

from uuid import UUID

from tidelog.protocol.messages.shared import (
    ErrorResponse,
    NamedIndexes,
    NamedPartitions,
    PartitionCode,
    PartitionError,
    PartitionIndex,
    ThrottledResponse,
    TopicPartitions,
)
from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID16,
    array,
    message,
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@message
class QuorumTopic:
    """Topic in the request, with its partitions."""

    topic_name: str = wire(STRING)
    partitions: list[PartitionIndex] = wire(array(struct(PartitionIndex)))


@message
class DescribeQuorumRequest:
    """Request for the state of the quorum that replicates the cluster metadata."""

    topics: list[QuorumTopic] = wire(array(struct(QuorumTopic)))


@message
class QuorumReplica:
    """Voter or observer of the quorum. Timestamps are in ms since 1970, -1 if unknown."""

    replica_id: int = wire(INT32)
    replica_directory_id: UUID = wire(UUID16, since=2)
    log_end_offset: int = wire(INT64)
    last_fetch_timestamp: int = wire(INT64, since=1, default=-1)
    last_caught_up_timestamp: int = wire(INT64, since=1, default=-1)


@message
class DescribedQuorumPartition(PartitionCode):
    """Partition in the response, with its leader, voters and observers."""

    error_message: str | None = wire(nullable_string(2), since=2)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    high_watermark: int = wire(INT64)
    current_voters: list[QuorumReplica] = wire(array(struct(QuorumReplica)))
    observers: list[QuorumReplica] = wire(array(struct(QuorumReplica)))


@message
class DescribedQuorumTopic:
    """Topic in the response, with its partitions."""

    topic_name: str = wire(STRING)
    partitions: list[DescribedQuorumPartition] = wire(array(struct(DescribedQuorumPartition)))


@message
class QuorumListener:
    """Listener of a voter: name and address."""

    name: str = wire(STRING)
    host: str = wire(STRING)
    port: int = wire(UINT16)


@message
class QuorumNode:
    """Voter with its listeners."""

    node_id: int = wire(INT32)
    listeners: list[QuorumListener] = wire(array(struct(QuorumListener)))


@message
class DescribeQuorumResponse:
    """Response with the state of the quorum."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string(2), since=2)
    topics: list[DescribedQuorumTopic] = wire(array(struct(DescribedQuorumTopic)))
    nodes: list[QuorumNode] = wire(array(struct(QuorumNode)), since=2)


@message
class FeatureUpdate:
    """New level of a feature. Level 0 disables the feature.

    The upgrade type is 1 for an upgrade, 2 for a safe downgrade, 3 for a downgrade that may lose
    metadata.
    """

    feature: str = wire(STRING)
    max_version_level: int = wire(INT16)
    allow_downgrade: bool = wire(BOOLEAN, until=0)
    upgrade_type: int = wire(INT8, since=1, default=1)


@message
class UpdateFeaturesRequest:
    """Request to change the levels of features or, with `validate_only`, to check the change."""

    timeout_ms: int = wire(INT32, default=60000)
    feature_updates: list[FeatureUpdate] = wire(array(struct(FeatureUpdate)))
    validate_only: bool = wire(BOOLEAN, since=1)


@message
class UpdatedFeature:
    """Result for one feature."""

    feature: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@message
class UpdateFeaturesResponse(ErrorResponse):
    """Response with a result for each feature (up to version 1), or one error for all features.

    From version 2, the request changes either all of its features or none.
    """

    results: list[UpdatedFeature] = wire(array(struct(UpdatedFeature)), until=1)


@message
class UnregisterBrokerRequest:
    """Request to remove a broker that no longer exists."""

    broker_id: int = wire(INT32)


@message
class UnregisterBrokerResponse(ErrorResponse):
    """Response to the removal of a broker."""


@message
class AddRaftVoterRequest:
    """Request to add a controller to the voters of the quorum."""

    cluster_id: str | None = wire(nullable_string())
    timeout_ms: int = wire(INT32)
    voter_id: int = wire(INT32)
    voter_directory_id: UUID = wire(UUID16)
    listeners: list[QuorumListener] = wire(array(struct(QuorumListener)))
    ack_when_committed: bool = wire(BOOLEAN, since=1, default=True)


@message
class AddRaftVoterResponse(ErrorResponse):
    """Response to the addition of a voter."""


@message
class RemoveRaftVoterRequest:
    """Request to remove a controller from the voters of the quorum."""

    cluster_id: str | None = wire(nullable_string())
    voter_id: int = wire(INT32)
    voter_directory_id: UUID = wire(UUID16)


@message
class RemoveRaftVoterResponse(ErrorResponse):
    """Response to the removal of a voter."""


@message
class ElectLeadersRequest:
    """Request to elect leaders. If `topic_partitions` is null, all partitions elect a leader.

    The election type is 0 for the preferred replica, 1 for any replica (unclean).
    """

    election_type: int = wire(INT8, since=1)
    topic_partitions: list[TopicPartitions] | None = wire(nullable_array(struct(TopicPartitions)))
    timeout_ms: int = wire(INT32, default=60000)


@message
class ElectionPartitionResult:
    """Result for one partition."""

    partition_id: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@message
class ElectionTopicResult:
    """Topic in the response, with its partitions."""

    topic: str = wire(STRING)
    partition_result: list[ElectionPartitionResult] = wire(array(struct(ElectionPartitionResult)))


@message
class ElectLeadersResponse(ThrottledResponse):
    """Response with a result for each partition."""

    error_code: int = wire(INT16, since=1)
    replica_election_results: list[ElectionTopicResult] = wire(array(struct(ElectionTopicResult)))


@message
class ReassignablePartition:
    """Partition in the request. If `replicas` is null, a pending reassignment is canceled."""

    partition_index: int = wire(INT32)
    replicas: list[int] | None = wire(nullable_array(INT32))


@message
class ReassignableTopic:
    """Topic in the request, with its partitions."""

    name: str = wire(STRING)
    partitions: list[ReassignablePartition] = wire(array(struct(ReassignablePartition)))


@message
class AlterPartitionReassignmentsRequest:
    """Request to move partitions to other brokers, or to cancel pending moves."""

    timeout_ms: int = wire(INT32, default=60000)
    allow_replication_factor_change: bool = wire(BOOLEAN, since=1, default=True)
    topics: list[ReassignableTopic] = wire(array(struct(ReassignableTopic)))


@message
class ReassignedTopic:
    """Topic in the response, with its partitions."""

    name: str = wire(STRING)
    partitions: list[PartitionError] = wire(array(struct(PartitionError)))


@message
class AlterPartitionReassignmentsResponse(ThrottledResponse):
    """Response with a result for each partition."""

    allow_replication_factor_change: bool = wire(BOOLEAN, since=1, default=True)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    responses: list[ReassignedTopic] = wire(array(struct(ReassignedTopic)))


@message
class ListPartitionReassignmentsRequest:
    """Request for partitions that are being reassigned; null `topics` mean all topics."""

    timeout_ms: int = wire(INT32, default=60000)
    topics: list[NamedIndexes] | None = wire(nullable_array(struct(NamedIndexes)))


@message
class OngoingPartition:
    """Partition that is being reassigned, with its current, added and removed replicas."""

    partition_index: int = wire(INT32)
    replicas: list[int] = wire(array(INT32))
    adding_replicas: list[int] = wire(array(INT32))
    removing_replicas: list[int] = wire(array(INT32))


@message
class OngoingTopic:
    """Topic in the response, with its partitions."""

    name: str = wire(STRING)
    partitions: list[OngoingPartition] = wire(array(struct(OngoingPartition)))


@message
class ListPartitionReassignmentsResponse(ErrorResponse):
    """Response with the partitions that are being reassigned."""

    topics: list[OngoingTopic] = wire(array(struct(OngoingTopic)))


@message
class AlterReplicaLogDir:
    """Directory in the request, with the topics to move there."""

    path: str = wire(STRING)
    topics: list[NamedPartitions] = wire(array(struct(NamedPartitions)))


@message
class AlterReplicaLogDirsRequest:
    """Request to move partitions to other log directories of the broker."""

    dirs: list[AlterReplicaLogDir] = wire(array(struct(AlterReplicaLogDir)))


@message
class AlterReplicaLogDirTopicResult:
    """Topic in the response, with its partitions."""

    topic_name: str = wire(STRING)
    partitions: list[PartitionCode] = wire(array(struct(PartitionCode)))


@message
class AlterReplicaLogDirsResponse(ThrottledResponse):
    """Response with a result for each partition."""

    results: list[AlterReplicaLogDirTopicResult] = wire(
        array(struct(AlterReplicaLogDirTopicResult))
    )


@message
class DescribeLogDirsRequest:
    """Request for the partitions in each log directory; null `topics` mean all topics."""

    topics: list[TopicPartitions] | None = wire(nullable_array(struct(TopicPartitions)))


@message
class DescribeLogDirsPartition:
    """Partition in the response: size of its log in bytes, and lag of its log in offsets."""

    partition_index: int = wire(INT32)
    partition_size: int = wire(INT64)
    offset_lag: int = wire(INT64)
    is_future_key: bool = wire(BOOLEAN)


@message
class DescribeLogDirsTopic:
    """Topic in the response, with its partitions."""

    name: str = wire(STRING)
    partitions: list[DescribeLogDirsPartition] = wire(array(struct(DescribeLogDirsPartition)))


@message
class DescribeLogDirsResult:
    """Log directory with its partitions. Sizes are in bytes; a size of -1 is unknown."""

    error_code: int = wire(INT16)
    log_dir: str = wire(STRING)
    topics: list[DescribeLogDirsTopic] = wire(array(struct(DescribeLogDirsTopic)))
    total_bytes: int = wire(INT64, since=4, default=-1)
    usable_bytes: int = wire(INT64, since=4, default=-1)
    is_cordoned: bool = wire(BOOLEAN, since=5)


@message
class DescribeLogDirsResponse(ThrottledResponse):
    """Response with the log directories."""

    error_code: int = wire(INT16, since=3)
    results: list[DescribeLogDirsResult] = wire(array(struct(DescribeLogDirsResult)))
