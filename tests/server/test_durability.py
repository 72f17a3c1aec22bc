"""A broker on a real disk, with a real client: syncs, rolls, deletions, restarts, damage."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from tests.server.test_produce import until
from tests.worlds.clients.raw import RawClient, Refused
from tests.worlds.command_line import Cli
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.error_codes import ErrorCode
from tidelog.errors import DamagedLog, StorageFailure
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.types import NewRecord

SEGMENT = "1048576"


def produce_and_note(broker: Broker, count: int, size: int = 100, topic: str = "t") -> list[int]:
    offsets = list[int | None]()
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1}
    )
    for _ in range(count):
        producer.produce(
            topic, b"x" * size, on_delivery=lambda error, told: offsets.append(told.offset())
        )
        producer.poll(0)
    assert not producer.flush(PATIENCE_S)
    return sorted(offset for offset in offsets if offset is not None)


def test_acknowledged_is_synced(tmp_path: Path) -> None:
    settings = {"tidelog.durability": "fsync", "log.segment.bytes": SEGMENT}
    with tidelog.broker(str(tmp_path), settings=settings) as broker:
        assert produce_and_note(broker, 3000, 1000) == list(range(3000))
        facts = broker.call(
            lambda node: (
                (found := node.partitions.get("t", 0)).high_watermark,
                found.log.recovery_point,
                len(found.log.segments) > 1,
            )
        )
    assert facts == (3000, 3000, True)


def test_retention_works_while_clients_are_active(tmp_path: Path) -> None:
    settings = {
        "log.segment.bytes": SEGMENT,
        "log.retention.bytes": SEGMENT,
        "log.retention.check.interval.ms": "20",
        "log.initial.task.delay.ms": "0",
        "log.segment.delete.delay.ms": "0",
        "log.flush.offset.checkpoint.interval.ms": "20",
    }
    with tidelog.broker(str(tmp_path), settings=settings) as broker:
        assert produce_and_note(broker, 4000, 1000) == list(range(4000))
        # About 2,080 records remain. Retention keeps retention.bytes, and less than one segment
        # more.
        until(broker, lambda node: node.partitions.get("t", 0).log.log_start_offset > 1900)
        assert broker.call(lambda node: node.partitions.get("t", 0).last_deletion_ms)
        # Wait for the checkpoint of recovery points. As in Kafka, the checkpoint of log starts has
        # no line for a log that starts at the start of its first segment.
        until(broker, lambda node: f"t 0 {first_unsafe(node)}" in checkpoint(tmp_path))
        until(broker, lambda _: not (tmp_path / "t-0" / f"{0:020}.log").exists())
        until(broker, lambda _: not any((tmp_path / "t-0").glob("*.deleted")))


def first_unsafe(node: Node) -> int:
    return node.partitions.get("t", 0).log.recovery_point


def checkpoint(data: Path) -> str:
    path = data / "recovery-point-offset-checkpoint"
    return path.read_text() if path.exists() else ""


def test_offline_partition_is_reopened_by_command(tmp_path: Path) -> None:
    def fail(node: Node) -> None:
        log = node.partitions.get("t", 0).log
        failure = StorageFailure(log.active.log_path, "append", "No space left on device")
        log.guard.failure = failure

    with tidelog.broker(str(tmp_path)) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t"))
        broker.call(lambda node: node.partitions.get("t", 0).log.append([NewRecord(value=b"v")]))
        broker.call(fail)
        assert Cli(tmp_path).ok("reopen", "t:0").out == "t-0: reopened\n"
        assert broker.call(lambda node: node.partitions.get("t", 0).failure) is None
        assert produce_and_note(broker, 1) == [1]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("at", [6, 16])
def test_a_damaged_partition_serves_its_valid_prefix_and_refuses_appends(
    tmp_path: Path, at: int, *, clean: bool
) -> None:
    with tidelog.open(str(tmp_path), writable=True) as made:
        for topic in ("t", "sound"):
            made.create_topic(topic)
            for number in range(8):
                made.append(topic, [NewRecord(value=b"%d" % number)])
    log = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[3 * len(data) // 8 + at] ^= 4
    log.write_bytes(data)
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    with tidelog.broker(str(tmp_path)) as broker:
        assert consume(broker, "sound") == [b"%d" % number for number in range(8)]
        assert consume(broker, "t", 3) == [b"0", b"1", b"2"]
        # librdkafka repeats a fetch that gets an error, and reports nothing.
        with RawClient(broker.bootstrap_servers) as client, pytest.raises(Refused) as refused:
            client.read_all("t")
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce_and_note(broker, 1, topic="sound") == [8]
        request = broker.call(lambda node: node.partitions.get("t", 0).failure)
        assert isinstance(request, DamagedLog)
        with pytest.raises(DamagedLog):
            broker.call(
                lambda node: node.partitions.get("t", 0).log.append([NewRecord(value=b"v")])
            )
    assert log.read_bytes() == data


def consume(broker: Broker, topic: str, count: int | None = None) -> list[bytes]:
    """Return the values of the first `count` records; None means all records."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) != count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{values} and nothing more"
        if error := message.error():
            assert (error.code(), count) == (KafkaError._PARTITION_EOF, None)
            break
        values.append(message.value() or b"")
    consumer.close()
    return values
