"""Kafka's own share consumer and tools use our broker, which restarts meanwhile."""

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Producer
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.kafka.home import KafkaHome

import tidelog

if TYPE_CHECKING:
    from tidelog.server.embedded import Broker

pytestmark = pytest.mark.kafka

TIMEOUT_S: Final = 120
TOPIC, GROUP = "lent", "borrowers"
FIRST, SECOND = 300, 100


def run(home: KafkaHome, main_class: str, broker: "Broker", *arguments: str) -> str:
    """Run one of Kafka's tools; return the tool's output."""
    command = home.java_command(
        f"org.apache.kafka.tools.{main_class}",
        "--bootstrap-server",
        broker.bootstrap_servers,
        *arguments,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def consume(home: KafkaHome, broker: "Broker", count: int) -> tuple[list[int], list[int]]:
    """Consume `count` records in the group; return the received and the acknowledged offsets."""
    arguments = ("--topic", TOPIC, "--group-id", GROUP, "--max-messages", str(count))
    more = ("--offset-reset-strategy", "earliest")
    said = run(home, "VerifiableShareConsumer", broker, *arguments, *more)
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    def offsets(name: str) -> list[int]:
        named = (event for event in events if event["name"] == name)
        return sorted(n for event in named for part in event["partitions"] for n in part["offsets"])

    assert events[-1]["name"] == "shutdown_complete"
    return offsets("records_consumed"), offsets("offsets_acknowledged")


def append(broker: "Broker", first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(first, first + count):
        producer.produce(TOPIC, str(number).encode())
    assert producer.flush(TIMEOUT_S) == 0


def test_acknowledged_records_are_not_delivered_again_after_a_restart(
    kafka_jars: KafkaHome, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    with tidelog.broker(data, settings=SETTINGS) as broker:
        broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1))
        append(broker, 0, FIRST)
        got, acknowledged = consume(kafka_jars, broker, FIRST)
        assert got == acknowledged == list(range(FIRST))
    with tidelog.broker(data, settings=SETTINGS) as broker:
        append(broker, FIRST, SECOND)
        got, acknowledged = consume(kafka_jars, broker, SECOND)
        assert got == acknowledged == list(range(FIRST, FIRST + SECOND))
        group = "consumer.group.ShareGroupCommand"
        assert GROUP in run(kafka_jars, group, broker, "--list")
        told = run(kafka_jars, group, broker, "--describe", "--group", GROUP)
        (row,) = [line.split() for line in told.splitlines() if line.startswith(GROUP)]
        assert (row[1], row[2], row[-1]) == (TOPIC, "0", "0"), told
        deleted = run(kafka_jars, group, broker, "--delete", "--group", GROUP)
        assert "successful" in deleted
        assert GROUP not in run(kafka_jars, group, broker, "--list")
