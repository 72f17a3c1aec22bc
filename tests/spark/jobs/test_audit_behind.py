"""Audits report no wrong difference if cleanings have removed records older than the cut."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.jobs.test_audit import TOPIC, add, audit, kinds, make_filled, record
from tests.worlds.directories.topics import T0

from tidelog import spark as tidelog_spark
from tidelog.env import os_env
from tidelog.jobs.audit import run
from tidelog.jobs.audit.plan import plan_side
from tidelog.jobs.offset_map import (
    CopiedRange,
    OffsetMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
    write_map,
)
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = 20
BEFORE = [record(f"k{key}", f"v{key}", key) for key in range(KEYS)]
# Records after the cut: newer records of two keys, and the tombstone of a third key.
BEHIND = [record("k2", "new", 100), record("k9", "new", 101), record("k4", None, 102)]


def compact(place: str) -> None:
    with LogDir.open(place, options=LogDirOptions(writable=True)) as log_dir:
        log = log_dir.log(TOPIC, 0)
        log.roll()
        log.flush()
        options = CleanerOptions(is_asked=True)
        clean_partition(log_dir, TopicPartition(TOPIC, 0), InProcess(os_env()), options)


def sides(tmp_path: Path) -> tuple[str, str]:
    """Create a log compacted with later records, and a copy of `BEFORE` without k5 and k9."""
    a = make_filled(tmp_path / "a", [BEFORE], cleanup_policy="compact")
    add(a, [BEHIND])
    compact(a)
    copied = [one for one in BEFORE if one.key not in (b"k5", b"k9")]
    return a, make_filled(tmp_path / "b", [copied], cleanup_policy="compact")


def map_of(path: Path, copied: int, written: int) -> str:
    found = OffsetMap(
        target="b",
        target_ids={},
        partition_counts={TOPIC: 1},
        sources=(SourceTopic(place="a", topic=TOPIC, topic_id="", target=TOPIC),),
        partitioning=Partitioning.KEPT,
        copied={SourcePartition(0, 0): CopiedRange(0, copied)},
        ends={TopicPartition(TOPIC, 0): written},
    )
    write_map(os_env().files, str(path), found)
    return str(path)


def test_records_superseded_by_records_after_the_offset_are_no_findings(
    spark: "SparkSession", tmp_path: Path
) -> None:
    a, b = sides(tmp_path)
    found = audit(spark, a, b, offset_map=map_of(tmp_path / "map", KEYS, KEYS - 2))
    assert kinds(found) == {"k5": "missing"}
    assert found.topics[0].superseded == 2
    assert any("2 keys were not compared" in line for line in found.notes)


def test_records_superseded_by_records_of_later_times_are_no_findings(
    spark: "SparkSession", tmp_path: Path
) -> None:
    a, b = sides(tmp_path)
    end_ms = T0 + 50 * 60_000
    for one, other, kind in ((a, b, "missing"), (b, a, "extra")):
        found = audit(spark, one, other, end=end_ms)
        assert kinds(found) == {"k5": kind}
        assert found.topics[0].superseded == 2
    answer = tidelog_spark.audit(spark, a, b, end=end_ms)
    assert [row["superseded"] for row in answer.topics.collect()] == [2]


def test_all_missing_keys_are_found_if_nothing_after_the_cut_was_compacted(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Records after the cut were never compacted, so they superseded no record before the cut."""
    a = make_filled(tmp_path / "a", [BEFORE], cleanup_policy="compact")
    compact(a)
    add(a, [BEHIND])
    b = make_filled(tmp_path / "b", [BEFORE[3:]], cleanup_policy="compact")
    found = audit(spark, a, b, offset_map=map_of(tmp_path / "map", KEYS, KEYS - 3))
    assert kinds(found) == {"k0": "missing", "k1": "missing", "k2": "missing"}
    assert found.topics[0].superseded == 0


def test_a_cleaning_while_the_keys_behind_are_read_is_followed(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a cleaning removes a key's first record after the cut, the audit reads a later record."""
    a, b = sides(tmp_path)
    times: list[object] = []

    def interfering(*given: object, **named: object) -> object:
        found = plan_side(*given, **named)  # type: ignore[arg-type] # as it is called
        if len(times) == 1:  # the second call plans the read of the keys after the cut
            add(a, [BEHIND])
            compact(a)
        times.append(found)
        return found

    monkeypatch.setattr(run, "plan_side", interfering)
    found = audit(spark, a, b, offset_map=map_of(tmp_path / "map", KEYS, KEYS - 2))
    assert (kinds(found), len(times)) == ({"k5": "missing"}, 3)
    assert found.topics[0].superseded == 2
