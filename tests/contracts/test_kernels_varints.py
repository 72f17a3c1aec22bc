"""Kernels, compiled and interpreted, read and write varints exactly as the plain code does."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import frozen, run_guarded

from tidelog.errors import CorruptRecord
from tidelog.record import coding
from tidelog.record.kernels import plain
from tidelog.record.kernels.compiler import kernel
from tidelog.record.kernels.integers import (
    INVALID,
    add_wrapping,
    read_varint,
    read_varlong,
    varlong_size,
    write_varlong,
)
from tidelog.record.kernels.memory import Bytes
from tidelog.record.record import wrap_int64
from tidelog.types import INT64_MAX, INT64_MIN

Reader = Callable[[Bytes, int, int], tuple[int, int]]

READERS: dict[str, tuple[Reader, Reader]] = {
    "compiled": (read_varint, read_varlong),
    "plain": (plain(read_varint), plain(read_varlong)),
}

int64s = st.one_of(
    st.integers(INT64_MIN, INT64_MAX),
    st.integers(0, 63).flatmap(lambda bits: st.integers(-(1 << bits), (1 << bits) - 1)),
)
# Bytes with many continuation bits, so that long and overlong numbers are common.
number_bytes = st.lists(
    st.integers(0, 255) | st.integers(128, 255) | st.sampled_from((0x80, 0xFF, 0x01)), max_size=12
).map(bytes)


def expected(
    read: Callable[[bytes, int, int], tuple[int, int]], data: bytes, at: int, end: int
) -> tuple[int, int]:
    """Return the plain code's number and next position; (0, INVALID) instead of an error."""
    try:
        return read(data, at, end)
    except CorruptRecord:
        return 0, INVALID


@pytest.mark.parametrize("which", READERS)
@given(data=number_bytes, start=st.integers(0, 3), cut=st.integers(0, 3))
def test_readers_equal_the_plain_path(which: str, data: bytes, start: int, cut: int) -> None:
    short, long = READERS[which]
    array, end = frozen(data), max(len(data) - cut, 0)
    assert short(array, start, end) == expected(coding.read_varint, data, start, end)
    assert long(array, start, end) == expected(coding.read_varlong, data, start, end)


@pytest.mark.parametrize("which", READERS)
def test_a_poisoned_place_stays_poisoned(which: str) -> None:
    for read in READERS[which]:
        assert read(frozen(b"\x00" * 8), INVALID, 8) == (0, INVALID)


@kernel
def write_one(out: Bytes, value: int) -> tuple[int, int]:
    """Write a number; return the position after it, and the size that `varlong_size` computes."""
    return write_varlong(out, 0, value), varlong_size(value)


@pytest.mark.parametrize("run", [write_one, plain(write_one)], ids=["compiled", "plain"])
@given(value=int64s)
def test_written_numbers_equal_the_plain_path(
    run: Callable[[Bytes, int], tuple[int, int]], value: int
) -> None:
    wanted = bytearray()
    coding.write_varlong(wanted, value)
    result, (content,) = run_guarded(lambda guarded: run(guarded.array(10, np.uint8), value))
    assert result == (len(wanted), len(wanted))
    assert content[: len(wanted)] == wanted


@kernel
def add_two(left: int, right: int) -> int:
    """Return the sum as kernels compute it."""
    return add_wrapping(left, right)


@pytest.mark.parametrize("run", [add_two, plain(add_two)], ids=["compiled", "plain"])
@given(left=int64s, right=int64s)
def test_sums_wrap_like_a_machine_word(
    run: Callable[[int, int], int], left: int, right: int
) -> None:
    assert run(left, right) == wrap_int64(left + right)
