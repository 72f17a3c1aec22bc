"""The time index: bytes, lookup, the reserved slot, truncation, checks."""

import pytest

from tidelog.errors import CorruptIndex, IndexFull, InvalidRequest, OffsetOverflow
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.types import INT32_MAX

ENTRIES = [(1000, 149), (1005, 180), (9000, 181)]


def index_of_entries() -> TimeIndex:
    index = TimeIndex(100)
    for timestamp, offset in ENTRIES:
        index.maybe_append(timestamp, offset)
    return index


def test_an_entry_is_timestamp_and_relative_offset() -> None:
    """Known bytes of an entry, in Kafka's format."""
    entry = TimeIndex(100).maybe_append(1_700_000_000_000, 149)
    assert entry == bytes.fromhex("0000018bcfe56800 00000031")


def test_append_returns_the_bytes_of_the_file() -> None:
    index = TimeIndex(100)
    written = b"".join(index.maybe_append(*entry) for entry in ENTRIES)
    assert bytes(index.encoded) == written
    assert list(TimeIndex(100, data=written).entries()) == ENTRIES
    assert index.last_entry == (9000, 181)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (-1, 100)),
        (999, (-1, 100)),
        (1000, (1000, 149)),
        (1004, (1000, 149)),
        (1005, (1005, 180)),
        (8999, (1005, 180)),
        (2**63 - 1, (9000, 181)),
    ],
)
def test_lookup_gives_the_greatest_entry_not_above(
    timestamp: int, expected: tuple[int, int]
) -> None:
    assert index_of_entries().lookup(timestamp) == expected


def test_an_empty_index_has_no_timestamp() -> None:
    assert TimeIndex(100).lookup(5) == (-1, 100)
    assert TimeIndex(100).last_entry == (-1, 100)


def test_the_same_timestamp_adds_no_entry() -> None:
    index = index_of_entries()
    assert index.maybe_append(9000, 500) == b""
    assert list(index.entries()) == ENTRIES


def test_records_without_timestamps_add_no_entry() -> None:
    assert TimeIndex(100).maybe_append(-1, 149) == b""


@pytest.mark.parametrize("entry", [(8999, 500), (9001, 180)])
def test_a_smaller_timestamp_or_offset_is_refused(entry: tuple[int, int]) -> None:
    index = index_of_entries()
    with pytest.raises(InvalidRequest):
        index.maybe_append(*entry)
    assert list(index.entries()) == ENTRIES


def test_relative_offsets_are_bounded_by_the_largest_int32() -> None:
    index = TimeIndex(100)
    for offset in (99, 100 + INT32_MAX + 1):
        with pytest.raises(OffsetOverflow):
            index.maybe_append(1, offset)
    index.maybe_append(1, 100 + INT32_MAX)
    assert index.last_entry == (1, 100 + INT32_MAX)


def test_the_last_slot_is_kept_for_roll_and_close() -> None:
    index = TimeIndex(0, size_limit=3 * 12 + 11)
    was_full = []
    for n in (1, 2):
        was_full.append(index.is_full)
        index.maybe_append(n, n)
    assert [*was_full, index.is_full] == [False, False, True]
    with pytest.raises(IndexFull):
        index.maybe_append(3, 3)
    assert index.maybe_append(3, 3, ignore_full=True)
    with pytest.raises(IndexFull):
        index.maybe_append(4, 4, ignore_full=True)
    assert index.entry_count == 3


def test_the_default_limit_is_kafkas() -> None:
    assert TimeIndex(0).entry_limit == 873_813


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (149, 0), (150, 1), (181, 2), (182, 3)])
def test_truncation_drops_entries_from_the_offset_on(offset: int, left: int) -> None:
    index = index_of_entries()
    assert index.truncate_to(offset) == left * 12
    assert list(index.entries()) == ENTRIES[:left]


def test_a_good_index_passes_its_check() -> None:
    index_of_entries().check()
    TimeIndex(100).check()


@pytest.mark.parametrize(
    ("entries", "at"),
    [
        ("00000000000003e8 00000031 00000000000003e8 00000032", 12),
        ("00000000000003e8 00000031 00000000000003e7 00000032", 12),
        ("00000000000003e8 00000031 00000000000003e9 00000030", 12),
        ("ffffffffffffffff 00000031", 0),
        ("00000000000003e8 ffffffff", 0),
    ],
)
def test_entries_that_cannot_be_are_found(entries: str, at: int) -> None:
    with pytest.raises(CorruptIndex) as caught:
        TimeIndex(100, data=bytes.fromhex(entries)).check()
    assert caught.value.at == at


@pytest.mark.parametrize("tail", [bytes(12), bytes(10_485_720), b"\0\0\0", b"\1\2\3"])
def test_a_tail_is_found_unless_it_is_allowed(tail: bytes) -> None:
    """If the zeros at the end counted as entries, the last timestamp would be 0 (KAFKA-10207)."""
    index = TimeIndex(100, data=bytes(index_of_entries().encoded) + tail)
    index.check(allow_tail=True)
    assert index.last_entry == (9000, 181)
    with pytest.raises(CorruptIndex) as caught:
        index.check()
    assert caught.value.at == 36


def test_a_lone_entry_of_zeros_is_an_entry() -> None:
    """The entry of a single record with timestamp 0 at the base offset is twelve zero bytes."""
    index = TimeIndex(0)
    index.maybe_append(0, 0, ignore_full=True)
    again = TimeIndex(0, data=bytes(index.encoded))
    again.check()
    assert again.entry_count == 1
    assert again.last_entry == (0, 0)
