"""Markers of the rows that the sink's transactions have written, in a compacted topic.

A marker is written in the same transaction as its rows: key, the transactional id; value,
`{"version": 1, "batch": N, "note": TEXT}`. So the rows of a batch are in the log if and only if a
marker of that batch (or a later one) is there and committed.

A numbered batch write counts each of its topics separately: it has a marker for each, under
`topic_key`, with the topic's id if the cluster has ids (`"topic_id"`), so that a topic that is
deleted and created again starts without markers. A marker without an id counts for the topic of its
name. Earlier releases had no ids. Before that they had one marker for all topics of such a write,
under the plain key; it still counts for each of them.

The partition of a marker is a hash of its plain key by `PARTITION_COUNT`, however many partitions
the topic has later, so that a marker is always found in the partition it was written to.
"""

import json
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

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


# Small segments that are compacted soon, since each task reads one partition of markers to its end.
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
        batch: Number of the batch that was written.
        note: Text of the task, returned with the marker.
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
    """Return the marker of a record's value; raises CorruptMessage if it is not a marker."""
    try:
        content = json.loads(value)
        version, batch = content["version"], content["batch"]
        note, topic_id = content.get("note", ""), content.get("topic_id", "")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptMessage(f"not a marker: {value[:80]!r}") from error
    is_text = isinstance(note, str) and isinstance(topic_id, str)
    if version != MARKER_VERSION or type(batch) is not int or not is_text:
        raise CorruptMessage(f"a marker of another version than {MARKER_VERSION}: {value[:80]!r}")
    return Marker(batch, note, topic_id)


def last_marker(current: Marker | None, read: Marker) -> Marker:
    """Return which of two markers of a key counts: for one topic, that of the later batch.

    Args:
        current: The marker that counted so far; None without one.
        read: A marker at a later offset. If it is of another topic id it counts, since that topic
            is newer.
    """
    is_same = current is not None and current.topic_id == read.topic_id
    return max(current, read) if current is not None and is_same else read


def topic_key(key: str, topic: str) -> str:
    """Return the key of the marker of one topic. Topic names contain neither `@` nor `/`."""
    return f"{key}@{topic}"


class Markers:
    """The marker topic of one cluster. For one thread."""

    def __init__(self, cluster: "Cluster", topic: str) -> None:
        self.topic = topic
        self._cluster = cluster

    def partition_of(self, key: str) -> int:
        """Return the partition of a key's marker."""
        return partition_of(key.encode(), PARTITION_COUNT)

    def ensure(self) -> None:
        """Create the topic if it is missing; check its partitions and policy.

        Raises:
            InvalidRequest: It has too few partitions, or loses markers by retention.
            NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
        """
        count = self._partition_count()
        if count is None:
            self._create()
            count = self._await_partitions()
        if count < PARTITION_COUNT:
            raise InvalidRequest(
                f"topic {self.topic} has {count} partitions, markers need {PARTITION_COUNT}:"
                " give another markerTopic, or let it be made"
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
        with self._cluster.typed("look at the brokers"):
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
            if error.args[0].code() != ErrorCode.TOPIC_ALREADY_EXISTS:  # another task created it
                operation = f"create topic {self.topic}"
                raise typed_error(self._cluster, operation, error.args[0]) from error

    def _await_partitions(self) -> int:
        """Wait until the brokers know the new topic; return its number of partitions."""
        time_left = self._cluster.deadline()
        while time_left():
            count = self._partition_count()
            if count is not None:
                return count
            threading.Event().wait(_POLL_S)
        raise ClusterFailure(
            self._cluster.bootstrap, f"create topic {self.topic}", "it does not show up"
        )

    def _check_policy(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin._config import ConfigResource
        from confluent_kafka.admin._resource import ResourceType

        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        future = self._cluster.admin().describe_configs([resource])[resource]
        try:
            policy = future.result(timeout=self._cluster.timeout_s)["cleanup.policy"].value
        except KafkaException as error:
            raise typed_error(self._cluster, "look at the marker topic", error.args[0]) from error
        if policy != "compact":
            raise InvalidRequest(
                f"topic {self.topic} has cleanup.policy={policy}, by which markers would be"
                " deleted: set it to compact, or give another markerTopic"
            )

    def last(self, key: str, at_least: int) -> Marker | None:
        """Return a key's last committed marker, None if its batch is below `at_least`.

        Raises:
            ClusterFailure, NotAuthorized: The topic can't be read within the timeout.
            CorruptMessage: The topic contains a record that is not a marker.
        """
        return self.done(key, at_least).get(key)

    def done(self, key: str, at_least: int) -> dict[str, Marker]:
        """Return the last committed markers of a key and its topics, of batches from `at_least` on.

        The caller has fenced the key's older producers, so no other transaction of it is open. The
        first read includes uncommitted markers: it never waits for other keys' open transactions,
        and almost always finds nothing. Only if it finds a marker does a second read check that its
        transaction was committed.

        Raises:
            ClusterFailure, NotAuthorized: The topic can't be read within the timeout.
            CorruptMessage: The topic contains a record that is not a marker.
        """
        markers, end = self._read(key, "read_uncommitted", 0)
        if all(marker.batch < at_least for marker in markers.values()):
            return {}
        markers, _ = self._read(key, "read_committed", end)
        return {name: marker for name, marker in markers.items() if marker.batch >= at_least}

    def _read(self, key: str, isolation: str, end: int) -> tuple[dict[str, Marker], int]:
        """Return the markers that count of a key and its topics, and the end of the partition.

        Args:
            key: The plain key.
            isolation: Isolation level by Kafka's name.
            end: Offset up to which to read at least, exclusive.
        """
        from confluent_kafka import TopicPartition

        consumer = self._cluster.consumer(isolation_level=isolation, auto_offset_reset="earliest")
        markers: dict[str, Marker] = {}
        own, of_topics = key.encode(), topic_key(key, "").encode()
        # Open transactions of crashed tasks end when these tasks are repeated, which may take a
        # while.
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
            "not at the end in time; an open transaction of another task may be in the way",
        )

    def _end_of(self, message: "ck.Message") -> int | None:
        """Return the partition's end if the message reports it, else None."""
        error = message.error()
        if error is None:
            return None
        if error.code() == client.PARTITION_EOF:
            offset = message.offset()
            assert offset is not None
            return int(offset)
        raise typed_error(self._cluster, "read markers", error, where=self.topic)


def partition_count(cluster: "Cluster", topic: str) -> int:
    """Return a topic's number of partitions; never creates the topic.

    Raises:
        UnknownTopic: There is no such topic; names the nearest one.
        NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
    """
    described = _described(cluster, topic)
    return len(cluster.partitions(topic)) if described is None else described[0]


def find_topic_id(cluster: "Cluster", topic: str) -> str:
    """Return a topic's id as Kafka prints it, "" without one; never creates the topic.

    Raises:
        UnknownTopic: There is no such topic; names the nearest one.
        NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
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
    """Return a topic's number of partitions, and its id, "" without one.

    None if this request's broker does not know the topic, but another broker does.
    """
    from confluent_kafka import KafkaException, TopicCollection

    future = cluster.admin().describe_topics(TopicCollection([topic]))[topic]
    try:
        topic_description = future.result(timeout=cluster.timeout_s)
        return len(topic_description.partitions), id_text(topic_description.topic_id) or ""
    except KafkaException as error:
        if error.args[0].code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise typed_error(cluster, f"look at topic {topic}", error.args[0]) from error
    cluster.partitions(topic)  # raises if no broker knows it
    return None
