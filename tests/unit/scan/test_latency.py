"""Latencies and lateness compared with plain sums over the records."""

import random
from bisect import bisect_left
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.directories.random_logs import TOPIC, make_log_dir, records_of
from tests.worlds.directories.zoning import add_zones

from tidelog.env import Env, ManualClock
from tidelog.scan.latency import TopicLateness, UnitLateness, latency, lateness, latest_records
from tidelog.scan.latency_arrays import buckets_of, distances
from tidelog.storage.clocks.latency import (
    RELATIVE_ERROR,
    LatencyByHour,
    LatencyHistogram,
    bucket_of,
)
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.timespec.calendar import CalendarUnit, unit_start
from tidelog.types import INT64_MAX, NewRecord, TopicPartition

EDGES = [2**power + more for power in range(63) for more in (-1, 0, 1)]


@given(st.lists(st.integers(-INT64_MAX, INT64_MAX) | st.sampled_from(EDGES), min_size=1))
def test_buckets_of_many_are_those_of_each(latencies: list[int]) -> None:
    found = buckets_of(np.array(latencies, np.int64))
    assert found.tolist() == [bucket_of(one) for one in latencies]


def test_distances_stay_in_63_bits() -> None:
    later = np.array([5, 0, INT64_MAX, INT64_MAX, 0, 2], np.int64)
    earlier = np.array([-(2**63), -3, 0, -1, -(2**62) - 1, 5], np.int64)
    assert distances(later, earlier).tolist() == [INT64_MAX, 3, INT64_MAX, INT64_MAX, 2**62 + 1, -3]


def plain_latency(path: str, partition: int) -> tuple[LatencyByHour, int]:
    """Return latencies by hour, counted record by record, and how many records have no latency."""
    found, without = LatencyByHour(), 0
    with LogDir.open(path) as log_dir:
        reader = log_dir.reader(TOPIC, partition)
        for record in reader.records():
            append_ms = reader.append_time_of(record.offset)
            if append_ms is None or record.create_timestamp is None:
                without += 1
            else:
                found.add(append_ms, append_ms - record.create_timestamp)
    return found, without


@pytest.mark.parametrize("with_maps", [False, True])
@pytest.mark.parametrize("seed", [3, 4])
def test_latency_by_hour_is_that_of_the_records(tmp_path: Path, seed: int, with_maps: bool) -> None:
    path = str(tmp_path / "data")
    make_log_dir(path, seed, partitions=1, steps=80)
    if with_maps:
        assert add_zones(path, TOPIC)
    else:
        for file in tmp_path.rglob("*.zones"):
            file.unlink()
    expected, without = plain_latency(path, 0)
    found = latency(path, TOPIC)[TOPIC]
    assert dict(found.by_hour) == dict(expected)
    assert found.without == without
    assert bool(found.from_zone_maps) == with_maps
    hour = list(expected)[-1]
    only = latency(path, TopicPartition(TOPIC, 0), start_ms=hour + 1, end_ms=hour + 2)[TOPIC]
    assert dict(only.by_hour) == {hour: expected[hour]}


@pytest.mark.parametrize("with_maps", [True, False])
@pytest.mark.parametrize("unit", CalendarUnit)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_units_have_the_latencies_of_their_records(
    tmp_path: Path, with_maps: bool, unit: CalendarUnit, zone: str
) -> None:
    path = str(tmp_path / "data")
    make_log_dir(path, 3, partitions=1, steps=80)
    if with_maps:
        add_zones(path, TOPIC)
    expected: dict[int, LatencyHistogram] = {}
    with LogDir.open(path) as log_dir:
        reader = log_dir.reader(TOPIC, 0)
        for record in reader.records():
            append_ms = reader.append_time_of(record.offset)
            if append_ms is not None and record.create_timestamp is not None:
                start = unit_start(append_ms, unit, ZoneInfo(zone))
                one = expected.setdefault(start, LatencyHistogram())
                one.add(append_ms - record.create_timestamp)
    found = latency(path, TOPIC, unit=unit, zone=ZoneInfo(zone))[TOPIC]
    assert found.by_unit == expected


