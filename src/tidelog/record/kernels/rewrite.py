"""Writes the batches that a cleaner keeps (copied, filtered or emptied), and their index.

A rewritten batch keeps offsets, keys, values, headers and times of the records that remain; its
header keeps base and last offset, leader epoch, producer fields and flags. Record bytes are copied
unchanged unless the base timestamp changes. Rewritten batches are uncompressed and have no CRC: the
caller compresses them and adds the CRC. Index entries follow
`tidelog.storage.segment.index_loading.IndexBuilder`, the plain reference.

Source: Kafka 4.x MemoryRecords.filterTo and LogSegment; docs/format.md#batch; KIP-534.
"""

from typing import Final, NamedTuple

from tidelog.record.header import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CONTROL_BIT,
    CRC_AT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    KNOWN_ATTRIBUTES,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_2,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from tidelog.record.kernels.checksums import fetch_body
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.integers import (
    INVALID,
    add_wrapping,
    read_varint,
    read_varlong,
    subtract_wrapping,
    varlong_size,
    write_varlong,
)
from tidelog.record.kernels.layout import (
    ATTRIBUTES,
    BAD_RECORD,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BODY_END,
    BODY_START,
    DONE,
    FULL,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
)
from tidelog.record.kernels.memory import (
    Bytes,
    Longs,
    copy_bytes,
    store_byte,
    store_int16,
    store_int32,
    store_int64,
)
from tidelog.record.kernels.records import parse_record
from tidelog.types import NO_TIMESTAMP

# Actions for a batch.
DROP: Final = 0

COPY: Final = 1
FILTER: Final = 2
EMPTY: Final = 3

# Columns of the plan, one row for each batch of the table.
ACTION: Final = 0

NUMBER: Final = 1  # index in `lost` of the batch's first record; -1 if no record is lost
HORIZON: Final = 2  # delete horizon to set if a tombstone remains, -1 for none
FORCES_HORIZON: Final = 3  # 1: set the horizon even if no tombstone remains
DROPS_TOMBSTONES: Final = 4  # 1: also remove tombstones
KEEPS_EMPTY: Final = 5  # 1: if no record is left, keep an empty batch
PLAN_FIELDS: Final = 6

# Columns of the table of written batches.
WRITTEN_AT: Final = 0

WRITTEN_SIZE: Final = 1
WRITTEN_BASE: Final = 2
WRITTEN_LAST: Final = 3
WRITTEN_MAX_TIMESTAMP: Final = 4
WRITTEN_SLOT: Final = 5  # the batch's row in `Sources.table`
WRITTEN_RECORDS: Final = 6
WRITTEN_TOMBSTONES: Final = 7  # 0 for a copied batch, because the caller knows this number
IS_NEW: Final = 8  # 0: a copy; 1: a new batch, which the caller must compress and checksum
WRITTEN_FIELDS: Final = 9

# Maximum number of bytes by which a record may grow: its timestamp delta may grow from 1 byte to 10
# bytes, and its length field by one byte.
GROWTH_MAX: Final = 10

# Properties of the remaining records of a batch.
_RECORDS_LEFT: Final = 0

_LEFT_TOMBSTONES: Final = 1
_FIRST_TIMESTAMP: Final = 2
_LAST_TIMESTAMP: Final = 3  # the largest timestamp
FACT_FIELDS: Final = 4


class Sources(NamedTuple):
    """The batches to write.

    Shape:
        log: uint8[...], contains the batches at POSITION and SIZE.
        bodies: uint8[...], contains the bodies of the batches to filter, at BODY_START to BODY_END.
        table: int64[batches, BATCH_FIELDS].
        plan: int64[batches, PLAN_FIELDS].
        lost: One bit for each record, set if the record is superseded.
    """

    log: Bytes
    bodies: Bytes
    table: Longs
    plan: Longs
    lost: Bytes


@kernel
def count_remaining(counts: Longs, numbers: Longs, superseded: Bytes, out: Longs) -> None:
    """Count the records of each batch that are not superseded.

    Shape:
        counts: int64[batches], number of records of each batch.
        numbers: int64[batches], the index of each batch's first record in `superseded`; -1 if no
            record of the batch is superseded.
        out: int64[batches].
    """
    for slot in range(counts.size):
        out[slot] = counts[slot]
        if numbers[slot] >= 0:
            out[slot] -= _count_bits(superseded, numbers[slot], numbers[slot] + counts[slot])


@inlined
def _count_bits(bits: Bytes, start: int, end: int) -> int:
    """Return the number of set bits from `start` to `end` (exclusive)."""
    count = 0
    while start < end and start & 7 != 0:
        count += (bits[start >> 3] >> (start & 7)) & 1
        start += 1
    while start + 8 <= end:
        count += _byte_bits(bits[start >> 3])
        start += 8
    while start < end:
        count += (bits[start >> 3] >> (start & 7)) & 1
        start += 1
    return count


