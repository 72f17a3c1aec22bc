"""Sums of int64 that wrap, their bits moved about, their length, compiled and interpreted alike.

Compiled integers wrap silently where the interpreter's grow, so kernels compare values with their
bounds before they add. Timestamps are the one case where wrapping is the rule: Kafka's producers
compute their deltas in machine words, and adding them back in machine words restores them.
"""

from typing import Final

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, overload

_WORD_MASK: Final = (1 << 64) - 1


def add_wrapping(left: int, right: int) -> int:
    """`left + right` as a signed 64-bit machine word holds it."""
    return (int(left) + int(right) + (1 << 63)) % (1 << 64) - (1 << 63)


@overload(add_wrapping, jit_options={"forceinline": True})
def _add_wrapping(left, right):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    return lambda left, right: left + right


def subtract_wrapping(left: int, right: int) -> int:
    """`left - right` as a signed 64-bit machine word holds it."""
    return (int(left) - int(right) + (1 << 63)) % (1 << 64) - (1 << 63)


@overload(subtract_wrapping, jit_options={"forceinline": True})
def _subtract_wrapping(left, right):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    return lambda left, right: left - right


def rotate_left(value: int, bits: int) -> int:
    """The 64 bits of `value`, those that leave on the left coming back on the right.

    Args:
        value: A signed 64-bit number.
        bits: How far, 1 to 63.
    """
    word = int(value) & _WORD_MASK
    count = int(bits)
    return _signed((word << count | word >> (64 - count)) & _WORD_MASK)


@overload(rotate_left, jit_options={"forceinline": True})
def _rotate_left(value, bits):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    return lambda value, bits: _rotate(value, bits)  # type: ignore[call-arg] # noqa: PLW0108 - numba's API


@intrinsic
def _rotate(typing_context, value, bits):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    """Two shifts, which LLVM knows for a rotation."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
        word, count = arguments
        rest = builder.sub(ir.Constant(ir.IntType(64), 64), count)
        return builder.or_(builder.shl(word, count), builder.lshr(word, rest))

    return types.int64(types.int64, types.int64), generate


def shift_right(value: int, bits: int) -> int:
    """The 64 bits of `value` moved right by 0 to 63 places, zeros coming in."""
    return _signed((int(value) & _WORD_MASK) >> int(bits))


@overload(shift_right, jit_options={"forceinline": True})
def _shift_right(value, bits):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    return lambda value, bits: _shift(value, bits)  # type: ignore[call-arg] # noqa: PLW0108 - numba's API


@intrinsic
def _shift(typing_context, value, bits):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
        return builder.lshr(*arguments)

    return types.int64(types.int64, types.int64), generate


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def multiply_wrapping(left: int, right: int) -> int:
    """`left * right` as a signed 64-bit machine word holds it."""
    return _signed(int(left) * int(right) & _WORD_MASK)


@overload(multiply_wrapping, jit_options={"forceinline": True})
def _multiply_wrapping(left, right):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    return lambda left, right: left * right


def add_product(low: int, high: int, left: int, right: int) -> tuple[int, int]:
    """A sum of 128 bits, as two signed words, and the product of two words taken as unsigned."""
    total = (int(low) & _WORD_MASK) | (int(high) & _WORD_MASK) << 64
    total += (int(left) & _WORD_MASK) * (int(right) & _WORD_MASK)
    return _signed(total & _WORD_MASK), _signed(total >> 64 & _WORD_MASK)


@overload(add_product, jit_options={"forceinline": True})
def _add_product(low, high, left, right):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    return lambda low, high, left, right: _multiply_wide(low, high, left, right)  # type: ignore[call-arg] # noqa: PLW0108 - numba's API


@intrinsic
def _multiply_wide(typing_context, low, high, left, right):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    """One instruction of the machine multiplies, two add."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        wide, half = ir.IntType(128), ir.Constant(ir.IntType(128), 64)
        low, high, left, right = (builder.zext(word, wide) for word in arguments)
        total = builder.or_(low, builder.shl(high, half))
        total = builder.add(total, builder.mul(left, right))
        words = (builder.trunc(part, ir.IntType(64)) for part in (total, builder.lshr(total, half)))
        return context.make_tuple(builder, signature.return_type, list(words))

    pair = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]
    return pair(*[types.int64] * 4), generate


def bit_length(value: int) -> int:
    """How many bits hold `value`, which is not negative; 0 for 0."""
    return int(value).bit_length()


@intrinsic
def _count_bits(typing_context, value):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    """One instruction instead of a search."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
        word = ir.IntType(64)
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(word, 64), zeros)

    return types.int64(types.int64), generate


@overload(bit_length, jit_options={"forceinline": True})
def _bit_length(value):  # type: ignore[no-untyped-def] # noqa: ARG001 - numba's API
    return lambda value: _count_bits(value)  # type: ignore[call-arg] # noqa: PLW0108 - numba's API
