"""The offset map: which record of each key is the latest, from whole batches, in one pass.

Two parallel arrays: the key's hash, and the number of its record, counted over all records that go
into the map. Where another record of a key takes the place of one, the bit of the one that lost is
set at once, so that nobody has to look for the winners again. Beside them, only where asked:
versions (the highest wins, not the last record) and the keys themselves (equal hashes of different
keys are then told apart).

Slots come from the hash's first 32 bits, and are probed one after the other until the key or an
empty slot is met, so no key is ever missed. Hashes are computed for half a window of records
(`key_window`), whose slots are then fetched while the next half is read and hashed: else the pass
would wait for memory most of the time.

Source: the keyed messages proposal (two parallel arrays); Kafka 4.x SkimpyOffsetMap; KIP-280.
"""

from typing import Final, NamedTuple

from tidelog.record.kernels.checksums import sum_batch
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.decode import parse_record
from tidelog.record.kernels.key_hash import Hasher
from tidelog.record.kernels.key_window import (
    HALF_ROWS,
    HASH_HIGH,
    HASH_LOW,
    KEY_AT,
    KEY_SIZE,
    NO_SLOT,
    NUMBER,
    OFFSET,
    SLOT,
    VERSION,
    get_fact,
    hash_rows,
    put_fact,
)
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
    get_long,
    load_byte,
    load_int32,
    prefetch_many,
    put_long,
    store_byte,
    store_int32,
)
from tidelog.record.kernels.record_versions import BY_OFFSET, record_version
from tidelog.record.kernels.varints import POISON
from tidelog.record.record import RECORD_SIZE_MIN

# In place of a record's number: the winner lies before the mapped records.
OUTSIDE: Final = -1

# Places in `state`.
KEYS: Final = 0  # keys in the map
ARENA_USED: Final = 1  # bytes of keys
STOP_OFFSET: Final = 2  # with FULL: the first record that is not in the map
BAD_SLOT: Final = 3  # with a BAD_ status: the batch concerned, as a row of the table
TOO_LONG: Final = 4  # records whose keys no arena would hold; they stay
WAITING: Final = 5  # rows of the window's other half that are hashed, and not yet in the map
STATE_FIELDS: Final = 6

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
        window: int64[WINDOW_SIZE].
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
        shifts: Tables of `checksums`, to check the checksum of each batch, of one that is left out
            too, just before its records are read, while they are near: headers and all lie in the
            data then. int64[0] to check none.
    """

    strategy: int
    header: Bytes
    offset_start: int
    offset_end: int
    log_start: int
    is_look_up: int
    shifts: Longs


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
    """Take one batch.

    Args:
        data: Where its body lies.
        batch: Its row.
        start: The number of its first record, and the next row of the window.
        rules: What to do.
        keys: The map.
        marks: What to tell.

    Returns:
        A status, the next row then, and how many tombstones there were.
    """
    number, row = start
    at, end, base = batch[BODY_START], batch[BODY_END], batch[BASE_OFFSET]
    last_delta, tombstones = -1, 0
    delta_max = batch[LAST_OFFSET] - base
    for _ in range(batch[RECORD_COUNT]):
        after, time_delta, delta, key_at, key_size, _, value_size, headers_at = parse_record(
            data, at, end
        )
        if after == POISON or delta <= last_delta or delta > delta_max:
            return BAD_RECORD if after == POISON else BAD_DELTA, row, tombstones
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
                    places = time_delta, headers_at, after
                    version = record_version(data, batch, places, rules.strategy, rules.header)
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
def _mark(lost: Bytes, number: int) -> None:
    """Note that a record has lost."""
    store_byte(lost, number >> 3, load_byte(lost, number >> 3) | 1 << (number & 7))


@inlined
def _prefetch_row(row: int, keys: KeyMap) -> None:
    """Let the slot of a hashed record come into the cache.

    One for each record that is read: many at once would keep the machine from all other work.
    """
    if row & (HALF_ROWS - 1) < keys.state[WAITING]:
        slot = max(get_fact(keys.window, SLOT, row), 0)
        prefetch_many(keys.hashes, 2 * slot)
        prefetch_many(keys.numbers, slot)


@kernel
def _turn(data: Bytes, start: int, count: int, rules: KeyRules, keys: KeyMap, marks: Marks) -> bool:
    """Hash one half of the window, then take the other; False where the map is full."""
    hash_rows(data, start, count, keys.hasher, keys.numbers.size, keys.window)
    waiting = keys.state[WAITING]
    keys.state[WAITING] = count
    return _take_rows(data, start ^ HALF_ROWS, waiting, rules, keys, marks)


@kernel
def _take_rows(
    data: Bytes, start: int, count: int, rules: KeyRules, keys: KeyMap, marks: Marks
) -> bool:
    """Take some of the window's records in their order; False where the map is full."""
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
    """The key's slot, or the empty one that it would take, and whether it is that."""
    low, high = get_fact(keys.window, HASH_LOW, row), get_fact(keys.window, HASH_HIGH, row)
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
    at, size = get_fact(keys.window, KEY_AT, row), get_fact(keys.window, KEY_SIZE, row)
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
        at, size = get_fact(window, KEY_AT, row), get_fact(window, KEY_SIZE, row)
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
    put_long(keys.hashes, 2 * slot, get_fact(window, HASH_LOW, row))
    put_long(keys.hashes, 2 * slot + 1, get_fact(window, HASH_HIGH, row))
    put_long(keys.numbers, slot, get_fact(window, NUMBER, row))
    if rules.strategy != BY_OFFSET:
        put_long(keys.versions, slot, get_fact(window, VERSION, row))
    keys.state[KEYS] += 1
    return True


@inlined
def _replace(row: int, slot: int, rules: KeyRules, keys: KeyMap, lost: Bytes) -> None:
    """Hold a later record of a key against the one in the map."""
    number, loser = get_fact(keys.window, NUMBER, row), get_long(keys.numbers, slot)
    if rules.strategy != BY_OFFSET:
        version = get_fact(keys.window, VERSION, row)
        if version < get_long(keys.versions, slot):
            _mark(lost, number)
            return
        put_long(keys.versions, slot, version)
    put_long(keys.numbers, slot, number)
    _mark(lost, loser)


@inlined
def _compare(row: int, slot: int, rules: KeyRules, keys: KeyMap, marks: Marks) -> None:
    """Hold a record from before the mapped ones against its key's latest."""
    number, winner = get_fact(keys.window, NUMBER, row), get_long(keys.numbers, slot)
    if rules.strategy == BY_OFFSET:
        _mark(marks.own, number)
        return
    version, winning = get_fact(keys.window, VERSION, row), get_long(keys.versions, slot)
    # Of equal versions the later record wins: one of the map, or this one if the winner lies
    # before the mapped ones as well.
    if version < winning or (version == winning and winner != OUTSIDE):
        _mark(marks.own, number)
        return
    put_long(keys.versions, slot, version)
    put_long(keys.numbers, slot, OUTSIDE)
    if winner != OUTSIDE:
        _mark(marks.lost, winner)
