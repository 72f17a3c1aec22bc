"""The numbers of `split_times` as plain data, for the way from a worker to whoever joins them.

Both ends run the same release; histograms go as arrays, since there may be a thousand buckets for
each hour of each split. Imports numpy.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.scan.split_times import Late, Mark, SplitTimes
from tidelog.storage.latency import LatencyByHour, LatencyHistogram

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

_LONG: Final = np.dtype("<i8")
_BUCKET: Final = np.dtype("<i2")
# Length of a span, number of spans, bytes of a count; then of each span its first ms, smallest,
# largest, number of buckets; then all buckets; then all counts.
_HEAD_FIELDS: Final = 3
_SPAN_FIELDS: Final = 4


def encode_times(found: SplitTimes) -> tuple[str, bytes, bytes, bytes, bytes]:
    """A split's numbers as plain data: JSON, three histograms, create times of its head."""
    facts = {
        "records": found.records,
        "timed": found.timed,
        "both": found.both,
        "smallest_ms": found.smallest_ms,
        "marks": found.marks,
        "log_bytes": found.log_bytes,
        "lost": found.lost,
        "late": _lost_pairs(found.late.lost),
    }
    return (
        json.dumps(facts),
        encode_hours(found.by_append),
        encode_hours(found.by_create),
        _encode_histogram(found.late.histogram),
        found.head.astype(_LONG).tobytes(),
    )


def decode_times(
    facts: str, by_append: bytes, by_create: bytes, late: bytes, head: bytes
) -> SplitTimes:
    """What `encode_times` made."""
    known: Mapping[str, int] = (parsed := json.loads(facts))
    return SplitTimes(
        records=known["records"],
        timed=known["timed"],
        both=known["both"],
        by_append=decode_hours(by_append),
        by_create=decode_hours(by_create),
        late=Late(_decode_histogram(late), dict(parsed["late"])),
        smallest_ms=known["smallest_ms"],
        marks=[Mark(*mark) for mark in parsed["marks"]],
        head=_longs(head),
        log_bytes=known["log_bytes"],
        lost=parsed["lost"],
    )


def encode_late(late: Late) -> tuple[str, bytes]:
    """Late records as plain data."""
    return json.dumps(_lost_pairs(late.lost)), _encode_histogram(late.histogram)


def decode_late(lost: str, histogram: bytes) -> Late:
    """What `encode_late` made."""
    return Late(_decode_histogram(histogram), dict(json.loads(lost)))


def encode_hours(hours: LatencyByHour) -> bytes:
    """Latencies by hour."""
    spans: list[tuple[int, int, int, int]] = []
    buckets: list[int] = []
    counts: list[int] = []
    for hour_ms, found in hours.items():
        spans.append((hour_ms, found.min_ms, found.max_ms, len(found.buckets)))
        buckets += found.buckets
        counts += found.buckets.values()
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
    """What `encode_hours` made."""
    step_ms, span_count, size = _longs(data, _HEAD_FIELDS).tolist()
    at = _HEAD_FIELDS * _LONG.itemsize
    spans = _longs(data, span_count * _SPAN_FIELDS, at).reshape(span_count, _SPAN_FIELDS)
    at += spans.nbytes
    total = int(spans[:, -1].sum())
    buckets = np.frombuffer(data, _BUCKET, total, at).tolist()
    counts = np.frombuffer(data, f"<u{size}", total, at + total * _BUCKET.itemsize).tolist()
    found, start = LatencyByHour(step_ms), 0
    for hour_ms, low, high, length in spans.tolist():
        end = start + length
        histogram = found.at(hour_ms)
        histogram.add_buckets(dict(zip(buckets[start:end], counts[start:end], strict=True)))
        histogram.min_ms, histogram.max_ms = low, high
        start = end
    return found


def _encode_histogram(histogram: LatencyHistogram) -> bytes:
    """One histogram, as hours of latencies that have one hour."""
    hours = LatencyByHour()
    if histogram.count:
        hours.at(0).merge(histogram)
    return encode_hours(hours)


def _decode_histogram(data: bytes) -> LatencyHistogram:
    return decode_hours(data).total()


def _bytes_for(largest: int) -> int:
    """Bytes of an unsigned number that holds `largest`."""
    return next(size for size in (2, 4, 8) if largest < 1 << (8 * size))


def _longs(data: bytes, count: int = -1, at: int = 0) -> "Longs":
    found: Longs = np.frombuffer(data, _LONG, count, at)
    return found


def _lost_pairs(lost: Mapping[int, int]) -> list[tuple[int, int]]:
    return list(lost.items())
