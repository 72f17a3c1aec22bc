"""Computes append times of rows, flags overwritten create times, counts latencies and lateness.

From arrays of create and append times, `count_times` counts latencies for each span of time on
either clock, and late records for each bucket of lateness. Zone maps may already contain the
latencies. Zone maps never contain lateness, because lateness depends on the order of records. Plain
reference: `scan.latency`.

Source: docs/format.md#record.
"""

from typing import Final, NamedTuple

from tidelog.record.header import DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.integers import INVALID, add_wrapping, subtract_wrapping
from tidelog.record.kernels.layout import (
    ATTRIBUTES,
    BAD_COUNT,
    BAD_RECORD,
    BAD_REST,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BODY_END,
    BODY_START,
    CREATE_LOST,
    CREATE_STATE,
    DONE,
    FULL,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    RECORD_COUNT,
)
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.record.kernels.records import parse_record
from tidelog.record.kernels.zones import BUCKET_MAX, bucket_of, distance
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP


@kernel
def fill_append_times(offsets: Longs, run_starts: Longs, run_times: Longs, out: Longs) -> int:
    """Fill `out` with the append time of each offset: the time of its run, -1 before the first run.

    Shape:
        offsets: int64[rows]; fastest if ascending.
        run_starts: int64[runs], first offset of each run, ascending.
        run_times: int64[runs], append time in ms, -1 for unknown.
        out: int64[rows].

    Returns:
        The number of rows whose append time is -1.
    """
    rows, row, missing = offsets.size, 0, 0
    while row < rows:
        run = _count_starts(run_starts, offsets[row])
        start = run_starts[run - 1] if run > 0 else INT64_MIN
        end = run_starts[run] if run < run_starts.size else INT64_MAX
        time = run_times[run - 1] if run > 0 else NO_TIMESTAMP
        first = row
        out[row] = time
        row += 1
        while row < rows and start <= offsets[row] < end:
            out[row] = time
            row += 1
        missing += row - first if time == NO_TIMESTAMP else 0
    return missing


