"""Reads that continue where another read ended return the right bytes, mostly without an index."""

import sys
from contextlib import closing

import pytest
from tests.unit.server.steps import steps
from tests.unit.storage.tiers.tiered import Tiered
from tests.worlds.directories.logs import new_log

from tidelog.env import File
from tidelog.errors import CorruptBatch
from tidelog.server.partitions.file_pieces import PIECE_MIN_BYTES, FilePiece
from tidelog.server.partitions.segment_reads import (
    Limits,
    ReadEnds,
    SegmentBytes,
    find_range,
    frames,
)
from tidelog.storage.log.log import Log
from tidelog.storage.segment.segment import Segment
from tidelog.types import NewRecord

COUNT = 40
CALLS_MAX = 10_000
LIMITS = Limits(end_offset=COUNT, max_bytes=400, whole_first=True)


@pytest.fixture
def log() -> Log:
    """Write batches of one record each into several segments."""
    _, _, log = new_log({"internal.segment.bytes": "1500", "index.interval.bytes": "0"})
    for number in range(COUNT):
        log.append([NewRecord(value=bytes(50), timestamp=number)])
    assert len(log.segments) > 2
    return log


def spans(log: Log, ends: ReadEnds | None) -> list[tuple[int, int, int]]:
    """Return the ranges that a consumer reads one after the other, up to the log end.

    Each range is a tuple: the base offset of its segment, and the start and the end of the range.
    """
    found, offset = [], 0
    source = SegmentBytes(log.context.pool, may_block=True)
    while offset < COUNT:
        part = find_range(log.segments, offset, LIMITS, source, ends)
        assert part is not None
        assert part.size_bytes
        found.append((part.segment.base_offset, part.start, part.end))
        assert part.next_offset > offset
        offset = part.next_offset
    return found


def test_same_bytes_with_remembered_ends_as_without_in_fewer_steps(log: Log) -> None:
    assert spans(log, ReadEnds()) == spans(log, None)
    ends = ReadEnds()
    assert steps(lambda: spans(log, ends)) < steps(lambda: spans(log, None))


def test_a_wrong_position_is_not_used(log: Log) -> None:
    source = SegmentBytes(log.context.pool, may_block=True)
    segment = log.segments[0]
    right = find_range(log.segments, 3, LIMITS, source)
    assert right is not None
    for position in range(right.start + 2):
        ends = ReadEnds()
        found = find_range(log.segments, 0, LIMITS, source)
        assert found is not None
        found.next_offset, found.end = 3, position
        ends.note(found)
        assert ends.position_of(segment, 3) == position
        assert find_range(log.segments, 3, LIMITS, source, ends) == right


def test_a_segment_that_was_replaced_is_another_one(log: Log) -> None:
    source = SegmentBytes(log.context.pool, may_block=True)
    ends = ReadEnds()
    found = find_range(log.segments, 0, LIMITS, source, ends)
    assert found is not None
    assert ends.position_of(log.segments[0], found.next_offset) == found.end
    assert ends.position_of(log.segments[1], found.next_offset) is None


def whole_batches(log: Log, offset: int, max_bytes: int) -> tuple[int, int, int]:
    """Return start, end and next offset of the batches from `offset` that fit in `max_bytes`."""
    source = SegmentBytes(log.context.pool, may_block=True)
    (segment,) = (one for one in log.segments if one.base_offset <= offset < one.end_offset)
    walked = frames(segment, 0, segment.size_bytes, source)
    left = [frame for frame in walked if frame.last_offset >= offset]
    fits = [each for each in left if each.end - left[0].position <= max_bytes] or left[:1]
    return left[0].position, fits[-1].end, fits[-1].last_offset + 1


@pytest.mark.parametrize("interval", [0, 1, 300, 4096])
def test_a_read_has_as_many_whole_batches_as_fit_with_any_index(interval: int) -> None:
    settings = {"internal.segment.bytes": "3000", "index.interval.bytes": str(interval)}
    _, _, log = new_log(settings)
    for number in range(COUNT):
        log.append([NewRecord(value=bytes(7 * number % 300), timestamp=number)])
    source = SegmentBytes(log.context.pool, may_block=True)
    ends = ReadEnds()
    for offset in range(COUNT):
        for max_bytes in (0, 60, 61, 100, 399, 400, 401, 1000, 2999, 10_000):
            limits = Limits(end_offset=COUNT, max_bytes=max_bytes, whole_first=True)
            for known in (None, ends):
                found = find_range(log.segments, offset, limits, source, known)
                assert found is not None
                expected = whole_batches(log, offset, max_bytes)
                assert (found.start, found.end, found.next_offset) == expected


@pytest.mark.parametrize("length", [-1, 0, 20, 48, 100_000, 2**31 - 1])
def test_an_impossible_length_is_no_end(length: int, log: Log) -> None:
    """The batches before an impossible length are read; the next read reports the error."""
    source = SegmentBytes(log.context.pool, may_block=True)
    segment = log.segments[0]
    third = list(frames(segment, 0, segment.size_bytes, source))[2]
    file = log.context.pool.get(segment.log_path)
    file.pwrite(length.to_bytes(4, "big", signed=True), third.position + 8)
    limits = Limits(end_offset=COUNT, max_bytes=third.position + 30, whole_first=True)
    found = find_range(log.segments, 0, limits, source)
    assert found is not None
    assert found.end == third.position
    with pytest.raises(CorruptBatch, match=f"position {third.position}"):
        find_range(log.segments, 2, limits, source)


