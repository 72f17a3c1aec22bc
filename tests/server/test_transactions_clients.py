"""Real clients' transactions: committed, aborted, fenced, timed out, and with offsets."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from kafka import KafkaProducer
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.librdkafka import read_committed
from tests.worlds.clocks import AheadClock
from tests.worlds.waiting import PATIENCE_S, until_so

import tidelog
from tidelog.env import os_env
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.server.transactions.metadata import TransactionState

# Timeout of transactions in ms; less than the idle timeout of connections.
TIMEOUT_MS = 500_000
TOPIC = "payments"
RECORDS = 3


@pytest.fixture
def clock() -> AheadClock:
    """The broker's clock."""
    return AheadClock()


@pytest.fixture
def quick(tmp_path: Path, clock: AheadClock) -> Iterator[Broker]:
    """Run a broker that keeps checking for timed-out transactions; it has one topic."""
    env = replace(os_env(), clock=clock)
    settings = SETTINGS | {
        "transaction.state.log.num.partitions": "3",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    }
    with tidelog.broker(str(tmp_path / "data"), settings=settings, env=env) as running:
        running.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=2))
        yield running


def committed_values(broker: Broker, topic: str = TOPIC) -> list[str]:
    """Return the values that a reader of committed records sees, after all markers are written.

    A broker writes the markers only after its response to EndTxn.
    """
    until_so(lambda: broker.call(is_marked))
    count = broker.call(lambda node: node.log_dir.topic(topic).partitions)
    return read_committed(broker.bootstrap_servers, topic, count)


def is_marked(node: Node) -> bool:
    """Whether the markers of all ended transactions are written."""
    return not any(each.metadata.is_prepared for each in node.transactions.table.all())


def confluent(broker: Broker, name: str) -> Producer:
    settings: dict[str, str | int] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": name,
        "transaction.timeout.ms": TIMEOUT_MS,
        "log_level": 2,
    }
    producer = Producer(settings)
    producer.init_transactions(PATIENCE_S)
    return producer


def produce_words(producer: Producer, word: str) -> list[str]:
    values = [f"{word} {number}" for number in range(RECORDS)]
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0
    return values


def by_confluent(broker: Broker) -> list[str]:
    producer = confluent(broker, "confluent")
    kept = []
    for word, commits in (("one", True), ("two", False), ("three", True)):
        producer.begin_transaction()
        values = produce_words(producer, word)
        if commits:
            producer.commit_transaction(PATIENCE_S)
            kept += values
        else:
            producer.abort_transaction(PATIENCE_S)
    return kept


def by_kafka_python(broker: Broker) -> list[str]:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id="kafka-python",
        transaction_timeout_ms=TIMEOUT_MS,
    )
    producer.init_transactions()
    kept = []
    for word, commits in (("four", True), ("five", False), ("six", True)):
        producer.begin_transaction()
        for number in range(RECORDS):
            sent = producer.send(TOPIC, f"{word} {number}".encode(), partition=number % 2)
            sent.get(PATIENCE_S)
            kept += [f"{word} {number}"] * commits
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    return kept


def by_aiokafka(broker: Broker) -> list[str]:
    async def run() -> list[str]:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            transactional_id="aiokafka",
            transaction_timeout_ms=TIMEOUT_MS,
        )
        await producer.start()
        kept = []
        for word, commits in (("seven", True), ("eight", False)):
            await producer.begin_transaction()
            for number in range(RECORDS):
                value = f"{word} {number}"
                await producer.send_and_wait(TOPIC, value.encode(), partition=number % 2)
                kept += [value] * commits
            await (producer.commit_transaction() if commits else producer.abort_transaction())
        await producer.stop()
        return kept

    return asyncio.run(run())


@pytest.mark.parametrize("client", [by_confluent, by_kafka_python, by_aiokafka])
def test_readers_of_committed_records_see_only_committed_ones(
    quick: Broker, client: Callable[[Broker], list[str]]
) -> None:
    kept = client(quick)
    assert sorted(committed_values(quick)) == sorted(kept)


def test_another_instance_takes_over_and_the_first_is_fenced(quick: Broker) -> None:
    first = confluent(quick, "twins")
    first.begin_transaction()
    produce_words(first, "lost")
    second = confluent(quick, "twins")
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(PATIENCE_S)
    error = refused.value.args[0]
    assert error.fatal()
    assert error.code() in {KafkaError._FENCED, KafkaError.PRODUCER_FENCED}
    second.begin_transaction()
    kept = produce_words(second, "kept")
    second.commit_transaction(PATIENCE_S)
    assert sorted(committed_values(quick)) == kept


def state_of(broker: Broker, name: str) -> TransactionState:
    def look(node: Node) -> TransactionState:
        found = {each.metadata.transactional_id: each for each in node.transactions.table.all()}
        return found[name].metadata.state

    return broker.call(look)


def test_the_transaction_of_a_silent_client_is_aborted(quick: Broker, clock: AheadClock) -> None:
    producer = confluent(quick, "silent")
    producer.begin_transaction()
    produce_words(producer, "late")
    assert state_of(quick, "silent") is TransactionState.ONGOING
    clock.ahead_ms = TIMEOUT_MS + 1
    until_so(lambda: state_of(quick, "silent") is TransactionState.COMPLETE_ABORT)
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
    assert committed_values(quick) == []


def test_offsets_are_committed_with_the_records(quick: Broker) -> None:
    source = Producer({"bootstrap.servers": quick.bootstrap_servers})
    for number in range(6):
        source.produce("orders", str(number))
    assert source.flush(PATIENCE_S) == 0
    group = {
        "bootstrap.servers": quick.bootstrap_servers,
        "group.id": "workers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "log_level": 2,
    }
    consumer = Consumer(group)
    consumer.subscribe(["orders"])
    producer = confluent(quick, "workers")
    taken = [polled(consumer) for _ in range(6)]
    for start, commits in ((0, True), (3, False)):
        producer.begin_transaction()
        for message in taken[start : start + 3]:
            producer.produce(TOPIC, b"done " + (message.value() or b""), partition=0)
        place = TopicPartition("orders", 0, start + 3)
        producer.send_offsets_to_transaction(
            [place], consumer.consumer_group_metadata(), PATIENCE_S
        )
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    found = consumer.committed([TopicPartition("orders", 0)], PATIENCE_S)
    assert [place.offset for place in found] == [3]
    consumer.close()
    assert committed_values(quick) == ["done 0", "done 1", "done 2"]


def polled(consumer: Consumer) -> Message:
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    assert message.error() is None
    return message


def test_a_producer_continues_after_a_restart_during_its_transaction(tmp_path: Path) -> None:
    place = str(tmp_path / "data")
    with tidelog.broker(place, settings=SETTINGS) as broker:
        broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=2))
        producer = confluent(broker, "before")
        producer.begin_transaction()
        produce_words(producer, "open")
        del producer
    with tidelog.broker(place, settings=SETTINGS) as broker:
        assert committed_values(broker) == []
        again = confluent(broker, "before")
        again.begin_transaction()
        kept = produce_words(again, "kept")
        again.commit_transaction(PATIENCE_S)
        assert sorted(committed_values(broker)) == kept
