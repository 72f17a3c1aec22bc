"""Groups of real clients: rebalances, static members, cooperative members, restarts."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.kafka.broker import free_port
from tests.worlds.waiting import PATIENCE_S, Patience, until_so

import tidelog
from tidelog.env import os_env
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.server.groups.classic_group import ClassicGroup
from tidelog.storage.directory.broker_files import (
    GroupOffset,
    GroupOffsets,
    read_group_offsets,
    write_group_offsets,
)

PARTITIONS = 4
# Errors that clients report while the broker is down or loads its groups. Clients retry only for a
# limited time.
NOT_READY = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
}
# Session timeout in ms: long enough that no member expires because the machine is busy, and short
# enough that a member whose LeaveGroup request was lost expires during the test.
SESSION_MS = PATIENCE_S * 500


def make_filled_topic(broker: Broker, topic: str, count: int = 40) -> None:
    """Create a topic with records in all its partitions."""
    broker.call(lambda node: node.log_dir.create_topic(topic, partitions=PARTITIONS))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, value=str(number), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def member(broker: Broker, group: str, topic: str, **more: str) -> Consumer:
    """Return a subscribed consumer; the settings in `more` have underscores for dots."""
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 50,
        "session.timeout.ms": SESSION_MS,
        "log_level": 2,
    }
    settings.update((key.replace("_", "."), value) for key, value in more.items())
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    return consumer


def settle(consumers: Sequence[Consumer], each: int) -> None:
    """Poll until every consumer has `each` partitions."""
    patience = Patience()
    while any(len(consumer.assignment()) != each for consumer in consumers):
        patience.check([consumer.assignment() for consumer in consumers])
        for consumer in consumers:
            consumer.poll(0.02 / len(consumers))


def take(consumer: Consumer, count: int) -> list[bytes]:
    """Return the next `count` values."""
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{len(found)} of {count} came"
        assert message.error() is None, message.error()
        value = message.value()
        assert value is not None
        found.append(value)
    return found


def committed_by(consumer: Consumer, topic: str) -> list[int]:
    """Return the group's committed offsets; retry until the broker is ready."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    patience = Patience()
    while True:
        patience.check()
        try:
            return [place.offset for place in consumer.committed(places, timeout=PATIENCE_S)]
        except KafkaException as error:
            if error.args[0].code() not in NOT_READY:
                raise


def test_librdkafka_rebalances_and_continues_after_a_restart(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with tidelog.broker(data, settings=SETTINGS) as broker:
        make_filled_topic(broker, "flights")
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
        found = committed_by(again, "flights")
        again.close()
    assert found == [7, 10, 10, 10]


def test_librdkafka_rebalances_cooperatively(broker: Broker) -> None:
    """The first member keeps reading its remaining partitions while a second member joins."""
    make_filled_topic(broker, "flights")
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


def test_a_static_member_returns_without_a_rebalance(broker: Broker) -> None:
    make_filled_topic(broker, "flights")
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


def test_members_continue_over_a_restart(tmp_path: Path) -> None:
    """After a restart of the broker, the group's members continue without a rebalance."""
    data = str(tmp_path / "data")
    port = free_port()  # the system gives this port to no other process
    with tidelog.broker(data, port=port, settings=SETTINGS) as broker:
        make_filled_topic(broker, "flights")
        consumer = member(broker, "readers", "flights")
        settle([consumer], 4)
        before = generation(broker, "readers")
    with tidelog.broker(data, port=port, settings=SETTINGS) as broker:
        patience = Patience()
        while not commits(consumer, TopicPartition("flights", 0, 5)):
            patience.check()
            consumer.poll(0.05)
        assert generation(broker, "readers") == before
        assert committed_by(consumer, "flights")[0] == 5
        consumer.close()


def test_kafka_python_rebalances(broker: Broker) -> None:
    make_filled_topic(broker, "flights")

    with ExitStack() as opened:

        def consumer() -> KafkaConsumer:
            made = opened.enter_context(
                closing(
                    KafkaConsumer(
                        "flights",
                        bootstrap_servers=broker.bootstrap_servers,
                        group_id="python",
                        auto_offset_reset="earliest",
                        enable_auto_commit=False,
                        heartbeat_interval_ms=50,
                        session_timeout_ms=SESSION_MS,
                    )
                )
            )
            # kafka-python 3.0.12 may hang forever if it joins before it knows the topic.
            until_so(lambda: bool(made.partitions_for_topic("flights")))
            return made

        first = consumer()
        seen: list[bytes] = []
        patience = Patience()
        while len(seen) < 40:
            patience.check(seen)
            polled = first.poll(timeout_ms=100)
            seen += [record.value for records in polled.values() for record in records]
        first.commit()
        second = consumer()
        patience = Patience()
        while not len(first.assignment()) == len(second.assignment()) == 2:
            patience.check()
            assert not first.poll(timeout_ms=20)
            assert not second.poll(timeout_ms=20)
        second.close()
        patience = Patience()
        while len(first.assignment()) < 4:
            patience.check()
            first.poll(timeout_ms=20)
        assert [first.committed(place) for place in sorted(first.assignment())] == [10] * 4


def test_aiokafka_rebalances(broker: Broker) -> None:
    make_filled_topic(broker, "flights")

    async def started() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            "flights",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="asyncio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=50,
            session_timeout_ms=SESSION_MS,
        )
        await consumer.start()
        return consumer

    async def rebalance() -> list[int | None]:
        first = await started()
        for _ in range(40):
            await asyncio.wait_for(first.getone(), PATIENCE_S)
        await first.commit()
        second = await started()
        patience = Patience()
        while not len(first.assignment()) == len(second.assignment()) == 2:
            patience.check()
            await first.getmany(timeout_ms=20)
            await second.getmany(timeout_ms=20)
        await second.stop()
        patience = Patience()
        while len(first.assignment()) < 4:
            patience.check()
            await first.getmany(timeout_ms=20)
        found = [await first.committed(place) for place in sorted(first.assignment())]
        await first.stop()
        return found

    assert asyncio.run(rebalance()) == [10] * 4


def commits(consumer: Consumer, place: TopicPartition) -> bool:
    """Commit; return False if the broker is not ready yet."""
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in NOT_READY:
            raise
        return False
    return True


def generation(broker: Broker, group: str) -> int:
    """Return the group's generation as the coordinator has it."""

    def ask(node: Node) -> int:
        found = node.groups.find(group)
        return found.generation if isinstance(found, ClassicGroup) else -1

    return broker.call(ask)


def is_loaded(broker: Broker) -> bool:
    return broker.call(lambda node: not node.groups.topic.is_loading)


def test_groups_of_a_standby_continue_when_it_is_served(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with tidelog.broker(data, settings=SETTINGS) as broker:
        make_filled_topic(broker, "flights")
    kept = [GroupOffset("flights", 0, 4, 0, "why"), GroupOffset("flights", 1, 99)]
    lost = [GroupOffset("flights", 9, 1), GroupOffset("ships", 0, 1)]
    found = GroupOffsets(0, {"readers": [*kept, *lost], "others": [GroupOffset("flights", 0, 3)]})
    write_group_offsets(os_env().files, data, found)
    for _ in range(2):
        with tidelog.broker(data, settings=SETTINGS) as broker:
            consumer = member(broker, "readers", "flights")
            assert committed_by(consumer, "flights") == [4, 10, -1001, -1001]
            consumer.close()
            until_so(partial(is_loaded, broker))
        assert read_group_offsets(os_env().files, data) is None
