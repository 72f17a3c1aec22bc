"""A start by the mirror's offset map repeats fewer records than the fallback, a start by time."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.worlds.clusters.mirrored import MemoryMirror
from tests.worlds.clusters.two_clusters import APPEND, CREATE, MemoryCluster, watched

from tidelog.env import Env, ManualClock
from tidelog.jobs.failover.job import FailoverPlan, FailoverRequest, plan_failover, topics_on_b
from tidelog.jobs.failover.measure import TooFewRecords
from tidelog.jobs.failover.rules import PartitionMapping, Start, StartKind
from tidelog.jobs.failover.verify import Spill, Verdict, verify
from tidelog.jobs.offset_map import CopiedRange, OffsetMap, Partitioning, SourcePartition
from tidelog.types import TimestampType, TopicPartition

GROUP = "billing"
NOW = 10_000_000
A0, A1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
B0 = TopicPartition("copy", 0)


def cluster_with_records(
    partitions: int = 1, count: int = 100, topic: str = "orders"
) -> MemoryCluster:
    a = MemoryCluster("a:1").create(topic, partitions)
    for number in range(count):
        at = TopicPartition(topic, number % partitions)
        a.append(at, 1_000 + 7 * number, key=b"k%d" % (number % 13), value=b"%d" % number)
    return a


def mirrored(a: MemoryCluster, **more: object) -> MemoryMirror:
    b = MemoryCluster("b:1").create("copy", int(str(more.pop("partitions", 1))))
    for _ in range(5):  # earlier records on B shift the offsets of copies
        b.append(B0, 1, key=b"old", value=b"old")
    options: dict[str, object] = {"topics": ("orders",), "target": "copy"} | more
    return MemoryMirror(a, b, **options)  # type: ignore[arg-type] # options by name


def planned(mirror: MemoryMirror, found: OffsetMap | None = None, **more: object) -> FailoverPlan:
    asked: dict[str, object] = {
        "group": GROUP,
        "latency_ms": 200,
        "offset_map": found or mirror.map,
    } | more
    request = FailoverRequest(**asked)  # type: ignore[arg-type] # options by name
    a = None if more.get("at_ms") and "topics" in more else watched("A", mirror.a)
    return plan_failover(a, watched("B", mirror.b), request, ManualClock(NOW))


def only(plan: FailoverPlan) -> Start:
    (start,) = plan.starts
    return start


class TestTighter:
    def test_the_start_is_exact_at_any_latency(self) -> None:
        mirror = mirrored(cluster_with_records())
        mirror.run(5_000)
        mirror.a.commit_at(GROUP, A0, 42)
        plan = planned(mirror)
        assert only(plan).offset == 47
        assert only(plan).kind is StartKind.MAP
        assert (
            only(plan).reason
            == "by the mirror's map, offset 42 of orders-0 on A was copied to this offset"
        )
        assert plan.position_of(B0) == 42
        assert plan.is_by_map

    def test_the_start_by_time_is_earlier_than_by_the_map(self) -> None:
        mirror = mirrored(cluster_with_records())
        mirror.run(5_000)
        mirror.a.commit_at(GROUP, A0, 42)
        mirror.b.create("orders")
        by_map = only(planned(mirror))
        mirror.target = "orders"
        blind = replace(mirror.map, target_ids={"copy": "someone-else"})
        by_time = only(planned(mirror, blind))
        assert by_time.kind is StartKind.TIME
        assert by_time.offset < by_map.offset
        assert "the map was not used: the map is of another topic copy on B" in by_time.reason

    def test_no_latency_is_measured_if_the_map_has_all_starts(self) -> None:
        mirror = mirrored(cluster_with_records())
        mirror.run(5_000)
        mirror.a.commit_at(GROUP, A0, 42)
        assert only(planned(mirror, latency_ms=None)).offset == 47

    def test_a_partition_without_a_commit_needs_no_latency(self) -> None:
        mirror = mirrored(cluster_with_records(2), partitions=2)
        mirror.run(5_000)
        mirror.a.commit_at(GROUP, A0, 20)
        plan = planned(mirror, latency_ms=None)
        assert [start.kind for start in plan.starts] == [StartKind.MAP, StartKind.BEGINNING]
        assert plan.starts[1].reason == "the group has committed nothing for orders-1 on A"
        assert not plan.has_margin

    def test_deleted_records_of_a_partition_without_a_commit_may_be_on_b(self) -> None:
        """The group has not consumed them, so its start can't be the end of the partition on B."""
        mirror = mirrored(cluster_with_records(2), partitions=2)
        mirror.run(5_000)
        mirror.a.commit_at(GROUP, A0, 20)
        mirror.a.logs[A1].clear()
        mirror.a.log_starts[A1] = mirror.a.ends[A1]
        plan = planned(mirror, latency_ms=None)
        assert [start.kind for start in plan.starts] == [StartKind.MAP, StartKind.BEGINNING]

    def test_an_error_about_the_latency_has_the_reason_why_the_map_was_not_used(self) -> None:
        mirror = mirrored(cluster_with_records(2), partitions=2)
        mirror.run(5_000)
        mirror.a.commit_at(GROUP, A0, 20)
        mirror.a.commit_at(GROUP, A1, 30)
        mirror.a.ends[A1] = 40
        mirror.a.logs[A1] = mirror.a.logs[A1][:40]
        with pytest.raises(TooFewRecords) as caught:
            planned(mirror, latency_ms=None)
        assert str(caught.value).endswith(
            "give --max-latency; a latency is needed for copy-1 on B, because the map was not"
            " used: orders-1 ends at offset 40 on A, but the mirror has read up to offset 50"
        )

    def test_failback_uses_a_mirror_that_began_at_the_end(self) -> None:
        """As in the drill of docs/failover.md, only records written to B later are copied to A."""
        a = cluster_with_records()
        there = mirrored(a, topics=("orders",))
        there.run(5_000)
        b = there.b
        back = MemoryMirror(b, a, ("copy",), "orders")
        end = CopiedRange(b.ends[B0], b.ends[B0])
        back.map = replace(back.map, copied={SourcePartition(0, 0): end})
        for number in range(10):
            b.append(B0, 6_000 + number, value=b"new %d" % number)
        b.commit_at(GROUP, B0, b.ends[B0] - 3)
        back.run(7_000)
        assert [record.value for record in a.logs[A0]][100:] == [b"new %d" % n for n in range(10)]
        plan = planned(back, latency_ms=None)
        assert (only(plan).offset, only(plan).kind) == (107, StartKind.MAP)

    @pytest.mark.parametrize("has_new_records", [False, True])
    def test_a_transaction_marker_before_the_mirrors_begin_is_no_record(
        self, has_new_records: bool
    ) -> None:
        """The group's position is the offset of a marker; the mirror began after the marker."""
        mirror = self.after_a_gap(has_new_records=has_new_records)
        plan = planned(mirror, latency_ms=None)
        assert (only(plan).offset, only(plan).kind) == (5, StartKind.MAP)

    def test_a_record_before_the_mirrors_begin_is_searched_by_time(self) -> None:
        mirror = self.after_a_gap(unread=1)
        start = only(planned(mirror))
        assert start.kind is not StartKind.MAP
        assert "began at offset 101 of orders-0, which is after offset 99" in start.reason

    def test_deleted_offsets_before_the_mirrors_begin_may_have_been_records(self) -> None:
        mirror = self.after_a_gap()
        mirror.a.delete_before(A0, 101)
        start = only(planned(mirror))
        assert start.kind is not StartKind.MAP
        assert "began at offset 101 of orders-0, which is after offset 100" in start.reason

    def after_a_gap(self, *, unread: int = 0, has_new_records: bool = True) -> MemoryMirror:
        """Return a mirror that began at the log end, after the marker at offset 100 of A."""
        a = cluster_with_records()
        a.skip(A0)
        mirror = mirrored(a)
        end = CopiedRange(a.ends[A0], a.ends[A0])
        mirror.map = replace(mirror.map, copied={SourcePartition(0, 0): end})
        if has_new_records:
            a.append(A0, 6_000, value=b"new")
            mirror.run(7_000)
        a.commit_at(GROUP, A0, 100 - unread)
        return mirror

    def test_records_not_copied_yet_are_read_from_the_end_on(self) -> None:
        mirror = mirrored(cluster_with_records())
        mirror.run(5_000, records_max=30)
        mirror.a.commit_at(GROUP, A0, 42)
        assert only(planned(mirror)).offset == 35
        assert "has copied no unconsumed record to this partition" in only(planned(mirror)).reason

    def test_re_partitioned_the_earliest_of_all_partitions(self) -> None:
        mirror = mirrored(cluster_with_records(2), partitions=3, partitioning=Partitioning.KEY)
        mirror.run(5_000, rows=1)
        mirror.a.commit_at(GROUP, A0, 20)
        mirror.a.commit_at(GROUP, A1, 30)
        plan = planned(mirror)
        unread = {
            record.value
            for place, offset in ((A0, 20), (A1, 30))
            for record in mirror.a.logs[place]
            if record.offset >= offset
        }
        for start in plan.starts:
            wanted = [r.offset for r in mirror.b.logs[start.partition] if r.value in unread]
            assert start.offset == min(wanted)
        assert plan.mapped["copy"].mapping is PartitionMapping.MAP
        assert plan.position_of(B0) == 20  # the smaller of the two committed offsets

    def test_several_topics_in_one(self) -> None:
        a = cluster_with_records()
        a.create("bills")
        for number in range(10):
            a.append(TopicPartition("bills", 0), 1_000 + number, value=b"b%d" % number)
        mirror = mirrored(a, topics=("orders", "bills"))
        mirror.run(5_000)
        a.commit_at(GROUP, A0, 100)
        a.commit_at(GROUP, TopicPartition("bills", 0), 4)
        start = only(planned(mirror))
        assert mirror.b.logs[B0][start.offset].value == b"b4"

    def test_a_topic_with_several_targets_keeps_its_name_on_b(self) -> None:
        found = mirrored(cluster_with_records()).map
        assert topics_on_b(None, ["orders"]) == {"orders": ("orders",)}
        assert topics_on_b(found, ["orders", "bills"]) == {
            "copy": ("orders",),
            "bills": ("bills",),
        }
        (source,) = found.sources
        same = replace(found, sources=(source, replace(source, place="a:2")))
        assert topics_on_b(same, ["orders"]) == {"copy": ("orders",)}
        others = replace(found, sources=(source, replace(source, target="other")))
        assert topics_on_b(others, ["orders"]) == {"orders": ("orders",)}

    def test_records_deleted_unread_at_the_source_are_read_at_the_target(self) -> None:
        mirror = mirrored(cluster_with_records())
        mirror.run(5_000)
        mirror.a.delete_before(A0, 60)
        mirror.a.commit_at(GROUP, A0, 42)
        assert only(planned(mirror)).offset == 47

    def test_records_deleted_on_b_move_the_start_and_are_in_the_reason(self) -> None:
        mirror = mirrored(cluster_with_records())
        mirror.run(5_000)
        mirror.b.delete_before(B0, 60)
        mirror.a.commit_at(GROUP, A0, 42)
        assert only(planned(mirror)).offset == 60
        assert "B has deleted all records before offset 60" in only(planned(mirror)).reason


