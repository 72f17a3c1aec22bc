"""Measures topics' latencies on clusters. A latency is append time minus create time.

This module has the samples (`TopicLatency`), and checks whether a sample is large enough (`judge`).
`rules` and `job` use the measured latencies.

Kafka's brokers don't store the append times of a CreateTime topic. So a consumer reads at the tail
(the log end), where it receives a record soon after the append. A record's arrival time minus its
create time is the latency plus a short delay. If the clocks agree, this difference is never less
than the latency. The consumer must wait for new records, so the measurement takes the whole
sampling time.

For a LogAppendTime topic, a broker writes the append time into a batch's header and leaves the
producer's times in the records. A consumer client doesn't return the producer's times, but the
fetched batches contain these times. So the latencies of existing records are measured exactly and
without waiting for new records. Exception: a conversion or a compaction of a batch may have
replaced its create times by the append time. So if all create times of a batch equal its append
time, the create times count as lost. Batches are fetched with the requests that a follower sends,
over connections with neither TLS nor SASL. If batches can't be fetched, `judge` raises an error
with this reason.

At the tail, arrival times are from this machine's clock instead of the brokers' clocks. If the
clocks differ by a constant, all measured latencies shift by this constant. Then the largest latency
grows by the constant, and the skew (the size of the most negative latency) shrinks by the same
amount. If the constant is negative, the latency shrinks and the skew grows. So the margin, which is
the sum of largest latency and skew, does not change.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from tidelog.amounts import plural, verb
from tidelog.env import Clock
from tidelog.errors import ClusterFailure, RequestError, UnknownTopic
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.offset_order import in_order
from tidelog.remote import client
from tidelog.remote.broker_connection import Connect, connect_socket
from tidelog.remote.cluster import decoded
from tidelog.remote.leader import FetchLimits, Leader, Position
from tidelog.remote.view import ClusterView
from tidelog.types import INT64_MAX, NO_LEADER_EPOCH, IsolationLevel, TimestampType, TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck

    from tidelog.remote.cluster import Cluster


# Number of records of a partition after which no further batches are fetched. The partition's later
# records are not measured.
_RECORDS_MAX: Final = 1_000_000

_LIMITS: Final = FetchLimits(max_wait_ms=100, partition_max_bytes=4 * 1024 * 1024)


class StampedRecord(NamedTuple):
    """Record's offset, append time in ms, and create time in ms."""

    offset: int
    append_ms: int
    create_ms: int


class StampedLog(Protocol):
    """Reader of append times and create times of records in LogAppendTime topics."""

    def records(self, partition: TopicPartition, start: int, end: int) -> Iterable[StampedRecord]:
        """Yield the append time and create time of the records with offsets in [start, end)."""
        ...


