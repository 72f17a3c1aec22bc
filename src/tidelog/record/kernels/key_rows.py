"""Reduces records to one row per key: the key's last record and digests of all its records.

A row has `ROW_WORDS` words (64 bytes, a cache line). The rows of `merge` have one more word, the
partition. A key is stored as its SipHash-2-4 hash of 128 bits, a value as its `hash_value` of 64
bits. The two hashes have separate secret seeds. A null value is stored as 0. The digest of a record
mixes create time and value. A row's `SET` is the sum of the digests, and does not depend on the
order of the records. A row's `ORDER` is a polynomial of the digests, and depends on the order of
the records. `merge` combines rows of one key from several splits and partitions.

`fold_batches` reads records in place in the log and copies nothing. The table exceeds the CPU
caches, so a record waits in a window until the table's row for its key is prefetched.
`fold_columns` reads columns, because records from brokers arrive as columns. Plain reference:
`tests/worlds/records/plain_digests.py`.
"""

from typing import Final, NamedTuple

from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels.checksums import sum_batch
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.hashes import KEY_SEED, MIX_SEED, hash_value, siphash
from tidelog.record.kernels.integers import INVALID, add_wrapping, multiply_wrapping, shift_right
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
    CRC,
    CREATE_LOST,
    CREATE_STATE,
    DONE,
    FULL,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    RECORD_COUNT,
)
from tidelog.record.kernels.memory import Bytes, Ints, Longs, get_long, prefetch, put_long
from tidelog.record.kernels.records import (
    AT,
    BATCH,
    LAST_DELTA,
    RECORD,
    ROWS,
    UNOPENED,
    WITHOUT_TIME,
    Filter,
    is_inside,
    is_selected,
    open_batch,
    parse_record,
)
from tidelog.types import INT64_MAX, NO_TIMESTAMP

# Fields of a row.
HASH_HIGH: Final = 0

HASH_LOW: Final = 1
OFFSET: Final = 2  # offset of the last record
TIME: Final = 3  # create time of the last record in ms, -1 if unknown
VALUE: Final = 4  # hash of the last record's value, 0 for null
COUNT: Final = 5  # records
SET: Final = 6
ORDER: Final = 7
# partition of the last record, as its bitwise complement if other partitions also have the key
PARTITION: Final = 8
FIELDS: Final = 9

# Indices in `state` of `merge`.
NEXT: Final = 0  # next row to add

END: Final = 1  # end of the rows
USED: Final = 2  # rows in the table
STATE: Final = 3

# Prefetch distances: a row's index entry is prefetched `_FAR` rows ahead, and then the table's row
# with the same key `_NEAR` rows ahead.
_FAR: Final = 24

_NEAR: Final = 12
NO_SPAN: Final = -(1 << 62)  # span index of records without a create time

# Base of the polynomial `ORDER`: 2^64 / golden ratio, an odd number with irregular bits.
STEP: Final = 0x9E3779B97F4A7C15 - (1 << 64)


@inlined
def _find(table: Longs, index: Ints, high: int, low: int) -> tuple[int, int]:
    """Return the slot of a key, and the key's row in the table, -1 if the key is missing."""
    mask = index.size - 1
    slot = high & mask
    while index[slot] != 0:
        row = int(index[slot]) - 1
        if table[row, HASH_HIGH] == high and table[row, HASH_LOW] == low:
            return slot, row
        slot = (slot + 1) & mask
    return slot, -1


@kernel
def index_rows(table: Longs, count: int, index: Ints) -> None:
    """Add the first `count` rows, which have different keys, to an empty index.

    Shape:
        index: int32[a power of two above `count`]: 0, or a row's index plus 1.
    """
    mask = index.size - 1
    for row in range(count):
        slot = int(table[row, HASH_HIGH]) & mask
        while index[slot] != 0:
            slot = (slot + 1) & mask
        index[slot] = row + 1


