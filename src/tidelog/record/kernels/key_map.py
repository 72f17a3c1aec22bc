"""The offset map: which record of each key is the latest, from whole batches, in one pass.

Two parallel arrays: the key's hash, and the number of its record, counted over all records that go
into the map. Where another record of a key takes the place of one, the bit of the one that lost is
set at once, so that nobody has to look for the winners again. Beside them, only where asked:
versions (the highest wins, not the last record) and the keys themselves (equal hashes of different
keys are then told apart).

Slots come from the hash's first 32 bits, and are probed one after the other until the key or an
empty slot is met, so no key is ever missed. Hashes are computed for a window of records first, and
their slots fetched meanwhile: else the pass would wait for memory most of the time.

Source: the keyed messages proposal (two parallel arrays); Kafka 4.x SkimpyOffsetMap; KIP-280.
"""

from typing import Final, NamedTuple

from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.decode import RECORD_SIZE_MIN, parse_record
from tidelog.record.kernels.key_hash import Hasher, hash_key
from tidelog.record.kernels.layout import (
    BAD_COUNT,
    BAD_DELTA,
    BAD_RECORD,
    BAD_REST,
    BASE_OFFSET,
    BODY_END,
    BODY_START,
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
    get_long,
    load_byte,
    load_int32,
    prefetch,
    put_long,
    store_byte,
    store_int32,
)
from tidelog.record.kernels.record_versions import BY_OFFSET, record_version
from tidelog.record.kernels.varints import POISON

# In place of a record's number: the winner lies before the mapped records.
OUTSIDE: Final = -1

# Columns of the window: one row for each record that is on its way into the map.
HASH_LOW: Final = 0
HASH_HIGH: Final = 1
SLOT: Final = 2
NUMBER: Final = 3
OFFSET: Final = 4
VERSION: Final = 5
KEY_AT: Final = 6
KEY_SIZE: Final = 7
WINDOW_FIELDS: Final = 8
WINDOW_ROWS: Final = 64
# In place of a slot: the record has no key.
_NO_SLOT: Final = -1

# Places in `state`.
KEYS: Final = 0  # keys in the map
ARENA_USED: Final = 1  # bytes of keys
STOP_OFFSET: Final = 2  # with FULL: the first record that is not in the map
BAD_SLOT: Final = 3  # with a BAD_ status: the batch concerned, as a row of the table
TOO_LONG: Final = 4  # records whose keys no arena would hold; they stay
STATE_FIELDS: Final = 5

_LENGTH_SIZE: Final = 4


class KeyMap(NamedTuple):
    """The map's memory, zeros at first; the caller allocates.

    Shape:
        hashes: int64[2 * slots], both halves of a key's hash; two zeros are an empty slot.
        numbers: int64[slots], the number of the key's latest record, or OUTSIDE.
        versions: int64[slots] of those records, or empty.
        places: int64[slots] of the keys in `arena`, or empty.
        arena: uint8[...], each key behind its length as an int32; or empty.
        state: int64[STATE_FIELDS].
        window: int64[WINDOW_ROWS * WINDOW_FIELDS].
        key_limit: How many keys may be in it, below the number of slots.
        hasher: How keys are hashed, always in the same way.
    """

    hashes: Longs
    numbers: Longs
    versions: Longs
    places: Longs
    arena: Bytes
    state: Longs
    window: Longs
    key_limit: int
    hasher: Hasher


class KeyRules(NamedTuple):
    """What is done with the records of a call.

    Attributes:
        strategy: BY_OFFSET, BY_TIMESTAMP or BY_HEADER.
        header: The version header's name, in UTF-8.
        offset_start: First offset concerned; records outside are left as they are.
        offset_end: Offset behind the last one concerned.
        log_start: Records below it lose, whatever their key.
        is_look_up: 0: put records into the map. 1: only hold them against it; records are then
            older than all that were put into it.
    """

    strategy: int
    header: Bytes
    offset_start: int
    offset_end: int
    log_start: int
    is_look_up: int


class Marks(NamedTuple):
    """What a call tells.

    Shape:
        lost: One bit for each record that is or was in the map, set where it lost.
        own: One bit for each record of this call; `lost` itself where they are put into the map.
        tombstones: int32[batches], how many there are in each batch.
    """

    lost: Bytes
    own: Bytes
    tombstones: Ints


