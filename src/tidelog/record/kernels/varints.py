"""Zig-zag varints: 7 bits a byte, lowest first, as in Kafka's records and protobuf's sint types.

Readers never fail on the spot. They return the next place, or `POISON` where the bytes end before
the number does or the number is too long; every read from a poisoned place is poisoned again. So
a caller reads all fields of a record and compares the place once, at the end.
"""

from typing import Final

from tidelog.record.kernels.compiler import inlined
from tidelog.record.kernels.memory import Bytes, load_byte, store_byte

# A place that no array reaches, with room to add sizes below 2**31 to it many times.
POISON: Final = 1 << 62


@inlined
def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """An int32 and the place after it; `POISON` as place where there is none before `end`."""
    if at >= end:
        return 0, POISON
    byte = load_byte(data, at)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_rest(data, at, end, 35, 0xF)


@inlined
def read_varlong(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """An int64 and the place after it; `POISON` as place where there is none before `end`."""
    if at >= end:
        return 0, POISON
    byte = load_byte(data, at)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_rest(data, at, end, 70, 1)


@inlined
def _read_rest(
    data: Bytes, at: int, end: int, bits_limit: int, last_byte_max: int
) -> tuple[int, int]:
    """Numbers of two bytes and more; the last byte possible may only fill up the width.

    Zig-zag is undone on two halves, because the full 64 bits don't fit a signed number and the
    interpreter's integers would grow where compiled ones wrap.
    """
    value = load_byte(data, at) & 0x7F
    shift = 7
    at += 1
    while at < end and shift < bits_limit:
        byte = load_byte(data, at)
        at += 1
        if shift == 63:
            return _join_last_bit(value, byte, at)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == bits_limit - 7 and byte > last_byte_max:
                return 0, POISON
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return 0, POISON


@inlined
def _join_last_bit(value: int, byte: int, at: int) -> tuple[int, int]:
    """The tenth byte of a varlong: it may only be 0 or 1, and is the sign's neighbour, bit 63."""
    if byte > 1:
        return 0, POISON
    half = (value >> 1) | (byte << 62)
    return half ^ -(value & 1), at


@inlined
def varlong_size(value: int) -> int:
    """Bytes that `write_varlong` takes for an int64 (1..10); an int32 takes at most 5."""
    rest = (-1 - value if value < 0 else value) >> 6
    size = 1
    while rest > 0:
        rest >>= 7
        size += 1
    return size


@inlined
def write_varlong(data: Bytes, at: int, value: int) -> int:
    """Write an int64 (or int32: the bytes are the same) and return the place after it."""
    negative = value < 0
    magnitude = -1 - value if negative else value
    # Zig-zag is 2 * magnitude, plus 1 for negative ones: the first group takes 6 bits of it.
    group = ((magnitude & 0x3F) << 1) | (1 if negative else 0)
    rest = magnitude >> 6
    while rest > 0:
        store_byte(data, at, group | 0x80)
        at += 1
        group = rest & 0x7F
        rest >>= 7
    store_byte(data, at, group)
    return at + 1
