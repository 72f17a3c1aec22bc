"""Decodes bodies of magic-2 batches to columns, counts or headers, and validates them.

Every length is compared with the remaining bytes before it is used, and a record is accepted only
if its fields end exactly where the record ends. Decoding stops when the columns are full. Records
that the filter does not select are checked too, but left out.

`count_matches` reads only a record's length and its two deltas, and does not validate the rest of
the record: the batch's checksum must have been verified. Headers are decoded only for records that
`decode_batches` has accepted. Reads are always limited by `end`, because the bytes can change if a
mapped file is truncated. `check_body` validates by the rules of `tidelog.storage.log.record_rules`,
its plain reference. Storage calls `check_body`, because it is faster than the plain reference.

Source: docs/format.md#record. Plain reference: `tidelog.record.record`.
"""

from typing import Final, NamedTuple

import numpy as np

from tidelog.errors import CorruptRecord
from tidelog.record.header import HEADERS_MAX, TIMESTAMP_TYPE_BIT
from tidelog.record.kernels.checksums import sum_batch
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.integers import INVALID, add_wrapping, read_varint, read_varlong
from tidelog.record.kernels.layout import (
    ATTRIBUTES,
    BAD_COUNT,
    BAD_DELTA,
    BAD_RECORD,
    BAD_REST,
    BAD_SUM,
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
    REASONS,
    RECORD_COUNT,
)
from tidelog.record.kernels.memory import (
    Bytes,
    Ints,
    Longs,
    copy_bytes,
    load_byte,
    load_word,
    put_long,
)
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import INT64_MAX, NO_TIMESTAMP, Buffer

RECORD_HEADER_SIZE_MIN: Final = 2

# Stored instead of the position of the header count if a record has no headers.
NO_HEADERS: Final = -1

# Created once, because `np.dtype(np.uint8)` takes as long as creating an array.
_BYTE: Final = np.dtype(np.uint8)

# Indices in `progress`: the position where decoding continues (`BATCH` to `LAST_DELTA`), number of
# used bytes of the columns, and counts.
BATCH: Final = 0

AT: Final = 1
RECORD: Final = 2
LAST_DELTA: Final = 3
ROWS: Final = 4
KEY_BYTES: Final = 5
VALUE_BYTES: Final = 6
KEY_NULLS: Final = 7
VALUE_NULLS: Final = 8
TIME_NULLS: Final = 9
CREATE_NULLS: Final = 10
WITH_HEADERS: Final = 11
WITHOUT_TIME: Final = 12
PROGRESS_FIELDS: Final = 13

# Value of `progress[AT]` before the first record of a batch is read.
UNOPENED: Final = -1

# Modes of the column of keys and of the column of values: no column, copies, or views of the log.
LEFT_OUT: Final = 0

COPIED: Final = 1
VIEWED: Final = 2

# Size of Arrow's view of a value, in words of 4 bytes. A value of up to 12 bytes is stored in its
# view.
VIEW_WORDS: Final = 4

_INSIDE_SIZE_MAX: Final = 12
_WORD_SIZE: Final = 4
_SIGN: Final = 1 << 31


class Filter(NamedTuple):
    """Records to select, and how to treat their keys and values.

    Attributes:
        offset_start: First offset to select, inclusive.
        offset_end: End of the offsets, exclusive.
        by_time: 1 to also select by timestamp. With 1, records without a time are left out.
        time_start: Start of the timestamps in ms, inclusive.
        time_end: End of the timestamps in ms, exclusive; INT64_MAX for no end.
        keys: `LEFT_OUT`, `COPIED` or `VIEWED`.
        values: `LEFT_OUT`, `COPIED` or `VIEWED`.
    """

    offset_start: int
    offset_end: int
    by_time: int
    time_start: int
    time_end: int
    keys: int
    values: int


