"""Records on their way into the offset map, and the hashes of their keys, many side by side.

A hash is a chain of steps that each wait for the one before, so the machine has nothing to do
most of the time; of several keys at once it does several steps in the time of one. So the window
has a column for each fact, not a row for each record, and the state of each hash is four of them.

The window has two halves. While the slots of one are on their way into the cache, the records of
the other are taken into the map.
"""

from typing import Final

from tidelog.record.kernels.arithmetic import shift_right
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.key_hash import (
    SIPHASH,
    Hasher,
    begin_sip,
    finish_sip,
    hash_key,
    last_word,
    mask_hash,
    sip_round,
)
from tidelog.record.kernels.memory import Bytes, Longs, get_long, load_word, put_long

# Columns.
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
# Records of a half: enough that their slots are there when the next half is full.
HALF_ROWS: Final = 64
_ROWS: Final = 2 * HALF_ROWS
WINDOW_SIZE: Final = _FIELDS * _ROWS
# In place of a slot: the record has no key.
NO_SLOT: Final = -1

_WORD_SIZE: Final = 8
# Keys are hashed side by side where that takes no more than so many times the steps they need.
_WASTE_MAX: Final = 2


@inlined
def get_fact(window: Longs, column: int, row: int) -> int:
    """What the window says of a record."""
    return get_long(window, column * _ROWS + row)


@inlined
def put_fact(window: Longs, column: int, row: int, value: int) -> None:
    """Set what the window says of a record."""
    put_long(window, column * _ROWS + row, value)


@kernel
def hash_rows(
    data: Bytes, start: int, count: int, hasher: Hasher, slots: int, window: Longs
) -> None:
    """Hash the keys of some rows, and find the slots where they are looked for.

    Shape:
        data: uint8[...], where the keys lie: KEY_AT and KEY_SIZE, the size being -1 for none.
        start: The first row.
        count: How many rows.
        slots: How many the map has.
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
        # All ones where there is no key.
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
    """As `siphash` for each row. Each loop over rows does the same for all: no branches."""
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
    """The word of a key that a step takes; anything once the key is through."""
    size, at = max(get_fact(window, KEY_SIZE, row), 0), get_fact(window, KEY_AT, row)
    left = size - _WORD_SIZE * step
    at += _WORD_SIZE * step
    if left >= _WORD_SIZE:
        return load_word(data, at)
    return last_word(data, at, at + left, size) if left >= 0 else 0


@inlined
def _take_word(row: int, step: int, window: Longs) -> None:
    """Two rounds of a row's state, which stays as it is where its key is through."""
    a, b = get_fact(window, HASH_LOW, row), get_fact(window, HASH_HIGH, row)
    c, d = get_fact(window, _THIRD, row), get_fact(window, _FOURTH, row)
    word = get_fact(window, _WORD, row)
    # All ones where the key has that word.
    taken = ~((get_fact(window, KEY_SIZE, row) - _WORD_SIZE * step) >> 63)
    if step == 0:
        taken = -1
    new_a, new_b, new_c, new_d = sip_round(a, b, c, d ^ word)
    new_a, new_b, new_c, new_d = sip_round(new_a, new_b, new_c, new_d)
    put_fact(window, HASH_LOW, row, a ^ ((a ^ new_a ^ word) & taken))
    put_fact(window, HASH_HIGH, row, b ^ ((b ^ new_b) & taken))
    put_fact(window, _THIRD, row, c ^ ((c ^ new_c) & taken))
    put_fact(window, _FOURTH, row, d ^ ((d ^ new_d) & taken))
