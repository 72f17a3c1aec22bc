"""`tidelog.spark.reindex` on real Spark: its repairs, its output, and unchanged files."""

from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest
from tests.worlds.directories.random_logs import TOPIC, make_log_dir
from tests.worlds.kafka.groups import tidelog

from tidelog import scan
from tidelog import spark as tidelog_spark
from tidelog.cli.doctor import Verdict
from tidelog.env import os_env
from tidelog.errors import DirectoryLocked, InvalidRequest
from tidelog.jobs.reindex.job import Outcome, run
from tidelog.jobs.reindex.options import Mode
from tidelog.jobs.reindex.work import PartDone, grouped
from tidelog.spark.places import Place
from tidelog.storage.checks import DirectoryCheck
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file with its bytes and modification time."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def doctor(path: Path) -> list[str]:
    """Return those findings of `tidelog doctor` that count as problems."""
    check = DirectoryCheck(os_env().files, str(path), clock=os_env().clock)
    found = check.load() + list(check.findings())
    return [str(finding) for finding in found if finding.counts]


def test_reindex_verifies_and_repairs_indexes(spark: "SparkSession", tmp_path: Path) -> None:
    make_log_dir(str(tmp_path), 3, partitions=3, steps=70)
    indexes = sorted(tmp_path.glob(f"{TOPIC}-0/*.index"))
    indexes[0].write_bytes(b"\xff" * 64)
    sorted(tmp_path.glob(f"{TOPIC}-1/*.timeindex"))[1].unlink()
    maps = sorted(tmp_path.glob(f"{TOPIC}-*/*.zones"))
    for path in maps[::2]:
        path.unlink()
    before, expected = contents(tmp_path), doctor(tmp_path)
    found = tidelog_spark.reindex(spark, str(tmp_path), mode="verify")
    assert found.outcome is Outcome.FINDINGS
    assert contents(tmp_path) == before
    rows = found.findings.where("severity != 'note'").collect()
    assert sorted(row["file"] for row in rows) == sorted(
        line.partition(": ")[0].partition(", position")[0] for line in expected
    )
    built = tidelog_spark.reindex(spark, str(tmp_path), group_bytes=5_000)
    assert built.outcome is Outcome.SOUND
    assert not built.problems
    assert doctor(tmp_path) == []
    assert sorted(tmp_path.glob(f"{TOPIC}-*/*.zones")) == maps
    total = built.partitions.selectExpr("sum(maps_built)", "sum(repaired)").collect()[0]
    assert total[0] > 0
    assert total[1] >= 2
    logs = {name: each for name, each in contents(tmp_path).items() if name.endswith(".log")}
    assert logs == {name: each for name, each in before.items() if name.endswith(".log")}


