"""Markers: records in a compacted topic that show which batches the sink's transactions wrote.

A task writes a marker in the same transaction as its rows. The marker's key is the transactional
id, and its value is `{"version": 1, "batch": N, "note": TEXT}`. So a task's rows of a batch count
as written if and only if a marker of that batch or of a later batch is committed.

A numbered write (a batch write with `txnAppId` and `txnVersion`) writes a marker for each of its
topics. Such a marker has the key that `topic_key` returns, and the topic's id (`"topic_id"`) if the
cluster has ids. So a topic that is deleted and recreated starts without markers. A marker without
an id applies to any topic with the name in the key.

The partition of a marker is a hash of its plain key (without a topic) modulo `PARTITION_COUNT`.
So partitions that are added to the marker topic do not change where a marker is written, and a
marker is always found.
"""

import json
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.amounts import plural
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, CorruptMessage, InvalidRequest, UnknownTopic
from tidelog.record.partitioner import partition_of
from tidelog.remote import client
from tidelog.remote.client import id_text, typed_error

if TYPE_CHECKING:
    import confluent_kafka as ck

    from tidelog.remote.cluster import Cluster


PARTITION_COUNT: Final = 16
REPLICAS: Final = 3
MARKER_VERSION: Final = 1

# Settings that make compaction run soon on small segments, because each task reads a whole
# partition of markers.
TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}

_POLL_S: Final = 0.1
_CHUNK: Final = 1_000
_PATIENCE: Final = 4


class Marker(NamedTuple):
    """Content of a marker.

    Attributes:
        batch: Number of the batch whose rows were written.
        note: Text that `broker_sink.Claim.note` returned for these rows; "" if the claim has no
            `note`.
        topic_id: Id of the topic that has the rows; "" if unknown.
    """

    batch: int
    note: str = ""
    topic_id: str = ""


def encode_marker(marker: Marker) -> bytes:
    """Return a marker as a record's value."""
    content = {"version": MARKER_VERSION, "batch": marker.batch, "note": marker.note}
    if marker.topic_id:
        content["topic_id"] = marker.topic_id
    return json.dumps(content).encode()


def decode_marker(value: bytes) -> Marker:
    """Parse a record's value as a marker; raises CorruptMessage if it is not a marker."""
    try:
        content = json.loads(value)
        version, batch = content["version"], content["batch"]
        note, topic_id = content.get("note", ""), content.get("topic_id", "")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptMessage(f"not a marker: {value[:80]!r}") from error
    is_text = isinstance(note, str) and isinstance(topic_id, str)
    if version != MARKER_VERSION or type(batch) is not int or not is_text:
        raise CorruptMessage(f"not a marker of version {MARKER_VERSION}: {value[:80]!r}")
    return Marker(batch, note, topic_id)


def last_marker(current: Marker | None, newer: Marker) -> Marker:
    """Return the valid one of two markers with the same key.

    If both belong to the same topic, the marker of the later batch is valid.

    Args:
        current: The valid marker so far; None if there is none.
        newer: A marker at a higher offset. If the two markers have different topic ids, `newer` is
            valid, because its topic was created later.
    """
    is_same = current is not None and current.topic_id == newer.topic_id
    return max(current, newer) if current is not None and is_same else newer


def topic_key(key: str, topic: str) -> str:
    """Return the key of a topic's marker. The separator `@` can't be in names of topics."""
    return f"{key}@{topic}"


