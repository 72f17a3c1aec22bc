"""Records reduced to one row for each key: its last record, and digests of all that it had.

A row has `FIELDS` words. Keys stand as 128 bits of SipHash-2-4 under a secret seed, values as 64
bits of SipHash-1-3 under another; 0 stands for null. A record's digest mixes create time and value;
a row's `SET` is the sum of its records' digests, so it knows no order, its `ORDER` a polynomial in
them, so it does. Rows of the same key add up: `merge` takes those of records, of splits and of
partitions alike.

The plain reference is `tidelog.record.key_digests`. Source: SipHash (Aumasson, Bernstein), its
128-bit form as in their reference.
"""

from typing import Final, NamedTuple

from tidelog.record.kernels.arithmetic import add_wrapping, multiply_wrapping, shift_right
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.key_hash import (
    DORANDOM,
    LYGENERA,
    SOMEPSEU,
    TEDBYTES,
    last_word,
    sip_round,
    siphash,
)
from tidelog.record.kernels.layout import DONE, FULL
from tidelog.record.kernels.memory import Bytes, Ints, Longs, load_word, prefetch

# Fields of a row.
HASH_HIGH: Final = 0
HASH_LOW: Final = 1
OFFSET: Final = 2  # of the last record
TIME: Final = 3  # its create time in ms, -1 unknown
VALUE: Final = 4  # digest of its value, 0 for null
COUNT: Final = 5  # records
SET: Final = 6
ORDER: Final = 7
PARTITION: Final = 8  # ~partition where other partitions have the key too
FIELDS: Final = 9

# Places in `facts` of `summarise`.
AT: Final = 0  # the record to go on with
ROWS: Final = 1  # rows written
UNKEYED: Final = 2  # records without a key
UNKEYED_SUM: Final = 3  # sum of their digests
UNTIMED: Final = 4  # records without a create time
FACTS: Final = 5

# Places in `state` of `merge`.
NEXT: Final = 0  # the row to go on with
END: Final = 1  # where rows end
USED: Final = 2  # rows of the table
STATE: Final = 3

# Fields of a span of time; a count of 0 says that the slot is free.
SPAN: Final = 0
SPAN_COUNT: Final = 1
SPAN_SUM: Final = 2
SPAN_FIELDS: Final = 3
# Spans that are counted before the caller takes them away; a power of two.
SPANS: Final = 1024
_SPANS_USED_MAX: Final = 512

# So many rows ahead a row's place in the index is sent for, and then its row of the table.
_FAR: Final = 24
_NEAR: Final = 12

# Places in `seeds`.
KEY_SEED: Final = 0
VALUE_SEED: Final = 2
MIX_SEED: Final = 4
SEEDS: Final = 5

NO_TIME: Final = -1
NO_SPAN: Final = -(1 << 62)  # of records without a create time

# An odd number without pattern (2^64 / golden ratio), and the two of a usual finalizer.
_STEP: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2: Final = 0x94D049BB133111EB - (1 << 64)


class Cells(NamedTuple):
    """A binary column, as Arrow has it.

    Shape:
        ends: int32[n + 1], places in `data`, ascending.
        data: uint8[>= ends[n]].
        is_null: uint8[n], 1 for null.
    """

    ends: Ints
    data: Bytes
    is_null: Bytes


class Incoming(NamedTuple):
    """Records, in the order of offsets.

    Shape:
        offsets: int64[n].
        times: int64[n], create times in ms, -1 unknown.
    """

    keys: Cells
    values: Cells
    offsets: Longs
    times: Longs


@inlined
def hash_value(data: Bytes, start: int, end: int, seed_low: int, seed_high: int) -> int:
    """SipHash-1-3 of bytes [start, end), 1 instead of 0."""
    a, b = seed_low ^ SOMEPSEU, seed_high ^ DORANDOM
    c, d = seed_low ^ LYGENERA, seed_high ^ TEDBYTES
    at = start
    while at + 8 <= end:
        word = load_word(data, at)
        a, b, c, d = sip_round(a, b, c, d ^ word)
        a ^= word
        at += 8
    word = last_word(data, at, end, end - start)
    a, b, c, d = sip_round(a, b, c, d ^ word)
    a ^= word
    c ^= 0xFF
    for _ in range(3):
        a, b, c, d = sip_round(a, b, c, d)
    hashed = a ^ b ^ c ^ d
    return hashed if hashed != 0 else 1


@inlined
def mixed(word: int) -> int:
    """A word whose every bit depends on all bits of another; one to one."""
    word = multiply_wrapping(word ^ shift_right(word, 30), _MIX_1)
    word = multiply_wrapping(word ^ shift_right(word, 27), _MIX_2)
    return word ^ shift_right(word, 31)


@inlined
def _add_span(spans: Longs, span: int, digest: int) -> int:
    """Count a record's digest under its span; the slot, -1 where the table is too full."""
    mask = spans.shape[0] - 1
    slot = span & mask
    for _ in range(_SPANS_USED_MAX):
        if spans[slot, SPAN_COUNT] == 0 or spans[slot, SPAN] == span:
            spans[slot, SPAN] = span
            spans[slot, SPAN_COUNT] += 1
            spans[slot, SPAN_SUM] = add_wrapping(int(spans[slot, SPAN_SUM]), digest)
            return int(slot)
        slot = (slot + 1) & mask
    return -1


