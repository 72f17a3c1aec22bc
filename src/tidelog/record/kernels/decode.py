"""Records of magic 2 bodies to columns in one pass; it stops when the columns are full.

A body is walked record by record. Every length is compared with what is left before it is used,
and a record is taken only where its fields end exactly where it does. Rows outside the filter are
checked like the others, and left out.

Source: docs/format.md#record. The rules are those of `tidelog.record.record`, the plain reference.
"""

from typing import Final, NamedTuple

from tidelog.record.header import HEADERS_MAX, TIMESTAMP_TYPE_BIT
from tidelog.record.kernels.arithmetic import add_wrapping
from tidelog.record.kernels.checksums import sum_batch
from tidelog.record.kernels.compiler import inlined, kernel
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
from tidelog.record.kernels.varints import POISON, read_varint, read_varlong
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import INT64_MAX, NO_TIMESTAMP

RECORD_HEADER_SIZE_MIN: Final = 2
# In place of the header count's place, where the count is 0.
NO_HEADERS: Final = -1

# Places in `progress`: where to go on, how full the columns are, what was seen on the way.
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
# `progress[AT]` of a batch that was not begun.
UNOPENED: Final = -1

# What is made of keys and of values: nothing, a column of copies, or one of views.
LEFT_OUT: Final = 0
COPIED: Final = 1
VIEWED: Final = 2

# Arrow's view of a value: four words of 4 bytes, with up to 12 bytes of it inside.
VIEW_WORDS: Final = 4
_INSIDE_SIZE_MAX: Final = 12
_WORD_SIZE: Final = 4
_SIGN: Final = 1 << 31


class Filter(NamedTuple):
    """Which rows to take, and what to copy of them.

    Attributes:
        offset_start: First offset, inclusive.
        offset_end: Last offset, exclusive.
        by_time: 1 to filter by record time too; records without a time are then left out.
        time_start: First record time in ms, inclusive.
        time_end: Last record time in ms, exclusive; INT64_MAX for no end.
        keys: `LEFT_OUT`, `COPIED` or `VIEWED`.
        values: Likewise.
    """

    offset_start: int
    offset_end: int
    by_time: int
    time_start: int
    time_end: int
    keys: int
    values: int


class Binary(NamedTuple):
    """An Arrow binary column that is being filled; the caller allocates.

    Shape:
        ends: int32[rows + 1], the first is 0; nothing is written of a column of views.
        data: uint8[capacity in bytes], likewise.
        valid: uint8[(rows + 7) // 8], all bits set by the caller; a null clears its own.
        views: int32[rows * VIEW_WORDS] of a column of views, int32[0] of others.
    """

    ends: Ints
    data: Bytes
    valid: Bytes
    views: Ints


