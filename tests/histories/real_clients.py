"""Clients as people use them, each in a thread, that come back when their broker does."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.errors import KafkaError  # type: ignore[import-untyped]
from aiokafka.structs import RecordMetadata  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.histories.history import History, Outcome, Place, Poll, Transaction, Write
from tests.histories.processes import Names

PATIENCE_S: Final = 240.0
POLL_S: Final = 0.05
QUICK_MS: Final = 20
STEP_S: Final = 30.0
TIMEOUT_MS: Final = 60_000
READ_AT_ONCE: Final = 20
LAST_COPIES: Final = 5
# What a client does that is told nothing better.
QUICKLY: Final = {
    "reconnect.backoff.ms": QUICK_MS,
    "reconnect.backoff.max.ms": 2 * QUICK_MS,
    "retry.backoff.ms": QUICK_MS,
    "retry.backoff.max.ms": 2 * QUICK_MS,
    "log_level": 0,
}


class Failed(Exception):
    """A step of a transaction has failed, as the client says."""


class Transactor(Protocol):
    """A client's producer with transactions."""

    def begin(self) -> None:
        """Begin one."""

    def send(self, write: Write) -> None:
        """Send a value; its offset is noted once it is known."""

    def arrive(self) -> None:
        """Wait until what was sent is there, or has failed."""

    def end(self, *, commit: bool) -> None:
        """Commit or abort."""

    def close(self) -> None:
        """Let go of it."""


class Confluent:
    """librdkafka's."""

    def __init__(self, bootstrap: str, name: str) -> None:
        settings: dict[str, str | int] = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
        }
        self.producer = Producer(settings | QUICKLY)
        patiently(lambda: self.producer.init_transactions(PATIENCE_S))

    def begin(self) -> None:
        told(self.producer.begin_transaction)

    def send(self, write: Write) -> None:
        def note(error: object, message: object) -> None:
            if error is None:
                write.offset = message.offset()  # type: ignore[attr-defined] # a Message

        topic, partition = write.place
        text = str(write.value)
        told(
            lambda: self.producer.produce(topic, text, partition=partition, on_delivery=note),
        )

    def arrive(self) -> None:
        if self.producer.flush(PATIENCE_S):
            raise Failed("flush")

    def end(self, *, commit: bool) -> None:
        end = self.producer.commit_transaction if commit else self.producer.abort_transaction
        told(lambda: end(PATIENCE_S))

    def close(self) -> None:
        """It goes with its last reference."""


class Aiokafka:
    """aiokafka's, which speaks the classic protocol."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._sent: list[tuple[Write, asyncio.Future[RecordMetadata]]] = []
        while not self._start(bootstrap, name):
            pass

    def _start(self, bootstrap: str, name: str) -> bool:
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
            self._stop()
            return False
        return True

    def _do(self, step: Awaitable[object]) -> object:
        """A step's result; a client that never comes back to it has failed."""

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
        topic, partition = write.place
        sent = self._do(self._producer.send(topic, str(write.value).encode(), partition=partition))
        assert isinstance(sent, asyncio.Future)
        self._sent.append((write, sent))

    def arrive(self) -> None:
        for write, sent in self._sent:
            found = self._do(sent)
            assert isinstance(found, RecordMetadata)
            write.offset = found.offset
        self._sent.clear()

    def end(self, *, commit: bool) -> None:
        producer = self._producer
        self._do(producer.commit_transaction() if commit else producer.abort_transaction())

    def close(self) -> None:
        self._stop()
        for _, sent in self._sent:
            if sent.done() and not sent.cancelled():
                sent.exception()  # the first failure was enough
        self._loop.close()

    def _stop(self) -> None:
        with suppress(Failed):
            self._do(self._producer.stop())


def told(step: Callable[[], object]) -> None:
    """Do a step of a transaction.

    Raises:
        Failed: The client says so.
    """
    try:
        step()
    except (KafkaException, BufferError) as error:
        raise Failed(str(error)) from error


