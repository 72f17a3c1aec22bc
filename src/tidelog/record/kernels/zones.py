"""Computes a zone map's values from batches: counts, time ranges, checksums, latencies.

`describe_batches` reads every record of uncompressed magic-2 bodies; `fold_zones` combines batches
into zones. A row has the fields of `storage.clocks.zone_map.Zone`. Plain reference:
`storage.segment.zone_map_builder`.
"""

from typing import Final, NamedTuple

from tidelog.record.header import ATTRIBUTES_AT, CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT
from tidelog.record.kernels.checksums import join_sums, sum_bytes
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.integers import INVALID, add_wrapping, bit_length
from tidelog.record.kernels.layout import (
    ATTRIBUTES,
    BAD_COUNT,
    BAD_DELTA,
    BAD_RECORD,
    BAD_REST,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BODY_END,
    BODY_START,
    CRC,
    CREATE_LOST,
    CREATE_STATE,
    DONE,
    FULL,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    SIZE,
)
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.record.kernels.records import parse_record
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP

ZONE_POSITION: Final = 0
ZONE_SIZE: Final = 1
ZONE_FIRST: Final = 2
ZONE_LAST: Final = 3
ZONE_DATA: Final = 4
ZONE_CONTROL: Final = 5
ZONE_TOMBSTONES: Final = 6
ZONE_TRANSACTIONAL: Final = 7
ZONE_TIMED: Final = 8
ZONE_MIN_RECORD: Final = 9
ZONE_MAX_RECORD: Final = 10
ZONE_STAMPED: Final = 11
ZONE_MIN_APPEND: Final = 12
ZONE_MAX_APPEND: Final = 13
ZONE_CRC: Final = 14
ZONE_FIELDS: Final = 15

# Maximum number of spans of append time whose latencies the kernel counts at a time. If a record
# needs one more span, the kernel returns FULL, and the caller reads and clears the counts.
SPANS: Final = 8
SPAN: Final = 0
SPAN_MIN: Final = 1
SPAN_MAX: Final = 2
SPAN_FIELDS: Final = 3
# Buckets from -1887 to 1887, as in `storage.clocks.latency.bucket_of`.
BUCKET_MAX: Final = 1887
BUCKETS: Final = 2 * BUCKET_MAX + 1
_EXACT_BITS: Final = 6
_PER_DOUBLING: Final = 32

# Indices in `progress`: the index of the next batch, the index of its next record, the position of
# that record, the offset delta of the record before it, the index of the current run of append
# times, and the number of used spans.
BATCH: Final = 0
RECORD: Final = 1
AT: Final = 2
LAST_DELTA: Final = 3
RUN: Final = 4
USED_SPANS: Final = 5
PROGRESS_FIELDS: Final = 6


class Runs(NamedTuple):
    """Append times of runs of offsets.

    Shape:
        starts: int64[runs], first offset of each run, ascending; no record is before the first run.
        times: int64[runs], append time in ms, -1 for unknown.
    """

    starts: Longs
    times: Longs


class Spans(NamedTuple):
    """Latencies for each span of append time; the caller reads and clears them.

    Attributes:
        step_ms: Length of a span in ms.
        facts: int64[SPANS, SPAN_FIELDS]: index of the span, smallest and largest latency in ms.
        buckets: int64[SPANS, BUCKETS]: number of latencies in each bucket.
    """

    step_ms: int
    facts: Longs
    buckets: Longs


class SumTables(NamedTuple):
    """Tables of `checksums.sum_tables`."""

    powers: Longs
    table: Longs


@kernel
def describe_batches(
    data: Bytes, table: Longs, runs: Runs, spans: Spans, out: Longs, progress: Longs
) -> int:
    """Fill a row for each batch, from `progress` on.

    Shape:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies uncompressed.
        out: int64[batches, ZONE_FIELDS]; checksums are left unchanged.
        progress: int64[PROGRESS_FIELDS]. For the first call with a table, the caller sets all
            elements to 0 except two: `RUN` keeps its value from the previous table, and
            `USED_SPANS` keeps its value until the caller clears the latencies.

    Returns:
        DONE, FULL if all slots for spans are used, or a BAD_ status.
    """
    while progress[BATCH] < table.shape[0]:
        slot = progress[BATCH]
        status = _describe(data, table[slot], runs, spans, out[slot], progress)
        if status != DONE:
            return status
        progress[BATCH] = slot + 1
        progress[RECORD] = 0
    return DONE


@inlined
def _describe(
    data: Bytes, batch: Longs, runs: Runs, spans: Spans, row: Longs, progress: Longs
) -> int:
    """Fill a batch's row, from the first record that is not described yet; return a status."""
    if progress[RECORD] == 0:
        _begin(batch, row)
        progress[AT], progress[LAST_DELTA] = batch[BODY_START], -1
        count = batch[RECORD_COUNT]
        if count < 0 or count * RECORD_SIZE_MIN > batch[BODY_END] - batch[BODY_START]:
            return BAD_COUNT
    status = _take_records(data, batch, runs, spans, row, progress)
    if status == DONE and progress[AT] != batch[BODY_END]:
        return BAD_REST
    return status


