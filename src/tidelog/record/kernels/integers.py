"""Wrapping int64 arithmetic and zig-zag varints. Compiled and interpreted code have equal results.

Compiled 64-bit integers overflow silently, while Python's integers grow. So kernels compare values
with their bounds before they add them. Timestamps overflow on purpose: Kafka's producers compute
deltas with 64-bit overflow, so adding the deltas with 64-bit overflow restores the times.

A function that reads a varint raises no error. It returns the next position, or `INVALID` if the
bytes end early or the number is too long. Reading at `INVALID` returns `INVALID` again, so a caller
can read all fields of a record and then check the position once.
"""

from typing import Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from tidelog.record.kernels.compiler import inlined
from tidelog.record.kernels.memory import Bytes, load_byte, store_byte

_WORD_MASK: Final = (1 << 64) - 1


def add_wrapping(left: int, right: int) -> int:
    """Return `left + right`, wrapped to a signed 64-bit number."""
    return (int(left) + int(right) + (1 << 63)) % (1 << 64) - (1 << 63)


def subtract_wrapping(left: int, right: int) -> int:
    """Return `left - right`, wrapped to a signed 64-bit number."""
    return (int(left) - int(right) + (1 << 63)) % (1 << 64) - (1 << 63)


def rotate_left(value: int, bits: int) -> int:
    """Return the 64 bits of `value`, rotated to the left.

    Args:
        value: A signed 64-bit number.
        bits: Number of bits, 1 to 63.
    """
    word = int(value) & _WORD_MASK
    count = int(bits)
    return _signed((word << count | word >> (64 - count)) & _WORD_MASK)


def shift_right(value: int, bits: int) -> int:
    """Return the 64 bits of `value`, shifted right by 0 to 63 bits, filled with zeros."""
    return _signed((int(value) & _WORD_MASK) >> int(bits))


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def multiply_wrapping(left: int, right: int) -> int:
    """Return `left * right`, wrapped to a signed 64-bit number."""
    return _signed(int(left) * int(right) & _WORD_MASK)


def add_product(low: int, high: int, left: int, right: int) -> tuple[int, int]:
    """Add the product of two unsigned words to a 128-bit sum; return the new sum.

    The sum is passed and returned as two signed words: the low half, then the high half.
    """
    total = (int(low) & _WORD_MASK) | (int(high) & _WORD_MASK) << 64
    total += (int(left) & _WORD_MASK) * (int(right) & _WORD_MASK)
    return _signed(total & _WORD_MASK), _signed(total >> 64 & _WORD_MASK)


def bit_length(value: int) -> int:
    """Return the number of bits of `value`, which is not negative; 0 for 0."""
    return int(value).bit_length()


# Position that stands for a damaged number: beyond the end of every array, and so low that adding
# many sizes below 2**31 does not overflow.
INVALID: Final = 1 << 62


@inlined
def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return an int32 and the position after it, which is `INVALID` if the number is damaged.

    A number is damaged if it is too long or extends beyond `end`.
    """
    if at >= end:
        return 0, INVALID
    byte = load_byte(data, at)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_rest(data, at, end, 35, 0xF)


@inlined
def read_varlong(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return an int64 and the position after it, which is `INVALID` if the number is damaged.

    A number is damaged if it is too long or extends beyond `end`.
    """
    if at >= end:
        return 0, INVALID
    byte = load_byte(data, at)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_rest(data, at, end, 70, 1)


