"""Offset map of compaction: the latest record of each key, built from whole batches in one pass.

Two parallel arrays store each key's hash and the index of the key's latest record. The records of
all mapped batches are indexed consecutively. When a record replaces another record of its key in
the map, the kernel sets the replaced record's bit in `Marks.lost`. So the superseded records are
known without a second pass. On request the map also stores versions and keys. With versions, the
record with the highest version wins instead of the last record (KIP-280). Stored keys distinguish
different keys with equal hashes.

The first 32 bits of a key's hash give the first slot. The search continues with the next slots
until it finds the key or an empty slot. Records are first added to a window of two halves: while
the records of one half are read and hashed, the slots of the other half are prefetched. The window
stores each field of its records as a column, so that the CPU hashes several keys in parallel, in
the time of one hash.

`sample_keys` counts the records of a sample of keys. A key is in the sample if its hash is 0 in all
bits of `mask`.

Source: the keyed messages proposal (two parallel arrays); Kafka 4.x SkimpyOffsetMap; KIP-280;
docs/generations.md#the-sample.
"""

from typing import Final, NamedTuple

from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels.checksums import sum_batch
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.hashes import (
    SIPHASH,
    Hasher,
    begin_sip,
    finish_sip,
    hash_key,
    last_word,
    mask_hash,
    sip_round,
)
from tidelog.record.kernels.integers import INVALID, add_wrapping, read_varint, shift_right
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
    get_long,
    load_byte,
    load_int32,
    load_int64,
    load_word,
    prefetch_many,
    put_long,
    store_byte,
    store_int32,
)
from tidelog.record.kernels.records import NO_HEADERS, parse_record
from tidelog.record.record import RECORD_SIZE_MIN

# Columns of the window.
HASH_LOW: Final = 0

HASH_HIGH: Final = 1
SLOT: Final = 2
NUMBER: Final = 3
OFFSET: Final = 4
VERSION: Final = 5
KEY_AT: Final = 6
KEY_SIZE: Final = 7
_THIRD: Final = 8
_FOURTH: Final = 9
_WORD: Final = 10
_FIELDS: Final = 11

# Number of records in one half of the window. While one half fills, the slots of the other half's
# records are prefetched; the number is large enough for these prefetches to finish.
HALF_ROWS: Final = 64

_ROWS: Final = 2 * HALF_ROWS
WINDOW_SIZE: Final = _FIELDS * _ROWS

# Stored instead of a slot if the record has no key.
NO_SLOT: Final = -1

_WORD_SIZE: Final = 8

# Hashing keys in parallel takes as many steps for each key as for the longest key. Keys are hashed
# in parallel only if this takes at most `_WASTE_MAX` times the steps of hashing them one by one.
_WASTE_MAX: Final = 2


@inlined
def get_fact(window: Longs, column: int, row: int) -> int:
    """Return a field of a record in the window."""
    return get_long(window, column * _ROWS + row)


@inlined
def put_fact(window: Longs, column: int, row: int, value: int) -> None:
    """Set a field of a record in the window."""
    put_long(window, column * _ROWS + row, value)


@kernel
def hash_rows(
    data: Bytes, start: int, count: int, hasher: Hasher, slots: int, window: Longs
) -> None:
    """Hash the keys of some rows of the window, and compute the first slot to search for each key.

    Shape:
        data: uint8[...], contains the keys. Columns KEY_AT and KEY_SIZE of the window have the
            position and the size of each key; the size is -1 if there is no key.
        start: The first row.
        count: Number of rows.
        slots: Number of slots in the map.
        window: int64[WINDOW_SIZE].
    """
    steps = steps_max = 0
    for row in range(start, start + count):
        needed = (max(get_fact(window, KEY_SIZE, row), 0) >> 3) + 1
        steps += needed
        steps_max = max(steps_max, needed)
    if hasher.algorithm == SIPHASH and steps_max * count <= _WASTE_MAX * steps:
        _hash_side_by_side(data, start, start + count, steps_max, hasher, window)
    else:
        _hash_one_by_one(data, start, start + count, hasher, window)
    for row in range(start, start + count):
        low = get_fact(window, HASH_LOW, row)
        slot = shift_right(low, 32) * slots >> 32
        # -1 (all bits set) if the record has no key, else 0.
        none = get_fact(window, KEY_SIZE, row) >> 63
        put_fact(window, SLOT, row, slot | none)


