"""Groups as real clients make them: rebalances, static and cooperative members, a restart."""

from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.server.conftest import SETTINGS

import tidelog
from tidelog.env import os_env
from tidelog.server.in_process import Broker
from tidelog.server.node import Node
from tidelog.storage.group_offsets import (
    GroupOffset,
    GroupOffsets,
    read_group_offsets,
    write_group_offsets,
)

WAIT_S = 20
PARTITIONS = 4


def fill(broker: Broker, topic: str, count: int = 40) -> None:
    """A topic with records in all its partitions."""
    broker.call(lambda node: node.topics.create(topic, PARTITIONS))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, value=str(number), partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0


def member(broker: Broker, group: str, topic: str, **more: str) -> Consumer:
    """A subscribed consumer; settings with underscores for dots."""
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 50,
        "session.timeout.ms": 6000,
        "log_level": 2,
    }
    settings.update((key.replace("_", "."), value) for key, value in more.items())
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    return consumer


def settle(consumers: Sequence[Consumer], each: int) -> None:
    """Poll until every consumer has so many partitions."""
    for _ in range(WAIT_S * 50):
        if all(len(consumer.assignment()) == each for consumer in consumers):
            return
        for consumer in consumers:
            consumer.poll(0.02 / len(consumers))
    raise AssertionError([consumer.assignment() for consumer in consumers])


def take(consumer: Consumer, count: int) -> list[bytes]:
    """The next so many values."""
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"{len(found)} of {count} came"
        assert message.error() is None, message.error()
        value = message.value()
        assert value is not None
        found.append(value)
    return found


def committed(consumer: Consumer, topic: str) -> list[int]:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    return [place.offset for place in consumer.committed(places, timeout=WAIT_S)]


def test_librdkafka_rebalances_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with tidelog.broker(data, settings=SETTINGS) as broker:
        fill(broker, "flights")
        first = member(broker, "readers", "flights")
        assert len(take(first, 40)) == 40
        first.commit(asynchronous=False)
        second = member(broker, "readers", "flights")
        settle([first, second], 2)
        second.close()
        settle([first], 4)
        first.commit(offsets=[TopicPartition("flights", 0, 7)], asynchronous=False)
        first.close()
    with tidelog.broker(data, settings=SETTINGS) as broker:
        again = member(broker, "readers", "flights")
        found = committed(again, "flights")
        again.close()
    assert found == [7, 10, 10, 10]


def test_groups_of_a_standby_go_on_where_it_is_served(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with tidelog.broker(data, settings=SETTINGS) as broker:
        fill(broker, "flights")
    kept = [GroupOffset("flights", 0, 4, 0, "why"), GroupOffset("flights", 1, 99)]
    lost = [GroupOffset("flights", 9, 1), GroupOffset("ships", 0, 1)]
    found = GroupOffsets(0, {"readers": [*kept, *lost], "others": [GroupOffset("flights", 0, 3)]})
    write_group_offsets(os_env().files, data, found)
    for _ in range(2):
        with tidelog.broker(data, settings=SETTINGS) as broker:
            consumer = member(broker, "readers", "flights")
            assert committed(consumer, "flights") == [4, 10, -1001, -1001]
            consumer.close()
            wait_until(broker, lambda node: not node.groups.shards.is_loading)
        assert read_group_offsets(os_env().files, data) is None


def wait_until(broker: Broker, is_so: Callable[[Node], bool]) -> None:
    for _ in range(WAIT_S * 1000):
        if broker.call(is_so):
            return
    raise AssertionError("it never was")
