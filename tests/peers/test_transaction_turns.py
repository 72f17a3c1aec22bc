"""Transactions in one directory, which Apache Kafka and our broker serve by turns."""

import pytest
from confluent_kafka import Producer
from tests.worlds.clients.librdkafka import read_committed
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.either import kafka_fixture

import tidelog
from tidelog.server.transactions.state_topic import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import TRANSACTIONS_TOPIC

pytestmark = pytest.mark.kafka

TOPIC = "voyages"
kafka = kafka_fixture(is_started=False, scope="function")


def begin(bootstrap: str, name: str, word: str) -> Producer:
    """Return a producer with an open transaction that has a record."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,
            "log_level": 2,
        }
    )
    producer.init_transactions(REQUEST_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, word, partition=0)
    assert producer.flush(REQUEST_TIMEOUT_S) == 0
    return producer


def write(bootstrap: str, name: str, word: str) -> None:
    """Write one committed and one aborted transaction."""
    begin(bootstrap, name, word).commit_transaction(REQUEST_TIMEOUT_S)
    begin(bootstrap, name, f"not {word}").abort_transaction(REQUEST_TIMEOUT_S)


def check_kafkas_records(kafka: Broker) -> None:
    """Assert that tidelog encodes the records that Kafka has written, and gets the same bytes."""
    count = 0
    with LogDir.open(str(kafka.log_dir)) as directory:
        for number in range(directory.topic(TRANSACTIONS_TOPIC).partitions):
            for record in directory.reader(TRANSACTIONS_TOPIC, number).records():
                transactional_id = decode_key(record.key)
                assert transactional_id is not None
                assert encode_key(transactional_id) == record.key
                assert record.value is not None
                found = decode_value(transactional_id, bytes(record.value))
                assert encode_value(found) == record.value
                count += 1
    assert count >= 10


@pytest.mark.slow
def test_transactions_are_continued_by_either_broker(kafka: Broker) -> None:
    """Each broker aborts the transaction that the other broker left open."""
    kafka.start()
    kafka.create_topic(TOPIC)
    write(kafka.bootstrap, "one", "kafka's")
    begin(kafka.bootstrap, "one", "open in Kafka")
    assert read_committed(kafka.bootstrap, TOPIC) == ["kafka's"]
    kafka.stop()
    check_kafkas_records(kafka)
    with tidelog.broker(str(kafka.log_dir)) as ours:
        assert read_committed(ours.bootstrap_servers, TOPIC) == ["kafka's"]
        write(ours.bootstrap_servers, "one", "ours")
        write(ours.bootstrap_servers, "two", "ours, too")
        begin(ours.bootstrap_servers, "two", "open in ours")
        words = ["kafka's", "ours", "ours, too"]
        assert read_committed(ours.bootstrap_servers, TOPIC) == words
    kafka.start()
    assert read_committed(kafka.bootstrap, TOPIC) == words
    write(kafka.bootstrap, "two", "kafka's again")
    write(kafka.bootstrap, "one", "and again")
    assert read_committed(kafka.bootstrap, TOPIC) == [*words, "kafka's again", "and again"]
