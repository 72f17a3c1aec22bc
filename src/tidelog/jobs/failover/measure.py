"""Latency of topics on clusters, from create time to append time: how large, and how certain.

Owns the samples (`TopicLatency`) and the verdict on them (`judge`). Not owned: what follows for a
failover (`rules`, `job`).

Brokers don't tell when they appended a record of a CreateTime topic. A consumer at the tail sees a
record soon afterwards, so arrival - create time is the latency plus a short delay: rather too much
than too little. Such a measurement takes as long as the sample is.

A broker that stamps a batch (LogAppendTime) writes the append time into its header and leaves the
producer's times in the records. Consumers don't see these, but the batches contain them, so the
past is measured exactly and at once. This fails for records that a conversion or a compaction
rewrote: if all create times of a batch equal its stamp, they count as lost. Batches are fetched as
a follower does, without encryption and without a password; if they can't be fetched, `judge` says
so.

One clock, this machine's, stands for the brokers' clocks: a constant difference shifts all
latencies, the negative ones (skew) by as much as the positive ones, so the margin, which is their
sum, stays right.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from tidelog.env import Clock
from tidelog.errors import ClusterFailure, RequestError, UnknownTopic
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.offset_order import in_order
from tidelog.remote import client
from tidelog.remote.broker_connection import Connect, connect_socket
from tidelog.remote.cluster import decoded, partition_of
from tidelog.remote.leader import FetchLimits, Leader, Position
from tidelog.remote.view import ClusterView
from tidelog.types import INT64_MAX, NO_LEADER_EPOCH, TimestampType, TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck

    from tidelog.remote.cluster import Cluster


# A topic of more records is measured by its first so many within the period.
_RECORDS_MAX: Final = 1_000_000


_LIMITS: Final = FetchLimits(max_wait_ms=100, partition_max_bytes=4 * 1024 * 1024)


class StampedRecord(NamedTuple):
    """A record's two times in ms."""

    offset: int
    append_ms: int
    create_ms: int


class StampedLog(Protocol):
    """Reads both times of records that a broker stamped."""

    def records(self, partition: TopicPartition, start: int, end: int) -> Iterable[StampedRecord]:
        """Those with both times, at offsets in [start, end)."""
        ...


class BrokerLog:
    """A `StampedLog` of a cluster. One owner. records* -> close."""

    def __init__(self, bootstrap: str, connect: Connect = connect_socket) -> None:
        """Nothing is connected before it is asked.

        Args:
            bootstrap: `host:port[,host:port]`, of which the first is asked.
            connect: How to connect.
        """
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self._bootstrap = bootstrap
        self._leader = Leader(host.strip("[]"), int(port), connect)

    def records(self, partition: TopicPartition, start: int, end: int) -> Iterator[StampedRecord]:
        """Those with both times, at offsets in [start, end); at most a million.

        Raises:
            UnknownTopic: There is no such partition.
            ClusterFailure: The broker can't be reached, or refuses.
            CorruptData: What came is no sound batch.
        """
        node_id, position = self._place(partition, start)
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

    def _place(self, partition: TopicPartition, start: int) -> tuple[int, Position]:
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
        raise ClusterFailure(self._bootstrap, f"read batches of {position.name}", "no answer")

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


# Percentiles are of so many first records (8 MB); count, largest and smallest are of all.
_KEPT: Final = 1_000_000


_TYPE_SETTING: Final = "message.timestamp.type"


_POLL_S: Final = 0.1


class TooFewRecords(RequestError):
    """A latency can't be told from what was seen; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record at the tail, and when it came, in ms of this machine's wall clock."""

    partition: TopicPartition
    offset: int
    timestamp: int | None
    timestamp_type: TimestampType
    arrival_ms: int


class Tail(Protocol):
    """Reads what is appended from now on."""

    def arrivals(self, partitions: Iterable[TopicPartition], for_ms: int) -> Iterable[Arrival]:
        """The records that come within `for_ms`."""
        ...