class BrokerLog:
    """Reader of a cluster's batches; implements `StampedLog`.

    Life cycle: records* -> close. Not thread-safe.
    """

    def __init__(self, bootstrap: str, connect: Connect = connect_socket) -> None:
        """Create the reader without opening a connection.

        Args:
            bootstrap: `host:port[,host:port]`; only the first server is asked for the partitions'
                leaders.
            connect: Opens a connection.
        """
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self._bootstrap = bootstrap
        self._leader = Leader(host.strip("[]"), int(port), connect)

    def records(self, partition: TopicPartition, start: int, end: int) -> Iterator[StampedRecord]:
        """Yield the append time and create time of the records with offsets in [start, end).

        A record is left out if its batch lacks append times or create times. No further batches are
        fetched after `_RECORDS_MAX` records have been yielded.

        Raises:
            UnknownTopic: The topic or partition does not exist.
            ClusterFailure: The broker can't be reached, or refuses a request.
            CorruptData: A batch is damaged.
        """
        node_id, position = self._leader_position(partition, start)
        count = 0
        while position.offset < end and count < _RECORDS_MAX:
            data = self._fetch(node_id, position)
            next_offset = position.offset
            floor = 0 if position.offset == start else position.offset
            batches = ((batch.at, batch) for batch in walk(data.batches))
            for _, batch in in_order(batches, floor, INT64_MAX, f"{partition}"):
                next_offset = batch.next_offset
                if isinstance(batch, RecordBatch):
                    for record in _stamped(batch):
                        if position.offset <= record.offset < end:
                            count += 1
                            yield record
            if next_offset == position.offset:
                return
            position = replace(position, offset=next_offset)

    def _leader_position(self, partition: TopicPartition, start: int) -> tuple[int, Position]:
        """Return the id of the partition's leader, and the position for a fetch from `start` on."""
        topic = self._leader.refresh().get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            raise UnknownTopic(f"{self._bootstrap} has no partition {partition}")
        position = Position(
            name=partition,
            topic_id=topic.topic_id,
            offset=start,
            last_epoch=NO_LEADER_EPOCH,
            leader_epoch=NO_LEADER_EPOCH,
        )
        return topic.partitions[partition.partition].leader_id, position

    def _fetch(self, node_id: int, position: Position) -> PartitionData:
        self._leader.send_fetch(node_id, [position], _LIMITS)
        for _partition, data in self._leader.receive_fetch(node_id, [position]):
            if data.error_code:
                raise ClusterFailure(
                    self._bootstrap,
                    f"read batches of {position.name}",
                    client.named(data.error_code),
                    error_code=data.error_code,
                )
            return data
        raise ClusterFailure(self._bootstrap, f"read batches of {position.name}", "no response")

    def close(self) -> None:
        """Close the connections."""
        self._leader.close()


def _stamped(batch: RecordBatch) -> Iterator[StampedRecord]:
    if batch.is_control or batch.timestamp_type is not TimestampType.LOG_APPEND_TIME:
        return
    batch.ensure_valid()
    for record in batch.records():
        if record.create_timestamp is not None and record.create_timestamp >= 0:
            yield StampedRecord(record.offset, record.timestamp, record.create_timestamp)


# Maximum number of latencies that are stored for percentiles (8 MB). Later latencies are not
# stored, but `count`, `max_ms` and `skew_ms` include all records.
_LATENCIES_MAX: Final = 1_000_000

_TYPE_SETTING: Final = "message.timestamp.type"
_POLL_S: Final = 0.1


class TooFewRecords(RequestError):
    """Raised if there are too few records to measure a latency; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Record at the tail, with its arrival time in ms on this machine's wall clock."""

    partition: TopicPartition
    offset: int
    timestamp: int | None
    timestamp_type: TimestampType
    arrival_ms: int


class Tail(Protocol):
    """Reader of records that are appended from now on."""

    def arrivals(self, partitions: Iterable[TopicPartition], for_ms: int) -> Iterable[Arrival]:
        """Yield the records that arrive within `for_ms`."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredCluster:
    """Cluster whose latencies are measured.

    Attributes:
        name: Name of the cluster, A or B.
        view: Calls to the cluster.
        tail: Reader of records that are appended from now on.
        stamped: Reader of append and create times in batches; None if batches can't be fetched.
    """

    name: str
    view: ClusterView
    tail: Tail
    stamped: StampedLog | None = None


@dataclass(slots=True)
class TopicLatency:
    """Latency of one topic on one cluster. Life cycle: add*, then read its attributes.

    Attributes:
        cluster: Name of the cluster, A or B.
        topic: The topic.
        for_ms: Duration of the sample in ms.
        count: Number of records with a create time.
        append_timed: Number of records without a create time, because their timestamp is an append
            time.
        is_exact: Whether each latency is append time minus create time. Otherwise each latency is
            the arrival time at this process minus the create time.
        max_ms: Largest latency in ms; 0 if no latency is positive.
        skew_ms: Largest difference in ms by which a create time is later than the record's append
            time (arrival time if `is_exact` is false); 0 if no create time is later.
    """

    cluster: str
    topic: str
    for_ms: int
    count: int = 0
    append_timed: int = 0
    is_exact: bool = False
    max_ms: int = 0
    skew_ms: int = 0
    _latencies_ms: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, arrival: Arrival) -> None:
        """Add one record that has arrived."""
        if arrival.timestamp_type is TimestampType.LOG_APPEND_TIME:
            self.append_timed += 1
        elif arrival.timestamp is not None:
            self.add_ms(arrival.arrival_ms - arrival.timestamp)

    def add_ms(self, latency_ms: int) -> None:
        """Add one latency."""
        self.count += 1
        self.max_ms = max(self.max_ms, latency_ms)
        self.skew_ms = max(self.skew_ms, -latency_ms)
        if len(self._latencies_ms) < _LATENCIES_MAX:
            self._latencies_ms.append(latency_ms)

    def percentile_ms(self, percent: float) -> int | None:
        """Return a nearest-rank percentile of stored latencies in ms; None if none is stored."""
        if not self._latencies_ms:
            return None
        rank = -(-len(self._latencies_ms) * percent // 100)
        return sorted(self._latencies_ms)[max(int(rank), 1) - 1]


Latencies: TypeAlias = "tuple[TopicLatency, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Duration in ms of a sample (one topic on one cluster), and its minimum number of records."""

    for_ms: int = 30_000
    records_min: int = 1_000


