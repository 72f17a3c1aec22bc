"""The encoder's kernel gives equal results compiled and interpreted, and writes only to `out`."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import Guarded, frozen, run_guarded
from tests.worlds.records.kernel_logs import times

from tidelog.record.kernels import plain
from tidelog.record.kernels.encode import (
    WRITTEN_FIELDS,
    BinarySource,
    RecordSource,
    encode_batches,
)
from tidelog.record.kernels.memory import Bytes, Longs

Encode = Callable[[RecordSource, int, int, Bytes, Longs], tuple[int, int, int, int]]


def ints(numbers: list[int]) -> npt.NDArray[np.int32]:
    """Return numbers in the form for kernels."""
    array = np.array(numbers, np.int32)
    array.flags.writeable = False
    return array


@st.composite
def columns(draw: st.DrawFn, rows: int) -> BinarySource:
    """Draw a column whose offsets mostly ascend and are mostly inside its data."""
    data = draw(st.binary(max_size=30))
    if draw(st.integers(0, 5)) == 0:
        return BinarySource(ints([]), frozen(b""), frozen(b""), 0)
    ends = sorted(draw(st.lists(st.integers(0, len(data)), min_size=rows + 1, max_size=rows + 1)))
    if draw(st.integers(0, 3)) == 0:
        ends[draw(st.integers(0, rows))] = draw(st.integers(-(2**31), 2**31 - 1))
    has_nulls = draw(st.booleans())
    valid = draw(st.binary(min_size=3, max_size=3)) if has_nulls else b""
    return BinarySource(ints(ends), frozen(data), frozen(valid), draw(st.integers(0, 9)))


@st.composite
def sources(draw: st.DrawFn) -> RecordSource:
    """Draw columns of up to six records with up to six headers."""
    stamps = np.array(draw(st.lists(times, min_size=1, max_size=6)), np.int64)
    stamps.flags.writeable = False
    rows = len(stamps)
    ends = sorted(draw(st.lists(st.integers(0, 6), min_size=rows + 1, max_size=rows + 1)))
    if draw(st.integers(0, 4)) == 0:
        ends[draw(st.integers(0, rows))] = draw(st.sampled_from((-1, 7, 2**31 - 1)))
    return RecordSource(
        timestamps=stamps,
        key=draw(columns(rows)),
        value=draw(columns(rows)),
        header_ends=draw(st.sampled_from((ints([]), ints(ends)))),
        header_key=draw(columns(6)),
        header_value=draw(columns(6)),
    )


@given(
    source=sources(),
    batch_bytes=st.integers(1, 300),
    capacity=st.integers(0, 400),
    batch_count=st.integers(0, 4),
)
def test_encoder_is_equal_compiled_and_interpreted(
    source: RecordSource, batch_bytes: int, capacity: int, batch_count: int
) -> None:
    def run(guarded: Guarded, encode: Encode) -> tuple[int, int, int, int]:
        out = guarded.array(capacity, np.uint8)
        table = guarded.array((batch_count, WRITTEN_FIELDS), np.int64)
        return encode(source, 0, batch_bytes, out, table)

    assert run_guarded(lambda guarded: run(guarded, encode_batches)) == run_guarded(
        lambda guarded: run(guarded, plain(encode_batches))
    )
