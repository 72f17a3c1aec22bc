"""Transactional producers of two client libraries, with one interface and a timeout per step."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata
from confluent_kafka import KafkaException, Producer, TopicPartition
from tests.histories.history import Write

QUICK_MS: Final = 20
# Timeout of one step, in seconds: far longer than a broker is down.
STEP_S: Final = 60.0
TIMEOUT_MS: Final = 120_000
# Settings of librdkafka. While all brokers are down (here there is only one), version 2.16 forgets
# their addresses. It may then pass a group's offsets to a thread that has ended, and the caller
# waits forever, whatever the timeout (confluentinc/librdkafka#5511, #5456). With these settings
# librdkafka doesn't forget the broker.
QUICKLY: Final = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": QUICK_MS,
    "reconnect.backoff.max.ms": 2 * QUICK_MS,
    "retry.backoff.ms": QUICK_MS,
    "retry.backoff.max.ms": 2 * QUICK_MS,
    "log_level": 0,
}


class Failed(Exception):
    """The client reported that a step of a transaction failed."""


class Transactor(Protocol):
    """A client's producer with transactions. Each step may raise Failed."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, write: Write) -> None:
        """Send a value; its offset is recorded once it is known."""

    def arrive(self) -> None:
        """Wait until all sent values are acknowledged, or have failed."""

    def end(self, *, commit: bool) -> None:
        """Commit or abort."""

    def close(self) -> None:
        """Close the producer."""


class Confluent:
    """Producer of librdkafka.

    Raises:
        Failed: The producer got no producer id.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        settings: dict[str, str | int] = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
        }
        self._producer = Producer(settings | QUICKLY)
        self._failed = False
        told(lambda: self._producer.init_transactions(STEP_S))

    def begin(self) -> None:
        told(self._producer.begin_transaction)

    def send(self, write: Write) -> None:
        def note(error: object, message: object) -> None:
            if error is None:
                write.offset = message.offset()  # type: ignore[attr-defined] # a Message
            else:
                self._failed = True

        topic, partition = write.partition
        text = str(write.value)
        told(
            lambda: self._producer.produce(topic, text, partition=partition, on_delivery=note),
        )

    def arrive(self) -> None:
        if self._producer.flush(STEP_S) or self._failed:
            raise Failed("flush")

    def send_offsets(self, partitions: Sequence[TopicPartition], member: object) -> None:
        """Commit a group's offsets with the transaction, by `consumer_group_metadata()`."""
        wanted = list(partitions)
        told(lambda: self._producer.send_offsets_to_transaction(wanted, member, STEP_S))

    def end(self, *, commit: bool) -> None:
        end = self._producer.commit_transaction if commit else self._producer.abort_transaction
        told(lambda: end(STEP_S))

    def close(self) -> None:
        """Do nothing: the producer is closed when its last reference is dropped."""


class Aiokafka:
    """Producer of aiokafka, which uses the classic protocol.

    Raises:
        Failed: The producer got no producer id.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._sent: list[tuple[Write, asyncio.Future[RecordMetadata]]] = []

        async def start() -> None:
            self._producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=name,
                transaction_timeout_ms=TIMEOUT_MS,
                retry_backoff_ms=QUICK_MS,
                acks="all",
            )
            await self._producer.start()

        try:
            self._do(start())
        except Failed:
            self.close()
            raise

    def _do(self, step: Awaitable[object]) -> object:
        """Return a step's result; a step that exceeds its timeout has failed."""

        async def bounded() -> object:
            return await asyncio.wait_for(step, STEP_S)

        try:
            return self._loop.run_until_complete(bounded())
        except (KafkaError, OSError, TimeoutError) as error:
            raise Failed(str(error)) from error

    def begin(self) -> None:
        self._sent.clear()
        self._do(self._producer.begin_transaction())

    def send(self, write: Write) -> None:
        topic, partition = write.partition
        sent = self._do(self._producer.send(topic, str(write.value).encode(), partition=partition))
        assert isinstance(sent, asyncio.Future)
        self._sent.append((write, sent))

    def arrive(self) -> None:
        for write, sent in self._sent:
            found = self._do(sent)
            assert isinstance(found, RecordMetadata)
            write.offset = found.offset if found.offset >= 0 else None
        self._sent.clear()

    def end(self, *, commit: bool) -> None:
        producer = self._producer
        self._do(producer.commit_transaction() if commit else producer.abort_transaction())

    def close(self) -> None:
        with suppress(Failed):
            self._do(self._producer.stop())
        for _, sent in self._sent:
            if sent.done() and not sent.cancelled():
                sent.exception()  # marks the error as retrieved; the first failure is raised
        self._loop.close()


def told(step: Callable[[], object]) -> None:
    """Do a step of a transaction.

    Raises:
        Failed: The client raised an error.
    """
    try:
        step()
    except (KafkaException, BufferError) as error:
        raise Failed(str(error)) from error
