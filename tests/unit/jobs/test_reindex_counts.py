"""Reindexing counts zone maps, builds them only from verified times, and repairs checkpoints."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.hooked import HookedDisk

from tidelog.directory import Directory
from tidelog.env import os_env
from tidelog.errors import InvalidRequest
from tidelog.jobs.reindex.job import _Job, check_arguments
from tidelog.jobs.reindex.options import Mode
from tidelog.jobs.reindex.work import build_zones, check_partition, verify_zones
from tidelog.record.batch_walk import walk
from tidelog.record.header import assign_offset
from tidelog.spark.parts import NOBODY
from tidelog.spark.places import Place
from tidelog.storage import text_files
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.types import NewRecord, TopicPartition

NAME = TopicPartition("t", 0)


def test_a_check_counts_the_existing_zone_maps(tmp_path: Path) -> None:
    path, env = str(tmp_path), os_env()
    with Directory.open(path, writable=True) as directory:
        directory.create_topic("t", config={"internal.segment.bytes": "600"})
        for number in range(40):
            directory.append("t", [NewRecord(value=b"%0100d" % number)])
        bases = [one.base_offset for one in directory.partition("t", 0).segments]
    build_zones(env, path, NAME, bases, None)
    maps = sorted((tmp_path / "t-0").glob("*.zones"))
    assert len(maps) > 3
    assert check_partition(env, path, NAME, mends=False).maps_there == len(maps)
    maps[0].write_bytes(b"no map")
    assert check_partition(env, path, NAME, mends=False).maps_there == len(maps) - 1


@pytest.mark.parametrize("end", ["", "/"])
def test_a_zone_cache_must_be_outside_of_the_directory(tmp_path: Path, end: str) -> None:
    path = str(tmp_path / "log")
    place = Place(f"{path}{end}")
    for cache in (path, f"{path}/", f"{path}/zones"):
        with pytest.raises(InvalidRequest, match=f"is inside {path};"):
            check_arguments(place, None, Mode.BUILD, cache)
    _, found = check_arguments(place, None, Mode.BUILD, f"{path}-zones")
    assert found == path


def test_a_map_beside_the_log_needs_none_in_the_cache(tmp_path: Path) -> None:
    """Checks and builds of the cache do not count a map as missing if it is beside the log."""
    path, cache, env = str(tmp_path / "log"), str(tmp_path / "cache"), os_env()
    with Directory.open(path, writable=True, env=env) as directory:
        directory.create_topic("t", config={"internal.segment.bytes": "600"})
        for number in range(40):
            directory.append("t", [NewRecord(value=b"%0100d" % number)])
        bases = [one.base_offset for one in directory.partition("t", 0).segments][:-1]
    build_zones(env, path, NAME, bases, None)
    maps = sorted((tmp_path / "log" / "t-0").glob("*.zones"))
    sound = verify_zones(env, path, NAME, bases, cache)
    assert (sound.maps_there, sound.found) == (len(maps), [])
    maps[0].unlink()
    without = verify_zones(env, path, NAME, bases, cache)
    assert (without.maps_there, [one.damage for one in without.found]) == (
        len(maps) - 1,
        ["missing"],
    )
    assert build_zones(env, path, NAME, bases, cache).maps_built == 1
    assert verify_zones(env, path, NAME, bases, cache).maps_there == len(maps)


def test_a_partition_that_can_not_be_read_is_not_reported_as_sound(tmp_path: Path) -> None:
    path, cache = str(tmp_path / "log"), str(tmp_path / "cache")
    with Directory.open(path, writable=True) as directory:
        directory.create_topic("t", config={"internal.segment.bytes": "600"})
        for number in range(40):
            directory.append("t", [NewRecord(value=b"%0100d" % number)])
        bases = [one.base_offset for one in directory.partition("t", 0).segments]
    build_zones(os_env(), path, NAME, bases, cache)

    def fail(call: str, at: str) -> None:
        if call == "list_dir" and at.endswith("t-0"):
            raise OSError(errno.EIO, "the disk failed", at)

    env = replace(os_env(), files=HookedDisk(fail))
    for done in (
        build_zones(env, path, NAME, bases, cache),
        verify_zones(env, path, NAME, bases, cache),
    ):
        assert done.is_blind
        assert len(done.problems) == 1
        assert "the disk failed" in done.problems[0]


def test_a_check_of_the_cache_finds_every_damaged_byte(tmp_path: Path) -> None:
    path, cache, env = str(tmp_path / "log"), tmp_path / "cache", os_env()
    with Directory.open(path, writable=True, env=env) as directory:
        directory.create_topic("t", config={"internal.segment.bytes": "600"})
        for number in range(8):
            directory.append("t", [NewRecord(value=b"%0100d" % number)])
    for beside in (tmp_path / "log" / "t-0").glob("*.zones"):
        beside.unlink()
    assert build_zones(env, path, NAME, [0], str(cache)).maps_built == 1
    (zones,) = cache.iterdir()
    sound = zones.read_bytes()
    for place in range(len(sound)):
        zones.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        found = verify_zones(env, path, NAME, [0], str(cache)).found
        assert [one.damage for one in found] != [], place
    zones.write_bytes(sound)
    assert verify_zones(env, path, NAME, [0], str(cache)).found == []


def test_a_map_has_no_append_times_that_the_log_does_not_prove(tmp_path: Path) -> None:
    """Another program has replaced the log's batches, but the file of append times still exists."""
    path, cache, env = str(tmp_path / "log"), tmp_path / "cache", os_env()
    with Directory.open(path, writable=True, env=env) as directory:
        directory.create_topic("t", config={"internal.segment.bytes": "600"})
        for number in range(8):
            directory.append("t", [NewRecord(value=b"%0100d" % number)])
    for beside in (tmp_path / "log" / "t-0").glob("*.zones"):
        beside.unlink()
    for log in (tmp_path / "log" / "t-0").glob("*.log"):
        data, at = bytearray(log.read_bytes()), 0
        for batch in walk(bytes(data)):
            assign_offset(data, at, batch.base_offset, 9)
            at += batch.size_bytes
        log.write_bytes(data)
    assert build_zones(env, path, NAME, [0], str(cache)).maps_built == 1
    (zones,) = cache.iterdir()
    total = ZoneMap.decode(zones.read_bytes()).total
    assert (total.data_records > 0, total.stamped_records) == (True, 0)


def test_damaged_checkpoints_are_repaired_only_if_the_job_repairs(tmp_path: Path) -> None:
    path, env = str(tmp_path), os_env()
    with Directory.open(path, writable=True) as directory:
        directory.create_topic("t")
        directory.append("t", [NewRecord(value=b"v")])
    file = tmp_path / "recovery-point-offset-checkpoint"
    file.write_bytes(b"no number")
    done = [check_partition(env, path, NAME, mends=True)]
    job = _Job(None, env, Place(path), NOBODY)  # type: ignore[arg-type] # the driver needs no Spark
    assert [one.path for one in job.top(done, mends=False) if one.counts] == [str(file)]
    assert file.read_bytes() == b"no number"
    assert [one for one in job.top(done, mends=True) if one.counts] == []
    assert text_files.read_offset_checkpoint(env.files, str(file)) == {}