@kernel
def merge(rows: Longs, across: int, table: Longs, index: Ints, state: Longs) -> int:
    """Add rows to a table that has one row for each key.

    Args:
        rows: int64[>= state[END], FIELDS].
        across: 0 if the added rows are of the same partition as the table's rows and have higher
            offsets. 1 if the added rows are of another partition. With 1, the record with the later
            create time wins. If both times are equal, the record of the higher partition wins.
        table: int64[capacity, FIELDS].
        index: int32[a power of two], see `index_rows`; never more than half full.
        state: int64[STATE].

    Returns:
        DONE, or FULL if the table or the index is full. With FULL, `state[NEXT]` is the next row to
        add.
    """
    limit, mask = min(table.shape[0], index.size // 2), index.size - 1
    end = int(state[END])
    for at in range(int(state[NEXT]), end):
        # The table exceeds the CPU caches, so the loop prefetches data for later rows.
        if at + _FAR < end:
            prefetch(index, int(rows[at + _FAR, HASH_HIGH]) & mask)
        if at + _NEAR < end:
            row_number = int(index[int(rows[at + _NEAR, HASH_HIGH]) & mask])
            if row_number != 0:
                prefetch(table, (row_number - 1) * FIELDS)
                prefetch(table, row_number * FIELDS - 1)
        slot, row = _find(table, index, int(rows[at, HASH_HIGH]), int(rows[at, HASH_LOW]))
        if row >= 0:
            _add_row(table, row, rows, at, across)
            continue
        row = int(state[USED])
        if row >= limit:
            state[NEXT] = at
            return FULL
        for field in range(FIELDS):
            table[row, field] = rows[at, field]
        index[slot] = row + 1
        state[USED] = row + 1
    state[NEXT] = state[END]
    return DONE


@inlined
def _add_row(table: Longs, row: int, rows: Longs, at: int, across: int) -> None:
    """Merge a row into the table's row with the same key; counts and digests are added."""
    count, order = int(rows[at, COUNT]), int(rows[at, ORDER])
    table[row, COUNT] += count
    table[row, SET] = add_wrapping(int(table[row, SET]), int(rows[at, SET]))
    before, is_later = int(table[row, ORDER]), True
    if across != 0:
        table[row, ORDER] = add_wrapping(before, order)
        is_later = _beats(rows, at, table, row)
    else:
        table[row, ORDER] = add_wrapping(multiply_wrapping(before, _power(count)), order)
    partition = rows[at, PARTITION] if is_later else table[row, PARTITION]
    if is_later:
        for field in range(OFFSET, COUNT):
            table[row, field] = rows[at, field]
    table[row, PARTITION] = ~_plain(partition) if across != 0 else partition


@inlined
def _plain(partition: int) -> int:
    """Return the partition's index from a stored value, which may be its bitwise complement."""
    return partition if partition >= 0 else ~partition


@inlined
def _beats(rows: Longs, at: int, table: Longs, row: int) -> bool:
    """Whether a row's last record wins over the last record of the table's row; see `merge`."""
    if rows[at, TIME] != table[row, TIME]:
        return bool(rows[at, TIME] > table[row, TIME])
    return bool(_plain(rows[at, PARTITION]) > _plain(table[row, PARTITION]))


@inlined
def _power(count: int) -> int:
    """Return `STEP` to the power of `count`, which is at least 1, wrapped to 64 bits."""
    result, base = 1, STEP
    while count > 1:
        if count & 1 != 0:
            result = multiply_wrapping(result, base)
        base = multiply_wrapping(base, base)
        count >>= 1
    return multiply_wrapping(result, base)


@kernel
def match(rows: Longs, table: Longs, index: Ints, out: Ints) -> None:
    """Find, for each row, the index of the table's row with the same key; -1 if there is none.

    Shape:
        rows: int64[n, FIELDS].
        out: int32[n], written.
    """
    for at in range(rows.shape[0]):
        out[at] = _find(table, index, int(rows[at, HASH_HIGH]), int(rows[at, HASH_LOW]))[1]


# Number of words of a row in the table of `fold_batches`. The row has all fields but `PARTITION`,
# which only `merge` needs.
ROW_WORDS: Final = PARTITION

# Number of words in a row of the window, and number of rows of the window.
_DIGEST: Final = COUNT

WINDOW_WORDS: Final = _DIGEST + 1
WINDOW_ROWS: Final = 64

# Indices in `state`.
ROW_USED: Final = 0  # rows in the table

WAITING: Final = 1  # rows in the window
INSERTED: Final = 2  # rows of the window that are already in the table
RECORDS: Final = 3
UNKEYED: Final = 4  # records without a key
UNKEYED_SUM: Final = 5  # sum of their digests
UNTIMED: Final = 6  # records without a create time
END_OFFSET: Final = 7  # offset after the last record

# The last record's span of time: its slot, its first and its last time in ms (both inclusive).
# If there is no such span, the last time is below the first time.
SPAN_SLOT: Final = 8

SPAN_FIRST: Final = 9
SPAN_LAST: Final = 10
ROW_STATE: Final = 11

# Fields of a span of time; a count of 0 marks a free slot.
SPAN: Final = 0

SPAN_COUNT: Final = 1
SPAN_SUM: Final = 2
SPAN_FIELDS: Final = 3

# Number of slots for spans, a power of two. If the search for a free slot fails after
# `_SPANS_USED_MAX` slots, the caller stores and clears the spans.
SPANS: Final = 1024

_SPANS_USED_MAX: Final = 512

# Constants of the finalizer of splitmix64.
_MIX_1: Final = 0xBF58476D1CE4E5B9 - (1 << 64)

_MIX_2: Final = 0x94D049BB133111EB - (1 << 64)


class KeyRows(NamedTuple):
    """Table of `fold_batches` and `fold_columns`, with its index and its window.

    Shape:
        rows: int64[capacity * ROW_WORDS].
        slots: int32[a power of two], the index: 0 (initially), or a row's index plus 1. At most
            half of the slots are used.
        window: int64[WINDOW_ROWS * WINDOW_WORDS].
        state: int64[ROW_STATE], initially zeros except `SPAN_LAST`, which is -1.
        spans: int64[SPANS, SPAN_FIELDS], initially zeros.
        words: int64[WORDS] of `hashes`.

    Attributes:
        span_ms: Length of a span of time in ms.
    """

    rows: Longs
    slots: Ints
    window: Longs
    state: Longs
    spans: Longs
    words: Longs
    span_ms: int


@inlined
def _mixed(word: int) -> int:
    """Mix a word one-to-one, so that each bit depends on all bits of the input."""
    word = multiply_wrapping(word ^ shift_right(word, 30), _MIX_1)
    word = multiply_wrapping(word ^ shift_right(word, 27), _MIX_2)
    return word ^ shift_right(word, 31)


@inlined
def _span_slot(time: int, into: KeyRows) -> int:
    """Return the slot for the span of a time.

    The result is -1 if other spans use all of the `_SPANS_USED_MAX` slots that are searched.
    """
    state, spans = into.state, into.spans
    if state[SPAN_FIRST] <= time <= state[SPAN_LAST]:
        return int(state[SPAN_SLOT])
    span = NO_SPAN if time == NO_TIMESTAMP else time // into.span_ms
    mask = spans.shape[0] - 1
    slot = span & mask
    for _ in range(_SPANS_USED_MAX):
        if spans[slot, SPAN_COUNT] == 0 or spans[slot, SPAN] == span:
            spans[slot, SPAN] = span
            if 0 <= time < INT64_MAX - into.span_ms:
                state[SPAN_SLOT], state[SPAN_FIRST] = slot, span * into.span_ms
                state[SPAN_LAST] = state[SPAN_FIRST] + (into.span_ms - 1)
            return int(slot)
        slot = (slot + 1) & mask
    return -1


@inlined
def take_record(  # noqa: PLR0913 - a record
    keys: Bytes,
    key_at: int,
    key_size: int,
    values: Bytes,
    value_at: int,
    value_size: int,
    offset: int,
    time: int,
    into: KeyRows,
) -> bool:
    """Add a record. A size of -1 means that the key or value is null.

    Returns False, without adding the record, if no slot is free for the record's span: the caller
    must store and clear the spans, and call again. The caller must ensure that the window has room
    for a record.
    """
    state, spans, words = into.state, into.spans, into.words
    slot = _span_slot(time, into)
    if slot < 0:
        return False
    value = high = low = 0
    if value_size >= 0:
        value = hash_value(values, value_at, value_size, words)
    if key_size >= 0:
        seed_low, seed_high = get_long(words, KEY_SEED), get_long(words, KEY_SEED + 1)
        high, low = siphash(keys, key_at, key_size, seed_low, seed_high)
    digest = _mixed(_mixed(add_wrapping(time, get_long(words, MIX_SEED))) ^ value)
    spans[slot, SPAN_COUNT] += 1
    spans[slot, SPAN_SUM] = add_wrapping(int(spans[slot, SPAN_SUM]), _mixed(digest ^ high) ^ low)
    state[RECORDS] += 1
    state[UNTIMED] += 1 if time == NO_TIMESTAMP else 0
    if key_size < 0:
        state[UNKEYED] += 1
        state[UNKEYED_SUM] = add_wrapping(int(state[UNKEYED_SUM]), digest)
        return True
    prefetch(into.slots, high & (into.slots.size - 1))
    row = state[WAITING] * WINDOW_WORDS
    put_long(into.window, row + HASH_HIGH, high)
    put_long(into.window, row + HASH_LOW, low)
    put_long(into.window, row + OFFSET, offset)
    put_long(into.window, row + TIME, time)
    put_long(into.window, row + VALUE, value)
    put_long(into.window, row + _DIGEST, digest)
    state[WAITING] += 1
    return True


@kernel
def take_window(into: KeyRows) -> int:
    """Move the window's rows to the table.

    Returns:
        DONE if all rows were moved, or FULL if the table or the index is full.
    """
    rows, index, window, state = into.rows, into.slots, into.window, into.state
    mask, limit = index.size - 1, min(rows.size // ROW_WORDS, index.size // 2)
    waiting = int(state[WAITING])
    for at in range(int(state[INSERTED]), waiting):
        row_number = int(index[get_long(window, at * WINDOW_WORDS + HASH_HIGH) & mask])
        if row_number != 0:
            prefetch(rows, (row_number - 1) * ROW_WORDS)
    for at in range(int(state[INSERTED]), waiting):
        window_at = at * WINDOW_WORDS
        slot, row = _find_row(rows, index, window, window_at)
        if row >= 0:
            _add(rows, row * ROW_WORDS, window, window_at)
            continue
        row = int(state[ROW_USED])
        if row >= limit:
            state[INSERTED] = at
            return FULL
        _begin(rows, row * ROW_WORDS, window, window_at)
        index[slot] = row + 1
        state[ROW_USED] = row + 1
    state[WAITING] = state[INSERTED] = 0
    return DONE


@inlined
def _find_row(rows: Longs, index: Ints, window: Longs, window_at: int) -> tuple[int, int]:
    """Return the slot of a key, and the key's row in the table, -1 if the key is missing."""
    mask = index.size - 1
    high, low = get_long(window, window_at + HASH_HIGH), get_long(window, window_at + HASH_LOW)
    slot = high & mask
    while index[slot] != 0:
        row = int(index[slot]) - 1
        at = row * ROW_WORDS
        if get_long(rows, at + HASH_HIGH) == high and get_long(rows, at + HASH_LOW) == low:
            return slot, row
        slot = (slot + 1) & mask
    return slot, -1


@inlined
def _begin(rows: Longs, at: int, window: Longs, window_at: int) -> None:
    """Write the row of a key's first record."""
    for word in range(_DIGEST):
        put_long(rows, at + word, get_long(window, window_at + word))
    digest = get_long(window, window_at + _DIGEST)
    put_long(rows, at + COUNT, 1)
    put_long(rows, at + SET, digest)
    put_long(rows, at + ORDER, digest)


@inlined
def _add(rows: Longs, at: int, window: Longs, window_at: int) -> None:
    """Add a record to its key's row. The record's offset must be the highest so far."""
    digest = get_long(window, window_at + _DIGEST)
    for word in range(OFFSET, COUNT):
        put_long(rows, at + word, get_long(window, window_at + word))
    put_long(rows, at + COUNT, get_long(rows, at + COUNT) + 1)
    put_long(rows, at + SET, add_wrapping(get_long(rows, at + SET), digest))
    order = multiply_wrapping(get_long(rows, at + ORDER), STEP)
    put_long(rows, at + ORDER, add_wrapping(order, digest))


@kernel
def index_fold_rows(rows: Longs, count: int, index: Ints) -> None:
    """Add the first `count` rows, which have different keys, to an empty index."""
    mask = index.size - 1
    for row in range(count):
        slot = get_long(rows, row * ROW_WORDS + HASH_HIGH) & mask
        while index[slot] != 0:
            slot = (slot + 1) & mask
        index[slot] = row + 1


@kernel
def fold_batches(
    data: Bytes, table: Longs, rows: Filter, sums: Longs, into: KeyRows, progress: Longs
) -> tuple[int, int]:
    """Add the records of batches from `progress` on.

    Shape:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies uncompressed.
        sums: Tables of `checksums`, to check each batch's checksum just before its records are
            read; int64[0] for no check.
        progress: See `records.decode_batches`; its fields about columns stay unchanged.

    Returns:
        A status and a number, as in `records.decode_batches`. After FULL the caller makes room in
        the rows of keys, stores and clears the spans, and calls again.
    """
    while progress[BATCH] < table.shape[0]:
        slot = progress[BATCH]
        batch = table[slot]
        if progress[AT] == UNOPENED:
            if sums.size != 0:
                checksum = sum_batch(data, batch, sums)
                if checksum != batch[CRC]:
                    return BAD_SUM, checksum
            if not open_batch(batch, progress):
                return BAD_COUNT, progress[AT]
        status = _fold_records(data, batch, rows, into, progress)
        if status == DONE and progress[AT] != batch[BODY_END]:
            status = BAD_REST
        if status != DONE:
            return status, progress[AT]
        progress[BATCH] = slot + 1
        progress[AT] = UNOPENED
    return DONE, 0


@inlined
def _fold_records(data: Bytes, batch: Longs, rows: Filter, into: KeyRows, progress: Longs) -> int:
    """Add the records of a batch, and return a status.

    `progress` is set to the first record that was not processed.
    """
    base_offset, base_timestamp = batch[BASE_OFFSET], batch[BASE_TIMESTAMP]
    delta_max = batch[LAST_OFFSET] - base_offset
    is_append_time = batch[ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    append_time, is_lost = batch[MAX_TIMESTAMP], batch[CREATE_STATE] == CREATE_LOST
    end, count = batch[BODY_END], batch[RECORD_COUNT]
    at, record, last_delta = progress[AT], progress[RECORD], progress[LAST_DELTA]
    status = DONE
    while record < count:
        if into.state[WAITING] == WINDOW_ROWS and take_window(into) == FULL:
            status = FULL
            break
        after, time_delta, delta, key_at, key_size, value_at, value_size, _ = parse_record(
            data, at, end
        )
        if after == INVALID or delta <= last_delta or delta > delta_max:
            status = BAD_RECORD if after == INVALID else BAD_DELTA
            break
        created, offset = add_wrapping(base_timestamp, time_delta), base_offset + delta
        timestamp = append_time if is_append_time else created
        if is_selected(offset, timestamp, rows):
            created = NO_TIMESTAMP if is_lost else created
            if not take_record(
                data, key_at, key_size, data, value_at, value_size, offset, created, into
            ):
                status = FULL
                break
            progress[ROWS] += 1
            into.state[END_OFFSET] = offset + 1
        elif rows.by_time and timestamp == NO_TIMESTAMP and is_inside(offset, rows):
            progress[WITHOUT_TIME] += 1
        at, last_delta = after, delta
        record += 1
    progress[AT], progress[RECORD], progress[LAST_DELTA] = at, record, last_delta
    return status


class Cells(NamedTuple):
    """A binary column in Arrow's layout.

    Shape:
        ends: int32[n + 1], ascending; value n is `data[ends[n]:ends[n + 1]]`.
        data: uint8[>= ends[n]].
        is_null: uint8[n], 1 for null.
    """

    ends: Ints
    data: Bytes
    is_null: Bytes


class Incoming(NamedTuple):
    """Records in the order of their offsets.

    Shape:
        offsets: int64[n].
        times: int64[n], create times in ms, -1 if unknown.
    """

    keys: Cells
    values: Cells
    offsets: Longs
    times: Longs


@kernel
def fold_columns(records: Incoming, start: int, into: KeyRows) -> int:
    """Add records from columns, from `start` on.

    Returns:
        The next record to add; if records are left, the caller makes room in the table, stores and
        clears the spans, and calls again.
    """
    keys, values = records.keys, records.values
    for at in range(start, records.offsets.size):
        if into.state[WAITING] == WINDOW_ROWS and take_window(into) == FULL:
            return at
        key_at, value_at = int(keys.ends[at]), int(values.ends[at])
        key_size = -1 if keys.is_null[at] != 0 else int(keys.ends[at + 1]) - key_at
        value_size = -1 if values.is_null[at] != 0 else int(values.ends[at + 1]) - value_at
        offset, time = int(records.offsets[at]), int(records.times[at])
        if not take_record(
            keys.data, key_at, key_size, values.data, value_at, value_size, offset, time, into
        ):
            return at
        into.state[END_OFFSET] = offset + 1
    return int(records.offsets.size)
