"""Brokers that require authentication, and real clients that connect to them."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer
from tests.worlds.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S


@dataclass(frozen=True, kw_only=True)
class Key:
    """A client's credentials."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    user: str | None = None
    password: str | None = None
    authority: Path | None = None
    certificate: Path | None = None

    def librdkafka(self, bootstrap: str) -> dict[str, str | int | float | bool]:
        """Return settings of confluent-kafka."""
        found: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "security.protocol": self.protocol,
            "log_level": 0,
        }
        given = {
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
            "ssl.ca.location": self.authority,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.certificate,
        }
        return found | {name: str(value) for name, value in given.items() if value is not None}

    def kafka_python(self, bootstrap: str) -> dict[str, object]:
        """Return settings of kafka-python."""
        return {"bootstrap_servers": bootstrap, **self._python(), **self._files()}

    def aiokafka(self, bootstrap: str) -> dict[str, object]:
        """Return settings of aiokafka."""
        return {"bootstrap_servers": bootstrap, **self._python(), "ssl_context": self.context()}

    def _python(self) -> dict[str, object]:
        return {
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism or "PLAIN",
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }

    def _files(self) -> dict[str, object]:
        certificate = None if self.certificate is None else str(self.certificate)
        return {
            "ssl_cafile": None if self.authority is None else str(self.authority),
            "ssl_certfile": certificate,
            "ssl_keyfile": certificate,
        }

    def context(self) -> ssl.SSLContext | None:
        """Return a client's TLS context, None without TLS."""
        if self.authority is None:
            return None
        made = ssl.create_default_context(cafile=str(self.authority))
        if self.certificate is not None:
            made.load_cert_chain(str(self.certificate))
        return made


def create_topic(bootstrap: str, key: Key, name: str) -> None:
    """Create a topic of one partition."""
    admin = AdminClient(key.librdkafka(bootstrap))
    made = admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    made[name].result(timeout=TIMEOUT_S)


def _by_librdkafka(bootstrap: str, key: Key, topic: str, value: bytes) -> bytes:
    producer = Producer(key.librdkafka(bootstrap))
    producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0
    settings = key.librdkafka(bootstrap) | {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        found = consumer.poll(TIMEOUT_S)
        assert found is not None
        assert found.error() is None, found.error()
        return bytes(found.value() or b"")
    finally:
        consumer.close()


def _by_kafka_python(bootstrap: str, key: Key, topic: str, value: bytes) -> bytes:
    settings = key.kafka_python(bootstrap)
    producer = KafkaProducer(**settings)
    try:
        producer.send(topic, value).get(timeout=TIMEOUT_S)
    finally:
        producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", group_id=topic, **settings)
    try:
        return bytes(next(consumer).value)
    finally:
        consumer.close()


def _by_aiokafka(bootstrap: str, key: Key, topic: str, value: bytes) -> bytes:
    async def run() -> bytes:
        settings = key.aiokafka(bootstrap)
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        try:
            await asyncio.wait_for(producer.send_and_wait(topic, value), TIMEOUT_S)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
        await consumer.start()
        try:
            return bytes((await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value)
        finally:
            await consumer.stop()

    return asyncio.run(run())


# Each function writes a record to an empty topic, reads the record in a group, and returns its
# value.
ROUND_TRIPS: dict[str, Callable[[str, Key, str, bytes], bytes]] = {
    "librdkafka": _by_librdkafka,
    "kafka-python": _by_kafka_python,
    "aiokafka": _by_aiokafka,
}
