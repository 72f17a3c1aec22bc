"""How late the records of a batch came, counted by buckets.

Source: docs/format.md#record.
"""

from tidelog.record.kernels.arithmetic import add_wrapping
from tidelog.record.kernels.compiler import kernel
from tidelog.record.kernels.decode import parse_record
from tidelog.record.kernels.layout import BAD_COUNT, BAD_RECORD, BAD_REST, DONE
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.record.kernels.varints import POISON
from tidelog.record.record import RECORD_SIZE_MIN

# Larger latencies count as this one, in ms (2,200 years), so that no sum leaves 63 bits.
LATENCY_MAX = 1 << 46


@kernel
def count_latencies(
    body: Bytes,
    record_count: int,
    base_timestamp: int,
    append_ms: int,
    bounds: Longs,
    counts: Longs,
) -> tuple[int, int, int]:
    """Count append time less create time of the `record_count` records that fill `body`.

    Records without a create time, or with one below 0, are left out.

    Shape:
        bounds: int64[n], upper bound of each bucket in ms, inclusive, ascending.
        counts: int64[n + 1], counted up; the last one is for what lies above all bounds.

    Returns:
        A status (DONE, BAD_COUNT, BAD_RECORD, BAD_REST), the place concerned, and the sum of the
        latencies in ms. Unless the status is DONE some of the records may be counted.
    """
    total, at, end = 0, 0, body.size
    if record_count < 0 or record_count * RECORD_SIZE_MIN > end:
        return BAD_COUNT, 0, total
    for _ in range(record_count):
        after, time_delta, _, _, _, _, _, _ = parse_record(body, at, end)
        if after == POISON:
            return BAD_RECORD, at, total
        at = after
        timestamp = add_wrapping(base_timestamp, time_delta)
        if timestamp >= 0:
            latency = min(max(append_ms - timestamp, -LATENCY_MAX), LATENCY_MAX)
            slot = 0
            while slot < bounds.size and latency > bounds[slot]:
                slot += 1
            counts[slot] += 1
            total += latency
    return DONE if at == end else BAD_REST, at, total