@inlined
def _begin(batch: Longs, row: Longs) -> None:
    """Fill in the fields of a row that come from the batch's header."""
    is_control = batch[ATTRIBUTES] & CONTROL_BIT != 0
    is_transactional = batch[ATTRIBUTES] & TRANSACTIONAL_BIT != 0
    row[ZONE_POSITION], row[ZONE_SIZE] = batch[POSITION], batch[SIZE]
    row[ZONE_FIRST], row[ZONE_LAST] = batch[BASE_OFFSET], batch[LAST_OFFSET]
    row[ZONE_DATA] = 0 if is_control else batch[RECORD_COUNT]
    row[ZONE_CONTROL] = batch[RECORD_COUNT] if is_control else 0
    row[ZONE_TRANSACTIONAL] = 1 if is_transactional and not is_control else 0
    row[ZONE_TOMBSTONES] = row[ZONE_TIMED] = row[ZONE_STAMPED] = 0
    row[ZONE_MIN_RECORD] = row[ZONE_MIN_APPEND] = INT64_MAX
    row[ZONE_MAX_RECORD] = row[ZONE_MAX_APPEND] = INT64_MIN


@inlined
def _take_records(
    data: Bytes, batch: Longs, runs: Runs, spans: Spans, row: Longs, progress: Longs
) -> int:
    """Add a batch's records to the batch's row, and return a status.

    `progress` is set to the first record that was not processed.
    """
    base_offset, base_ms, stamp = batch[BASE_OFFSET], batch[BASE_TIMESTAMP], batch[MAX_TIMESTAMP]
    delta_max, end = batch[LAST_OFFSET] - base_offset, batch[BODY_END]
    is_stamped, is_lost = batch[ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0, batch[CREATE_STATE]
    is_data = batch[ATTRIBUTES] & CONTROL_BIT == 0
    last_ms, span, tombstones, run_ms, run_end = INT64_MIN, -1, 0, NO_TIMESTAMP, INT64_MIN
    timed, low, high = 0, INT64_MAX, INT64_MIN
    stamped, append_low, append_high = 0, INT64_MAX, INT64_MIN
    at, last_delta, number, status = progress[AT], progress[LAST_DELTA], progress[RECORD], DONE
    while number < batch[RECORD_COUNT]:
        after, time_delta, delta, _, _, _, value_size, _ = parse_record(data, at, end)
        if after == INVALID or delta <= last_delta or delta > delta_max:
            status = BAD_RECORD if after == INVALID else BAD_DELTA
            break
        if is_data:
            created = add_wrapping(base_ms, time_delta)
            time_ms = stamp if is_stamped else created
            created = NO_TIMESTAMP if is_lost == CREATE_LOST else created
            if base_offset + delta >= run_end:
                run_ms, run_end = _run_at(base_offset + delta, runs, progress)
            append_ms = stamp if run_ms == NO_TIMESTAMP and is_stamped else run_ms
            if append_ms != NO_TIMESTAMP:
                if created != NO_TIMESTAMP:
                    if span < 0 or append_ms != last_ms:
                        span, last_ms = _span_of(append_ms, spans, progress), append_ms
                    if span < 0:
                        status = FULL
                        break
                    _count_latency(spans, span, append_ms, created)
                append_low, append_high = min(append_low, append_ms), max(append_high, append_ms)
                stamped += 1
            if time_ms != NO_TIMESTAMP:
                timed, low, high = timed + 1, min(low, time_ms), max(high, time_ms)
            tombstones += 1 if value_size < 0 else 0
        at, last_delta = after, delta
        number += 1
    progress[RECORD], progress[AT], progress[LAST_DELTA] = number, at, last_delta
    row[ZONE_TOMBSTONES] += tombstones
    _add_times(row, ZONE_TIMED, timed, low, high)
    _add_times(row, ZONE_STAMPED, stamped, append_low, append_high)
    return status


@inlined
def _add_times(row: Longs, field: int, count: int, low: int, high: int) -> None:
    """Add `count` times to a field of a row.

    The next two fields are the smallest and the largest time; they are updated.
    """
    row[field] += count
    row[field + 1] = min(row[field + 1], low)
    row[field + 2] = max(row[field + 2], high)


@inlined
def _run_at(offset: int, runs: Runs, progress: Longs) -> tuple[int, int]:
    """Return the append time and the end offset (exclusive) of an offset's run.

    Callers pass ascending offsets.
    """
    run = progress[RUN]
    while run + 1 < runs.starts.size and runs.starts[run + 1] <= offset:
        run += 1
    progress[RUN] = run
    return runs.times[run], runs.starts[run + 1] if run + 1 < runs.starts.size else INT64_MAX


@inlined
def _span_of(append_ms: int, spans: Spans, progress: Longs) -> int:
    """Return the slot for the span of an append time; -1 if other spans use all slots."""
    number = append_ms // spans.step_ms
    used = progress[USED_SPANS]
    for slot in range(used):
        if spans.facts[slot, SPAN] == number:
            return slot
    if used == SPANS:
        return -1
    spans.facts[used, SPAN] = number
    spans.facts[used, SPAN_MIN], spans.facts[used, SPAN_MAX] = INT64_MAX, INT64_MIN
    progress[USED_SPANS] = used + 1
    return int(used)


@inlined
def _count_latency(spans: Spans, span: int, append_ms: int, create_ms: int) -> None:
    latency = distance(append_ms, create_ms)
    spans.facts[span, SPAN_MIN] = min(spans.facts[span, SPAN_MIN], latency)
    spans.facts[span, SPAN_MAX] = max(spans.facts[span, SPAN_MAX], latency)
    spans.buckets[span, BUCKET_MAX + bucket_of(latency)] += 1


@inlined
def distance(later_ms: int, earlier_ms: int) -> int:
    """Return `later_ms` - `earlier_ms`, limited to -INT64_MAX..INT64_MAX."""
    if earlier_ms < 0 and later_ms > INT64_MAX + earlier_ms:
        return INT64_MAX
    if earlier_ms > 0 and later_ms < -INT64_MAX + earlier_ms:
        return -INT64_MAX
    return max(later_ms - earlier_ms, -INT64_MAX)


@inlined
def bucket_of(latency_ms: int) -> int:
    """Return the bucket of a latency, as `storage.clocks.latency.bucket_of` does."""
    size = abs(latency_ms)
    bits = bit_length(size)
    if bits > _EXACT_BITS:
        doublings = bits - _EXACT_BITS
        size = _PER_DOUBLING * doublings + (size >> doublings)
    return size if latency_ms >= 0 else -size


@kernel
def sum_batches(log: Bytes, table: Longs, rows: Longs, sums: SumTables) -> None:
    """Fill in each batch's checksum over all of its bytes, using the checksum in its header.

    The checksum in the header must have been verified, because this function uses this checksum
    instead of reading the bytes that the checksum covers.

    Shape:
        log: uint8[>= every POSITION + SIZE], contains the batches.
        table: int64[batches, BATCH_FIELDS], magic 2.
        rows: int64[batches, ZONE_FIELDS].
    """
    for slot in range(table.shape[0]):
        start, size = table[slot, POSITION], table[slot, SIZE]
        head = sum_bytes(0, log, start, start + ATTRIBUTES_AT, sums.table)
        covered = size - ATTRIBUTES_AT
        rows[slot, ZONE_CRC] = join_sums(head, table[slot, CRC], covered, sums.powers)


@kernel
def fold_zones(rows: Longs, zones: Longs, count: int, limits: Longs, powers: Longs) -> int:
    """Merge batches into zones, beginning with the last existing zone; return the number of zones.

    Shape:
        rows: int64[batches, ZONE_FIELDS], in order.
        zones: int64[>= count + batches, ZONE_FIELDS], of which `count` are filled; batches may
            still be added to the last of these.
        limits: int64[2], maximum number of bytes and of data records in a zone with more than one
            batch.
    """
    for slot in range(rows.shape[0]):
        row = rows[slot]
        last = max(count - 1, 0)
        size = zones[last, ZONE_SIZE] + row[ZONE_SIZE]
        records = zones[last, ZONE_DATA] + row[ZONE_DATA]
        if count > 0 and size <= limits[0] and records <= limits[1]:
            _merge(zones[last], row, powers)
        else:
            _copy(zones[count], row)
            count += 1
    return count


@kernel
def sum_zones(zones: Longs, width: int, out: Longs, powers: Longs) -> None:
    """Merge every `width` consecutive zones into one zone.

    Shape:
        zones: int64[n, ZONE_FIELDS].
        out: int64[(n + width - 1) // width, ZONE_FIELDS].
    """
    for slot in range(zones.shape[0]):
        group = slot // width
        if slot == group * width:
            _copy(out[group], zones[slot])
        else:
            _merge(out[group], zones[slot], powers)


@inlined
def _copy(zone: Longs, row: Longs) -> None:
    for field in range(ZONE_FIELDS):
        zone[field] = row[field]


@inlined
def _merge(zone: Longs, row: Longs, powers: Longs) -> None:
    """Merge `row`, the zone or batch that follows `zone`, into `zone`."""
    zone[ZONE_CRC] = join_sums(zone[ZONE_CRC], row[ZONE_CRC], row[ZONE_SIZE], powers)
    zone[ZONE_SIZE] += row[ZONE_SIZE]
    zone[ZONE_FIRST] = min(zone[ZONE_FIRST], row[ZONE_FIRST])
    zone[ZONE_LAST] = max(zone[ZONE_LAST], row[ZONE_LAST])
    zone[ZONE_DATA] += row[ZONE_DATA]
    zone[ZONE_CONTROL] += row[ZONE_CONTROL]
    zone[ZONE_TOMBSTONES] += row[ZONE_TOMBSTONES]
    zone[ZONE_TRANSACTIONAL] |= row[ZONE_TRANSACTIONAL]
    for field in (ZONE_TIMED, ZONE_STAMPED):
        _add_times(zone, field, row[field], row[field + 1], row[field + 2])
