"""A failover misses no record if latency is within its bound; `verify` reports missed records.

Two clusters get the same records, but with different latencies, so in different orders. The group's
position, timestamp types, numbers of partitions and clock skew vary.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.worlds.clusters.two_clusters import (
    APPEND,
    CREATE,
    MemoryCluster,
    Sent,
    fill,
    watched,
)

from tidelog.env import Env, ManualClock
from tidelog.jobs.failover.job import FailoverPlan, FailoverRequest, plan_failover
from tidelog.jobs.failover.rules import PartitionMapping
from tidelog.jobs.failover.verify import Spill, Verdict, verify
from tidelog.types import TimestampType, TopicPartition

GROUP, TOPIC = "billing", "orders"
NOW = 1_000_000
START = 100_000

kinds = st.sampled_from([CREATE, APPEND])


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    a: MemoryCluster
    b: MemoryCluster
    latency_of_a_ms: int
    latency_ms: int
    skew_ms: int


@st.composite
def worlds(draw: st.DrawFn, *, latency_max: int = 500) -> World:
    """Draw clusters A and B, a group's position on A, the largest latencies, and a clock skew."""
    skew = draw(st.sampled_from([0, 0, 30, 400]))
    latency = st.integers(-skew, latency_max)
    steps = draw(st.lists(st.tuples(st.integers(0, 200), latency, latency), min_size=1))
    created, sent = START, []
    for number, (step, to_a, to_b) in enumerate(steps):
        created += step
        sent.append(Sent(number, created, to_a, to_b))
    a = _cluster(draw, "a", sent)
    b = _cluster(draw, "b", sent)
    for partition in a.partitions(TOPIC):
        a.commit_at(GROUP, partition, draw(st.integers(0, a.ends[partition])))
    lags = [lag for one in sent for lag in (one.to_a_ms, one.to_b_ms)]
    return World(
        a=a,
        b=b,
        latency_of_a_ms=max(0, *(one.to_a_ms for one in sent)),
        latency_ms=max(0, *lags),
        skew_ms=max(0, *(-lag for lag in lags)),
    )


def _cluster(draw: st.DrawFn, name: str, sent: list[Sent]) -> MemoryCluster:
    count = draw(st.integers(1, 3))
    cluster = MemoryCluster(bootstrap=f"{name}:1").create(TOPIC, count, draw(kinds))
    fill(cluster, TOPIC, sent, to=name, partition_count=count, shift=draw(st.integers(0, 2)))
    return cluster


def _plan(a: MemoryCluster, b: MemoryCluster, latency_ms: int, skew_ms: int) -> FailoverPlan:
    request = FailoverRequest(group=GROUP, latency_ms=latency_ms, skew_ms=skew_ms)
    return plan_failover(watched("A", a), watched("B", b), request, ManualClock(NOW))


def _verdict(a: MemoryCluster, b: MemoryCluster, plan: FailoverPlan, folder: Path) -> Verdict:
    (verdict,) = verify(a, b, plan, Spill(Env(), str(folder / "spill")))
    return verdict


def _values(cluster: MemoryCluster, starts: dict[TopicPartition, int]) -> set[bytes | None]:
    """Return the values of the records at or after these offsets."""
    return {
        record.value
        for partition, start in starts.items()
        for record in cluster.logs[partition]
        if record.offset >= start
    }


def _unconsumed(a: MemoryCluster) -> set[bytes | None]:
    return _values(a, {p: at.offset for p, at in a.offsets[GROUP].items()})


def _after(b: MemoryCluster, plan: FailoverPlan) -> set[bytes | None]:
    return _values(b, {start.partition: start.offset for start in plan.starts})


