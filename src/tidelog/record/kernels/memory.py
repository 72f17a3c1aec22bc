"""Loads, stores and copies raw bytes; each function has a plain and a compiled form.

The plain functions assert that they stay inside their arrays. The compiled functions check nothing,
so the caller must first compare every position with the end. The compiled functions use the array's
data pointer instead of Numba's indexing, because Numba's indexing tests each index for a negative
value, and can load neither several bytes at once nor big-endian numbers.
"""

import sys
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

if TYPE_CHECKING:
    import numpy.typing as npt

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Ints: TypeAlias = "npt.NDArray[np.int32]"
Longs: TypeAlias = "npt.NDArray[np.int64]"


def load_byte(data: Bytes, at: int) -> int:
    """Load the byte at `at`, 0..255."""
    assert 0 <= at < data.size
    return int(data[at])


def load_int16(data: Bytes, at: int) -> int:
    """Load a big-endian int16."""
    return _load_plain(data, at, 2)


def load_int32(data: Bytes, at: int) -> int:
    """Load a big-endian int32."""
    return _load_plain(data, at, 4)


def load_int64(data: Bytes, at: int) -> int:
    """Load a big-endian int64."""
    return _load_plain(data, at, 8)


def load_word(data: Bytes, at: int) -> int:
    """Load a little-endian int64."""
    assert 0 <= at <= at + 8 <= data.size
    return int.from_bytes(data[at : at + 8].tobytes(), "little", signed=True)


def get_long(data: Longs, slot: int) -> int:
    """Return an element; `slot` must be 0 or more and inside the array."""
    assert 0 <= slot < data.size
    return int(data[slot])


def put_long(data: Longs, slot: int, value: int) -> None:
    """Set an element; `slot` must be 0 or more and inside the array."""
    assert 0 <= slot < data.size
    data[slot] = value


def prefetch(data: "Longs | Ints", slot: int) -> None:
    """Prefetch an element that will be written soon."""
    assert 0 <= slot < data.size


def prefetch_many(data: "Longs", slot: int) -> None:
    """Prefetch an element into the L2 cache.

    The L1 cache can load only a few lines at the same time, so many prefetches would block it.
    """
    assert 0 <= slot < data.size


def fetch(data: Bytes, at: int) -> None:
    """Prefetch bytes that will be read soon; `at` may be outside the array."""


def store_byte(data: Bytes, at: int, value: int) -> None:
    """Store the low 8 bits of `value`."""
    assert 0 <= at < data.size
    data[at] = value & 0xFF


def store_int16(data: Bytes, at: int, value: int) -> None:
    """Store the low 16 bits of `value`, big-endian."""
    _store_plain(data, at, value, 2)


def store_int32(data: Bytes, at: int, value: int) -> None:
    """Store the low 32 bits of `value`, big-endian."""
    _store_plain(data, at, value, 4)


def store_int64(data: Bytes, at: int, value: int) -> None:
    """Store `value`, big-endian."""
    _store_plain(data, at, value, 8)


def copy_bytes(target: Bytes, target_at: int, source: Bytes, at: int, size: int) -> None:
    """Copy `size` bytes (not negative) between two arrays that don't overlap."""
    assert 0 <= target_at <= target_at + size <= target.size
    assert 0 <= at <= at + size <= source.size
    target[target_at : target_at + size] = source[at : at + size]


def _load_plain(data: Bytes, at: int, size: int) -> int:
    assert 0 <= at <= at + size <= data.size
    return int.from_bytes(data[at : at + size].tobytes(), "big", signed=True)


def _store_plain(data: Bytes, at: int, value: int, size: int) -> None:
    assert 0 <= at <= at + size <= data.size
    low_bits = int(value) & ((1 << (8 * size)) - 1)
    data[at : at + size] = np.frombuffer(low_bits.to_bytes(size, "big"), np.uint8)


# The code from here on is compiled. The arguments are Numba's types and LLVM's values, for which
# neither package has type hints. Numba requires the parameters also where they are not used.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"
# ruff: noqa: ARG001


