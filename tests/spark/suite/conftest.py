"""Kafka's broker with the topics of the suite, filled once for all modules of the suite."""

import pytest
from tests.spark.suite.cases import fill_broker
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.oracle import Oracle


@pytest.fixture(scope="session")
def filled_broker(kafka_broker: Broker, kafka_oracle: Oracle) -> Broker:
    """Kafka's broker with the suite's topics, which no test changes."""
    fill_broker(kafka_oracle, kafka_broker)
    return kafka_broker
