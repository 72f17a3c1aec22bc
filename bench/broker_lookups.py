"""Sections of the broker's benchmark: lookups by time, and rates of kcat."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from confluent_kafka import Consumer
from confluent_kafka.cimpl import TopicPartition

from bench import broker_wire as wire
from bench.broker_cells import Series, lines
from bench.broker_load import ask, many_clients
from bench.broker_pair import RIVAL, Brokers, Pair, Size, at, figure, nothing
from bench.broker_servers import Served, address_of, cpu_s
from bench.harness import Case, Work
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

LOOKUP_RECORDS: Final = 150
LOOKUP_REQUESTS: Final = 512
CLIENTS: Final = (1, 16, 64)


def _fill_for_lookups(pair: Pair, size: Size, start_ms: int) -> None:
    """Fill a topic with a record for each ms, in batches of 16 KB and segments of 16 MB."""
    values = lines(100)
    for server in pair.servers():
        pair.topics(server).create("lookups", 1, segment_bytes=str(16 << 20))
    for number in range(size.lookup_batches):
        first_ms = start_ms + number * LOOKUP_RECORDS
        records = [
            NewRecord(value=values[n], timestamp=first_ms + n) for n in range(LOOKUP_RECORDS)
        ]
        request = wire.produce("lookups", [bytes(build_batch(records))])
        for server in pair.servers():
            wire.Produced("lookups", 1).check(ask(address_of(server), request))


def lookups(brokers: Brokers) -> Iterator[Case]:
    """Yield the cases of lookups by time: through librdkafka, and with 1 to 64 raw clients."""
    pair, size = brokers.pair, brokers.size
    span_ms = size.lookup_batches * LOOKUP_RECORDS
    start_ms = int(time.time() * 1000) - span_ms
    _fill_for_lookups(pair, size, start_ms)
    # The step and the span have no common factor, so the times are in mixed order and spread over
    # the whole log.
    times = [start_ms + number * 7_919 * 31 % span_ms for number in range(LOOKUP_REQUESTS)]
    yield from _librdkafka(pair, size, times)
    requests = [wire.list_offsets("lookups", when) for when in times]
    for count in CLIENTS:
        yield from _lookup_rate(pair, size, requests, count)


def _librdkafka(pair: Pair, size: Size, times: Sequence[int]) -> Iterator[Case]:
    tails = {id(server): Series() for server in pair.servers()}

    def ask_times(server: Served) -> Work:
        consumer = Consumer(
            {"bootstrap.servers": server.bootstrap, "group.id": "bench", "log_level": 2}
        )

        def run() -> float:
            took = []
            for number in range(size.lookups):
                wanted = [TopicPartition("lookups", 0, times[number % len(times)])]
                begin = time.perf_counter()
                found = consumer.offsets_for_times(wanted, timeout=30)
                took.append(time.perf_counter() - begin)
                if found[0].error or found[0].offset < 0:
                    raise RuntimeError(f"offsets_for_times answered {found[0]}")
            tails[id(server)].add(at(took, 99))
            return at(took, 50)

        return run

    ours, rival = (ask_times(server) for server in pair.servers())
    name = "offsetsForTimes through librdkafka"
    yield figure(f"{name}, p50", "ms (p50)", ours, rival, goal="<= 1.0")
    our_tail, rival_tail = (tails[id(server)] for server in pair.servers())
    yield figure(f"{name}, p99", "ms (p99)", our_tail, rival_tail, goal="<= 0.333")


def _lookup_rate(pair: Pair, size: Size, requests: Sequence[bytes], count: int) -> Iterator[Case]:
    costs = {id(server): Series() for server in pair.servers()}

    def rate(server: Served) -> Work:
        def run() -> float:
            before, start = cpu_s(server.pid), time.perf_counter()
            many_clients(address_of(server), requests, count, size.lookup_requests)
            wall_s = time.perf_counter() - start
            costs[id(server)].add((cpu_s(server.pid) - before) / size.lookup_requests * 1e6)
            return size.lookup_requests / wall_s

        return run

    ours, rival = (rate(server) for server in pair.servers())
    name = f"offsetsForTimes, {count} client{'s' if count > 1 else ''}"
    goal = ">= 2.0" if count == 1 else ">= 1.2"
    yield figure(name, "requests per s", ours, rival, goal=goal)
    our_cost, rival_cost = (costs[id(server)] for server in pair.servers())
    yield figure(
        f"CPU of the broker, {name}", "us per request", our_cost, rival_cost, goal="<= 0.6"
    )


def clients(brokers: Brokers) -> Iterator[Case]:
    """Yield kcat's rates, which include the client's own work."""
    if shutil.which("kcat") is None:
        return
    pair, size = brokers.pair, brokers.size
    values = lines(100)
    data = brokers.folder / "lines"
    data.write_bytes(b"\n".join(values[n % len(values)] for n in range(size.client_records)))

    def run(server: Served, *arguments: str) -> Work:
        def call() -> float:
            command = ["kcat", "-b", server.bootstrap, "-q", *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return float(size.client_records)

        return call

    renew = _renewing(pair, "kcat")
    arguments = ("-P", "-t", "kcat", "-p", "0", "-l", str(data))
    ours, rival = (run(server, *arguments) for server in pair.servers())
    yield Case(
        case="kcat writes lines of 100 B",
        unit="records/s",
        ours=ours,
        rival=rival,
        rival_name=RIVAL,
        note="a real client; its own start and CPU time are included",
        prepare=renew,
    )
    renew()
    for server in pair.servers():
        run(server, *arguments)()
    reading = ("-C", "-t", "kcat", "-p", "0", "-o", "beginning", "-e")
    ours, rival = (run(server, *reading) for server in pair.servers())
    yield Case(
        case="kcat reads lines of 100 B",
        unit="records/s",
        ours=ours,
        rival=rival,
        rival_name=RIVAL,
        note="a real client; its own start and CPU time are included",
        prepare=nothing,
    )


def _renewing(pair: Pair, topic: str) -> Callable[[], None]:
    made: list[bool] = []

    def renew() -> None:
        for server in pair.servers():
            if made:
                pair.topics(server).drop(topic)
            pair.topics(server).create(topic, 1)
        made.append(True)

    return renew
