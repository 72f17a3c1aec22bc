"""Sink to brokers, for batch and stream: each task sends its rows, in a transaction if requested.

Contains a task's producer and transaction, and the identity of the task's rows (`Claim`). The
identity prevents the rows from being written twice. A marker is a record that shows which batch was
written last; see `transaction_markers`. `rows` converts columns to keys, values, times and headers.

Invariants: with `delivery=exactly-once`, the log contains the rows of each task of a batch exactly
once, even if the task, its executor or the driver is restarted several times. Each task commits its
own transaction, so the rows of different tasks don't become visible together. The transactional id
contains the writer and the task's index. So when an attempt initializes its producer, the brokers
fence all older attempts of the same task and abort their open transaction. After that, the task
reads the marker. If the marker names this batch or a later batch, the task writes nothing. If the
marker names an earlier batch, or if there is no marker, the task writes rows and marker in one
transaction. A batch write with `txnAppId` has one marker for each topic. A task writes the rows of
a topic unless the topic's marker names this write or a later write.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    ConfigError,
    InvalidRequest,
    MessageTooLarge,
    TidelogError,
    WriterFenced,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.remote import rows as broker_rows
from tidelog.remote.client import PURGED, typed_error
from tidelog.remote.client_settings import QUEUE_KBYTES, translate_settings
from tidelog.remote.cluster import connect
from tidelog.remote.producer import RECORD_BYTES, RECORD_BYTES_MAX
from tidelog.remote.topics import await_leaders
from tidelog.spark.rows import Router
from tidelog.spark.sink_options import (
    SinkOptions,
    StreamBatch,
    log_repeated,
    log_skipped,
    refuse_new_table,
    stream_batch,
    task_number,
)
from tidelog.spark.transaction_markers import (
    Marker,
    Markers,
    encode_marker,
    find_topic_id,
    partition_count,
    topic_key,
)
from tidelog.spark.workers import hides_tracebacks
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tidelog.remote.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Claim:
    """Identity of a task's rows (transactional id and batch), so that they are written only once.

    Attributes:
        transactional_id: Transactional id of the task, which is the same for all batches of the
            writer.
        batch: Number of the batch, 0 or more. Later batches of the writer have larger numbers.
        note: Function that returns a text for the marker, called after the brokers have
            acknowledged all rows; None for no text. If the batch is repeated, `WriteOutcome.note`
            is the text in the existing marker. Most brokers refuse a text of a megabyte.
        topics_of: Common part of the markers' keys if each topic has a marker of its own (see
            `topic_key`). None if a single marker applies to all topics; its key is the
            transactional id.
    """

    transactional_id: str
    batch: int
    note: Callable[[], str] | None = None
    topics_of: str | None = None


class WriteOutcome(NamedTuple):
    """Outcome of a task's write.

    Attributes:
        records: Number of records written.
        was_done: True in two cases: all rows had been written before, or a later batch had been
            written before. If True, this attempt wrote nothing.
        note: Text that the claim's `note` returned in the attempt that wrote the rows, which may be
            this attempt; "" if there is no text, or if a later batch had been written.
        skipped: Topics that already had this batch or a later batch, so that this attempt wrote no
            rows to them. The value is the number of the topic's last batch.
    """

    records: int
    was_done: bool = False
    note: str = ""
    skipped: Mapping[str, int] = MappingProxyType({})


class ClaimedTopics:
    """State of a claim: topics that already have the rows, and topics that receive rows now."""

    def __init__(
        self, claim: Claim, topic: str | None, find_id: Callable[[str], str] = lambda _: ""
    ) -> None:
        """Create the state of a claim without sending a request.

        Args:
            claim: The claim.
            topic: Topic of all rows; None if each row names its own topic.
            find_id: Function that returns a topic's id in the cluster; "" if the topic has no id.
                `find_id` is called at most once for each topic, before the topic's rows are
                written.
        """
        self.skipped: dict[str, int] = {}
        self._claim = claim
        self._topic = topic
        self._key = claim.transactional_id if claim.topics_of is None else claim.topics_of
        self._done: Mapping[str, Marker] = {}
        self._find_id = find_id
        # Topics that receive rows, each with its id.
        self._topics: dict[str, str] = {}

    def find_done(self, markers: "Markers") -> WriteOutcome | None:
        """Read the markers; return the write's outcome if nothing remains to write, else None."""
        self._done = markers.committed(self._key, self._claim.batch)
        if self._topic is not None and self._claim.topics_of is not None:
            self._topics[self._topic] = self._find_id(self._topic)
        marker = self._marker_of(self._topic)
        if marker is None:
            return None
        note = marker.note if marker.batch == self._claim.batch else ""
        is_topic = self._claim.topics_of is not None and self._topic is not None
        skipped = {self._topic or "": marker.batch} if is_topic else {}
        return WriteOutcome(0, was_done=True, note=note, skipped=skipped)

    def is_done(self, topic: str) -> bool:
        """Return whether a topic already has the rows; if not, remember that it receives rows."""
        if self._claim.topics_of is None:
            return False  # `find_done` has decided for all topics together
        if topic in self.skipped:
            return True
        if topic not in self._topics:
            self._topics[topic] = self._find_id(topic)
        marker = self._marker_of(topic)
        if marker is None:
            return False
        del self._topics[topic]
        self.skipped[topic] = marker.batch
        return True

    def marks(self, note: str) -> tuple[str, list[tuple[bytes, bytes]]]:
        """Return the key that determines the markers' partition, and each marker's key and value.

        The markers' keys and values are returned as bytes, encoded for Kafka.
        """
        marker = Marker(self._claim.batch, note)
        markers = {self._key: marker}
        if self._claim.topics_of is not None:
            markers = {
                topic_key(self._key, topic): marker._replace(topic_id=topic_id)
                for topic, topic_id in sorted(self._topics.items())
            }
        return self._key, [(key.encode(), encode_marker(each)) for key, each in markers.items()]

    def _marker_of(self, topic: str | None) -> Marker | None:
        """Return the marker that proves that a topic already has the rows; None without a proof."""
        if self._claim.topics_of is not None and topic is not None:
            own, topic_id = self._done.get(topic_key(self._key, topic)), self._topics[topic]
            is_namesake = own is not None and bool(own.topic_id and topic_id)
            return None if own is None or (is_namesake and own.topic_id != topic_id) else own
        return self._done.get(self._key)