@dataclass(frozen=True, slots=True)
class Watched:
    """A cluster that is measured.

    Attributes:
        name: A or B.
        view: What it is asked.
        tail: Reads what is appended from now on.
        stamped: Reads both times out of batches, None where they can't be had.
    """

    name: str
    view: ClusterView
    tail: Tail
    stamped: StampedLog | None = None


@dataclass(slots=True)
class TopicLatency:
    """Latency of one topic on one cluster; add* -> facts.

    Attributes:
        cluster: A or B.
        topic: The topic.
        for_ms: How long was looked.
        count: Records with a create time.
        append_timed: Records that show an append time instead.
        is_exact: To append time, of records that were there; else to arrival.
        max_ms: Largest latency, 0 where none was positive.
        skew_ms: How far the largest create time was ahead of arrival, 0 where none was.
    """

    cluster: str
    topic: str
    for_ms: int
    count: int = 0
    append_timed: int = 0
    is_exact: bool = False
    max_ms: int = 0
    skew_ms: int = 0
    _kept: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, arrival: Arrival) -> None:
        """Count one record."""
        if arrival.timestamp_type is TimestampType.LOG_APPEND_TIME:
            self.append_timed += 1
        elif arrival.timestamp is not None:
            self.add_ms(arrival.arrival_ms - arrival.timestamp)

    def add_ms(self, latency_ms: int) -> None:
        """Count one latency."""
        self.count += 1
        self.max_ms = max(self.max_ms, latency_ms)
        self.skew_ms = max(self.skew_ms, -latency_ms)
        if len(self._kept) < _KEPT:
            self._kept.append(latency_ms)

    def percentile_ms(self, percent: float) -> int | None:
        """The latency that so many percent don't exceed (nearest rank), None without records."""
        if not self._kept:
            return None
        rank = -(-len(self._kept) * percent // 100)
        return sorted(self._kept)[max(int(rank), 1) - 1]


Latencies: TypeAlias = "tuple[TopicLatency, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How long to look, and how many records of each topic and cluster are enough."""

    for_ms: int = 30_000
    records_min: int = 1_000


def measure(
    watched: Iterable[Watched], topics: Iterable[str], sampling: Sampling, *, now_ms: int
) -> Latencies:
    """The latencies of topics on clusters, one cluster after the other.

    Args:
        watched: The clusters.
        topics: The topics.
        sampling: How long to measure, and how much is enough.
        now_ms: Wall time; what was appended in the same length of time before it is looked at where
            append times are stamped.

    Raises:
        TooFewRecords: Of a topic too few came on one of them, or none shows its create time.
        ClusterFailure: A cluster could not be read.
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


def _by_kind(cluster: Watched, topics: list[str]) -> tuple[list[str], list[str]]:
    """Topics whose batches tell both times, and the others."""
    if cluster.stamped is None:
        return [], topics
    kind = TimestampType.LOG_APPEND_TIME.config_name
    stamped = [t for t in topics if cluster.view.topic_settings(t).get(_TYPE_SETTING) == kind]
    return stamped, [topic for topic in topics if topic not in stamped]


def _exact(cluster: Watched, topic: str, sampling: Sampling, now_ms: int) -> TopicLatency:
    """Out of the batches that were appended since `for_ms` ago.

    Stamps are append times: by whichever of the two its broker searches, it finds these.
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


def _at_tail(cluster: Watched, topics: list[str], sampling: Sampling) -> Iterator[TopicLatency]:
    """By waiting for records; nothing is waited for without topics."""
    by_topic = {topic: TopicLatency(cluster.name, topic, sampling.for_ms) for topic in topics}
    partitions = [p for topic in topics for p in cluster.view.partitions(topic)]
    if partitions:
        for arrival in cluster.tail.arrivals(partitions, sampling.for_ms):
            by_topic[arrival.partition.topic].add(arrival)
    yield from by_topic.values()


def judge(latency: TopicLatency, sampling: Sampling) -> None:
    """Raise TooFewRecords where a sample is too small for a largest latency."""
    log_text = f"{latency.topic} on {latency.cluster}"
    if latency.append_timed > latency.count:
        raise TooFewRecords(
            f"the latency of {log_text} can't be measured: its timestamps are append times, and the"
            " batches, which hold create times too, can only be had without client settings;"
            " state it with --max-latency 2m"
        )
    if latency.count < sampling.records_min:
        seconds = sampling.for_ms / 1000
        raise TooFewRecords(
            f"the latency of {log_text} can't be told from {latency.count} records in {seconds:g}"
            f" s: {sampling.records_min} are needed; {_remedy(latency, sampling)}"
        )


def _remedy(latency: TopicLatency, sampling: Sampling) -> str:
    if latency.count == 0:
        return "nothing is appended there, so state it with --max-latency 2m"
    needed_s = -(-sampling.for_ms * sampling.records_min // latency.count // 1000)
    return f"--sample-for {needed_s}s would bring them, or state it with --max-latency 2m"


class ConsumerTail:
    """The tail of a cluster, through a consumer that joins no group and commits nothing."""

    def __init__(self, cluster: "Cluster", clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    def arrivals(self, partitions: Iterable[TopicPartition], for_ms: int) -> Iterator[Arrival]:
        """The records appended from now on that come within `for_ms`."""
        watched = list(partitions)
        with self._consumer(watched) as poll:
            self._warm_up(poll, len(watched))
            # What came while connecting was late for our reasons, not for the cluster's.
            marks = self._cluster.watermarks(watched)
            first = {p: mark.end for p, mark in marks.items()}
            yield from self._until(poll, first, self._clock.monotonic_ms() + for_ms)

    @contextmanager
    def _consumer(self, partitions: list[TopicPartition]) -> Iterator["_Poll"]:
        from confluent_kafka import TopicPartition as Place

        marks = self._cluster.watermarks(partitions)
        consumer = self._cluster.consumer(fetch_wait_max_ms=100)
        try:
            with self._cluster.typed("read the tail"):
                places = [Place(p.topic, p.partition, marks[p].end) for p in partitions]
                consumer.assign(places)
            yield _Poll(self._cluster, consumer, self._clock)
        finally:
            consumer.close()

    def _warm_up(self, poll: "_Poll", partition_count: int) -> None:
        """Until each partition has answered, or a request's time-out is over."""
        left_s = self._cluster.deadline()
        while len(poll.answered) < partition_count and left_s() > 0:
            poll.next()

    def _until(
        self, poll: "_Poll", first: Mapping[TopicPartition, int], end_ms: int
    ) -> Iterator[Arrival]:
        while self._clock.monotonic_ms() < end_ms:
            arrival = poll.next()
            if arrival is not None and arrival.offset >= first[arrival.partition]:
                yield arrival


class _Poll:
    """One message after the other; remembers which partitions have answered."""

    def __init__(self, cluster: "Cluster", consumer: "ck.Consumer", clock: Clock) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._clock = clock
        self.answered: set[TopicPartition] = set()

    def next(self) -> Arrival | None:
        """The next record, None where nothing came for a moment, or the end of a partition."""
        with self._cluster.typed("read the tail"):
            message = self._consumer.poll(_POLL_S)
        if message is None:
            return None
        arrival_ms = self._clock.now_ms()
        error = message.error()
        if error is not None and error.code() != client.PARTITION_EOF:
            raise self._cluster.failure("read the tail", error)
        partition = partition_of(message)
        self.answered.add(partition)
        if error is not None:
            return None
        record = decoded(message)
        return Arrival(
            partition, record.offset, record.timestamp, record.timestamp_type, arrival_ms
        )
