"""A group's positions on A become times, and these become start offsets on B."""

from collections.abc import Mapping

import pytest
from tests.worlds.clusters.two_clusters import (
    APPEND,
    CREATE,
    MemoryCluster,
    MemoryTail,
    Sent,
    fill,
    watched,
)

from tidelog.env import ManualClock
from tidelog.errors import GroupActive, InvalidRequest, UnknownGroup, UnknownTopic
from tidelog.jobs.failover.job import FailoverPlan, FailoverRequest, execute, plan_failover
from tidelog.jobs.failover.measure import TooFewRecords
from tidelog.jobs.failover.rules import (
    Margin,
    PartitionMapping,
    Reference,
    Start,
    StartKind,
    read_references,
    search_time,
)
from tidelog.remote.time_lookup import last_record_below
from tidelog.remote.view import Committed, Member
from tidelog.types import (
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TimestampType,
    TopicPartition,
)

GROUP, TOPIC = "billing", "orders"
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
NOW = 10_000_000


def pair(
    on_a: TimestampType = CREATE, on_b: TimestampType = CREATE, partitions: int = 1
) -> tuple[MemoryCluster, MemoryCluster]:
    a = MemoryCluster("a:1").create(TOPIC, partitions, on_a)
    return a, MemoryCluster("b:1").create(TOPIC, partitions, on_b)


def planned(a: MemoryCluster, b: MemoryCluster, **more: object) -> FailoverPlan:
    asked: dict[str, object] = {"group": GROUP, "latency_ms": 0} | more
    request = FailoverRequest(**asked)  # type: ignore[arg-type] # options by name
    return plan_failover(watched("A", a), watched("B", b), request, ManualClock(NOW))


def start_of(plan: FailoverPlan, partition: TopicPartition = P0) -> Start:
    (found,) = (start for start in plan.starts if start.partition == partition)
    return found


def append_all(cluster: MemoryCluster, *times: int, partition: TopicPartition = P0) -> None:
    for time_ms in times:
        cluster.append(partition, time_ms, key=b"%d" % time_ms, value=b"%d" % time_ms)


class TestSearchTime:
    margin = Margin(latency_ms=120, skew_ms=30)

    def test_a_create_time_allows_for_skew_on_both_sides(self) -> None:
        reference = Reference(time_ms=1_000)
        assert search_time([reference], self.margin, now_ms=NOW) == 1_000 - 120 - 2 * 30

    def test_an_append_time_needs_no_skew_on_a(self) -> None:
        reference = Reference(time_ms=1_000, clock=ClockName.APPEND)
        assert search_time([reference], self.margin, now_ms=NOW) == 1_000 - 120 - 30

    def test_the_search_time_is_based_on_the_earliest_reference(self) -> None:
        references = [Reference(time_ms=ms, clock=ClockName.APPEND) for ms in (3_000, 2_000)]
        assert search_time(references, Margin(latency_ms=100), now_ms=NOW) == 1_900

    def test_one_unknown_reference_makes_the_search_time_unknown(self) -> None:
        references = [Reference(time_ms=3_000), Reference(time_ms=None)]
        assert search_time(references, self.margin, now_ms=NOW) is None

    def test_a_partition_that_never_had_a_record_does_not_affect_the_search_time(self) -> None:
        bare = Reference(time_ms=None, is_bare=True)
        assert search_time([bare, Reference(time_ms=3_000)], self.margin, now_ms=NOW) == 2_820
        assert search_time([bare], self.margin, now_ms=NOW) is None

    def test_no_time_before_the_epoch_is_searched(self) -> None:
        assert search_time([Reference(time_ms=100)], self.margin, now_ms=NOW) == 0

    def test_a_record_from_the_future_proves_that_the_stated_skew_is_wrong(self) -> None:
        reference = Reference(time_ms=NOW + 600_000)
        assert search_time([reference], self.margin, now_ms=NOW) is None
        wide = Margin(latency_ms=0, skew_ms=600_000)
        assert search_time([reference], wide, now_ms=NOW) == NOW - 2 * 600_000

    def test_clocks_a_little_apart_are_no_future(self) -> None:
        reference = Reference(time_ms=NOW + 50)
        assert search_time([reference], Margin(latency_ms=0), now_ms=NOW) == NOW