@inlined
def _hash_one_by_one(data: Bytes, start: int, end: int, hasher: Hasher, window: Longs) -> None:
    for row in range(start, end):
        size = get_fact(window, KEY_SIZE, row)
        low, high = hash_key(data, get_fact(window, KEY_AT, row), max(size, 0), hasher)
        put_fact(window, HASH_LOW, row, low)
        put_fact(window, HASH_HIGH, row, high)


@inlined
def _hash_side_by_side(
    data: Bytes, start: int, end: int, steps: int, hasher: Hasher, window: Longs
) -> None:
    """Compute `siphash` for each row. The loops over rows have no branches."""
    a, b, c, d = begin_sip(hasher.seed_low, hasher.seed_high)
    for row in range(start, end):
        put_fact(window, HASH_LOW, row, a)
        put_fact(window, HASH_HIGH, row, b)
        put_fact(window, _THIRD, row, c)
        put_fact(window, _FOURTH, row, d)
    for step in range(steps):
        for row in range(start, end):
            put_fact(window, _WORD, row, _word(data, row, step, window))
        for row in range(start, end):
            _take_word(row, step, window)
    for row in range(start, end):
        low, high = finish_sip(
            get_fact(window, HASH_LOW, row),
            get_fact(window, HASH_HIGH, row),
            get_fact(window, _THIRD, row),
            get_fact(window, _FOURTH, row),
        )
        low, high = mask_hash(low, high, hasher)
        put_fact(window, HASH_LOW, row, low)
        put_fact(window, HASH_HIGH, row, high)


@inlined
def _word(data: Bytes, row: int, step: int, window: Longs) -> int:
    """Return the word of a key for a step; 0 for the steps after the key's last word."""
    size, at = max(get_fact(window, KEY_SIZE, row), 0), get_fact(window, KEY_AT, row)
    remaining = size - _WORD_SIZE * step
    at += _WORD_SIZE * step
    if remaining >= _WORD_SIZE:
        return load_word(data, at)
    return last_word(data, at, at + remaining, size) if remaining >= 0 else 0


@inlined
def _take_word(row: int, step: int, window: Longs) -> None:
    """Apply two SipHash rounds to a row's state, unless the row's key has already ended."""
    a, b = get_fact(window, HASH_LOW, row), get_fact(window, HASH_HIGH, row)
    c, d = get_fact(window, _THIRD, row), get_fact(window, _FOURTH, row)
    word = get_fact(window, _WORD, row)
    # -1 (all bits set) if the key has a word for this step, else 0.
    mask = ~((get_fact(window, KEY_SIZE, row) - _WORD_SIZE * step) >> 63)
    if step == 0:
        mask = -1
    new_a, new_b, new_c, new_d = sip_round(a, b, c, d ^ word)
    new_a, new_b, new_c, new_d = sip_round(new_a, new_b, new_c, new_d)
    put_fact(window, HASH_LOW, row, a ^ ((a ^ new_a ^ word) & mask))
    put_fact(window, HASH_HIGH, row, b ^ ((b ^ new_b) & mask))
    put_fact(window, _THIRD, row, c ^ ((c ^ new_c) & mask))
    put_fact(window, _FOURTH, row, d ^ ((d ^ new_d) & mask))


# Strategies, which define which record of a key wins.
BY_OFFSET: Final = 0

BY_TIMESTAMP: Final = 1
BY_HEADER: Final = 2

# Version of a record that has no version. It is lower than all other versions.
NO_VERSION: Final = -(2**63)

_VERSION_SIZE: Final = 8


