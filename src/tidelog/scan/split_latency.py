"""Latency and lateness of single splits, and their combination to exact totals of a partition.

A split is first summarized as if the partition had no earlier records. The lateness computed in
this way can be wrong for the split's first records, which are called its head, but not for later
records. The head ends where the largest create time so far in the split reaches the largest create
time of the earlier splits. The create times of the first `HEAD_RECORDS` records are kept. Usually
the head is within these records, so `SplitTimes.recount` needs no read. The function `recount`
reads a longer head again. The function `correct` then replaces the counts of the head. Workers
return histograms as encoded arrays, because a split can have a thousand buckets per hour.

Imports numpy, pyarrow and numba.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tidelog.env import Env
from tidelog.errors import LostOffsets
from tidelog.lazy_dataclass import dataclass
from tidelog.record.kernels import times as kernels
from tidelog.record.kernels.layout import FULL
from tidelog.record.kernels.zones import BUCKET_MAX, BUCKETS
from tidelog.scan.latency_arrays import bucket_counts, distances
from tidelog.scan.reader import ReadOptions, read
from tidelog.scan.split import ScanStats, Split
from tidelog.storage.clocks.latency import LatencyByHour, LatencyHistogram
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.record.kernels.memory import Longs


_COLUMNS: Final = ("offset", "createTimestamp", "appendTimestamp")
_ROWS: Final = 65_536

# Number of create times that are kept from the start of a split. They take 16 KB.
HEAD_RECORDS: Final = 2048


class Mark(NamedTuple):
    """State of a split's summary after the first records of the split.

    Attributes:
        end_offset: Offset after the records counted so far.
        largest_ms: Largest create time of these records, INT64_MIN if there is none.
        late_ms_min: Smallest lateness of the late records since the previous mark, INT64_MAX if no
            record was late.
    """

    end_offset: int
    largest_ms: int
    late_ms_min: int


@dataclass(slots=True)
class Late:
    """Counts of the late records in a part of a partition.

    Attributes:
        histogram: Lateness in ms of the late records.
        lost: For each delay in ms, the number of records that are late by more than the delay.
    """

    histogram: LatencyHistogram = field(default_factory=LatencyHistogram)
    lost: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class SplitTimes:
    """Summary of the times of a split's records.

    Attributes:
        records: Number of data records.
        timed: Number of records with a create time.
        both: Number of records with a create time and an append time.
        by_append: Latencies by hour of append time.
        by_create: The same latencies by hour of create time.
        late: Late records, as if no record preceded the split.
        smallest_ms: Smallest create time, INT64_MAX if there is none.
        marks: Marks inside the split, ascending; the last mark is the end.
        head: Known create times of the records before the first mark, int64[n].
        log_bytes: Bytes read from log files.
        lost: Offsets that were missing at the time of the read, one line each.
    """

    records: int = 0
    timed: int = 0
    both: int = 0
    by_append: LatencyByHour = field(default_factory=LatencyByHour)
    by_create: LatencyByHour = field(default_factory=LatencyByHour)
    late: Late = field(default_factory=Late)
    smallest_ms: int = INT64_MAX
    marks: list[Mark] = field(default_factory=list)
    head: "Longs" = field(default_factory=lambda: np.empty(0, np.int64))
    log_bytes: int = 0
    lost: list[str] = field(default_factory=list)

    @property
    def largest_ms(self) -> int:
        """Largest create time, INT64_MIN if there is none."""
        return self.marks[-1].largest_ms if self.marks else INT64_MIN

    def head_end(self, largest_ms: int) -> int | None:
        """Return the end of the head, which has the records whose lateness depends on `largest_ms`.

        Args:
            largest_ms: The largest create time before the split.

        Returns:
            Offset after the last record of the head; None if no record's lateness depends on
            `largest_ms`.
        """
        if largest_ms <= self.smallest_ms:
            return None
        reached = (m.end_offset for m in self.marks if m.largest_ms >= largest_ms)
        return next(reached, self.marks[-1].end_offset)

    def recount(self, largest_ms: int, end_offset: int) -> tuple[Late, Late] | None:
        """Count the head's late records from the kept times.

        The result is the same as from the function `recount`. Return None if not all times of the
        head were kept, because the head is too long.
        """
        if end_offset != self.marks[0].end_offset:
            return None
        delays = list(self.late.lost)
        return late_of(self.head, delays), late_of(self.head, delays, largest_ms)


def late_of(create_ms: "Longs", delays_ms: Sequence[int], largest_ms: int = INT64_MIN) -> Late:
    """Return the counts of late records among a few records, given their create times.

    The result is the same as from `TimesCounter`. Unlike `TimesCounter`, this function uses no
    kernel, because a Spark driver may have no compiled kernels.

    Args:
        create_ms: Create times of the records, in the order of offsets.
        delays_ms: Watermark delays in ms; the records that each delay would drop are counted.
        largest_ms: Largest create time before these records.
    """
    before = np.maximum.accumulate(np.concatenate(([largest_ms], create_ms)))[:-1]
    is_late = create_ms < before
    late_ms, late = distances(before[is_late], create_ms[is_late]), Late()
    late.lost = {delay: int((late_ms > delay).sum()) for delay in delays_ms}
    if len(late_ms):
        late.histogram.add_buckets(dict(bucket_counts(late_ms)))
        late.histogram.min_ms = int(late_ms.min())
        late.histogram.max_ms = int(late_ms.max())
    return late


class TimesCounter:
    """Counts records in the order of their offsets. Only one thread may use it."""

    def __init__(self, delays_ms: Sequence[int], largest_ms: int = INT64_MIN) -> None:
        """Create a counter; `largest_ms` is the largest create time before the first record."""
        self._delays: Longs = np.array(sorted(delays_ms), np.int64)
        self._late = kernels.LateCounts(
            np.zeros(BUCKETS, np.int64), self._delays, np.zeros(len(self._delays) + 1, np.int64)
        )
        self._facts: Longs = np.zeros(kernels.FACTS, np.int64)
        self._facts[kernels.LATE_MIN] = self._facts[kernels.SMALLEST] = INT64_MAX
        self._facts[kernels.LATE_MAX] = INT64_MIN
        self._facts[kernels.LARGEST] = largest_ms
        self._hours = _Hours(), _Hours()
        self._late_ms_min = INT64_MAX
        self.records = 0

    def add(self, append_ms: "Longs", create_ms: "Longs") -> None:
        """Count the next records. Times are int64[n] in ms, -1 if unknown."""
        facts = self._facts
        facts[kernels.AT] = 0
        self.records += len(append_ms)
        status = FULL
        while status == FULL:
            by_append, by_create = (hours.counts for hours in self._hours)
            status = kernels.count_times(
                append_ms, create_ms, by_append, by_create, self._late, facts
            )
            if status == FULL:
                self._take()

    def mark(self, end_offset: int) -> Mark:
        """Return the state at this offset.

        The next mark's smallest lateness is measured from this offset on.
        """
        facts = self._facts
        late_ms_min = int(facts[kernels.LATE_MIN])
        self._late_ms_min = min(self._late_ms_min, late_ms_min)
        facts[kernels.LATE_MIN] = INT64_MAX
        return Mark(end_offset, int(facts[kernels.LARGEST]), late_ms_min)

    def late(self) -> Late:
        """Return the counts of late records so far."""
        facts = self._facts
        histogram = _histogram(self._late.buckets)
        histogram.min_ms = min(self._late_ms_min, int(facts[kernels.LATE_MIN]))
        histogram.max_ms = int(facts[kernels.LATE_MAX])
        lost = np.cumsum(self._late.passed[:0:-1])[::-1]
        return Late(histogram, dict(zip(self._delays.tolist(), lost.tolist(), strict=True)))

    def finish(self) -> SplitTimes:
        """Return the summary of all records."""
        self._take()
        return SplitTimes(
            records=self.records,
            timed=int(self._facts[kernels.TIMED]),
            both=int(self._facts[kernels.BOTH]),
            by_append=self._hours[0].latencies,
            by_create=self._hours[1].latencies,
            late=self.late(),
            smallest_ms=int(self._facts[kernels.SMALLEST]),
        )

    def _take(self) -> None:
        for hours in self._hours:
            hours.take()


class _Hours:
    """Latencies by hour of one clock: the kernel's arrays, and the histograms made from them."""

    def __init__(self) -> None:
        self.latencies = LatencyByHour()
        self._spans: Longs = np.zeros((kernels.SLOTS, kernels.SPAN_FIELDS), np.int64)
        self._buckets: Longs = np.zeros((kernels.SLOTS, BUCKETS), np.int64)
        self.counts = kernels.HourCounts(self.latencies.step_ms, self._spans, self._buckets)

    def take(self) -> None:
        """Move the kernel's counts to the histograms, and clear the arrays."""
        step_ms = self.counts.step_ms
        for slot in np.flatnonzero(self._spans[:, kernels.SPAN_COUNT]).tolist():
            span = self._spans[slot].tolist()
            histogram = _histogram(self._buckets[slot])
            histogram.min_ms, histogram.max_ms = span[kernels.SPAN_MIN], span[kernels.SPAN_MAX]
            self.latencies.at(span[kernels.SPAN] * step_ms).merge(histogram)
            self._buckets[slot] = 0
        self._spans[:] = 0
        self.counts = kernels.HourCounts(self.latencies.step_ms, self._spans, self._buckets)