def measure(
    watched: Iterable[MeasuredCluster], topics: Iterable[str], sampling: Sampling, *, now_ms: int
) -> Latencies:
    """Measure the latencies of topics on clusters, one cluster after the other.

    Args:
        watched: The clusters.
        topics: The topics.
        sampling: Duration of the sample, and minimum number of records.
        now_ms: Current time in ms. For LogAppendTime topics, the sample is the period from `for_ms`
            before this time to the log end.

    Raises:
        TooFewRecords: A topic had too few records on a cluster, or their create times are unknown.
        ClusterFailure: A cluster can't be read.
    """
    latencies: list[TopicLatency] = []
    topic_names = list(topics)
    for cluster in watched:
        stamped, others = _by_kind(cluster, topic_names)
        for topic in stamped:
            latencies.append(_exact(cluster, topic, sampling, now_ms))
            judge(latencies[-1], sampling)
        latencies.extend(_at_tail(cluster, others, sampling))
    for latency in latencies:
        judge(latency, sampling)
    return tuple(latencies)


def _by_kind(cluster: MeasuredCluster, topics: list[str]) -> tuple[list[str], list[str]]:
    """Return topics whose fetched batches have create and append times, and all other topics."""
    if cluster.stamped is None:
        return [], topics
    kind = TimestampType.LOG_APPEND_TIME.config_name
    stamped = [t for t in topics if cluster.view.topic_settings(t).get(_TYPE_SETTING) == kind]
    return stamped, [topic for topic in topics if topic not in stamped]


def _exact(cluster: MeasuredCluster, topic: str, sampling: Sampling, now_ms: int) -> TopicLatency:
    """Measure the latency of records in batches that were appended in the last `for_ms`.

    The timestamps of these batches are append times. So the broker's search by timestamp finds the
    first batch that was appended in this period.
    """
    assert cluster.stamped is not None
    latency = TopicLatency(cluster.name, topic, sampling.for_ms, is_exact=True)
    since = dict.fromkeys(cluster.view.partitions(topic), max(now_ms - sampling.for_ms, 0))
    marks = cluster.view.watermarks(since)
    for partition, start in cluster.view.offsets_for_times(since).items():
        if start is not None:
            end = marks[partition].end
            for record in cluster.stamped.records(partition, start.offset, end):
                latency.add_ms(record.append_ms - record.create_ms)
    return latency


def _at_tail(
    cluster: MeasuredCluster, topics: list[str], sampling: Sampling
) -> Iterator[TopicLatency]:
    """Yield each topic's latency of records that arrive within `for_ms`; nothing without topics."""
    by_topic = {topic: TopicLatency(cluster.name, topic, sampling.for_ms) for topic in topics}
    partitions = [p for topic in topics for p in cluster.view.partitions(topic)]
    if partitions:
        for arrival in cluster.tail.arrivals(partitions, sampling.for_ms):
            by_topic[arrival.partition.topic].add(arrival)
    yield from by_topic.values()


