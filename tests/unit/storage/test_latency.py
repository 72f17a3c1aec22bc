"""Latencies by hour: buckets, percentiles and their error, wider intervals, the file format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptIndex
from tidelog.storage.clocks.latency import (
    BUCKET_MAX,
    HOURS_LIMIT,
    RELATIVE_ERROR,
    LatencyByHour,
    LatencyHistogram,
    bucket_bounds,
    bucket_of,
    latency_of,
)
from tidelog.types import HOUR_MS, INT64_MAX, INT64_MIN

latencies = (
    st.integers(-200, 200) | st.integers(-(10**7), 10**7) | st.integers(-INT64_MAX, INT64_MAX)
)


@given(latency=latencies)
def test_a_latency_is_in_its_bucket(latency: int) -> None:
    bucket = bucket_of(latency)
    low, high = bucket_bounds(bucket)
    assert low <= latency <= high
    assert -BUCKET_MAX <= bucket <= BUCKET_MAX
    assert high - low <= 2 * RELATIVE_ERROR * min(abs(low), abs(high))


def test_buckets_follow_each_other_without_gaps() -> None:
    for bucket in range(-BUCKET_MAX, BUCKET_MAX):
        assert bucket_bounds(bucket)[1] + 1 == bucket_bounds(bucket + 1)[0]
    assert bucket_bounds(BUCKET_MAX)[1] == INT64_MAX


@given(known=st.lists(latencies, min_size=1, max_size=60), percent=st.floats(0, 100))
def test_a_percentile_is_off_by_the_stated_error_at_most(known: list[int], percent: float) -> None:
    histogram = LatencyHistogram()
    for latency in known:
        histogram.add(latency)
    rank = max(1, -(-percent * len(known) // 100))
    exact = sorted(known)[int(rank) - 1]
    found = histogram.percentile(percent)
    assert found is not None
    assert abs(found - exact) <= abs(exact) * RELATIVE_ERROR + 1
    assert histogram.percentile(0) == min(known)
    assert histogram.percentile(100) == max(known)


@pytest.mark.parametrize("latency", [*bucket_bounds(bucket_of(10_000)), -9_999])
def test_no_percentile_is_outside_the_known_latencies(latency: int) -> None:
    """All latencies are equal, and may be at either bound of their bucket."""
    histogram = LatencyHistogram()
    histogram.add(latency, 3)
    assert histogram.percentiles((0, 50, 67, 100)) == [latency] * 4


def test_a_percentile_of_an_empty_histogram_is_none() -> None:
    assert LatencyHistogram().percentile(50) is None


def test_a_latency_is_held_within_63_bits() -> None:
    assert latency_of(INT64_MAX, INT64_MIN) == INT64_MAX
    assert latency_of(INT64_MIN, INT64_MAX) == -INT64_MAX
    assert latency_of(5, 7) == -2


def test_spans_widen_if_there_are_too_many_hours() -> None:
    found = LatencyByHour()
    for hour in range(HOURS_LIMIT + 1):
        found.add(hour * HOUR_MS + 1, 5)
    assert found.step_ms == 2 * HOUR_MS
    assert len(found) == HOURS_LIMIT // 2 + 1
    assert found[0].count == 2
    assert found.total().count == HOURS_LIMIT + 1
    with pytest.raises(KeyError):
        found[HOUR_MS]


def test_maps_of_different_steps_can_be_merged() -> None:
    narrow, wide = LatencyByHour(), LatencyByHour(4 * HOUR_MS)
    narrow.add(5 * HOUR_MS, 1)
    wide.add(6 * HOUR_MS, 2)
    narrow.merge(wide)
    assert list(narrow) == [4 * HOUR_MS]
    assert (narrow[4 * HOUR_MS].min_ms, narrow[4 * HOUR_MS].max_ms) == (1, 2)


@given(known=st.lists(st.tuples(st.integers(INT64_MIN, INT64_MAX), latencies), max_size=20))
def test_a_section_is_read_back_and_any_cut_is_detected(known: list[tuple[int, int]]) -> None:
    found = LatencyByHour()
    for append_ms, latency in known:
        found.add(append_ms, latency)
    data = found.encode()
    again = LatencyByHour.decode(data)
    assert (again.step_ms, dict(again)) == (found.step_ms, dict(found))
    for size in range(len(data)):
        with pytest.raises(CorruptIndex):
            LatencyByHour.decode(data[:size])


@given(data=st.binary(max_size=80))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    for content in (data, LatencyByHour().encode()[:8] + data):
        try:
            LatencyByHour.decode(content)
        except CorruptIndex:
            continue
