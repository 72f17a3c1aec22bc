"""Real clients, each in a thread. After the broker was killed and restarted, they continue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from tests.histories.history import History, Outcome, Partition, Poll, Transaction, Write
from tests.histories.processes import Names
from tests.histories.progress import Progress
from tests.histories.transactors import QUICK_MS, QUICKLY, Confluent, Failed, Transactor
from tests.worlds.waiting import Patience

POLL_S: Final = 0.05
# Maximum time in ms that a fetch waits for records. So an idle consumer sends ten requests per
# second.
FETCH_WAIT_MS: Final = 100
READ_AT_ONCE: Final = 20
POLLS_OF_A_RUN: Final = range(1, 30)


@dataclass
class RealClient:
    """One process of a history.

    Attributes:
        bootstrap: Address of the broker; a restart does not change it.
        progress: Counts each step.
    """

    bootstrap: str
    names: Names
    history: History
    random: Random
    name: str
    progress: Progress


@dataclass
class RealWriter(RealClient):
    """A producer that runs transactions of random writes."""

    kind: Callable[[str, str], Transactor] = Confluent
    producer: Transactor = field(init=False)

    def open(self) -> None:
        """Get a producer id, and end an earlier open transaction."""
        patience = Patience()
        while True:
            self.progress.await_broker()
            try:
                self.producer = self.kind(self.bootstrap, f"{self.name}-{self.names.seed}")
            except Failed as failure:
                patience.check(failure)
            else:
                return

    def finish(self) -> None:
        """End an open transaction, and close the producer."""
        self.producer.close()
        self.open()
        self.producer.close()

    def run(self, count: int, values: Callable[[], int]) -> None:
        """Run `count` transactions."""
        self.open()
        for _ in range(count):
            self.transact(lambda found: self._write_some(found, values))
        self.finish()

    def transact(self, body: Callable[[Transaction], bool]) -> bool:
        """Run one transaction; return whether it was committed, as far as the client knows.

        `body` sends the writes, and returns True to commit, False to abort. If the commit request
        gets no response, the outcome is unknown. The client then continues with a new producer, as
        users' programs do.
        """
        found = Transaction(self.name)
        self.history.transactions.append(found)
        try:
            self.producer.begin()
            commit = body(found)
            self.producer.arrive()
            if commit:
                found.commit_asked, found.outcome = self.history.now(), Outcome.UNKNOWN
            self.progress.tell()
            self.producer.end(commit=commit)
        except Failed:
            self.producer.close()
            self.open()
            commit = False
        if commit:
            found.outcome = Outcome.COMMITTED
        self.progress.tell()
        return commit

    def write(self, transaction: Transaction, partition: Partition, values: Sequence[int]) -> None:
        """Send values."""
        for value in values:
            write = Write(partition, value)
            transaction.writes.append(write)
            self.producer.send(write)
        self.progress.tell()

    def _write_some(self, transaction: Transaction, values: Callable[[], int]) -> bool:
        for _ in range(self.random.randrange(1, 4)):
            partition = self.random.choice(self.names.partitions)
            some = [values() for _ in range(self.random.randrange(1, 4))]
            self.write(transaction, partition, some)
            if self.random.random() < 0.5:
                self.producer.arrive()
        return self.random.random() < 0.7


def reading(bootstrap: str, group: str, **settings: str | int) -> Consumer:
    """Return a consumer of committed records without automatic commits."""
    common: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.error.backoff.ms": QUICK_MS,
    }
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Consumer(common | QUICKLY | named)


def read(consumer: Consumer) -> list[tuple[int, int]]:
    """Return offsets and values of the received records."""
    messages = consumer.consume(READ_AT_ONCE, POLL_S)
    rows = [(each.offset(), each.value()) for each in messages if each.error() is None]
    return [(offset or 0, int(value or b"")) for offset, value in rows]


@dataclass
class RealReader(RealClient):
    """A consumer of committed records of one partition at a time."""

    def run(self, is_over: Callable[[], bool]) -> None:
        """Read until `is_over()` holds; sometimes start again at offset 0 of a random partition."""
        consumer = reading(self.bootstrap, f"{self.name}-{self.names.seed}")
        run = 0
        while not is_over():
            run += 1
            at, partition = 0, self.random.choice(self.names.partitions)
            consumer.assign([TopicPartition(*partition, at)])
            for _ in range(self.random.choice(POLLS_OF_A_RUN)):
                rows = read(consumer)
                if rows:
                    end = rows[-1][0] + 1
                    time = self.history.now()
                    self.history.polls.append(Poll(self.name, run, time, partition, at, rows, end))
                    at = end
        consumer.close()
