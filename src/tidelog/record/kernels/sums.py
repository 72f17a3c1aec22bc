"""CRC-32C of what lies side by side, from the checksums of its parts: no byte is read twice.

A checksum is a remainder of a polynomial over two elements, so that of A followed by B is that of
A, multiplied by x to the number of B's bits, plus that of B. The powers come from a table with a
row for each byte of the length: four multiplications for any length at most.

Source: the remainder arithmetic of CRC-32C (Castagnoli), reflected as in RFC 3720.
"""

from typing import Final

import numpy as np

from tidelog.record.coding import CRC32C_POLYNOMIAL
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.memory import Bytes, Longs, load_byte, load_int32, store_int32
from tidelog.types import UINT32_MAX

_TOP: Final = 1 << 31
_LENGTH_BYTES: Final = 4
_VALUES: Final = 256


@inlined
def multiply(left: int, right: int) -> int:
    """The product of two remainders."""
    product, bit = 0, _TOP
    while bit != 0:
        if left & bit != 0:
            product ^= right
        bit >>= 1
        right = (right >> 1) ^ (CRC32C_POLYNOMIAL if right & 1 != 0 else 0)
    return product


@inlined
def join_sums(first: int, second: int, size: int, powers: Longs) -> int:
    """The checksum of two pieces side by side.

    Args:
        first: That of the first piece.
        second: That of the second one.
        size: Bytes of the second one, below 2^32.
        powers: What `fill_powers` filled.
    """
    for place in range(_LENGTH_BYTES):
        byte = (size >> (8 * place)) & 0xFF
        if byte != 0:
            first = multiply(powers[place, byte], first)
    return first ^ second


@inlined
def sum_bytes(data: Bytes, start: int, end: int, table: Longs) -> int:
    """The checksum of a few bytes."""
    crc = UINT32_MAX
    for at in range(start, end):
        crc = table[(crc ^ load_byte(data, at)) & 0xFF] ^ (crc >> 8)
    return crc ^ UINT32_MAX


@kernel
def fill_tables(powers: Longs, table: Longs) -> None:
    """What `join_sums` and `sum_bytes` look things up in.

    Shape:
        powers: int64[4, 256], x^(8 * value * 256^row).
        table: int64[256], what a byte alone leaves.
    """
    for value in range(_VALUES):
        crc = value
        for _ in range(8):
            crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL if crc & 1 != 0 else 0)
        table[value] = crc
    step = 1 << 23  # x^8: reflected, so x^0 is the top bit
    for row in range(_LENGTH_BYTES):
        powers[row, 0] = _TOP
        for value in range(1, _VALUES):
            powers[row, value] = multiply(powers[row, value - 1], step)
        step = multiply(powers[row, _VALUES - 1], step)


def sum_tables() -> tuple[Longs, Longs]:
    """Both tables, filled."""
    powers, table = np.empty((_LENGTH_BYTES, _VALUES), np.int64), np.empty(_VALUES, np.int64)
    fill_tables(powers, table)
    return powers, table


@kernel
def count_chained(rows: Bytes, row_size: int, crc: int, table: Longs) -> int:
    """How many rows end with the checksum of what was before them in the row, and of all before.

    Shape:
        rows: uint8[n * row_size]; the last 4 bytes of a row are its checksum.
        crc: The checksum that the first row's goes on from.
        table: What `fill_tables` filled.
    """
    at = 0
    while at < rows.size:
        end = at + row_size - 4
        crc ^= UINT32_MAX
        for place in range(at, end):
            crc = table[(crc ^ load_byte(rows, place)) & 0xFF] ^ (crc >> 8)
        crc ^= UINT32_MAX
        if load_int32(rows, end) & UINT32_MAX != crc:
            break
        at += row_size
    return at // row_size


@kernel
def sum_rows(rows: Bytes, row_size: int, table: Longs, out: Longs) -> None:
    """The checksum of each row.

    Shape:
        rows: uint8[n * row_size].
        table: What `fill_tables` filled.
        out: int64[n].
    """
    for row in range(out.size):
        out[row] = sum_bytes(rows, row * row_size, (row + 1) * row_size, table)


@kernel
def chain_rows(rows: Bytes, row_size: int, crc: int, table: Longs) -> int:
    """Let rows end with the checksum that `count_chained` asks of them.

    Shape:
        rows: uint8[n * row_size]; the last 4 bytes of a row are written.
        crc: The checksum that the first row's goes on from.
        table: What `fill_tables` filled.

    Returns:
        The last row's; `crc` where there is none.
    """
    for row in range(rows.size // row_size):
        at, end = row * row_size, (row + 1) * row_size - _LENGTH_BYTES
        crc ^= UINT32_MAX
        for place in range(at, end):
            crc = table[(crc ^ load_byte(rows, place)) & 0xFF] ^ (crc >> 8)
        crc ^= UINT32_MAX
        store_int32(rows, end, crc)
    return crc