def judge(latency: TopicLatency, sampling: Sampling) -> None:
    """Raise TooFewRecords if a sample is too small, or if most of its create times are unknown."""
    log_text = f"{latency.topic} on {latency.cluster}"
    if latency.append_timed > latency.count:
        raise TooFewRecords(
            f"the latency of {log_text} can't be measured: its timestamps are append times. The"
            " create times are only in the batches, which can't be fetched if client settings are"
            " given; give --max-latency"
        )
    if latency.count < sampling.records_min:
        seconds = sampling.for_ms / 1000
        are = verb(sampling.records_min, "is", "are")
        raise TooFewRecords(
            f"the latency of {log_text} can't be measured from {plural(latency.count, 'record')}"
            f" in {seconds:g} s: {sampling.records_min:,} {are} needed;"
            f" {_remedy(latency, sampling)}"
        )


def _remedy(latency: TopicLatency, sampling: Sampling) -> str:
    if latency.count == 0:
        return "no records are being appended to the topic; give --max-latency"
    needed_s = -(-sampling.for_ms * sampling.records_min // latency.count // 1000)
    return f"give --sample-for {needed_s}s for enough records, or --max-latency"


class ConsumerTail:
    """Reader of a cluster's tail, with a consumer that joins no group and commits nothing."""

    def __init__(self, cluster: "Cluster", clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    def arrivals(self, partitions: Iterable[TopicPartition], for_ms: int) -> Iterator[Arrival]:
        """Connect, then yield the records that are appended later and arrive within `for_ms`."""
        watched, isolation = list(partitions), IsolationLevel.READ_COMMITTED
        # Behind the last stable offset, a consumer would get no response while a transaction is
        # open, and the warm-up would last a request's timeout.
        stable = self._cluster.watermarks(watched, isolation=isolation)
        ends = {name: mark.end for name, mark in stable.items()}
        with self._cluster.consumer_at(ends, isolation) as consumer:
            poll = _Poll(self._cluster, consumer, self._clock)
            self._warm_up(poll, len(watched))
            # Records that were appended while the consumer was connecting are not measured: the
            # time to connect, not the cluster, delayed their arrival.
            marks = self._cluster.watermarks(watched)
            first = {p: mark.end for p, mark in marks.items()}
            yield from self._until(poll, first, self._clock.monotonic_ms() + for_ms)

    def _warm_up(self, poll: "_Poll", partition_count: int) -> None:
        """Poll until the consumer has read from each partition, at most for a request's timeout."""
        left_s = self._cluster.deadline()
        while len(poll.responsive_partitions) < partition_count and left_s() > 0:
            poll.next()

    def _until(
        self, poll: "_Poll", first: Mapping[TopicPartition, int], end_ms: int
    ) -> Iterator[Arrival]:
        while self._clock.monotonic_ms() < end_ms:
            arrival = poll.next()
            if arrival is not None and arrival.offset >= first[arrival.partition]:
                yield arrival


class _Poll:
    """Polls for single messages, and stores from which partitions the consumer has read."""

    def __init__(self, cluster: "Cluster", consumer: "ck.Consumer", clock: Clock) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._clock = clock
        self.responsive_partitions: set[TopicPartition] = set()

    def next(self) -> Arrival | None:
        """Return the next record; None at a partition's end, or if no record came for `_POLL_S`."""
        with self._cluster.typed("read the tail"):
            message = self._consumer.poll(_POLL_S)
        if message is None:
            return None
        arrival_ms = self._clock.now_ms()
        partition = self._cluster.partition_of(message)
        is_record = self._cluster.is_record(message, message.offset() or 0)
        self.responsive_partitions.add(partition)
        if not is_record:
            return None
        record = decoded(message)
        return Arrival(
            partition, record.offset, record.timestamp, record.timestamp_type, arrival_ms
        )
