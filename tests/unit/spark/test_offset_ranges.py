"""Offset ranges are split as Spark's Kafka connector splits them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.spark.offset_ranges import OffsetRange, split_ranges
from tidelog.types import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def spans(found: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(one.partition.partition, one.start, one.end) for one in found]


@pytest.mark.parametrize(
    ("ranges", "min_parts", "max_records", "want"),
    [
        # Without options, each partition that is not empty is one task.
        ([(A, 5, 10), (B, 3, 3)], 1, None, [(0, 5, 10)]),
        # The number of tasks of a partition is in proportion to its number of offsets.
        ([(A, 0, 10)], 3, None, [(0, 0, 3), (0, 3, 6), (0, 6, 10)]),
        ([(A, 0, 100), (B, 0, 1)], 4, None, [(0, 0, 33), (0, 33, 66), (0, 66, 100), (1, 0, 1)]),
        ([(A, 0, 10), (B, 0, 10)], 2, None, [(0, 0, 10), (1, 0, 10)]),
        # A maximum number of offsets per task.
        ([(A, 0, 10)], 1, 4, [(0, 0, 3), (0, 3, 6), (0, 6, 10)]),
        ([(A, 0, 4)], 1, 4, [(0, 0, 4)]),
        # With both options, ranges are split by the maximum, and then, if the tasks are too few, by
        # the minimum number of tasks.
        ([(A, 0, 8)], 4, 4, [(0, 0, 2), (0, 2, 4), (0, 4, 6), (0, 6, 8)]),
    ],
)
def test_examples(
    ranges: list[tuple[TopicPartition, int, int]],
    min_parts: int,
    max_records: int | None,
    want: list[tuple[int, int, int]],
) -> None:
    found = split_ranges(
        [OffsetRange(*one) for one in ranges],
        min_parts=min_parts,
        max_records=max_records,
    )
    assert spans(found) == want


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2_000)), max_size=5),
    st.integers(1, 40),
    st.none() | st.integers(1, 300),
)
def test_every_offset_once_and_bounds_kept(
    sizes: list[tuple[int, int]], min_parts: int, max_records: int | None
) -> None:
    ranges = [
        OffsetRange(TopicPartition("t", number), start, start + span)
        for number, (start, span) in enumerate(sizes)
    ]
    found = split_ranges(ranges, min_parts=min_parts, max_records=max_records)
    offsets = [(one.partition, offset) for one in found for offset in range(one.start, one.end)]
    assert offsets == [(one.partition, n) for one in ranges for n in range(one.start, one.end)]
    assert all(one.offsets > 0 for one in found)
    if max_records is not None:
        assert all(one.offsets <= max_records for one in found)
