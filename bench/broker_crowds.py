"""Sections of the broker's benchmark: idle connections, and a start with many committed offsets."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Final

from tests.server.crowds import Crowd, descriptors
from tests.server.offsets_topic import TOPIC, group_name, last_offset, write_offsets_topic
from tests.worlds.clients.raw import RawClient

from bench.broker_cells import Series
from bench.broker_pair import Brokers, at, figure
from bench.broker_servers import MemoryWatch, Ours, Served, await_served, cpu_s, memory_bytes
from bench.harness import Case, Work
from tidelog.protocol.messages import OFFSET_FETCH
from tidelog.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchTopic
from tidelog.server.coordinator.java_hash import partition_for

# Number of connections to which the measured memory is scaled.
GOAL_CONNECTIONS: Final = 10_000
# Maximum number of connections to Kafka, which accepts only about a hundred a second.
RIVAL_CONNECTIONS: Final = 1_000
RESTING_S: Final = 0.5
RESTING_CPU_S: Final = 0.02
REST_TRIES: Final = 16
PARTITIONS: Final = 50
PLACES: Final = 5
GROUPS: Final = 2_000
# Time in seconds between two requests for groups that are still loading.
ASKING_S: Final = 0.002


def idle(brokers: Brokers) -> Iterator[Case]:
    """Yield the case of the memory that idle connections take.

    Yields no case if the process may open too few descriptors.
    """
    size = brokers.size
    with ExitStack() as stack:
        if not stack.enter_context(descriptors(size.idle)):
            print(f"fewer than {size.idle} descriptors may be open", file=sys.stderr)
            return
        at_kafka = min(size.idle, RIVAL_CONNECTIONS)
        note = (
            "proportional set size with the connections minus that without them, scaled from"
            f" {size.idle:,} connections to tidelog and {at_kafka:,} to Kafka"
        )
        pair = brokers.pair
        ours, rival = _idle(pair.ours, size.idle), _idle(pair.rival, at_kafka)
        name = f"memory of {GOAL_CONNECTIONS:,} idle connections"
        yield figure(name, "MB", ours, rival, goal="ours <= 80", note=note)


def _idle(server: Served, count: int) -> Work:
    without: list[int] = []

    def run() -> float:
        _await_rest(server)
        # A broker keeps some memory after a round. If this memory were subtracted from the memory
        # in the next round, the result for the connections of that round would be too small. So the
        # smallest memory before any round so far is subtracted.
        without.append(memory_bytes(server.pid))
        before = min(without)
        with closing(Crowd(server.bootstrap, count)):
            _await_rest(server)
            taken = memory_bytes(server.pid) - before
        return taken / 1e6 * GOAL_CONNECTIONS / count

    return run


def _await_rest(server: Served) -> None:
    """Wait until a broker uses hardly any CPU time, e.g. after loading kernels; at most 8 s."""
    for _ in range(REST_TRIES):
        before = cpu_s(server.pid)
        time.sleep(RESTING_S)
        if cpu_s(server.pid) - before < RESTING_CPU_S:
            return


def loading(brokers: Brokers) -> Iterator[Case]:
    """Yield the cases: time to load all commits after a start, a loaded group's latency, memory."""
    folder, size = brokers.folder / "loading", brokers.size
    server = Ours(folder)
    folder.mkdir()
    write_offsets_topic(
        folder / "data",
        size_bytes=size.offsets_bytes,
        partitions=PARTITIONS,
        groups=GROUPS,
        places=PLACES,
    )
    tails, peaks = Series(), Series()

    def run() -> float:
        server.start()
        await_served(server)
        try:
            with MemoryWatch(server.pid) as watch:
                took_s, answers = _load(server)
            tails.add(at(answers, 99) if len(answers) > 1 else 0.0)
            peaks.add(watch.peak_bytes / 1e6)
            return took_s
        finally:
            server.stop()

    name = f"{size.offsets_bytes >> 20:,} MiB of __consumer_offsets"
    note = (
        f"{GROUPS:,} groups, commits of {PLACES} partitions, never compacted; the time begins when"
        " the broker serves requests"
    )
    yield figure(f"time to load {name}", "seconds", run, None, goal="ours <= 15", note=note)
    note = "OffsetFetch requests for a loaded group, one after the other"
    yield figure(f"{name}, p99 of responses while loading", "ms (p99)", tails, None, note=note)
    yield figure(f"{name}, memory", "MB", peaks, None, note="largest during the loading")


def _load(server: Served) -> tuple[float, list[float]]:
    """Return the seconds until all partitions are loaded, and a loaded group's response times."""
    left = list({partition_for(group_name(n), PARTITIONS): n for n in range(GROUPS)}.values())
    begun, took = time.perf_counter(), list[float]()
    with RawClient(server.bootstrap) as client:
        first = left.pop()
        while not _is_loaded(client, first):
            time.sleep(ASKING_S)
        while left:
            start = time.perf_counter()
            assert _is_loaded(client, first)
            took.append(time.perf_counter() - start)
            if _is_loaded(client, left[-1]):
                left.pop()
            else:
                time.sleep(ASKING_S)
        return time.perf_counter() - begun, took


def _is_loaded(client: RawClient, number: int) -> bool:
    topic = OffsetFetchTopic(name=TOPIC, partition_indexes=[PLACES - 1])
    request = OffsetFetchRequest(group_id=group_name(number), topics=[topic])
    told = client.ask(OFFSET_FETCH, 5, request)
    if told.error_code:
        return False
    assert told.topics[0].partitions[0].committed_offset == last_offset(number)
    return True