def test_deleted_records_count_no_more(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    make_log_dir(path, 5, partitions=1, steps=80)
    add_zones(path, TOPIC)
    with LogDir.open(path) as log_dir:
        end = log_dir.reader(TOPIC, 0).log_end_offset
    (tmp_path / "data" / "log-start-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {end // 2}\n")
    expected, without = plain_latency(path, 0)
    found = latency(path, TOPIC)[TOPIC]
    assert (dict(found.by_hour), found.without) == (dict(expected), without)


def test_a_zone_cache_serves_a_directory_without_maps(tmp_path: Path) -> None:
    path, cache = str(tmp_path / "data"), str(tmp_path / "cache")
    make_log_dir(path, 6, partitions=1, steps=80)
    for file in tmp_path.rglob("*.zones"):
        file.unlink()
    before = sorted(tmp_path.joinpath("data").rglob("*"))
    plain = latency(path, TOPIC)[TOPIC]
    for _ in range(2):
        found = latency(path, TOPIC, zone_cache=cache)[TOPIC]
        assert dict(found.by_hour) == dict(plain.by_hour)
        assert found.from_zone_maps
    assert list(tmp_path.joinpath("cache").iterdir())
    assert sorted(tmp_path.joinpath("data").rglob("*")) == before


def test_latencies_leave_no_map_in_memory(tmp_path: Path) -> None:
    path = str(tmp_path)
    make_log_dir(path, 6, partitions=1, steps=80)
    add_zones(path, TOPIC)
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        finished = log_dir.log(TOPIC, 0).finished_segments()
        for segment in finished:
            segment.use_zones(None, loaded=False)
        assert latency(log_dir, TOPIC)[TOPIC].from_zone_maps
        assert [segment.loaded_zones for segment in finished] == [None] * len(finished)


@pytest.mark.parametrize("seed", [9, 10, 11])
def test_the_latest_records_are_those_of_all(tmp_path: Path, seed: int) -> None:
    path = str(tmp_path / "data")
    make_log_dir(path, seed, partitions=2, steps=80)
    add_zones(path, TOPIC)
    expected = []
    with LogDir.open(path) as log_dir:
        names = log_dir.partitions(TOPIC)
        for name in names:
            reader = log_dir.reader(TOPIC, name.partition)
            for record in reader.records():
                append_ms = reader.append_time_of(record.offset)
                if append_ms is not None and record.create_timestamp is not None:
                    latency_ms = append_ms - record.create_timestamp
                    expected.append((-latency_ms, append_ms, name.partition, record.offset))
        expected.sort()
        by_hour = latency(log_dir, TOPIC)[TOPIC].by_hour
        for count in (1, 7, len(expected), len(expected) + 5):
            found = latest_records(log_dir, names, by_hour, count=count)
            assert [-one.latency_ms for one in found] == [row[0] for row in expected[:count]]
            places = {(one.append_ms, one.partition.partition, one.offset) for one in found}
            assert len(places) == len(found)
            assert places <= {row[1:] for row in expected}


@pytest.mark.parametrize("seed", [7, 8])
def test_lateness_is_that_of_the_records(tmp_path: Path, seed: int) -> None:
    path = str(tmp_path / "data")
    make_log_dir(path, seed, partitions=2, steps=60)
    late, count = [], 0
    for partition in range(2):
        largest = None
        for record in records_of(path, partition):
            if record.create_timestamp is None:
                continue
            count += 1
            if largest is not None and record.create_timestamp < largest:
                late.append(largest - record.create_timestamp)
            largest = max(largest or 0, record.create_timestamp)
    delays = [0, 1, 1_000, *random.Random(seed).sample(late, 3)]
    found = lateness(path, TOPIC, delays_ms=delays)[TOPIC]
    assert (found.records, found.out_of_order) == (count, len(late))
    assert found.late_ms_max == max(late)
    late.sort()
    assert found.lost == {
        delay: len(late) - bisect_left(late, delay + 1) for delay in sorted(delays)
    }
    for share in (0.0, 0.01, 0.2):
        delay = found.delay_for(share) * (1 + RELATIVE_ERROR) + 1
        assert sum(one > delay for one in late) <= share * count


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("unit", [CalendarUnit.HOUR, CalendarUnit.DAY])
def test_lateness_by_append_time_is_that_of_the_records(
    tmp_path: Path, unit: CalendarUnit, zone: str
) -> None:
    path, place = str(tmp_path / "data"), ZoneInfo(zone)
    make_log_dir(path, 7, partitions=2, steps=60)
    expected: dict[int, UnitLateness] = {}
    with LogDir.open(path) as log_dir:
        for partition in range(2):
            reader, largest = log_dir.reader(TOPIC, partition), 0
            for record in reader.records():
                create_ms, append_ms = record.create_timestamp, reader.append_time_of(record.offset)
                if create_ms is None:
                    continue
                if append_ms is not None:
                    start = unit_start(append_ms, unit, place)
                    one = expected.setdefault(start, UnitLateness())
                    one.records += 1
                    one.out_of_order += create_ms < largest
                    one.late_ms_max = max(one.late_ms_max, largest - create_ms)
                    one.created_outside += unit_start(create_ms, unit, place) != start
                largest = max(largest, create_ms)
    found = lateness(path, TOPIC, unit=unit, zone=place)[TOPIC]
    assert found.by_unit == expected
    assert sum(one.out_of_order for one in expected.values())
    assert lateness(path, TOPIC)[TOPIC].by_unit == {}


def test_an_empty_range_has_no_late_records() -> None:
    assert TopicLateness().delay_for(0) == TopicLateness().delay_for(0.5) == 0


def test_equal_latencies_are_ordered_by_topic_too(tmp_path: Path) -> None:
    env = Env(clock=ManualClock(1_000))
    with LogDir.open(str(tmp_path), env=env, options=LogDirOptions(writable=True)) as log_dir:
        for topic in ("b", "a"):
            log_dir.create_topic(topic)
            log_dir.log(topic, 0).append([NewRecord(value=b"v", timestamp=10)])
    with LogDir.open(str(tmp_path)) as log_dir:
        names = [TopicPartition(topic, 0) for topic in ("b", "a")]
        by_hour = latency(log_dir, "a")["a"].by_hour
        found = latest_records(log_dir, names, by_hour, count=2)
    assert [one.partition.topic for one in found] == ["a", "b"]
