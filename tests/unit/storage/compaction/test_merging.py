"""Segments that are rewritten only to merge them, before a log has too many segments."""

from collections.abc import Sequence

from tidelog.storage.compaction.generations.estimates import SegmentFacts
from tidelog.storage.compaction.generations.planning import Room, group, widen

# Eight segments are allowed. Merging starts at more than 6.8 segments and stops at 5.76.
ROOM = Room(segment_bytes=100, live_bytes=100)


def segments_of(live: Sequence[int]) -> list[SegmentFacts]:
    return [
        SegmentFacts(
            base_offset=10 * number,
            end_offset=10 * number + 10,
            size_bytes=live_bytes,
            cleaned_to=10 * number,
            live_bytes=live_bytes,
            sum_bytes=live_bytes,
            keys=1,
        )
        for number, live_bytes in enumerate(live)
    ]


def test_a_log_of_few_segments_is_left_alone() -> None:
    assert widen(segments_of([1] * 6), [20], ROOM) == {20}


def test_neighbors_that_save_most_for_a_byte_copied_are_merged_and_no_more_than_needed() -> None:
    """Two large segments are merged with the small ones, two other large ones with each other."""
    segments = segments_of([40] * 6 + [1] * 4)
    merged = widen(segments, [], ROOM)
    assert merged == {20, 30, 40, 50, 60, 70, 80, 90}
    groups = group(segments, merged, ROOM)
    assert groups == [(20, 30), (40, 50, 60, 70, 80, 90)]


def test_segments_that_fill_one_are_not_merged() -> None:
    assert widen(segments_of([60] * 20), [], ROOM) == set()


def test_segments_that_are_rewritten_anyway_are_merged_at_no_cost() -> None:
    segments = segments_of([40, 40, 10, 90, 40, 40, 30, 90])
    assert widen(segments, [0, 10], ROOM) == {0, 10, 20}