@given(world=worlds())
def test_no_record_is_missed_while_latency_is_within_its_bound(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    a, b = world.a, world.b
    plan = _plan(a, b, world.latency_of_a_ms, world.skew_ms)
    assert _unconsumed(a) <= _after(b, plan)
    verdict = _verdict(a, b, plan, tmp_path_factory.getbasetemp())
    assert (verdict.missed, verdict.absent) == (0, 0)


@given(world=worlds())
def test_repeats_are_counted(world: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    a, b = world.a, world.b
    plan = _plan(a, b, world.latency_ms, world.skew_ms)
    verdict = _verdict(a, b, plan, tmp_path_factory.getbasetemp())
    assert (verdict.missed, verdict.absent) == (0, 0)
    everything = _values(a, dict.fromkeys(a.logs, 0))
    assert verdict.duplicates == len(_after(b, plan) & (everything - _unconsumed(a)))
    assert verdict.only_on_b == 0


@given(world=worlds(latency_max=5_000), stated=st.integers(0, 100))
def test_verify_counts_exactly_the_records_missed_by_too_high_a_latency(
    world: World,
    stated: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    a, b = world.a, world.b
    plan = _plan(a, b, stated, 0)
    missed = _unconsumed(a) - _after(b, plan)
    verdict = _verdict(a, b, plan, tmp_path_factory.getbasetemp())
    assert (verdict.missed, verdict.absent) == (len(missed), 0)
    assert len(verdict.examples) == min(len(missed), 5)


@given(world=worlds(), gone=st.integers(1, 40))
def test_records_that_never_reached_b_are_distinguished_from_missed_ones(
    world: World,
    gone: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    a, b = world.a, world.b
    everything = _values(b, dict.fromkeys(b.logs, 0))
    for log in b.logs.values():
        log[:] = [r for r in log if r.value is not None and int(r.value) >= gone]
    left = _values(b, dict.fromkeys(b.logs, 0))
    plan = _plan(a, b, world.latency_ms, world.skew_ms)
    verdict = _verdict(a, b, plan, tmp_path_factory.getbasetemp())
    assert verdict.missed == 0
    assert verdict.absent == len(_unconsumed(a) & (everything - left))


@given(world=worlds(), gone=st.integers(1, 40), back=st.integers(0, 2_000))
def test_records_that_never_reached_a_are_counted(
    world: World, gone: int, back: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    a, b = world.a, world.b
    for log in a.logs.values():
        log[:] = [r for r in log if r.value is not None and int(r.value) >= gone]
    on_a = _values(a, dict.fromkeys(a.logs, 0))
    plan = _plan(a, b, world.latency_ms, world.skew_ms)
    folder = tmp_path_factory.getbasetemp()
    (verdict,) = verify(a, b, plan, Spill(Env(), str(folder / "spill")), look_back_ms=back)
    after = _after(b, plan)
    looked_at = {
        start.partition: first.offset
        for start in plan.starts
        if start.search_ms is not None
        and (first := b.first(start.partition, max(start.search_ms - back, 0))) is not None
    }
    assert verdict.never_on_a == len(_values(b, looked_at) - after - on_a)
    assert verdict.only_on_b == len(after - on_a)
    assert (verdict.missed, verdict.absent) == (0, 0)


@examples(50)
@given(kind=kinds, step=st.integers(1, 50), position=st.integers(0, 200))
def test_repeats_are_bounded_by_the_margin(
    kind: TimestampType, step: int, position: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without latency, a margin of L ms repeats only records sent within L ms before the offset."""
    a = MemoryCluster("a:1").create(TOPIC, 1, kind)
    b = MemoryCluster("b:1").create(TOPIC, 1, kind)
    sent = [Sent(number, START + number * step, 0, 0) for number in range(200)]
    fill(a, TOPIC, sent, to="a")
    fill(b, TOPIC, sent, to="b")
    a.commit_at(GROUP, TopicPartition(TOPIC, 0), position)
    plan = _plan(a, b, 100, 0)
    verdict = _verdict(a, b, plan, tmp_path_factory.getbasetemp())
    assert plan.mapped[TOPIC].mapping is PartitionMapping.SAME
    assert verdict.missed == 0
    # The `+ 1` is for the last consumed record, where a search by create time begins; the margin
    # does not cover it.
    assert verdict.duplicates <= 100 // step + 1
