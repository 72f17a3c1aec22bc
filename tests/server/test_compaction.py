"""A broker compacts by itself and on request while clients are active, and reports failures."""

import csv
import io
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Place
from tests.worlds.brokers.running import broker_fixture, holder_of
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.control.verbs import CompactionResult, compact_arguments, read_compact_report
from tidelog.errors import CleaningFailed, CorruptData, CorruptMessage, InvalidRequest, UnknownTopic
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.storage.compaction.cleaner import CleaningReport
from tidelog.storage.compaction.worker import CleanerProcess
from tidelog.types import TopicPartition

TIMEOUT_S = PATIENCE_S
# Time limit in seconds: the cleaner's process has to start, and possibly to compile kernels.
START_S = 600
TOPIC = "places"
NAME = TopicPartition(TOPIC, 0)
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "86400000",
}
SETTINGS = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
# Settings with which only a request starts a cleaning.
BY_HAND = {**SETTINGS, "log.cleaner.enable": "false"}
BY_ITSELF = {**SETTINGS, "log.initial.task.delay.ms": "0", "log.cleaner.backoff.ms": "10"}
broker = broker_fixture(
    BY_HAND, fill=lambda node: node.log_dir.create_topic(TOPIC, partitions=1, config=CONFIG)
)


def produce_keys(broker: Broker, count: int, *, first: int = 0) -> dict[bytes, bytes]:
    """Produce values of ten keys; return the last value of each."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    table = {}
    for number in range(first, first + count):
        key, value = b"key-%d" % (number % 10), b"value %d" % number
        producer.produce(TOPIC, value, key)
        table[key] = value
        if number % 20 == 19:
            assert producer.flush(TIMEOUT_S) == 0  # one batch
    assert producer.flush(TIMEOUT_S) == 0
    return table


def consumer_of(broker: Broker) -> Consumer:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "unused",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([Place(TOPIC, 0, 0)])
    return consumer


def read(consumer: Consumer) -> list[tuple[int, bytes, bytes]]:
    """Return offset, key and value of each record up to the end."""
    found: list[tuple[int, bytes, bytes]] = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is not None:
            return found
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        found.append((message.offset() or 0, key, value))


def compact(broker: Broker, *, roll: bool = True) -> CompactionResult:
    with holder_of(broker) as holder:
        told = holder.call("compact", compact_arguments(NAME, roll=roll, is_asked=True))
    return read_compact_report(NAME, told)


def test_clients_see_each_key_once_afterwards(broker: Broker) -> None:
    table = produce_keys(broker, 1_000)
    done = compact(broker)
    assert (done.counts["records_before"], done.counts["records_after"]) == (1_000, 10)
    assert done.counts["cleaned_to"] == 1_000
    assert done.stopped is None
    consumer = consumer_of(broker)
    found = read(consumer)
    assert {key: value for _, key, value in found} == table
    assert [offset for offset, _, _ in found] == list(range(990, 1_000))
    table |= produce_keys(broker, 30, first=1_000)
    assert {key: value for _, key, value in read(consumer)} == table
    consumer.close()
    assert compact(broker).counts["records_after"] == 10


def test_a_consumer_continues_after_its_segments_are_replaced(broker: Broker) -> None:
    """A consumer that began with the old segments misses none of the remaining records."""
    table = produce_keys(broker, 2_000)
    consumer = consumer_of(broker)
    first = consumer.consume(1, timeout=TIMEOUT_S)[0]
    assert first.offset() == 0
    compact(broker)
    found = read(consumer)
    assert {key: value for _, key, value in found} == table
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    consumer.close()


def test_null_keys_are_refused_with_kafkas_error(broker: Broker) -> None:
    failures: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(TOPIC, b"no key", on_delivery=lambda error, _: failures.append(_code(error)))
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == [87]


def _code(error: KafkaError | None) -> int:
    return 0 if error is None else error.code()


def test_the_command_uses_the_running_broker(broker: Broker) -> None:
    produce_keys(broker, 500)
    out, err = io.StringIO(), io.StringIO()
    surroundings = Surroundings(stdout=out, stderr=err, variables={})
    code = run(["compact", TOPIC, "--data", broker.data, "--roll", "-o", "csv"], surroundings)
    assert code == 0, err.getvalue()
    heads, values = csv.reader(out.getvalue().splitlines())
    told = dict(zip(heads, values, strict=True))
    assert (told["partition"], told["records_after"]) == ("0", "10")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, CorruptMessage),
        ({"topic": TOPIC, "partition": 0, "roll": 1, "is_asked": True}, CorruptMessage),
        (compact_arguments(TopicPartition("other", 0), roll=False, is_asked=True), UnknownTopic),
        (compact_arguments(TopicPartition("plain", 0), roll=False, is_asked=True), InvalidRequest),
        (compact_arguments(TopicPartition(TOPIC, 9), roll=False, is_asked=True), UnknownTopic),
    ],
)
def test_invalid_requests_for_compaction_are_refused(
    broker: Broker, arguments: dict[str, object], error: type[Exception]
) -> None:
    broker.call(lambda node: node.log_dir.create_topic("plain"))
    with holder_of(broker) as holder, pytest.raises(error):
        holder.call("compact", arguments)


def test_a_damaged_partition_is_named_and_works_on(broker: Broker, tmp_path: Path) -> None:
    produce_keys(broker, 500)
    broker.call(lambda node: node.partitions.get(TOPIC, 0).log.roll())
    log = tmp_path / "data" / f"{TOPIC}-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    with holder_of(broker) as holder, pytest.raises(CorruptData, match="CRC") as caught:
        holder.call("compact", compact_arguments(NAME, roll=False, is_asked=True))
    assert caught.value.path == str(log)
    assert not list(log.parent.glob("*.cleaned"))
    data[100] ^= 1
    log.write_bytes(data)
    assert compact(broker).counts["records_after"] == 10


def listen(node: Node, done: threading.Event) -> None:
    """Set the event when the broker has finished a cleaning."""
    tally = node.metrics.cleaner
    plain = tally.cleaned

    def cleaned(report: CleaningReport, now_ms: int) -> None:
        plain(report, now_ms)
        if report.passes:
            done.set()

    tally.cleaned = cleaned  # type: ignore[method-assign] # a listener of one test


def test_a_broker_compacts_by_itself(tmp_path: Path) -> None:
    """The broker cleans a partition that is due, without any request."""
    with tidelog.broker(str(tmp_path / "data"), settings=BY_ITSELF) as broker:
        broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1, config=CONFIG))
        done = threading.Event()
        broker.call(lambda node: listen(node, done))
        table = produce_keys(broker, 1_000)
        assert done.wait(START_S)
        assert broker.call(lambda node: node.metrics.cleaner.records_removed) > 0
        assert {key: value for _, key, value in read(consumer_of(broker))} == table


def test_a_killed_cleaner_is_reported_and_replaced(broker: Broker, tmp_path: Path) -> None:
    """If the cleaner's process dies, no partition changes, and a new process runs later jobs."""
    worker = CleanerProcess(1e308)
    worker.stop()
    with pytest.raises(CleaningFailed, match="stopped"):
        worker._begin()
    again = CleanerProcess(1e308)
    process = again._begin()
    process.kill()
    process.wait()
    assert again._begin() is not process
    again.rest()
    assert again._process is None


def test_offsets_of_groups_are_compacted(broker: Broker) -> None:
    """After a compaction, `__consumer_offsets` still has the committed offsets."""
    produce_keys(broker, 20)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    for offset in range(1, 40):
        consumer.commit(offsets=[Place(TOPIC, 0, offset)], asynchronous=False)
    name = TopicPartition("__consumer_offsets", 0)
    with holder_of(broker) as holder:
        told = holder.call("compact", compact_arguments(name, roll=True, is_asked=True))
    done = read_compact_report(name, told)
    assert done.counts["records_before"] >= 39
    assert done.counts["records_after"] < 5
    assert consumer.committed([Place(TOPIC, 0)], timeout=TIMEOUT_S)[0].offset == 39
    consumer.close()
