"""Latency histograms of produced records, counted from the logs outside the append path.

Each record of a batch has its own create time. Reading all of them would slow each append more than
all other metrics together. So a scrape starts a thread that reads the records appended since the
last scrape, some MB at a time. Records that retention deletes before a scrape are not counted.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptRecord, TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT
from tidelog.server import kernels
from tidelog.server.runtime.counters import LATENCY_BUCKETS_S
from tidelog.server.runtime.threads import Work
from tidelog.storage.log.record_rules import walk_body, wrapped_sum
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.slices import checked_records, slices
from tidelog.storage.segment.time_search import stamped_ms
from tidelog.types import Buffer, TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from tidelog.server.metrics.exposition import MetricsSource


BOUNDS_MS: Final = tuple(round(1000 * bound) for bound in LATENCY_BUCKETS_S)

# Number of bytes that a thread reads at a time.
_BYTES_AT_ONCE: Final = 4 << 20

# Time in ms after which a scrape stops counting. The remaining records are counted for the next
# scrape.
_BUDGET_MS: Final = 2_000

# Number of partitions examined before other tasks of the event loop may run.
_PARTITIONS_AT_ONCE: Final = 256

_LATENCY_MAX: Final = 1 << 46


@dataclass(slots=True)
class Span:
    """Latency counts of a range of offsets of one log.

    Attributes:
        end: End of the range (exclusive).
        counts: Counts by bucket.
        total_ms: Sum of the latencies.
    """

    end: int
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    total_ms: int = 0

    def add(self, counts: Sequence[int], total_ms: int) -> None:
        """Add the counts of one batch."""
        self.counts = [one + other for one, other in zip(self.counts, counts, strict=True)]
        self.total_ms += total_ms


def count_span(segments: Sequence[Segment], start: int, end: int) -> Span:
    """Count latencies of records at offsets [start, end); stop after a few MB.

    This runs in a thread.
    """
    span, size = Span(end), 0
    count = _by_kernel if kernels.are_loaded() else _plainly
    try:
        for part in slices(segments, start, end):
            times = part.segment.append_times
            for position, batch in part.batches():
                if size >= _BYTES_AT_ONCE:
                    span.end = batch.base_offset
                    return span
                size += batch.size_bytes
                known_ms = times.time_at(batch.base_offset)
                append_ms = stamped_ms(batch) if known_ms is None else known_ms
                if append_ms is None or batch.is_control or batch.base_offset < start:
                    continue
                if isinstance(batch, RecordBatch):
                    body = batch.body(APPEND_DECOMPRESSION_LIMIT)
                    span.add(*count(body, batch.record_count, batch.base_timestamp, append_ms))
                else:
                    records = checked_records(part.segment, position, batch)
                    span.add(*count_times((one.timestamp for one in records), append_ms))
    except (TidelogError, OSError):
        span.end = end  # skips damaged or deleted records; readers get the error
    return span


def count_times(times: Iterable[int], append_ms: int) -> tuple[list[int], int]:
    """Return counts by bucket, and the sum in ms, for records with these create times."""
    counts, total = [0] * (len(BOUNDS_MS) + 1), 0
    for ms in times:
        if ms >= 0:
            latency = min(max(append_ms - ms, -_LATENCY_MAX), _LATENCY_MAX)
            counts[bisect_left(BOUNDS_MS, latency)] += 1
            total += latency
    return counts, total


def _plainly(
    body: Buffer, record_count: int, base_ms: int, append_ms: int
) -> tuple[Sequence[int], int]:
    frames = walk_body(body, record_count)
    times = (wrapped_sum(base_ms, frame.timestamp_delta) for frame in frames)
    return count_times(times, append_ms)


def _by_kernel(
    body: Buffer, record_count: int, base_ms: int, append_ms: int
) -> tuple[Sequence[int], int]:
    import numpy as np

    from tidelog.record.kernels.layout import DONE, REASONS
    from tidelog.record.kernels.times import count_latencies

    data = np.frombuffer(body, np.uint8)
    data.flags.writeable = False
    counts = np.zeros(len(BOUNDS_MS) + 1, np.int64)
    bounds = np.array(BOUNDS_MS, np.int64)
    status, at, total = count_latencies(data, record_count, base_ms, append_ms, bounds, counts)
    if status != DONE:
        raise CorruptRecord(REASONS[status], at=at)
    return counts.tolist(), total


class LatencyCounts:
    """Counts latencies of new records in open logs, and remembers how far each log is counted.

    Used only in the event loop's thread.
    """

    def __init__(self, facts: "MetricsSource", work: Work) -> None:
        """Create an instance that has counted nothing."""
        self._facts = facts
        self._work = work
        # Topic id of each log, and the offset (exclusive) up to which the log is counted.
        self._counted: Mapping[TopicPartition, tuple[UUID | None, int]] = {}

    async def count(self) -> None:
        """Count the records appended since the last call, as far as a time limit allows."""
        clock, topics = self._facts.clock, self._facts.counters.topics
        deadline_ms = clock.monotonic_ms() + _BUDGET_MS
        counted: dict[TopicPartition, tuple[UUID | None, int]] = {}
        for number, partition in enumerate(list(self._facts.partitions())):
            if number % _PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            log = partition.log
            name, topic_id = log.topic_partition, log.context.topic_id
            tally = topics.get(name.topic)
            if tally is None:
                continue  # no client has produced to the topic
            counted_id, counted_end = self._counted.get(name, (None, log.opened_end_offset))
            start = counted_end if counted_id in {None, topic_id} else log.opened_end_offset
            end = log.log_end_offset
            start = min(max(start, log.log_start_offset), end)
            while start < end and clock.monotonic_ms() < deadline_ms:
                span = await self._work.run(count_span, log.segments, start, end)
                tally.latency.add(span.counts, span.total_ms / 1000)
                start = span.end
            counted[name] = (topic_id, start)
        self._counted = counted
