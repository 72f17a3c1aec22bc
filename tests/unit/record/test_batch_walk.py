"""The walk over batches: accepted frames, refused frames, and the end of the walk."""

import struct

import pytest
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptBatch
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import frame_size, walk
from tidelog.record.builder import build_batch
from tidelog.record.legacy import LegacyBatch
from tidelog.types import INT32_MAX, NewRecord

NEW = [NewRecord(key=b"k", value=b"v", timestamp=5)]
MIXED = (
    build_legacy_set(NEW, magic=0, base_offset=0)
    + build_legacy_set(NEW, magic=1, base_offset=1)
    + build_batch(NEW, base_offset=2)
)


def framed(length: int, magic: int, size: int = 200) -> bytes:
    """Return a frame with this length and magic in a buffer of `size` bytes."""
    return (struct.pack(">qiib", 0, length, 0, magic) + bytes(size))[:size]


def test_magics_may_follow_each_other() -> None:
    batches = list(walk(MIXED))
    assert [batch.magic for batch in batches] == [0, 1, 2]
    assert [batch.base_offset for batch in batches] == [0, 1, 2]
    assert [type(batch) for batch in batches] == [LegacyBatch, LegacyBatch, RecordBatch]
    assert [batch.at for batch in batches] == [0, 28, 64]
    assert sum(batch.size_bytes for batch in batches) == len(MIXED)


def test_views_of_batches_copy_no_bytes() -> None:
    for batch in walk(MIXED):
        assert batch.view.obj is MIXED


def test_a_walk_keeps_between_its_bounds() -> None:
    data = b"junk" + MIXED + b"more junk, which is not looked at"
    batches = list(walk(data, 4, 4 + len(MIXED)))
    assert [batch.at for batch in batches] == [4, 32, 68]
    assert list(walk(data, 4, 4)) == []
    assert list(walk(b"")) == []


@pytest.mark.parametrize("size", range(len(MIXED)))
def test_a_partial_batch_at_the_end_is_left_out(size: int) -> None:
    expected = [start for start, end in ((0, 28), (28, 64), (64, len(MIXED))) if end <= size]
    assert [batch.at for batch in walk(MIXED[:size])] == expected
    assert [batch.at for batch in walk(MIXED, 0, size)] == expected


@pytest.mark.parametrize(
    ("length", "magic"),
    [(13, 0), (0, 0), (-1, 2), (-(2**31), 2), (13, 1), (21, 1), (14, 2), (48, 2)],
)
def test_a_length_below_the_smallest_is_refused(length: int, magic: int) -> None:
    with pytest.raises(CorruptBatch, match=f"length {length}"):
        list(walk(framed(length, magic)))


@pytest.mark.parametrize("magic", [3, 4, 127, -1, -128])
def test_an_unknown_magic_is_refused(magic: int) -> None:
    with pytest.raises(CorruptBatch, match=f"magic {magic & 255}"):
        list(walk(framed(100, magic)))


def test_an_error_names_its_place_after_the_good_batches() -> None:
    batches = walk(MIXED + framed(13, 2))
    assert len([next(batches) for _ in range(3)]) == 3
    with pytest.raises(CorruptBatch) as caught:
        next(batches)
    assert caught.value.at == len(MIXED)


def test_a_bad_length_is_refused_as_soon_as_it_can_be_read() -> None:
    assert list(walk(framed(13, 2, size=11))) == []
    with pytest.raises(CorruptBatch):
        list(walk(framed(13, 2, size=12)))
    # The magic is byte 16, so the first 16 bytes do not contain it.
    assert list(walk(framed(100, 3, size=16))) == []
    with pytest.raises(CorruptBatch):
        list(walk(framed(100, 3, size=17)))


def test_a_frames_size_is_none_if_it_is_incomplete_or_invalid() -> None:
    assert frame_size(MIXED, 0, len(MIXED)) == 28
    assert frame_size(MIXED, 0, 27) is None
    assert frame_size(framed(INT32_MAX, 2), 0, 200) is None
    assert frame_size(framed(49, 2, size=61), 0, 61) == 61
