"""Fixtures of the comparisons with Apache Kafka."""

from tests.kafka_oracle import kafka_jars, kafka_oracle

__all__ = ["kafka_jars", "kafka_oracle"]