class Markers:
    """The marker topic of one cluster. Not thread-safe."""

    def __init__(self, cluster: "Cluster", topic: str) -> None:
        self.topic = topic
        self._cluster = cluster

    def partition_of(self, key: str) -> int:
        """Return the partition that has the markers of a plain key."""
        return partition_of(key.encode(), PARTITION_COUNT)

    def ensure(self) -> None:
        """Create the topic if it is missing, and check its partitions and cleanup policy.

        Raises:
            InvalidRequest: The topic has too few partitions, or retention may delete markers.
            NotAuthorized, ClusterFailure: The cluster refuses a request, or can't be reached.
        """
        count = self._partition_count()
        if count is None:
            self._create()
            count = self._await_partitions()
        if count < PARTITION_COUNT:
            raise InvalidRequest(
                f"topic {self.topic} has {plural(count, 'partition')}, but markers need"
                f" {PARTITION_COUNT}: give another markerTopic, or the name of a topic that does"
                " not exist, which is then created"
            )
        self._check_policy()

    def _partition_count(self) -> int | None:
        try:
            return partition_count(self._cluster, self.topic)
        except UnknownTopic:
            return None

    def _create(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.cimpl import NewTopic

        admin = self._cluster.admin()
        with self._cluster.typed("list the brokers"):
            brokers = len(admin.list_topics(timeout=self._cluster.timeout_s).brokers)
        new = NewTopic(
            self.topic,
            num_partitions=PARTITION_COUNT,
            replication_factor=min(REPLICAS, max(brokers, 1)),
            config=dict(TOPIC_CONFIG),
        )
        try:
            admin.create_topics([new])[self.topic].result(timeout=self._cluster.timeout_s)
        except KafkaException as error:
            if error.args[0].code() != ErrorCode.TOPIC_ALREADY_EXISTS:  # made by another task
                operation = f"create topic {self.topic}"
                raise typed_error(self._cluster, operation, error.args[0]) from error

    def _await_partitions(self) -> int:
        """Wait until the brokers list the new topic, and return its number of partitions."""
        time_left = self._cluster.deadline()
        while time_left():
            count = self._partition_count()
            if count is not None:
                return count
            threading.Event().wait(_POLL_S)
        raise ClusterFailure(
            self._cluster.bootstrap,
            f"create topic {self.topic}",
            "the brokers do not list the new topic",
        )

    def _check_policy(self) -> None:
        policy = self._cluster.topic_settings(self.topic)["cleanup.policy"]
        if policy != "compact":
            raise InvalidRequest(
                f"topic {self.topic} has cleanup.policy={policy}, with which markers would be"
                " deleted: set it to compact, or give another markerTopic"
            )

    def committed(self, key: str, at_least: int) -> dict[str, Marker]:
        """Return valid markers of batch `at_least` or later, by marker key (see `topic_key`).

        The caller has fenced older producers with the same transactional id, so these producers
        have no open transaction. The first read includes uncommitted markers, so it does not wait
        for open transactions of other keys. Almost always, the first read finds no marker of batch
        `at_least` or later. If the first read finds such a marker, a second read checks whether the
        marker's transaction was committed.

        Raises:
            ClusterFailure, NotAuthorized: The topic can't be read within the timeout.
            CorruptMessage: A record under one of these keys is not a marker.
        """
        markers, end = self._read(key, "read_uncommitted", 0)
        if all(marker.batch < at_least for marker in markers.values()):
            return {}
        markers, _ = self._read(key, "read_committed", end)
        return {name: marker for name, marker in markers.items() if marker.batch >= at_least}

    def _read(self, key: str, isolation: str, end: int) -> tuple[dict[str, Marker], int]:
        """Return the valid markers, by marker key (see `topic_key`), and the partition's end.

        Args:
            key: The plain key, without a topic.
            isolation: Isolation level by Kafka's name.
            end: Offset up to which the read must go, exclusive. The read ends at the partition's
                end, but first waits until the partition reaches `end`.
        """
        from confluent_kafka import TopicPartition

        consumer = self._cluster.consumer(isolation_level=isolation, auto_offset_reset="earliest")
        markers: dict[str, Marker] = {}
        own, of_topics = key.encode(), topic_key(key, "").encode()
        # A transaction of a crashed task stays open until the task is repeated, which may take a
        # while. So the deadline is longer if the read must reach a known end.
        time_left = self._cluster.deadline(times=_PATIENCE if end else 1)
        try:
            consumer.assign([TopicPartition(self.topic, self.partition_of(key), 0)])
            while time_left():
                for message in consumer.consume(_CHUNK, timeout=_POLL_S):
                    reached = self._end_of(message)
                    if reached is not None and reached >= end:
                        return markers, reached
                    name = message.key() or b""
                    if reached is None and (name == own or name.startswith(of_topics)):
                        marker = decode_marker(message.value() or b"")
                        text = name.decode()
                        markers[text] = last_marker(markers.get(text), marker)
        finally:
            consumer.close()
        raise ClusterFailure(
            self._cluster.bootstrap,
            f"read markers of {self.topic}",
            "the partition's end was not reached in time; an open transaction of another task may"
            " block it",
        )

    def _end_of(self, message: "ck.Message") -> int | None:
        """Return the offset in a message that reports the partition's end; None for a record.

        Raises ClusterFailure, or a more specific type, for a message that reports another error.
        """
        error = message.error()
        if error is None:
            return None
        if error.code() == client.PARTITION_EOF:
            offset = message.offset()
            assert offset is not None
            return int(offset)
        raise typed_error(self._cluster, "read markers", error, where=self.topic)


def partition_count(cluster: "Cluster", topic: str) -> int:
    """Return a topic's number of partitions; does not create the topic.

    Raises:
        UnknownTopic: The topic does not exist; the message suggests a similar name, if any.
        NotAuthorized, ClusterFailure: The cluster refuses a request, or can't be reached.
    """
    described = _described(cluster, topic)
    return len(cluster.partitions(topic)) if described is None else described[0]


def find_topic_id(cluster: "Cluster", topic: str) -> str:
    """Return a topic's id as Kafka prints it, "" without an id; does not create the topic.

    Raises:
        UnknownTopic: The topic does not exist; the message suggests a similar name, if any.
        NotAuthorized, ClusterFailure: The cluster refuses a request, or can't be reached.
    """
    time_left = cluster.deadline()
    while True:
        described = _described(cluster, topic)
        if described is not None:
            return described[1]
        if not time_left():
            reason = "some brokers do not know it yet"
            raise ClusterFailure(cluster.bootstrap, f"look up the id of topic {topic}", reason)
        threading.Event().wait(_POLL_S)


def _described(cluster: "Cluster", topic: str) -> tuple[int, str] | None:
    """Return a topic's number of partitions, and its id ("" if the topic has no id).

    The result is None if the broker that responds does not know the topic, but another broker does.
    """
    from confluent_kafka import KafkaException, TopicCollection

    future = cluster.admin().describe_topics(TopicCollection([topic]))[topic]
    try:
        topic_description = future.result(timeout=cluster.timeout_s)
        return len(topic_description.partitions), id_text(topic_description.topic_id) or ""
    except KafkaException as error:
        if error.args[0].code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise typed_error(cluster, f"describe topic {topic}", error.args[0]) from error
    cluster.partitions(topic)  # raises UnknownTopic if no broker knows it
    return None