def _histogram(buckets: "Longs") -> LatencyHistogram:
    histogram = LatencyHistogram()
    filled = np.flatnonzero(buckets)
    numbers, counts = (filled - BUCKET_MAX).tolist(), buckets[filled].tolist()
    histogram.add_buckets(dict(zip(numbers, counts, strict=True)))
    return histogram


def reduce_split(split: Split, delays_ms: Sequence[int], env: Env | None = None) -> SplitTimes:
    """Read a split and summarize its times, as if no record preceded it.

    Args:
        split: The split.
        delays_ms: Watermark delays in ms; the records that each delay would drop are counted.
        env: Files, if they are not the machine's.

    Raises:
        CorruptData: A batch is damaged.
    """
    stats = ScanStats()
    counter, marks, head = TimesCounter(delays_ms), [], None
    for offsets, append_ms, create_ms in _times(split, env, stats):
        cut = 0
        if head is None:
            cut = min(HEAD_RECORDS, len(offsets))
            head = create_ms[:cut]
            counter.add(append_ms[:cut], head)
            marks.append(counter.mark(int(offsets[cut - 1]) + 1))
        if cut < len(offsets):
            counter.add(append_ms[cut:], create_ms[cut:])
            marks.append(counter.mark(int(offsets[-1]) + 1))
    times = counter.finish()
    if head is not None:
        times.head = head[head != NO_TIMESTAMP]
    times.marks, times.log_bytes = marks, stats.log_bytes
    times.lost = [_text(one) for one in stats.lost]
    return times