@kernel
def map_batches(
    data: Bytes, table: Longs, numbers: Longs, rules: KeyRules, keys: KeyMap, marks: Marks
) -> int:
    """Put the records of some batches into the map, or hold them against it.

    Shape:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies not compressed.
        numbers: int64[batches], the number of each batch's first record in `marks.own`; -1 for a
            batch that is left out.

    Returns:
        DONE; FULL, and the record at `STOP_OFFSET` and all behind it are not in the map; or a
        BAD_ status of the batch at `BAD_SLOT`.
    """
    waiting = 0
    for batch in range(table.shape[0]):
        marks.tombstones[batch] = 0
        if numbers[batch] < 0:
            continue
        keys.state[BAD_SLOT] = batch
        count, end = table[batch, RECORD_COUNT], table[batch, BODY_END]
        if count < 0 or count * RECORD_SIZE_MIN > end - table[batch, BODY_START]:
            return BAD_COUNT
        status, waiting, tombstones = _map_batch(
            data, table[batch], (numbers[batch], waiting), rules, keys, marks
        )
        marks.tombstones[batch] = tombstones
        if status != DONE:
            return status
    return DONE if _take_rows(data, waiting, rules, keys, marks) else FULL


@inlined
def _map_batch(
    data: Bytes,
    batch: Longs,
    start: tuple[int, int],
    rules: KeyRules,
    keys: KeyMap,
    marks: Marks,
) -> tuple[int, int, int]:
    """Take one batch.

    Args:
        data: Where its body lies.
        batch: Its row.
        start: The number of its first record, and how many rows of the window wait.
        rules: What to do.
        keys: The map.
        marks: What to tell.

    Returns:
        A status, how many rows wait then, and how many tombstones there were.
    """
    number, waiting = start
    at, end, base = batch[BODY_START], batch[BODY_END], batch[BASE_OFFSET]
    last_delta, tombstones = -1, 0
    delta_max = batch[LAST_OFFSET] - base
    for _ in range(batch[RECORD_COUNT]):
        after, time_delta, delta, key_at, key_size, _, value_size, headers_at = parse_record(
            data, at, end
        )
        if after == POISON or delta <= last_delta or delta > delta_max:
            return BAD_RECORD if after == POISON else BAD_DELTA, waiting, tombstones
        if value_size < 0:
            tombstones += 1
        offset = base + delta
        if rules.offset_start <= offset < rules.offset_end:
            if offset < rules.log_start:
                _mark(marks.own, number)
            else:
                row = waiting * WINDOW_FIELDS
                put_long(keys.window, row + NUMBER, number)
                put_long(keys.window, row + OFFSET, offset)
                if rules.strategy != BY_OFFSET:
                    places = time_delta, headers_at, after
                    version = record_version(data, batch, places, rules.strategy, rules.header)
                    put_long(keys.window, row + VERSION, version)
                _hash_row(data, row, key_at, key_size, keys)
                waiting += 1
                if waiting == WINDOW_ROWS:
                    waiting = 0
                    if not _take_rows(data, WINDOW_ROWS, rules, keys, marks):
                        return FULL, waiting, tombstones
        at, last_delta = after, delta
        number += 1
    return DONE if at == end else BAD_REST, waiting, tombstones


@inlined
def _mark(lost: Bytes, number: int) -> None:
    """Note that a record has lost."""
    store_byte(lost, number >> 3, load_byte(lost, number >> 3) | 1 << (number & 7))


@inlined
def _hash_row(data: Bytes, row: int, key_at: int, key_size: int, keys: KeyMap) -> None:
    """Hash a record's key, and let its slot come into the cache."""
    if key_size < 0:
        put_long(keys.window, row + SLOT, _NO_SLOT)
        return
    low, high = hash_key(data, key_at, key_size, keys.hasher)
    slot = ((low >> 32) & 0xFFFFFFFF) * keys.numbers.size >> 32
    prefetch(keys.hashes, 2 * slot)
    prefetch(keys.numbers, slot)
    put_long(keys.window, row + HASH_LOW, low)
    put_long(keys.window, row + HASH_HIGH, high)
    put_long(keys.window, row + SLOT, slot)
    if keys.places.size > 0:
        put_long(keys.window, row + KEY_AT, key_at)
        put_long(keys.window, row + KEY_SIZE, key_size)


