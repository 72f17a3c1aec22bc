"""Finds the last record of each key, in columns of records or in the bytes of batches.

Hash tables use open addressing and compare whole keys. For columns (`fold_rows`), an entry of the
table has the key's hash and bytes. For each `side` (a requested point in time), the entry also has
the version and offset of the winning record, and whether this record is a tombstone. For batches
(`find_latest`), an entry has the positions of the key and its last value. The hash has a secret
seed, so that clients can't choose keys that collide. The caller allocates the tables, and replaces
full tables by larger tables. Plain references are dicts (tests/unit/record/test_last_records.py,
test_latest.py).
"""

from typing import Final, NamedTuple

from tidelog.record.kernels.checksums import sum_batch
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.hashes import siphash
from tidelog.record.kernels.integers import INVALID
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
from tidelog.record.kernels.memory import (
    Bytes,
    Ints,
    Longs,
    copy_bytes,
    load_byte,
    load_int64,
    load_word,
)
from tidelog.record.kernels.records import parse_record
from tidelog.record.record import RECORD_SIZE_MIN

# Indices in `used`: number of entries, and bytes of keys.
ENTRIES: Final = 0

KEY_BYTES: Final = 1
USED_FIELDS: Final = 2
NOTHING: Final = -1


class KeyedRows(NamedTuple):
    """Records to add with `fold_rows`.

    Shape:
        keys: uint8[], all keys back to back.
        ends: int32[n + 1], start of each key and end of the last key, ascending and within `keys`.
        hashes: int64[n], hashes of the keys.
        versions: int64[n]; records of a key are ranked by version first, then by offset.
        offsets: int64[n], 0 or more.
        is_dead: uint8[n], 1 for a tombstone.
        sides: uint8[n], bit s is set if the record counts on side s.
    """

    keys: Bytes
    ends: Ints
    hashes: Longs
    versions: Longs
    offsets: Longs
    is_dead: Bytes
    sides: Bytes


class WinnerMap(NamedTuple):
    """Hash map of winning records.

    Shape:
        slots: int32[a power of two, at least twice the entries], index of an entry or -1.
        hashes: int64[entries].
        key_ends: int64[entries + 1], end of each entry's key in `keys`; the first is 0.
        keys: uint8[], room for keys.
        versions: int64[sides, entries].
        offsets: int64[sides, entries], -1 if no record of the key counts on that side.
        is_dead: uint8[sides, entries].
    """

    slots: Ints
    hashes: Longs
    key_ends: Longs
    keys: Bytes
    versions: Longs
    offsets: Longs
    is_dead: Bytes


@kernel
def fold_rows(
    rows: KeyedRows, first: int, mask: int, share: int, into: WinnerMap, used: Longs
) -> int:
    """Add records from row `first` on; for each key the highest (version, offset) wins.

    Args:
        rows: The records; records that count on no side are skipped.
        first: Index of the first row to add.
        mask: Bits of the hash that select the keys of this pass.
        share: Value of the masked bits for the keys of this pass.
        into: The map.
        used: int64[USED_FIELDS], number of entries and bytes of keys in the map; updated.

    Returns:
        The index of the first row whose key did not fit; the number of rows if all rows were added.
    """
    for row in range(first, rows.offsets.size):
        if rows.sides[row] == 0 or rows.hashes[row] & mask != share:
            continue
        entry = _entry_of(rows, row, into, used)
        if entry < 0:
            return row
        for side in range(into.offsets.shape[0]):
            if (rows.sides[row] >> side) & 1:
                _take_better(rows, row, into, side, entry)
    return rows.offsets.size


@inlined
def _take_better(rows: KeyedRows, row: int, into: WinnerMap, side: int, entry: int) -> None:
    best_offset, offset = into.offsets[side, entry], rows.offsets[row]
    version = rows.versions[row]
    if best_offset >= 0:
        best = into.versions[side, entry]
        if version < best or (version == best and offset <= best_offset):
            return
    into.versions[side, entry] = version
    into.offsets[side, entry] = offset
    into.is_dead[side, entry] = rows.is_dead[row]


@inlined
def _entry_of(rows: KeyedRows, row: int, into: WinnerMap, used: Longs) -> int:
    """Return the entry of a row's key, a new entry if needed; -1 if the map is full."""
    start, end = int(rows.ends[row]), int(rows.ends[row + 1])
    hashed = rows.hashes[row]
    last = into.slots.size - 1
    slot = (hashed >> 32) & last
    while into.slots[slot] >= 0:
        entry = int(into.slots[slot])
        if into.hashes[entry] == hashed and _is_key(into, entry, rows.keys, start, end):
            return entry
        slot = (slot + 1) & last
    entry, key_at = int(used[ENTRIES]), int(used[KEY_BYTES])
    if entry >= into.hashes.size or end - start > into.keys.size - key_at:
        return NOTHING
    copy_bytes(into.keys, key_at, rows.keys, start, end - start)
    into.slots[slot] = entry
    into.hashes[entry] = hashed
    into.key_ends[entry + 1] = key_at + end - start
    for side in range(into.offsets.shape[0]):
        into.offsets[side, entry] = NOTHING
        into.is_dead[side, entry] = 0
    used[ENTRIES] = entry + 1
    used[KEY_BYTES] = key_at + end - start
    return entry


