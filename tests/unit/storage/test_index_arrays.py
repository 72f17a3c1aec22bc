"""Checks of indexes by arrays say what the checks entry by entry say."""

import struct

import numpy as np  # loaded, so that checks go by arrays
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptIndex
from tidelog.storage import index_arrays
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.time_index import TimeIndex

LOG_SIZE = 30
small = st.integers(-2, 32)
edges = st.sampled_from((-(2**31), 2**31 - 1))
times = small | st.sampled_from((-(2**63), 2**63 - 1))


def by_entries(index: OffsetIndex | TimeIndex) -> bool:
    """What the plain check says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_arrays, "are_loaded", lambda: False)
        try:
            if isinstance(index, OffsetIndex):
                index.check(LOG_SIZE, allow_tail=True)
            else:
                index.check(allow_tail=True)
        except CorruptIndex:
            return False
    return True


@given(st.lists(st.tuples(small | edges, small | edges), max_size=4), st.booleans())
def test_offset_indexes(entries: list[tuple[int, int]], is_sorted: bool) -> None:
    rows = sorted(entries) if is_sorted else entries
    index = OffsetIndex(100, data=b"".join(struct.pack(">ii", *row) for row in rows))
    assert index_arrays.are_offsets_sound(index.encoded, LOG_SIZE) == by_entries(index)


@given(st.lists(st.tuples(times, small | edges), max_size=4), st.booleans())
def test_time_indexes(entries: list[tuple[int, int]], is_sorted: bool) -> None:
    rows = sorted(entries) if is_sorted else entries
    index = TimeIndex(100, data=b"".join(struct.pack(">qi", *row) for row in rows))
    assert index_arrays.are_times_sound(index.encoded) == by_entries(index)


def test_an_index_that_is_not_sound_is_still_named_by_its_entry() -> None:
    assert index_arrays.are_loaded()
    assert np.frombuffer(b"", np.uint8).size == 0
    data = bytes.fromhex("00000031 00000010 00000032 00000010")
    with pytest.raises(CorruptIndex) as caught:
        OffsetIndex(100, data=data).check(LOG_SIZE)
    assert caught.value.at == 8
