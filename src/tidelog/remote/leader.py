"""Client of the cluster that a standby follows, and the rule that finds where two logs diverge.

Each request for offsets or records goes to the broker that leads the requested partitions. A
standby is not a registered broker, so it fetches as a consumer (replica id -1) and gets records
only up to the high watermark.

Two logs are compared by leader epochs. A comparison of records does not suffice: the standby and
the leader apply retention and compaction independently, so a record that only one of them has
proves nothing. In two cases the standby has records that its present leader never had: the leader
never had the records' epoch, or the leader's end offset of this epoch is at or below the records'
offsets.

Source: Kafka's protocol guide; KIP-101, KIP-279, KIP-320, KIP-516; Kafka 4.x
AbstractFetcherThread.getOffsetTruncationState.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.errors import ClusterFailure, CorruptMessage
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages import (
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
)
from tidelog.protocol.messages.configs import (
    TOPIC_RESOURCE,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataTopic
from tidelog.protocol.schema import CONSUMER_REPLICA_ID
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.header import ATTRIBUTES_AT, MAGIC_2
from tidelog.remote import client as codes
from tidelog.remote.broker_connection import BrokerConnection, Connect
from tidelog.types import NO_LEADER_EPOCH, IsolationLevel, TopicPartition

UNKNOWN_END: Final = -1


class OwnEpoch(NamedTuple):
    """A leader epoch in the standby's log.

    Attributes:
        epoch: The epoch.
        start_offset: Offset of the epoch's first record.
        end_offset: Offset after the epoch's last record.
    """

    epoch: int
    start_offset: int
    end_offset: int


class EpochEnd(NamedTuple):
    """The leader's largest epoch that is not above a requested epoch, with its end offset.

    Both fields are -1 if the requested epoch is above all epochs of the leader. If the requested
    epoch is below all of them, the fields are this epoch and the start offset of the leader's first
    epoch.
    """

    epoch: int
    end_offset: int


def parting_offset(
    own: Iterable[OwnEpoch], leader: Mapping[int, EpochEnd], leader_start: int
) -> int | None:
    """Return the offset to which the standby must truncate its log; None if the logs agree.

    Args:
        own: The standby's epochs, oldest first.
        leader: The leader's result for each of the standby's epochs.
        leader_start: The leader's log start offset; records below it can't be compared.
    """
    for own_epoch in own:
        theirs = leader.get(own_epoch.epoch)
        if theirs is None:
            continue
        if theirs.end_offset == UNKNOWN_END:
            return max(own_epoch.start_offset, 0)  # all epochs of the leader are below this epoch
        if theirs.epoch != own_epoch.epoch:
            return min(own_epoch.start_offset, theirs.end_offset)  # the leader never had this epoch
        # Records below the leader's log start can't be compared.
        end = max(theirs.end_offset, leader_start)
        if own_epoch.end_offset > end:
            return end
    return None


def ends_problem(leader: Mapping[int, EpochEnd]) -> str | None:
    """Return the first contradiction among a leader's epoch ends; None if there is none.

    Args:
        leader: The leader's result for each requested epoch.
    """
    before = 0
    for epoch, end in sorted(leader.items()):
        if end == (NO_LEADER_EPOCH, UNKNOWN_END):
            continue
        if not 0 <= end.epoch <= epoch or end.end_offset < before:
            return f"epoch {end.epoch} (end offset {end.end_offset}) for a request of epoch {epoch}"
        before = end.end_offset
    return None


def is_other_batch(own_batch: Batch, theirs: Batch) -> bool:
    """Return whether two batches at one offset of two logs were written by different leaders.

    Both batches must be valid.

    Compaction removes records from a batch or adds a delete horizon, but does not change the
    batch's offsets. So two batches were written by different leaders in two cases:

    - The offset ranges of the batches overlap without being equal.
    - The batches have the same offsets and record count and no delete horizon, but different
      checksums.

    After a promotion, leader epochs can't show that the leaders differ, because the promoted
    standby and its former leader may both use the same next epoch. The checksum doesn't cover the
    base offset, so batches with equal checksummed bytes at different base offsets are the same
    batch with a flipped bit. If the leader's batch begins after the end of the standby's batch, the
    leader's compaction may have removed the batch that the standby has, so the result is False.
    """
    if (
        own_batch.magic == theirs.magic == MAGIC_2
        and own_batch.view[ATTRIBUTES_AT:] == theirs.view[ATTRIBUTES_AT:]
    ):
        return False
    if theirs.base_offset > own_batch.last_offset:
        return False  # the leader's compaction has removed this batch
    if (own_batch.base_offset, own_batch.last_offset) != (theirs.base_offset, theirs.last_offset):
        return True
    if not isinstance(own_batch, RecordBatch) or not isinstance(theirs, RecordBatch):
        return False
    horizon = own_batch.delete_horizon_ms is not None or theirs.delete_horizon_ms is not None
    return (
        not horizon
        and own_batch.record_count == theirs.record_count
        and own_batch.crc != theirs.crc
    )


# Minimum versions of Metadata and Fetch requests: the first versions with the needed fields. Since
# version 10, Metadata has topic ids. Since version 12, Fetch has the epoch of the last fetched
# record.
_METADATA_LEAST: Final = 10

_FETCH_LEAST: Final = 12
_FETCH_BY_ID: Final = 13
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class LeaderPartition:
    """A partition's leader.

    `leader_id` is -1 without a leader, and `leader_epoch` is -1 if it is unknown.
    """

    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderTopic:
    """A topic of the cluster, with its partitions by number."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: Mapping[int, LeaderPartition]


