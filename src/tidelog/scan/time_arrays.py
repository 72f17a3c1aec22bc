"""Times of Arrow batches as arrays, and the buckets of `tidelog.storage.latency` for many at once.

Imports numpy: reached only where records are read.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.storage.latency import EXACT_LIMIT, PER_DOUBLING
from tidelog.types import INT64_MAX

Longs = npt.NDArray[np.int64]


def both_times(batch: pa.RecordBatch) -> tuple[Longs, Longs]:
    """Append times and create times in ms of the rows that have both."""
    append, create = batch.column("appendTimestamp"), batch.column("createTimestamp")
    if append.null_count or create.null_count:
        batch = batch.filter(pc.and_(pc.is_valid(append), pc.is_valid(create)))
        append, create = batch.column("appendTimestamp"), batch.column("createTimestamp")
    return _as_ms(append), _as_ms(create)


def create_times(batch: pa.RecordBatch) -> Longs:
    """Create times in ms of the rows that have one."""
    return _as_ms(batch.column("createTimestamp").drop_null())


def _as_ms(column: "pa.Array[pa.Scalar[pa.DataType]]") -> Longs:
    found: Longs = np.asarray(column.cast(pa.int64()), np.int64)
    return found


def distances(later: Longs, earlier: Longs) -> Longs:
    """Later - earlier, held within 63 bits; `later` is not negative."""
    found: Longs = later - np.maximum(earlier, -(2**62))
    return np.where(earlier < -(2**62), INT64_MAX, found)


def bucket_counts(latencies: Longs) -> list[tuple[int, int]]:
    """(bucket, how many) for latencies in ms, as `bucket_of` says for each."""
    buckets, counts = np.unique(buckets_of(latencies), return_counts=True)
    return list(zip(buckets.tolist(), counts.tolist(), strict=True))


def buckets_of(latencies: Longs) -> Longs:
    """`tidelog.storage.latency.bucket_of` for many: int64[n] -> int64[n]."""
    size: Longs = np.abs(latencies)
    bits: Longs = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    bits = np.where(size >> np.clip(bits - 1, 0, 62) == 0, bits - 1, bits)  # rounded up by float64
    doublings: Longs = np.maximum(bits - 6, 0)
    large: Longs = PER_DOUBLING * doublings + (size >> doublings)
    found: Longs = np.where(size >= EXACT_LIMIT, large, size)
    return np.where(latencies >= 0, found, -found)