@inlined
def _count_starts(run_starts: Longs, offset: int) -> int:
    """Return the number of runs that begin at or before an offset, by binary search."""
    low, high = 0, run_starts.size
    while low < high:
        middle = (low + high) >> 1
        if run_starts[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def flag_overwritten_create_times(data: Bytes, table: Longs) -> None:
    """Set `CREATE_STATE` of the batches whose create times a foreign cleaner has overwritten.

    Kafka's cleaner writes the visible time into the records of a LogAppendTime batch. A batch is
    assumed to be written by Kafka's cleaner if it meets two conditions: it has gaps or a delete
    horizon, and all its create times equal the append time.

    Shape:
        data, table: See `decode_batches`.
    """
    for slot in range(table.shape[0]):
        if _may_be_rewritten(table, slot) and _all_creates_equal(data, table, slot):
            table[slot, CREATE_STATE] = CREATE_LOST


@inlined
def _may_be_rewritten(table: Longs, slot: int) -> bool:
    attributes = table[slot, ATTRIBUTES]
    if attributes & TIMESTAMP_TYPE_BIT == 0:
        return False
    span = table[slot, LAST_OFFSET] - table[slot, BASE_OFFSET] + 1
    has_horizon = attributes & DELETE_HORIZON_BIT != 0
    return bool(has_horizon or table[slot, RECORD_COUNT] != span)


@inlined
def _all_creates_equal(data: Bytes, table: Longs, slot: int) -> bool:
    """Whether all create times of a batch equal the append time.

    False if the body is damaged; the error is raised when the batch is decoded.
    """
    append_time = table[slot, MAX_TIMESTAMP]
    at, end = table[slot, BODY_START], table[slot, BODY_END]
    while at < end:
        at, time_delta, _, _, _, _, _, _ = parse_record(data, at, end)
        if at == INVALID or add_wrapping(table[slot, BASE_TIMESTAMP], time_delta) != append_time:
            return False
    return bool(append_time != NO_TIMESTAMP)


# Number of slots for spans of time, a power of two. The caller copies and clears the spans after
# FULL. A span's index determines the slot where the search for the span begins.
SLOTS: Final = 256

_PROBES: Final = 16
SPAN: Final = 0
SPAN_MIN: Final = 1
SPAN_MAX: Final = 2
SPAN_COUNT: Final = 3  # 0 marks a free slot
SPAN_FIELDS: Final = 4

# Indices in `facts`: the next record, and counts.
AT: Final = 0

BOTH: Final = 1  # records with a create time and an append time
TIMED: Final = 2  # records with a create time
LATE: Final = 3  # records with a smaller create time than a record before them
LATE_MIN: Final = 4
LATE_MAX: Final = 5
# Largest create time. The caller initializes it with the largest create time of all records before
# the first counted record.
LARGEST: Final = 6
SMALLEST: Final = 7
FACTS: Final = 8


class HourCounts(NamedTuple):
    """Latencies for each span of time on one clock; the caller copies and clears them.

    Attributes:
        step_ms: Length of a span in ms.
        spans: int64[SLOTS, SPAN_FIELDS]: index of the span, smallest and largest latency in ms,
            number of latencies.
        buckets: int64[SLOTS, BUCKETS]: number of latencies in each bucket.
    """

    step_ms: int
    spans: Longs
    buckets: Longs


class LateCounts(NamedTuple):
    """Counts of late records.

    Attributes:
        buckets: int64[BUCKETS]: number of late records by bucket of their lateness in ms.
        delays: int64[d], ascending, in ms.
        passed: int64[d + 1]: element k is the number of records whose lateness exceeds exactly k of
            the delays.
    """

    buckets: Longs
    delays: Longs
    passed: Longs


@kernel
def count_times(
    append_ms: Longs,
    create_ms: Longs,
    by_append: HourCounts,
    by_create: HourCounts,
    late: LateCounts,
    facts: Longs,
) -> int:
    """Count records from `facts[AT]` on, in order.

    Shape:
        append_ms, create_ms: int64[n], -1 for unknown.
        facts: int64[FACTS].

    Returns:
        DONE, or FULL if the spans of one clock are full. After FULL, the caller clears the spans of
        both clocks and calls again.
    """
    number, largest = facts[AT], facts[LARGEST]
    smallest, timed, both = facts[SMALLEST], 0, 0
    append_slot, create_slot, status = -1, -1, DONE
    # On each clock, the span [start, end) of the previous record. Usually the next record is in the
    # same span.
    append_start = append_end = create_start = create_end = 0
    while number < append_ms.size:
        append, create = append_ms[number], create_ms[number]
        if create != NO_TIMESTAMP:
            if append != NO_TIMESTAMP:
                if append < append_start or append >= append_end:
                    append_slot = _slot_of(append, by_append)
                    append_start, append_end = _span_of(append, by_append.step_ms)
                if create < create_start or create >= create_end:
                    create_slot = _slot_of(create, by_create)
                    create_start, create_end = _span_of(create, by_create.step_ms)
                if append_slot < 0 or create_slot < 0:
                    status = FULL
                    break
                latency = distance(append, create)
                bucket = BUCKET_MAX + bucket_of(latency)
                _count(by_append, append_slot, latency, bucket)
                _count(by_create, create_slot, latency, bucket)
                both += 1
            timed += 1
            if create < largest:
                _count_late(late, facts, distance(largest, create))
            else:
                largest = create
            smallest = min(smallest, create)
        number += 1
    facts[AT], facts[LARGEST], facts[SMALLEST] = number, largest, smallest
    facts[BOTH] += both
    facts[TIMED] += timed
    return status


@inlined
def _slot_of(time_ms: int, hours: HourCounts) -> int:
    """Return the slot for the span of a time; -1 if other spans use all probed slots."""
    number, spans = time_ms // hours.step_ms, hours.spans
    for probe in range(_PROBES):
        slot = (number + probe) & (SLOTS - 1)
        if spans[slot, SPAN_COUNT] == 0:
            spans[slot, SPAN] = number
            spans[slot, SPAN_MIN], spans[slot, SPAN_MAX] = INT64_MAX, INT64_MIN
            return int(slot)
        if spans[slot, SPAN] == number:
            return int(slot)
    return -1


@inlined
def _span_of(time_ms: int, step_ms: int) -> tuple[int, int]:
    """Return start and end of a time's span; an empty span if its end exceeds int64."""
    start = subtract_wrapping(time_ms, time_ms % step_ms)
    return start, add_wrapping(start, step_ms)


@inlined
def _count(hours: HourCounts, slot: int, latency: int, bucket: int) -> None:
    spans = hours.spans
    spans[slot, SPAN_MIN] = min(spans[slot, SPAN_MIN], latency)
    spans[slot, SPAN_MAX] = max(spans[slot, SPAN_MAX], latency)
    spans[slot, SPAN_COUNT] += 1
    hours.buckets[slot, bucket] += 1


@inlined
def _count_late(late: LateCounts, facts: Longs, late_ms: int) -> None:
    facts[LATE] += 1
    facts[LATE_MIN] = min(facts[LATE_MIN], late_ms)
    facts[LATE_MAX] = max(facts[LATE_MAX], late_ms)
    late.buckets[BUCKET_MAX + bucket_of(late_ms)] += 1
    passed = 0
    # The loop does not stop early, because a mispredicted branch takes longer than the whole loop.
    for slot in range(late.delays.size):
        passed += late_ms > late.delays[slot]
    late.passed[passed] += 1


# Latencies are limited to -LATENCY_MAX to LATENCY_MAX (2,200 years in ms), so that no sum exceeds
# 63 bits.
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
    """Count the latencies (append time minus create time) of the records in `body`, by bucket.

    Records without a create time, or with a create time below 0, are left out.

    Shape:
        bounds: int64[n], upper bound of each bucket in ms, inclusive, ascending.
        counts: int64[n + 1], increased; the last count is for latencies above all bounds.

    Returns:
        A status (DONE, BAD_COUNT, BAD_RECORD, BAD_REST), the position of the damage, and the sum of
        the latencies in ms. If the status is not DONE, only the records before the damage are
        counted.
    """
    total, at, end = 0, 0, body.size
    if record_count < 0 or record_count * RECORD_SIZE_MIN > end:
        return BAD_COUNT, 0, total
    for _ in range(record_count):
        after, time_delta, _, _, _, _, _, _ = parse_record(body, at, end)
        if after == INVALID:
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
