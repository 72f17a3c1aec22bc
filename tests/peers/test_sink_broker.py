"""The sink's tasks write records to a real broker exactly once, or the records are refused."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import confluent_kafka as ck
import pyarrow as pa
import pytest
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.clients import await_ended
from tests.worlds.kafka.either import AnyBroker
from tests.worlds.waiting import Patience

from tidelog.errors import (
    ClusterFailure,
    ConfigError,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    TidelogError,
    UnknownTopic,
    WriterFenced,
)
from tidelog.record.partitioner import partition_of
from tidelog.remote.cluster import connect
from tidelog.spark.broker_sink import Claim, WriteOutcome, send
from tidelog.spark.sink_options import SinkOptions
from tidelog.spark.transaction_markers import PARTITION_COUNT, Markers
from tidelog.types import Codec

pytestmark = pytest.mark.kafka

T0 = 1_360_342_800_000
SCRIPT = Path(__file__).parent / "sink_attempt.py"


def options(
    broker: AnyBroker, topic: str | None, *, exactly_once: bool = False, **more: str
) -> SinkOptions:
    """Return options of a write; `more` are the client's settings, with underscores for dots."""
    client = {name.replace("_", "."): value for name, value in more.items()}
    return SinkOptions(
        bootstrap=broker.bootstrap, topic=topic, exactly_once=exactly_once, client=client
    )


def rows(count: int, label: str = "row") -> pa.RecordBatch:
    return pa.record_batch({"value": [f"{label} {n}".encode() for n in range(count)]})


def once(broker: AnyBroker, topic: str, batch: int, *given: pa.RecordBatch) -> WriteOutcome:
    claim = Claim(f"test/{topic}/0", batch)
    return send(options(broker, topic, exactly_once=True), iter(given), task=0, claim=claim)


def read(broker: AnyBroker, topic: str, isolation: str = "read_committed") -> list[ck.Message]:
    """Return all records of a topic, up to the topic's current end."""
    with connect(broker.bootstrap) as cluster:
        count = len(cluster.partitions(topic))
        consumer = cluster.consumer(auto_offset_reset="earliest", isolation_level=isolation)
        consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(count)])
        found: list[ck.Message] = []
        ended: set[int | None] = set()
        while len(ended) < count:
            message = consumer.poll(REQUEST_TIMEOUT_S)
            assert message is not None, f"partitions {ended} ended, then nothing came"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == ck.KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
        consumer.close()
    return found


def values(broker: AnyBroker, topic: str) -> list[bytes | None]:
    """Wait until no transaction of a topic is open; return all values of the topic."""
    with connect(broker.bootstrap) as cluster:
        for place in cluster.partitions(topic):
            await_ended(broker.bootstrap, topic, place.partition)
    return [message.value() for message in read(broker, topic)]


def test_every_column_arrives(kafka_broker: Broker) -> None:
    topic = "sink-columns"
    kafka_broker.create_topic(topic, 3)
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"a", None, b"", b"d"], pa.binary()),
            "value": pa.array(["v0", "v1", None, "v3"], pa.string()),
            "topic": pa.array([topic] * 4),
            "partition": pa.array([None, 2, None, 0], pa.int32()),
            "timestamp": pa.array(
                [T0 * 1000 + 999, None, 5_999, 1_000], pa.timestamp("us", tz="UTC")
            ),
            "headers": pa.array(
                [None, [("h", b"1"), ("h", None)], [], [("ä", b"")]],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "offset": pa.array([7, 8, 9, 10]),
        }
    )
    assert send(options(kafka_broker, None), iter([batch]), task=0, claim=None) == WriteOutcome(4)
    found = {message.value(): message for message in read(kafka_broker, topic)}
    assert [found[v].key() for v in (b"v0", b"v1", None, b"v3")] == [b"a", None, b"", b"d"]
    assert found[b"v1"].partition() == 2
    assert found[b"v3"].partition() == 0
    assert found[b"v0"].partition() == partition_of(b"a", 3)
    times = [found[v].timestamp()[1] for v in (b"v0", None, b"v3")]
    assert times == [T0, 5, 1]
    assert found[b"v1"].timestamp()[1] > T0
    assert [found[v].headers() for v in (b"v0", b"v1", None, b"v3")] == [
        None,
        [("h", b"1"), ("h", None)],
        None,
        [("ä", b"")],
    ]


def test_codec_and_batches(kafka_broker: Broker) -> None:
    kafka_broker.create_topic("sink-codec")
    wanted = SinkOptions(
        bootstrap=kafka_broker.bootstrap, topic="sink-codec", codec=Codec.ZSTD, batch_bytes=1000
    )
    assert send(wanted, iter([rows(3_000)]), task=0, claim=None).records == 3_000
    assert len(values(kafka_broker, "sink-codec")) == 3_000


