"""Latency at the tail: what is counted, and when it is too little."""

import pytest
from tests.unit.cluster.two_clusters import (
    APPEND,
    CREATE,
    MemoryCluster,
    MemoryTail,
    watched,
)

from tidelog.cluster.tail_latency import (
    Latencies,
    Sampling,
    TooFewRecords,
    Watched,
    measure,
)
from tidelog.types import TimestampType, TopicPartition

TOPIC = "orders"
P0 = TopicPartition(TOPIC, 0)
SAMPLING = Sampling(for_ms=2_000, records_min=4)


def tail_of(name: str, latencies: list[int], kind: TimestampType = CREATE) -> Watched:
    tail = MemoryTail([(P0, 10_000, 10_000 + lag) for lag in latencies], kind)
    return watched(name, MemoryCluster(f"{name}:1").create(TOPIC), tail)


def measured(*clusters: Watched) -> Latencies:
    return measure(clusters, [TOPIC], SAMPLING)


def test_count_largest_and_skew() -> None:
    a, b = measured(tail_of("A", [5, 120, -30, 7]), tail_of("B", [1, 2, 3, 4]))
    assert (a.cluster, a.count, a.max_ms, a.skew_ms) == ("A", 4, 120, 30)
    assert (b.cluster, b.count, b.max_ms, b.skew_ms) == ("B", 4, 4, 0)
    assert a.for_ms == 2_000


def test_percentiles_by_nearest_rank() -> None:
    (found,) = measured(tail_of("A", list(range(1, 101))))
    assert [found.percentile_ms(p) for p in (1, 50, 99, 100)] == [1, 50, 99, 100]


def test_too_few_records_say_how_long_it_would_take() -> None:
    with pytest.raises(TooFewRecords) as refusal:
        measured(tail_of("A", [1] * 4), tail_of("B", [1] * 3))
    assert str(refusal.value) == (
        "the latency of orders on B can't be told from 3 records in 2 s: 4 are needed;"
        " --sample-for 3s would bring them, or state it with --max-latency 2m"
    )


def test_a_silent_topic() -> None:
    with pytest.raises(TooFewRecords, match="0 records in 2 s: 4 are needed; nothing is appended"):
        measured(tail_of("A", []))


def test_append_times_hide_create_times() -> None:
    with pytest.raises(TooFewRecords, match="its timestamps are append times"):
        measured(tail_of("A", [1] * 10, APPEND))


def test_records_without_a_time_don_t_count() -> None:
    tail = MemoryTail([(P0, None, 10_000)] * 10)
    with pytest.raises(TooFewRecords, match="0 records"):
        measured(watched("A", MemoryCluster("A:1").create(TOPIC), tail))
