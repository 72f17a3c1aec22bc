"""Sums of int64 that wrap, and their length in bits, compiled and interpreted alike.

Compiled integers wrap silently where the interpreter's grow, so kernels compare values with their
bounds before they add. Timestamps are the one case where wrapping is the rule: Kafka's producers
compute their deltas in machine words, and adding them back in machine words restores them.
"""

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, overload


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