def test_a_repeated_batch_adds_nothing(either_broker: AnyBroker) -> None:
    either_broker.create_topic("sink-again")
    assert once(either_broker, "sink-again", 3, rows(5, "a"), rows(5, "b")) == WriteOutcome(10)
    for batch in (3, 2):
        assert once(either_broker, "sink-again", batch, rows(9)) == WriteOutcome(0, was_done=True)
    assert once(either_broker, "sink-again", 4) == WriteOutcome(0)
    assert once(either_broker, "sink-again", 5, rows(1, "c")) == WriteOutcome(1)
    assert len(values(either_broker, "sink-again")) == 11


def test_an_attempt_that_is_killed_between_write_and_commit(either_broker: AnyBroker) -> None:
    topic = "sink-killed"
    either_broker.create_topic(topic)
    command = [sys.executable, str(SCRIPT), either_broker.bootstrap, topic, "50"]
    with subprocess.Popen(command) as process:
        patience = Patience()
        while len(read(either_broker, topic, "read_uncommitted")) < 50:
            patience.check("50 rows are written")
            assert process.poll() is None
        process.kill()
    assert read(either_broker, topic) == []
    assert once(either_broker, topic, 0, rows(50)) == WriteOutcome(50)
    assert values(either_broker, topic) == [f"row {n}".encode() for n in range(50)]
    assert len(read(either_broker, topic, "read_uncommitted")) == 100


def test_a_zombie_is_fenced(either_broker: AnyBroker) -> None:
    """If a task has two attempts, the abandoned attempt fails when it continues later."""
    topic = "sink-zombie"
    either_broker.create_topic(topic)
    began, go_on = threading.Event(), threading.Event()
    ended: list[TidelogError] = []

    def slowly() -> Iterator[pa.RecordBatch]:
        yield rows(5, "zombie")
        began.set()
        assert go_on.wait(REQUEST_TIMEOUT_S)
        yield rows(5, "late")

    def zombie() -> None:
        try:
            claim = Claim(f"test/{topic}/0", 0)
            send(options(either_broker, topic, exactly_once=True), slowly(), task=0, claim=claim)
        except TidelogError as error:
            ended.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    assert began.wait(REQUEST_TIMEOUT_S)
    assert once(either_broker, topic, 0, rows(7)) == WriteOutcome(7)
    go_on.set()
    thread.join()
    assert [type(error) for error in ended] == [WriterFenced]
    assert values(either_broker, topic) == [f"row {n}".encode() for n in range(7)]
    assert once(either_broker, topic, 0, rows(7)).was_done


def test_writers_do_not_wait_for_each_other(either_broker: AnyBroker) -> None:
    """A task writes its batch while another transaction in the topic of markers is open."""
    topic = "sink-open"
    either_broker.create_topic(topic)
    once(either_broker, topic, 0, rows(1))
    with connect(either_broker.bootstrap) as cluster:
        markers = Markers(cluster, options(either_broker, topic).marker_topic)
        place = markers.partition_of(f"test/{topic}/0")
        other = cluster.producer({"transactional.id": "another-task"})
        other.init_transactions(REQUEST_TIMEOUT_S)
        other.begin_transaction()
        other.produce(markers.topic, b'{"version": 1, "batch": 9}', b"another-task", place)
        other.flush()
        assert once(either_broker, topic, 1, rows(1)) == WriteOutcome(1)
        other.abort_transaction(REQUEST_TIMEOUT_S)
    assert once(either_broker, topic, 1, rows(1)).was_done


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize(
    ("label", "config", "batch", "error", "said"),
    [
        ("large", {"max_message_bytes": "2000"}, rows(1, "x" * 5000), MessageTooLarge, "-0: "),
        ("huge", {}, rows(1, "x" * 2_000_000), MessageTooLarge, "max.message.bytes"),
        (
            "past",
            {"message_timestamp_before_max_ms": "1000"},
            pa.RecordBatch.from_pydict({"value": [b"x"], "timestamp": [5]}),
            InvalidTimestamp,
            "before.max.ms",
        ),
        ("keyless", {"cleanup_policy": "compact"}, rows(1), InvalidRecord, "-0: "),
        (
            "partition",
            {},
            pa.RecordBatch.from_pydict({"value": [b"x"], "partition": [7]}),
            InvalidRequest,
            "only partition 0",
        ),
        (
            "epoch",
            {},
            pa.RecordBatch.from_pydict({"value": [b"x"], "timestamp": [0]}),
            InvalidTimestamp,
            "1970-01-01",
        ),
    ],
)
def test_refused_records_are_typed_errors(
    kafka_broker: Broker,
    label: str,
    config: dict[str, str],
    batch: pa.RecordBatch,
    error: type[TidelogError],
    said: str,
    exactly_once: bool,
) -> None:
    topic = f"sink-refuses-{label}-{exactly_once}"
    kafka_broker.create_topic(topic, 1, **config)
    claim = Claim(f"test/{topic}/0", 0) if exactly_once else None
    wanted = options(kafka_broker, topic, exactly_once=exactly_once)
    with pytest.raises(error, match=said) as caught:
        send(wanted, iter([batch]), task=0, claim=claim)
    assert topic in str(caught.value) or label == "epoch"
    assert values(kafka_broker, topic) == []
    if exactly_once:  # its transaction has ended, so the batch may be sent again
        assert send(wanted, iter([]), task=0, claim=claim) == WriteOutcome(0)