class LeaderSettings(NamedTuple):
    """Settings of a topic as the cluster reports them.

    Attributes:
        values: Settings that are set for the topic or for the brokers, without settings that have
            Kafka's defaults.
        names: Names of all settings that the cluster reports with a value; the value of any other
            setting is unknown.
    """

    values: Mapping[str, str]
    names: AbstractSet[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Start of the next fetch from a partition: offset, leader epochs and byte limit.

    Attributes:
        name: The partition.
        topic_id: Id of the partition's topic.
        offset: First offset to fetch.
        last_epoch: Leader epoch of the record before that offset, -1 if unknown.
        leader_epoch: The leader's current epoch, -1 if unknown.
        max_bytes: Byte limit for this partition. The larger of this limit and
            `FetchLimits.partition_max_bytes` applies.
    """

    name: TopicPartition
    topic_id: UUID
    offset: int
    last_epoch: int
    leader_epoch: int
    max_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Byte limits of a Fetch request, and how long a broker may wait for records."""

    max_wait_ms: int = 500
    max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024


class Leader:
    """Client of the cluster that a standby follows. Not thread-safe.

    Attributes:
        refused: Error code by topic, for the topics for which the last `refresh` got an error.

    Life cycle: refresh -> (ends_of_epochs | log_offsets | send_fetch -> receive_fetch)* -> close.
    """

    def __init__(self, host: str, port: int, connect: Connect) -> None:
        self._bootstrap = BrokerConnection(host, port, connect)
        self._connect = connect
        self._nodes: dict[int, BrokerConnection] = {}
        self.refused: dict[str, int] = {}

    @property
    def address(self) -> str:
        """Bootstrap server as `host:port`."""
        return self._bootstrap.address

    @property
    def bootstrap(self) -> BrokerConnection:
        """Connection to the bootstrap server."""
        return self._bootstrap

    def node(self, node_id: int) -> BrokerConnection:
        """Return the connection to a broker; raises ClusterFailure if its id is unknown."""
        client = self._nodes.get(node_id)
        if client is None:
            reason = f"the cluster has no broker with id {node_id}"
            raise ClusterFailure(self.address, "reach a leader", reason)
        return client

    @property
    def node_ids(self) -> list[int]:
        """Ids of all brokers, sorted."""
        return sorted(self._nodes)

    def refresh(self) -> dict[str, LeaderTopic]:
        """Request metadata; return the topics without an error by name. Raises ClusterFailure."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        response = self._bootstrap.request(METADATA, request, least=_METADATA_LEAST)
        if response.error_code:
            raise self._refusal("list topics", response.error_code)
        clients = {(node.host, node.port): node for node in self._nodes.values()}
        nodes = {}
        for broker in response.brokers:
            client = clients.pop((broker.host, broker.port), None)
            nodes[broker.node_id] = client or BrokerConnection(
                broker.host, broker.port, self._connect
            )
        for client_left in clients.values():
            client_left.close()
        self._nodes = nodes
        self.refused = {t.name or "": t.error_code for t in response.topics if t.error_code}
        topics = (_topic(topic) for topic in response.topics if not topic.error_code)
        return {topic.name: topic for topic in topics}

    def settings(self, names: Sequence[str]) -> dict[str, LeaderSettings]:
        """Return the settings that the cluster reports for each topic; raises ClusterFailure.

        If a topic is missing in the response, it is also missing in the result.
        """
        resources = [
            DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name)
            for name in names
        ]
        if not resources:
            return {}
        request = DescribeConfigsRequest(resources=resources)
        response = self._bootstrap.request(DESCRIBE_CONFIGS, request)
        settings = {}
        for result in response.results:
            if result.error_code:
                raise self._refusal(
                    f"request the settings of {result.resource_name}", result.error_code
                )
            configs = {config.name: config for config in result.configs if config.value is not None}
            values = {
                name: config.value
                for name, config in configs.items()
                if config.value is not None
                and ConfigSource.TOPIC <= config.config_source <= ConfigSource.STATIC_BROKER
            }
            settings[result.resource_name] = LeaderSettings(values, configs.keys())
        return settings

    def _refusal(self, operation: str, code: int) -> ClusterFailure:
        return ClusterFailure(self.address, operation, codes.named(code), error_code=code)

    # -- offsets -----------------------------------------------------------------------------

    def log_offsets(
        self, node_id: int, names: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int | ClusterFailure]:
        """Return the start or end offset of each partition, or the error of a refused request.

        Args:
            node_id: Id of the broker that leads the partitions.
            names: The partitions.
            timestamp: EARLIEST_TIMESTAMP, or LATEST_TIMESTAMP for the high watermark.
        """
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=number, timestamp=timestamp)
                    for number in numbers
                ],
            )
            for topic, numbers in _by_topic(names).items()
        ]
        request = ListOffsetsRequest(replica_id=CONSUMER_REPLICA_ID, topics=topics)
        response = self.node(node_id).request(LIST_OFFSETS, request)
        return {
            TopicPartition(topic.name, part.partition_index): (
                self._refusal("request log start and end offsets", part.error_code)
                if part.error_code
                else part.offset
            )
            for topic in response.topics
            for part in topic.partitions
        }

    def ends_of_epochs(
        self, node_id: int, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | ClusterFailure]:
        """Return, for each partition, the end of the requested epoch at the leader, or an error."""
        topics = [
            OffsetForLeaderTopic(
                topic=topic,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=number, leader_epoch=epochs[TopicPartition(topic, number)]
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in _by_topic(epochs).items()
        ]
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA_ID, topics=topics)
        response = self.node(node_id).request(OFFSET_FOR_LEADER_EPOCH, request, least=3)
        return {
            TopicPartition(topic.topic, part.partition): (
                self._refusal("request ends of leader epochs", part.error_code)
                if part.error_code
                else EpochEnd(part.leader_epoch, part.end_offset)
            )
            for topic in response.topics
            for part in topic.partitions
        }

    # -- records -----------------------------------------------------------------------------

    def send_fetch(
        self,
        node_id: int,
        positions: Sequence[Position],
        limits: FetchLimits,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> None:
        """Send a Fetch request without waiting for the response; raises ClusterFailure."""
        by_topic: defaultdict[tuple[str, UUID], list[FetchPartition]] = defaultdict(list)
        for position in positions:
            by_topic[position.name.topic, position.topic_id].append(
                FetchPartition(
                    partition=position.name.partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_epoch,
                    partition_max_bytes=max(limits.partition_max_bytes, position.max_bytes),
                )
            )
        request = FetchRequest(
            max_wait_ms=limits.max_wait_ms,
            min_bytes=1,
            max_bytes=limits.max_bytes,
            isolation_level=isolation,
            with_append_times=True,
            topics=[
                FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)
                for (topic, topic_id), partitions in by_topic.items()
            ],
        )
        self.node(node_id).send(FETCH, request, least=_FETCH_LEAST)

    def receive_fetch(
        self, node_id: int, positions: Sequence[Position]
    ) -> Iterator[tuple[TopicPartition, PartitionData]]:
        """Wait for the response to `send_fetch`, and yield the data of each partition.

        Raises:
            ClusterFailure: The broker can't be reached or refuses, or its response has a partition
                twice or a partition that was not requested.
        """
        client = self.node(node_id)
        response = client.receive(FETCH)
        if response.error_code:
            raise self._refusal("fetch", response.error_code)
        by_id = client.version_of(FETCH) >= _FETCH_BY_ID
        try:
            parts = list(_requested_data(response, positions, by_id=by_id))
        except CorruptMessage as error:
            client.close()
            raise ClusterFailure(client.address, "fetch", f"{error}") from error
        yield from parts

    def close(self) -> None:
        """Close all connections."""
        for client in (self._bootstrap, *self._nodes.values()):
            client.close()


def _topic(topic: MetadataTopic) -> LeaderTopic:
    return LeaderTopic(
        topic.name or "",
        topic.topic_id,
        topic.is_internal,
        {
            part.partition_index: LeaderPartition(part.leader_id, part.leader_epoch)
            for part in topic.partitions
        },
    )


def _by_topic(names: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for name in names:
        numbers[name.topic].append(name.partition)
    return numbers


def _requested_data(
    response: FetchResponse, positions: Sequence[Position], *, by_id: bool
) -> Iterator[tuple[TopicPartition, PartitionData]]:
    """Yield the name and the data of each partition in a response.

    The names come from the request.

    Raises:
        CorruptMessage: A partition was not in the request, or occurs twice.
    """
    names = {position.topic_id: position.name.topic for position in positions}
    waiting = {position.name for position in positions}
    for topic in response.responses:
        topic_name = names.get(topic.topic_id, "") if by_id else topic.topic
        for data in topic.partitions:
            name = TopicPartition(topic_name, data.partition_index)
            if name not in waiting:
                topic_text = topic_name or topic.topic_id
                raise CorruptMessage(
                    f"it contains {topic_text}-{data.partition_index}, which was not requested"
                )
            waiting.remove(name)
            yield name, data