def patiently(step: Callable[[], object], *, whatever: bool = False) -> None:
    """Do a step until it is done, where the client says that it may be done again.

    Only steps of transactions are told that; others are done again `whatever` is said.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            step()
        except KafkaException as error:
            if not (whatever or error.args[0].retriable()) or time.monotonic() > end:
                raise
        else:
            return


@dataclass
class RealClient:
    """One process of a history.

    Attributes:
        bootstrap: Where the broker comes back.
        ended: Told of each transaction that has come to an end.
    """

    bootstrap: str
    names: Names
    history: History
    random: Random
    name: str
    ended: Callable[[], None]


@dataclass
class RealWriter(RealClient):
    """Transactions of random writes."""

    kind: Callable[[str, str], Transactor] = Confluent
    producer: Transactor = field(init=False)

    def open(self) -> None:
        """Get an id, and end what was open before."""
        self.producer = self.kind(self.bootstrap, f"{self.name}-{self.names.seed}")

    def run(self, count: int, values: Callable[[], int]) -> None:
        """So many transactions."""
        self.open()
        for _ in range(count):
            self.transact(lambda found: self._write_some(found, values))
        self.producer.close()
        self.open()  # which ends what it has left open
        self.producer.close()

    def transact(self, body: Callable[[Transaction], bool]) -> None:
        """One transaction; `body` writes, and says whether to commit. It never fails."""
        found = Transaction(self.name)
        self.history.transactions.append(found)
        try:
            self.producer.begin()
            commit = body(found)
            self.producer.arrive()
            if commit:
                found.commit_asked, found.outcome = self.history.now(), Outcome.UNKNOWN
            self.producer.end(commit=commit)
        except Failed:
            self.producer.close()
            self.open()
        else:
            if commit:
                assert all(write.offset is not None for write in found.writes), found
                found.outcome = Outcome.COMMITTED
        self.ended()

    def write(self, transaction: Transaction, place: Place, values: Sequence[int]) -> None:
        """Send values."""
        for value in values:
            write = Write(place, value)
            transaction.writes.append(write)
            self.producer.send(write)

    def _write_some(self, transaction: Transaction, values: Callable[[], int]) -> bool:
        for _ in range(self.random.randrange(1, 4)):
            place = self.random.choice(self.names.places)
            some = [values() for _ in range(self.random.randrange(1, 4))]
            self.write(transaction, place, some)
            if self.random.random() < 0.5:
                self.producer.arrive()
        return self.random.random() < 0.7


def reading(bootstrap: str, group: str) -> Consumer:
    """A consumer of committed records that commits nothing by itself."""
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": QUICK_MS,
    }
    return Consumer(settings | QUICKLY)


def read(consumer: Consumer) -> list[tuple[int, int]]:
    """Offsets and values of what has come."""
    messages = consumer.consume(READ_AT_ONCE, POLL_S)
    rows = [(each.offset(), each.value()) for each in messages if each.error() is None]
    return [(offset or 0, int(value or b"")) for offset, value in rows]


@dataclass
class RealReader(RealClient):
    """A consumer of committed records of one place at a time."""

    def run(self, is_over: Callable[[], bool]) -> None:
        """Read on, and begin anew now and then, until all is over."""
        consumer = reading(self.bootstrap, self.name)
        run = 0
        while not is_over():
            run += 1
            at, place = 0, self.random.choice(self.names.places)
            consumer.assign([TopicPartition(*place, at)])
            for _ in range(self.random.randrange(1, 30)):
                rows = read(consumer)
                if rows:
                    end = rows[-1][0] + 1
                    time = self.history.now()
                    self.history.polls.append(Poll(self.name, run, time, place, at, rows, end))
                    at = end
        consumer.close()


@dataclass
class RealCopier(RealWriter):
    """Reads the first place, writes each value's negative, commits its offset with that."""

    consumer: Consumer = field(init=False)

    def run_copies(self, is_over: Callable[[], bool]) -> int:
        """Copy until all is over; the offset that was committed at last."""
        self.open()
        self.consumer = reading(self.bootstrap, self.names.group)
        while not is_over():
            self._copy()
        for _ in range(LAST_COPIES):
            self._copy()
        self.producer.close()
        self.open()
        self.producer.close()
        offset = self._committed()
        self.consumer.close()
        return offset

    def _committed(self) -> int:
        found: list[TopicPartition] = []
        wanted = [TopicPartition(*self.names.places[0])]

        def ask() -> None:
            found[:] = self.consumer.committed(wanted, STEP_S)

        patiently(ask, whatever=True)
        return max(found[0].offset, 0)

    def _copy(self) -> None:
        place = self.names.places[0]
        at = self._committed()
        self.consumer.assign([TopicPartition(*place, at)])
        rows = read(self.consumer)
        if rows:
            self.transact(lambda found: self._copy_rows(found, rows))

    def _copy_rows(self, transaction: Transaction, rows: Sequence[tuple[int, int]]) -> bool:
        self.write(transaction, (self.names.copy, 0), [-value for _, value in rows])
        place = TopicPartition(*self.names.places[0], rows[-1][0] + 1)
        member = self.consumer.consumer_group_metadata()
        assert isinstance(self.producer, Confluent)
        producer = self.producer.producer
        told(lambda: producer.send_offsets_to_transaction([place], member, PATIENCE_S))
        return self.random.random() < 0.9