@kernel
def _take_rows(data: Bytes, rows: int, rules: KeyRules, keys: KeyMap, marks: Marks) -> bool:
    """Take the window's records in their order; False where the map is full."""
    window = keys.window
    for waiting in range(rows):
        row = waiting * WINDOW_FIELDS
        start = get_long(window, row + SLOT)
        if start == _NO_SLOT:
            _mark(marks.own, get_long(window, row + NUMBER))
            continue
        slot, is_new = _find(data, row, start, keys)
        if rules.is_look_up != 0:
            if not is_new:
                _compare(row, slot, rules, keys, marks)
        elif not is_new:
            _replace(row, slot, rules, keys, marks.lost)
        elif not _insert(data, row, slot, rules, keys):
            keys.state[STOP_OFFSET] = get_long(window, row + OFFSET)
            return False
    return True


@inlined
def _find(data: Bytes, row: int, slot: int, keys: KeyMap) -> tuple[int, bool]:
    """The key's slot, or the empty one that it would take, and whether it is that."""
    low, high = get_long(keys.window, row + HASH_LOW), get_long(keys.window, row + HASH_HIGH)
    while True:
        found_low, found_high = get_long(keys.hashes, 2 * slot), get_long(keys.hashes, 2 * slot + 1)
        if found_low == low and found_high == high and _is_same_key(data, row, slot, keys):
            return slot, False
        if found_low == 0 and found_high == 0:
            return slot, True
        slot += 1
        if slot == keys.numbers.size:
            slot = 0


@inlined
def _is_same_key(data: Bytes, row: int, slot: int, keys: KeyMap) -> bool:
    """Whether the key itself is the same; true where keys are not kept."""
    if keys.places.size == 0:
        return True
    at, size = get_long(keys.window, row + KEY_AT), get_long(keys.window, row + KEY_SIZE)
    place = get_long(keys.places, slot)
    if load_int32(keys.arena, place) != size:
        return False
    for byte in range(size):
        if load_byte(data, at + byte) != load_byte(keys.arena, place + _LENGTH_SIZE + byte):
            return False
    return True


@inlined
def _insert(data: Bytes, row: int, slot: int, rules: KeyRules, keys: KeyMap) -> bool:
    """Give a new key its slot; False where there is no room for it."""
    window = keys.window
    if keys.state[KEYS] >= keys.key_limit:
        return False
    if keys.places.size > 0:
        at, size = get_long(window, row + KEY_AT), get_long(window, row + KEY_SIZE)
        needed, used = size + _LENGTH_SIZE, keys.state[ARENA_USED]
        if needed > keys.arena.size:
            keys.state[TOO_LONG] += 1
            return True  # it stays, and so do its older records
        if needed > keys.arena.size - used:
            return False
        store_int32(keys.arena, used, size)
        copy_bytes(keys.arena, used + _LENGTH_SIZE, data, at, size)
        put_long(keys.places, slot, used)
        keys.state[ARENA_USED] = used + needed
    put_long(keys.hashes, 2 * slot, get_long(window, row + HASH_LOW))
    put_long(keys.hashes, 2 * slot + 1, get_long(window, row + HASH_HIGH))
    put_long(keys.numbers, slot, get_long(window, row + NUMBER))
    if rules.strategy != BY_OFFSET:
        put_long(keys.versions, slot, get_long(window, row + VERSION))
    keys.state[KEYS] += 1
    return True


@inlined
def _replace(row: int, slot: int, rules: KeyRules, keys: KeyMap, lost: Bytes) -> None:
    """Hold a later record of a key against the one in the map."""
    number, loser = get_long(keys.window, row + NUMBER), get_long(keys.numbers, slot)
    if rules.strategy != BY_OFFSET:
        version = get_long(keys.window, row + VERSION)
        if version < get_long(keys.versions, slot):
            _mark(lost, number)
            return
        put_long(keys.versions, slot, version)
    put_long(keys.numbers, slot, number)
    _mark(lost, loser)


@inlined
def _compare(row: int, slot: int, rules: KeyRules, keys: KeyMap, marks: Marks) -> None:
    """Hold a record from before the mapped ones against its key's latest."""
    number, winner = get_long(keys.window, row + NUMBER), get_long(keys.numbers, slot)
    if rules.strategy == BY_OFFSET:
        _mark(marks.own, number)
        return
    version, winning = get_long(keys.window, row + VERSION), get_long(keys.versions, slot)
    # Of equal versions the later record wins: one of the map, or this one if the winner lies
    # before the mapped ones as well.
    if version < winning or (version == winning and winner != OUTSIDE):
        _mark(marks.own, number)
        return
    put_long(keys.versions, slot, version)
    put_long(keys.numbers, slot, OUTSIDE)
    if winner != OUTSIDE:
        _mark(marks.lost, winner)
