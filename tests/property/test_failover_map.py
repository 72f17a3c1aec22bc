"""A failover by a mirror's map misses no record, for any copies and any position of a group.

`verify` confirms this.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.clusters.mirrored import MemoryMirror
from tests.worlds.clusters.two_clusters import APPEND, CREATE, MemoryCluster, watched

from tidelog.env import Env, ManualClock
from tidelog.jobs.failover.job import FailoverPlan, FailoverRequest, plan_failover
from tidelog.jobs.failover.rules import StartKind
from tidelog.jobs.failover.verify import Spill, verify
from tidelog.jobs.offset_map import Partitioning
from tidelog.types import TopicPartition

GROUP, TOPIC, NOW = "billing", "orders", 1_000_000


@st.composite
def mirrors(draw: st.DrawFn) -> MemoryMirror:
    """Draw a mirror from cluster A to B. A's offsets have gaps; B had records before the copies."""
    count = draw(st.integers(1, 3))
    partitioning = draw(st.sampled_from([Partitioning.KEPT, Partitioning.KEY]))
    on_b = count if partitioning is Partitioning.KEPT else draw(st.integers(1, 3))
    a = MemoryCluster("a:1").create(TOPIC, count)
    b = MemoryCluster("b:1").create("copy", on_b, draw(st.sampled_from([CREATE, APPEND])))
    for partition in b.partitions("copy"):
        for _ in range(draw(st.integers(0, 3))):
            b.append(partition, 1, b"old", b"old")
    mirror = MemoryMirror(a, b, (TOPIC,), "copy", partitioning)
    number, now = 0, 1_000
    for _ in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 12))):
            partition = TopicPartition(TOPIC, draw(st.integers(0, count - 1)))
            a.skip(partition, draw(st.sampled_from([0, 0, 0, 1])))
            created = now - draw(st.integers(0, 300))
            a.append(partition, created, b"k%d" % draw(st.integers(0, 5)), b"%d" % number)
            number, now = number + 1, now + draw(st.integers(0, 50))
        rows = draw(st.integers(1, 6))
        mirror.run(now + draw(st.integers(0, 50)), draw(st.integers(1, 12)), rows)
    for partition in a.partitions(TOPIC):
        a.commit_at(GROUP, partition, draw(st.integers(0, a.ends[partition])))
    return mirror


def _plan(mirror: MemoryMirror) -> FailoverPlan:
    request = FailoverRequest(group=GROUP, latency_ms=300, offset_map=mirror.map)
    return plan_failover(watched("A", mirror.a), watched("B", mirror.b), request, ManualClock(NOW))


@given(mirror=mirrors())
def test_nothing_is_missed(mirror: MemoryMirror, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = _plan(mirror)
    assert {start.kind for start in plan.starts} == {StartKind.MAP}
    unread = {
        record.value
        for partition, committed in mirror.a.offsets[GROUP].items()
        for record in mirror.a.logs[partition]
        if record.offset >= committed.offset
    }
    before = {
        record.value
        for start in plan.starts
        for record in mirror.b.logs[start.partition]
        if record.offset < start.offset
    }
    assert not unread & before
    folder = tmp_path_factory.getbasetemp()
    (verdict,) = verify(mirror.a, mirror.b, plan, Spill(Env(), str(folder / "spill")))
    assert verdict.missed == 0


@given(mirror=mirrors())
def test_records_copied_later_are_after_every_start(mirror: MemoryMirror) -> None:
    plan = _plan(mirror)
    ends = dict(mirror.b.ends)
    mirror.run(NOW)
    for start in plan.starts:
        assert start.offset <= ends[start.partition]


@given(mirror=mirrors())
def test_one_partition_kept_and_without_gaps_repeats_no_record(mirror: MemoryMirror) -> None:
    dense = all(row.is_dense for row in mirror.map.rows)
    if mirror.map.partitioning is not Partitioning.KEPT or not dense:
        return
    for start in _plan(mirror).starts:
        place = TopicPartition(TOPIC, start.partition.partition)
        position = mirror.a.offsets[GROUP][place].offset
        consumed = {r.value for r in mirror.a.logs[place] if r.offset < position}
        after = mirror.b.logs[start.partition]
        assert not consumed & {r.value for r in after if r.offset >= start.offset}
