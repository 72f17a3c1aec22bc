"""Lag computed from observations, and observations of a simulated cluster."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from tests.worlds.clusters.fake_cluster import FLIGHTS_0, FakeCluster, FakeLog, record

from tidelog.env import ManualClock
from tidelog.remote import group_lag, own_logs
from tidelog.remote.group_lag import AgeClock, History, Observation, PartitionLag, State, Unread
from tidelog.remote.view import Count, Member, RemoteRecord, Watermarks
from tidelog.types import IsolationLevel, TopicPartition

GROUP = "planes"
NOW = 1_700_000_000_000
FLIGHTS_1 = TopicPartition("flights", 1)


def seen(committed: int | None = 40, end: int = 100, start: int = 0, s: float = 0) -> Observation:
    at = start if committed is None else max(committed, start)
    unread = Unread(at, NOW - 5_000, AgeClock.APPEND) if at < end else None
    return Observation(
        partition=FLIGHTS_0,
        now_ms=NOW,
        monotonic_ms=int(s * 1000),
        committed=committed,
        start=start,
        end=end,
        left=Count(max(end - at, 0), is_exact=True),
        unread=unread,
    )


def lag_after(*observations: Observation, samples: int = 20) -> PartitionLag:
    history = History(samples)
    for observation in observations[:-1]:
        history.add([observation])
    (found,) = history.add(observations[-1:])
    return found


def test_the_lag_is_the_age_of_the_first_unread_record() -> None:
    assert lag_after(seen()).behind_ms == 5_000


def test_a_group_at_the_end_is_not_behind() -> None:
    found = lag_after(seen(committed=100))
    assert (found.offset_lag, found.behind_ms, found.catch_up_s) == (0, 0, 0.0)


def test_only_gaps_left_are_an_offset_lag_without_a_delay() -> None:
    """One offset is unread, but it is the offset of a transaction marker: no record is unread."""
    only_gap = replace(seen(committed=99), unread=None, left=Count(0, is_exact=True))
    found = lag_after(only_gap)
    assert (found.offset_lag, found.behind_ms, found.catch_up_s) == (1, 0, 0.0)


def test_record_without_a_time_makes_the_age_unknown() -> None:
    found = lag_after(replace(seen(), unread=Unread(40, None, None)))
    assert found.behind_ms is None


def test_clock_ahead_of_ours_gives_a_negative_age() -> None:
    ahead = replace(seen(), unread=Unread(40, NOW + 70, AgeClock.CREATE_TIME))
    assert lag_after(ahead).behind_ms == -70


def test_one_sample_gives_no_speed() -> None:
    found = lag_after(seen())
    assert (found.offsets_per_s, found.arrivals_per_s, found.catch_up_s) == (None, None, None)


def test_two_samples_of_the_same_time_give_no_rate() -> None:
    assert lag_after(seen(), seen(committed=50)).offsets_per_s is None


def test_two_samples_give_speeds_and_the_time_to_catch_up() -> None:
    found = lag_after(seen(committed=0, end=100), seen(committed=50, end=120, s=10))
    assert (found.offsets_per_s, found.arrivals_per_s) == (5.0, 2.0)
    assert found.catch_up_s == pytest.approx(70 / 3)


@pytest.mark.parametrize("committed", [0, 10, 20])
def test_a_group_that_does_not_gain_never_catches_up(committed: int) -> None:
    found = lag_after(seen(committed=0, end=100), seen(committed=committed, end=120, s=10))
    assert found.catch_up_s == math.inf


def test_speed_is_over_the_samples_kept() -> None:
    looks = [seen(committed=0), seen(committed=50, s=1), seen(committed=60, s=2)]
    assert lag_after(*looks, samples=2).offsets_per_s == 10.0
    assert lag_after(*looks, samples=3).offsets_per_s == 30.0


def test_rewind_is_no_speed() -> None:
    found = lag_after(seen(committed=90), seen(committed=10, s=1))
    assert found.offsets_per_s is None
    after = lag_after(seen(committed=90), seen(committed=10, s=1), seen(committed=12, s=2))
    assert after.offsets_per_s == 2.0


@pytest.mark.parametrize(
    ("observation", "state", "lost"),
    [
        (seen(), State.OK, 0),
        (seen(committed=None), State.NO_COMMIT, 0),
        (seen(committed=40, start=60), State.LOST, 20),
        (seen(committed=101), State.BEYOND_END, 0),
    ],
)
def test_states(observation: Observation, state: State, lost: int) -> None:
    found = lag_after(observation)
    assert (found.state, found.lost) == (state, lost)


def test_group_without_a_commit_has_the_whole_log_left() -> None:
    assert lag_after(seen(committed=None, start=30)).offset_lag == 70


def test_limits() -> None:
    late = lag_after(seen())
    assert group_lag.over_limits([late]) == []
    assert group_lag.over_limits([late], max_lag=60, max_ms=5_000) == []
    assert group_lag.over_limits([late], max_lag=59) == ["flights-0: 60 records left, limit 59"]
    assert group_lag.over_limits([late], max_ms=4_000) == ["flights-0: 5s behind, limit 4s"]


def test_limit_of_age_is_broken_by_an_unknown_age() -> None:
    unknown = lag_after(replace(seen(), unread=Unread(40, None, None)))
    (line,) = group_lag.over_limits([unknown], max_ms=1 << 40)
    assert "has no time" in line


@pytest.mark.parametrize("limit", ["max_lag", "max_ms"])
def test_a_position_beyond_the_end_breaks_any_limit(limit: str) -> None:
    """A position after the log end shows a recreated topic, of which the group has read nothing."""
    none_left = Count(0, is_exact=True)
    beyond = lag_after(replace(seen(committed=101), left=none_left, unread=None))
    assert group_lag.over_limits([beyond]) == []
    (line,) = group_lag.over_limits([beyond], **{limit: 1 << 40})
    assert "101 is above the log end offset 100" in line


def test_a_line_about_a_limit_marks_an_inexact_count() -> None:
    unsure = lag_after(replace(seen(), left=Count(60, is_exact=False)))
    (line,) = group_lag.over_limits([unsure], max_lag=10)
    assert "at most 60 records" in line


def observe(cluster: FakeCluster, *partitions: TopicPartition, read: bool = False) -> list[Unread]:
    counter = own_logs.counter(cluster, None, by_reading=read)
    clock = ManualClock(NOW)
    found = group_lag.observe(
        cluster, GROUP, partitions or [FLIGHTS_0], clock=clock, counter=counter
    )
    return [o.unread for o in found if o.unread is not None]


def test_observes_the_record_at_the_committed_offset_and_not_an_older_one() -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, NOW - 9, NOW - 5, NOW - 7)
    cluster.put(GROUP, {FLIGHTS_0: 1})
    assert observe(cluster) == [Unread(1, NOW - 5, AgeClock.CREATE_TIME)]


def test_observes_stamps_of_brokers() -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, NOW - 9)
    cluster.stamp(FLIGHTS_0)
    cluster.put(GROUP, {FLIGHTS_0: 0})
    assert observe(cluster) == [Unread(0, NOW - 9, AgeClock.LOG_APPEND_TIME)]


def test_reads_no_record_of_partitions_that_are_read_to_the_end() -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, NOW).with_log(FLIGHTS_1)
    cluster.put(GROUP, {FLIGHTS_0: 1, FLIGHTS_1: 0})
    assert observe(cluster, FLIGHTS_0, FLIGHTS_1) == []
    assert cluster.records_read == 0


def compacted() -> FakeCluster:
    """Return a cluster whose partition has 7 records at offsets 0 to 99; 4 of them are unread."""
    log = FakeLog([record(n, NOW) for n in (3, 10, 44, 52, 70, 80, 99)])
    cluster = FakeCluster({FLIGHTS_0: log})
    cluster.put(GROUP, {FLIGHTS_0: 50})
    return cluster


@pytest.mark.parametrize(
    ("read", "left"), [(False, Count(48, is_exact=False)), (True, Count(4, is_exact=True))]
)
def test_records_left_of_a_compacted_log(read: bool, left: Count) -> None:
    """If no records are read, the count is an upper bound: all offsets from the first unread on."""
    cluster = compacted()
    counter = own_logs.counter(cluster, None, by_reading=read)
    (found,) = group_lag.observe(
        cluster, GROUP, [FLIGHTS_0], clock=ManualClock(NOW), counter=counter
    )
    assert found.left == left
    assert found.unread == Unread(52, NOW, AgeClock.CREATE_TIME)


def test_the_assigned_member_is_named() -> None:
    cluster = compacted()
    cluster.members[GROUP] = [Member("m", "radar", "/10.0.0.7", (FLIGHTS_0,))]
    (found,) = group_lag.observe(
        cluster, GROUP, [FLIGHTS_0], clock=ManualClock(NOW), counter=own_logs.by_offsets
    )
    assert found.member == "radar"


@pytest.mark.parametrize(("committed", "state"), [(5, State.OK), (6, State.BEYOND_END)])
def test_a_commit_after_an_open_transactions_start_is_not_beyond_the_end(
    committed: int, state: State
) -> None:
    cluster = FakeCluster({FLIGHTS_0: FakeLog([record(n, NOW) for n in range(5)], stable=2)})
    cluster.put(GROUP, {FLIGHTS_0: committed})
    (found,) = group_lag.observe(
        cluster,
        GROUP,
        [FLIGHTS_0],
        clock=ManualClock(NOW),
        counter=own_logs.by_offsets,
        isolation=IsolationLevel.READ_COMMITTED,
    )
    lag = lag_after(found)
    assert (lag.state, lag.offset_lag, found.end) == (state, 0, 2)
    lines = group_lag.over_limits([lag], max_lag=1)
    assert ["above the log end offset 5:" in line for line in lines] == [True] * (
        state is not State.OK
    )


def test_groups_share_the_requests_for_a_partition() -> None:
    """The third group reads from another offset of a partition, so it needs a second consumer."""

    class CountingCluster(FakeCluster):
        def __init__(self) -> None:
            super().__init__()
            self.listed: list[TopicPartition] = []
            self.consumers: list[dict[TopicPartition, int]] = []

        def watermarks(
            self,
            partitions: Iterable[TopicPartition],
            *,
            isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        ) -> dict[TopicPartition, Watermarks]:
            self.listed += partitions
            return super().watermarks(partitions, isolation=isolation)

        def first_records(
            self,
            offsets: Mapping[TopicPartition, int],
            *,
            isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        ) -> dict[TopicPartition, RemoteRecord | None]:
            self.consumers.append(dict(offsets))
            return super().first_records(offsets, isolation=isolation)

    cluster = CountingCluster()
    cluster.with_log(FLIGHTS_0, NOW - 9, NOW - 5, NOW - 7).with_log(FLIGHTS_1, NOW - 3)
    both = [FLIGHTS_0, FLIGHTS_1]
    for group, offset in {"a": 1, "b": 1, "c": 2, "d": 3}.items():
        cluster.put(group, {FLIGHTS_0: offset})
    found = group_lag.observe_groups(
        cluster,
        dict.fromkeys("abcd", both),
        cluster.group_offsets("abcd"),
        clock=ManualClock(NOW),
        counter=own_logs.by_offsets,
    )
    assert cluster.listed == both
    assert cluster.consumers == [{FLIGHTS_0: 1, FLIGHTS_1: 0}, {FLIGHTS_0: 2}]
    unread = {group: [one.unread and one.unread.offset for one in found[group]] for group in found}
    assert unread == {"a": [1, 0], "b": [1, 0], "c": [2, 0], "d": [None, 0]}
