"""Histograms of latency (append time minus create time) by hour of the append time.

A negative latency means that the producer's clock was ahead; negative latencies are kept. Each hour
has a count, the exact smallest and largest latency, and buckets. Up to 63 ms, there is one bucket
for each ms. Above 63 ms, there are 32 buckets for each doubling of the latency. So the error of a
percentile is at most `RELATIVE_ERROR` of its value plus half a ms, and the percentile is between
the smallest and largest latency. If a segment has records of more than `HOURS_LIMIT` hours, its
latencies are grouped by 2, 4, ... hours. So memory is limited, whatever the records' times are.

A zone map (`.zones`) has the histograms as a section. Source: docs/format.md#zone-maps.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from tidelog.errors import CorruptIndex, CorruptRecord
from tidelog.record.coding import read_varint, read_varlong, write_varint, write_varlong
from tidelog.types import HOUR_MS, INT64_MAX, INT64_MIN, MINUTE_MS, Buffer

HOURS_LIMIT: Final = 2048

# Maximum relative error of a percentile: half a bucket's width, divided by the smallest value in
# the bucket.
RELATIVE_ERROR: Final = 1 / 64

# Columns of latency reports: `PERCENTS` has the percentiles, `LOST_SHARES` the shares of records
# that a watermark may lose.
PERCENTS: Final = (50.0, 90.0, 99.0, 99.9)

LOST_SHARES: Final = (0.0, 0.0001, 0.001, 0.01)

# Common watermark delays in ms, from none to a day.
DELAYS_MS: Final = (
    0,
    1_000,
    10_000,
    MINUTE_MS,
    10 * MINUTE_MS,
    60 * MINUTE_MS,
    24 * 60 * MINUTE_MS,
)

# Possible lengths in ms of a span of joined hours: parts of a day, then days and weeks.
_JOINED_MS: Final = tuple(
    HOUR_MS * hours for hours in (1, 2, 3, 4, 6, 8, 12, 24, 48, 168, 336, 672)
)

EXACT_LIMIT: Final = 64
PER_DOUBLING: Final = 32

# Bucket number of INT64_MAX. A negative latency is in bucket -n if its absolute value belongs to
# bucket n.
BUCKET_MAX: Final = 57 * PER_DOUBLING + 63

_HEAD: Final = struct.Struct(">qI")
_SPAN: Final = struct.Struct(">qqqqI")
HEAD_SIZE: Final = 12
SPAN_SIZE: Final = 36

assert _HEAD.size == HEAD_SIZE
assert _SPAN.size == SPAN_SIZE


def bucket_of(latency_ms: int) -> int:
    """Return the bucket number of a latency. A larger latency never has a smaller bucket number."""
    size = abs(latency_ms)
    if size >= EXACT_LIMIT:
        doublings = size.bit_length() - 6
        size = PER_DOUBLING * doublings + (size >> doublings)
    return size if latency_ms >= 0 else -size


def bucket_bounds(bucket: int) -> tuple[int, int]:
    """Return the smallest and the largest latency of a bucket in ms, both inclusive."""
    size = abs(bucket)
    low = high = size
    if size >= EXACT_LIMIT:
        doublings = size // PER_DOUBLING - 1
        low = (size - PER_DOUBLING * doublings) << doublings
        high = low + (1 << doublings) - 1
    return (low, high) if bucket >= 0 else (-high, -low)


def latency_of(append_ms: int, create_ms: int) -> int:
    """Return append time - create time in ms, limited to [-INT64_MAX, INT64_MAX]."""
    return max(-INT64_MAX, min(append_ms - create_ms, INT64_MAX))


class LatencyHistogram:
    """Histogram of latencies. Concurrent changes are not safe.

    Attributes:
        count: Number of latencies.
        min_ms: The exact smallest latency in ms; INT64_MAX without latencies.
        max_ms: The exact largest latency in ms; INT64_MIN without latencies.
        buckets: Number of latencies in each nonempty bucket, by bucket number (`bucket_bounds`).
    """

    __slots__ = ("buckets", "count", "max_ms", "min_ms")

    def __init__(self) -> None:
        self.count = 0
        self.min_ms = INT64_MAX
        self.max_ms = INT64_MIN
        self.buckets: dict[int, int] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return self._facts() == other._facts()

    __hash__ = None  # type: ignore[assignment] # it is mutable

    def __repr__(self) -> str:
        return f"LatencyHistogram(count={self.count}, min_ms={self.min_ms}, max_ms={self.max_ms})"

    def _facts(self) -> tuple[int, int, int, dict[int, int]]:
        return self.count, self.min_ms, self.max_ms, self.buckets

    def add(self, latency_ms: int, count: int = 1) -> None:
        """Add a latency `count` times."""
        self.add_bucket(bucket_of(latency_ms), count)
        self.min_ms = min(self.min_ms, latency_ms)
        self.max_ms = max(self.max_ms, latency_ms)

    def add_bucket(self, bucket: int, count: int) -> None:
        """Add `count` latencies of a bucket; the caller has to update `min_ms` and `max_ms`."""
        self.count += count
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def add_buckets(self, counts: Mapping[int, int]) -> None:
        """Add latencies to several buckets; each count must be above 0. See `add_bucket`."""
        self.count += sum(counts.values())
        if not self.buckets:
            self.buckets = dict(counts)
            return
        buckets = self.buckets
        for bucket, count in counts.items():
            buckets[bucket] = buckets.get(bucket, 0) + count

    def merge(self, other: "LatencyHistogram") -> None:
        """Add the latencies of `other`."""
        self.add_buckets(other.buckets)
        self.min_ms = min(self.min_ms, other.min_ms)
        self.max_ms = max(self.max_ms, other.max_ms)

    def percentile(self, percent: float) -> int | None:
        """Return the latency in ms that `percent` % of the latencies do not exceed.

        Return None if there are no latencies.

        The error of the result is at most `RELATIVE_ERROR` of its value plus half a ms. For 0 and
        100 percent the result is exact.
        """
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Sequence[float]) -> list[int | None]:
        """Return the percentile for each of `percents`; one call is faster than several."""
        assert all(0 <= percent <= 100 for percent in percents)
        if not self.count:
            return [None] * len(percents)
        buckets = sorted(self.buckets)
        cumulative = list(accumulate(map(self.buckets.__getitem__, buckets)))
        return [self._percentile(percent, buckets, cumulative) for percent in percents]

    def _percentile(self, percent: float, buckets: Sequence[int], cumulative: Sequence[int]) -> int:
        """Compute a percentile from the ascending buckets and their cumulative counts."""
        rank = max(1, -(-percent * self.count // 100))  # rounded up
        if rank == 1:
            return self.min_ms
        if rank >= self.count:
            return self.max_ms
        low, high = bucket_bounds(buckets[bisect_left(cumulative, rank)])
        return min(max((low + high) // 2, self.min_ms), self.max_ms)


class LatencyByHour(Mapping[int, LatencyHistogram]):
    """Latency histograms by hour of append time; a key is an hour's start in ms since 1970.

    Attributes:
        step_ms: Length of each span in ms. A span is an hour, or longer if there would be too many
            spans.
    """

    def __init__(self, step_ms: int = HOUR_MS) -> None:
        self.step_ms = step_ms
        self._spans: dict[int, LatencyHistogram] = {}  # by append time // step

    def __getitem__(self, hour_ms: int) -> LatencyHistogram:
        number, rest = divmod(hour_ms, self.step_ms)
        if rest:
            raise KeyError(hour_ms)
        return self._spans[number]

    def __iter__(self) -> Iterator[int]:
        return (number * self.step_ms for number in sorted(self._spans))

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, append_ms: int, latency_ms: int, count: int = 1) -> None:
        """Add a latency to the histogram of an append time's hour."""
        self.at(append_ms).add(latency_ms, count)

    def at(self, append_ms: int) -> LatencyHistogram:
        """Return the histogram of an append time's hour.

        The caller may add latencies of this hour to the histogram.
        """
        histogram = self._spans.get(append_ms // self.step_ms)
        if histogram is not None:
            return histogram
        while len(self._spans) >= HOURS_LIMIT:
            self.widen()
        return self._spans.setdefault(append_ms // self.step_ms, LatencyHistogram())

    def widen(self) -> None:
        """Double `step_ms`, and merge the spans that the same longer span covers."""
        narrow, self._spans = self._spans, {}
        self.step_ms *= 2
        for number, histogram in narrow.items():
            self._spans.setdefault(number // 2, LatencyHistogram()).merge(histogram)

    def merge(self, other: "LatencyByHour") -> None:
        """Add the latencies of `other`; if `other` has longer spans, the spans become as long."""
        while self.step_ms < other.step_ms:
            self.widen()
        for hour_ms, histogram in other.items():
            self.at(hour_ms).merge(histogram)

    def joined(self, limit: int) -> "LatencyByHour":
        """Return a copy with hours joined into at most `limit` spans; `limit` must be 2 or more.

        A limit of 1 could be impossible to meet, because no span contains times both before and
        after 1970.
        """
        steps = (step for step in _JOINED_MS if step % self.step_ms == 0)
        for step_ms in steps:
            if len({hour_ms // step_ms for hour_ms in self}) <= limit:
                joined = LatencyByHour(step_ms)
                for hour_ms, histogram in self.items():
                    joined.at(hour_ms).merge(histogram)
                return joined
        joined = LatencyByHour(self.step_ms)
        joined.merge(self)
        while len(joined) > limit:
            joined.widen()
        return joined

    def total(self) -> LatencyHistogram:
        """Return the histogram of all hours together."""
        total = LatencyHistogram()
        for histogram in self._spans.values():
            total.merge(histogram)
        return total

    def encode(self) -> bytes:
        """Encode the histograms as a section of a zone map.

        Spans are in ascending order. For each bucket, the difference from the previous bucket
        number is stored.
        """
        out = bytearray(_HEAD.pack(self.step_ms, len(self._spans)))
        for number, histogram in sorted(self._spans.items()):
            out += _SPAN.pack(
                number, histogram.count, histogram.min_ms, histogram.max_ms, len(histogram.buckets)
            )
            last = -BUCKET_MAX - 1
            for bucket in sorted(histogram.buckets):
                write_varint(out, bucket - last)
                write_varlong(out, histogram.buckets[bucket])
                last = bucket
        return bytes(out)

    @classmethod
    def decode(cls, data: Buffer) -> "LatencyByHour":
        """Decode the result of `encode`.

        Raises:
            CorruptIndex: The content is invalid. The error's `at` is relative to the section's
                first byte.
        """
        try:
            return _decode(bytes(data))
        except CorruptRecord as error:
            raise CorruptIndex(error.reason, at=error.at) from None


def _decode(data: bytes) -> LatencyByHour:
    if len(data) < HEAD_SIZE:
        raise CorruptIndex(
            f"a latency section of {len(data)} bytes, at least {HEAD_SIZE} expected", at=0
        )
    step_ms, count = _HEAD.unpack_from(data)
    if step_ms < HOUR_MS or count * SPAN_SIZE > len(data) - HEAD_SIZE:
        raise CorruptIndex(f"{count} spans of {step_ms} ms in {len(data)} bytes", at=0)
    by_hour, at = LatencyByHour(step_ms), HEAD_SIZE
    for _ in range(count):
        at = _decode_span(data, at, by_hour)
    if at != len(data) or len(by_hour) != count:
        raise CorruptIndex(f"{len(by_hour)} of {count} spans, {len(data) - at} bytes left", at=at)
    return by_hour


def _decode_span(data: bytes, at: int, by_hour: LatencyByHour) -> int:
    """Decode the span at position `at` into `by_hour`; return the position after the span."""
    if len(data) - at < SPAN_SIZE:
        raise CorruptIndex(f"a span in {len(data) - at} bytes, {SPAN_SIZE} expected", at=at)
    start = at
    number, count, low, high, bucket_count = _SPAN.unpack_from(data, at)
    at += SPAN_SIZE
    if bucket_count * 2 > len(data) - at or len(by_hour) >= HOURS_LIMIT:
        raise CorruptIndex(f"span {number} of {bucket_count} buckets", at=start)
    histogram = by_hour.at(number * by_hour.step_ms)
    bucket = -BUCKET_MAX - 1
    for _ in range(bucket_count):
        step, at = read_varint(data, at, len(data))
        counted, at = read_varlong(data, at, len(data))
        bucket += step
        if step <= 0 or bucket > BUCKET_MAX or counted <= 0:
            raise CorruptIndex(f"bucket {bucket} of {counted} latencies", at=at)
        histogram.add_bucket(bucket, counted)
    if histogram.count != count:
        raise CorruptIndex(f"span {number}: {histogram.count} of {count} latencies", at=start)
    histogram.min_ms, histogram.max_ms = low, high
    return at
