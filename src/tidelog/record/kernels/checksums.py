"""Checksums of whole batches, without the GIL: as fast as memory is, and in several threads.

The instruction for CRC-32C answers after three steps of the clock and takes a new one at each, so
three runs of bytes are summed side by side. Their registers become one by a table for their size:
what zeros behind a register make of it is linear in its bits, so four look-ups do.

Source: the remainder arithmetic of `sums`; `crc_words` for the steps.
"""

from functools import cache
from typing import Final

import numpy as np

from tidelog.record.header import ATTRIBUTES_AT, CRC_AT, MAGIC_2
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.crc_words import WORD_SIZE, add_byte, add_word
from tidelog.record.kernels.layout import BODY_END, CRC, MAGIC, POSITION
from tidelog.record.kernels.memory import Bytes, Longs, fetch, load_int32
from tidelog.record.kernels.sums import multiply, sum_tables
from tidelog.types import UINT32_MAX

# Bytes of each of three runs. Short ones: three that are far from each other are more than the
# machine guesses right when it fetches ahead (runs of 1024 bytes: half as fast from memory).
FAR: Final = 256
NEAR: Final = 128
# A table has a row of 256 for each byte of the register; that for NEAR stands behind that for FAR.
TABLE_SIZE: Final = 4 * 256
SHIFTS_SIZE: Final = 2 * TABLE_SIZE
_NEAR_AT: Final = TABLE_SIZE
# Bytes of a line of the cache; both sizes are lines.
_LINE: Final = 64
# Of a body so much is fetched at once; the nearest cache holds it.
_BODY_MAX: Final = 32 << 10
# How far ahead of the runs lines are asked for.
_AHEAD: Final = 1024
NONE_BAD: Final = -1
# In place of `shifts()`: nothing is to be checked.
NO_SHIFTS: Final = np.empty(0, np.int64)


@kernel
def fill_shifts(power: int, out: Longs) -> None:
    """What zeros make of each byte of a register.

    Shape:
        power: x to the number of their bits, as `sums` has it.
        out: int64[TABLE_SIZE].
    """
    for place in range(4):
        for value in range(256):
            out[256 * place + value] = multiply(power, value << (8 * place))


@cache
def shifts() -> Longs:
    """Both tables, one behind the other; nobody may write to them."""
    powers, _ = sum_tables()
    found = np.empty(SHIFTS_SIZE, np.int64)
    fill_shifts(_power(powers, FAR), found[:TABLE_SIZE])
    fill_shifts(_power(powers, NEAR), found[TABLE_SIZE:])
    return found


def _power(powers: Longs, size: int) -> int:
    """X to the bits of a size of one byte that isn't 0."""
    row = (size.bit_length() - 1) // 8
    assert size == size >> (8 * row) << (8 * row)
    return int(powers[row, size >> (8 * row)])


@inlined
def _shift(crc: int, table: Longs, at: int) -> int:
    """The register behind as many zeros as the table at `at` is for."""
    low: int = table[at + (crc & 0xFF)] ^ table[at + 256 + ((crc >> 8) & 0xFF)]
    high: int = table[at + 512 + ((crc >> 16) & 0xFF)] ^ table[at + 768 + ((crc >> 24) & 0xFF)]
    return low ^ high


@inlined
def fetch_body(data: Bytes, start: int, end: int) -> None:
    """Let a body come into the cache: the machine does not foresee steps from record to record."""
    for at in range(start, min(end, start + _BODY_MAX), _LINE):
        fetch(data, at)


@inlined
def _add_three(crc: int, data: Bytes, start: int, size: int, table: Longs, at: int) -> int:
    """The register behind three runs of `size` bytes, for which the table at `at` is."""
    second = third = 0
    ahead = start + 3 * size + _AHEAD
    for line in range(start, start + size, _LINE):
        fetch(data, ahead)
        fetch(data, ahead + _LINE)
        fetch(data, ahead + 2 * _LINE)
        ahead += 3 * _LINE
        for place in range(line, line + _LINE, WORD_SIZE):
            crc = add_word(crc, data, place)
            second = add_word(second, data, place + size)
            third = add_word(third, data, place + 2 * size)
    return _shift(_shift(crc, table, at) ^ second, table, at) ^ third


@inlined
def sum_span(data: Bytes, start: int, end: int, table: Longs) -> int:
    """CRC-32C of `data[start:end]`; `table` is `shifts()`."""
    crc, at = UINT32_MAX, start
    while end - at >= 3 * FAR:
        crc = _add_three(crc, data, at, FAR, table, 0)
        at += 3 * FAR
    while end - at >= 3 * NEAR:
        crc = _add_three(crc, data, at, NEAR, table, _NEAR_AT)
        at += 3 * NEAR
    while end - at >= WORD_SIZE:
        crc = add_word(crc, data, at)
        at += WORD_SIZE
    while at < end:
        crc = add_byte(crc, data, at)
        at += 1
    return crc ^ UINT32_MAX


@inlined
def sum_batch(data: Bytes, batch: Longs, table: Longs) -> int:
    """CRC-32C of a batch of magic 2 that lies in `data`, by its row of the batch table."""
    return sum_span(data, batch[POSITION] + ATTRIBUTES_AT, batch[BODY_END], table)


@inlined
def has_right_sum(data: Bytes, at: int, size: int) -> bool:
    """Whether the checksum of a batch of magic 2 is right; for few bytes, needs no table."""
    crc, place, end = UINT32_MAX, at + ATTRIBUTES_AT, at + size
    while end - place >= WORD_SIZE:
        crc = add_word(crc, data, place)
        place += WORD_SIZE
    while place < end:
        crc = add_byte(crc, data, place)
        place += 1
    return (crc ^ UINT32_MAX) == (load_int32(data, at + CRC_AT) & UINT32_MAX)


@kernel
def find_bad_sum(data: Bytes, batches: Longs, table: Longs) -> tuple[int, int]:
    """The first batch of magic 2 whose checksum is not what its header says.

    Shape:
        data: uint8[>= every BODY_END].
        batches: int64[n, BATCH_FIELDS].
        table: `shifts()`.

    Returns:
        Its row, and the checksum of its bytes; `NONE_BAD` and 0 where all are right.
    """
    for slot in range(batches.shape[0]):
        if batches[slot, MAGIC] == MAGIC_2:
            found = sum_batch(data, batches[slot], table)
            if found != batches[slot, CRC]:
                return slot, found
    return NONE_BAD, 0
