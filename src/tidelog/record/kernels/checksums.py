"""Computes the CRC-32C of whole batches and of concatenated parts, without the GIL.

The CPU's CRC-32C instruction has a latency of three cycles, but one instruction can start in each
cycle. So three consecutive runs of bytes are processed in parallel, each with its own CRC register.
To combine two registers, the earlier run is extended by zeros for the bytes of the later run. The
zeros change the register linearly, so four table lookups, one for each byte of the register, give
the new register. If the CPU lacks the instruction (`HAS_INSTRUCTION` is False), a slow loop
computes the same checksums. Callers with much data then use a library instead.

The CRC of A followed by B is crc(A) * x^n + crc(B), where n is the number of bits in B. So
`join_sums` combines checksums of parts without reading the bytes again. A table with a row for each
byte of B's length gives x^n in at most four multiplications. Compiled functions check no bounds, so
the caller must check them, as for the functions of `memory`.

Source: RFC 3720 (CRC-32C, Castagnoli, reflected); the instructions CRC32 of SSE 4.2 and CRC32C of
ARMv8.
"""

import platform
from functools import cache
from typing import Final

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import config
from numba.extending import intrinsic, overload

from tidelog.record.coding import CRC32C_POLYNOMIAL
from tidelog.record.header import ATTRIBUTES_AT, CRC_AT, MAGIC_2
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.layout import BODY_END, CRC, MAGIC, POSITION
from tidelog.record.kernels.memory import (
    Bytes,
    Longs,
    fetch,
    load_byte,
    load_int32,
    load_word,
    store_int32,
)
from tidelog.types import UINT32_MAX

WORD_SIZE: Final = 8
_X86: Final = ("x86_64", "AMD64")


def _has_instruction() -> bool:
    """Whether this CPU has the CRC-32C instruction, and Numba compiles for this CPU."""
    if getattr(config, "CPU_NAME", None) or getattr(config, "CPU_FEATURES", None):
        return False  # Numba is configured for another CPU.
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:
        return False  # LLVM does not know this CPU.
    return bool(features.get("sse4.2" if platform.machine() in _X86 else "crc", False))


HAS_INSTRUCTION: Final = _has_instruction()


def add_byte(crc: int, data: Bytes, at: int) -> int:
    """Return the CRC register after the byte at `at`."""
    crc = int(crc) ^ load_byte(data, at)
    for _ in range(8):
        crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL if crc & 1 != 0 else 0)
    return crc


def add_word(crc: int, data: Bytes, at: int) -> int:
    """Return the CRC register after the 8 bytes at `at`."""
    for position in range(at, at + WORD_SIZE):
        crc = add_byte(crc, data, position)
    return crc


# The code from here on is compiled. `memory` explains why mypy and ruff don't check it fully.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# ruff: noqa: ARG001


def _stepper(x86_name, arm_name, bits):
    """Return an intrinsic that adds a word of `bits` bits to the CRC register.

    The CRC register is the low half of an int64.
    """
    is_x86 = platform.machine() in _X86
    word, register = ir.IntType(bits), ir.IntType(64 if is_x86 and bits == 64 else 32)

    def step(typing_context, crc, value):
        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(register, [register, word])
            name = x86_name if is_x86 else arm_name
            run = builder.module.declare_intrinsic(name, (), kind)
            crc, value = arguments
            crc = crc if register.width == 64 else builder.trunc(crc, register)
            if word.width < 64:
                # ARM's instruction takes the byte in a 32-bit register.
                value = builder.trunc(value, word)
            result = builder.call(run, [crc, value])
            return result if register.width == 64 else builder.zext(result, ir.IntType(64))

        return types.int64(types.int64, types.int64), generate

    return intrinsic(step)


_step_word = _stepper("llvm.x86.sse42.crc32.64.64", "llvm.aarch64.crc32cx", 64)

_step_byte = _stepper(
    "llvm.x86.sse42.crc32.32.8",
    "llvm.aarch64.crc32cb",
    8 if platform.machine() in _X86 else 32,
)


@overload(add_word, jit_options={"forceinline": True})
def _choose_add_word(crc, data, at):
    if HAS_INSTRUCTION:

        def run(crc, data, at):
            return _step_word(crc, load_word(data, at))

    else:

        def run(crc, data, at):
            for position in range(at, at + WORD_SIZE):
                crc = add_byte(crc, data, position)
            return crc

    return run


@overload(add_byte, jit_options={"forceinline": True})
def _choose_add_byte(crc, data, at):
    if HAS_INSTRUCTION:

        def run(crc, data, at):
            return _step_byte(crc, load_byte(data, at))

    else:

        def run(crc, data, at):
            crc ^= load_byte(data, at)
            for _ in range(8):
                crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL if crc & 1 != 0 else 0)
            return crc

    return run


_TOP: Final = 1 << 31
_LENGTH_BYTES: Final = 4
_VALUES: Final = 256