@inlined
def _byte_bits(value: int) -> int:
    value -= (value >> 1) & 0x55
    value = (value & 0x33) + ((value >> 2) & 0x33)
    return (value + (value >> 4)) & 0x0F


@kernel
def write_batches(sources: Sources, out: Bytes, written: Longs, facts: Longs) -> tuple[int, int]:
    """Write the remaining batches, in order: copied, filtered or empty, as the plan says.

    Shape:
        out: uint8[capacity]. A batch to copy needs room for its size. A batch to filter needs room
        for the larger of two sizes: its own size, and the sum of `HEADER_SIZE`, its body and
        `GROWTH_MAX` bytes for each record.
        written: int64[batches, WRITTEN_FIELDS].
        facts: int64[FACT_FIELDS], for the kernel's own use.

    Returns:
        A status, and a number. With DONE, the number is how many batches were written. With FULL,
        `out` is too small. With BAD_RECORD, a body has changed since it was examined. In these two
        cases the output is invalid, and the number is the index of the failed batch.
    """
    used, count = 0, 0
    for slot in range(sources.table.shape[0]):
        action = sources.plan[slot, ACTION]
        if action == DROP:
            continue
        if _room(sources, slot) > out.size - used:
            return FULL, slot
        size = 0
        written[count, WRITTEN_TOMBSTONES] = 0
        if action == FILTER:
            size = _write_filtered(sources, slot, out, used, written[count], facts)
            if size < 0:
                return BAD_RECORD, slot
        elif action == COPY:
            size = sources.table[slot, SIZE]
            copy_bytes(out, used, sources.log, sources.table[slot, POSITION], size)
            _note_copy(sources.table[slot], written[count])
        if size == 0 and (action == EMPTY or sources.plan[slot, KEEPS_EMPTY] == 1):
            size = _write_empty(sources.table[slot], out, used, written[count])
        if size > 0:
            written[count, WRITTEN_AT] = used
            written[count, WRITTEN_SIZE] = size
            written[count, WRITTEN_SLOT] = slot
            used += size
            count += 1
    return DONE, count


@inlined
def _room(sources: Sources, slot: int) -> int:
    """Return the maximum size of a written batch."""
    batch = sources.table[slot]
    action = sources.plan[slot, ACTION]
    size = int(batch[SIZE])
    if action == COPY:
        return size
    if action == EMPTY:
        return HEADER_SIZE
    body = int(batch[BODY_END] - batch[BODY_START])
    return max(size, HEADER_SIZE + body + GROWTH_MAX * int(batch[RECORD_COUNT]))


@inlined
def _note_copy(batch: Longs, row: Longs) -> None:
    row[WRITTEN_BASE] = batch[BASE_OFFSET]
    row[WRITTEN_LAST] = batch[LAST_OFFSET]
    row[WRITTEN_MAX_TIMESTAMP] = batch[MAX_TIMESTAMP]
    row[WRITTEN_RECORDS] = batch[RECORD_COUNT]
    row[IS_NEW] = 0


@inlined
def _is_left(sources: Sources, slot: int, record: int) -> bool:
    number = sources.plan[slot, NUMBER]
    if number < 0:
        return True
    number += record
    return bool((sources.lost[number >> 3] >> (number & 7)) & 1 == 0)


