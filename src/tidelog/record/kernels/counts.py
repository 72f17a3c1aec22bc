"""How many records of magic 2 bodies a range takes, without a look at their keys and values.

Of a record only its length and its two deltas are read; the batch's checksum vouches for the rest.

Source: docs/format.md#record.
"""

from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels.arithmetic import add_wrapping
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.decode import Filter, is_inside, is_wanted
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
    DONE,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    RECORD_COUNT,
)
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.record.kernels.varints import POISON, read_varint, read_varlong
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import NO_TIMESTAMP


@kernel
def count_matches(data: Bytes, table: Longs, rows: Filter) -> tuple[int, int, int, int]:
    """Count the records that a filter takes.

    Shape:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies not compressed.

    Returns:
        The number of records taken; of those inside the offset range that have no time, under a
        filter by time; DONE, or a BAD_ status and the record or body concerned.
    """
    taken = without_time = 0
    for slot in range(table.shape[0]):
        found, missing, status, at = _count_batch(data, table[slot], rows)
        taken += found
        without_time += missing
        if status != DONE:
            return taken, without_time, status, at
    return taken, without_time, DONE, 0


@inlined
def _count_batch(data: Bytes, batch: Longs, rows: Filter) -> tuple[int, int, int, int]:
    base_offset, base_timestamp = batch[BASE_OFFSET], batch[BASE_TIMESTAMP]
    delta_max, append_time = batch[LAST_OFFSET] - base_offset, batch[MAX_TIMESTAMP]
    is_append_time = batch[ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    at, end, count = batch[BODY_START], batch[BODY_END], batch[RECORD_COUNT]
    taken, without_time, last_delta = 0, 0, -1
    if count < 0 or count * RECORD_SIZE_MIN > end - at:
        return 0, 0, BAD_COUNT, at
    for _ in range(count):
        after, time_delta, delta = _deltas(data, at, end)
        if after == POISON or delta <= last_delta or delta > delta_max:
            status = BAD_RECORD if after == POISON else BAD_DELTA
            return taken, without_time, status, at
        timestamp = append_time if is_append_time else add_wrapping(base_timestamp, time_delta)
        if is_wanted(base_offset + delta, timestamp, rows):
            taken += 1
        elif rows.by_time and timestamp == NO_TIMESTAMP and is_inside(base_offset + delta, rows):
            without_time += 1
        at, last_delta = after, delta
    return taken, without_time, DONE if at == end else BAD_REST, at


@inlined
def _deltas(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """The place behind a record or `POISON`, its timestamp delta, its offset delta."""
    size, at = read_varint(data, at, end)
    if size < RECORD_SIZE_MIN - 1 or size > end - at:
        return POISON, 0, 0
    record_end = at + size
    time_delta, at = read_varlong(data, at + 1, record_end)
    offset_delta, at = read_varint(data, at, record_end)
    return (record_end if at <= record_end else POISON), time_delta, offset_delta
