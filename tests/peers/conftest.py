"""Fixtures of the comparisons with Apache Kafka."""

import pytest
from tests.kafka_oracle import kafka_jars, kafka_oracle

__all__ = ["kafka_jars", "kafka_oracle"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all of Kafka in one worker, with one oracle and one broker."""
    for item in items:
        if "kafka" in item.keywords:
            item.add_marker(pytest.mark.xdist_group("kafka"))
