"""A broker that syncs, rolls, deletes and comes back: with a real client, on a real disk."""

from pathlib import Path

from confluent_kafka import Producer
from tests.server.test_produce import until
from tests.unit.cli.running import Cli
from tests.waiting import PATIENCE_S

import tidelog
from tidelog.errors import StorageFailure
from tidelog.server.in_process import Broker
from tidelog.server.node import Node
from tidelog.types import NewRecord

SEGMENT = "1048576"


def produce(broker: Broker, count: int, size: int = 100) -> list[int]:
    offsets = list[int | None]()
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1}
    )
    for _ in range(count):
        producer.produce(
            "t", b"x" * size, on_delivery=lambda error, told: offsets.append(told.offset())
        )
        producer.poll(0)
    assert not producer.flush(PATIENCE_S)
    return sorted(offset for offset in offsets if offset is not None)


def test_acknowledged_is_synced(tmp_path: Path) -> None:
    settings = {"tidelog.durability": "fsync", "log.segment.bytes": SEGMENT}
    with tidelog.broker(str(tmp_path), settings=settings) as broker:
        assert produce(broker, 3000, 1000) == list(range(3000))
        facts = broker.call(
            lambda node: (
                (found := node.partitions.get("t", 0)).high_watermark,
                found.log.recovery_point,
                len(found.log.segments) > 1,
            )
        )
    assert facts == (3000, 3000, True)


def test_retention_goes_on_beside_clients(tmp_path: Path) -> None:
    settings = {
        "log.segment.bytes": SEGMENT,
        "log.retention.bytes": SEGMENT,
        "log.retention.check.interval.ms": "20",
        "log.initial.task.delay.ms": "0",
        "log.segment.delete.delay.ms": "0",
        "log.flush.offset.checkpoint.interval.ms": "20",
    }
    with tidelog.broker(str(tmp_path), settings=settings) as broker:
        assert produce(broker, 4000, 1000) == list(range(4000))
        # What stays is less than retention.bytes and a segment: about 2,080 records.
        until(broker, lambda node: node.partitions.get("t", 0).log.log_start_offset > 1900)
        assert broker.call(lambda node: node.partitions.get("t", 0).last_deletion_ms)
        # Of a log that starts where its first segment does Kafka keeps no line there for long.
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
        log._failure = StorageFailure(log.active.log_path, "append", "No space left on device")

    with tidelog.broker(str(tmp_path)) as broker:
        broker.call(lambda node: node.topics.create("t"))
        broker.call(lambda node: node.partitions.get("t", 0).log.append([NewRecord(value=b"v")]))
        broker.call(fail)
        assert Cli(tmp_path).ok("reopen", "t:0").out == "t-0: open again\n"
        assert broker.call(lambda node: node.partitions.get("t", 0).failure) is None
        assert produce(broker, 1) == [1]
