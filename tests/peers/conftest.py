"""Fixtures of the comparisons with Apache Kafka."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.either import either_broker, kafka_broker, stopped_kafka

if TYPE_CHECKING:
    from tidelog.server.embedded import Broker as Ours

__all__ = ["either_broker", "kafka_broker", "stopped_kafka"]

pytest.register_assert_rewrite("tests.worlds.kafka.compare")


@pytest.fixture
def clients(kafka_broker: Broker, ours: "Ours") -> Iterator[tuple[RawClient, RawClient]]:
    """Connections to Kafka and to our broker, which is the module's fixture `ours`."""
    with RawClient(kafka_broker.bootstrap) as kafka, RawClient(ours.bootstrap_servers) as own:
        yield kafka, own
