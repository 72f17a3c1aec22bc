"""Varints and CRC-32C.

Varints are zig-zag encoded numbers in groups of 7 bits, least significant group first, as in
protobuf's `sint32` and `sint64`. As in Kafka, a reader accepts a number that ends with unnecessary
groups of zeros. It rejects a varint of more than 32 bits and a varlong of more than 64 bits.

Source: docs/format.md#record; KIP-98.
"""

import zlib
from collections.abc import Sequence
from typing import Final

from fastcrc import crc32 as fast_crc32

from tidelog.errors import CorruptRecord
from tidelog.types import Buffer

# Reflected polynomial of CRC-32C.
CRC32C_POLYNOMIAL: Final = 0x82F63B78


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of `data`, continuing from `value`; used by magic 2."""
    return fast_crc32.iscsi(data, value) if value else fast_crc32.iscsi(data)


def crc32c_spans(data: memoryview, starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the CRC-32C of each `data[start:end]`, faster than separate calls of `crc32c`."""
    compute = fast_crc32.iscsi
    return [compute(data[start:end]) for start, end in zip(starts, ends, strict=True)]


def crc32(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32 (IEEE, as in zlib) of `data`, continuing from `value`.

    Magic 0 and 1 use this checksum.
    """
    return zlib.crc32(data, value)


def read_varint(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return the int32 at `at`, and the position after it.

    Args:
        buffer: Bytes to read from.
        at: Position of the first byte.
        end: Position after the last readable byte.

    Raises:
        CorruptRecord: The number extends beyond `end`, or is wider than 32 bits.
    """
    if at < end and (byte := buffer[at]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_groups(buffer, at, end, 32)


def read_varlong(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return the int64 at `at`, and the position after it; arguments are those of `read_varint`.

    Raises:
        CorruptRecord: The number extends beyond `end`, or is wider than 64 bits.
    """
    if at < end and (byte := buffer[at]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_groups(buffer, at, end, 64)


def _read_groups(buffer: Buffer, at: int, end: int, bit_count: int) -> tuple[int, int]:
    """Return the varint at `at`, of at most `bit_count` bits, and the position after it."""
    start, raw = at, 0
    for shift in range(0, bit_count, 7):
        if at >= end:
            raise CorruptRecord("a variable-length integer extends past the end", at=start)
        byte = buffer[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise CorruptRecord(f"a variable-length integer of more than {bit_count} bits", at=start)
    if raw >> bit_count:
        raise CorruptRecord(f"a variable-length integer of more than {bit_count} bits", at=start)
    return (raw >> 1) ^ -(raw & 1), at


def write_varint(out: bytearray, value: int) -> None:
    """Append the int32 `value` to `out` as a varint."""
    assert -(2**31) <= value < 2**31
    raw = (value << 1) ^ (value >> 31)
    if raw < 0x80:
        out.append(raw)
    else:
        _write_groups(out, raw)


def write_varlong(out: bytearray, value: int) -> None:
    """Append the int64 `value` to `out` as a varlong."""
    assert -(2**63) <= value < 2**63
    _write_groups(out, (value << 1) ^ (value >> 63))


def _write_groups(out: bytearray, raw: int) -> None:
    # `raw` is a Python int of 0 or more, so it needs no mask to 64 bits.
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _short_varint(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


# Number of values, from 0 on, whose encoding is precomputed. Most lengths, deltas and counts are
# below this number.
SHORT_VARINTS_COUNT: Final = 1024
SHORT_VARINTS: Final = tuple(map(_short_varint, range(SHORT_VARINTS_COUNT)))


def encode_varlong(value: int) -> bytes:
    """Return the int64 `value` as a varlong; for an int32 the varint has the same bytes."""
    if 0 <= value < SHORT_VARINTS_COUNT:
        return SHORT_VARINTS[value]
    out = bytearray()
    write_varlong(out, value)
    return bytes(out)
