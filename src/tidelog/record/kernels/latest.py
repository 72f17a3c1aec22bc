"""The last record of each key in a piece of a log: what is left where only the last one counts.

Open addressing over rows that say where keys and values lie; keys are compared whole. The hash has
a secret seed, so that nobody chooses keys that fall together. The plain reference is a dict
(tests/unit/record/test_latest.py).
"""

from typing import Final, NamedTuple

from tidelog.record.kernels.checksums import sum_batch
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.decode import parse_record
from tidelog.record.kernels.key_hash import siphash
from tidelog.record.kernels.layout import (
    BAD_COUNT,
    BAD_DELTA,
    BAD_RECORD,
    BAD_REST,
    BAD_SUM,
    BASE_OFFSET,
    BODY_END,
    BODY_START,
    CRC,
    DONE,
    FULL,
    LAST_OFFSET,
    RECORD_COUNT,
)
from tidelog.record.kernels.memory import Bytes, Ints, Longs, load_byte, load_word
from tidelog.record.kernels.varints import POISON
from tidelog.record.record import RECORD_SIZE_MIN

# Columns of a row: where the key and the value of its last record lie, and which one that is.
KEY_AT: Final = 0
KEY_END: Final = 1
VALUE_AT: Final = 2
VALUE_END: Final = 3  # below VALUE_AT: it is null
OFFSET: Final = 4
DEAD_OFFSET: Final = 5  # of the key's last record with a null value, -1 where it has none
HASH: Final = 6
ROW_FIELDS: Final = 7

# Places in `facts`.
ROWS: Final = 0  # rows in use
UNKEYED: Final = 1  # records without a key
FACT_FIELDS: Final = 2

# Places in `seeds`.
SEED_LOW: Final = 0
SEED_HIGH: Final = 1
SEED_FIELDS: Final = 2

_NONE: Final = -1


class LatestRows(NamedTuple):
    """What a call fills; the caller allocates.

    Shape:
        slots: int32[a power of two above the rows], all -1 at first: the row of a key.
        rows: int64[keys at most, ROW_FIELDS], in the order in which keys are met first.
        facts: int64[FACT_FIELDS], zeros at first.
    """

    slots: Ints
    rows: Longs
    facts: Longs


@kernel
def find_latest(data: Bytes, table: Longs, shifts: Longs, seeds: Longs, out: LatestRows) -> int:
    """The last record of each key in some batches, whose checksums are verified.

    Shape:
        data: uint8[>= every BODY_END of the table], the batches with their headers.
        table: int64[batches, BATCH_FIELDS], magic 2, not compressed, in the order of the log.
        shifts: `checksums.shifts()`.
        seeds: int64[SEED_FIELDS], secret.

    Returns:
        DONE; FULL where there are more keys than rows; or a BAD_ status: then what is in `out`
        is worth nothing.
    """
    for batch in range(table.shape[0]):
        if sum_batch(data, table[batch], shifts) != table[batch, CRC]:
            return BAD_SUM
        status = _take_batch(data, table[batch], seeds, out)
        if status != DONE:
            return status
    return DONE


@inlined
def _take_batch(data: Bytes, batch: Longs, seeds: Longs, out: LatestRows) -> int:
    at, end, base = batch[BODY_START], batch[BODY_END], batch[BASE_OFFSET]
    count, delta_max, last_delta = batch[RECORD_COUNT], batch[LAST_OFFSET] - base, -1
    if count < 0 or count * RECORD_SIZE_MIN > end - at:
        return BAD_COUNT
    for _ in range(count):
        after, _, delta, key_at, key_size, value_at, value_size, _ = parse_record(data, at, end)
        if after == POISON:
            return BAD_RECORD
        if delta <= last_delta or delta > delta_max:
            return BAD_DELTA
        if key_size < 0:
            out.facts[UNKEYED] += 1
        else:
            row = _row_of(data, key_at, key_size, seeds, out)
            if row < 0:
                return FULL
            out.rows[row, KEY_AT] = key_at
            out.rows[row, KEY_END] = key_at + key_size
            out.rows[row, VALUE_AT] = value_at
            out.rows[row, VALUE_END] = value_at + value_size
            out.rows[row, OFFSET] = base + delta
            if value_size < 0:
                out.rows[row, DEAD_OFFSET] = base + delta
        at, last_delta = after, delta
    return DONE if at == end else BAD_REST


@inlined
def _row_of(data: Bytes, at: int, size: int, seeds: Longs, out: LatestRows) -> int:
    """The row of a key, a new one where it has none; -1 where there is no room for it."""
    hashed, _ = siphash(data, at, size, int(seeds[SEED_LOW]), int(seeds[SEED_HIGH]))
    last = out.slots.size - 1
    slot = hashed & last
    while out.slots[slot] >= 0:
        row = int(out.slots[slot])
        if out.rows[row, HASH] == hashed and _is_key(data, at, size, out.rows[row]):
            return row
        slot = (slot + 1) & last
    row = int(out.facts[ROWS])
    if row >= out.rows.shape[0]:
        return _NONE
    out.slots[slot] = row
    out.rows[row, HASH] = hashed
    out.rows[row, DEAD_OFFSET] = _NONE
    out.facts[ROWS] = row + 1
    return row


@inlined
def _is_key(data: Bytes, at: int, size: int, row: Longs) -> bool:
    """Whether a row's key is the one at that place."""
    known = int(row[KEY_AT])
    if row[KEY_END] - known != size:
        return False
    done = 0
    while done + 8 <= size:
        if load_word(data, known + done) != load_word(data, at + done):
            return False
        done += 8
    while done < size:
        if load_byte(data, known + done) != load_byte(data, at + done):
            return False
        done += 1
    return True
