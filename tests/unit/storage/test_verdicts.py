"""Sentences that sum up tiers, compactions, checks and erasures: nothing, one, many, damage."""

from dataclasses import replace
from typing import cast

from tidelog.env import os_env
from tidelog.errors import StorageFailure
from tidelog.storage.checks.directory_check import DirectoryCheck, check_verdict
from tidelog.storage.checks.findings import CheckedPartition, Finding, Severity
from tidelog.storage.compaction.generations.estimates import SegmentFacts
from tidelog.storage.compaction.generations.planning import (
    Decision,
    GenerationPlan,
    Space,
    plan_verdict,
)
from tidelog.storage.compaction.job import Group
from tidelog.storage.erasure import FileEntry, Receipt, erasure_verdict
from tidelog.storage.tier_manager.mover import TierStatus, tier_verdict
from tidelog.types import TopicPartition

MB = 1_000_000


def status(
    partition: int = 0, *, tier: int = 0, local: int = 0, waiting: int = 0, garbage: int = 0
) -> TierStatus:
    return TierStatus(
        topic_partition=TopicPartition("t", partition),
        url="file:///store",
        log_start_offset=0,
        local_start_offset=0,
        tier_end_offset=0,
        log_end_offset=0,
        tier_segments=0,
        tier_bytes=tier,
        local_segments=0,
        local_bytes=local,
        waiting_segments=waiting,
        waiting_bytes=waiting * MB,
        garbage_segments=garbage,
    )


class TestTier:
    def test_none(self) -> None:
        assert tier_verdict([], 1) == "no tier: none of 1 partition keeps segments in a store"
        assert tier_verdict([], 4) == "no tier: none of 4 partitions keeps segments in a store"

    def test_one(self) -> None:
        assert tier_verdict([status(tier=12 * MB, local=MB, waiting=1, garbage=1)], 4) == (
            "1 partition with a tier: 12 MB in the store, 1 MB local; 1 segment of 1 MB waits to be"
            " copied; 1 old segment waits to be removed"
        )

    def test_many(self) -> None:
        many = [status(tier=2_000 * MB), status(1, local=30 * MB, waiting=2, garbage=2)]
        assert tier_verdict(many, 2) == (
            "2 partitions with a tier: 2 GB in the store, 30 MB local; 2 segments of 2 MB wait to"
            " be copied; 2 old segments wait to be removed"
        )
        assert tier_verdict([status()], 1).endswith("; nothing waits to be copied")

    def test_refused(self) -> None:
        refused = status(waiting=1)._replace(refused="t-0/0.appendtime: 0 rows, but it had 3")
        assert tier_verdict([refused], 1).endswith(
            "; 1 segment of 1 MB waits to be copied; copying stops in 1 partition, because append"
            " times are damaged or lost"
        )


IDLE = GenerationPlan(
    groups=(),
    map_from=0,
    map_to=0,
    reason="no garbage",
    is_full=False,
    space=Space(log_bytes=0, live_bytes=0, bound_bytes=0),
    segments=(),
    decisions=(),
    read_bytes=0,
)


def due_plan(*, read: int, written: int, freed: int) -> GenerationPlan:
    segment = SegmentFacts(
        base_offset=0,
        end_offset=9,
        size_bytes=written + freed,
        cleaned_to=0,
        live_bytes=written,
        sum_bytes=written,
        keys=1,
    )
    groups = (Group(bases=(0,), drop_expired=False),)
    decisions = (Decision.CLEAN,)
    return replace(IDLE, groups=groups, segments=(segment,), decisions=decisions, read_bytes=read)


class TestCompaction:
    def test_nothing(self) -> None:
        assert plan_verdict([]) == "nothing to compact: no topic has cleanup.policy=compact"
        assert plan_verdict([IDLE]) == "nothing to compact: the partition is not due"
        assert plan_verdict([IDLE, replace(IDLE, reason="empty")]) == (
            "nothing to compact: none of 2 partitions is due"
        )

    def test_one(self) -> None:
        due = due_plan(read=12_300_000, written=3_400_000, freed=8_900_000)
        costs = "12.3 MB to read, 3.4 MB to write, 8.9 MB to free"
        assert plan_verdict([due]) == f"the partition is due: {costs}"
        assert plan_verdict([due, IDLE]) == f"1 of 2 partitions is due: {costs}"

    def test_many(self) -> None:
        due = due_plan(read=MB, written=MB, freed=MB)
        assert plan_verdict([due, due, IDLE]) == (
            "2 of 3 partitions are due: 2 MB to read, 2 MB to write, 2 MB to free"
        )

    def test_only_cleaned_and_merged_segments_are_written(self) -> None:
        """All sizes of segments differ, so each sum shows which segments it contains."""
        decisions = tuple(Decision)
        segments = tuple(
            SegmentFacts(
                base_offset=number,
                end_offset=number + 1,
                size_bytes=11 * 10**number * MB,
                cleaned_to=0,
                live_bytes=10**number * MB,
                sum_bytes=10**number * MB,
                keys=1,
            )
            for number in range(len(decisions))
        )
        plan = replace(IDLE, segments=segments, decisions=decisions)
        written = [s for s, d in zip(segments, decisions, strict=True) if d in ("clean", "merge")]
        assert len(written) == 2
        assert plan.chosen == tuple(written)
        assert plan.written_bytes == sum(each.live_bytes for each in written)
        assert plan.garbage_bytes == 10 * plan.written_bytes


