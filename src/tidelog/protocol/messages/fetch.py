"""Fetch: record batches as they are stored in the log.

Versions below 13 identify topics by name. Version 13 and later versions identify topics by id.

Source: Kafka's protocol guide, API 1; KIP-227 (sessions), KIP-320 and KIP-595 (epochs), KIP-516
(topic ids).
"""

from uuid import UUID

from tidelog.protocol.messages.shared import PartitionCode
from tidelog.protocol.schema import (
    CONSUMER_REPLICA_ID,
    INT8,
    INT16,
    INT32,
    INT64,
    OWN_TAGS_START,
    RECORD_PIECES,
    Pieces,
    message,
    wire,
)
from tidelog.types import INT32_MAX, INT64_MAX, Buffer


@message
class ReplicaState:
    """Replica that sends the request (from version 15). In a consumer's request, the id is -1."""

    replica_id: int = wire(INT32, since=15, default=CONSUMER_REPLICA_ID)
    replica_epoch: int = wire(INT64, since=15, default=-1)


@message
class FetchPartition:
    """Partition in the request: offset to read from, and leader epochs that the client knows."""

    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=9, default=-1)
    fetch_offset: int = wire(INT64)
    last_fetched_epoch: int = wire(INT32, since=12, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    partition_max_bytes: int = wire(INT32)
    replica_directory_id: UUID = wire(since=17, tag=0)
    high_watermark: int = wire(INT64, since=18, tag=1, default=INT64_MAX)


@message
class FetchTopic:
    """Topic in the request, with its partitions."""

    topic: str = wire(until=12)
    topic_id: UUID = wire(since=13)
    partitions: list[FetchPartition] = wire()


@message
class ForgottenTopic:
    """Partitions to remove from the fetch session."""

    topic: str = wire(since=7, until=12)
    topic_id: UUID = wire(since=13)
    partitions: list[int] = wire(INT32, since=7)


@message
class FetchRequest:
    """Request for records.

    The broker responds when `min_bytes` are available or `max_wait_ms` have passed.
    """

    cluster_id: str | None = wire(since=12, tag=0)
    replica_id: int = wire(INT32, until=14, default=CONSUMER_REPLICA_ID)
    replica_state: ReplicaState = wire(since=15, tag=1)
    max_wait_ms: int = wire(INT32)
    min_bytes: int = wire(INT32)
    max_bytes: int = wire(INT32, since=3, default=INT32_MAX)
    isolation_level: int = wire(INT8, since=4)
    session_id: int = wire(INT32, since=7)
    session_epoch: int = wire(INT32, since=7, default=-1)
    topics: list[FetchTopic] = wire()
    forgotten_topics_data: list[ForgottenTopic] = wire(since=7)
    rack_id: str = wire(since=11)
    # tidelog extension: whether the response shall contain the records' append times.
    with_append_times: bool = wire(since=12, tag=OWN_TAGS_START)


@message
class DivergingEpoch:
    """Leader's largest epoch not above the client's last epoch, and its end offset at the leader.

    Epoch and end offset are -1 if the logs of client and leader do not diverge.
    """

    epoch: int = wire(INT32, since=12, default=-1)
    end_offset: int = wire(INT64, since=12, default=-1)


@message
class CurrentLeader:
    """Current leader of the partition, for a client that sent its request to another broker."""

    leader_id: int = wire(INT32, since=12, default=-1)
    leader_epoch: int = wire(INT32, since=12, default=-1)


@message
class SnapshotId:
    """Snapshot of the metadata log to fetch instead of records.

    Without a snapshot, `end_offset` and `epoch` are -1.
    """

    end_offset: int = wire(INT64, default=-1)
    epoch: int = wire(INT32, default=-1)


@message
class AbortedTransaction:
    """Aborted transaction among the records: its producer and first offset."""

    producer_id: int = wire(INT64, since=4)
    first_offset: int = wire(INT64, since=4)


@message
class PartitionData(PartitionCode):
    """Partition in the response, with record batches. Only the last batch may be cut off."""

    high_watermark: int = wire(INT64)
    last_stable_offset: int = wire(INT64, since=4, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    diverging_epoch: DivergingEpoch = wire(since=12, tag=0)
    current_leader: CurrentLeader = wire(since=12, tag=1)
    snapshot_id: SnapshotId = wire(since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = wire(since=4)
    preferred_read_replica: int = wire(INT32, since=11, default=-1)
    records: Pieces = wire(RECORD_PIECES)
    # tidelog extension: append times of the records. Each run of records with the same append time
    # has two numbers: the run's first offset, and the append time in ms (-1 if unknown).
    append_times: list[int] = wire(INT64, since=12, tag=OWN_TAGS_START)

    @property
    def batches(self) -> Buffer:
        """All records of the partition in one buffer, which is empty if there are no records."""
        records = self.records
        if records is None:
            return b""
        return records if isinstance(records, bytes | bytearray | memoryview) else b"".join(records)


@message
class FetchableTopic:
    """Topic in the response, with its partitions."""

    topic: str = wire(until=12)
    topic_id: UUID = wire(since=13)
    partitions: list[PartitionData] = wire()


@message
class NodeEndpoint:
    """Address of a broker that `current_leader` refers to."""

    node_id: int = wire(INT32, since=16)
    host: str = wire(since=16)
    port: int = wire(INT32, since=16)
    rack: str | None = wire(since=16)


@message
class FetchResponse:
    """Response with the records of the partitions."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16, since=7)
    session_id: int = wire(INT32, since=7)
    responses: list[FetchableTopic] = wire()
    node_endpoints: list[NodeEndpoint] = wire(since=16, tag=0)