class TestReferences:
    def test_the_earlier_of_the_two_records_beside_the_position(self) -> None:
        a, _ = pair()
        append_all(a, 100, 900, 300)
        found = read_references(a, {P0: Committed(2)})[P0]
        assert (found.time_ms, found.clock) == (300, ClockName.RECORD)
        assert "at offset 2 on A" in found.reason

    def test_one_clock_far_ahead_does_no_harm(self) -> None:
        a, _ = pair()
        append_all(a, 100, 200, NOW * 2)
        assert read_references(a, {P0: Committed(2)})[P0].time_ms == 200

    def test_an_append_time_is_taken_as_it_is(self) -> None:
        a, _ = pair(on_a=APPEND)
        append_all(a, 100, 200, 300)
        found = read_references(a, {P0: Committed(1)})[P0]
        assert (found.time_ms, found.clock) == (200, ClockName.APPEND)

    def test_at_the_end_the_last_record_is_the_reference(self) -> None:
        a, _ = pair(on_a=APPEND)
        append_all(a, 100, 200)
        a.skip(P0, 500)
        assert read_references(a, {P0: Committed(502)})[P0].time_ms == 200

    def test_offsets_without_records_are_skipped(self) -> None:
        a, _ = pair(on_a=APPEND)
        append_all(a, 100)
        a.skip(P0, 3)
        append_all(a, 200)
        assert read_references(a, {P0: Committed(2)})[P0].time_ms == 200
        last = last_record_below(a, P0, 0, 4)
        assert last is not None
        assert last.offset == 0

    @pytest.mark.parametrize(
        ("committed", "reason"),
        [
            (None, "the group has committed nothing for {} on A"),
            (
                Committed(1),
                (
                    "{}: records from offset 1 to before offset 2 were deleted on A before the"
                    " group read them"
                ),
            ),
            (Committed(9), "{}: the committed offset 9 is above A's log end offset 3"),
        ],
    )
    def test_an_unknown_time_of_the_position_has_a_reason(
        self, committed: Committed | None, reason: str
    ) -> None:
        a, _ = pair()
        append_all(a, 100, 200, 300)
        a.delete_before(P0, 2)
        found = read_references(a, {P0: committed})[P0]
        assert (found.time_ms, found.is_bare, found.reason) == (
            None,
            False,
            reason.format(P0),
        )

    def test_an_emptied_log_has_no_reference_time_and_is_not_bare(self) -> None:
        a, _ = pair()
        append_all(a, 100)
        a.delete_before(P0, 1)
        found = read_references(a, {P0: Committed(1)})[P0]
        assert (found.time_ms, found.is_bare) == (None, False)

    def test_records_without_timestamps_give_no_reference(self) -> None:
        a, _ = pair()
        a.append(P0, None)
        assert "timestamp" in read_references(a, {P0: Committed(0)})[P0].reason

    def test_a_partition_that_never_had_a_record_is_bare(self) -> None:
        a, _ = pair()
        assert read_references(a, {P0: None})[P0].is_bare


class TestReordering:
    """KIP-33: m1 is created before m2. m1 arrives after m2 in cluster A, before m2 in cluster B."""

    m1 = Sent(1, 1_000, to_a_ms=400, to_b_ms=10)
    m2 = Sent(2, 1_100, to_a_ms=10, to_b_ms=20)
    others = tuple(Sent(n, 100 * n, 5, 5) for n in (*range(3, 9), *range(12, 15), *range(16, 20)))

    @pytest.mark.parametrize("on_a", [CREATE, APPEND])
    @pytest.mark.parametrize("on_b", [CREATE, APPEND])
    def test_the_latest_of_the_latencies_keeps_m1(
        self, on_a: TimestampType, on_b: TimestampType
    ) -> None:
        a, b = pair(on_a, on_b)
        fill(a, TOPIC, [self.m1, self.m2, *self.others], to="a")
        fill(b, TOPIC, [self.m1, self.m2, *self.others], to="b")
        after_m2 = next(r.offset for r in a.logs[P0] if r.value == b"2") + 1
        a.commit_at(GROUP, P0, after_m2)
        place_of_m1 = next(r.offset for r in b.logs[P0] if r.value == b"1")
        assert start_of(planned(a, b)).offset > place_of_m1, "the time alone skips m1"
        assert start_of(planned(a, b, latency_ms=400)).offset <= place_of_m1


