"""Kafka, for tests of who may do what."""

from tests.worlds.kafka.oracle import kafka_jars, kafka_oracle

__all__ = ["kafka_jars", "kafka_oracle"]
