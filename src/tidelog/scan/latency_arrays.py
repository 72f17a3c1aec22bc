"""Latencies of Arrow batches: both times of their records, differences, and counts by bucket.

Imports numpy.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.storage.clocks.latency import EXACT_LIMIT, PER_DOUBLING
from tidelog.types import INT64_MAX

Longs = npt.NDArray[np.int64]


def rows_with(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return the rows that have a value in a column."""
    column = batch.column(name)
    return batch.filter(column.is_valid()) if column.null_count else batch


def timed_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that have both an append time and a create time."""
    return rows_with(rows_with(batch, "appendTimestamp"), "createTimestamp")


def both_times(batch: pa.RecordBatch) -> tuple[Longs, Longs]:
    """Return append times and create times in ms of the rows that have both."""
    rows = timed_rows(batch)
    return _as_ms(rows.column("appendTimestamp")), _as_ms(rows.column("createTimestamp"))


def create_times(batch: pa.RecordBatch) -> Longs:
    """Return the create times in ms of the rows that have a create time."""
    return _as_ms(batch.column("createTimestamp").drop_null())


def _as_ms(column: "pa.Array[pa.Scalar[pa.DataType]]") -> Longs:
    numbers: Longs = np.asarray(column.cast(pa.int64()), np.int64)
    return numbers


def distances(later: Longs, earlier: Longs) -> Longs:
    """Return `later` minus `earlier`, limited to INT64_MAX. `later` must not be negative."""
    distance: Longs = later - np.maximum(earlier, later - INT64_MAX)
    return distance


def bucket_counts(latencies: Longs) -> list[tuple[int, int]]:
    """Return pairs (bucket, count) for latencies in ms; `bucket_of` defines the buckets."""
    buckets, counts = np.unique(buckets_of(latencies), return_counts=True)
    return list(zip(buckets.tolist(), counts.tolist(), strict=True))


def buckets_of(latencies: Longs) -> Longs:
    """Return the bucket of each latency: int64[n] -> int64[n].

    The buckets are those of `tidelog.storage.clocks.latency.bucket_of`.
    """
    size: Longs = np.abs(latencies)
    bits: Longs = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    bits = np.where(size >> np.clip(bits - 1, 0, 62) == 0, bits - 1, bits)  # float64 had rounded up
    doublings: Longs = np.maximum(bits - 6, 0)
    large: Longs = PER_DOUBLING * doublings + (size >> doublings)
    buckets: Longs = np.where(size >= EXACT_LIMIT, large, size)
    return np.where(latencies >= 0, buckets, -buckets)
