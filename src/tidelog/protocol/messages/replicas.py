"""Who leads and where replicas lie: ElectLeaders, reassignments, AlterReplicaLogDirs.

Source: Kafka's protocol guide, APIs 43, 45, 46 and 34; KIP-183, KIP-460, KIP-455, KIP-113.
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    STRING,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class ElectLeadersTopic:
    """A topic's partitions."""

    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ElectLeadersRequest:
    """Elect leaders: 0 the preferred ones, 1 any; null for all partitions."""

    election_type: int = wire(INT8, since=1)
    topic_partitions: list[ElectLeadersTopic] | None = wire(
        nullable_array(struct(ElectLeadersTopic))
    )
    timeout_ms: int = wire(INT32, default=60000)


@dataclass(slots=True, kw_only=True)
class ElectionPartitionResult:
    """What became of a partition."""

    partition_id: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class ElectionTopicResult:
    """A topic's partitions."""

    topic: str = wire(STRING)
    partition_result: list[ElectionPartitionResult] = wire(array(struct(ElectionPartitionResult)))


@dataclass(slots=True, kw_only=True)
class ElectLeadersResponse:
    """What was elected."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=1)
    replica_election_results: list[ElectionTopicResult] = wire(array(struct(ElectionTopicResult)))


@dataclass(slots=True, kw_only=True)
class ReassignablePartition:
    """A partition and where it is to lie; null takes back what was asked before."""

    partition_index: int = wire(INT32)
    replicas: list[int] | None = wire(nullable_array(INT32))


@dataclass(slots=True, kw_only=True)
class ReassignableTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[ReassignablePartition] = wire(array(struct(ReassignablePartition)))


@dataclass(slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    """Move partitions to other brokers."""

    timeout_ms: int = wire(INT32, default=60000)
    allow_replication_factor_change: bool = wire(BOOLEAN, since=1, default=True)
    topics: list[ReassignableTopic] = wire(array(struct(ReassignableTopic)))


@dataclass(slots=True, kw_only=True)
class ReassignedPartition:
    """Whether a partition is on its way."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class ReassignedTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[ReassignedPartition] = wire(array(struct(ReassignedPartition)))


@dataclass(slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    """What is on its way."""

    throttle_time_ms: int = wire(INT32)
    allow_replication_factor_change: bool = wire(BOOLEAN, since=1, default=True)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    responses: list[ReassignedTopic] = wire(array(struct(ReassignedTopic)))


@dataclass(slots=True, kw_only=True)
class ListedTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ListPartitionReassignmentsRequest:
    """Which partitions are on their way? Null for all."""

    timeout_ms: int = wire(INT32, default=60000)
    topics: list[ListedTopic] | None = wire(nullable_array(struct(ListedTopic)))


@dataclass(slots=True, kw_only=True)
class OngoingPartition:
    """A partition on its way."""

    partition_index: int = wire(INT32)
    replicas: list[int] = wire(array(INT32))
    adding_replicas: list[int] = wire(array(INT32))
    removing_replicas: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class OngoingTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[OngoingPartition] = wire(array(struct(OngoingPartition)))


@dataclass(slots=True, kw_only=True)
class ListPartitionReassignmentsResponse:
    """What is on its way."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    topics: list[OngoingTopic] = wire(array(struct(OngoingTopic)))


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDir:
    """A directory and what is to lie there."""

    path: str = wire(STRING)
    topics: list[AlterReplicaLogDirTopic] = wire(array(struct(AlterReplicaLogDirTopic)))


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirsRequest:
    """Move partitions to other directories."""

    dirs: list[AlterReplicaLogDir] = wire(array(struct(AlterReplicaLogDir)))


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirPartition:
    """Whether a partition is on its way."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirTopicResult:
    """A topic's partitions."""

    topic_name: str = wire(STRING)
    partitions: list[AlterReplicaLogDirPartition] = wire(array(struct(AlterReplicaLogDirPartition)))


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirsResponse:
    """What is on its way."""

    throttle_time_ms: int = wire(INT32)
    results: list[AlterReplicaLogDirTopicResult] = wire(
        array(struct(AlterReplicaLogDirTopicResult))
    )
