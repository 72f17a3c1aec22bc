"""The offset index: bytes, lookup, limits, truncation, checks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptIndex, IndexFull, InvalidRequest, OffsetOverflow
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.types import INT32_MAX

ENTRIES = [(149, 4200), (180, 8400), (181, 9000)]


def index_of_entries() -> OffsetIndex:
    index = OffsetIndex(100)
    for offset, position in ENTRIES:
        index.append(offset, position)
    return index


def test_an_entry_is_relative_offset_and_position() -> None:
    """Known bytes of an entry, in Kafka's format."""
    assert OffsetIndex(100).append(149, 4200) == bytes.fromhex("00000031 00001068")


def test_append_returns_the_bytes_of_the_file() -> None:
    index = OffsetIndex(100)
    written = b"".join(index.append(*entry) for entry in ENTRIES)
    assert bytes(index.encoded) == written
    assert list(OffsetIndex(100, data=written).entries()) == ENTRIES
    assert index.last_offset == 181


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0, (100, 0)),
        (100, (100, 0)),
        (148, (100, 0)),
        (149, (149, 4200)),
        (179, (149, 4200)),
        (180, (180, 8400)),
        (181, (181, 9000)),
        (10**15, (181, 9000)),
    ],
)
def test_lookup_gives_the_greatest_entry_not_above(target: int, expected: tuple[int, int]) -> None:
    assert index_of_entries().lookup(target) == expected


def test_lookup_in_an_empty_index_gives_the_base_offset() -> None:
    assert OffsetIndex(100).lookup(500) == (100, 0)
    assert OffsetIndex(100).last_offset == 100


@pytest.mark.parametrize("entry", [(181, 9001), (180, 9001), (200, 9000), (200, 8999)])
def test_an_entry_that_does_not_grow_is_refused(entry: tuple[int, int]) -> None:
    index = index_of_entries()
    with pytest.raises(InvalidRequest):
        index.append(*entry)
    assert list(index.entries()) == ENTRIES


def test_relative_offsets_are_bounded_by_the_largest_int32() -> None:
    index = OffsetIndex(100)
    for offset in (99, 100 + INT32_MAX + 1):
        with pytest.raises(OffsetOverflow):
            index.append(offset, 1)
    index.append(100 + INT32_MAX, 1)
    assert index.last_offset == 100 + INT32_MAX


def test_a_full_index_accepts_no_further_entry() -> None:
    index = OffsetIndex(0, size_limit=23)
    was_full = []
    for n in (1, 2):
        was_full.append(index.is_full)
        index.append(n, n)
    assert [*was_full, index.is_full] == [False, False, True]
    with pytest.raises(IndexFull):
        index.append(3, 3)


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (149, 0), (150, 1), (181, 2), (182, 3)])
def test_truncation_drops_entries_from_the_offset_on(offset: int, left: int) -> None:
    index = index_of_entries()
    assert index.truncate_to(offset) == left * 8
    assert list(index.entries()) == ENTRIES[:left]


def test_a_good_index_passes_its_check() -> None:
    index_of_entries().check(9001)
    OffsetIndex(100).check(0)


@pytest.mark.parametrize(
    ("data", "at"),
    [
        ("00000031 00001068 00000031 00001069", 8),
        ("00000031 00001068 00000032 00001068", 8),
        ("00000031 00001068 00000030 00001069", 8),
        ("ffffffff 00001068", 0),
        ("00000031 ffffffff", 0),
        ("00000031 00002329", 0),
        ("00000000 00000000 00000031 00001068 00000000 00000000 00000040 00002000", 16),
    ],
)
def test_entries_that_cannot_be_are_found(data: str, at: int) -> None:
    with pytest.raises(CorruptIndex) as caught:
        OffsetIndex(100, data=bytes.fromhex(data)).check(9001)
    assert caught.value.at == at


@pytest.mark.parametrize("tail", [bytes(8), bytes(4096), b"\0\0\0", b"\1\2\3"])
def test_a_tail_is_found_unless_it_is_allowed(tail: bytes) -> None:
    index = OffsetIndex(100, data=bytes(index_of_entries().encoded) + tail)
    index.check(9001, allow_tail=True)
    assert list(index.entries()) == ENTRIES
    with pytest.raises(CorruptIndex) as caught:
        index.check(9001)
    assert caught.value.at == 24


def test_a_position_at_the_end_of_the_log_is_found() -> None:
    with pytest.raises(CorruptIndex):
        index_of_entries().check(9000)


@given(
    steps=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2000)), max_size=40),
    wanted=st.lists(st.integers(-1, 90_000), min_size=1),
)
def test_slots_are_found_by_position(steps: list[tuple[int, int]], wanted: list[int]) -> None:
    index = OffsetIndex(100)
    offset, position, positions = 100, 0, []
    for offset_step, position_step in steps:
        offset, position = offset + offset_step, position + position_step
        index.append(offset, position)
        positions.append(position)
    for place in [*wanted, *positions]:
        below = [number for number, known in enumerate(positions) if known <= place]
        assert index.slot_at_or_before_position(place) == (below[-1] if below else -1)