@inlined
def multiply(left: int, right: int) -> int:
    """Return the product of two polynomials, modulo the polynomial of CRC-32C."""
    product, bit = 0, _TOP
    while bit != 0:
        if left & bit != 0:
            product ^= right
        bit >>= 1
        right = (right >> 1) ^ (CRC32C_POLYNOMIAL if right & 1 != 0 else 0)
    return product


@inlined
def join_sums(first: int, second: int, size: int, powers: Longs) -> int:
    """Return the checksum of two concatenated pieces.

    Args:
        first: Checksum of the first piece.
        second: Checksum of the second piece.
        size: Size of the second piece in bytes, below 2^32.
        powers: Filled by `fill_tables`.
    """
    for index in range(_LENGTH_BYTES):
        byte = (size >> (8 * index)) & 0xFF
        if byte != 0:
            first = multiply(powers[index, byte], first)
    return first ^ second


@inlined
def sum_bytes(crc: int, data: Bytes, start: int, end: int, table: Longs) -> int:
    """Continue the checksum `crc` of earlier bytes over `data[start:end]`; return the new checksum.

    Without earlier bytes, `crc` is 0. The function is meant for a few bytes.
    """
    crc ^= UINT32_MAX
    for at in range(start, end):
        crc = table[(crc ^ load_byte(data, at)) & 0xFF] ^ (crc >> 8)
    return crc ^ UINT32_MAX


@kernel
def fill_tables(powers: Longs, table: Longs) -> None:
    """Fill the lookup tables of `join_sums` and `sum_bytes`.

    Shape:
        powers: int64[4, 256], x^(8 * value * 256^row).
        table: int64[256], the register after a single byte.
    """
    for value in range(_VALUES):
        crc = value
        for _ in range(8):
            crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL if crc & 1 != 0 else 0)
        table[value] = crc
    step = 1 << 23  # This is x^8 in reflected form, in which x^0 is the top bit.
    for row in range(_LENGTH_BYTES):
        powers[row, 0] = _TOP
        for value in range(1, _VALUES):
            powers[row, value] = multiply(powers[row, value - 1], step)
        step = multiply(powers[row, _VALUES - 1], step)


def sum_tables() -> tuple[Longs, Longs]:
    """Return the lookup tables of `join_sums` and `sum_bytes`."""
    powers, table = np.empty((_LENGTH_BYTES, _VALUES), np.int64), np.empty(_VALUES, np.int64)
    fill_tables(powers, table)
    return powers, table


@kernel
def count_chained(rows: Bytes, row_size: int, crc: int, table: Longs) -> int:
    """Return the number of rows before the first row with a wrong checksum.

    The checksum of a row covers this row and all rows before it, except the bytes of their
    checksums.

    Shape:
        rows: uint8[n * row_size]; the last 4 bytes of a row are its checksum.
        crc: Checksum of the bytes before the first row. The first row's checksum is computed from
            this value on.
        table: Filled by `fill_tables`.
    """
    at = 0
    while at < rows.size:
        end = at + row_size - _LENGTH_BYTES
        crc = sum_bytes(crc, rows, at, end, table)
        if load_int32(rows, end) & UINT32_MAX != crc:
            break
        at += row_size
    return at // row_size


@kernel
def sum_rows(rows: Bytes, row_size: int, table: Longs, out: Longs) -> None:
    """Compute the checksum of each row.

    Shape:
        rows: uint8[n * row_size].
        table: Filled by `fill_tables`.
        out: int64[n].
    """
    for row in range(out.size):
        out[row] = sum_bytes(0, rows, row * row_size, (row + 1) * row_size, table)


