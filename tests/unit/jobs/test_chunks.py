"""Chunks contain each existing offset once, and no other; all partitions end together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.jobs.chunks import (
    CHUNK_RECORDS,
    Rate,
    Spans,
    as_json,
    chunk_budget,
    from_json,
    joined,
    offsets_options,
    take,
    thinned,
    total,
)
from tidelog.spark.offset_ranges import OffsetRange
from tidelog.types import TopicPartition


def span(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", partition), start, end)


SPANS = st.lists(
    st.builds(span, st.integers(0, 2), st.integers(0, 50), st.integers(0, 80)), max_size=12
).map(joined)


def offsets(spans: Spans) -> list[tuple[int, int]]:
    return [(one.partition.partition, at) for one in spans for at in range(one.start, one.end)]


@given(SPANS, st.integers(1, 60))
def test_chunks_contain_every_offset_once_in_order(spans: Spans, budget: int) -> None:
    left, seen = spans, []
    while left:
        chunk, left = take(left, budget)
        assert len({one.partition for one in chunk}) == len(chunk)
        assert total(chunk) <= budget + len(chunk)
        seen += offsets(chunk)
    by_partition = [[at for p, at in seen if p == partition] for partition in range(3)]
    assert by_partition == [sorted(found) for found in by_partition]
    assert sorted(seen) == offsets(spans)


def test_partitions_end_together() -> None:
    left: Spans = (span(0, 0, 900), span(1, 0, 100))
    chunk, left = take(left, 100)
    assert chunk == (span(0, 0, 90), span(1, 0, 10))
    assert left == (span(0, 90, 900), span(1, 10, 100))


def test_no_chunk_spans_a_hole() -> None:
    chunk, left = take((span(0, 0, 10), span(0, 50, 60)), 1_000)
    assert chunk == (span(0, 0, 10),)
    assert left == (span(0, 50, 60),)


@given(SPANS, st.integers(1, 3))
def test_thinned_spans_contain_all_offsets_and_are_few(spans: Spans, most: int) -> None:
    found = thinned(spans, most)
    assert set(offsets(spans)) <= set(offsets(found))
    for partition in range(3):
        assert sum(one.partition.partition == partition for one in found) <= most


def test_the_smallest_holes_are_filled() -> None:
    spans = (span(0, 0, 10), span(0, 12, 20), span(0, 90, 99))
    assert thinned(spans, 2) == (span(0, 0, 20), span(0, 90, 99))
    assert thinned(spans, 3) == spans


def test_spans_that_touch_become_one() -> None:
    given_spans = [span(1, 0, 5), span(0, 5, 9), span(0, 0, 5), span(0, 3, 4), span(2, 7, 7)]
    assert joined(given_spans) == (span(0, 0, 9), span(1, 0, 5))


@given(SPANS)
def test_spans_survive_json(spans: Spans) -> None:
    assert from_json(json.loads(json.dumps(as_json(spans)))) == spans


@pytest.mark.parametrize(
    "rows", [None, [1], [["t", 0, 5, 4]], [["t", -1, 0, 1]], [["t", 0, 0]], [["t", "0", 0, 1]]]
)
def test_invalid_spans_are_refused(rows: object) -> None:
    with pytest.raises(ValueError, match=r"invalid span|spans are"):
        from_json(rows)


def test_budgets() -> None:
    assert chunk_budget(None, 0, 0) == CHUNK_RECORDS
    assert chunk_budget(Rate(100), 0, 0) == 200
    assert chunk_budget(Rate(0.1), 0, 0) == 1
    assert chunk_budget(Rate(1e12), 0, 0) == CHUNK_RECORDS
    assert chunk_budget(Rate(1e6, is_bytes=True), 0, 0) == 2_000
    assert chunk_budget(Rate(1e6, is_bytes=True), 10, 1_000) == 20_000


def test_options_name_every_partition() -> None:
    options = offsets_options((span(0, 3, 9), span(2, 0, 1)))
    assert {name: json.loads(text) for name, text in options.items()} == {
        "assign": {"t": [0, 2]},
        "startingOffsets": {"t": {"0": 3, "2": 0}},
        "endingOffsets": {"t": {"0": 9, "2": 1}},
    }
