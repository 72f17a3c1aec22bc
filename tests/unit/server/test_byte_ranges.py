"""A read that goes on where another ended: without an index where it may, never wrongly."""

import pytest
from tests.unit.storage.logs import new_log

from tidelog.server.byte_ranges import Limits, ReadEnds, find_range
from tidelog.server.segment_bytes import SegmentBytes
from tidelog.storage.handles import FilePool
from tidelog.storage.log import Log
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.segment import Segment
from tidelog.types import NewRecord

COUNT = 40
LIMITS = Limits(end_offset=COUNT, max_bytes=400, whole_first=True)


@pytest.fixture
def log() -> Log:
    """Batches of one record each, in several segments."""
    _, _, log = new_log({"internal.segment.bytes": "1500", "index.interval.bytes": "0"})
    for number in range(COUNT):
        log.append([NewRecord(value=bytes(50), timestamp=number)])
    assert len(log.segments) > 2
    return log


class Watched(SegmentBytes):
    """Counts looks into the index."""

    def __init__(self, pool: FilePool) -> None:
        super().__init__(pool, may_block=True)
        self.looks = 0

    def offset_index(self, segment: Segment) -> OffsetIndex:
        """As the base class."""
        self.looks += 1
        return super().offset_index(segment)


def spans(log: Log, ends: ReadEnds | None) -> tuple[list[tuple[int, int, int]], int]:
    """All ranges that a consumer gets one after the other, and looks into indexes."""
    found, offset = [], 0
    source = Watched(log.context.pool)
    while offset < COUNT:
        part = find_range(log.segments, offset, LIMITS, source, ends)
        assert part is not None
        assert part.size_bytes
        found.append((part.segment.base_offset, part.start, part.end))
        offset = part.next_offset
    return found, source.looks


def test_same_bytes_with_remembered_ends_as_without(log: Log) -> None:
    expected, looks = spans(log, None)
    found, fewer = spans(log, ReadEnds())
    assert found == expected
    assert fewer < looks


def test_a_wrong_place_is_not_believed(log: Log) -> None:
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
        assert ends.place_of(segment, 3) == position
        assert find_range(log.segments, 3, LIMITS, source, ends) == right


def test_a_segment_that_was_replaced_is_another_one(log: Log) -> None:
    source = SegmentBytes(log.context.pool, may_block=True)
    ends = ReadEnds()
    found = find_range(log.segments, 0, LIMITS, source, ends)
    assert found is not None
    assert ends.place_of(log.segments[0], found.next_offset) == found.end
    assert ends.place_of(log.segments[1], found.next_offset) is None