def recount(
    split: Split,
    delays_ms: Sequence[int],
    largest_ms: int,
    end_offset: int,
    env: Env | None = None,
) -> tuple[Late, Late]:
    """Return two counts of the late records in a split's head; see `correct`.

    The first count ignores the records before the split; the second count takes them into account.

    Args:
        split: The split.
        delays_ms: See `reduce_split`.
        largest_ms: Largest create time before the split.
        end_offset: Offset after the head.
        env: Files, if they are not the machine's.
    """
    alone, behind = TimesCounter(delays_ms), TimesCounter(delays_ms, largest_ms)
    for offsets, append_ms, create_ms in _times(split, env, ScanStats()):
        count = int(np.searchsorted(offsets, end_offset))
        for counter in (alone, behind):
            counter.add(append_ms[:count], create_ms[:count])
        if count < len(offsets) or int(offsets[-1]) + 1 >= end_offset:
            break
    return alone.late(), behind.late()


def _times(
    split: Split, env: Env | None, stats: ScanStats
) -> Iterator[tuple["Longs", "Longs", "Longs"]]:
    """Yield offsets, append times and create times of a split's rows, batch by batch."""
    options = ReadOptions(rows=_ROWS, fail_on_data_loss=False, env=env)
    for batch in read(split, _COLUMNS, options=options, stats=stats):
        if batch.num_rows:
            offsets = np.asarray(batch.column("offset"))
            append, create = batch.column("appendTimestamp"), batch.column("createTimestamp")
            yield offsets, _as_ms(append), _as_ms(create)


def _as_ms(column: "pa.Array[pa.Scalar[pa.DataType]]") -> "Longs":
    import pyarrow as pa

    numbers = column.cast(pa.int64())
    filled = numbers.fill_null(NO_TIMESTAMP) if numbers.null_count else numbers
    milliseconds: Longs = np.asarray(filled, np.int64)
    milliseconds = milliseconds.view()
    milliseconds.flags.writeable = False  # so that the kernel is compiled for one array type only
    return milliseconds


def _text(lost: LostOffsets) -> str:
    return str(lost)


def correct(times: SplitTimes, alone: Late, behind: Late, end_offset: int) -> Late:
    """Return a split's counts of late records, with the head's counts corrected.

    `alone` and `behind` are the results of `recount`: two counts of the late records of the head.
    `alone` ignores the records before the split, and `behind` takes them into account.
    """
    late = Late(LatencyHistogram(), {})
    for bucket, count in times.late.histogram.buckets.items():
        rest = count - alone.histogram.buckets.get(bucket, 0)
        if rest:
            late.histogram.add_bucket(bucket, rest)
    rest_min = (m.late_ms_min for m in times.marks if m.end_offset > end_offset)
    late.histogram.min_ms = min(rest_min, default=INT64_MAX)
    late.histogram.max_ms = times.late.histogram.max_ms  # a correction never decreases lateness
    late.histogram.merge(behind.histogram)
    late.lost = {
        delay: number - alone.lost[delay] + behind.lost[delay]
        for delay, number in times.late.lost.items()
    }
    return late


_LONG: Final = np.dtype("<i8")
_BUCKET: Final = np.dtype("<i2")