@inlined
def record_version(
    data: Bytes, batch: Longs, positions: tuple[int, int, int], strategy: int, header: Bytes
) -> int:
    """Return a record's version.

    Args:
        data: Contains the record.
        batch: Row of the record's batch in the batch table.
        positions: The record's timestamp delta, the position of its header count or `NO_HEADERS`,
            and the position after the record.
        strategy: BY_TIMESTAMP or BY_HEADER.
        header: The version header's name, in UTF-8.
    """
    time_delta, headers_at, end = positions
    if strategy == BY_TIMESTAMP:
        if batch[ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0:
            return int(batch[MAX_TIMESTAMP])
        return add_wrapping(batch[BASE_TIMESTAMP], time_delta)
    if headers_at == NO_HEADERS:
        return NO_VERSION
    return _header_version(data, headers_at, end, header)


@inlined
def _header_version(data: Bytes, at: int, end: int, header: Bytes) -> int:
    """Return the version in the last header whose key is `header`.

    Return `NO_VERSION` if there is no such header, or if the value of the last such header does not
    have 8 bytes.

    `parse_record` must have checked all headers.
    """
    version = NO_VERSION
    count, at = read_varint(data, at, end)
    for _ in range(count):
        key_size, key_at = read_varint(data, at, end)
        value_size, value_at = read_varint(data, key_at + key_size, end)
        at = value_at + max(value_size, 0)
        if at > end:
            return version
        if _is_named(data, key_at, key_size, header):
            version = NO_VERSION
            if value_size == _VERSION_SIZE:
                version = max(load_int64(data, value_at), NO_VERSION + 1)
    return version


@inlined
def _is_named(data: Bytes, at: int, size: int, name: Bytes) -> bool:
    same = 0
    while size == name.size and same < size:
        if load_byte(data, at + same) != load_byte(name, same):
            break
        same += 1
    return same == size and size == name.size


# Stored instead of a record's index if the winning record precedes the mapped records.
OUTSIDE: Final = -1

# Indices in `state`.
KEYS: Final = 0  # keys in the map

ARENA_USED: Final = 1  # bytes of keys
STOP_OFFSET: Final = 2  # with FULL: offset of the first record that is not in the map
BAD_SLOT: Final = 3  # with a BAD_ status: the damaged batch, as a row of the table
TOO_LONG: Final = 4  # records whose key is larger than the arena; they are kept
WAITING: Final = 5  # rows of the window's other half that are hashed but not in the map yet
STATE_FIELDS: Final = 6
_LENGTH_SIZE: Final = 4


class KeyMap(NamedTuple):
    """Memory of the map, initially zeros; the caller allocates it.

    Shape:
        hashes: int64[2 * slots], both halves of a key's hash; two zeros are an empty slot.
        numbers: int64[slots], the index of the key's latest record, or OUTSIDE.
        versions: int64[slots], the versions of the records in `numbers`; or empty.
        key_positions: int64[slots], positions of the keys in `arena`; or empty.
        arena: uint8[...], the keys, each preceded by its length as an int32; or empty.
        state: int64[STATE_FIELDS].
        window: int64[WINDOW_SIZE].
        key_limit: Maximum number of keys, less than the number of slots.
        hasher: The hasher. It must be the same in all calls.
    """

    hashes: Longs
    numbers: Longs
    versions: Longs
    key_positions: Longs
    arena: Bytes
    state: Longs
    window: Longs
    key_limit: int
    hasher: Hasher


class KeyRules(NamedTuple):
    """Rules for the records of one call of `map_batches`.

    Attributes:
        strategy: BY_OFFSET, BY_TIMESTAMP or BY_HEADER.
        header: The version header's name, in UTF-8.
        offset_start: First offset to process; records outside the range of offsets are not marked
            as superseded.
        offset_end: End of the offsets to process, exclusive.
        log_start: Log start offset. Processed records below it are marked as superseded.
        is_look_up: With 0, the records are added to the map. With 1, the records are compared with
            the map but not added; these records must be older than all records in the map.
        shifts: Tables of `checksums`, to check each batch's checksum just before its records are
            read. The checksums of skipped batches are checked too. For a check, the array `data` of
            `map_batches` must also contain the batches' headers. If `shifts` is empty, no checksum
            is checked.
    """

    strategy: int
    header: Bytes
    offset_start: int
    offset_end: int
    log_start: int
    is_look_up: int
    shifts: Longs


class Marks(NamedTuple):
    """Output of one call of `map_batches`.

    Shape:
        lost: One bit for each record that is or was in the map; the bit is set if the record is
        superseded.
        own: One bit for each record of this call; the same array as `lost` if the records are added
            to the map.
        tombstones: int32[batches], number of tombstones in each batch.
    """

    lost: Bytes
    own: Bytes
    tombstones: Ints


@kernel
def map_batches(
    data: Bytes, table: Longs, numbers: Longs, rules: KeyRules, keys: KeyMap, marks: Marks
) -> int:
    """Add the records of batches to the map, or compare the records with the map.

    Shape:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies uncompressed.
        numbers: int64[batches]. For each batch, the number of its first record, which is this
            record's bit in `marks.own`; -1 for a batch to skip.

    Returns:
        A status: DONE; FULL if the record at `STOP_OFFSET` and all later records are not in the
            map; or a BAD_ status if the batch at `BAD_SLOT` is damaged.
    """
    row = 0
    keys.state[WAITING] = 0
    for batch in range(table.shape[0]):
        marks.tombstones[batch] = 0
        keys.state[BAD_SLOT] = batch
        if rules.shifts.size != 0 and not _is_sound(data, table[batch], rules.shifts):
            return BAD_SUM
        if numbers[batch] < 0:
            continue
        count, end = table[batch, RECORD_COUNT], table[batch, BODY_END]
        if count < 0 or count * RECORD_SIZE_MIN > end - table[batch, BODY_START]:
            return BAD_COUNT
        status, row, tombstones = _map_batch(
            data, table[batch], (numbers[batch], row), rules, keys, marks
        )
        marks.tombstones[batch] = tombstones
        if status != DONE:
            return status
    half = row & ~(HALF_ROWS - 1)
    is_done = _turn(data, half, row - half, rules, keys, marks)
    is_done = is_done and _take_rows(data, half, row - half, rules, keys, marks)
    return DONE if is_done else FULL


@inlined
def _is_sound(data: Bytes, batch: Longs, shifts: Longs) -> bool:
    return bool(sum_batch(data, batch, shifts) == batch[CRC])


@inlined
def _map_batch(
    data: Bytes,
    batch: Longs,
    start: tuple[int, int],
    rules: KeyRules,
    keys: KeyMap,
    marks: Marks,
) -> tuple[int, int, int]:
    """Process one batch.

    Args:
        data: Contains the batch's body.
        batch: The batch's row of the table.
        start: Two numbers: the index of the batch's first record, and the next free row of the
            window.
        rules: The rules.
        keys: The map.
        marks: The output.

    Returns:
        A status, the next free row of the window, and the number of tombstones in the batch.
    """
    number, row = start
    at, end, base = batch[BODY_START], batch[BODY_END], batch[BASE_OFFSET]
    last_delta, tombstones = -1, 0
    delta_max = batch[LAST_OFFSET] - base
    for _ in range(batch[RECORD_COUNT]):
        after, time_delta, delta, key_at, key_size, _, value_size, headers_at = parse_record(
            data, at, end
        )
        if after == INVALID or delta <= last_delta or delta > delta_max:
            return BAD_RECORD if after == INVALID else BAD_DELTA, row, tombstones
        if value_size < 0:
            tombstones += 1
        offset = base + delta
        if rules.offset_start <= offset < rules.offset_end:
            if offset < rules.log_start:
                _mark(marks.own, number)
            else:
                _prefetch_row(row ^ HALF_ROWS, keys)
                put_fact(keys.window, NUMBER, row, number)
                put_fact(keys.window, OFFSET, row, offset)
                put_fact(keys.window, KEY_AT, row, key_at)
                put_fact(keys.window, KEY_SIZE, row, key_size)
                if rules.strategy != BY_OFFSET:
                    positions = time_delta, headers_at, after
                    version = record_version(data, batch, positions, rules.strategy, rules.header)
                    put_fact(keys.window, VERSION, row, version)
                row += 1
                if row & (HALF_ROWS - 1) == 0:
                    if not _turn(data, row - HALF_ROWS, HALF_ROWS, rules, keys, marks):
                        return FULL, row, tombstones
                    row &= HALF_ROWS
        at, last_delta = after, delta
        number += 1
    return DONE if at == end else BAD_REST, row, tombstones


@inlined
def _mark(superseded: Bytes, number: int) -> None:
    """Mark a record as superseded."""
    store_byte(superseded, number >> 3, load_byte(superseded, number >> 3) | 1 << (number & 7))


@inlined
def _prefetch_row(row: int, keys: KeyMap) -> None:
    """Prefetch the slot of a hashed record.

    Each time a record is read, one slot is prefetched, because many prefetches at once would block
    the CPU's other memory accesses.
    """
    if row & (HALF_ROWS - 1) < keys.state[WAITING]:
        slot = max(get_fact(keys.window, SLOT, row), 0)
        prefetch_many(keys.hashes, 2 * slot)
        prefetch_many(keys.numbers, slot)


@kernel
def _turn(data: Bytes, start: int, count: int, rules: KeyRules, keys: KeyMap, marks: Marks) -> bool:
    """Hash one half of the window, and then add or compare the other half's records.

    Returns False if the map is full.
    """
    hash_rows(data, start, count, keys.hasher, keys.numbers.size, keys.window)
    waiting = keys.state[WAITING]
    keys.state[WAITING] = count
    return _take_rows(data, start ^ HALF_ROWS, waiting, rules, keys, marks)


@kernel
def _take_rows(
    data: Bytes, start: int, count: int, rules: KeyRules, keys: KeyMap, marks: Marks
) -> bool:
    """Add or compare the records of some rows of the window; return False if the map is full."""
    window = keys.window
    for row in range(start, start + count):
        home = get_fact(window, SLOT, row)
        if home == NO_SLOT:
            _mark(marks.own, get_fact(window, NUMBER, row))
            continue
        slot, is_new = _find(data, row, home, keys)
        if rules.is_look_up != 0:
            if not is_new:
                _compare(row, slot, rules, keys, marks)
        elif not is_new:
            _replace(row, slot, rules, keys, marks.lost)
        elif not _insert(data, row, slot, rules, keys):
            keys.state[STOP_OFFSET] = get_fact(window, OFFSET, row)
            return False
    return True


@inlined
def _find(data: Bytes, row: int, slot: int, keys: KeyMap) -> tuple[int, bool]:
    """Return the key's slot and False; for a key that is not in the map, an empty slot and True."""
    low, high = get_fact(keys.window, HASH_LOW, row), get_fact(keys.window, HASH_HIGH, row)
    while True:
        slot_low, slot_high = get_long(keys.hashes, 2 * slot), get_long(keys.hashes, 2 * slot + 1)
        if slot_low == low and slot_high == high and _is_same_key(data, row, slot, keys):
            return slot, False
        if slot_low == 0 and slot_high == 0:
            return slot, True
        slot += 1
        if slot == keys.numbers.size:
            slot = 0


@inlined
def _is_same_key(data: Bytes, row: int, slot: int, keys: KeyMap) -> bool:
    """Whether a row's key equals the key stored at a slot; True if the map stores no keys."""
    if keys.key_positions.size == 0:
        return True
    at, size = get_fact(keys.window, KEY_AT, row), get_fact(keys.window, KEY_SIZE, row)
    key_at = get_long(keys.key_positions, slot)
    if load_int32(keys.arena, key_at) != size:
        return False
    for byte in range(size):
        if load_byte(data, at + byte) != load_byte(keys.arena, key_at + _LENGTH_SIZE + byte):
            return False
    return True


@inlined
def _insert(data: Bytes, row: int, slot: int, rules: KeyRules, keys: KeyMap) -> bool:
    """Add a new key at a slot; return False if the map or the arena is full.

    A key that is larger than the whole arena is counted in `TOO_LONG` instead.
    """
    window = keys.window
    if keys.state[KEYS] >= keys.key_limit:
        return False
    if keys.key_positions.size > 0:
        at, size = get_fact(window, KEY_AT, row), get_fact(window, KEY_SIZE, row)
        needed, used = size + _LENGTH_SIZE, keys.state[ARENA_USED]
        if needed > keys.arena.size:
            keys.state[TOO_LONG] += 1
            return True  # the records of such a key are all kept
        if needed > keys.arena.size - used:
            return False
        store_int32(keys.arena, used, size)
        copy_bytes(keys.arena, used + _LENGTH_SIZE, data, at, size)
        put_long(keys.key_positions, slot, used)
        keys.state[ARENA_USED] = used + needed
    put_long(keys.hashes, 2 * slot, get_fact(window, HASH_LOW, row))
    put_long(keys.hashes, 2 * slot + 1, get_fact(window, HASH_HIGH, row))
    put_long(keys.numbers, slot, get_fact(window, NUMBER, row))
    if rules.strategy != BY_OFFSET:
        put_long(keys.versions, slot, get_fact(window, VERSION, row))
    keys.state[KEYS] += 1
    return True


@inlined
def _replace(row: int, slot: int, rules: KeyRules, keys: KeyMap, superseded: Bytes) -> None:
    """Compare a later record with the map's record of its key, and mark the superseded record."""
    number, loser = get_fact(keys.window, NUMBER, row), get_long(keys.numbers, slot)
    if rules.strategy != BY_OFFSET:
        version = get_fact(keys.window, VERSION, row)
        if version < get_long(keys.versions, slot):
            _mark(superseded, number)
            return
        put_long(keys.versions, slot, version)
    put_long(keys.numbers, slot, number)
    _mark(superseded, loser)


@inlined
def _compare(row: int, slot: int, rules: KeyRules, keys: KeyMap, marks: Marks) -> None:
    """Compare an older record with the map's record of its key, and mark the superseded record."""
    number, winner = get_fact(keys.window, NUMBER, row), get_long(keys.numbers, slot)
    if rules.strategy == BY_OFFSET:
        _mark(marks.own, number)
        return
    version, winning = get_fact(keys.window, VERSION, row), get_long(keys.versions, slot)
    # If versions are equal, the later record wins. A winner in the map is later than this record. A
    # winner that precedes the mapped records (OUTSIDE) is earlier than this record.
    if version < winning or (version == winning and winner != OUTSIDE):
        _mark(marks.own, number)
        return
    put_long(keys.versions, slot, version)
    put_long(keys.numbers, slot, OUTSIDE)
    if winner != OUTSIDE:
        _mark(marks.lost, winner)


# Columns of the sample.
HASH: Final = 0

SAMPLE_OFFSET: Final = 1
SIZE: Final = 2
SAMPLE_FIELDS: Final = 3

# Indices in `totals`.
RECORDS: Final = 0

RECORD_BYTES: Final = 1
SAMPLED: Final = 2
TOTALS: Final = 3


@kernel
def sample_keys(
    data: Bytes, table: Longs, hasher: Hasher, mask: int, out: Longs, totals: Longs
) -> tuple[int, int]:
    """Count the records of a table's batches, and collect the records whose key is in the sample.

    Args:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies uncompressed.
        hasher: The hasher; the first half of a hash is used.
        mask: Bits of the hash that are 0 for a key of the sample.
        out: int64[>= totals[SAMPLED] + records of the table, SAMPLE_FIELDS]; rows from
            `totals[SAMPLED]` on are written: hash of the key, offset, and size of the record in
            bytes, which is negative for a tombstone.
        totals: int64[TOTALS], increased: number of records, their bytes, number of rows written to
            `out`.

    Returns:
        DONE, or a BAD_ status and the position of the damaged record or body.
    """
    for slot in range(table.shape[0]):
        status, at = _sample_batch(data, table[slot], hasher, mask, out, totals)
        if status != DONE:
            return status, at
    return DONE, 0


@inlined
def _sample_batch(
    data: Bytes, batch: Longs, hasher: Hasher, mask: int, out: Longs, totals: Longs
) -> tuple[int, int]:
    at, end, count = batch[BODY_START], batch[BODY_END], batch[RECORD_COUNT]
    base_offset, last_delta = batch[BASE_OFFSET], -1
    delta_max = batch[LAST_OFFSET] - base_offset
    if count < 0 or count * RECORD_SIZE_MIN > end - at:
        return BAD_COUNT, at
    for _ in range(count):
        after, _time, delta, key_at, key_size, _value, value_size, _headers = parse_record(
            data, at, end
        )
        if after == INVALID or delta <= last_delta or delta > delta_max:
            return BAD_RECORD if after == INVALID else BAD_DELTA, at
        totals[RECORDS] += 1
        totals[RECORD_BYTES] += after - at
        if key_size >= 0:
            low, _high = hash_key(data, key_at, key_size, hasher)
            if low & mask == 0:
                row = totals[SAMPLED]
                out[row, HASH] = low
                out[row, SAMPLE_OFFSET] = base_offset + delta
                out[row, SIZE] = after - at if value_size >= 0 else at - after
                totals[SAMPLED] = row + 1
        at, last_delta = after, delta
    return (DONE if at == end else BAD_REST), at