@inlined
def _is_key(into: WinnerMap, entry: int, keys: Bytes, start: int, end: int) -> bool:
    """Whether an entry has the key in bytes [start, end) of `keys`."""
    at, size = int(into.key_ends[entry]), end - start
    if into.key_ends[entry + 1] - at != size:
        return False
    done = 0
    while done + 8 <= size:
        if load_int64(into.keys, at + done) != load_int64(keys, start + done):
            return False
        done += 8
    while done < size:
        if load_byte(into.keys, at + done) != load_byte(keys, start + done):
            return False
        done += 1
    return True


@kernel
def keep_share(into: WinnerMap, used: Longs, mask: int, share: int) -> None:
    """Keep only entries with hash & `mask` == `share`; call `link_slots` afterwards."""
    row_count, key_at = 0, 0
    for entry in range(used[ENTRIES]):
        if into.hashes[entry] & mask != share:
            continue
        start, end = int(into.key_ends[entry]), int(into.key_ends[entry + 1])
        # The key moves to a lower position, where all bytes have already been read. So source and
        # target may overlap.
        for at in range(start, end):
            into.keys[key_at + at - start] = into.keys[at]
        key_at += end - start
        # The overwritten element of `key_ends` has already been read: the loop reads only higher
        # indices from here on.
        into.key_ends[row_count + 1] = key_at
        into.hashes[row_count] = into.hashes[entry]
        for side in range(into.offsets.shape[0]):
            into.versions[side, row_count] = into.versions[side, entry]
            into.offsets[side, row_count] = into.offsets[side, entry]
            into.is_dead[side, row_count] = into.is_dead[side, entry]
        row_count += 1
    used[ENTRIES] = row_count
    used[KEY_BYTES] = key_at


@kernel
def link_slots(into: WinnerMap, count: int) -> None:
    """Fill the slots, which must all be -1, from the hashes of `count` entries."""
    last = into.slots.size - 1
    for entry in range(count):
        slot = (into.hashes[entry] >> 32) & last
        while into.slots[slot] >= 0:
            slot = (slot + 1) & last
        into.slots[slot] = entry


# Columns of a row: start and end of the key, start and end of its last value, and last offset.
KEY_AT: Final = 0

KEY_END: Final = 1
VALUE_AT: Final = 2
VALUE_END: Final = 3  # below VALUE_AT for null
OFFSET: Final = 4
DEAD_OFFSET: Final = 5  # offset of the key's last record with a null value, -1 for none
HASH: Final = 6
ROW_FIELDS: Final = 7

# Indices in `facts`.
ROWS: Final = 0  # rows in use

UNKEYED: Final = 1  # records without a key
FACT_FIELDS: Final = 2

# Indices in `seeds`.
SEED_LOW: Final = 0

SEED_HIGH: Final = 1
SEED_FIELDS: Final = 2
_NONE: Final = -1


class LatestRows(NamedTuple):
    """Output of `find_latest`; the caller allocates it.

    Shape:
        slots: int32[a power of two above the number of rows]: -1 (initially), or a row's index.
        rows: int64[maximum number of keys, ROW_FIELDS], in the order of the keys' first records.
        facts: int64[FACT_FIELDS], initially zeros.
    """

    slots: Ints
    rows: Longs
    facts: Longs


@kernel
def find_latest(data: Bytes, table: Longs, shifts: Longs, seeds: Longs, out: LatestRows) -> int:
    """Verify the checksums of batches, and find the last record of each key in them.

    Shape:
        data: uint8[>= every BODY_END of the table], the batches with their headers.
        table: int64[batches, BATCH_FIELDS], magic 2, uncompressed, in the order of the log.
        shifts: `checksums.shifts()`.
        seeds: int64[SEED_FIELDS], secret.

    Returns:
        DONE; FULL if there are more keys than rows; or a BAD_ status. With any status but DONE,
        `out` is invalid.
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
        if after == INVALID:
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
    """Return the row of a key, after adding it if the key is new; -1 if all rows are used."""
    hashed, _ = siphash(data, at, size, int(seeds[SEED_LOW]), int(seeds[SEED_HIGH]))
    last = out.slots.size - 1
    slot = hashed & last
    while out.slots[slot] >= 0:
        row = int(out.slots[slot])
        if out.rows[row, HASH] == hashed and _is_latest_key(data, at, size, out.rows[row]):
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
def _is_latest_key(data: Bytes, at: int, size: int, row: Longs) -> bool:
    """Whether a row's key equals the `size` bytes at `at`."""
    latest_at = int(row[KEY_AT])
    if row[KEY_END] - latest_at != size:
        return False
    done = 0
    while done + 8 <= size:
        if load_word(data, latest_at + done) != load_word(data, at + done):
            return False
        done += 8
    while done < size:
        if load_byte(data, latest_at + done) != load_byte(data, at + done):
            return False
        done += 1
    return True
