"""Tests that run commands with `--bootstrap` against Apache Kafka."""

import pytest
from tests.contracts.broker_commands import Commands, Shell
from tests.worlds.kafka.broker import Broker

pytestmark = pytest.mark.kafka


@pytest.fixture
def shell(kafka_broker: Broker) -> Shell:
    return Shell(kafka_broker.bootstrap)


class TestCommandsOnKafka(Commands):
    """See `Commands`."""