# Maximum number of records in the queue of unsent records; a task waits while the queue is full.
QUEUE_MESSAGES: Final = 200_000

LINGER_MS: Final = 20
TRANSACTION_TIMEOUT_MS: Final = 300_000

# Timeout in seconds of a call of librdkafka for a step of a transaction. `_step` may repeat a call
# that has timed out. If the step still fails, this attempt of the task fails.
STEP_TIMEOUT_S: Final = 60.0

_WAIT_S: Final = 0.1

# Function that is called with topic, partition and offset of each acknowledged record, in order of
# offsets within a partition. Markers are among these records.
OnSent: TypeAlias = Callable[[str, int, int], None]


def send(
    options: "SinkOptions",
    batches: "Iterator[pa.RecordBatch]",
    *,
    task: int,
    claim: Claim | None,
    on_sent: OnSent | None = None,
) -> WriteOutcome:
    """Write the rows of one task.

    Args:
        options: Options of the write.
        batches: The rows. All rows are read from the iterator, even if they were written before.
        task: Number of the task.
        claim: Identity of the rows for exactly-once delivery; None for an idempotent producer
            without transactions.
        on_sent: Function that is called with topic, partition and offset of each acknowledged row
            or marker. The calls of `on_sent` make writes slower.

    Raises:
        MessageTooLarge, InvalidTimestamp, InvalidRecord, PolicyViolation: The brokers or the
            producer refuse a row; the message has the row's topic and partition.
        InvalidRequest, UnknownTopic, SerdeError: A row's topic, partition, key or value is invalid,
            or the marker topic can't be used.
        CorruptMessage: A record under a key of the task's markers is not a marker.
        WriterFenced: A newer attempt of the task has replaced this attempt.
        NotAuthorized, ClusterFailure, ConfigError: The brokers refuse a request or can't be
            reached, or a setting is invalid. If `claim` is given, none of the task's rows is
            visible after such an error. Exception: if only the response to the commit was lost, all
            rows are visible. The next attempt learns from the markers whether the rows were
            committed.
    """
    with connect(options.bootstrap, client_settings(options.client)) as cluster:
        return _Task(cluster, options, task, claim, on_sent).run(batches)


