"""Compares the broker with Apache Kafka 4.3: throughput, CPU, memory, start, latency, lookups.

Both brokers run at the same time and are measured in turn. While one broker is measured, the other
is idle. A generator that replays prepared requests (bench/broker_load.py) produces the load, so
that the brokers are compared and not the clients. kcat is measured too. Throughput is measured in
cells (kinds of load). In most cells a Produce request has 1 MB: one batch as librdkafka fills it,
or one batch for each of sixteen partitions. In the other cells a batch has 16 KB, the Java
producer's default. Five Produce requests are in flight, with acks=all. CPU time is the time of the
broker's own processes.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.worlds.kafka.home import Unavailable, kafka_home

from bench import broker_wire as wire
from bench.broker_cells import Cell, Series, Side, geometric_mean, largest, lines
from bench.broker_crowds import idle, loading
from bench.broker_groups import groups
from bench.broker_load import Paced, ask, ping_pong
from bench.broker_lookups import clients, lookups
from bench.broker_pair import FULL, QUICK, RIVAL, Brokers, at, figure, side_of
from bench.broker_secured import secured
from bench.broker_servers import (
    Kafka,
    MemoryWatch,
    Ours,
    Served,
    address_of,
    await_served,
    scratch,
)
from bench.broker_tls import tls
from bench.broker_transactions import transactions
from bench.harness import Case, Work
from tidelog.record.builder import build_batch
from tidelog.types import Codec, NewRecord

CELLS: Final = tuple(
    Cell(record_bytes, codec, partitions)
    for record_bytes in (100, 1024)
    for codec in (Codec.NONE, Codec.LZ4)
    for partitions in (1, 16)
)
# With `--quick`, QUICK_CELLS are run instead of CELLS. SMALL_CELLS are run in both cases.
QUICK_CELLS: Final = tuple(cell for cell in CELLS if cell.record_bytes == 100)
SMALL_CELLS: Final = (Cell(100, Codec.NONE, 1, small=True), Cell(100, Codec.LZ4, 16, small=True))
RATE: Final = 1_000


def cases(quick: bool, only: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the cases of the broker; none if Kafka is not available.

    Args:
        quick: Whether to run fewer cells and less work in each cell.
        only: Names of `SECTIONS`; empty for all.
    """
    try:
        home = kafka_home()
    except Unavailable as missing:
        print(f"no comparison: {missing}", file=sys.stderr)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        brokers = Brokers(home, QUICK if quick else FULL, folder, stack)
        for name in only or SECTIONS:
            yield from SECTIONS[name](brokers)


def _start(brokers: Brokers) -> Iterator[Case]:
    folder = brokers.folder
    ours: Served = Ours(folder / "start")
    rival: Served = Kafka(brokers.home, brokers.oracle, folder / "kafka-start")

    def start(server: Served) -> Work:
        def run() -> float:
            begin = time.perf_counter()
            server.start()
            await_served(server)
            took_s = time.perf_counter() - begin
            server.stop()
            return took_s

        return run

    note = "from the start of the process to the answer of a Metadata request"
    yield figure(
        "start to first served request",
        "seconds",
        start(ours),
        start(rival),
        goal="ours <= 0.3",
        note=note,
    )


def _throughput(brokers: Brokers) -> Iterator[Case]:
    pair, size = brokers.pair, brokers.size
    sides: list[tuple[Side, Side]] = []
    cells = QUICK_CELLS if size is QUICK else CELLS
    for cell in cells + SMALL_CELLS:
        ours, rival = (side_of(pair, server, cell, size.volume_bytes) for server in pair.servers())
        sides.append((ours, rival))
        yield from _cell(ours, rival)
        ours.drop()
        rival.drop()
    yield from _means(sides[: len(cells)])


def _cell(ours: Side, rival: Side) -> Iterator[Case]:
    def renew() -> None:
        ours.renew()
        rival.renew()

    def fill() -> None:
        ours.fill()
        rival.fill()

    name = ours.cell.name
    yield Case(
        case=f"produce {name}",
        unit="MB per s",
        ours=ours.produce,
        rival=rival.produce,
        rival_name=RIVAL,
        goal=">= 1.0",
        prepare=renew,
    )
    yield Case(
        case=f"consume {name}",
        unit="MB per s",
        ours=ours.consume,
        rival=rival.consume,
        rival_name=RIVAL,
        goal=">= 1.0",
        prepare=fill,
    )
    for what, our_cpu, rival_cpu in (
        ("produce", ours.produce_cpu, rival.produce_cpu),
        ("consume", ours.consume_cpu, rival.consume_cpu),
    ):
        case = f"CPU of the broker, {what} {name}"
        yield figure(case, "CPU s per GB", our_cpu, rival_cpu, goal="<= 0.8")