def _address(context, builder, array_type, array, at):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [at])


def _swap(builder, value):
    return builder.bswap(value) if value.type.width > 8 and sys.byteorder == "little" else value


def _loader(size):
    bits, word = ir.IntType(8 * size), ir.IntType(64)

    def load(typing_context, data, at):
        def generate(context, builder, signature, arguments):
            address = _address(context, builder, signature.args[0], *arguments)
            value = builder.load(builder.bitcast(address, bits.as_pointer()), align=1)
            value = _swap(builder, value)
            if size == 1:
                return builder.zext(value, word)
            return value if size == 8 else builder.sext(value, word)

        return types.int64(data, types.int64), generate

    return intrinsic(load)


@intrinsic
def _load_word(typing_context, data, at):
    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature.args[0], *arguments)
        value = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)
        return builder.bswap(value) if sys.byteorder == "big" else value

    return types.int64(data, types.int64), generate


@intrinsic
def _get_long(typing_context, data, slot):
    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, signature.args[0], *arguments))

    return types.int64(data, types.int64), generate


@intrinsic
def _put_long(typing_context, data, slot, value):
    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], address)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.int64), generate


def _hinter(is_write, locality=3):
    """Return a prefetch hint for `locality` (3: all caches); positions may be outside the array."""

    def hint(typing_context, data, slot):
        def generate(context, builder, signature, arguments):
            address = _address(context, builder, signature.args[0], *arguments)
            byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
            call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
            numbers = [ir.Constant(number, value) for value in (is_write, locality, 1)]
            builder.call(call, [builder.bitcast(address, byte), *numbers])
            return context.get_dummy_value()

        return types.void(data, types.int64), generate

    return intrinsic(hint)


def _storer(size):
    bits = ir.IntType(8 * size)

    def store(typing_context, data, at, value):
        def generate(context, builder, signature, arguments):
            address = _address(context, builder, signature.args[0], *arguments[:2])
            low = arguments[2] if size == 8 else builder.trunc(arguments[2], bits)
            builder.store(_swap(builder, low), builder.bitcast(address, bits.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(data, types.int64, types.int64), generate

    return intrinsic(store)


@intrinsic
def _copy(typing_context, target, target_at, source, at, size):
    def generate(context, builder, signature, arguments):
        to = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        start = _address(context, builder, signature.args[2], arguments[2], arguments[3])
        cgutils.raw_memcpy(builder, to, start, arguments[4], 1)
        return context.get_dummy_value()

    word = types.int64
    return types.void(target, word, source, word, word), generate


def _compile_load(plain, load):
    """Make compiled code call the intrinsic `load(data, at)` instead of `plain(data, at)`."""

    def choose(data, at):
        def run(data, at):
            return load(data, at)

        return run

    overload(plain, jit_options={"forceinline": True})(choose)


def _compile_store(plain, store):
    """Make compiled code call `store(data, at, value)` instead of `plain(data, at, value)`."""

    def choose(data, at, value):
        def run(data, at, value):
            return store(data, at, value)

        return run

    overload(plain, jit_options={"forceinline": True})(choose)


@overload(copy_bytes, jit_options={"forceinline": True})
def _copy_bytes(target, target_at, source, at, size):
    def run(target, target_at, source, at, size):
        return _copy(target, target_at, source, at, size)

    return run


_compile_load(get_long, _get_long)
_compile_load(load_word, _load_word)
_compile_load(prefetch, _hinter(1))
_compile_load(prefetch_many, _hinter(0, 2))
_compile_load(fetch, _hinter(0))
_compile_load(load_byte, _loader(1))
_compile_load(load_int16, _loader(2))
_compile_load(load_int32, _loader(4))
_compile_load(load_int64, _loader(8))
_compile_store(put_long, _put_long)
_compile_store(store_byte, _storer(1))
_compile_store(store_int16, _storer(2))
_compile_store(store_int32, _storer(4))
_compile_store(store_int64, _storer(8))