class TestByTime:
    def test_without_a_the_arrival_counts_and_no_latency(self) -> None:
        mirror = mirrored(cluster_with_records(), topics=("orders",))
        for turn in range(10):
            mirror.run(5_000 + 100 * turn, records_max=10)
        plan = planned(mirror, at_ms=5_250, topics=("orders",))
        assert only(plan).offset == 5 + 30
        earlier = planned(mirror, at_ms=5_250, topics=("orders",), skew_ms=60)
        assert only(earlier).offset == 5 + 20
        at_an_arrival = planned(mirror, at_ms=5_300, topics=("orders",))
        assert only(at_an_arrival).offset == 5 + 30
        assert only(plan).kind is StartKind.MAP


class TestRefusals:
    def refused(self, mirror: MemoryMirror, found: OffsetMap | None = None) -> str:
        start = only(planned(mirror, found))
        assert start.kind is not StartKind.MAP
        before, said, why = start.reason.partition("; the map was not used: ")
        assert said, before
        return why

    def ready(self, position: int = 42) -> MemoryMirror:
        mirror = mirrored(cluster_with_records())
        mirror.run(5_000)
        mirror.a.commit_at(GROUP, A0, position)
        return mirror

    def test_a_map_that_begins_after_the_groups_position_is_not_used(self) -> None:
        a = cluster_with_records()
        a.log_starts[A0] = 50
        mirror = mirrored(a)
        a.log_starts[A0] = 0
        mirror.a.commit_at(GROUP, A0, 42)
        assert "began at offset 50 of orders-0, which is after offset 42" in self.refused(mirror)

    def test_a_map_is_refused_if_b_has_lost_copies(self) -> None:
        mirror = self.ready()
        mirror.b.ends[B0] = 80
        mirror.b.logs[B0] = mirror.b.logs[B0][:80]
        assert (
            "copy-0 ends at offset 80 on B, but the mirror has written up to offset 105"
            in self.refused(mirror)
        )

    def test_cluster_a_was_truncated_since(self) -> None:
        mirror = self.ready()
        mirror.a.ends[A0] = 70
        mirror.a.logs[A0] = mirror.a.logs[A0][:70]
        assert "ends at offset 70 on A, but the mirror has read up to offset 100" in self.refused(
            mirror
        )

    def test_the_position_is_after_the_end(self) -> None:
        """The lookup in the map and the search by time fail for one reason, which is shown once."""
        start = only(planned(self.ready(400)))
        assert start.kind is StartKind.BEGINNING
        assert start.reason == (
            "orders-0: the committed offset 400 is above A's log end offset 100"
        )

    def test_a_map_of_another_topic_of_the_name_is_refused(self) -> None:
        mirror = self.ready()
        (source,) = mirror.map.sources
        other = replace(mirror.map, sources=(replace(source, topic_id="gone"),))
        assert "another topic orders: id gone, not id-of-orders" in self.refused(mirror, other)

    def test_only_partitions_outside_the_map_start_by_time(self) -> None:
        a = cluster_with_records(2)
        mirror = mirrored(a, partitions=2)
        mirror.run(5_000)
        a.commit_at(GROUP, A0, 10)
        plan = planned(mirror)
        assert [start.kind for start in plan.starts] == [StartKind.MAP, StartKind.BEGINNING]
        assert "committed nothing for orders-1 on A" in plan.starts[1].reason