class Check(DirectoryCheck):
    """Check that reports logs of 126 MB."""

    def log_bytes(self) -> int:
        return 126 * MB


def check(*names: TopicPartition) -> Check:
    partition = cast("CheckedPartition", None)  # the verdict only counts partitions
    env = os_env()
    return Check(env.files, "data", partitions=dict.fromkeys(names, partition), clock=env.clock)


def finding(path: str, severity: Severity = Severity.ERROR, *, repairable: bool = True) -> Finding:
    return Finding(path, "damage", "remedy", severity, repairable=repairable)


class TestCheck:
    ONE = check(TopicPartition("t", 0))
    MANY = check(*(TopicPartition(topic, n) for topic in "ab" for n in range(3)))

    def test_sound(self) -> None:
        assert check_verdict(self.ONE, [], []) == "data is sound: 1 topic, 1 partition, 126 MB"
        assert check_verdict(self.MANY, [], []) == "data is sound: 2 topics, 6 partitions, 126 MB"
        note = finding("x", Severity.NOTE, repairable=False)
        assert check_verdict(self.MANY, [note], [note]).startswith("data is sound")

    def test_damaged(self) -> None:
        found = [finding("a"), finding("b"), finding("c", Severity.WARNING, repairable=False)]
        assert check_verdict(self.MANY, found, found) == (
            "data is damaged: 2 errors, 1 warning in 2 topics, 6 partitions, 126 MB; `tidelog"
            " doctor --data data --repair` rebuilds 2 files"
        )
        assert check_verdict(self.ONE, found[:1], found[:1]) == (
            "data is damaged: 1 error in 1 topic, 1 partition, 126 MB; `tidelog doctor --data data"
            " --repair` rebuilds 1 file"
        )

    def test_damage_without_a_repair(self) -> None:
        found = [finding("a", repairable=False)]
        assert check_verdict(self.ONE, found, found) == (
            "data is damaged: 1 error in 1 topic, 1 partition, 126 MB; --repair can't fix this"
            " damage"
        )

    def test_repaired(self) -> None:
        assert check_verdict(self.ONE, [finding("a")], []).endswith("; 1 file repaired")

    def test_unreadable_parts_are_counted_apart(self) -> None:
        blind = replace(self.ONE, unseen=[StorageFailure("t-0", "read", "denied")])
        assert check_verdict(blind, [], []) == (
            "data: 1 partition could not be read completely; in the other files: nothing found"
            " (1 topic, 1 partition, 126 MB)"
        )


def receipt(
    records: int, *, found: int = 1, executed: bool = False, left: int = 0, tombstones: int = 0
) -> Receipt:
    file: FileEntry = {"partition": 0, "file": "f", "bytes": 9, "sha256": "0", "offsets": [7]}
    return {
        "version": 1,
        "topic": "t",
        "key_sha256": "0",
        "executed": executed,
        "complete": executed and not left,
        "started_ms": 1,
        "ended_ms": 2,
        "records": records,
        "found": [file] * found,
        "tombstones": [{"partition": 0, "offset": 8}] * tombstones,
        "searched": [file] * 13,
        "removed_files": [],
        "not_reached": ["a copy"] * left,
        "out_of_reach": [],
        "notes": [],
    }


class TestErasure:
    def test_nothing(self) -> None:
        assert erasure_verdict(receipt(0, found=0)) == "no record of the key in 13 files of t"
        lone = receipt(0, found=0, tombstones=1)
        assert erasure_verdict(lone) == "no record of the key, only its tombstone, in 13 files of t"

    def test_a_dry_run(self) -> None:
        assert erasure_verdict(receipt(1)) == (
            "1 record of the key in 1 of 13 files of t; --execute erases it"
        )
        assert erasure_verdict(receipt(1_111, found=3)) == (
            "1,111 records of the key in 3 of 13 files of t; --execute erases them"
        )

    def test_done(self) -> None:
        assert erasure_verdict(receipt(2, found=2, executed=True)) == (
            "2 records of the key erased from 2 files of t"
        )

    def test_places_not_reached(self) -> None:
        assert erasure_verdict(receipt(2, executed=True, left=1)) == (
            "t may still contain the key: 2 records of the key found; 1 place not reached"
        )