def _means(sides: Sequence[tuple[Side, Side]]) -> Iterator[Case]:
    rates = [
        [s for side in column for s in (side.produced, side.consumed)]
        for column in zip(*sides, strict=True)
    ]
    costs = [
        [s for side in column for s in (side.produce_cpu, side.consume_cpu)]
        for column in zip(*sides, strict=True)
    ]
    loads = [side.generator for pair in sides for side in pair]
    note = f"over producing and consuming in the {len(sides)} cells with requests of 1 MB"
    yield figure(
        "throughput, geometric mean",
        "MB per s",
        geometric_mean(rates[0]),
        geometric_mean(rates[1]),
        goal=">= 1.3",
        note=note,
    )
    yield figure(
        "CPU of the broker, geometric mean",
        "CPU s per GB",
        geometric_mean(costs[0]),
        geometric_mean(costs[1]),
        goal="<= 0.5",
        note=note,
    )
    yield figure(
        "CPU of the load generator, largest of all cases",
        "cores",
        largest(loads),
        None,
        goal="ours <= 0.3",
    )


def _memory(brokers: Brokers) -> Iterator[Case]:
    pair, size = brokers.pair, brokers.size

    def peak(server: Served) -> Work:
        side = side_of(pair, server, Cell(100, Codec.LZ4, 16), size.volume_bytes)

        def run() -> float:
            with MemoryWatch(server.pid) as watch:
                for _ in range(size.memory_runs):
                    side.renew()
                    side.produce()
                    side.consume()
            return watch.peak_bytes / 1e6

        return run

    note = "largest proportional set size of all processes while 16 partitions are written and read"
    ours, rival = (peak(server) for server in pair.servers())
    yield figure("memory under load", "MB", ours, rival, goal="<= 0.125", note=note)


def _single_batch() -> bytes:
    record = NewRecord(value=lines(100)[0], timestamp=int(time.time() * 1000))
    return bytes(build_batch([record]))


def _paced(brokers: Brokers) -> Iterator[Case]:
    pair, size = brokers.pair, brokers.size
    batch = _single_batch()
    tails = {id(server): Series() for server in pair.servers()}

    def paced(server: Served) -> Work:
        pair.topics(server).create("paced", 1)

        def run() -> float:
            answer = ask(address_of(server), wire.list_offsets("paced", -1))
            base = wire.listed(answer, "paced")[1]
            took = Paced(address_of(server), "paced", batch, base).run(size.paced, RATE)
            tails[id(server)].add(at(took, 99))
            return at(took, 50)

        return run

    ours, rival = (paced(server) for server in pair.servers())
    name = "produce to consume at 1,000 records/s"
    note = "one record per request, a consumer in long polls"
    yield figure(f"{name}, p50", "ms (p50)", ours, rival, goal="<= 1.0", note=note)
    our_tail, rival_tail = (tails[id(server)] for server in pair.servers())
    yield figure(f"{name}, p99", "ms (p99)", our_tail, rival_tail, goal="<= 1.0", note=note)


def _single(brokers: Brokers) -> Iterator[Case]:
    pair, size = brokers.pair, brokers.size
    batch = _single_batch()
    request, check = wire.produce("single", [batch]), wire.Produced("single", 1)
    tails = {id(server): Series() for server in pair.servers()}

    def single(server: Served) -> Work:
        pair.topics(server).create("single", 1)

        def run() -> float:
            took = ping_pong(address_of(server), request, check, size.single)
            tails[id(server)].add(at(took, 99))
            return at(took, 50)

        return run

    ours, rival = (single(server) for server in pair.servers())
    name = "produce one record per request, one in flight"
    yield figure(f"{name}, p50", "ms (p50)", ours, rival, goal="<= 0.6", note="acks=all")
    our_tail, rival_tail = (tails[id(server)] for server in pair.servers())
    yield figure(f"{name}, p99", "ms (p99)", our_tail, rival_tail, note="acks=all")


# Sections that `--only` accepts, in the order of a full run.
SECTIONS: Final[Mapping[str, Callable[[Brokers], Iterator[Case]]]] = {
    "start": _start,
    "throughput": _throughput,
    "memory": _memory,
    "idle": idle,
    "loading": loading,
    "paced": _paced,
    "single": _single,
    "lookups": lookups,
    "kcat": clients,
    "transactions": transactions,
    "groups": groups,
    "tls": tls,
    "secured": secured,
}
