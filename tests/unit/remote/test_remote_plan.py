"""The offsets to read for a time range on a simulated cluster include all records of the range."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.clusters.fake_cluster import FLIGHTS_0, FakeCluster

from tidelog.env import os_env
from tidelog.errors import ClusterFailure, InvalidRequest, UnknownTopic
from tidelog.remote.cluster import Cluster, connect
from tidelog.remote.partition_fetch import FetchSettings
from tidelog.remote.records import ClusterRecords
from tidelog.remote.time_lookup import plan_remote
from tidelog.scan import RequestedRange, Split
from tidelog.scan.source import ReadRequest
from tidelog.types import (
    INT64_MAX,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TopicPartition,
)

times = st.lists(st.none() | st.integers(1, 30), max_size=20)
bounds = st.none() | st.integers(0, 32)


def plan(
    cluster: FakeCluster,
    start: int | None,
    end: int | None,
    clock: ClockName = ClockName.RECORD,
) -> list[Split]:
    return plan_remote(
        cluster,
        [FLIGHTS_0],
        RequestedRange(start_ms=start, end_ms=end),
        clock=clock,
        isolation=IsolationLevel.READ_UNCOMMITTED,
    )


@given(given_times=times, start=bounds, end=bounds)
def test_every_record_of_the_range_is_in_the_plan(
    given_times: list[int | None], start: int | None, end: int | None
) -> None:
    low, high = 0 if start is None else start, 1_000 if end is None else end
    cluster = FakeCluster().with_log(FLIGHTS_0, *given_times)
    if low > high:
        if start is not None and end is not None:
            with pytest.raises(InvalidRequest, match="is before start"):
                plan(cluster, start, end)
        return
    offsets = {n for split in plan(cluster, start, end) for n in _span(split)}
    for offset, ms in enumerate(given_times):
        if ms is not None and low <= ms < high:
            assert offset in offsets


def _span(split: Split) -> range:
    return range(split.start_offset, split.end_offset)


def test_a_plan_begins_at_the_first_record_at_or_after_the_start() -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, 10, 20, 30, 15, 40)
    (split,) = plan(cluster, 25, 35)
    assert (split.start_offset, split.end_offset) == (2, 5)
    assert split.time_range == (25, 35)
    assert plan(cluster, 41, 50) == []
    assert plan(cluster, 30, 30) == []


def test_matches_that_kafka_hides_are_found() -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, 10, 20, 30)
    cluster.logs[FLIGHTS_0].hides_matches = True
    (split,) = plan(cluster, 15, None)
    assert split.start_offset == 1


def test_stamps_rise_so_the_range_ends_too() -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, 10, 20, 30, 40)
    cluster.stamp(FLIGHTS_0)
    (split,) = plan(cluster, 15, 35, ClockName.APPEND)
    assert (split.start_offset, split.end_offset) == (1, 3)
    assert plan(cluster, 41, 50, ClockName.APPEND) == []


def test_ranges_of_unknown_append_times_are_refused() -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, 10, 20)
    with pytest.raises(InvalidRequest, match="clock='append'"):
        plan(cluster, 15, None, ClockName.APPEND)
    (split,) = plan(cluster, None, None, ClockName.APPEND)
    assert split.time_range is None


def test_a_search_by_append_time_does_not_bound_create_times() -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, 10, 20, 30)
    cluster.settings["flights"] = {"tidelog.lookup.clock": "append"}
    (split,) = plan(cluster, 25, None)
    assert (split.start_offset, split.time_range) == (0, (25, INT64_MAX))
    (split,) = plan(cluster, 15, 25, ClockName.APPEND)
    assert (split.start_offset, split.end_offset, split.time_range) == (1, 2, None)


class OldCluster(FakeCluster):
    """Cluster whose brokers don't support the query for the largest timestamp."""

    code: int | None = 35

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        raise ClusterFailure("nowhere", "look up", "too old", error_code=self.code)


def test_brokers_that_cannot_search_are_read_from_the_start() -> None:
    cluster = OldCluster()
    cluster.with_log(FLIGHTS_0, 10, 20)
    (split,) = plan(cluster, 15, None)
    assert (split.start_offset, split.end_offset) == (0, 2)
    cluster.code = None
    with pytest.raises(ClusterFailure):
        plan(cluster, 15, None)


def test_only_a_plan_with_a_start_on_the_record_clock_may_skip_records_without_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Cluster, "topics", lambda _cluster: {})
    with connect("127.0.0.1:1") as cluster:
        source = ClusterRecords(cluster=cluster, client={}, env=os_env())
        found = {
            (clock, start): source.plan(
                ReadRequest(topics=[], requested_range=RequestedRange(start_ms=start), clock=clock),
                columns=[],
            ).has_skipped
            for clock in ClockName
            for start in (None, 0, 1)
        }
    assert [key for key, has_skipped in found.items() if has_skipped] == [(ClockName.RECORD, 1)]


def test_a_fetch_of_a_cluster_has_the_requested_settings() -> None:
    """Each setting in the test differs from its default."""
    with connect("127.0.0.1:1", {"client.id": "me"}, timeout_s=7) as cluster:
        fetch = cluster.open_fetch(
            FLIGHTS_0, isolation=IsolationLevel.READ_COMMITTED, topic_id="ab", max_bytes=9
        )
        assert fetch._settings == FetchSettings(
            isolation=IsolationLevel.READ_COMMITTED,
            client_id="me",
            timeout_ms=7_000,
            max_bytes=9,
            partition_max_bytes=9,
        )
        assert cluster.open_fetch(FLIGHTS_0)._settings == FetchSettings(
            client_id="me", timeout_ms=7_000
        )


def test_each_topic_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic is looked up once, because each lookup requests the metadata of all topics."""
    lookups: list[Cluster] = []

    def topics(cluster: Cluster) -> dict[str, int]:
        lookups.append(cluster)
        return {"flights": 3, "tides": 2}

    monkeypatch.setattr(Cluster, "topics", topics)
    with connect("127.0.0.1:1") as cluster:
        source = ClusterRecords(cluster=cluster, client={}, env=os_env())
        flights = [TopicPartition("flights", n) for n in (2, 0)]
        assert source.partitions([*flights, "tides", *flights]) == [
            *flights,
            TopicPartition("tides", 0),
            TopicPartition("tides", 1),
        ]
        assert len(lookups) == 2
        for number in (-1, 3):
            with pytest.raises(UnknownTopic, match="partitions 0 to 2, not "):
                source.partitions(TopicPartition("flights", number))
