"""Rows of one key each: its last record, and digests of all that it had.

A row has `FIELDS` words. Keys stand as 128 bits of SipHash-2-4 under a secret seed, values as the
64 bits of `value_hash` under another; 0 stands for null. A record's digest mixes create time and
value; a row's `SET` is the sum of its records' digests, so it knows no order, its `ORDER` a
polynomial in them, so it does. Rows of the same key add up: `merge` takes those of splits and of
partitions alike; those of records are made by `fold`.

The plain reference is `tests/worlds/records/plain_digests.py`.
"""

from typing import Final

from tidelog.record.kernels.arithmetic import add_wrapping, multiply_wrapping
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.layout import DONE, FULL
from tidelog.record.kernels.memory import Ints, Longs, prefetch

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

# Places in `state` of `merge`.
NEXT: Final = 0  # the row to go on with
END: Final = 1  # where rows end
USED: Final = 2  # rows of the table
STATE: Final = 3

# So many rows ahead a row's place in the index is sent for, and then its row of the table.
_FAR: Final = 24
_NEAR: Final = 12

NO_SPAN: Final = -(1 << 62)  # of records without a create time

# An odd number without pattern (2^64 / golden ratio), in whose powers `ORDER` is a polynomial.
STEP: Final = 0x9E3779B97F4A7C15 - (1 << 64)


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
    """`STEP` to the power of a count from 1 on, as a machine word holds it."""
    result, base = 1, STEP
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
