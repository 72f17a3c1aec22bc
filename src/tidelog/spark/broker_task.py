"""One task of the sink to brokers: rows to a producer, in one transaction where it is asked for.

Exactly once: the transactional id names the writer and the task's number, so beginning fences
every older attempt of the same task, and aborts what it left open. Then the marker is read
(`broker_markers`): where this batch is there already, nothing is written. Else rows and marker are
written and committed together.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.cluster import broker_rows
from tidelog.cluster.broker_errors import PURGED, typed_error
from tidelog.cluster.connection import connect
from tidelog.cluster.properties import QUEUE_KBYTES, translate_settings
from tidelog.cluster.topics import await_leaders
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, ConfigError, MessageTooLarge, TidelogError, WriterFenced
from tidelog.spark.broker_claims import Claim, ClaimedTopics, Sent
from tidelog.spark.broker_markers import Markers, find_topic_id, partition_count
from tidelog.spark.routing import Router
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tidelog.cluster.connection import Cluster
    from tidelog.spark.sink_options import SinkOptions

# What waits to be sent is bounded; a task that is faster than its brokers waits for room.
QUEUE_MESSAGES: Final = 200_000
LINGER_MS: Final = 20
TRANSACTION_TIMEOUT_MS: Final = 300_000
# For each step of a transaction; what takes longer is an error, and the task is tried again.
STEP_TIMEOUT_S: Final = 60.0
_WAIT_S: Final = 0.1


# Topic, partition and offset of a row that brokers have, in the order of each partition.
OnSent: TypeAlias = Callable[[str, int, int], None]


def send(
    options: "SinkOptions",
    batches: "Iterator[pa.RecordBatch]",
    *,
    task: int,
    claim: Claim | None,
    on_sent: OnSent | None = None,
) -> Sent:
    """Write the rows of one task.

    Args:
        options: Of the write.
        batches: The rows; taken to the end in any case.
        task: Number of the task.
        claim: For exactly once; idempotent alone where None.
        on_sent: Told where each row went. It costs a call for each.

    Raises:
        MessageTooLarge, InvalidTimestamp, InvalidRecord, InvalidRequest, UnknownTopic: The rows
            can't be written; the text names topic and partition.
        WriterFenced: A newer attempt of the task writes in its place.
        NotAuthorized, ClusterFailure, ConfigError: As their names say. With a claim nothing of the
            task is visible then, or (where the commit's answer was lost) all of it; the next
            attempt finds out.
    """
    with connect(options.bootstrap, client_settings(options.client)) as cluster:
        return _Task(cluster, options, task, claim, on_sent).run(batches)


def client_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Librdkafka's settings for those of a Java producer."""
    rest = dict(given)
    own: dict[str, str] = {}
    if "max.request.size" in rest:
        own["message.max.bytes"] = rest.pop("max.request.size")
    if "buffer.memory" in rest:
        size = rest.pop("buffer.memory")
        if not size.isdecimal():
            raise ConfigError("kafka.buffer.memory", size, "a number of bytes")
        own["queue.buffering.max.kbytes"] = str(max(int(size) >> 10, 1))
    rest.pop("max.block.ms", None)  # nothing here waits but for room, which comes or an error does
    return translate_settings(rest) | own


def _served_partitions(cluster: "Cluster", topic: str) -> int:
    """How many partitions a topic has, once their leaders serve them; raises as `partition_count`.

    A producer that begins before may lose its first records without an error (`await_leaders`).
    """
    count = partition_count(cluster, topic)
    try:
        await_leaders(cluster, [TopicPartition(topic, number) for number in range(count)])
    except ClusterFailure as error:
        if error.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise  # who may not ask may still write, or hears of it then
    return count


class _Task:
    """One attempt. For one thread."""

    def __init__(
        self,
        cluster: "Cluster",
        options: "SinkOptions",
        task: int,
        claim: Claim | None,
        on_sent: OnSent | None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._claim = claim
        self._on_sent = on_sent
        self._clock = options.env().clock
        self._router = Router(
            options.topic, lambda topic: _served_partitions(cluster, topic), task=task
        )
        self._failure: TidelogError | None = None
        self._producer = cluster.producer(self._settings())
        self._count = 0
        self._claimed = None
        if claim is not None:
            self._claimed = ClaimedTopics(
                claim, options.topic, lambda topic: find_topic_id(cluster, topic)
            )

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "enable.idempotence": True,
            # Each report is heard, since one without an offset is no delivery.
            "delivery.report.only.error": False,
            "on_delivery": self._hear,
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
            "linger.ms": LINGER_MS,
            "batch.size": max(self._options.batch_bytes, 1),
            "compression.type": self._options.codec.config_name,
        }
        if self._claim is not None:
            settings["transactional.id"] = self._claim.transactional_id
            settings["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
        return settings

    def _hear(self, error: "ck.KafkaError | None", message: "ck.Message") -> None:
        """Keep the first failure: those behind it follow from it. Tell where a row went."""
        if error is None:
            offset = message.offset()
            if offset is None:
                self._failure = self._failure or self._unproven(message)
            elif self._on_sent is not None:
                self._tell(message, offset, self._on_sent)
            return
        if error.code() in PURGED or self._failure is not None:
            return
        where = f"{message.topic()}-{message.partition()}"
        self._failure = typed_error(self._cluster, "write", error, where=where)

    def _unproven(self, message: "ck.Message") -> TidelogError:
        """The library calls a record delivered whose sequence number the broker refused.

        A broker before 4.4 refuses it also where it was overtaken by the next request
        (KAFKA-15591), and then it is not in the log. The next attempt of the task writes it again.
        """
        reason = (
            f"{message.topic()}-{message.partition()}: the broker did not say where a record is"
            " that was sent again"
        )
        return ClusterFailure(self._options.bootstrap, "write", reason)

    @staticmethod
    def _tell(message: "ck.Message", offset: int, on_sent: OnSent) -> None:
        topic, partition = message.topic(), message.partition()
        assert topic is not None
        assert partition is not None
        on_sent(topic, partition, offset)

    # -- the two ways ------------------------------------------------------------------------

    def run(self, batches: "Iterator[pa.RecordBatch]") -> Sent:
        """Write the rows by the way that was asked for."""
        from confluent_kafka import KafkaException

        try:
            return self._run(batches)
        except KafkaException as error:
            # Any call may say that a newer attempt has fenced this one.
            self._producer.purge()
            failure = self._failure or typed_error(self._cluster, "write", error.args[0])
            raise failure from error
        except BaseException:
            self._producer.purge()
            raise

    def _run(self, batches: "Iterator[pa.RecordBatch]") -> Sent:
        if self._claim is None or self._claimed is None:
            self._send(batches)
            self._flush()
            return Sent(self._count)
        return self._transact(batches, self._claim, self._claimed)

    def _transact(
        self, batches: "Iterator[pa.RecordBatch]", claim: Claim, claimed: ClaimedTopics
    ) -> Sent:
        from confluent_kafka import KafkaException

        markers = Markers(self._cluster, self._options.marker_topic)
        markers.ensure()
        self._step("begin a transaction", self._producer.init_transactions)
        done = claimed.find_done(markers)
        if done is not None:
            for _ in batches:
                pass  # Spark keeps a worker that has taken all of its rows
            return done
        self._producer.begin_transaction()
        try:
            self._send(batches)
            note = self._note(claim)
            self._mark(markers, claimed, note)
            self._flush()
            self._step("commit the transaction", self._producer.commit_transaction)
        except BaseException as error:
            fenced = self._abort()
            if fenced is not None and isinstance(error, ClusterFailure | KafkaException):
                raise fenced from error  # records are told only that something ended the producer
            raise
        return Sent(self._count, note=note, skipped=claimed.skipped)

    def _note(self, claim: Claim) -> str:
        """What the claim wants to be kept; offsets are known once everything is there."""
        if claim.note is None:
            return ""
        self._flush()
        return claim.note()

    def _mark(self, markers: Markers, claimed: ClaimedTopics, note: str) -> None:
        """Last, so that markers of others wait for this transaction as short as can be."""
        place, marks = claimed.marks(note)
        number, now_ms = markers.partition_of(place), self._clock.now_ms()
        for key, value in marks:
            self._put(markers.topic, value, key, number, now_ms, None)

    def _abort(self) -> WriterFenced | None:
        """Let the transaction go at once; where that fails its next attempt does it.

        Returns:
            That such an attempt has begun, where the library knows it.
        """
        from confluent_kafka import KafkaException

        self._producer.purge()
        try:
            self._producer.abort_transaction(STEP_TIMEOUT_S)
        except KafkaException as error:
            found = typed_error(self._cluster, "write", error.args[0])
            return found if isinstance(found, WriterFenced) else None
        return None

    def _step(self, operation: str, action: Callable[[float], object]) -> None:
        """One step of a transaction, again where the library says that this may help."""
        from confluent_kafka import KafkaException

        left = self._cluster.deadline()
        while True:
            try:
                action(STEP_TIMEOUT_S)
                return
            except KafkaException as error:
                self._raise_failure()
                if not (error.args[0].retriable() and left()):
                    raise typed_error(self._cluster, operation, error.args[0]) from error

    # -- rows --------------------------------------------------------------------------------

    def _send(self, batches: "Iterator[pa.RecordBatch]") -> None:
        from tidelog.record.columns.serdes import encode_fields

        for batch in batches:
            encoded = encode_fields(batch, self._options.serdes)
            for topic, numbers, rows in self._router.route(encoded):
                if self._claimed is None or not self._claimed.is_done(topic):
                    self._send_rows(topic, numbers, rows)
            self._producer.poll(0)
            self._raise_failure()

    def _send_rows(
        self, topic: str, numbers: "npt.NDArray[np.int32]", rows: "pa.RecordBatch"
    ) -> None:
        """The hot loop: what can be done by column was done before it."""
        from confluent_kafka import KafkaException

        names, none = rows.schema.names, [None] * rows.num_rows
        now_ms = self._clock.now_ms()
        values = broker_rows.binaries(rows.column("value"))
        keys = broker_rows.binaries(rows.column("key")) if "key" in names else none
        times = (
            broker_rows.times(rows.column("timestamp"), now_ms)
            if "timestamp" in names
            else [now_ms] * rows.num_rows
        )
        headers = broker_rows.headers(rows.column("headers")) if "headers" in names else none
        produce = self._producer.produce
        for value, key, number, time_ms, pairs in zip(
            values, keys, numbers.tolist(), times, headers, strict=True
        ):
            try:
                produce(topic, value, key, number, None, None, time_ms, pairs)
            except BufferError:
                self._put(topic, value, key, number, time_ms, pairs)
            except KafkaException as error:
                self._refuse(error, f"{topic}-{number}")
        self._count += rows.num_rows

    def _put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        number: int,
        time_ms: int,
        headers: broker_rows.Headers | None,
    ) -> None:
        """Send one record, once there is room: each record leaves the queue, or fails in time."""
        from confluent_kafka import KafkaException

        while True:
            try:
                self._producer.produce(topic, value, key, number, None, None, time_ms, headers)
                return
            except BufferError:
                if not len(self._producer):
                    raise MessageTooLarge(
                        f"{topic}-{number}: a record larger than all that may wait to be sent;"
                        " raise the option kafka.buffer.memory"
                    ) from None
                self._producer.poll(_WAIT_S)
                self._raise_failure()
            except KafkaException as error:
                self._refuse(error, f"{topic}-{number}")

    def _refuse(self, error: Exception, where: str) -> None:
        self._raise_failure()
        raise typed_error(self._cluster, "write", error.args[0], where=where) from error

    def _flush(self) -> None:
        """Wait for what is on its way; every record is reported within its own time-out."""
        while self._producer.flush(_WAIT_S):
            self._raise_failure()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


__all__ = ["Claim", "Sent", "client_settings", "send"]
