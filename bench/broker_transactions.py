"""Section of the broker's benchmark: rate, CPU and memory of transactions with 100 records.

Producers replay prepared requests with both protocols of transactions. A real client is measured
too. The figure of the real client includes the client's own work and pauses.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Producer as RealProducer
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import Transacting

from bench.broker_cells import Series, lines
from bench.broker_load import Address
from bench.broker_pair import Brokers, Pair, figure
from bench.broker_servers import MemoryWatch, Served, address_of, cpu_s
from bench.broker_transaction_load import Identity, Producer, run_all
from bench.harness import Case, Work
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

RECORDS: Final = 100
RECORD_BYTES: Final = 100
CLIENT_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Kind:
    """Way to write transactions.

    Attributes:
        producers: Number of concurrent producers, each with its own transactional id and
            connection.
        partitions: Number of partitions of a transaction, each with an equal part of the records.
        classic: Whether separate requests add the partitions (before KIP-890).
    """

    producers: int
    partitions: int = 1
    classic: bool = False

    @property
    def name(self) -> str:
        """Return the name for tables."""
        who = f"{self.producers} producer{'s' if self.producers > 1 else ''}"
        where = f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"
        return f"{who}, {where}, {'classic protocol' if self.classic else 'version 2'}"


KINDS: Final = (Kind(1), Kind(16), Kind(1, partitions=10), Kind(1, classic=True))
RETRIES: Final = "requests are repeated at once while a broker ends the previous transaction"


def transactions(brokers: Brokers) -> Iterator[Case]:
    """Yield rates, CPU and memory."""
    pair, seconds = brokers.pair, brokers.size.transactions_s
    for kind in KINDS:
        runs = {id(server): _prepared(pair, server, kind) for server in pair.servers()}
        yield from _rates(pair, kind.name, runs, seconds, RETRIES)
    clients = {id(server): _client(pair, server) for server in pair.servers()}
    note = "confluent-kafka, by the classic protocol, with its own waits and work"
    yield from _rates(pair, "through librdkafka, 1 partition", clients, seconds, note)
    yield from _memory(pair, seconds)


# Function that commits transactions for a number of seconds and returns the number of commits.
Run = Callable[[float], int]


def _rates(
    pair: Pair, name: str, runs: dict[int, Run], seconds: float, note: str
) -> Iterator[Case]:
    costs = {id(server): Series() for server in pair.servers()}

    def rate(server: Served) -> Work:
        def run() -> float:
            before, start = cpu_s(server.pid), time.perf_counter()
            done = runs[id(server)](seconds)
            wall_s = time.perf_counter() - start
            costs[id(server)].add((cpu_s(server.pid) - before) / done * 1e6)
            return done / wall_s

        return run

    ours, rival = (rate(server) for server in pair.servers())
    case = f"transactions of {RECORDS} records, {name}"
    yield figure(case, "transactions per s", ours, rival, goal=">= 1.0", note=note)
    our_cost, rival_cost = (costs[id(server)] for server in pair.servers())
    yield figure(f"CPU of the broker, {case}", "us per transaction", our_cost, rival_cost)


def _prepared(pair: Pair, server: Served, kind: Kind) -> Run:
    """Return a function that runs producers.

    All rounds use the same producers.
    """
    topic = f"ledger-{abs(hash(kind))}"
    pair.topics(server).create(topic, kind.partitions)
    made = [begun(address_of(server), kind, topic, n) for n in range(kind.producers)]
    return lambda seconds: run_all(made, seconds)


def begun(address: Address, kind: Kind, topic: str, number: int) -> Producer:
    """Return a producer that has a producer id; `number` makes its transactional id unique."""
    name = f"{topic}-{number}"
    with RawClient(f"{address[0]}:{address[1]}") as client:
        asked = Transacting(client, name, has_own_epochs=not kind.classic)
        if code := asked.init():
            raise RuntimeError(f"InitProducerId of {name}: error {code}")
    who = Identity(name, asked.producer_id, asked.epoch)
    batch = batch_of(RECORDS // kind.partitions)
    return Producer(address, who, topic, range(kind.partitions), batch, classic=kind.classic)


def batch_of(count: int) -> bytes:
    """Return a transaction's batch, into which producers write their id, epoch and sequence."""
    now_ms = int(time.time() * 1000)
    values: Sequence[bytes] = lines(RECORD_BYTES)
    records = [NewRecord(value=values[number], timestamp=now_ms) for number in range(count)]
    made = build_batch(
        records, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    return bytes(made)


def _client(pair: Pair, server: Served) -> Run:
    topic = "ledger-client"
    pair.topics(server).create(topic, 1)
    producer = RealProducer(
        {
            "bootstrap.servers": server.bootstrap,
            "transactional.id": topic,
            "log_level": 2,
        }
    )
    producer.init_transactions(CLIENT_TIMEOUT_S)
    values = lines(RECORD_BYTES)[:RECORDS]

    def run(seconds: float) -> int:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value, partition=0)
            producer.commit_transaction(CLIENT_TIMEOUT_S)
            done += 1
        return done

    return run


def _memory(pair: Pair, seconds: float) -> Iterator[Case]:
    def peak(server: Served) -> Work:
        run_producers = _prepared(pair, server, Kind(16, partitions=4))

        def run() -> float:
            with MemoryWatch(server.pid) as watch:
                run_producers(seconds)
            return watch.peak_bytes / 1e6

        return run

    ours, rival = (peak(server) for server in pair.servers())
    note = "largest proportional set size of all processes while 16 producers write to 4 partitions"
    yield figure("memory under transactions", "MB", ours, rival, note=note)
