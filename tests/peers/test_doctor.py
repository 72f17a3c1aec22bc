"""The doctor finds no error in directories of running, stopped and killed Kafka brokers."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.ours import run_ours
from tests.peers.scripts import client_script, follower_script, worn_script
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.clients import produce
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import CODECS, T0, draw_records
from tests.worlds.waiting import until_equal

from tidelog.env import os_env
from tidelog.storage.checks import DirectoryCheck, Finding, Severity
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

SEEDS = 12
MAKERS = [client_script, follower_script, worn_script]


def look(path: Path) -> list[Finding]:
    check = DirectoryCheck(os_env().files, str(path), clock=os_env().clock)
    return [*check.load(), *check.findings()]


def errors(findings: list[Finding]) -> list[str]:
    return [str(finding) for finding in findings if finding.severity is Severity.ERROR]


@pytest.mark.parametrize("make", MAKERS)
def test_logs_of_both_sides_are_sound(
    kafka_oracle: Oracle, quick_path: Path, make: Callable[[int, Path], Script]
) -> None:
    segments = 0
    for seed in range(SEEDS):
        for side in ("kafka", "ours"):
            folder = quick_path / f"{side}-{seed}"
            script = replace(make(seed, quick_path), directory=folder / "events-0")
            kafka_oracle.run(script) if side == "kafka" else run_ours(script)
            (folder / ".kafka_cleanshutdown").touch()
            assert errors(look(folder)) == [], (side, seed)
            segments += len(list(script.directory.glob("*.log")))
    assert segments > 4 * SEEDS


def drawn(rng: random.Random, count: int) -> list[NewRecord]:
    return [
        NewRecord(key=b"%d" % (number % 5), value=r.value, timestamp=T0 + rng.randrange(90_000))
        for number, r in enumerate(draw_records(rng, count))
    ]


def send_drawn(oracle: Oracle, broker: Broker, topic: str) -> None:
    """Send records with every codec, and transactions that commit and abort."""
    rng = random.Random(topic)
    for number, codec in enumerate(CODECS * 2):
        name, commit = f"{topic}-{number % 2}", number % 3 != 0
        produce(oracle, broker, topic, drawn(rng, 9), codec=codec, transaction=name, commit=commit)
        produce(oracle, broker, topic, drawn(rng, 4), codec=codec)


def test_a_brokers_directory_is_sound(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path: Path
) -> None:
    broker = Broker(kafka_jars, kafka_oracle, tmp_path / "kafka")
    try:
        broker.start()
        broker.create_topic("plain", segment_ms="500")
        broker.create_topic("stamped", message_timestamp_type="LogAppendTime")
        broker.create_topic(
            "worn", cleanup_policy="compact", segment_ms="500", min_cleanable_dirty_ratio="0.0"
        )
        for topic in ("plain", "stamped", "worn"):
            send_drawn(kafka_oracle, broker, topic)
        broker.await_line("cleaned log worn-0")
        # A cleaning during a check may replace files and cause a finding, so the check is repeated.
        until_equal([], lambda: errors(look(broker.log_dir)))
        broker.stop()
        closed = look(broker.log_dir)
        assert [str(finding) for finding in closed if finding.counts] == []
        broker.start()
        send_drawn(kafka_oracle, broker, "plain")
        broker.kill()
        assert errors(look(broker.log_dir)) == []
        assert closed  # there is a note about a file of the broker's own metadata log
    finally:
        broker.kill()