@inlined
def _read_rest(
    data: Bytes, at: int, end: int, bits_limit: int, last_byte_max: int
) -> tuple[int, int]:
    """Read a varint or varlong of two or more bytes; see `read_varint`.

    The tenth byte of a varlong is added after the zig-zag coding of the other bits is removed
    (`_join_last_bit`). Otherwise the number would need 64 bits without a sign, which a compiled
    integer does not have.
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
                return 0, INVALID
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return 0, INVALID


@inlined
def _join_last_bit(value: int, byte: int, at: int) -> tuple[int, int]:
    """Complete a varlong by its tenth byte; return the number and `at`, or 0 and `INVALID`.

    The tenth byte has only bit 63 of the zig-zag number, so it must be 0 or 1.
    """
    if byte > 1:
        return 0, INVALID
    half = (value >> 1) | (byte << 62)
    return half ^ -(value & 1), at


@inlined
def varlong_size(value: int) -> int:
    """Return the number of bytes of an int64 as a varlong: 1 to 10, for an int32 at most 5."""
    rest = (-1 - value if value < 0 else value) >> 6
    size = 1
    while rest > 0:
        rest >>= 7
        size += 1
    return size


@inlined
def write_varlong(data: Bytes, at: int, value: int) -> int:
    """Write an int64 (an int32 has the same bytes) and return the position after it."""
    negative = value < 0
    magnitude = -1 - value if negative else value
    # The zig-zag form of a number is 2 * `magnitude`, plus 1 if the number is negative. So the
    # first group has 6 bits of the magnitude.
    group = ((magnitude & 0x3F) << 1) | (1 if negative else 0)
    rest = magnitude >> 6
    while rest > 0:
        store_byte(data, at, group | 0x80)
        at += 1
        group = rest & 0x7F
        rest >>= 7
    store_byte(data, at, group)
    return at + 1


# From here on: the compiled forms of functions above. `memory` explains why mypy and ruff don't
# check this code fully.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"
# ruff: noqa: ARG001, PLW0108


@overload(add_wrapping, jit_options={"forceinline": True})
def _add_wrapping(left, right):
    return lambda left, right: left + right


@overload(subtract_wrapping, jit_options={"forceinline": True})
def _subtract_wrapping(left, right):
    return lambda left, right: left - right


@overload(rotate_left, jit_options={"forceinline": True})
def _rotate_left(value, bits):
    return lambda value, bits: _rotate(value, bits)


@intrinsic
def _rotate(typing_context, value, bits):
    """Compute `rotate_left` with two shifts, which LLVM compiles to one rotation."""

    def generate(context, builder, signature, arguments):
        word, count = arguments
        rest = builder.sub(ir.Constant(ir.IntType(64), 64), count)
        return builder.or_(builder.shl(word, count), builder.lshr(word, rest))

    return types.int64(types.int64, types.int64), generate


@overload(shift_right, jit_options={"forceinline": True})
def _shift_right(value, bits):
    return lambda value, bits: _shift(value, bits)


@intrinsic
def _shift(typing_context, value, bits):
    def generate(context, builder, signature, arguments):
        return builder.lshr(*arguments)

    return types.int64(types.int64, types.int64), generate


@overload(multiply_wrapping, jit_options={"forceinline": True})
def _multiply_wrapping(left, right):
    return lambda left, right: left * right


@overload(add_product, jit_options={"forceinline": True})
def _add_product(low, high, left, right):
    return lambda low, high, left, right: _multiply_wide(low, high, left, right)


@intrinsic
def _multiply_wide(typing_context, low, high, left, right):
    """Compute `add_product` with three machine instructions."""

    def generate(context, builder, signature, arguments):
        wide, half = ir.IntType(128), ir.Constant(ir.IntType(128), 64)
        low, high, left, right = (builder.zext(word, wide) for word in arguments)
        total = builder.or_(low, builder.shl(high, half))
        total = builder.add(total, builder.mul(left, right))
        words = (builder.trunc(part, ir.IntType(64)) for part in (total, builder.lshr(total, half)))
        return context.make_tuple(builder, signature.return_type, list(words))

    pair = types.UniTuple(types.int64, 2)
    return pair(*[types.int64] * 4), generate


@intrinsic
def _count_bits(typing_context, value):
    """Compute `bit_length` with one machine instruction."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(64)
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(word, 64), zeros)

    return types.int64(types.int64), generate


@overload(bit_length, jit_options={"forceinline": True})
def _bit_length(value):
    return lambda value: _count_bits(value)
