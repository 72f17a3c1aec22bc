"""Shared behavior of both indexes: buffers, zero tails, limits."""

import pytest

from tidelog.errors import InvalidRequest
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.sorted_index import used_size

ENTRY = b"\0\0\0\1\0\0\0\2"
ZEROS = bytes(8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (ENTRY, 8),
        (ZEROS, 8),
        (ZEROS * 2, 0),
        (ZEROS * 1000, 0),
        (ENTRY + ZEROS, 8),
        (ENTRY * 5 + ZEROS * 3, 40),
        (ENTRY * 3 + ZEROS * 500, 24),
        (ENTRY * 3 + b"\0\0\0", 24),
        (ENTRY * 3 + ZEROS * 2 + b"\0\0\0", 24),
        (b"\0\0\0", 0),
    ],
)
def test_a_zero_tail_is_not_used(data: bytes, expected: int) -> None:
    assert used_size(data, 8) == expected
    assert used_size(memoryview(data), 8) == expected


def test_a_kafka_index_that_was_preallocated_is_searched_up_to_its_zeros() -> None:
    data = ENTRY + bytes(10_485_760 - 8)
    index = OffsetIndex(100, data=memoryview(data))
    assert index.entry_count == 1
    assert index.tail_bytes == 10_485_752
    assert index.lookup(500) == (101, 2)


def test_views_stay_valid_while_the_index_grows() -> None:
    index = OffsetIndex(0)
    index.append(1, 1)
    view = index.encoded
    before = bytes(view)
    for n in range(2, 5000):
        index.append(n, n)
    assert bytes(view) == before
    assert index.encoded[:8] == before
    assert index.size_bytes == 4999 * 8


def test_views_are_read_only() -> None:
    index = OffsetIndex(0)
    index.append(1, 1)
    assert index.encoded.readonly


def test_bytes_that_were_handed_in_are_never_changed() -> None:
    data = bytearray(ENTRY + ZEROS)
    index = OffsetIndex(0, data=data)
    index.append(2, 3)
    index.truncate_to(0)
    index.append(1, 9)
    assert data == ENTRY + ZEROS
    assert bytes(index.encoded) == b"\0\0\0\1\0\0\0\x09"


def test_an_index_on_a_view_can_be_appended_to() -> None:
    index = OffsetIndex(0, data=memoryview(ENTRY))
    index.append(2, 3)
    assert list(index.entries()) == [(1, 2), (2, 3)]
    assert index.tail_bytes == 0


def test_a_slot_outside_is_refused() -> None:
    index = OffsetIndex(0, data=ENTRY)
    for slot in (-1, 1):
        with pytest.raises(InvalidRequest):
            index.entry(slot)


def test_the_limit_is_rounded_down_to_whole_entries() -> None:
    assert OffsetIndex(0, size_limit=10_485_767).entry_limit == 1_310_720
    assert OffsetIndex(0, size_limit=7).is_full