def client_settings(texts: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings for the settings of a Java producer.

    Raises ConfigError for a setting that can't be applied.
    """
    rest = dict(texts)
    own: dict[str, str] = {}
    if "max.request.size" in rest:
        own["message.max.bytes"] = rest.pop("max.request.size")
    if "buffer.memory" in rest:
        size = rest.pop("buffer.memory")
        if not size.isdecimal():
            raise ConfigError("kafka.buffer.memory", size, "a number of bytes")
        own["queue.buffering.max.kbytes"] = str(max(int(size) >> 10, 1))
    # `max.block.ms` does not apply: while the queue is full, a task waits until the queue has room
    # or a record fails.
    rest.pop("max.block.ms", None)
    return translate_settings(rest) | own


def _served_partitions(cluster: "Cluster", topic: str) -> int:
    """Wait until the leaders serve all partitions of a topic; return the number of partitions.

    If a producer starts before the leaders serve the partitions, its first records may be lost
    without an error; see `await_leaders`.
    """
    count = partition_count(cluster, topic)
    try:
        await_leaders(cluster, [TopicPartition(topic, number) for number in range(count)])
    except ClusterFailure as error:
        if error.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise  # a client without the right to Describe may have the right to write
    return count


class _Task:
    """One attempt of a task. Not thread-safe."""

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
        batch_bytes = max(self._options.batch_bytes, 1)
        settings: dict[str, object] = {
            # The brokers refuse records above the topic's max.message.bytes. So the producer itself
            # accepts records above librdkafka's default limit. Batches of several records are
            # limited to that default by batch.size, because most topics accept such batches.
            "message.max.bytes": RECORD_BYTES_MAX,
            "enable.idempotence": True,
            # Each delivery report is checked, because a report without an offset proves no
            # delivery.
            "delivery.report.only.error": False,
            "on_delivery": self._on_delivery,
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
            "linger.ms": LINGER_MS,
            "batch.size": batch_bytes if self._has_own_limit() else min(batch_bytes, RECORD_BYTES),
            "compression.type": self._options.codec.config_name,
        }
        if self._claim is not None:
            settings["transactional.id"] = self._claim.transactional_id
            settings["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
        return settings

    def _has_own_limit(self) -> bool:
        """Whether the user has limited the size of records and batches."""
        return "message.max.bytes" in client_settings(self._options.client)

    def _on_delivery(self, error: "ck.KafkaError | None", message: "ck.Message") -> None:
        """Call `on_sent` for a delivered record, or store the first failure.

        Later failures are ignored, because the first failure may have caused them.
        """
        if error is None:
            offset = message.offset()
            if offset is None:
                self._failure = self._failure or self._unproven(message)
            elif self._on_sent is not None:
                self._report_offset(message, offset, self._on_sent)
            return
        if error.code() in PURGED or self._failure is not None:
            return
        where = f"{message.topic()}-{message.partition()}"
        self._failure = typed_error(self._cluster, "write", error, where=where)

    def _unproven(self, message: "ck.Message") -> TidelogError:
        """Return the error for a record that was reported as delivered, but without an offset.

        The broker has refused the record's sequence number as a duplicate. If the record is a
        duplicate, it is in the log. But brokers before 4.4 also refuse the sequence number of a
        request that was overtaken by the next request (KAFKA-15591), and then the record is not in
        the log. In both cases the next attempt of the task writes the record again.
        """
        reason = (
            f"{message.topic()}-{message.partition()}: the broker returned no offset for a"
            " retried record, so the record may be missing from the log"
        )
        return ClusterFailure(self._options.bootstrap, "write", reason)

    @staticmethod
    def _report_offset(message: "ck.Message", offset: int, on_sent: OnSent) -> None:
        topic, partition = message.topic(), message.partition()
        assert topic is not None
        assert partition is not None
        on_sent(topic, partition, offset)

    # -- with and without a transaction --------------------------------------------------------

    def run(self, batches: "Iterator[pa.RecordBatch]") -> WriteOutcome:
        """Write the rows, in a transaction if the task has a claim."""
        from confluent_kafka import KafkaException

        try:
            return self._run(batches)
        except KafkaException as error:
            # A newer attempt can fence this producer at any time, so any call may fail because of
            # fencing.
            self._producer.purge()
            failure = self._failure or typed_error(self._cluster, "write", error.args[0])
            raise failure from error
        except BaseException:
            self._producer.purge()
            raise

    def _run(self, batches: "Iterator[pa.RecordBatch]") -> WriteOutcome:
        if self._claim is None or self._claimed is None:
            self._send(batches)
            self._flush()
            return WriteOutcome(self._count)
        return self._transact(batches, self._claim, self._claimed)

    def _transact(
        self, batches: "Iterator[pa.RecordBatch]", claim: Claim, claimed: ClaimedTopics
    ) -> WriteOutcome:
        from confluent_kafka import KafkaException

        markers = Markers(self._cluster, self._options.marker_topic)
        markers.ensure()
        self._step("begin a transaction", self._producer.init_transactions)
        outcome = claimed.find_done(markers)
        if outcome is not None:
            for _ in batches:
                pass  # Spark reuses a worker only if it has consumed all rows
            return outcome
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
                # The first error does not say that a newer attempt has fenced the producer. So the
                # error about the fencing is raised, with the first error as its cause.
                raise fenced from error
            raise
        return WriteOutcome(self._count, note=note, skipped=claimed.skipped)

    def _note(self, claim: Claim) -> str:
        """Wait until all rows are acknowledged and have offsets, then return the claim's note."""
        if claim.note is None:
            return ""
        self._flush()
        return claim.note()

    def _mark(self, markers: Markers, claimed: ClaimedTopics, note: str) -> None:
        """Queue the markers after all rows.

        A marker blocks the readers of its partition until the transaction ends.
        """
        partition_key, marks = claimed.marks(note)
        number, now_ms = markers.partition_of(partition_key), self._clock.now_ms()
        for key, value in marks:
            self._put(markers.topic, value, key, number, now_ms, None)

    def _abort(self) -> WriterFenced | None:
        """Abort the transaction; if that fails, the next attempt of the task aborts it.

        Returns:
            The error if a newer attempt has fenced this attempt; otherwise None.
        """
        from confluent_kafka import KafkaException

        self._producer.purge()
        try:
            self._producer.abort_transaction(STEP_TIMEOUT_S)
        except KafkaException as error:
            problem = typed_error(self._cluster, "write", error.args[0])
            return problem if isinstance(problem, WriterFenced) else None
        return None

    def _step(self, operation: str, action: Callable[[float], object]) -> None:
        """Run one step of a transaction; repeat it if librdkafka marks the error as retriable."""
        from confluent_kafka import KafkaException

        time_left = self._cluster.deadline()
        while True:
            try:
                action(STEP_TIMEOUT_S)
                return
            except KafkaException as error:
                self._raise_failure()
                if not (error.args[0].retriable() and time_left()):
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
        """Send the rows of one topic.

        Columns are converted before the loop, which runs for each row.
        """
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
        """Queue one record as soon as the queue has room."""
        from confluent_kafka import KafkaException

        while True:
            try:
                self._producer.produce(topic, value, key, number, None, None, time_ms, headers)
                return
            except BufferError:
                if not len(self._producer):
                    raise MessageTooLarge(
                        f"{topic}-{number}: the record is larger than the producer's queue; raise"
                        " the option kafka.buffer.memory"
                    ) from None
                self._producer.poll(_WAIT_S)
                self._raise_failure()
            except KafkaException as error:
                self._refuse(error, f"{topic}-{number}")

    def _refuse(self, error: Exception, where: str) -> None:
        self._raise_failure()
        raise typed_error(self._cluster, "write", error.args[0], where=where) from error

    def _flush(self) -> None:
        """Wait until all queued records are acknowledged; raises the first failure of a record."""
        while self._producer.flush(_WAIT_S):
            self._raise_failure()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class SentMessage(WriterCommitMessage):
    """Message of a task to the driver."""

    def __init__(self, outcome: WriteOutcome, batch: StreamBatch | None = None) -> None:
        # The message is pickled, and a mapping proxy can't be pickled, so `skipped` is a
        # dictionary.
        self.outcome = outcome._replace(skipped=dict(outcome.skipped))
        self.batch = batch


@hides_tracebacks
class BrokerWriter(DataSourceArrowWriter):
    """Batch write to brokers. The tasks commit, so the driver has nothing to commit."""

    def __init__(self, options: SinkOptions) -> None:
        if options.exactly_once and options.txn is None:
            raise InvalidRequest(
                "delivery=exactly-once: a batch write needs txnAppId and txnVersion, which"
                " identify it when it is retried"
            )
        self._options = options

    def write(  # type: ignore[override] # Spark's own hint is that of its row writers
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Send the rows of one task."""
        refuse_new_table()
        task, txn = task_number(), self._options.txn
        claim = None
        if txn is not None:
            key, topic = _transactional_id(self._options, txn.app_id, task), self._options.topic
            # Writes to different topics may run at the same time, and must not fence each other.
            name = key if topic is None else topic_key(key, topic)
            claim = Claim(name, txn.version, topics_of=key)
        return SentMessage(send(self._options, iterator, task=task, claim=claim))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the topics that already had the rows. Each task has committed its own rows."""
        txn, skipped = self._options.txn, dict[str, int]()
        for message in messages:
            if isinstance(message, SentMessage):
                for topic, last in message.outcome.skipped.items():
                    skipped[topic] = max(skipped.get(topic, last), last)
        if txn is not None:
            log_skipped(txn, skipped, self._options.bootstrap)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: rows that tasks have committed stay in the log."""


@hides_tracebacks
class BrokerStreamWriter(DataSourceStreamArrowWriter):
    """Streaming write to brokers. The query's id and the batch's number identify a batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(  # type: ignore[override] # Spark's own hint is that of its row writers
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Send the rows of one task."""
        task, claim, batch = task_number(), None, None
        if self._options.exactly_once:
            batch = stream_batch()
            claim = Claim(_transactional_id(self._options, batch.query_id, task), batch.number)
        return SentMessage(send(self._options, iterator, task=task, claim=claim), batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], _batch_id: int) -> None:
        """Log the batch if a task found that its rows were written before.

        Each task has committed its own rows.
        """
        sent_messages = [message for message in messages if isinstance(message, SentMessage)]
        batch = next((message.batch for message in sent_messages if message.outcome.was_done), None)
        if batch is not None:
            log_repeated(batch, self._options.bootstrap)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: rows that tasks have committed stay in the log."""


def _transactional_id(options: SinkOptions, writer: str, task: int) -> str:
    """Return a task's transactional id.

    The id is the same in all attempts of the task, so a new attempt fences all older attempts.
    """
    return f"{options.transactional_id_prefix}/{writer}/{task}"