# Encoded latencies: length of a span, number of spans, bytes of a count; then for each span its
# first ms, smallest and largest latency, and number of buckets; then all buckets; then all counts.
_HEAD_FIELDS: Final = 3

_SPAN_FIELDS: Final = 4


def encode_times(times: SplitTimes) -> tuple[str, bytes, bytes, bytes, bytes]:
    """Encode a split's summary: JSON, three histograms, create times of its head."""
    facts = {
        "records": times.records,
        "timed": times.timed,
        "both": times.both,
        "smallest_ms": times.smallest_ms,
        "marks": times.marks,
        "log_bytes": times.log_bytes,
        "lost": times.lost,
        "late": _lost_pairs(times.late.lost),
    }
    return (
        json.dumps(facts),
        encode_hours(times.by_append),
        encode_hours(times.by_create),
        _encode_histogram(times.late.histogram),
        times.head.astype(_LONG).tobytes(),
    )


def decode_times(
    facts: str, by_append: bytes, by_create: bytes, late: bytes, head: bytes
) -> SplitTimes:
    """Decode the result of `encode_times`."""
    numbers: Mapping[str, int] = (parsed := json.loads(facts))
    return SplitTimes(
        records=numbers["records"],
        timed=numbers["timed"],
        both=numbers["both"],
        by_append=decode_hours(by_append),
        by_create=decode_hours(by_create),
        late=Late(_decode_histogram(late), dict(parsed["late"])),
        smallest_ms=numbers["smallest_ms"],
        marks=[Mark(*mark) for mark in parsed["marks"]],
        head=_longs(head),
        log_bytes=numbers["log_bytes"],
        lost=parsed["lost"],
    )


def encode_late(late: Late) -> tuple[str, bytes]:
    """Encode late records: JSON and a histogram."""
    return json.dumps(_lost_pairs(late.lost)), _encode_histogram(late.histogram)


def decode_late(lost: str, histogram: bytes) -> Late:
    """Decode the result of `encode_late`."""
    return Late(_decode_histogram(histogram), dict(json.loads(lost)))


def encode_hours(hours: LatencyByHour) -> bytes:
    """Encode latencies by hour."""
    spans: list[tuple[int, int, int, int]] = []
    buckets: list[int] = []
    counts: list[int] = []
    for hour_ms, histogram in hours.items():
        spans.append((hour_ms, histogram.min_ms, histogram.max_ms, len(histogram.buckets)))
        buckets += histogram.buckets
        counts += histogram.buckets.values()
    size = _bytes_for(max(counts, default=0))
    head = np.array((hours.step_ms, len(spans), size), _LONG)
    facts = np.array(spans, _LONG)
    return b"".join(
        (
            head.tobytes(),
            facts.tobytes(),
            np.array(buckets, _BUCKET).tobytes(),
            np.array(counts, f"<u{size}").tobytes(),
        )
    )


def decode_hours(data: bytes) -> LatencyByHour:
    """Decode the result of `encode_hours`."""
    step_ms, span_count, size = _longs(data, _HEAD_FIELDS).tolist()
    at = _HEAD_FIELDS * _LONG.itemsize
    spans = _longs(data, span_count * _SPAN_FIELDS, at).reshape(span_count, _SPAN_FIELDS)
    at += spans.nbytes
    total = int(spans[:, -1].sum())
    buckets = np.frombuffer(data, _BUCKET, total, at).tolist()
    counts = np.frombuffer(data, f"<u{size}", total, at + total * _BUCKET.itemsize).tolist()
    by_hour, start = LatencyByHour(step_ms), 0
    for hour_ms, low, high, length in spans.tolist():
        end = start + length
        histogram = by_hour.at(hour_ms)
        histogram.add_buckets(dict(zip(buckets[start:end], counts[start:end], strict=True)))
        histogram.min_ms, histogram.max_ms = low, high
        start = end
    return by_hour


def _encode_histogram(histogram: LatencyHistogram) -> bytes:
    """Encode one histogram as latencies of a single hour."""
    hours = LatencyByHour()
    if histogram.count:
        hours.at(0).merge(histogram)
    return encode_hours(hours)


def _decode_histogram(data: bytes) -> LatencyHistogram:
    return decode_hours(data).total()


def _bytes_for(largest: int) -> int:
    """Return the size in bytes of an unsigned integer that can hold `largest`: 2, 4 or 8."""
    return next(size for size in (2, 4, 8) if largest < 1 << (8 * size))


def _longs(data: bytes, count: int = -1, at: int = 0) -> "Longs":
    numbers: Longs = np.frombuffer(data, _LONG, count, at)
    return numbers


def _lost_pairs(lost: Mapping[int, int]) -> list[tuple[int, int]]:
    return list(lost.items())