class TestTightness:
    """With the exact latency and skew, the start is at `late`; 1 ms less of either skips `late`."""

    consumed = Sent(1, 1_030, to_a_ms=-30, to_b_ms=0)
    beside = Sent(2, 1_030, to_a_ms=-30, to_b_ms=0)
    late = Sent(3, 900, to_a_ms=100, to_b_ms=-30)

    @pytest.mark.parametrize("on_a", [CREATE, APPEND])
    @pytest.mark.parametrize(
        ("latency_ms", "skew_ms", "offset"), [(100, 30, 0), (99, 30, 1), (100, 29, 1)]
    )
    def test_one_ms_less_misses_a_record(
        self, on_a: TimestampType, latency_ms: int, skew_ms: int, offset: int
    ) -> None:
        a, b = pair(on_a, APPEND)
        for cluster, name in ((a, "a"), (b, "b")):
            fill(cluster, TOPIC, [self.consumed, self.beside, self.late], to=name)
        a.commit_at(GROUP, P0, 1)
        plan = planned(a, b, latency_ms=latency_ms, skew_ms=skew_ms)
        assert b.logs[P0][0].value == b"3"
        assert start_of(plan).offset == offset


class TestStarts:
    def test_the_start_is_the_first_record_at_or_after_the_time(self) -> None:
        a, b = pair()
        append_all(a, 100, 200, 300)
        append_all(b, 50, 300, 100, 200)
        a.commit_at(GROUP, P0, 1)
        start = start_of(planned(a, b))
        assert (start.offset, start.time_ms, start.search_ms) == (1, 300, 100)
        assert start.kind is StartKind.TIME

    def test_a_partition_starts_at_the_end_if_all_records_are_earlier(self) -> None:
        a, b = pair()
        append_all(a, 500)
        append_all(b, 100)
        a.commit_at(GROUP, P0, 1)
        start = start_of(planned(a, b))
        assert (start.offset, start.kind) == (1, StartKind.END)

    def test_a_partition_starts_at_the_beginning_if_b_finds_no_record_but_has_later_ones(
        self,
    ) -> None:
        a, b = pair()
        append_all(a, 100)
        append_all(b, 50, 100)
        b.blind.add(P0)
        a.commit_at(GROUP, P0, 0)
        start = start_of(planned(a, b))
        assert (start.offset, start.kind) == (0, StartKind.BEGINNING)
        assert "although later records exist" in start.reason

    def test_a_partition_starts_at_the_end_if_b_finds_no_record_by_append_time(self) -> None:
        """All of B's records were appended before the search time; one was created after it."""
        a, b = pair()
        append_all(a, 1_000)
        append_all(b, 1_000, 2_000)
        b.settings[TOPIC]["tidelog.lookup.clock"] = "append"
        b.blind.add(P0)
        a.commit_at(GROUP, P0, 0)
        start = start_of(planned(a, b))
        assert (start.offset, start.kind) == (2, StartKind.END)

    def test_records_appended_during_the_search_are_after_the_start(self) -> None:
        class BusyCluster(MemoryCluster):
            """Cluster to which a record with an early time is appended after each search."""

            def offsets_for_times(
                self,
                times: Mapping[TopicPartition, int],
                *,
                isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
            ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
                found = super().offsets_for_times(times, isolation=isolation)
                append_all(self, 200)
                return found

        a, _ = pair()
        b = BusyCluster("b:1").create(TOPIC)
        append_all(a, 500)
        append_all(b, 100)
        a.commit_at(GROUP, P0, 1)
        start = start_of(planned(a, b))
        assert (start.offset, start.kind) == (1, StartKind.END)
        assert b.ends[P0] > 1

    def test_a_partition_without_a_commit_starts_at_the_beginning(self) -> None:
        a, b = pair(partitions=2)
        append_all(a, 100, 200)
        append_all(a, 100, 200, partition=P1)
        append_all(b, 100, 200)
        append_all(b, 100, 200, partition=P1)
        a.commit_at(GROUP, P0, 1)
        plan = planned(a, b, mapping=PartitionMapping.SAME)
        assert start_of(plan, P0).kind is StartKind.TIME
        assert start_of(plan, P1).kind is StartKind.BEGINNING
        assert start_of(plan, P1).reason == f"the group has committed nothing for {P1} on A"

    def test_records_deleted_on_b_are_in_the_reason(self) -> None:
        a, b = pair()
        append_all(a, 100, 200)
        append_all(b, 100, 200)
        b.delete_before(P0, 1)
        a.commit_at(GROUP, P0, 0)
        start = start_of(planned(a, b))
        assert start.offset == 1
        assert "B has deleted all records before offset 1" in start.reason

    def test_a_stated_time_needs_neither_positions_nor_a(self) -> None:
        _, b = pair(partitions=2)
        append_all(b, 100, 200, 300)
        append_all(b, 250, partition=P1)
        request = FailoverRequest(group=GROUP, topics=(TOPIC,), at_ms=300, latency_ms=100)
        plan = plan_failover(None, watched("B", b), request, ManualClock(NOW))
        assert [start.offset for start in plan.starts] == [1, 0]
        assert plan.positions == {}


class TestLatency:
    """The latency is measured only if the plan searches at least one start offset by time."""

    def pair_of_two(self) -> tuple[MemoryCluster, MemoryCluster]:
        a, b = pair(partitions=2)
        for cluster in (a, b):
            append_all(cluster, 100, 200)
            append_all(cluster, 100, 200, partition=P1)
        a.commit_at(GROUP, P0, 1)  # nothing is committed for P1
        return a, b

    def test_latency_is_not_measured_if_every_partition_starts_at_the_beginning(self) -> None:
        a, b = self.pair_of_two()
        plan = planned(a, b, latency_ms=None, mapping=PartitionMapping.ANY)
        assert {start.kind for start in plan.starts} == {StartKind.BEGINNING}
        assert (plan.latencies, plan.has_margin) == ((), False)

    def test_latency_is_measured_if_one_partition_is_searched(self) -> None:
        a, b = self.pair_of_two()
        with pytest.raises(TooFewRecords, match="orders on A can't be measured from 0 records"):
            planned(a, b, latency_ms=None, mapping=PartitionMapping.SAME)

    def test_other_topics_are_not_measured(self) -> None:
        a, b = self.pair_of_two()
        for cluster in (a, b):
            cluster.create("bills")
            cluster.append(TopicPartition("bills", 0), 100)
        a.commit_at(GROUP, TopicPartition("bills", 0), 1)
        tails = [MemoryTail([(TopicPartition("bills", 0), 100, 107)] * 1_000) for _ in "ab"]
        request = FailoverRequest(group=GROUP, mapping=PartitionMapping.ANY)
        clusters = watched("A", a, tails[0]), watched("B", b, tails[1])
        plan = plan_failover(*clusters, request, ManualClock(NOW))
        assert [one.topic for one in plan.latencies] == ["bills", "bills"]
        assert plan.margin.latency_ms == 7


class TestRefusals:
    def test_a_group_without_positions(self) -> None:
        a, b = pair()
        with pytest.raises(UnknownGroup, match=r"has committed nothing on a:1.*--at TIME"):
            planned(a, b)

    def test_a_topic_that_b_lacks(self) -> None:
        a, _ = pair()
        append_all(a, 100)
        a.commit_at(GROUP, P0, 0)
        with pytest.raises(UnknownTopic, match="b:2 has no topic orders"):
            planned(a, MemoryCluster("b:2").create("other"))

    def test_without_a_the_latency_has_to_be_stated(self) -> None:
        _, b = pair()
        request = FailoverRequest(group=GROUP, topics=(TOPIC,), at_ms=300)
        with pytest.raises(InvalidRequest, match="give --max-latency"):
            plan_failover(None, watched("B", b), request, ManualClock(NOW))

    def test_without_a_topics_and_time_have_to_be_stated(self) -> None:
        _, b = pair()
        request = FailoverRequest(group=GROUP, latency_ms=0, at_ms=300)
        with pytest.raises(InvalidRequest, match="--topic"):
            plan_failover(None, watched("B", b), request, ManualClock(NOW))


class TestExecute:
    def test_the_starts_are_committed(self) -> None:
        a, b = pair()
        append_all(a, 100, 200)
        append_all(b, 100, 200)
        a.commit_at(GROUP, P0, 2)
        plan = planned(a, b)
        assert b.committed(GROUP, [P0]) == {P0: None}
        execute(b, plan)
        assert b.committed(GROUP, [P0]) == {P0: Committed(1)}
        assert planned(a, b).committed == {P0: Committed(1)}

    def test_members_refuse_it(self) -> None:
        a, b = pair()
        append_all(a, 100)
        append_all(b, 100)
        a.commit_at(GROUP, P0, 0)
        b.members[GROUP] = (Member("m-1", "app-7", "/10.0.0.1"),)
        with pytest.raises(GroupActive, match=r"is active on b:1 \(app-7\); stop it first"):
            execute(b, planned(a, b))
        assert b.offsets == {}