@pytest.mark.parametrize("slot", range(1, 12))
def test_a_wrong_index_is_detected_when_a_read_continues(slot: int) -> None:
    """If index entry `slot` points into a batch, a read that continues has the right range."""
    env, _, log = new_log({"index.interval.bytes": "0"})
    for number in range(COUNT):
        log.append([NewRecord(value=bytes(50), timestamp=number)])
    log.roll()
    segment = log.segments[0]
    source, ends = SegmentBytes(log.context.pool, may_block=True), ReadEnds()
    begun = find_range(log.segments, 0, LIMITS, source, ends)
    assert begun is not None
    right = find_range(log.segments, begun.next_offset, LIMITS, source, ends)
    path = segment.log_path.removesuffix("log") + "index"
    with closing(env.files.open(path, write=True)) as file:
        (last,) = file.pread(1, slot * 8 + 7)
        file.pwrite(bytes([last ^ 1]), slot * 8 + 7)
    log.context.pool.forget(path)
    found = find_range(log.segments, begun.next_offset, LIMITS, source, ends)
    assert found == right


def test_a_cached_file_is_dropped_when_the_pool_drops_it(log: Log) -> None:
    pool, (first, second, *_) = log.context.pool, log.segments
    source = SegmentBytes(pool, may_block=False)

    def file_of(segment: Segment) -> File:
        piece = source.records(segment, 0, PIECE_MIN_BYTES)
        assert isinstance(piece, FilePiece)
        return piece.file

    former = file_of(first)
    assert former is file_of(first) is pool.get(first.log_path)
    pool.forget(first.log_path)
    assert former is not file_of(first) is pool.get(first.log_path)
    assert file_of(second) is pool.get(second.log_path)


@pytest.mark.parametrize(("max_bytes", "next_offset"), [(10_000_000, 3), (2_500_000, 2)])
def test_a_read_of_a_local_segment_returns_as_many_batches_as_fit(
    max_bytes: int, next_offset: int
) -> None:
    """The limit of 1 MiB applies only to segments in a tier."""
    _, _, log = new_log({"max.message.bytes": "2000000"})
    for number in range(3):
        log.append([NewRecord(value=bytes(1_000_000), timestamp=number)])
    limits = Limits(end_offset=3, max_bytes=max_bytes, whole_first=True)
    found = find_range(log.segments, 0, limits, SegmentBytes(log.context.pool, may_block=True))
    assert found is not None
    assert found.next_offset == next_offset


def test_a_read_of_a_tiered_segment_returns_at_most_1_mib() -> None:
    """A larger read would block its thread for as long as the store needs for it."""
    made = Tiered().start(internal_segment_bytes="10000000", local_retention_bytes="0")
    for number in range(3):
        made.log.append([NewRecord(value=bytes(500_000), timestamp=number)])
    made.log.roll()
    made.fill(1)
    made.move()
    made.log.apply_retention()
    log = made.log
    assert log.segments[0].is_tiered
    limits = Limits(end_offset=4, max_bytes=10_000_000, whole_first=True)
    found = find_range(log.segments, 0, limits, SegmentBytes(log.context.pool, may_block=True))
    assert found is not None
    assert found.next_offset == 2


def test_an_append_is_shown_all_at_once(log: Log) -> None:
    """Reads between any two calls of an append see nothing of the appended batch."""
    source, seen = SegmentBytes(log.context.pool, may_block=True), set[int]()
    end_offset, size_bytes = log.log_end_offset, log.active.size_bytes
    limits = Limits(end_offset=end_offset, max_bytes=1 << 20, whole_first=True)

    def read(*_: object) -> None:
        sys.setprofile(None)
        found = find_range(log.segments, end_offset - 1, limits, source)
        assert found is not None
        seen.add(found.end)
        sys.setprofile(read)

    sys.setprofile(read)
    try:
        log.append([NewRecord(value=b"not to be seen yet", timestamp=COUNT)])
    finally:
        sys.setprofile(None)
    assert log.active.size_bytes > size_bytes
    assert seen == {size_bytes}


def test_a_read_in_a_thread_excludes_later_appends() -> None:
    """An append between any two calls of a read has no effect on the read's end offset."""
    call = 0
    while True:
        _, _, log = new_log({"index.interval.bytes": "0"})
        for number in range(4):
            log.append([NewRecord(value=bytes(50), timestamp=number)])
        source = SegmentBytes(log.context.pool, may_block=True)
        limits = Limits(end_offset=log.log_end_offset, max_bytes=10_000, whole_first=True)
        left = call

        def append_once(_frame: object, event: str, _argument: object, log: Log = log) -> None:
            nonlocal left
            if event == "call":
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    log.append([NewRecord(value=bytes(50), timestamp=9)])

        sys.setprofile(append_once)
        try:
            part = find_range(log.segments, 1, limits, source)
        finally:
            sys.setprofile(None)
        assert part is not None
        read = list(frames(part.segment, part.start, part.end, source))
        assert [read[0].last_offset, read[-1].last_offset] == [1, 3], call
        assert part.next_offset == 4
        if call and left > 0:
            return
        call += 1
        assert call < CALLS_MAX
