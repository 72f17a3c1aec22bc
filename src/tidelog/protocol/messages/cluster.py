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
from tidelog.protocol.schema import INT8, INT16, INT32, INT64, UINT16, message, wire


@message
class QuorumTopic:
    """Topic in the request, with its partitions."""

    topic_name: str = wire()
    partitions: list[PartitionIndex] = wire()


@message
class DescribeQuorumRequest:
    """Request for the state of the quorum that replicates the cluster metadata."""

    topics: list[QuorumTopic] = wire()


@message
class QuorumReplica:
    """Voter or observer of the quorum. Timestamps are in ms since 1970, -1 if unknown."""

    replica_id: int = wire(INT32)
    replica_directory_id: UUID = wire(since=2)
    log_end_offset: int = wire(INT64)
    last_fetch_timestamp: int = wire(INT64, since=1, default=-1)
    last_caught_up_timestamp: int = wire(INT64, since=1, default=-1)


@message
class DescribedQuorumPartition(PartitionCode):
    """Partition in the response, with its leader, voters and observers."""

    error_message: str | None = wire(since=2)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    high_watermark: int = wire(INT64)
    current_voters: list[QuorumReplica] = wire()
    observers: list[QuorumReplica] = wire()


@message
class DescribedQuorumTopic:
    """Topic in the response, with its partitions."""

    topic_name: str = wire()
    partitions: list[DescribedQuorumPartition] = wire()


@message
class QuorumListener:
    """Listener of a voter: name and address."""

    name: str = wire()
    host: str = wire()
    port: int = wire(UINT16)


@message
class QuorumNode:
    """Voter with its listeners."""

    node_id: int = wire(INT32)
    listeners: list[QuorumListener] = wire()