def test_a_foreign_directory_is_never_written(spark: "SparkSession", tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    make_log_dir(str(data), 4, steps=60)
    for path in data.rglob("*"):
        if path.suffix in {".zones", ".appendtime"} or path.name.startswith(("tidelog", "append")):
            path.unlink()
    before = contents(data)
    with pytest.raises(InvalidRequest, match="zone_cache"):
        run(spark, Place(str(data)))
    with pytest.raises(InvalidRequest, match="is inside"):
        run(spark, Place(str(data)), zone_cache=str(data / "zones"))
    built = run(spark, Place(str(data)), zone_cache=str(cache), group_bytes=4_000)
    assert built.outcome is Outcome.SOUND
    maps = sum(one.maps_built for one in built.done)
    assert maps == len(list(cache.iterdir())) > 3
    again = run(spark, Place(str(data)), zone_cache=str(cache))
    assert (sum(one.maps_built for one in again.done), again.done[0].maps_built) == (0, 0)
    assert sum(one.maps_there for one in again.done) == maps
    assert run(spark, Place(str(data)), mode=Mode.VERIFY, zone_cache=str(cache)).outcome is (
        Outcome.SOUND
    )
    told = scan.count(str(data), TOPIC, zone_cache=str(cache))
    assert told.records == scan.count(str(data), TOPIC).records
    next(cache.iterdir()).write_bytes(b"odd")
    checked = run(spark, Place(str(data)), mode=Mode.VERIFY, zone_cache=str(cache))
    assert checked.outcome is Outcome.FINDINGS
    assert sum(len(one.left) for one in checked.done) == 1
    assert contents(data) == before


def test_a_directory_that_is_written_to_is_left_alone(
    spark: "SparkSession", tmp_path: Path
) -> None:
    make_log_dir(str(tmp_path), 4, steps=20)
    with LogDir.open(str(tmp_path), options=LogDirOptions(writable=True)):
        before = contents(tmp_path)
        with pytest.raises(DirectoryLocked):
            run(spark, Place(str(tmp_path)))
        assert run(spark, Place(str(tmp_path)), TOPIC, mode=Mode.VERIFY).done
        assert contents(tmp_path) == before


def test_damage_is_reported_and_not_repaired(spark: "SparkSession", tmp_path: Path) -> None:
    make_log_dir(str(tmp_path), 4, steps=60)
    log = min(tmp_path.glob(f"{TOPIC}-0/*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 8
    log.write_bytes(data)
    found = run(spark, Place(str(tmp_path)))
    assert found.outcome is Outcome.FINDINGS
    assert any(finding.path == str(log) for finding in found.done[0].left)
    assert log.read_bytes() == data


def test_a_missing_partition_is_a_finding(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "logs"
    make_log_dir(str(path), 3, partitions=3, steps=10)
    rmtree(path / f"{TOPIC}-1")
    modes = [{"mode": Mode.VERIFY}, {"zone_cache": str(tmp_path / "maps")}, {"mode": Mode.BUILD}]
    for topics in (None, [TOPIC], [TopicPartition(TOPIC, 1), TopicPartition(TOPIC, 2)]):
        for options in modes:
            found = run(spark, Place(str(path)), topics, **options)  # type: ignore[arg-type]
            damages = [each.damage for each in found.top if each.path == f"{path}/{TOPIC}-1"]
            assert damages == ["the directory of this partition is missing"]
            assert found.outcome is Outcome.FINDINGS
    found = run(spark, Place(str(path)), [TopicPartition(TOPIC, 2)], mode=Mode.VERIFY)
    assert found.outcome is Outcome.SOUND


def test_the_command_ends_as_the_doctor_does(spark: "SparkSession", tmp_path: Path) -> None:
    data, page = tmp_path / "data", tmp_path / "page.html"
    make_log_dir(str(data), 4, steps=40)
    assert spark is not None  # the command uses this session
    assert tidelog("spark", "reindex", str(data), "--verify").code == Verdict.SOUND
    index = min(data.glob(f"{TOPIC}-0/*.index"))
    index.write_bytes(b"\xff" * 64)
    found = tidelog("spark", "reindex", str(data), "--verify", "-o", "json")
    assert found.code == Verdict.FINDINGS
    assert str(index) in {row["file"] for row in found.rows}
    assert {row["state"] for row in found.rows} == {"open"}
    mended = tidelog("spark", "reindex", str(data), "--report", str(page), "-o", "json")
    assert mended.code == Verdict.SOUND, mended.err
    assert {row["state"] for row in mended.rows if row["severity"] != "note"} == {"repaired"}
    assert "sound" in page.read_text()
    rows = tidelog("spark", "reindex", str(data), TOPIC, "--show", "partitions", "-o", "json").rows
    assert [(row["partition"], row["repaired"]) for row in rows] == [(0, 0), (1, 0)]


def test_parts_are_plain_json() -> None:
    done = PartDone(topic="t", partition=3, problems=["a"], maps_built=2)
    assert PartDone.decode(done.encode()) == done
    sizes = [(0, 5), (9, 4), (20, 9), (30, 1), (31, 8)]
    assert list(grouped(sizes, 9)) == [[0, 9], [20], [30, 31]]
    assert list(grouped([], 9)) == []
