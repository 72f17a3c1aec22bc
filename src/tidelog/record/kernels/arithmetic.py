"""Sums of int64 that wrap, compiled and interpreted alike.

Compiled integers wrap silently where the interpreter's grow, so kernels compare values with their
bounds before they add. Timestamps are the one case where wrapping is the rule: Kafka's producers
compute their deltas in machine words, and adding them back in machine words restores them.
"""

from numba.extending import overload


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
