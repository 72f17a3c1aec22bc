"""Offsets to which a group is reset, and when the group then misses no record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.clusters.fake_cluster import FLIGHTS_0, FakeCluster, record

from tidelog.errors import GroupActive, InvalidRequest, UnknownGroup, UnknownTopic
from tidelog.remote import group_rewind
from tidelog.remote.group_rewind import Action, Move, NoMatch, Target, TargetKind
from tidelog.remote.view import Committed, Count, Member
from tidelog.types import ClockName, TopicPartition

GROUP = "planes"
FLIGHTS_1 = TopicPartition("flights", 1)


def cluster_at(committed: int | None, *timestamps: int | None) -> FakeCluster:
    cluster = FakeCluster().with_log(FLIGHTS_0, *timestamps)
    if committed is not None:
        cluster.put(GROUP, {FLIGHTS_0: committed})
    return cluster


def move_of(cluster: FakeCluster, target: Target) -> Move:
    (move,) = group_rewind.plan(cluster, GROUP, [FLIGHTS_0], target)
    return move


def test_a_rewind_ends_at_the_first_record_at_the_time() -> None:
    move = move_of(cluster_at(4, 100, 200, 300, 400), Target(time_ms=200))
    assert move.action is Action.REWIND
    assert move.new == Committed(1, 0)
    assert move.again == Count(3, is_exact=False)


def test_no_record_at_or_after_the_time_is_before_the_new_offset() -> None:
    """If create times are out of order, the first match is used, so that no record is missed."""
    move = move_of(cluster_at(5, 100, 350, 50, 300, 20), Target(time_ms=300))
    assert move.new is not None
    assert move.new.offset == 1


@given(
    times=st.lists(st.none() | st.integers(0, 40), max_size=12),
    start=st.integers(0, 12),
    committed=st.integers(0, 13),
    at=st.integers(0, 41),
    skew=st.integers(0, 5),
    hides=st.booleans(),
)
def test_a_rewound_group_reads_all_promised_records_and_skips_none(
    times: list[int | None], start: int, committed: int, at: int, skew: int, hides: bool
) -> None:
    """The assertions hold for any log, any position of the group and any time."""
    cluster = cluster_at(committed, *times)
    log = cluster.logs[FLIGHTS_0]
    log.start, log.hides_matches = min(start, log.end), hides
    move = move_of(cluster, Target(time_ms=at, max_skew_ms=skew))
    assert move.new is not None
    matches = [r.offset for r in log.visible if r.timestamp is not None]
    matches = [n for n in matches if (times[n] or 0) >= at - skew]
    if matches:
        stands = min(max(committed, log.start), log.end)
        assert move.new.offset == (matches[0] if matches[0] <= stands else committed)
    assert (move.new.offset == committed) is not move.is_change
    unread = [r.offset for r in log.visible if r.offset >= committed]
    assert all(offset >= move.new.offset for offset in unread)


def test_max_skew_includes_records_with_slightly_earlier_times() -> None:
    cluster = cluster_at(4, 100, 250, 299, 300)
    assert move_of(cluster, Target(time_ms=300, max_skew_ms=50)).new == Committed(1, 0)


def test_skew_beyond_1970_looks_up_zero() -> None:
    assert Target(time_ms=30, max_skew_ms=50).lookup_ms == 0


def test_no_match_stays() -> None:
    move = move_of(cluster_at(1, 100, 200), Target(time_ms=201))
    assert (move.action, move.new, move.match) == (Action.STAY, Committed(1), None)
    assert "no record at or after" in move.why


def test_without_a_match_the_position_is_the_end_only_if_this_skips_no_record() -> None:
    target = Target(time_ms=201, no_match=NoMatch.END)
    held_back = move_of(cluster_at(1, 100, 200), target)
    assert held_back.is_held_back
    assert held_back.skipped == Count(1, is_exact=False)
    assert held_back.new == Committed(1)
    there = move_of(cluster_at(2, 100, 200), target)
    assert there.action is Action.STAY
    assert not there.is_held_back


def test_a_rewind_skips_no_record_without_forward() -> None:
    cluster = cluster_at(1, 100, 200, 300, 400)
    held_back = move_of(cluster, Target(time_ms=400))
    assert held_back.is_held_back
    assert held_back.new == Committed(1)
    asked = move_of(cluster, Target(time_ms=400, forward=True))
    assert (asked.action, asked.new) == (Action.FORWARD, Committed(3, 0))
    assert asked.skipped == Count(2, is_exact=False)


def test_a_group_may_skip_offsets_without_records() -> None:
    cluster = cluster_at(1, 100, 200, 300, 400)
    (move,) = group_rewind.plan(
        cluster, GROUP, [FLIGHTS_0], Target(time_ms=400), counter=lambda *_: group_rewind.NOTHING
    )
    assert move.action is Action.FORWARD


def test_earliest_and_latest_are_start_and_end() -> None:
    cluster = cluster_at(2, 100, 200, 300)
    assert move_of(cluster, Target(kind=TargetKind.EARLIEST)).new == Committed(0)
    latest = move_of(cluster, Target(kind=TargetKind.LATEST))
    assert (latest.action, latest.new) == (Action.FORWARD, Committed(3))


def test_a_group_behind_the_log_start_reads_no_record_again() -> None:
    cluster = cluster_at(1, 100, 200, 300, 400)
    cluster.logs[FLIGHTS_0].start = 3
    move = move_of(cluster, Target(kind=TargetKind.EARLIEST))
    assert (move.action, move.new, move.again.records) == (Action.FORWARD, Committed(3), 0)


def test_a_position_beyond_the_end_counts_the_existing_records() -> None:
    assert move_of(cluster_at(9, 100, 200), Target(time_ms=200)).again.records == 1


def test_partition_without_a_commit_starts_at_the_time() -> None:
    move = move_of(cluster_at(None, 100, 200), Target(time_ms=200))
    assert (move.action, move.old, move.new) == (Action.START, None, Committed(1, 0))


def test_match_that_the_broker_hides_is_found_by_reading() -> None:
    cluster = cluster_at(4, 100, 200, 300, 400)
    cluster.logs[FLIGHTS_0].hides_matches = True
    assert move_of(cluster, Target(time_ms=300)).new == Committed(2, 0)
    assert cluster.records_read == 3


def test_no_record_is_read_if_no_timestamp_is_so_late() -> None:
    cluster = cluster_at(2, 100, 200)
    move_of(cluster, Target(time_ms=201))
    assert cluster.records_read == 0


def test_the_append_clock_is_refused_without_log_append_time() -> None:
    with pytest.raises(InvalidRequest, match=r"timestamp\.type=CreateTime.*--data"):
        move_of(cluster_at(2, 100, 200), Target(time_ms=100, clock=ClockName.APPEND))


def test_the_append_clock_is_refused_if_any_topic_has_no_log_append_time() -> None:
    landings = TopicPartition("landings", 0)
    cluster = cluster_at(2, 100, 200).with_log(landings, 100, 200)
    cluster.stamp(FLIGHTS_0)
    target = Target(time_ms=100, clock=ClockName.APPEND)
    with pytest.raises(InvalidRequest, match=r"landings has message\.timestamp\.type=CreateTime"):
        group_rewind.plan(cluster, GROUP, [FLIGHTS_0, landings], target)


def test_append_clock_of_stamped_records() -> None:
    cluster = cluster_at(3, 100, 200, 300)
    cluster.stamp(FLIGHTS_0)
    target = Target(time_ms=200, clock=ClockName.APPEND)
    assert move_of(cluster, target).new == Committed(1, 0)


@pytest.mark.parametrize("time_ms", [250, 999])
def test_the_append_clock_is_refused_if_a_deciding_record_has_no_append_time(time_ms: int) -> None:
    """LogAppendTime was set later, so the append times of earlier records are unknown."""
    cluster = cluster_at(3, 100, 200, 300)
    cluster.stamp(FLIGHTS_0, first=2 if time_ms == 250 else 3)
    with pytest.raises(InvalidRequest, match="has a create time"):
        move_of(cluster, Target(time_ms=time_ms, clock=ClockName.APPEND))


def test_stamp_is_sought_across_gaps() -> None:
    cluster = cluster_at(3)
    cluster.logs[FLIGHTS_0].records = [record(0, 100), record(90, 300)]
    cluster.logs[FLIGHTS_0].end = 91
    cluster.stamp(FLIGHTS_0, first=90)
    with pytest.raises(InvalidRequest, match="offset 0 has a create time"):
        move_of(cluster, Target(time_ms=200, clock=ClockName.APPEND))


def test_partitions_of_a_group_include_those_it_never_committed() -> None:
    cluster = cluster_at(1, 100).with_log(FLIGHTS_1, 100)
    assert group_rewind.chosen_partitions(cluster, GROUP, []) == [FLIGHTS_0, FLIGHTS_1]
    assert group_rewind.chosen_partitions(cluster, GROUP, [("flights", 1)]) == [FLIGHTS_1]


def test_an_unknown_topic_partition_or_group_is_an_error() -> None:
    cluster = cluster_at(1, 100)
    with pytest.raises(UnknownTopic):
        group_rewind.chosen_partitions(cluster, GROUP, [("ships", None)])
    with pytest.raises(UnknownTopic, match="only partition 0, not 7"):
        group_rewind.chosen_partitions(cluster, GROUP, [("flights", 7)])
    with pytest.raises(UnknownGroup, match=r"^ships$"):  # the cluster's own error
        group_rewind.chosen_partitions(cluster, "ships", [])
    cluster.put("ships", {})
    with pytest.raises(UnknownGroup, match="group ships has no committed offsets; give --topic"):
        group_rewind.chosen_partitions(cluster, "ships", [])


def test_execute_commits_changes_alone() -> None:
    cluster = cluster_at(2, 100, 200).with_log(FLIGHTS_1, 10)
    cluster.put(GROUP, {FLIGHTS_1: 1})
    target = Target(time_ms=200)
    group_rewind.execute(
        cluster, GROUP, group_rewind.plan(cluster, GROUP, [FLIGHTS_0, FLIGHTS_1], target)
    )
    assert cluster.offsets[GROUP] == {FLIGHTS_0: Committed(1, 0), FLIGHTS_1: Committed(1)}


def test_execute_is_refused_while_members_are_active() -> None:
    cluster = cluster_at(2, 100, 200)
    cluster.members[GROUP] = [Member("m-1", "radar", "/10.0.0.7")]
    moves = group_rewind.plan(cluster, GROUP, [FLIGHTS_0], Target(time_ms=200))
    with pytest.raises(GroupActive, match=r"radar at /10\.0\.0\.7; stop them first"):
        group_rewind.execute(cluster, GROUP, moves)
    assert cluster.offsets[GROUP] == {FLIGHTS_0: Committed(2)}


def test_execute_creates_a_missing_group() -> None:
    cluster = cluster_at(None, 100, 200)
    group_rewind.execute(
        cluster, GROUP, group_rewind.plan(cluster, GROUP, [FLIGHTS_0], Target(time_ms=200))
    )
    assert cluster.offsets[GROUP] == {FLIGHTS_0: Committed(1, 0)}
