"""Shared code of the broker's benchmark: both brokers, the amount of work, helpers for cases."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import quantiles
from typing import Final

from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

from bench import broker_wire as wire
from bench.broker_cells import Cell, Side
from bench.broker_load import many_clients
from bench.broker_servers import Kafka, Ours, Served, Topics, address_of, await_served
from bench.harness import Case, Work
from tidelog.types import Codec

RIVAL: Final = "Apache Kafka 4.3.0"


@dataclass(frozen=True, slots=True)
class Size:
    """Amount of work in each section. `--quick` uses smaller amounts."""

    volume_bytes: int
    warm_up_s: float
    paced: int
    single: int
    lookups: int
    lookup_requests: int
    lookup_batches: int
    client_records: int
    memory_runs: int
    transactions_s: float
    rebalances: int
    idle: int
    offsets_bytes: int


FULL: Final = Size(
    256_000_000, 45, 5_000, 3_000, 10_000, 20_000, 4_000, 3_000_000, 4, 2, 5, 10_000, 1 << 30
)
QUICK: Final = Size(32_000_000, 6, 700, 400, 200, 1_000, 400, 100_000, 1, 0.5, 1, 1_000, 32 << 20)


@dataclass(frozen=True, slots=True)
class Pair:
    """The running brokers of tidelog (`ours`) and of Kafka (`rival`), with an admin client each."""

    ours: Served
    rival: Served
    our_topics: Topics
    rival_topics: Topics

    def topics(self, server: Served) -> Topics:
        """Return the admin client of one of the two brokers."""
        return self.our_topics if server is self.ours else self.rival_topics

    def servers(self) -> Sequence[Served]:
        """Return both brokers, tidelog's first."""
        return (self.ours, self.rival)


def side_of(pair: Pair, server: Served, cell: Cell, volume_bytes: int) -> Side:
    """Return one broker's side of a cell."""
    return Side(server, pair.topics(server), cell, cell.batch(), volume_bytes)


class Brokers:
    """The two brokers for the sections of the benchmark. They are started at their first use.

    Attributes:
        home: Kafka's jars.
        oracle: Formats Kafka's directories.
        folder: Folder for files, removed at the end.
        size: Amount of work.
        stack: Exit stack that stops the processes that still run at the end.
    """

    def __init__(self, home: KafkaHome, size: Size, folder: Path, stack: ExitStack) -> None:
        self.home, self.size, self.folder, self.stack = home, size, folder, stack
        self.oracle = stack.enter_context(Oracle(home))

    @cached_property
    def pair(self) -> Pair:
        """Both brokers, running and warmed up."""
        ours = Ours(self.folder / "ours")
        made = self.started(ours, Kafka(self.home, self.oracle, self.folder / "kafka"))
        for server in made.servers():
            _warm_up(made, server, self.size.warm_up_s)
        return made

    def started(self, ours: Served, rival: Served) -> Pair:
        """Start two brokers, which run until the end of the benchmark."""
        for server in (ours, rival):
            self.stack.callback(server.stop)
            server.start()
            await_served(server)
        return Pair(ours, rival, Topics(ours), Topics(rival))


def _warm_up(pair: Pair, server: Served, seconds: float) -> None:
    """Produce, fetch and look up for some seconds, so that Kafka's JVM compiles these paths."""
    side = side_of(pair, server, Cell(100, Codec.NONE, 1, small=True), 8_000_000)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        side.renew()
        side.produce()
        side.consume()
        request = wire.list_offsets(side.topic, int(time.time() * 1000))
        many_clients(address_of(server), [request], 4, 500)
    side.drop()


def nothing() -> None:
    """Do nothing, as the `prepare` of a case.

    The harness calls `ours` and `rival` only once per round if the case has a `prepare`. A case
    that needs this and has nothing to prepare uses this function.
    """


def figure(
    case: str, unit: str, ours: Work, rival: Work | None, *, goal: str = "", note: str = ""
) -> Case:
    """Return a case whose callables are called once per round and return the figure itself."""
    return Case(
        case=case,
        unit=unit,
        ours=ours,
        rival=rival,
        rival_name=RIVAL if rival else "",
        goal=goal,
        note=note,
        prepare=nothing,
    )


def at(seconds: Sequence[float], percentile: int) -> float:
    """Return a percentile of times in seconds, converted to ms."""
    return quantiles(seconds, n=100)[percentile - 1] * 1e3
