"""Comparison of the records of two clusters around a failover."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults import seeded_env
from tests.worlds.clusters.two_clusters import APPEND, CREATE, MemoryCluster, watched

from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest
from tidelog.jobs.failover.job import FailoverPlan, FailoverRequest, plan_failover
from tidelog.jobs.failover.rules import Margin
from tidelog.jobs.failover.verify import Example, Spill, Verdict, digest_of, verify
from tidelog.remote.view import RemoteRecord
from tidelog.types import IsolationLevel, OffsetAndTimestamp, TimestampType, TopicPartition

GROUP, TOPIC = "billing", "orders"
P0 = TopicPartition(TOPIC, 0)
NOW = 10_000_000


def cluster(name: str, values: str, kind: TimestampType = CREATE) -> MemoryCluster:
    """Return a cluster that has a record for each letter.

    With CreateTime, the record with the letter a has time 100 ms, b 200 ms, and so on. With
    LogAppendTime, a record's time in ms is 10,000 plus its offset.
    """
    made = MemoryCluster(f"{name}:1").create(TOPIC, 1, kind)
    for at, letter in enumerate(values):
        created = 100 * (ord(letter) - ord("a") + 1)
        made.append(P0, created if kind is CREATE else 10_000 + at, value=letter.encode())
    return made


def plan_of(a: MemoryCluster, b: MemoryCluster, position: int, start: int) -> FailoverPlan:
    """Return a plan with `start` in place of the planned start offset."""
    a.commit_at(GROUP, P0, position)
    request = FailoverRequest(group=GROUP, latency_ms=0)
    plan = plan_failover(watched("A", a), watched("B", b), request, ManualClock(NOW))
    (found,) = plan.starts
    forced = type(found)(
        partition=P0,
        offset=start,
        time_ms=None,
        search_ms=found.search_ms,
        kind=found.kind,
        reason="",
    )
    return FailoverPlan(
        request=plan.request,
        positions=plan.positions,
        references=plan.references,
        margin=plan.margin,
        latencies=(),
        mapped=plan.mapped,
        starts=(forced,),
        committed=plan.committed,
    )


def judged(a: MemoryCluster, b: MemoryCluster, position: int, start: int, folder: Path) -> Verdict:
    (verdict,) = verify(a, b, plan_of(a, b, position, start), Spill(Env(), str(folder / "s")))
    return verdict


def counts(verdict: Verdict) -> tuple[int, int, int, int, int, int]:
    return (
        verdict.unconsumed,
        verdict.after,
        verdict.missed,
        verdict.absent,
        verdict.duplicates,
        verdict.only_on_b,
    )


@pytest.mark.parametrize(
    ("on_a", "on_b", "position", "start", "expected"),
    [
        # `expected` has these counts: unconsumed, after, missed, absent, duplicates, only on B
        ("abcdef", "abcdef", 3, 3, (3, 3, 0, 0, 0, 0)),
        ("abcdef", "abcdef", 3, 1, (3, 5, 0, 0, 2, 0)),
        ("abcdef", "abcdef", 3, 4, (3, 2, 1, 0, 0, 0)),
        ("abcdef", "dabcef", 3, 1, (3, 5, 1, 0, 3, 0)),
        ("abcdef", "abcef", 3, 3, (3, 2, 0, 1, 0, 0)),
        ("abcdef", "abcdefgh", 3, 3, (3, 5, 0, 0, 0, 2)),
        ("abcdef", "fedcba", 6, 0, (0, 6, 0, 0, 6, 0)),
        ("abcdef", "abcdef", 0, 6, (6, 0, 6, 0, 0, 0)),
        # Several equal records are counted separately.
        ("abbbc", "abbbc", 2, 2, (3, 3, 0, 0, 0, 0)),
        ("abbbc", "abbc", 2, 1, (3, 3, 0, 0, 0, 0)),
        ("abbbc", "abbc", 1, 1, (4, 3, 0, 1, 0, 0)),
        ("abbbc", "bbabc", 1, 3, (4, 2, 2, 0, 0, 0)),
        ("", "", 0, 0, (0, 0, 0, 0, 0, 0)),
    ],
)
@pytest.mark.parametrize("kinds", [(CREATE, CREATE), (APPEND, APPEND), (CREATE, APPEND)])
def test_records_are_counted_by_their_positions_on_both_sides(
    on_a: str,
    on_b: str,
    position: int,
    start: int,
    expected: tuple[int, ...],
    kinds: tuple[TimestampType, TimestampType],
    tmp_path: Path,
) -> None:
    a, b = cluster("a", on_a, kinds[0]), cluster("b", on_b, kinds[1])
    verdict = judged(a, b, position, start, tmp_path)
    if verdict.by_time:
        assert counts(verdict) == expected
    else:
        # If a cluster has no create times, A is read back only to the earliest time seen on B,
        # minus the margin (0 here). So the counts of duplicates and of records only on B may be
        # wrong.
        assert counts(verdict)[:4] == expected[:4]
    assert verdict.by_time == (kinds == (CREATE, CREATE))


class ByAppendTime(MemoryCluster):
    """A cluster whose brokers search by append time, whatever the create times are."""

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {p: OffsetAndTimestamp(self.ends[p] - 1, NOW) for p in times}


def test_searches_by_append_time_exclude_no_record(tmp_path: Path) -> None:
    a, b = (ByAppendTime(f"{name}:1").create(TOPIC, 1) for name in "ab")
    for made in (a, b):
        made.settings[TOPIC]["tidelog.lookup.clock"] = "append"
        for at, letter in enumerate("abcdef"):
            made.append(P0, 100 * (at + 1), value=letter.encode())
    assert counts(judged(a, b, 3, 1, tmp_path)) == (3, 5, 0, 0, 2, 0)


def test_records_on_b_only_are_counted_as_not_consumed(tmp_path: Path) -> None:
    a, b = cluster("a", "abdf"), cluster("b", "abcdef")
    # The record at the group's position is d. The margin and the look-back are 0 ms.
    plan = plan_of(a, b, 2, 3)
    (near,) = verify(a, b, plan, Spill(Env(), str(tmp_path / "s")))
    assert (near.never_on_a, near.only_on_b) == (1, 1)
    (far,) = verify(a, b, plan, Spill(Env(), str(tmp_path / "s")), look_back_ms=10_000)
    assert (far.never_on_a, far.only_on_b, far.missed) == (1, 1, 0)
    assert far.duplicates == 0


def test_the_search_reaches_back_as_far_as_look_back(tmp_path: Path) -> None:
    a, b = cluster("a", "befgh"), cluster("b", "abcdefgh")
    plan = plan_of(a, b, 3, 6)
    found = {
        back: verify(a, b, plan, Spill(Env(), str(tmp_path / "s")), look_back_ms=back)[0].never_on_a
        for back in (0, 200, 300, 10_000)
    }
    # The search time is the create time of f, 600 ms. Only B has a, c and d, which were created
    # 500, 300 and 200 ms before f.
    assert found == {0: 0, 200: 1, 300: 2, 10_000: 3}


def test_the_default_look_back_is_the_latency_and_twice_the_skew(tmp_path: Path) -> None:
    a, b = cluster("a", "befgh"), cluster("b", "abcdefgh")
    plan = replace(plan_of(a, b, 3, 6), margin=Margin(latency_ms=100, skew_ms=100))
    (verdict,) = verify(a, b, plan, Spill(Env(), str(tmp_path / "s")))
    assert verdict.never_on_a == 2


class Strict(MemoryCluster):
    """A cluster that refuses reads beyond the log end.

    With a broker, such a read would wait for further records, and never end.
    """

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        assert end <= self.ends[partition], "a read that never ends"
        return super().records(partition, start, end, isolation=isolation)


@pytest.mark.parametrize("position", [6, 9])
def test_a_position_beyond_the_end_of_a_counts_as_the_end(tmp_path: Path, position: int) -> None:
    """A can have lost its last records after the group has committed its position."""
    a, b = (Strict(f"{name}:1").create(TOPIC, 1) for name in "ab")
    for made in (a, b):
        for at, letter in enumerate("abcdef"):
            made.append(P0, 100 * (at + 1), value=letter.encode())
    plan = plan_of(a, b, 6, 4)
    (committed,) = plan.positions.values()
    assert committed is not None
    plan = replace(plan, positions={P0: replace(committed, offset=position)})
    (verdict,) = verify(a, b, plan, Spill(Env(), str(tmp_path / "s")))
    assert counts(verdict) == (0, 2, 0, 0, 2, 0)


def test_examples_have_the_offsets_of_missed_records(tmp_path: Path) -> None:
    verdict = judged(cluster("a", "abcdef"), cluster("b", "abdecf"), 2, 4, tmp_path)
    assert verdict.missed == 2
    assert verdict.examples == (Example(P0, 2, 400), Example(P0, 3, 500))


def test_records_that_a_deleted_unread_cannot_be_compared(tmp_path: Path) -> None:
    a, b = cluster("a", "abcdef"), cluster("b", "abcdef")
    a.delete_before(P0, 4)
    assert counts(judged(a, b, 2, 2, tmp_path)) == (2, 4, 0, 0, 0, 2)


def test_without_positions_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    b = cluster("b", "abc")
    request = FailoverRequest(group=GROUP, topics=(TOPIC,), at_ms=100, latency_ms=0)
    plan = plan_failover(None, watched("B", b), request, ManualClock(NOW))
    with pytest.raises(InvalidRequest, match="--from"):
        verify(cluster("a", "abc"), b, plan, Spill(Env(), str(tmp_path / "s")))


@pytest.mark.parametrize("buffer_bytes", [1, 100])
def test_verification_with_small_buffers_has_the_same_result(
    tmp_path: Path, buffer_bytes: int
) -> None:
    a, b = cluster("a", "abcdefghij"), cluster("b", "cabdefghijk")
    plan = plan_of(a, b, 4, 2)
    folder = tmp_path / "s"
    roomy = verify(a, b, plan, Spill(Env(), str(folder)))
    assert verify(a, b, plan, Spill(Env(), str(folder), buffer_bytes)) == roomy
    assert not folder.exists()


def test_no_bytes_of_a_spill_stay_on_the_disk() -> None:
    env = seeded_env(0)
    a, b = cluster("a", "abcdefghij"), cluster("b", "cabdefghijk")
    verify(a, b, plan_of(a, b, 4, 2), Spill(env, "/spill", 100))
    assert env.files.calls > 0
    assert env.files.used_bytes() == 0


def record(
    key: bytes | None, value: bytes | None, timestamp: int | None = 5, offset: int = 0
) -> RemoteRecord:
    return RemoteRecord(
        offset=offset, timestamp=timestamp, timestamp_type=CREATE, key=key, value=value
    )


def test_a_digest_depends_on_key_value_and_time_alone() -> None:
    others = [
        record(b"ab", b"c"),
        record(b"a", b"bc"),
        record(b"abc", None),
        record(b"abc", b""),
        record(None, b"abc"),
        record(b"", b"abc"),
        record(b"ab", b"c", 6),
        record(b"ab", b"c", None),
    ]
    assert len({digest_of(other, by_time=True) for other in others}) == len(others)
    assert len({digest_of(other, by_time=False) for other in others}) == len(others) - 2
    again = record(b"ab", b"c", offset=9)
    assert digest_of(again, by_time=True) == digest_of(others[0], by_time=True)