class Binary(NamedTuple):
    """An Arrow binary column to fill; the caller allocates it.

    Shape:
        ends: int32[rows + 1], the first is 0; not written for a column of views.
        data: uint8[capacity in bytes]; not written for a column of views.
        valid: uint8[(rows + 7) // 8], all bits set by the caller; a null clears its bit.
        views: int32[rows * VIEW_WORDS] for a column of views, int32[0] for other columns.
    """

    ends: Ints
    data: Bytes
    valid: Bytes
    views: Ints


class Columns(NamedTuple):
    """Output columns of `decode_batches`; the caller allocates them.

    Shape:
        offsets: int64[rows]; its length is the maximum number of rows.
        timestamps: int64[rows], -1 for none; int64[0] if not requested. May be the same array as
            `creates` if no batch is LogAppendTime and no create time is lost.
        creates: int64[rows], -1 for none or lost; int64[0] if not requested.
        headers_at: int64[rows], position of each record's header count, `NO_HEADERS` if the count
            is 0; int64[0] if not requested.
        rows_end: int64[batches], number of rows at the end of each batch of the table.
    """

    offsets: Longs
    timestamps: Longs
    creates: Longs
    headers_at: Longs
    rows_end: Longs
    key: Binary
    value: Binary


@inlined
def parse_record(data: Bytes, at: int, end: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Parse the record at `at` of a body that ends at `end`.

    Returns:
        - Position after the record, `INVALID` if the record is damaged. In this case the other
          values are invalid, too.
        - Timestamp delta.
        - Offset delta.
        - Position of the key.
        - Size of the key, -1 for null.
        - Position of the value.
        - Size of the value, -1 for null.
        - Position of the header count, `NO_HEADERS` if the record has no headers.
    """
    size, at = read_varint(data, at, end)
    if size < 0 or size > end - at:
        return INVALID, 0, 0, 0, 0, 0, 0, 0
    record_end = at + size
    time_delta, at = read_varlong(data, at + 1, record_end)
    offset_delta, at = read_varint(data, at, record_end)
    key_size, key_at = read_varint(data, at, record_end)
    value_size, value_at = read_varint(data, key_at + max(key_size, 0), record_end)
    headers_at = value_at + max(value_size, 0)
    header_count, at = read_varint(data, headers_at, record_end)
    if header_count != 0:
        at = skip_headers(data, at, record_end, header_count)
    else:
        headers_at = NO_HEADERS
    if at != record_end or key_size < -1 or value_size < -1:
        return INVALID, 0, 0, 0, 0, 0, 0, 0
    return at, time_delta, offset_delta, key_at, key_size, value_at, value_size, headers_at


@inlined
def skip_headers(data: Bytes, at: int, end: int, count: int) -> int:
    """Return the position after `count` headers, `INVALID` if a header breaks a rule."""
    if count < 0 or count > min((end - at) // RECORD_HEADER_SIZE_MIN, HEADERS_MAX):
        return INVALID
    for _ in range(count):
        key_size, at = read_varint(data, at, end)
        value_size, at = read_varint(data, at + max(key_size, 0), end)
        at += max(value_size, 0)
        if key_size < 0 or value_size < -1 or at > end:
            return INVALID
    return at


@kernel
def decode_batches(
    data: Bytes, table: Longs, rows: Filter, out: Columns, progress: Longs, shifts: Longs
) -> tuple[int, int]:
    """Decode the batches of `table` from `progress` on, until all are decoded or a column is full.

    Shape:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies uncompressed.
        progress: int64[PROGRESS_FIELDS], for the first call zeros except `UNOPENED` in `AT`. Before
            another call the caller clears the columns and sets the elements from `ROWS` on to 0.
        shifts: Tables of `checksums`, to check each batch's checksum just before its records are
            read (`data` must contain the headers); int64[0] for no check.

    Returns:
        A status and a number. With FULL, the number is the position of the record that does not
            fit. With BAD_SUM, it is the checksum of the batch's bytes. With any other BAD_ status,
            it is the position of the damaged record or body.
    """
    while progress[BATCH] < table.shape[0]:
        slot = progress[BATCH]
        if shifts.size != 0 and progress[AT] == UNOPENED:
            checksum = sum_batch(data, table[slot], shifts)
            if checksum != table[slot, CRC]:
                out.rows_end[slot] = progress[ROWS]
                return BAD_SUM, checksum
        status = _decode_batch(data, table[slot], rows, out, progress, table[0, BODY_START])
        out.rows_end[slot] = progress[ROWS]
        if status != DONE:
            return status, progress[AT]
        progress[BATCH] = slot + 1
        progress[AT] = UNOPENED
    return DONE, 0


@inlined
def open_batch(batch: Longs, progress: Longs) -> bool:
    """Set `progress` to the first record; return whether the record count fits the body's size."""
    progress[AT] = batch[BODY_START]
    progress[RECORD] = 0
    progress[LAST_DELTA] = -1
    count = batch[RECORD_COUNT]
    return bool(0 <= count * RECORD_SIZE_MIN <= batch[BODY_END] - batch[BODY_START])


@inlined
def _decode_batch(
    data: Bytes, batch: Longs, rows: Filter, out: Columns, progress: Longs, view_start: int
) -> int:
    """Decode one batch, or the records of the batch that are not decoded yet."""
    if progress[AT] == UNOPENED and not open_batch(batch, progress):
        return BAD_COUNT
    status = _decode_records(data, batch, rows, out, progress, view_start)
    if status == DONE and progress[AT] != batch[BODY_END]:
        return BAD_REST
    return status


@inlined
def _decode_records(
    data: Bytes, batch: Longs, rows: Filter, out: Columns, progress: Longs, view_start: int
) -> int:
    """Decode a batch's records, and return a status.

    `progress` is set to the first record that was not processed.
    """
    base_offset, base_timestamp = batch[BASE_OFFSET], batch[BASE_TIMESTAMP]
    delta_max = batch[LAST_OFFSET] - base_offset
    is_append_time = batch[ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    append_time, is_lost = batch[MAX_TIMESTAMP], batch[CREATE_STATE] == CREATE_LOST
    end, count = batch[BODY_END], batch[RECORD_COUNT]
    at, record, last_delta = progress[AT], progress[RECORD], progress[LAST_DELTA]
    row, key_used, value_used = progress[ROWS], progress[KEY_BYTES], progress[VALUE_BYTES]
    key_room = out.key.data.size if rows.keys == COPIED else INT64_MAX
    value_room = out.value.data.size if rows.values == COPIED else INT64_MAX
    status = DONE
    while record < count:
        after, time_delta, delta, key_at, key_size, value_at, value_size, headers_at = parse_record(
            data, at, end
        )
        if after == INVALID or delta <= last_delta or delta > delta_max:
            status = BAD_RECORD if after == INVALID else BAD_DELTA
            break
        created = add_wrapping(base_timestamp, time_delta)
        timestamp = append_time if is_append_time else created
        if is_selected(base_offset + delta, timestamp, rows):
            is_full = key_used + key_size > key_room or value_used + value_size > value_room
            if is_full or row >= out.offsets.size:
                status = FULL
                break
            created = NO_TIMESTAMP if is_lost else created
            put_long(out.offsets, row, base_offset + delta)
            _keep(out.timestamps, row, timestamp)
            _keep(out.creates, row, created)
            _keep(out.headers_at, row, headers_at)
            _count_oddities(progress, key_size, value_size, timestamp, created, headers_at)
            key_used = _put(rows.keys, out.key, row, key_used, data, key_at, key_size, view_start)
            value_used = _put(
                rows.values, out.value, row, value_used, data, value_at, value_size, view_start
            )
            row += 1
        elif rows.by_time and timestamp == NO_TIMESTAMP and is_inside(base_offset + delta, rows):
            progress[WITHOUT_TIME] += 1
        at, last_delta = after, delta
        record += 1
    progress[AT], progress[RECORD], progress[LAST_DELTA] = at, record, last_delta
    progress[ROWS], progress[KEY_BYTES], progress[VALUE_BYTES] = row, key_used, value_used
    return status


@inlined
def _count_oddities(
    progress: Longs, key_size: int, value_size: int, timestamp: int, created: int, headers_at: int
) -> None:
    """Count nulls and other rare values, so that columns without them need not be searched."""
    if key_size < 0:
        progress[KEY_NULLS] += 1
    if value_size < 0:
        progress[VALUE_NULLS] += 1
    if timestamp == NO_TIMESTAMP:
        progress[TIME_NULLS] += 1
    if created == NO_TIMESTAMP:
        progress[CREATE_NULLS] += 1
    if headers_at != NO_HEADERS:
        progress[WITH_HEADERS] += 1


@inlined
def is_inside(offset: int, rows: Filter) -> bool:
    """Whether an offset is in the filter's range."""
    return rows.offset_start <= offset < rows.offset_end


@inlined
def is_selected(offset: int, timestamp: int, rows: Filter) -> bool:
    """Whether the filter selects a record of this offset and time."""
    if not is_inside(offset, rows):
        return False
    if not rows.by_time:
        return True
    is_before_end = timestamp < rows.time_end or rows.time_end == INT64_MAX
    return timestamp != NO_TIMESTAMP and rows.time_start <= timestamp and is_before_end


@inlined
def _keep(column: Longs, row: int, value: int) -> None:
    """Set a row of a column, if the column is requested."""
    if row < column.size:
        put_long(column, row, value)


@inlined
def _put(  # noqa: PLR0913 - a value's position, and its target
    mode: int, column: Binary, row: int, used: int, data: Bytes, at: int, size: int, start: int
) -> int:
    """Set a row of a column, as a copy or as a view; return the column's used bytes."""
    if mode == COPIED:
        used = append_binary(column, row, used, data, at, size)
    elif mode == VIEWED:
        put_view(column, row, data, at, size, start)
    return used


@inlined
def append_binary(column: Binary, row: int, used: int, data: Bytes, at: int, size: int) -> int:
    """Append one value, null if `size` is -1; return the column's used bytes."""
    if size > 0:
        copy_bytes(column.data, used, data, at, size)
        used += size
    elif size < 0:
        column.valid[row >> 3] &= 0xFF ^ (1 << (row & 7))
    column.ends[row + 1] = used
    return used


@inlined
def put_view(column: Binary, row: int, data: Bytes, at: int, size: int, start: int) -> None:
    """Set one view, null if `size` is -1.

    A view has 16 bytes: the value's size, the value's first 4 bytes, and 8 more bytes. For a small
    value, the 8 bytes are the rest of the value. For a large value, they are the index of the
    value's buffer, which is always 0, and the value's position in this buffer, which is less than
    2^31. The buffer begins at `start` of `data`.
    """
    word_at = VIEW_WORDS * row
    if size < 0:
        column.valid[row >> 3] &= 0xFF ^ (1 << (row & 7))
        size = 0
    third, fourth = 0, at - start
    if size <= _INSIDE_SIZE_MAX:
        third = _load_few(data, at + _WORD_SIZE, size - _WORD_SIZE)
        fourth = _load_few(data, at + 2 * _WORD_SIZE, size - 2 * _WORD_SIZE)
    column.views[word_at] = size
    column.views[word_at + 1] = _load_few(data, at, size)
    column.views[word_at + 2] = third
    column.views[word_at + 3] = fourth


@inlined
def _load_few(data: Bytes, at: int, size: int) -> int:
    """Return the first 4 of `size` bytes as a little-endian int32; missing bytes are zeros."""
    count = min(size, _WORD_SIZE)
    if count <= 0:
        return 0
    word = 0
    if at + 2 * _WORD_SIZE <= data.size:
        word = load_word(data, at) & ((1 << (8 * count)) - 1)
    else:
        for index in range(count):
            word |= load_byte(data, at + index) << (8 * index)
    return (word ^ _SIGN) - _SIGN


@kernel
def count_matches(data: Bytes, table: Longs, rows: Filter) -> tuple[int, int, int, int]:
    """Count the records that a filter selects.

    Shape:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies uncompressed.

    Returns:
        - Number of selected records.
        - With a filter by time, the number of records without a time in the offset range; else 0.
        - DONE, or a BAD_ status.
        - With a BAD_ status, the position of the damaged record or body.
    """
    match_count = without_time = 0
    for slot in range(table.shape[0]):
        batch_count, missing, status, at = _count_batch(data, table[slot], rows)
        match_count += batch_count
        without_time += missing
        if status != DONE:
            return match_count, without_time, status, at
    return match_count, without_time, DONE, 0


@inlined
def _count_batch(data: Bytes, batch: Longs, rows: Filter) -> tuple[int, int, int, int]:
    base_offset, base_timestamp = batch[BASE_OFFSET], batch[BASE_TIMESTAMP]
    delta_max, append_time = batch[LAST_OFFSET] - base_offset, batch[MAX_TIMESTAMP]
    is_append_time = batch[ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    at, end, count = batch[BODY_START], batch[BODY_END], batch[RECORD_COUNT]
    match_count, without_time, last_delta = 0, 0, -1
    if count < 0 or count * RECORD_SIZE_MIN > end - at:
        return 0, 0, BAD_COUNT, at
    for _ in range(count):
        after, time_delta, delta = _deltas(data, at, end)
        if after == INVALID or delta <= last_delta or delta > delta_max:
            status = BAD_RECORD if after == INVALID else BAD_DELTA
            return match_count, without_time, status, at
        timestamp = append_time if is_append_time else add_wrapping(base_timestamp, time_delta)
        if is_selected(base_offset + delta, timestamp, rows):
            match_count += 1
        elif rows.by_time and timestamp == NO_TIMESTAMP and is_inside(base_offset + delta, rows):
            without_time += 1
        at, last_delta = after, delta
    return match_count, without_time, DONE if at == end else BAD_REST, at


@inlined
def _deltas(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return the position after a record, its time delta and its offset delta.

    The position is `INVALID` if the record is damaged.
    """
    size, at = read_varint(data, at, end)
    if size < RECORD_SIZE_MIN - 1 or size > end - at:
        return INVALID, 0, 0
    record_end = at + size
    time_delta, at = read_varlong(data, at + 1, record_end)
    offset_delta, at = read_varint(data, at, record_end)
    return (record_end if at <= record_end else INVALID), time_delta, offset_delta


class HeaderColumns(NamedTuple):
    """Output columns of `fill_headers`; `count_headers` returns the sizes to allocate.

    Shape:
        ends: int32[rows + 1], number of headers up to each row.
        key: `Binary` of all keys; its bitmap is not used, because keys are never null.
        value: `Binary` of all values.
    """

    ends: Ints
    key: Binary
    value: Binary


@kernel
def count_headers(data: Bytes, end: int, headers_at: Longs) -> tuple[int, int, int]:
    """Return three totals of all rows: headers, bytes of header keys, bytes of header values."""
    headers, key_bytes, value_bytes = 0, 0, 0
    for row in range(headers_at.size):
        if headers_at[row] == NO_HEADERS:
            continue
        count, at = read_varint(data, headers_at[row], end)
        for _ in range(count):
            _, key_size, value_at, value_size = _read_header(data, at, end)
            headers += 1
            key_bytes += key_size
            value_bytes += max(value_size, 0)
            at = value_at + max(value_size, 0)
    return headers, key_bytes, value_bytes


@kernel
def fill_headers(data: Bytes, end: int, headers_at: Longs, out: HeaderColumns) -> bool:
    """Fill the columns; return whether all header keys are ASCII, and so need no UTF-8 check."""
    slot, key_used, value_used, joined_bits = 0, 0, 0, 0
    for row in range(headers_at.size):
        if headers_at[row] != NO_HEADERS:
            count, at = read_varint(data, headers_at[row], end)
            for _ in range(count):
                key_at, key_size, value_at, value_size = _read_header(data, at, end)
                at = value_at + max(value_size, 0)
                if not _fits(out, slot, key_used + key_size, value_used + value_size):
                    break
                joined_bits |= _join_bits(data, key_at, key_size)
                key_used = append_binary(out.key, slot, key_used, data, key_at, key_size)
                value_used = append_binary(out.value, slot, value_used, data, value_at, value_size)
                slot += 1
        out.ends[row + 1] = slot
    return joined_bits < 0x80


@inlined
def _fits(out: HeaderColumns, slot: int, key_end: int, value_end: int) -> bool:
    has_slot = slot + 1 < out.key.ends.size
    return has_slot and key_end <= out.key.data.size and value_end <= out.value.data.size


@inlined
def _join_bits(data: Bytes, at: int, size: int) -> int:
    """Return the bitwise OR of the bytes."""
    bits = 0
    for position in range(at, at + size):
        bits |= load_byte(data, position)
    return bits


@inlined
def _read_header(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Return the position and size of a header's key, and the position and size of its value.

    A size is 0 if the key or value would extend beyond `end`.
    """
    key_size, key_at = read_varint(data, at, end)
    if key_size < 0 or key_size > end - key_at:
        return at, 0, end, 0
    value_size, value_at = read_varint(data, key_at + key_size, end)
    if value_size > end - value_at:
        return at, 0, end, 0
    return key_at, key_size, value_at, value_size


@kernel
def validate_batch_body(
    body: Bytes, record_count: int, base_timestamp: int
) -> tuple[int, int, int, int, bool, bool]:
    """Check that `body` consists of exactly `record_count` valid records.

    Returns:
        The last four values are valid only with status DONE.
        - Status: DONE, BAD_COUNT, BAD_RECORD or BAD_REST.
        - Position of the damage.
        - Largest timestamp in ms, at least -1.
        - Smallest timestamp in ms other than -1, 2^63-1 if there is no such timestamp.
        - Whether any record has no key.
        - Whether the offset deltas are 0, 1, 2, ...
    """
    largest, smallest = NO_TIMESTAMP, INT64_MAX
    has_null_key, in_order = False, True
    at, end = 0, body.size
    if record_count < 0 or record_count * RECORD_SIZE_MIN > end:
        return BAD_COUNT, 0, largest, smallest, has_null_key, in_order
    for number in range(record_count):
        after, time_delta, delta, _, key_size, _, _, _ = parse_record(body, at, end)
        if after == INVALID:
            return BAD_RECORD, at, largest, smallest, has_null_key, in_order
        at = after
        timestamp = add_wrapping(base_timestamp, time_delta)
        largest = max(largest, timestamp)
        if timestamp != NO_TIMESTAMP:
            smallest = min(smallest, timestamp)
        has_null_key |= key_size < 0
        in_order &= delta == number
    return DONE if at == end else BAD_REST, at, largest, smallest, has_null_key, in_order


def check_body(
    body: Buffer, record_count: int, base_timestamp: int, /
) -> tuple[int, int, bool, bool]:
    """Return the fields of `storage.log.record_rules.BodyFacts` for the records in `body`.

    Args:
        body: An uncompressed records section.
        record_count: Number of records in the batch's header.
        base_timestamp: The batch's base timestamp in ms. A record's timestamp is base + delta,
            wrapped to 64 bits.

    Raises:
        CorruptRecord: A record breaks its format, the count is impossible, or bytes follow the last
            record. The error's `at` counts from the body's first byte.
    """
    data = np.frombuffer(memoryview(body).toreadonly(), _BYTE)
    status, at, largest, smallest, has_null_key, in_order = validate_batch_body(
        data, record_count, base_timestamp
    )
    if status != DONE:
        raise CorruptRecord(REASONS[status], at=at)
    return largest, smallest, has_null_key, in_order
