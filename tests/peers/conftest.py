"""Fixtures of the comparisons with Apache Kafka."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle, kafka_jars, kafka_oracle
from tests.worlds.memory_folder import memory_folder

__all__ = ["kafka_jars", "kafka_oracle"]

pytest.register_assert_rewrite("tests.worlds.kafka.compare")


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in memory where the machine has one: many rolls, many syncs.

    Nothing in these comparisons depends on what a sync does.
    """
    memory = memory_folder()
    if memory is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="tidelog-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def kafka_broker(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A running broker for the whole session; each test makes topics of its own."""
    broker = Broker(kafka_jars, kafka_oracle, tmp_path_factory.mktemp("kafka"))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
