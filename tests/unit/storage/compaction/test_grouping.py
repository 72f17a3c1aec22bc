"""Segments are grouped to be merged into one segment, within each of Kafka's limits."""

from tidelog.storage.compaction.job import GROUP_BYTES_MAX, GroupLimits, SegmentSize, group_segments
from tidelog.types import INT32_MAX

LIMITS = GroupLimits(log_bytes=100, index_bytes=24)


def size(base: int, end: int, log: int = 10, index: int = 0, times: int = 0) -> SegmentSize:
    return SegmentSize(
        base_offset=base, end_offset=end, log_bytes=log, index_bytes=index, time_index_bytes=times
    )


def test_no_segments_give_no_group() -> None:
    assert group_segments([], LIMITS) == []


def test_segments_are_packed_in_order_up_to_the_size_of_one() -> None:
    segments = [size(n, n + 1, log) for n, log in enumerate((60, 40, 1, 99, 100))]
    assert group_segments(segments, LIMITS) == [(0, 1), (2, 3), (4,)]


def test_a_segment_over_the_limit_stands_alone() -> None:
    assert group_segments([size(0, 1, 101), size(1, 2, 0)], LIMITS) == [(0,), (1,)]


def test_a_group_leaves_room_for_growth_below_the_maximum_size() -> None:
    """A batch's timestamp deltas may take more bytes when they refer to another base timestamp."""
    half = (GROUP_BYTES_MAX + 1) // 2
    limits = GroupLimits(log_bytes=INT32_MAX, index_bytes=24)
    assert group_segments([size(0, 1, half), size(1, 2, half - 1)], limits) == [(0, 1)]
    assert group_segments([size(0, 1, half), size(1, 2, half)], limits) == [(0,), (1,)]
    assert group_segments([size(0, 1, INT32_MAX), size(1, 2)], limits) == [(0,), (1,)]


def test_each_index_has_its_limit() -> None:
    by_offsets = [size(n, n + 1, 1, index=8) for n in range(4)]
    assert group_segments(by_offsets, LIMITS) == [(0, 1, 2), (3,)]
    by_times = [size(n, n + 1, 1, times=12) for n in range(3)]
    assert group_segments(by_times, LIMITS) == [(0, 1), (2,)]


def test_offsets_of_a_group_fit_32_bits() -> None:
    fits = [size(5, 6), size(6, 5 + INT32_MAX + 1)]
    assert group_segments(fits, LIMITS) == [(5, 6)]
    too_far = [size(5, 6), size(6, 5 + INT32_MAX + 2)]
    assert group_segments(too_far, LIMITS) == [(5,), (6,)]
