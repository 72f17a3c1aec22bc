"""Groups as real clients make them: rebalances, static and cooperative members, a restart."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer  # type: ignore[import-untyped]
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
TURNS = 500


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


def test_librdkafka_rebalances_cooperatively(broker: Broker) -> None:
    """Who was there keeps what it may keep, and reads on, while a second member comes."""
    fill(broker, "flights")
    first = member(broker, "gentle", "flights", partition_assignment_strategy="cooperative-sticky")
    settle([first], 4)
    lost: list[int] = []
    first.subscribe(["flights"], on_revoke=lambda _, gone: lost.extend(p.partition for p in gone))
    second = member(broker, "gentle", "flights", partition_assignment_strategy="cooperative-sticky")
    settle([first, second], 2)
    assert len(lost) == 2, "all was taken away, and some given back"
    assert {p.partition for p in first.assignment()} == set(range(PARTITIONS)) - set(lost)
    first.close()
    second.close()


def test_static_member_comes_back_without_a_rebalance(broker: Broker) -> None:
    fill(broker, "flights")
    names = ["left", "right"]
    members = [member(broker, "seats", "flights", group_instance_id=name) for name in names]
    settle(members, 2)
    before = generation(broker, "seats")
    places = members[0].assignment()
    members[0].close()
    members[0] = member(broker, "seats", "flights", group_instance_id="left")
    settle(members, 2)
    assert members[0].assignment() == places
    assert generation(broker, "seats") == before
    for each in members:
        each.close()


def test_members_go_on_over_a_restart(tmp_path: Path) -> None:
    """The broker goes and comes again; its members do not rebalance."""
    data = str(tmp_path / "data")
    with tidelog.broker(data, settings=SETTINGS) as broker:
        fill(broker, "flights")
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        consumer = member(broker, "readers", "flights")
        settle([consumer], 4)
        before = generation(broker, "readers")
    with tidelog.broker(data, port=port, settings=SETTINGS) as broker:
        for _ in range(TURNS):
            if commits(consumer, TopicPartition("flights", 0, 5)):
                break
            consumer.poll(0.05)
        assert generation(broker, "readers") == before
        assert committed(consumer, "flights")[0] == 5
        consumer.close()


def test_kafka_python_rebalances(broker: Broker) -> None:
    fill(broker, "flights")

    def consumer() -> KafkaConsumer:
        return KafkaConsumer(
            "flights",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=50,
            session_timeout_ms=6000,
        )

    first = consumer()
    seen: list[bytes] = []
    for _ in range(TURNS):
        polled = first.poll(timeout_ms=100)
        seen += [record.value for records in polled.values() for record in records]
        if len(seen) == 40:
            break
    first.commit()
    second = consumer()
    for _ in range(TURNS):
        if len(first.assignment()) == len(second.assignment()) == 2:
            break
        assert not first.poll(timeout_ms=20)
        assert not second.poll(timeout_ms=20)
    second.close()
    for _ in range(TURNS):
        if len(first.assignment()) == 4:
            break
        first.poll(timeout_ms=20)
    assert [first.committed(place) for place in sorted(first.assignment())] == [10] * 4
    first.close()


def test_aiokafka_rebalances(broker: Broker) -> None:
    fill(broker, "flights")

    async def started() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            "flights",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="asyncio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=50,
            session_timeout_ms=6000,
        )
        await consumer.start()
        return consumer

    async def rebalance() -> list[int | None]:
        first = await started()
        for _ in range(40):
            await asyncio.wait_for(first.getone(), WAIT_S)
        await first.commit()
        second = await started()
        for _ in range(TURNS):
            if len(first.assignment()) == len(second.assignment()) == 2:
                break
            await first.getmany(timeout_ms=20)
            await second.getmany(timeout_ms=20)
        await second.stop()
        for _ in range(TURNS):
            if len(first.assignment()) == 4:
                break
            await first.getmany(timeout_ms=20)
        found = [await first.committed(place) for place in sorted(first.assignment())]
        await first.stop()
        return found

    assert asyncio.run(rebalance()) == [10] * 4


def commits(consumer: Consumer, place: TopicPartition) -> bool:
    """Commit; False where the broker is not ready for it yet."""
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException as error:
        if not error.args[0].retriable():
            raise
        return False
    return True


def generation(broker: Broker, group: str) -> int:
    """The group's generation, as the coordinator knows it."""

    def ask(node: Node) -> int:
        found = node.groups.find(group)
        return -1 if found is None else found.generation

    return broker.call(ask)


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