@inlined
def _write_filtered(
    sources: Sources, slot: int, out: Bytes, start: int, row: Longs, facts: Longs
) -> int:
    """Write a batch with its remaining records; return the batch's size.

    The size is 0 if nothing was written, because no record remains: the caller then writes an empty
    batch if the plan keeps one. The size is -1 if a record is damaged.
    """
    batch, plan = sources.table[slot], sources.plan[slot]
    fetch_body(sources.bodies, batch[BODY_START], batch[BODY_END])
    if not _inspect(sources, slot, facts):
        return -1
    if facts[_RECORDS_LEFT] == 0:
        return 0
    has_horizon = batch[ATTRIBUTES] & DELETE_HORIZON_BIT != 0
    sets_horizon = plan[HORIZON] >= 0 and not has_horizon
    sets_horizon = sets_horizon and (plan[FORCES_HORIZON] == 1 or facts[_LEFT_TOMBSTONES] > 0)
    if facts[_RECORDS_LEFT] == batch[RECORD_COUNT] and batch[MAGIC] == MAGIC_2 and not sets_horizon:
        copy_bytes(out, start, sources.log, batch[POSITION], batch[SIZE])
        _note_copy(batch, row)
        row[WRITTEN_TOMBSTONES] = facts[_LEFT_TOMBSTONES]
        return int(batch[SIZE])
    attributes = batch[ATTRIBUTES] & KNOWN_ATTRIBUTES
    base = facts[_FIRST_TIMESTAMP]
    if sets_horizon:
        base, attributes = plan[HORIZON], attributes | DELETE_HORIZON_BIT
    elif has_horizon:
        base = batch[BASE_TIMESTAMP]
    end = _write_records(sources, slot, base, out, start + HEADER_SIZE, plan[DROPS_TOMBSTONES])
    largest = facts[_LAST_TIMESTAMP]
    if attributes & TIMESTAMP_TYPE_BIT != 0:
        largest = batch[MAX_TIMESTAMP]
    row[WRITTEN_BASE] = batch[BASE_OFFSET]
    row[WRITTEN_LAST] = batch[LAST_OFFSET]
    row[WRITTEN_MAX_TIMESTAMP] = largest
    row[WRITTEN_RECORDS] = facts[_RECORDS_LEFT]
    row[WRITTEN_TOMBSTONES] = facts[_LEFT_TOMBSTONES]
    row[IS_NEW] = 1
    _write_header(batch, attributes, base, row, out, start)
    store_int32(out, start + LENGTH_AT, end - start - LOG_OVERHEAD)
    return end - start


@inlined
def _inspect(sources: Sources, slot: int, facts: Longs) -> bool:
    """Compute the properties of a batch's remaining records; False if a record is damaged."""
    batch, data = sources.table[slot], sources.bodies
    at, end = batch[BODY_START], batch[BODY_END]
    record_count = tombstones = 0
    first = largest = NO_TIMESTAMP
    for record in range(batch[RECORD_COUNT]):
        if not _is_left(sources, slot, record):
            size, at = read_varint(data, at, end)
            if size < 0 or size > end - at:
                return False
            at += size
            continue
        after, time_delta, _, _, _, _, value_size, _ = parse_record(data, at, end)
        if after == INVALID:
            return False
        at = after
        if value_size < 0 and sources.plan[slot, DROPS_TOMBSTONES] == 1:
            continue
        timestamp = add_wrapping(batch[BASE_TIMESTAMP], time_delta)
        first = timestamp if record_count == 0 else first
        largest = timestamp if record_count == 0 else max(largest, timestamp)
        record_count += 1
        tombstones += 1 if value_size < 0 else 0
    facts[_RECORDS_LEFT] = record_count
    facts[_LEFT_TOMBSTONES] = tombstones
    facts[_FIRST_TIMESTAMP] = first
    facts[_LAST_TIMESTAMP] = largest
    return bool(at == end)


@inlined
def _write_records(
    sources: Sources, slot: int, base: int, out: Bytes, used: int, drops_tombstones: int
) -> int:
    """Write a batch's remaining records, with times relative to `base`; return the end position."""
    batch, data = sources.table[slot], sources.bodies
    at, end = batch[BODY_START], batch[BODY_END]
    is_same_base = base == batch[BASE_TIMESTAMP]
    for record in range(batch[RECORD_COUNT]):
        size, body_at = read_varint(data, at, end)
        after = body_at + size
        is_left = _is_left(sources, slot, record)
        if is_left and drops_tombstones == 1:
            _, _, _, _, _, _, value_size, _ = parse_record(data, at, end)
            is_left = value_size >= 0
        if is_left and is_same_base:
            copy_bytes(out, used, data, at, after - at)
            used += after - at
        elif is_left:
            time_delta, rest_at = read_varlong(data, body_at + 1, after)
            timestamp = add_wrapping(batch[BASE_TIMESTAMP], time_delta)
            used = _write_record(
                data, rest_at, after, subtract_wrapping(timestamp, base), out, used
            )
        at = after
    return used


@inlined
def _write_record(
    data: Bytes, rest_at: int, end: int, time_delta: int, out: Bytes, used: int
) -> int:
    """Write a record with a new timestamp delta; return the position after it.

    Args:
        data: Contains the rest of the record, from its offset delta on.
        rest_at: Position in `data` of the record's offset delta.
        end: Position after the record.
        time_delta: The new timestamp delta.
        out: The output.
        used: Position in the output at which the record begins.
    """
    used = write_varlong(out, used, 1 + varlong_size(time_delta) + end - rest_at)
    store_byte(out, used, 0)
    used = write_varlong(out, used + 1, time_delta)
    copy_bytes(out, used, data, rest_at, end - rest_at)
    return used + end - rest_at


