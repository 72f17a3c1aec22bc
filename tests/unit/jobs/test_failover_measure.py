"""Latency in the tail of a log: the measured records, and the error if there are too few."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest
from tests.worlds.clusters.two_clusters import (
    APPEND,
    CREATE,
    MemoryCluster,
    MemoryTail,
    watched,
)

from tidelog.env import ManualClock
from tidelog.jobs.failover.measure import (
    ConsumerTail,
    Latencies,
    MeasuredCluster,
    Sampling,
    StampedRecord,
    TooFewRecords,
    measure,
)
from tidelog.remote.view import Watermarks
from tidelog.types import IsolationLevel, TimestampType, TopicPartition

if TYPE_CHECKING:
    from tidelog.remote.cluster import Cluster

TOPIC = "orders"
P0 = TopicPartition(TOPIC, 0)
SAMPLING = Sampling(for_ms=2_000, records_min=4)


def tail_of(name: str, latencies: list[int], kind: TimestampType = CREATE) -> MeasuredCluster:
    tail = MemoryTail([(P0, 10_000, 10_000 + lag) for lag in latencies], kind)
    return watched(name, MemoryCluster(f"{name}:1").create(TOPIC), tail)


def measured(*clusters: MeasuredCluster) -> Latencies:
    return measure(clusters, [TOPIC], SAMPLING, now_ms=20_000)


def test_measurements_have_count_largest_latency_and_skew() -> None:
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
        "the latency of orders on B can't be measured from 3 records in 2 s: 4 are needed;"
        " give --sample-for 3s for enough records, or --max-latency"
    )


def test_a_silent_topic_has_too_few_records() -> None:
    with pytest.raises(TooFewRecords, match="0 records in 2 s: 4 are needed; no records are"):
        measured(tail_of("A", []))


def test_append_times_hide_create_times() -> None:
    with pytest.raises(TooFewRecords, match="its timestamps are append times"):
        measured(tail_of("A", [1] * 10, APPEND))


@dataclass(slots=True)
class MemoryStamps:
    """Append time and create time of the record at each offset."""

    times: list[tuple[int, int]]

    def records(self, partition: TopicPartition, start: int, end: int) -> Iterable[StampedRecord]:
        for offset, (append_ms, create_ms) in enumerate(self.times):
            if start <= offset < end:
                yield StampedRecord(offset, append_ms, create_ms)


def stamped(name: str, times: list[tuple[int, int]]) -> MeasuredCluster:
    cluster = MemoryCluster(f"{name}:1").create(TOPIC, 1, APPEND)
    for append_ms, _create_ms in times:
        cluster.append(P0, append_ms)
    return MeasuredCluster(name, cluster, MemoryTail(), MemoryStamps(times))


def test_latencies_of_log_append_time_topics_are_measured() -> None:
    """The records appended from 18,000 to 20,000 ms, both inclusive, are measured."""
    times = [(17_999, 0), (18_000, 17_000), (19_000, 19_040), (19_500, 19_450), (20_000, 20_000)]
    (found,) = measured(stamped("A", times))
    assert (found.count, found.max_ms, found.skew_ms, found.is_exact) == (4, 1_000, 40, True)


def test_too_little_past_is_refused_too() -> None:
    with pytest.raises(
        TooFewRecords, match="from 1 record in 2 s: 4 are needed; give --sample-for 8s"
    ):
        measured(stamped("A", [(19_000, 18_000)]))


def test_records_without_a_time_do_not_count() -> None:
    tail = MemoryTail([(P0, None, 10_000)] * 10)
    with pytest.raises(TooFewRecords, match="0 records"):
        measured(watched("A", MemoryCluster("A:1").create(TOPIC), tail))


@dataclass(frozen=True, slots=True)
class Message:
    """A record with create time 0 as the client library passes it."""

    at: int

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def nothing(self) -> None: ...

    headers = leader_epoch = key = value = nothing


class ConnectingCluster:
    """A cluster to which two records are appended while the consumer connects.

    Each poll takes 100 ms and returns the next record. A transaction is open from offset 5 on, so a
    consumer of committed records that begins after offset 5 would receive nothing.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ends = [6, 7]
        self.next = 5

    def watermarks(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        end = self.ends.pop(0)
        end = 5 if isolation is IsolationLevel.READ_COMMITTED else end
        return dict.fromkeys(partitions, Watermarks(0, end))

    @contextmanager
    def consumer_at(
        self, offsets: Mapping[TopicPartition, int], _isolation: IsolationLevel
    ) -> "Iterator[ConnectingCluster]":
        assert offsets == {P0: 5}
        yield self

    def poll(self, _timeout_s: float) -> Message:
        self.clock.advance(100)
        self.next += 1
        return Message(self.next - 1)

    def typed(self, _operation: str) -> AbstractContextManager[None]:
        return nullcontext()

    def deadline(self) -> Callable[[], float]:
        return lambda: 1.0

    def partition_of(self, _message: Message) -> TopicPartition:
        return P0

    def is_record(self, _message: Message, _next_offset: int) -> bool:
        return True


def test_records_that_are_appended_while_the_consumer_connects_are_not_measured() -> None:
    clock = ManualClock(0)
    tail = ConsumerTail(cast("Cluster", ConnectingCluster(clock)), clock)
    found = [(each.offset, each.arrival_ms) for each in tail.arrivals([P0], 400)]
    assert found == [(7, 300), (8, 400), (9, 500)]
