"""The histograms show a bulk load that has most of the latency; nothing else counts as a load."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.scan.latency_loads import RECORDS_LEAST, find_load
from tidelog.scan.latency_verdict import load_line
from tidelog.storage.clocks.latency import LatencyByHour
from tidelog.types import HOUR_MS

NOON_MS = 1_360_324_800_000  # 2013-02-08T12:00Z
DAY_MS = 24 * HOUR_MS


def by_hour(records: Iterable[tuple[int, int, int]]) -> LatencyByHour:
    """Return histograms of (hour from noon, latency in ms, number of records)."""
    latencies = LatencyByHour()
    for hour, latency_ms, count in records:
        latencies.add(NOON_MS + hour * HOUR_MS, latency_ms, count)
    return latencies


STREAM = [(hour, 2_000 + hour, 1_000) for hour in range(30)]
LOAD = [(40, day * DAY_MS, 200) for day in range(1, 31)]


def test_a_load_of_old_records_is_named_with_its_window_and_the_rest() -> None:
    latencies = by_hour([*STREAM, *LOAD])
    load = find_load(latencies)
    assert load is not None
    assert (load.start_ms, load.end_ms) == (NOON_MS + 40 * HOUR_MS, NOON_MS + 41 * HOUR_MS)
    assert (load.records.count, load.others.count) == (6_000, 30_000)
    assert load_line("t", load, None) == (
        "t: 30,000 records: P50 2s, P99 2s, worst 2s appended in the hour from 2013-02-09 17:00:00"
        " (UTC); not counted: a bulk load of 6,000 records (17%) appended from 2013-02-10 04:00:00"
        " to 05:00:00, up to 30d after their create time"
    )
    assert load_line("t", load, "Asia/Kolkata").endswith(
        " (17%) appended from 2013-02-10 09:30:00 to 10:30:00, up to 30d after their create time"
    )


def test_the_worst_span_is_outside_the_load() -> None:
    load = find_load(by_hour([*STREAM, *LOAD, (3, 9_000, 100)]))
    assert load is not None
    assert load.worst == (NOON_MS + 3 * HOUR_MS, NOON_MS + 4 * HOUR_MS)
    assert ", worst 9s appended in the hour from 2013-02-08 15:00:00 (UTC); " in load_line(
        "t", load, None
    )
    long = LatencyByHour(4 * HOUR_MS)
    long.merge(by_hour([*STREAM, *LOAD, (3, 9_000, 100)]))
    load = find_load(long)
    assert load is not None
    assert ", worst 9s appended from 2013-02-08 12:00:00 to 16:00:00 (UTC); " in load_line(
        "t", load, None
    )


def test_a_load_over_midnight_has_both_days() -> None:
    spread = [(at + hour, ms, count) for at, ms, count in LOAD for hour in (-5, -4)]
    load = find_load(by_hour([*STREAM, *spread]))
    assert load is not None
    assert " from 2013-02-09 23:00:00 to 2013-02-10 01:00:00, up to" in load_line("t", load, None)


def test_a_load_of_several_hours_is_found_whole() -> None:
    spread = [(40 + day % 3, ms, count) for day, (_, ms, count) in enumerate(LOAD)]
    load = find_load(by_hour([*STREAM, *spread]))
    assert load is not None
    assert load.end_ms - load.start_ms == 3 * HOUR_MS
    assert load.records.count == 6_000


def test_a_topic_that_was_loaded_at_once() -> None:
    load = find_load(by_hour(LOAD))
    assert load is not None
    assert load.share == 1
    assert load_line("t", load, None) == (
        "t: all 6,000 records are a bulk load appended from 2013-02-10 04:00:00 to 05:00:00 (UTC),"
        " up to 30d after their create time"
    )


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([], id="empty"),
        pytest.param(STREAM, id="a stream"),
        pytest.param([(0, 0, 1_000), (1, -5_000, 1_000)], id="no latency"),
        pytest.param([*STREAM, (40, 30 * DAY_MS, 1)], id="one late record"),
        pytest.param([(0, 5, 9), (1, DAY_MS, 9), (1, 9 * DAY_MS, 9)], id="few records"),
        pytest.param(
            [*STREAM, *((40, day * DAY_MS, 9) for day in range(1, 31))], id="below 1 % of all"
        ),
        pytest.param(
            [*STREAM, *((40, minute * 60_000, 100) for minute in range(1, 181))],
            id="a backlog of three hours",
        ),
        pytest.param([(0, 3 * DAY_MS + at, 10) for at in range(60)], id="a constant delay"),
        pytest.param(
            [(24 * day, at * HOUR_MS, 10 + 5 * day) for day in range(2) for at in range(12, 36)],
            id="each night the day before",
        ),
        pytest.param([(hour, 2 * DAY_MS, 1_000) for hour in range(300)], id="always late"),
    ],
)
def test_nothing_else_is_called_a_load(records: list[tuple[int, int, int]]) -> None:
    assert find_load(by_hour(records)) is None


LATENCIES = st.one_of(st.integers(-100, 5_000), st.integers(0, 400 * DAY_MS))
HOURS = st.one_of(st.integers(0, 3), st.integers(0, 500))


@given(st.lists(st.tuples(HOURS, LATENCIES, st.integers(1, 300)), min_size=1, max_size=20))
def test_the_numbers_of_a_load_are_those_of_its_records(
    records: list[tuple[int, int, int]],
) -> None:
    load = find_load(by_hour(records))
    if load is None:
        return
    inside = [
        (latency_ms, count)
        for hour, latency_ms, count in records
        if load.start_ms <= NOON_MS + hour * HOUR_MS < load.end_ms
    ]
    assert load.records.count == sum(count for _, count in inside) >= RECORDS_LEAST
    assert load.records.count + load.others.count == sum(count for *_, count in records)
    total = sum(max(latency_ms, 0) * count for _, latency_ms, count in records)
    share = sum(max(latency_ms, 0) * count for latency_ms, count in inside) / total
    assert 0.5 < load.share <= share + 1e-9
    window_ms = load.end_ms - load.start_ms
    old = sum(count for latency_ms, count in inside if latency_ms >= 10 * window_ms)
    assert 2 * old >= load.records.count