@inlined
def _write_empty(batch: Longs, out: Bytes, start: int, row: Longs) -> int:
    """Write a header without records; return its size."""
    mask = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
    row[WRITTEN_BASE] = batch[BASE_OFFSET]
    row[WRITTEN_LAST] = batch[LAST_OFFSET]
    row[WRITTEN_MAX_TIMESTAMP] = batch[MAX_TIMESTAMP]
    row[WRITTEN_RECORDS] = 0
    row[IS_NEW] = 1
    _write_header(batch, batch[ATTRIBUTES] & mask, NO_TIMESTAMP, row, out, start)
    return HEADER_SIZE


@inlined
def _write_header(
    batch: Longs, attributes: int, base_timestamp: int, row: Longs, out: Bytes, start: int
) -> None:
    """Write all fields of a header except the checksum.

    The length field is set as for a batch without records.
    """
    store_int64(out, start, batch[BASE_OFFSET])
    store_int32(out, start + LENGTH_AT, HEADER_SIZE - LOG_OVERHEAD)
    store_int32(out, start + LEADER_EPOCH_AT, batch[LEADER_EPOCH])
    store_byte(out, start + MAGIC_AT, MAGIC_2)
    store_int32(out, start + CRC_AT, 0)
    store_int16(out, start + ATTRIBUTES_AT, attributes)
    store_int32(out, start + LAST_OFFSET_DELTA_AT, batch[LAST_OFFSET] - batch[BASE_OFFSET])
    store_int64(out, start + BASE_TIMESTAMP_AT, base_timestamp)
    store_int64(out, start + MAX_TIMESTAMP_AT, row[WRITTEN_MAX_TIMESTAMP])
    store_int64(out, start + PRODUCER_ID_AT, batch[PRODUCER_ID])
    store_int16(out, start + PRODUCER_EPOCH_AT, batch[PRODUCER_EPOCH])
    store_int32(out, start + BASE_SEQUENCE_AT, batch[BASE_SEQUENCE])
    store_int32(out, start + RECORD_COUNT_AT, row[WRITTEN_RECORDS])


# Indices in the state of `index_batches`.
INDEXED_POSITION: Final = 0

LARGEST_TIMESTAMP: Final = 1
LARGEST_OFFSET: Final = 2
ENTRY_TIMESTAMP: Final = 3  # timestamp of the last time index entry
OFFSET_ENTRIES: Final = 4  # entries in the whole index
TIME_ENTRIES: Final = 5
INDEX_FIELDS: Final = 6


class IndexRules(NamedTuple):
    """Rules of index entries.

    Attributes:
        interval_bytes: Minimum distance between entries: an entry is added for a batch that begins
            more than this number of bytes after the last indexed position.
        offset_entry_limit: Maximum number of entries in the offset index.
        time_entry_limit: Maximum number of entries in the time index, without the closing entry.
    """

    interval_bytes: int
    offset_entry_limit: int
    time_entry_limit: int


@kernel
def index_batches(
    written: Longs, position: int, rules: IndexRules, state: Longs, offsets: Longs, times: Longs
) -> tuple[int, int]:
    """Create the index entries of consecutive batches in a log file.

    Shape:
        written: int64[batches, WRITTEN_FIELDS].
        position: Position in the file that corresponds to 0 in WRITTEN_AT.
        state: int64[INDEX_FIELDS], of the whole segment.
        offsets: int64[batches, 2], written: last offset and position.
        times: int64[batches, 2], written: timestamp and offset.

    Returns:
        The number of new entries of the offset index, and of the time index.
    """
    offset_count = time_count = 0
    for slot in range(written.shape[0]):
        at, last = position + written[slot, WRITTEN_AT], written[slot, WRITTEN_LAST]
        if written[slot, WRITTEN_MAX_TIMESTAMP] > state[LARGEST_TIMESTAMP]:
            state[LARGEST_TIMESTAMP] = written[slot, WRITTEN_MAX_TIMESTAMP]
            state[LARGEST_OFFSET] = last
        if at - state[INDEXED_POSITION] <= rules.interval_bytes:
            continue
        state[INDEXED_POSITION] = at
        if state[OFFSET_ENTRIES] < rules.offset_entry_limit:
            offsets[offset_count, 0] = last
            offsets[offset_count, 1] = at
            offset_count += 1
            state[OFFSET_ENTRIES] += 1
        is_later = state[LARGEST_TIMESTAMP] > state[ENTRY_TIMESTAMP]
        if is_later and state[TIME_ENTRIES] < rules.time_entry_limit:
            times[time_count, 0] = state[LARGEST_TIMESTAMP]
            times[time_count, 1] = state[LARGEST_OFFSET]
            time_count += 1
            state[ENTRY_TIMESTAMP] = state[LARGEST_TIMESTAMP]
            state[TIME_ENTRIES] += 1
    return offset_count, time_count
