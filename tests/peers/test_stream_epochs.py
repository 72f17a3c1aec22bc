"""A stream from a real broker reports a truncated log as a loss, but not a new leader epoch."""

import os

import pytest
from confluent_kafka import Producer
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker

from tidelog.env import ManualClock
from tidelog.errors import LostOffsets, OffsetsGone
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.micro_batches import MicroBatches
from tidelog.spark.stream_log import StreamLog
from tidelog.spark.stream_offset import Json, StreamOffset
from tidelog.spark.stream_options import BatchLimits, read_stream_options
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import TopicPartition

pytestmark = [pytest.mark.kafka]

TOPIC = "epochs"
ZERO = TopicPartition(TOPIC, 0)


def produce_numbers(broker: Broker, first: int, end: int) -> None:
    """Produce batches of one record each; a record's value is its number."""
    producer = Producer(broker.client_config(linger_ms=0))
    for number in range(first, end):
        producer.produce(TOPIC, value=str(number).encode())
        assert producer.flush(REQUEST_TIMEOUT_S) == 0


def planner(broker: Broker, fail: str = "true") -> MicroBatches:
    """Return a new planner, as in a new process of the query."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC}
    more = {"startingOffsets": "earliest", "failOnDataLoss": fail}
    options = read_stream_options(given | more)
    return MicroBatches(options, StreamLog(options.source, ["value"], open_backend), ManualClock(0))


def values(batches: MicroBatches, start: Json, end: Json) -> list[int]:
    return [
        int(value.as_py())
        for task in batches.plan(start, end)
        for batch in task.read()
        for value in batch.column(0)
    ]


def cut(broker: Broker, offset: int) -> None:
    """Cut the partition's only log file at an offset, as if its end had never been synced."""
    with LogDir.open(str(broker.log_dir)) as log_dir:
        segment = log_dir.reader(TOPIC, 0).segments[-1]
        parts = log_dir.reader(TOPIC, 0).slices()
        position = next(p for part in parts for p, b in part.batches() if b.base_offset == offset)
        path = segment.log_path
    os.truncate(path, position)


def test_new_leader_epochs_and_a_lost_tail(kafka_broker: Broker) -> None:
    kafka_broker.create_topic(TOPIC)
    produce_numbers(kafka_broker, 0, 10)
    batches = planner(kafka_broker)
    start = batches.initial_offset()
    first = batches.next_offset(start, BatchLimits())
    assert values(batches, start, first) == list(range(10))
    assert StreamOffset.decode(first).positions[ZERO] == (10, 0)
    batches.close()

    kafka_broker.stop()
    kafka_broker.start()
    produce_numbers(kafka_broker, 10, 12)
    batches = planner(kafka_broker)
    second = batches.next_offset(first, BatchLimits())
    assert values(batches, first, second) == [10, 11]
    place = StreamOffset.decode(second).positions[ZERO]
    assert place.offset == 12
    assert place.epoch > 0
    batches.close()

    kafka_broker.stop()
    cut(kafka_broker, 7)
    kafka_broker.start()
    produce_numbers(kafka_broker, 100, 108)
    batches = planner(kafka_broker)
    with pytest.raises(OffsetsGone) as caught:
        batches.next_offset(second, BatchLimits())
    (lost,) = caught.value.lost
    assert isinstance(lost, LostOffsets)
    assert (lost.topic, lost.partition, lost.start, lost.end) == (TOPIC, 0, 7, 12)
    batches.close()
    batches = planner(kafka_broker, fail="false")
    third = batches.next_offset(second, BatchLimits())
    assert values(batches, second, third) == list(range(100, 108))
    assert batches.next_offset(third, BatchLimits()) == third
    batches.close()