class TestVerified:
    @pytest.mark.parametrize("kind", [CREATE, APPEND])
    def test_the_starts_of_a_map_miss_and_repeat_no_record(
        self, kind: TimestampType, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        mirror = self.run_mirror(kind)
        (verdict,) = self.verdicts(mirror, tmp_path_factory.mktemp("v"))
        assert (verdict.missed, verdict.absent, verdict.duplicates) == (0, 0, 0)
        assert verdict.unconsumed == 58

    def test_wrong_offsets_of_a_map_are_reported(
        self, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        mirror = self.run_mirror(CREATE)
        rows = [row._replace(target_start=row.target_start + 9) for row in mirror.map.rows]
        mirror.map = replace(mirror.map, rows=tuple(rows))
        (verdict,) = self.verdicts(mirror, tmp_path_factory.mktemp("v"))
        assert verdict.missed == 9

    def run_mirror(self, kind: TimestampType) -> MemoryMirror:
        mirror = mirrored(cluster_with_records())
        mirror.b.settings["copy"] = {"message.timestamp.type": kind.config_name}
        for turn in range(4):
            mirror.run(5_000 + turn, records_max=25)
        mirror.a.commit_at(GROUP, A0, 42)
        return mirror

    def verdicts(self, mirror: MemoryMirror, folder: Path) -> list[Verdict]:
        spill = Spill(Env(), str(folder / "spill"))
        return verify(mirror.a, mirror.b, planned(mirror), spill)
