"""Checks of indexes find each violation of a rule, with numpy loaded and without it."""

import struct
import sys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptIndex
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.time_index import TimeIndex

LOG_SIZE = 30
small = st.integers(-2, 32)
edges = st.sampled_from((-(2**31), 2**31 - 1))
times = small | st.sampled_from((-(2**63), 2**63 - 1))
Row = tuple[int, int]


def is_sound(index: OffsetIndex | TimeIndex, *, by_arrays: bool) -> bool:
    """Return whether `check` accepts the index.

    `check` uses numpy only if numpy is already loaded. Without `by_arrays`, numpy seems not to be
    loaded.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not by_arrays:
            patch.delitem(sys.modules, "numpy")
        try:
            if isinstance(index, OffsetIndex):
                index.check(LOG_SIZE, allow_tail=True)
            else:
                index.check(allow_tail=True)
        except CorruptIndex:
            return False
    return True


def rises(rows: Sequence[Row]) -> bool:
    return all(one[0] < next_[0] and one[1] < next_[1] for one, next_ in pairwise(rows))


@pytest.mark.parametrize("by_arrays", [True, False])
@given(st.lists(st.tuples(small | edges, small | edges), max_size=4), st.booleans())
def test_offset_indexes(by_arrays: bool, entries: list[Row], is_sorted: bool) -> None:
    """Valid offsets and positions are 0 or more and increase; positions are within the log."""
    rows = sorted(entries) if is_sorted else entries
    index = OffsetIndex(100, data=b"".join(struct.pack(">ii", *row) for row in rows))
    rows = list(struct.iter_unpack(">ii", index.encoded))  # `encoded` leaves out zeros at the end
    in_range = all(offset >= 0 and 0 <= position < LOG_SIZE for offset, position in rows)
    assert is_sound(index, by_arrays=by_arrays) == (in_range and rises(rows))


@pytest.mark.parametrize("by_arrays", [True, False])
@given(st.lists(st.tuples(times, small | edges), max_size=4), st.booleans())
def test_time_indexes(by_arrays: bool, entries: list[Row], is_sorted: bool) -> None:
    """Valid times are 0 or more and increase; valid offsets don't decrease."""
    rows = sorted(entries) if is_sorted else entries
    index = TimeIndex(100, data=b"".join(struct.pack(">qi", *row) for row in rows))
    rows = list(struct.iter_unpack(">qi", index.encoded))  # `encoded` leaves out zeros at the end
    in_range = all(time >= 0 and offset >= 0 for time, offset in rows)
    follows = all(one[0] < next_[0] and one[1] <= next_[1] for one, next_ in pairwise(rows))
    assert is_sound(index, by_arrays=by_arrays) == (in_range and follows)


def test_an_invalid_index_is_still_reported_with_its_entry() -> None:
    assert np.frombuffer(b"", np.uint8).size == 0  # loads numpy, so the check uses its arrays
    data = bytes.fromhex("00000031 00000010 00000032 00000010")
    with pytest.raises(CorruptIndex) as caught:
        OffsetIndex(100, data=data).check(LOG_SIZE)
    assert caught.value.at == 8