@message
class DescribeQuorumResponse:
    """Response with the state of the quorum."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(since=2)
    topics: list[DescribedQuorumTopic] = wire()
    nodes: list[QuorumNode] = wire(since=2)


@message
class FeatureUpdate:
    """New level of a feature. Level 0 disables the feature.

    The upgrade type is 1 for an upgrade, 2 for a safe downgrade, 3 for a downgrade that may lose
    metadata.
    """

    feature: str = wire()
    max_version_level: int = wire(INT16)
    allow_downgrade: bool = wire(until=0)
    upgrade_type: int = wire(INT8, since=1, default=1)


@message
class UpdateFeaturesRequest:
    """Request to change the levels of features or, with `validate_only`, to check the change."""

    timeout_ms: int = wire(INT32, default=60000)
    feature_updates: list[FeatureUpdate] = wire()
    validate_only: bool = wire(since=1)


@message
class UpdatedFeature:
    """Result for one feature."""

    feature: str = wire()
    error_code: int = wire(INT16)
    error_message: str | None = wire()


@message
class UpdateFeaturesResponse(ErrorResponse):
    """Response with a result for each feature (up to version 1), or one error for all features.

    From version 2, the request changes either all of its features or none.
    """

    results: list[UpdatedFeature] = wire(until=1)


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

    cluster_id: str | None = wire()
    timeout_ms: int = wire(INT32)
    voter_id: int = wire(INT32)
    voter_directory_id: UUID = wire()
    listeners: list[QuorumListener] = wire()
    ack_when_committed: bool = wire(since=1, default=True)


@message
class AddRaftVoterResponse(ErrorResponse):
    """Response to the addition of a voter."""


@message
class RemoveRaftVoterRequest:
    """Request to remove a controller from the voters of the quorum."""

    cluster_id: str | None = wire()
    voter_id: int = wire(INT32)
    voter_directory_id: UUID = wire()


@message
class RemoveRaftVoterResponse(ErrorResponse):
    """Response to the removal of a voter."""


@message
class ElectLeadersRequest:
    """Request to elect leaders. If `topic_partitions` is null, all partitions elect a leader.

    The election type is 0 for the preferred replica, 1 for any replica (unclean).
    """

    election_type: int = wire(INT8, since=1)
    topic_partitions: list[TopicPartitions] | None = wire()
    timeout_ms: int = wire(INT32, default=60000)


@message
class ElectionPartitionResult:
    """Result for one partition."""

    partition_id: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire()


@message
class ElectionTopicResult:
    """Topic in the response, with its partitions."""

    topic: str = wire()
    partition_result: list[ElectionPartitionResult] = wire()


@message
class ElectLeadersResponse(ThrottledResponse):
    """Response with a result for each partition."""

    error_code: int = wire(INT16, since=1)
    replica_election_results: list[ElectionTopicResult] = wire()


@message
class ReassignablePartition:
    """Partition in the request. If `replicas` is null, a pending reassignment is canceled."""

    partition_index: int = wire(INT32)
    replicas: list[int] | None = wire(INT32)


@message
class ReassignableTopic:
    """Topic in the request, with its partitions."""

    name: str = wire()
    partitions: list[ReassignablePartition] = wire()


@message
class AlterPartitionReassignmentsRequest:
    """Request to move partitions to other brokers, or to cancel pending moves."""

    timeout_ms: int = wire(INT32, default=60000)
    allow_replication_factor_change: bool = wire(since=1, default=True)
    topics: list[ReassignableTopic] = wire()


@message
class ReassignedTopic:
    """Topic in the response, with its partitions."""

    name: str = wire()
    partitions: list[PartitionError] = wire()


@message
class AlterPartitionReassignmentsResponse(ThrottledResponse):
    """Response with a result for each partition."""

    allow_replication_factor_change: bool = wire(since=1, default=True)
    error_code: int = wire(INT16)
    error_message: str | None = wire()
    responses: list[ReassignedTopic] = wire()


@message
class ListPartitionReassignmentsRequest:
    """Request for partitions that are being reassigned; null `topics` mean all topics."""

    timeout_ms: int = wire(INT32, default=60000)
    topics: list[NamedIndexes] | None = wire()


@message
class OngoingPartition:
    """Partition that is being reassigned, with its current, added and removed replicas."""

    partition_index: int = wire(INT32)
    replicas: list[int] = wire(INT32)
    adding_replicas: list[int] = wire(INT32)
    removing_replicas: list[int] = wire(INT32)


@message
class OngoingTopic:
    """Topic in the response, with its partitions."""

    name: str = wire()
    partitions: list[OngoingPartition] = wire()


@message
class ListPartitionReassignmentsResponse(ErrorResponse):
    """Response with the partitions that are being reassigned."""

    topics: list[OngoingTopic] = wire()


@message
class AlterReplicaLogDir:
    """Directory in the request, with the topics to move there."""

    path: str = wire()
    topics: list[NamedPartitions] = wire()


@message
class AlterReplicaLogDirsRequest:
    """Request to move partitions to other log directories of the broker."""

    dirs: list[AlterReplicaLogDir] = wire()


@message
class AlterReplicaLogDirTopicResult:
    """Topic in the response, with its partitions."""

    topic_name: str = wire()
    partitions: list[PartitionCode] = wire()


@message
class AlterReplicaLogDirsResponse(ThrottledResponse):
    """Response with a result for each partition."""

    results: list[AlterReplicaLogDirTopicResult] = wire()


@message
class DescribeLogDirsRequest:
    """Request for the partitions in each log directory; null `topics` mean all topics."""

    topics: list[TopicPartitions] | None = wire()


@message
class DescribeLogDirsPartition:
    """Partition in the response: size of its log in bytes, and lag of its log in offsets."""

    partition_index: int = wire(INT32)
    partition_size: int = wire(INT64)
    offset_lag: int = wire(INT64)
    is_future_key: bool = wire()


@message
class DescribeLogDirsTopic:
    """Topic in the response, with its partitions."""

    name: str = wire()
    partitions: list[DescribeLogDirsPartition] = wire()


@message
class DescribeLogDirsResult:
    """Log directory with its partitions. Sizes are in bytes; a size of -1 is unknown."""

    error_code: int = wire(INT16)
    log_dir: str = wire()
    topics: list[DescribeLogDirsTopic] = wire()
    total_bytes: int = wire(INT64, since=4, default=-1)
    usable_bytes: int = wire(INT64, since=4, default=-1)
    is_cordoned: bool = wire(since=5)


@message
class DescribeLogDirsResponse(ThrottledResponse):
    """Response with the log directories."""

    error_code: int = wire(INT16, since=3)
    results: list[DescribeLogDirsResult] = wire()
