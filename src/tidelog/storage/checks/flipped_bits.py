"""Finds the one flipped bit that makes bytes and their CRC-32C disagree. Pure.

Findings use this module to name the flipped bit. The bytes must once have matched their checksum:
they are a zone of a zone map, or a complete change of a metadata log.
"""

from functools import cache

from tidelog.record.coding import CRC32C_POLYNOMIAL, crc32c
from tidelog.record.header import ATTRIBUTES_AT, CRC_AT


def flipped_bit(data: bytes, crc: int) -> tuple[int, int] | None:
    """Return the single flipped bit in `data` or its checksum; None if there is no such bit.

    Args:
        data: The bytes that the checksum covers.
        crc: Their stored CRC-32C.

    Returns:
        The position of the byte in `data`, and the bit's number in the byte, 0 for the lowest. The
        position is negative if the byte is in the checksum, which a batch stores before the data.

    A checksum is linear: how much a flipped bit changes the checksum depends only on the bit's
    distance from the end of the data. So the difference between the computed and the stored
    checksum is shifted back byte by byte until it equals the change that one flipped bit in the
    last byte causes.
    """
    difference = crc32c(data) ^ crc
    if difference.bit_count() == 1:
        number = difference.bit_length() - 1
        return CRC_AT - ATTRIBUTES_AT + 3 - number // 8, number % 8
    table, back, last = _tables()
    for byte in range(len(data) - 1, -1, -1):
        bit = last.get(difference)
        if bit is not None:
            return byte, bit
        index = back[difference >> 24]
        difference = (difference ^ table[index]) << 8 | index
    return None


@cache
def _tables() -> tuple[list[int], list[int], dict[int, int]]:
    """Return three tables.

    - The usual CRC table: the value that is XORed into a CRC when a byte is processed, by low byte.
    - The inverse of this table: the low byte, by the top byte of the value.
    - The number of a flipped bit in the last byte, by the change of the CRC that the bit causes.
    """
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (CRC32C_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    back = [0] * 256
    for index, value in enumerate(table):
        back[value >> 24] = index
    return table, back, {table[1 << bit]: bit for bit in range(8)}