def test_a_missing_topic_is_an_error_with_a_suggestion(kafka_broker: Broker) -> None:
    kafka_broker.create_topic("sink-there")
    with pytest.raises(UnknownTopic, match="did you mean sink-there"):
        send(options(kafka_broker, "sink-ther"), iter([rows(1)]), task=0, claim=None)


def test_an_unreachable_broker_is_an_error() -> None:
    wanted = SinkOptions(bootstrap="127.0.0.1:1", topic="t", client={"socket.timeout.ms": "1000"})
    with pytest.raises(ClusterFailure, match=r"127\.0\.0\.1:1"):
        send(wanted, iter([rows(1)]), task=0, claim=None)


@pytest.mark.parametrize("by_row", [True, False])
def test_a_recreated_topic_counts_batches_from_the_beginning(
    either_broker: AnyBroker,
    by_row: bool,
) -> None:
    topic = f"sink-anew-{by_row}"
    claim = Claim(f"anew/{by_row}/0", 3, topics_of=f"anew/{by_row}/0")
    batch = rows(2).append_column("topic", pa.array([topic] * 2)) if by_row else rows(2)
    for _ in range(2):
        either_broker.create_topic(topic, 1)
        for is_repeat in (False, True):
            given = options(either_broker, None if by_row else topic, exactly_once=True)
            sent = send(given, iter([batch]), task=0, claim=claim)
            assert (sent.records, dict(sent.skipped)) == ((0, {topic: 3}) if is_repeat else (2, {}))
        assert values(either_broker, topic) == [b"row 0", b"row 1"]
        with connect(either_broker.bootstrap) as cluster:
            cluster.admin().delete_topics([topic])[topic].result(timeout=REQUEST_TIMEOUT_S)


@pytest.mark.parametrize("config", [{"cleanup_policy": "delete"}, {"cleanup_policy": "compact"}])
def test_a_marker_topic_that_would_lose_markers(
    kafka_broker: Broker, config: dict[str, str]
) -> None:
    name = f"markers-{config['cleanup_policy']}"
    few = config["cleanup_policy"] == "compact"
    kafka_broker.create_topic(name, 1 if few else PARTITION_COUNT, **config)
    with connect(kafka_broker.bootstrap) as cluster:
        said = "1 partition," if few else "cleanup.policy=delete"
        with pytest.raises(InvalidRequest, match=said):
            Markers(cluster, name).ensure()


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_record_may_be_as_large_as_the_topic_allows(
    either_broker: AnyBroker, exactly_once: bool
) -> None:
    topic = f"sink-follows-{exactly_once}"
    either_broker.create_topic(topic, 1, max_message_bytes="3000000")
    claim = Claim(f"test/{topic}/0", 0) if exactly_once else None
    wanted = options(either_broker, topic, exactly_once=exactly_once)
    with pytest.raises(MessageTooLarge, match=f"{topic}-0: "):
        send(wanted, iter([rows(1, "x" * 3_500_000)]), task=0, claim=claim)
    large = rows(1, "x" * 2_000_000)
    assert send(wanted, iter([rows(5), large, rows(5)]), task=0, claim=claim).records == 11
    assert values(either_broker, topic) == [
        value for batch in (rows(5), large, rows(5)) for value in batch["value"].to_pylist()
    ]


def test_large_batches_stay_below_the_default_limit_of_topics(either_broker: AnyBroker) -> None:
    either_broker.create_topic("sink-batches")
    wanted = replace(options(either_broker, "sink-batches"), batch_bytes=8_000_000)
    assert send(wanted, iter([rows(40, "y" * 100_000)]), task=0, claim=None).records == 40


def test_settings_of_javas_producer(kafka_broker: Broker) -> None:
    kafka_broker.create_topic("sink-java", max_message_bytes="3000000")
    wanted = options(
        kafka_broker,
        "sink-java",
        max_request_size="3000000",
        buffer_memory="4194304",
        linger_ms="0",
        acks="all",
        max_block_ms="5",
    )
    many = [rows(1, "x" * 2_000_000), *[rows(2_000, "y" * 1000)] * 3]
    assert send(wanted, iter(many), task=0, claim=None).records == 6_001
    small = options(kafka_broker, "sink-java", max_request_size="3000000", buffer_memory="1048576")
    with pytest.raises(MessageTooLarge, match=r"kafka\.buffer\.memory"):
        send(small, iter(many), task=0, claim=None)
    with pytest.raises(ConfigError, match="acks"):
        send(options(kafka_broker, "sink-java", acks="1"), iter([rows(1)]), task=0, claim=None)