@kernel
def summarise(
    records: Incoming, seeds: Longs, span_ms: int, out: Longs, spans: Longs, facts: Longs
) -> int:
    """A row for each record that has a key, and digests by span of create time.

    Shape:
        seeds: int64[SEEDS].
        out: int64[n, FIELDS]; `PARTITION` is left to the caller.
        spans: int64[SPANS, SPAN_FIELDS], added to.
        facts: int64[FACTS], of which `AT` and `ROWS` are set to 0 for new records.

    Returns:
        DONE; or FULL where the caller has to take the spans away, clear them, and call again.
    """
    keys, values = records.keys, records.values
    key_0, key_1 = int(seeds[KEY_SEED]), int(seeds[KEY_SEED + 1])
    value_0, value_1 = int(seeds[VALUE_SEED]), int(seeds[VALUE_SEED + 1])
    row, count = int(facts[ROWS]), records.offsets.size
    for at in range(int(facts[AT]), count):
        time, value, high, low = int(records.times[at]), 0, 0, 0
        if values.is_null[at] == 0:
            start, end = int(values.ends[at]), int(values.ends[at + 1])
            value = hash_value(values.data, start, end, value_0, value_1)
        if keys.is_null[at] == 0:
            start, end = int(keys.ends[at]), int(keys.ends[at + 1])
            high, low = siphash(keys.data, start, end - start, key_0, key_1)
        digest = mixed(mixed(add_wrapping(time, int(seeds[MIX_SEED]))) ^ value)
        span = NO_SPAN if time == NO_TIME else time // span_ms
        if _add_span(spans, span, mixed(digest ^ high) ^ low) < 0:
            facts[AT], facts[ROWS] = at, row
            return FULL
        facts[UNTIMED] += time == NO_TIME
        if keys.is_null[at] != 0:
            facts[UNKEYED] += 1
            facts[UNKEYED_SUM] = add_wrapping(int(facts[UNKEYED_SUM]), digest)
            continue
        out[row, HASH_HIGH], out[row, HASH_LOW] = high, low
        out[row, OFFSET], out[row, TIME], out[row, VALUE] = records.offsets[at], time, value
        out[row, COUNT], out[row, SET], out[row, ORDER] = 1, digest, digest
        row += 1
    facts[AT], facts[ROWS] = count, row
    return DONE


@inlined
def _find(table: Longs, index: Ints, high: int, low: int) -> tuple[int, int]:
    """The slot of a key, and its row in the table, -1 where it is not there."""
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
    """Enter the first `count` rows, each of another key, into an empty index.

    Shape:
        index: int32[a power of two over `count`]: 0, or the number of a row plus 1.
    """
    mask = index.size - 1
    for row in range(count):
        slot = int(table[row, HASH_HIGH]) & mask
        while index[slot] != 0:
            slot = (slot + 1) & mask
        index[slot] = row + 1


@kernel
def merge(rows: Longs, across: int, table: Longs, index: Ints, state: Longs) -> int:
    """Add rows to a table of one row for each key.

    Args:
        rows: int64[>= state[END], FIELDS].
        across: 0 where what is added lies behind what the table has, in the same partition; 1 where
            it is of another partition: then the later create time counts, and of equal ones the
            higher partition.
        table: int64[capacity, FIELDS].
        index: int32[a power of two], see `index_rows`; never more than half full.
        state: int64[STATE].

    Returns:
        DONE; or FULL where the table or the index is, with `state[NEXT]` to go on with.
    """
    limit, mask = min(table.shape[0], index.size // 2), index.size - 1
    end = int(state[END])
    for at in range(int(state[NEXT]), end):
        # A table is larger than caches: what a later row needs is sent for now.
        if at + _FAR < end:
            prefetch(index, int(rows[at + _FAR, HASH_HIGH]) & mask)
        if at + _NEAR < end:
            known = int(index[int(rows[at + _NEAR, HASH_HIGH]) & mask])
            if known != 0:
                prefetch(table, (known - 1) * FIELDS)
                prefetch(table, known * FIELDS - 1)
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
    """Add what is known of a key to its row."""
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
    """The partition without its mark."""
    return partition if partition >= 0 else ~partition


@inlined
def _beats(rows: Longs, at: int, table: Longs, row: int) -> bool:
    """Whether a row of another partition is the later one."""
    if rows[at, TIME] != table[row, TIME]:
        return bool(rows[at, TIME] > table[row, TIME])
    return bool(_plain(rows[at, PARTITION]) > _plain(table[row, PARTITION]))


@inlined
def _power(count: int) -> int:
    """`_STEP` to the power of a count from 1 on, as a machine word holds it."""
    result, base = 1, _STEP
    while count > 1:
        if count & 1 != 0:
            result = multiply_wrapping(result, base)
        base = multiply_wrapping(base, base)
        count >>= 1
    return multiply_wrapping(result, base)


@kernel
def match(rows: Longs, table: Longs, index: Ints, out: Ints) -> None:
    """For each row the row of the table that has its key, -1 where none has.

    Shape:
        rows: int64[n, FIELDS].
        out: int32[n], written.
    """
    for at in range(rows.shape[0]):
        out[at] = _find(table, index, int(rows[at, HASH_HIGH]), int(rows[at, HASH_LOW]))[1]
