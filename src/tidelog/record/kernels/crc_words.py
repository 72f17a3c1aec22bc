"""A CRC-32C register and the bytes that come next: a plain function each, and one instruction.

The plain functions work bit by bit. Compiled ones are the machine's own instruction for CRC-32C
where it has one, and the same loop where not: `HAS_INSTRUCTION` tells callers, who have better
than the loop then. All check nothing when compiled, like those of `memory`.

Source: the CRC-32C of RFC 3720; the instructions CRC32 of SSE 4.2 and CRC32C of ARMv8.
"""

import platform
from typing import Final

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import config
from numba.extending import intrinsic, overload

from tidelog.record.coding import CRC32C_POLYNOMIAL
from tidelog.record.kernels.memory import Bytes, load_byte, load_word

WORD_SIZE: Final = 8
_X86: Final = ("x86_64", "AMD64")


def _has_instruction() -> bool:
    """Whether Numba compiles for this very machine, and that has the instruction."""
    if getattr(config, "CPU_NAME", None) or getattr(config, "CPU_FEATURES", None):
        return False  # somebody asked for code for other machines
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:
        return False  # LLVM can't tell
    return bool(features.get("sse4.2" if platform.machine() in _X86 else "crc", False))


HAS_INSTRUCTION: Final = _has_instruction()


def add_byte(crc: int, data: Bytes, at: int) -> int:
    """The register behind the byte at `at`."""
    crc = int(crc) ^ load_byte(data, at)
    for _ in range(8):
        crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL if crc & 1 != 0 else 0)
    return crc


def add_word(crc: int, data: Bytes, at: int) -> int:
    """The register behind the 8 bytes from `at` on."""
    for place in range(at, at + WORD_SIZE):
        crc = add_byte(crc, data, place)
    return crc


# From here on: the compiled side; see `memory`.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,no-any-return"
# ruff: noqa: ARG001


def _stepper(x86_name, arm_name, bits):
    """The instruction for a word of so many bits; the register is in the low half of an int64."""
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
                # ARM takes the byte in a whole register.
                value = builder.trunc(value, word)
            found = builder.call(run, [crc, value])
            return found if register.width == 64 else builder.zext(found, ir.IntType(64))

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
            for place in range(at, at + WORD_SIZE):
                crc = add_byte(crc, data, place)
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