@kernel
def chain_rows(rows: Bytes, row_size: int, crc: int, table: Longs) -> int:
    """Write to the end of each row the checksum that `count_chained` verifies.

    Shape:
        rows: uint8[n * row_size]; the last 4 bytes of a row are written.
        crc: Checksum of the bytes before the first row. The first row's checksum is computed from
            this value on.
        table: Filled by `fill_tables`.

    Returns:
        The last row's checksum; `crc` if there are no rows.
    """
    for row in range(rows.size // row_size):
        at, end = row * row_size, (row + 1) * row_size - _LENGTH_BYTES
        crc = sum_bytes(crc, rows, at, end, table)
        store_int32(rows, end, crc)
    return crc


# Sizes of a run in bytes: FAR while three such runs remain, then NEAR. Runs are short, because the
# CPU's prefetcher does not follow three runs that are far apart: with runs of 1024 bytes, reading
# from memory is half as fast.
FAR: Final = 256

NEAR: Final = 128

# Number of elements in a table: 256 for each byte of the register. The table for NEAR follows the
# table for FAR.
TABLE_SIZE: Final = 4 * 256

SHIFTS_SIZE: Final = 2 * TABLE_SIZE
_NEAR_AT: Final = TABLE_SIZE

# Size of a cache line in bytes; both run sizes are multiples of it.
_LINE: Final = 64

# Maximum number of bytes of a body to prefetch at once. This number of bytes fits into the L1
# cache.
_BODY_MAX: Final = 32 << 10

# Distance in bytes by which cache lines are prefetched ahead of the runs.
_AHEAD: Final = 1024

NONE_BAD: Final = -1

# Passed instead of `shifts()` if checksums are not checked.
NO_SHIFTS: Final = np.empty(0, np.int64)


@kernel
def fill_shifts(power: int, out: Longs) -> None:
    """Fill a table: the register after appended zeros, for each value of each register byte.

    Shape:
        power: x^(number of appended zero bits), from the table `powers` of `join_sums`.
        out: int64[TABLE_SIZE].
    """
    for index in range(4):
        for value in range(256):
            out[256 * index + value] = multiply(power, value << (8 * index))


@cache
def shifts() -> Longs:
    """Return the tables for FAR and NEAR, one after the other; they must not be changed."""
    powers, _ = sum_tables()
    tables = np.empty(SHIFTS_SIZE, np.int64)
    fill_shifts(_power(powers, FAR), tables[:TABLE_SIZE])
    fill_shifts(_power(powers, NEAR), tables[TABLE_SIZE:])
    return tables


def _power(powers: Longs, size: int) -> int:
    """Return x to the power of 8 * `size`; only one byte of `size` may be nonzero."""
    row = (size.bit_length() - 1) // 8
    assert size == size >> (8 * row) << (8 * row)
    return int(powers[row, size >> (8 * row)])


@inlined
def _shift(crc: int, table: Longs, at: int) -> int:
    """Return the register after FAR or NEAR zero bytes; `at` selects the table for that size."""
    low: int = table[at + (crc & 0xFF)] ^ table[at + 256 + ((crc >> 8) & 0xFF)]
    high: int = table[at + 512 + ((crc >> 16) & 0xFF)] ^ table[at + 768 + ((crc >> 24) & 0xFF)]
    return low ^ high


@inlined
def fetch_body(data: Bytes, start: int, end: int) -> None:
    """Prefetch up to 32 KiB of a body, because the CPU can't predict where each record begins."""
    for at in range(start, min(end, start + _BODY_MAX), _LINE):
        fetch(data, at)


@inlined
def _add_three(crc: int, data: Bytes, start: int, size: int, table: Longs, at: int) -> int:
    """Return the CRC register after 3 * `size` bytes.

    `_shift` with `table` and `at` must shift the register by `size` bytes.
    """
    second = third = 0
    ahead = start + 3 * size + _AHEAD
    for line in range(start, start + size, _LINE):
        fetch(data, ahead)
        fetch(data, ahead + _LINE)
        fetch(data, ahead + 2 * _LINE)
        ahead += 3 * _LINE
        for position in range(line, line + _LINE, WORD_SIZE):
            crc = add_word(crc, data, position)
            second = add_word(second, data, position + size)
            third = add_word(third, data, position + 2 * size)
    return _shift(_shift(crc, table, at) ^ second, table, at) ^ third


@inlined
def sum_span(data: Bytes, start: int, end: int, table: Longs) -> int:
    """Return the CRC-32C of `data[start:end]`; `table` is `shifts()`."""
    crc, at = UINT32_MAX, start
    while end - at >= 3 * FAR:
        crc = _add_three(crc, data, at, FAR, table, 0)
        at += 3 * FAR
    while end - at >= 3 * NEAR:
        crc = _add_three(crc, data, at, NEAR, table, _NEAR_AT)
        at += 3 * NEAR
    return _add_short(crc, data, at, end) ^ UINT32_MAX


@inlined
def _add_short(crc: int, data: Bytes, at: int, end: int) -> int:
    """Return the CRC register after `data[at:end]`, which is processed in one run."""
    while end - at >= WORD_SIZE:
        crc = add_word(crc, data, at)
        at += WORD_SIZE
    while at < end:
        crc = add_byte(crc, data, at)
        at += 1
    return crc


@inlined
def sum_batch(data: Bytes, batch: Longs, table: Longs) -> int:
    """Return the CRC-32C of a magic-2 batch in `data`, by its row of the batch table."""
    return sum_span(data, batch[POSITION] + ATTRIBUTES_AT, batch[BODY_END], table)


@inlined
def has_right_sum(data: Bytes, at: int, size: int) -> bool:
    """Whether the checksum of a magic-2 batch is right.

    This function processes one run only, so it needs no table, and is fast for small batches.
    """
    crc = _add_short(UINT32_MAX, data, at + ATTRIBUTES_AT, at + size)
    return (crc ^ UINT32_MAX) == (load_int32(data, at + CRC_AT) & UINT32_MAX)


@kernel
def find_checksum_mismatch(data: Bytes, batches: Longs, table: Longs) -> tuple[int, int]:
    """Find the first magic-2 batch with a wrong checksum.

    Shape:
        data: uint8[>= every BODY_END].
        batches: int64[n, BATCH_FIELDS].
        table: `shifts()`.

    Returns:
        The batch's row in `batches`, and the checksum of its bytes; `NONE_BAD` and 0 if all
        checksums are right.
    """
    for slot in range(batches.shape[0]):
        if batches[slot, MAGIC] == MAGIC_2:
            checksum = sum_batch(data, batches[slot], table)
            if checksum != batches[slot, CRC]:
                return slot, checksum
    return NONE_BAD, 0