class Columns(NamedTuple):
    """What `decode_batches` fills; the caller allocates.

    Shape:
        offsets: int64[rows]; its length is the number of rows to stop at.
        timestamps: int64[rows], -1 for none; int64[0] where nobody asks. May be the same array as
            `creates` where no batch is LogAppendTime and no create time is lost.
        creates: int64[rows], -1 for none or lost; int64[0] where nobody asks.
        headers_at: int64[rows], place of the header count, `NO_HEADERS` where that is 0; int64[0]
            where nobody asks.
        rows_end: int64[batches], number of rows when the batch of the table was left.
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
    """The record at `at` of a body that ends at `end`.

    Returns:
        The place behind it or `POISON`; timestamp delta; offset delta; the key's place and size;
        the value's place and size; place of the header count or `NO_HEADERS`. A size of -1 is
        null. Nothing but the first means anything where that is `POISON`.
    """
    size, at = read_varint(data, at, end)
    if size < 0 or size > end - at:
        return POISON, 0, 0, 0, 0, 0, 0, 0
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
        return POISON, 0, 0, 0, 0, 0, 0, 0
    return at, time_delta, offset_delta, key_at, key_size, value_at, value_size, headers_at


@inlined
def skip_headers(data: Bytes, at: int, end: int, count: int) -> int:
    """The place behind `count` headers, `POISON` where one of them breaks a rule."""
    if count < 0 or count > min((end - at) // RECORD_HEADER_SIZE_MIN, HEADERS_MAX):
        return POISON
    for _ in range(count):
        key_size, at = read_varint(data, at, end)
        value_size, at = read_varint(data, at + max(key_size, 0), end)
        at += max(value_size, 0)
        if key_size < 0 or value_size < -1 or at > end:
            return POISON
    return at


@kernel
def decode_batches(
    data: Bytes, table: Longs, rows: Filter, out: Columns, progress: Longs, shifts: Longs
) -> tuple[int, int]:
    """Decode the batches of `table` from `progress` on, until they or the columns are through.

    Shape:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies not compressed.
        progress: int64[PROGRESS_FIELDS], for the first call zeros but `UNOPENED` in `AT`. Before
            another call the caller empties the columns and everything from `ROWS` on.
        shifts: Tables of `checksums`, to check each batch's checksum just before its records are
            read, while they are near: headers and all lie in `data` then. int64[0] to check none.

    Returns:
        A status and a place: DONE; FULL and the record that does not fit; BAD_SUM and the
        checksum of the batch's bytes; or another BAD_ status and the record or body concerned.
    """
    while progress[BATCH] < table.shape[0]:
        slot = progress[BATCH]
        if shifts.size != 0 and progress[AT] == UNOPENED:
            found = sum_batch(data, table[slot], shifts)
            if found != table[slot, CRC]:
                out.rows_end[slot] = progress[ROWS]
                return BAD_SUM, found
        status = _decode_batch(data, table[slot], rows, out, progress, table[0, BODY_START])
        out.rows_end[slot] = progress[ROWS]
        if status != DONE:
            return status, progress[AT]
        progress[BATCH] = slot + 1
        progress[AT] = UNOPENED
    return DONE, 0


@inlined
def _decode_batch(
    data: Bytes, batch: Longs, rows: Filter, out: Columns, progress: Longs, view_start: int
) -> int:
    """Decode one batch, or what is left of it."""
    if progress[AT] == UNOPENED:
        progress[AT] = batch[BODY_START]
        progress[RECORD] = 0
        progress[LAST_DELTA] = -1
        count = batch[RECORD_COUNT]
        if count < 0 or count * RECORD_SIZE_MIN > batch[BODY_END] - batch[BODY_START]:
            return BAD_COUNT
    status = _decode_records(data, batch, rows, out, progress, view_start)
    if status == DONE and progress[AT] != batch[BODY_END]:
        return BAD_REST
    return status


@inlined
def _decode_records(
    data: Bytes, batch: Longs, rows: Filter, out: Columns, progress: Longs, view_start: int
) -> int:
    """Decode records; `progress` is left at the one that it stopped at."""
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
        if after == POISON or delta <= last_delta or delta > delta_max:
            status = BAD_RECORD if after == POISON else BAD_DELTA
            break
        created = add_wrapping(base_timestamp, time_delta)
        timestamp = append_time if is_append_time else created
        if is_wanted(base_offset + delta, timestamp, rows):
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
    """Count what is rare, so that nobody has to look for it in columns that have none."""
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
def is_wanted(offset: int, timestamp: int, rows: Filter) -> bool:
    """Whether the filter takes a record of this offset and time."""
    if not is_inside(offset, rows):
        return False
    if not rows.by_time:
        return True
    is_before_end = timestamp < rows.time_end or rows.time_end == INT64_MAX
    return timestamp != NO_TIMESTAMP and rows.time_start <= timestamp and is_before_end


@inlined
def _keep(column: Longs, row: int, value: int) -> None:
    """Set a row of a column that somebody asked for."""
    if row < column.size:
        put_long(column, row, value)


@inlined
def _put(  # noqa: PLR0913 - a value's place, and where it goes
    mode: int, column: Binary, row: int, used: int, data: Bytes, at: int, size: int, start: int
) -> int:
    """Set a row of a column as `Filter` asks for it; the bytes of copies that it then holds."""
    if mode == COPIED:
        used = append_binary(column, row, used, data, at, size)
    elif mode == VIEWED:
        put_view(column, row, data, at, size, start)
    return used


@inlined
def append_binary(column: Binary, row: int, used: int, data: Bytes, at: int, size: int) -> int:
    """Append one value, null where `size` is -1; the bytes that the column then holds."""
    if size > 0:
        copy_bytes(column.data, used, data, at, size)
        used += size
    elif size < 0:
        column.valid[row >> 3] &= 0xFF ^ (1 << (row & 7))
    column.ends[row + 1] = used
    return used


@inlined
def put_view(column: Binary, row: int, data: Bytes, at: int, size: int, start: int) -> None:
    """Set one view, null where `size` is -1.

    Arrow's layout: the size and the first 4 bytes, then 8 more bytes of a small value; of another
    the number of its buffer, 0 here, and its place there, less than 2^31. The buffer begins at
    `start` of `data`.
    """
    place = VIEW_WORDS * row
    if size < 0:
        column.valid[row >> 3] &= 0xFF ^ (1 << (row & 7))
        size = 0
    third, fourth = 0, at - start
    if size <= _INSIDE_SIZE_MAX:
        third = _load_few(data, at + _WORD_SIZE, size - _WORD_SIZE)
        fourth = _load_few(data, at + 2 * _WORD_SIZE, size - 2 * _WORD_SIZE)
    column.views[place] = size
    column.views[place + 1] = _load_few(data, at, size)
    column.views[place + 2] = third
    column.views[place + 3] = fourth


@inlined
def _load_few(data: Bytes, at: int, size: int) -> int:
    """The first 4 of `size` bytes as a little-endian int32, zeros behind the last one."""
    count = min(size, _WORD_SIZE)
    if count <= 0:
        return 0
    word = 0
    if at + 2 * _WORD_SIZE <= data.size:
        word = load_word(data, at) & ((1 << (8 * count)) - 1)
    else:
        for place in range(count):
            word |= load_byte(data, at + place) << (8 * place)
    return (word ^ _SIGN) - _SIGN
