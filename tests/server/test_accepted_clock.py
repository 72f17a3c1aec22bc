"""The log's last append time is ahead of the clock: producers' errors, and operators' remedies."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Place
from tests.contracts.broker_commands import Shell
from tests.server.test_serve import serving
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.clocks import WallAheadClock
from tests.worlds.command_line import Cli
from tests.worlds.waiting import PATIENCE_S, until_so

import tidelog
from tidelog.env import ManualClock, SystemClock, os_env
from tidelog.record.builder import build_batch
from tidelog.server.embedded import Broker
from tidelog.types import NewRecord

HOUR_MS = 3_600_000
AHEAD_MS = 3 * HOUR_MS
POLICY_VIOLATION = 44


@pytest.fixture
def ahead(tmp_path: Path) -> Path:
    """Create a directory whose last append time is three hours ahead of the machine's clock."""
    env = replace(os_env(), clock=WallAheadClock(AHEAD_MS))
    data = tmp_path / "data"
    with tidelog.broker(str(data), settings=SETTINGS, env=env) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t"))
        assert deliver(broker) is None
        consume(broker)
    return data


@contextmanager
def running(data: Path) -> Iterator[Broker]:
    with tidelog.broker(str(data), settings=SETTINGS) as broker:
        yield broker


def operator(data: Path) -> Cli:
    """Return a command line for the broker's directory, with the machine's time."""
    return Cli(data, ManualClock(SystemClock().now_ms()))


def deliver(broker: Broker | str) -> KafkaError | None:
    """Produce one record; return the producer's error, None if the broker accepted the record."""
    address = broker if isinstance(broker, str) else broker.bootstrap_servers
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": address})
    producer.produce("t", b"v", partition=0, on_delivery=lambda error, _: told.append(error))
    assert not producer.flush(PATIENCE_S)
    return told[0]


def consume(broker: Broker) -> None:
    """Join a group, read the first record and commit it."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe(["t"])
        until_so(lambda: bool(consumer.assignment()) or consumer.poll(0.1) is not None)
        consumer.commit(offsets=[Place("t", 0, 1)], asynchronous=False)
    finally:
        consumer.close()


def test_the_error_for_producers_has_advice(ahead: Path) -> None:
    with running(ahead) as broker:
        error = deliver(broker)
        assert error is not None
        assert error.code() == POLICY_VIOLATION
        with RawClient(broker.bootstrap_servers) as client:
            answer = client.produce("t", bytes(build_batch([NewRecord(value=b"v")])))
    assert answer.error_code == POLICY_VIOLATION
    assert answer.error_message is not None
    assert "tidelog accept-clock --data DIR" in answer.error_message


def test_groups_continue(ahead: Path) -> None:
    with running(ahead) as broker:
        consume(broker)


def test_a_running_broker_accepts_the_clock_and_remembers_it(ahead: Path) -> None:
    with running(ahead) as broker:
        assert deliver(broker) is not None
        told = operator(ahead).ok("accept-clock").out
        assert "clock accepted, appends continue; append times up to 20" in told
        assert deliver(broker) is None
    with running(ahead) as broker:
        assert deliver(broker) is None
    with tidelog.open(str(ahead)) as log:
        times = [log.partition("t", 0).append_time_of(offset) for offset in range(3)]
    assert len(set(times)) == 1


def test_a_stopped_broker_s_directory_accepts_the_clock(ahead: Path) -> None:
    operator(ahead).ok("accept-clock")
    with running(ahead) as broker:
        assert deliver(broker) is None


def test_serve_accepts_the_clock(ahead: Path) -> None:
    with serving("--data", str(ahead), "--accept-clock") as (process, address):
        assert deliver(address) is None
        process.terminate()
        process.wait(PATIENCE_S)
    with running(ahead) as broker:
        assert deliver(broker) is None


def test_a_jump_under_a_running_broker_is_accepted(tmp_path: Path) -> None:
    clock = WallAheadClock()
    env = replace(os_env(), clock=clock)
    with tidelog.broker(str(tmp_path / "data"), settings=SETTINGS, env=env) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t"))
        assert deliver(broker) is None
        clock.ahead_ms = AHEAD_MS
        error = deliver(broker)
        assert error is not None
        assert error.code() == POLICY_VIOLATION
        consume(broker)
        operator(tmp_path / "data").ok("accept-clock")
        assert deliver(broker) is None


def test_the_advice_to_produce_at_a_broker_works(ahead: Path) -> None:
    with running(ahead) as broker:
        shell = Shell(broker.bootstrap_servers)
        _, _, advice = shell.run("produce", "t", "--from", "-", "--accept-clock", stdin=b"v")
        _, _, refusal = shell.run("produce", "t", "--from", "-", stdin=b"v")
    assert "tidelog accept-clock --data DIR" in advice
    assert "tidelog accept-clock --data DIR" in refusal
