"""`tidelog.spark.compact` and its command on real Spark; tests/unit checks which records remain."""

from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest
from tests.unit.jobs.test_compact import TOPIC, fill_tier, last_of_each, make_keyed
from tests.worlds.directories.topics import held
from tests.worlds.kafka.groups import tidelog

from tidelog import spark as tidelog_spark
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_partitions_are_compacted_by_tasks(spark: "SparkSession", tmp_path: Path) -> None:
    place = make_keyed(tmp_path / "a", count=200)
    before = held(place, TOPIC)
    wanted = [TopicPartition(TOPIC, 0)]
    (row,) = tidelog_spark.compact(spark, place, wanted, part_bytes=4_000).partitions.collect()
    assert (row["records_before"], row["stopped"]) == (len(before[0]), None)
    ended = tidelog("spark", "compact", place, f"{TOPIC}:1", "--part-bytes", "4000", "-o", "json")
    assert (ended.code, [one["partition"] for one in ended.rows]) == (0, [1])
    for log, left in zip(before, held(place, TOPIC), strict=True):
        last = {record.key: record.offset for record in log}
        assert [record.offset for record in left] == sorted(last.values())


def test_a_tier_is_compacted_by_tasks(spark: "SparkSession", tmp_path: Path) -> None:
    place = fill_tier(tmp_path / "a", tmp_path / "store")
    before = held(place, TOPIC)
    wanted = [TopicPartition(TOPIC, 0)]
    (row,) = tidelog_spark.compact(spark, place, wanted, part_bytes=6_000).partitions.collect()
    assert (row["records_after"] < row["records_before"], row["stopped"]) == (True, None)
    ended = tidelog("spark", "compact", place, f"{TOPIC}:1", "--part-bytes", "6000", "-o", "json")
    assert (ended.code, [one["partition"] for one in ended.rows]) == (0, [1])
    for log, left in zip(before, held(place, TOPIC), strict=True):
        assert last_of_each(left) == last_of_each(log)
        assert len(left) < len(log) / 2


@pytest.mark.usefixtures("spark")
def test_a_missing_partition_is_noted_and_not_created(tmp_path: Path) -> None:
    place = make_keyed(tmp_path / "a", count=20)
    missing = tmp_path / "a" / f"{TOPIC}-1"
    rmtree(missing)
    ended = tidelog("spark", "compact", place, TOPIC, "-o", "json")
    assert (ended.code, [one["partition"] for one in ended.rows]) == (0, [0])
    assert "partition 1 is listed in tidelog-topics.json, but has no directory" in ended.err
    ended = tidelog("spark", "compact", place, f"{TOPIC}:1", "-o", "json")
    assert (ended.code, ended.rows) == (0, [])
    assert "partition 1 is listed in tidelog-topics.json, but has no directory" in ended.err
    assert not missing.exists()
