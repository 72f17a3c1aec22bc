"""Division of a job's offsets into chunks, and the limit of a job's rate.

`replay` uses the whole module; `lag` and `mirror` use single functions.

The spans of offsets are planned once, when a replay starts. Each chunk has offsets of every
partition that is not finished. The number of a partition's offsets in the next chunk is
proportional to the number of its remaining offsets, so all partitions end at about the same time.
In a chunk, the offsets of a partition are from only one of its spans. So a chunk never contains the
offsets between two spans, which must not be replayed.

The limited rate is the average number of records or bytes per second since the start of the replay.
Before each chunk, the pacer waits until this average is at most the limit. So the replay is never
ahead of the limit by more than one chunk.

This module does no I/O. The clock and the wait function are arguments, so tests need not wait.
"""

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from tidelog.env import Clock
from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.offset_ranges import OffsetRange
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_TEXT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)\s*/\s*s")

_UNITS: Final = {
    "B": 1,
    "kB": 1_000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}

_RECORDS: Final = ("", "records", "record")


@dataclass(frozen=True, slots=True)
class Rate:
    """Limit of a job's rate.

    Attributes:
        per_second: Number of records or bytes per second, above 0.
        is_bytes: Whether bytes (of keys and values) are limited instead of records.
    """

    per_second: float
    is_bytes: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `50000/s`, `50000 records/s` or `10 MB/s`; raises InvalidRequest for other text."""
        match = _TEXT.fullmatch(text.strip())
        unit = match[2] if match else ""
        if match is None or (unit not in _UNITS and unit not in _RECORDS) or not float(match[1]):
            units = ", ".join(f"{name}/s" for name in _UNITS)
            raise InvalidRequest(f"rate {text!r}: write records as 50000/s, or bytes in {units}")
        return cls(float(match[1]) * _UNITS.get(unit, 1), is_bytes=unit in _UNITS)

    def __str__(self) -> str:
        return f"{self.per_second:,.0f} {'bytes' if self.is_bytes else 'records'}/s"


def wait_seconds(seconds: float) -> None:
    """Sleep for some seconds; a signal can interrupt the sleep."""
    threading.Event().wait(seconds)


class Pacer:
    """Limits a job to a rate. Not thread-safe."""

    def __init__(
        self, rate: Rate | None, clock: Clock, wait: Callable[[float], None] = wait_seconds
    ) -> None:
        """Create the pacer. The average rate is computed from this moment on.

        Args:
            rate: The limit; None for no limit.
            clock: Clock of the monotonic time.
            wait: Function that waits for a number of seconds.
        """
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._start_ms = clock.monotonic_ms()
        self._used = 0

    def note(self, records: int, size_bytes: int) -> None:
        """Add to the amount that was written: bytes if the rate is in bytes, otherwise records."""
        if self._rate is not None:
            self._used += size_bytes if self._rate.is_bytes else records

    def hold(self) -> float:
        """Wait until the average since the start is within the limit; return the seconds waited."""
        if self._rate is None:
            return 0.0
        due_ms = self._start_ms + 1000 * self._used / self._rate.per_second
        seconds = max((due_ms - self._clock.monotonic_ms()) / 1000, 0.0)
        if seconds:
            self._wait(seconds)
        return seconds


# Planned duration of a chunk in seconds, at the requested rate. Each chunk is one Spark job with an
# overhead of some tenths of a second, so chunks must not be too short. Inside a chunk the rate is
# not limited, so chunks must not be too long.
CHUNK_SECONDS: Final = 2.0

# Approximate maximum number of offsets in a chunk. Without a rate limit, chunks have about this
# number of offsets. A restarted replay may write one chunk again, and smaller chunks limit this
# repeated work.
CHUNK_RECORDS: Final = 2_000_000

# Record size in bytes that is assumed before the first chunk is written.
RECORD_BYTES: Final = 1_000

Spans: TypeAlias = tuple[OffsetRange, ...]


def total(spans: Iterable[OffsetRange]) -> int:
    """Return the number of offsets in all spans."""
    return sum(span.offsets for span in spans)


def take(left: Sequence[OffsetRange], budget: int) -> tuple[Spans, Spans]:
    """Return the next chunk, and the spans that remain after it.

    Args:
        left: Remaining spans, in ascending order within each partition.
        budget: Approximate number of offsets in the chunk. The chunk has at least one offset of
            each partition in `left`.
    """
    by_partition: dict[TopicPartition, list[OffsetRange]] = {}
    for span in left:
        by_partition.setdefault(span.partition, []).append(span)
    everything = max(total(left), 1)
    chunk: list[OffsetRange] = []
    rest: list[OffsetRange] = []
    for spans in by_partition.values():
        share = max(1, budget * total(spans) // everything)
        first = spans[0]
        middle = min(first.start + share, first.end)
        chunk.append(first._replace(end=middle))
        behind = first._replace(start=middle)
        rest += [behind, *spans[1:]] if behind.offsets else spans[1:]
    return tuple(chunk), tuple(rest)


def chunk_budget(rate: Rate | None, records: int, size_bytes: int) -> int:
    """Return the approximate number of offsets for the next chunk.

    Args:
        rate: The limit; None for no limit.
        records: Number of records written so far.
        size_bytes: Size in bytes of the keys and values of these records.
    """
    if rate is None:
        return CHUNK_RECORDS
    per_record = 1.0
    if rate.is_bytes:
        per_record = max(size_bytes / records, 1.0) if records else RECORD_BYTES
    return max(1, min(int(rate.per_second * CHUNK_SECONDS / per_record), CHUNK_RECORDS))


def joined(spans: Iterable[OffsetRange]) -> Spans:
    """Return the spans ordered by partition and offset, without empty spans.

    Adjacent or overlapping spans are merged.
    """
    merged: list[OffsetRange] = []
    for span in sorted(span for span in spans if span.start < span.end):
        last = merged[-1] if merged else None
        if last is not None and last.partition == span.partition and span.start <= last.end:
            merged[-1] = last._replace(end=max(last.end, span.end))
        else:
            merged.append(span)
    return tuple(merged)


def as_json(spans: Iterable[OffsetRange]) -> list[list[object]]:
    """Return spans as lists for JSON."""
    return [[one.partition.topic, one.partition.partition, one.start, one.end] for one in spans]


def from_json(rows: object) -> Spans:
    """Convert the lists of `as_json` to spans; raises ValueError for anything else."""
    if not isinstance(rows, list):
        raise ValueError(f"spans are {type(rows).__name__}, not a list")
    return tuple(_span(row) for row in rows)


def _span(row: object) -> OffsetRange:
    match row:
        case [str(topic), int(number), int(start), int(end)] if 0 <= start <= end and number >= 0:
            return OffsetRange(TopicPartition(topic, number), start, end)
    raise ValueError(f"invalid span {str(row)[:80]}: expected [topic, partition, start, end]")


def offsets_options(spans: Sequence[OffsetRange]) -> dict[str, str]:
    """Return the options with which the Spark source reads exactly these offsets.

    Args:
        spans: The offsets; at most one span for each partition.
    """
    topics: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for name, start, end in spans:
        topics.setdefault(name.topic, []).append(name.partition)
        starts.setdefault(name.topic, {})[str(name.partition)] = start
        ends.setdefault(name.topic, {})[str(name.partition)] = end
    return {
        "assign": json.dumps(topics),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


def thinned(spans: Sequence[OffsetRange], per_partition: int) -> Spans:
    """Fill the smallest gaps between spans until no partition has more than `per_partition` spans.

    Each chunk is a separate Spark job, and a chunk never spans a gap. So it is faster to read a
    small gap and to filter out its records than to run two jobs, one before and one after the gap.
    """
    by_partition: dict[TopicPartition, list[OffsetRange]] = {}
    for span in joined(spans):
        by_partition.setdefault(span.partition, []).append(span)
    return tuple(
        span
        for of_partition in by_partition.values()
        for span in _with_holes(of_partition, per_partition - 1)
    )


def _with_holes(spans: list[OffsetRange], holes: int) -> Iterable[OffsetRange]:
    sizes = sorted(
        range(1, len(spans)), key=lambda at: spans[at].start - spans[at - 1].end, reverse=True
    )
    cuts = [0, *sorted(sizes[:holes]), len(spans)]
    for first, behind in itertools.pairwise(cuts):
        yield spans[first]._replace(end=spans[behind - 1].end)


Transform = Callable[["DataFrame"], "DataFrame"]
