"""Cells (kinds of load) of the broker's throughput benchmark, measured on one broker."""

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench import broker_wire as wire
from bench.broker_load import BatchShape, Reading, Replay
from bench.broker_servers import Served, Topics, address_of, cpu_s
from tidelog.record.builder import build_batch
from tidelog.types import Codec, NewRecord

WARM_UP_CALLS: Final = 2
RECORD_OVERHEAD: Final = 12
# librdkafka's limits for a batch: 10,000 records and 1,000,000 bytes before compression.
LARGE_BATCH_BYTES: Final = 1_000_000
LARGE_BATCH_RECORDS: Final = 10_000
# Default `batch.size` of the Java producer.
SMALL_BATCH_BYTES: Final = 16_384
LINES: Final = 997

Number = Callable[[], float]


class Series:
    """Figures that are recorded while another case is measured.

    Some quantities, such as CPU time, are measured while another case runs. A `Series` makes such a
    quantity a separate case, with a figure for each round. Each call of a `Series` returns the next
    recorded figure.
    """

    def __init__(self) -> None:
        self._values: list[float] = []
        self._next = 0

    def add(self, value: float) -> float:
        """Append a figure and return it."""
        self._values.append(value)
        return value

    def __call__(self) -> float:
        value = self._values[self._next % len(self._values)]
        self._next += 1
        return value

    def median(self) -> float:
        """Return the median without the warm-up calls."""
        return median(self._values[WARM_UP_CALLS:])


@dataclass(frozen=True, slots=True)
class Cell:
    """Kind of load: size of records, codec, number of partitions and size of batches."""

    record_bytes: int
    codec: Codec
    partitions: int
    small: bool = False

    @property
    def name(self) -> str:
        """Return the load's name in tables of results, e.g. 1 KB lz4, 16 partitions."""
        size = "1 KB" if self.record_bytes == 1024 else f"{self.record_bytes} B"
        codec = "uncompressed" if self.codec is Codec.NONE else self.codec.name.lower()
        end = "s" if self.partitions > 1 else ""
        batches = ", batches of 16 KB" if self.small else ""
        return f"{size} {codec}, {self.partitions} partition{end}{batches}"

    @property
    def batch_records(self) -> int:
        """Number of records in a batch.

        If `small` is false, batches are so large that a request with one batch for each partition
        has 1 MB.
        """
        if self.small:
            return SMALL_BATCH_BYTES // (self.record_bytes + RECORD_OVERHEAD)
        limit = LARGE_BATCH_BYTES // (self.record_bytes + RECORD_OVERHEAD)
        return min(LARGE_BATCH_RECORDS, limit) // self.partitions

    def batch(self) -> bytes:
        """Return a batch with the current time; a side sends this batch repeatedly."""
        now_ms = int(time.time() * 1000)
        values = lines(self.record_bytes)
        records = [
            NewRecord(value=values[n % LINES], timestamp=now_ms + n // 100)
            for n in range(self.batch_records)
        ]
        return bytes(build_batch(records, codec=self.codec))


def lines(size: int) -> list[bytes]:
    """Return values like lines of a log.

    Compression reduces the values to about a third of their size. All calls with the same `size`
    return the same values.
    """
    rng = random.Random(size)
    words = [rng.randbytes(4).hex().encode() for _ in range(64)]
    found = []
    for number in range(LINES):
        text = b'{"n":%d,' % number
        while len(text) < size:
            text += b'"%s":"%s",' % (rng.choice(words), rng.randbytes(4).hex().encode())
        found.append(text[:size])
    return found


@dataclass(slots=True)
class Side:
    """One broker's part of a cell (a kind of load): the current round's topic, and the figures."""

    server: Served
    topics: Topics
    cell: Cell
    batch: bytes
    volume_bytes: int
    produced: Series = field(default_factory=Series)
    produce_cpu: Series = field(default_factory=Series)
    consumed: Series = field(default_factory=Series)
    consume_cpu: Series = field(default_factory=Series)
    generator: Series = field(default_factory=Series)
    _round: int = 0
    _used: bool = True
    topic: str = ""

    @property
    def requests(self) -> int:
        """Number of requests of a round."""
        return max(1, self.volume_bytes // (len(self.batch) * self.cell.partitions))

    def renew(self) -> None:
        """If the last round's topic was written to, replace it by an empty topic."""
        if not self._used:
            return
        self.drop()
        self._round += 1
        self.topic = f"cell-{abs(hash(self.cell))}-{self._round}"
        self.topics.create(self.topic, self.cell.partitions)
        self._used = False

    def fill(self) -> None:
        """Write a round's load if the topic is empty."""
        if not self._used:
            self._replay()

    def drop(self) -> None:
        """Delete the topic of the last round, if any."""
        if self.topic:
            self.topics.drop(self.topic)

    @property
    def _size(self) -> int:
        return self.requests * len(self.batch) * self.cell.partitions

    def _replay(self) -> None:
        self._used = True
        request = wire.produce(self.topic, [self.batch] * self.cell.partitions)
        check = wire.Produced(self.topic, self.cell.partitions)
        with closing(Replay(address_of(self.server), request, check)) as replay:
            replay.run(self.requests)

    def produce(self) -> float:
        """Return MB per second written and acknowledged; the time includes connecting."""
        return self.produced.add(self._measured(self._replay, self.produce_cpu))

    def consume(self) -> float:
        """Return MB per second for reading everything that the last round wrote."""
        shape = BatchShape(len(self.batch), self.cell.batch_records)
        reading = Reading(address_of(self.server), self.topic, self.cell.partitions, shape)
        end = self.requests * self.cell.batch_records
        with closing(reading):
            figure = self._measured(lambda: reading.run(end), self.consume_cpu)
        return self.consumed.add(figure)

    def _measured(self, run: Callable[[], object], cpu: Series) -> float:
        cpu_before, own_before = cpu_s(self.server.pid), time.process_time()
        start = time.perf_counter()
        run()
        wall_s = time.perf_counter() - start
        own_s = time.process_time() - own_before
        cpu.add((cpu_s(self.server.pid) - cpu_before) / (self._size / 1e9))
        self.generator.add(own_s / wall_s)
        return self._size / 1e6 / wall_s


def geometric_mean(series: Sequence[Series]) -> Number:
    """Return a function that computes the geometric mean of the medians."""
    return lambda: math.exp(sum(math.log(one.median()) for one in series) / len(series))


def largest(series: Sequence[Series]) -> Number:
    """Return a function that computes the largest median."""
    return lambda: max(one.median() for one in series)
