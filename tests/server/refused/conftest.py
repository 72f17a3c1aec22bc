"""Kafka, for tests of who may not come in."""

from tests.worlds.kafka.oracle import kafka_jars, kafka_oracle

__all__ = ["kafka_jars", "kafka_oracle"]
