"""We read a running Kafka broker's topics, and get the same records as Kafka's consumer."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.clients import consume, produce, produce_by_librdkafka, read_ours
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.samples import CODECS, T0, draw_records

from tidelog.env import os_env
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import IsolationLevel, NewRecord

pytestmark = pytest.mark.kafka

LEVELS = tuple(IsolationLevel)


def drawn(rng: random.Random, count: int) -> list[NewRecord]:
    """Return records that all have a time, because a producer would set a missing time."""
    return [
        NewRecord(key=r.key, value=r.value, headers=r.headers, timestamp=T0 + rng.randrange(9_000))
        for r in draw_records(rng, count)
    ]


def assert_reads_equal(oracle: Oracle, broker: Broker, topic: str) -> int:
    """Compare reads at both isolation levels; return the number of records at read_uncommitted."""
    with LogDir.open(str(broker.log_dir), env=os_env()) as directory:
        reader = directory.reader(topic, 0)
        counts = []
        for level in LEVELS:
            told = consume(oracle, broker, topic, level)
            assert read_ours(reader, level) == told
            counts.append(len(told))
        assert counts[0] >= counts[1]
        return counts[0]


def write_every_codec(oracle: Oracle, broker: Broker, topic: str) -> int:
    """Write records with every codec, through Kafka's own producer and through librdkafka."""
    rng = random.Random(topic)
    for codec in CODECS:
        produce(oracle, broker, topic, drawn(rng, 30), codec=codec)
        produce_by_librdkafka(broker, topic, drawn(rng, 30), codec=codec)
    return 60 * len(CODECS)


def write_transactions(oracle: Oracle, broker: Broker, topic: str) -> int:
    """Write committed and aborted transactions, with plain records between them."""
    rng = random.Random(topic)
    for number, codec in enumerate(CODECS * 2):
        name = f"{topic}-{number % 3}"
        commit = number % 2 == 0
        produce(oracle, broker, topic, drawn(rng, 7), codec=codec, transaction=name, commit=commit)
        produce(oracle, broker, topic, drawn(rng, 2), codec=codec)
    return 9 * 2 * len(CODECS)


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("write", [write_every_codec, write_transactions])
def test_a_topic_written_by_a_broker_reads_equal(
    kafka_oracle: Oracle,
    kafka_broker: Broker,
    stamp: str,
    write: Callable[[Oracle, Broker, str], int],
) -> None:
    topic = f"{write.__name__}-{stamp}"
    kafka_broker.create_topic(topic, message_timestamp_type=stamp)
    count = write(kafka_oracle, kafka_broker, topic)
    assert assert_reads_equal(kafka_oracle, kafka_broker, topic) == count


def test_reading_changes_nothing(kafka_oracle: Oracle, kafka_broker: Broker) -> None:
    kafka_broker.create_topic("untouched")
    produce(kafka_oracle, kafka_broker, "untouched", drawn(random.Random(1), 9))
    before = listing(kafka_broker.partition_dir("untouched"))
    assert assert_reads_equal(kafka_oracle, kafka_broker, "untouched") == 9
    assert listing(kafka_broker.partition_dir("untouched")) == before


def listing(directory: Path) -> list[tuple[str, int, int]]:
    """Return name, size in bytes, and modification time in ns of each file."""
    files = [(file.name, file.stat()) for file in sorted(directory.iterdir())]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]


def test_several_segments_of_a_broker_read_equal(
    kafka_oracle: Oracle, kafka_broker: Broker
) -> None:
    topic = "several-segments"
    kafka_broker.create_topic(topic, segment_bytes=str(1 << 20))
    rng = random.Random(topic)
    for _ in range(4):
        block = [
            NewRecord(key=b"%d" % n, value=rng.randbytes(9_000), timestamp=T0 + rng.randrange(99))
            for n in range(100)
        ]
        produce(kafka_oracle, kafka_broker, topic, block)
    assert len(list(kafka_broker.partition_dir(topic).glob("*.log"))) > 2
    assert assert_reads_equal(kafka_oracle, kafka_broker, topic) == 400
