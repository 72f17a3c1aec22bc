"""Counts and append times from a broker's directory, which must have the cluster's topic ids."""

from pathlib import Path
from random import Random

import pytest
from tests.worlds.clusters.fake_cluster import FLIGHTS_0, FakeCluster
from tests.worlds.directories.logs import end, transact

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import CorruptBatch, InvalidRequest, times_of
from tidelog.remote import group_lag, group_rewind, own_logs
from tidelog.remote.group_lag import AgeClock, Unread
from tidelog.remote.group_rewind import Target
from tidelog.remote.own_logs import OwnLogs, TimedRecord
from tidelog.remote.view import Committed, Count
from tidelog.storage import files
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import ClockName, IsolationLevel, NewRecord, TopicPartition

GROUP = "planes"
NOW = 1_700_000_000_000


def write(path: Path, *batches: int, step_ms: int = 0, **config: str) -> ManualClock:
    """Append batches with these record counts, 10 s apart; return the clock.

    Create times precede append times.
    """
    clock = ManualClock(NOW)
    with Directory.open(str(path), writable=True, env=Env(clock=clock, random=Random(1))) as log:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        log.create_topic("flights", config={"retention.ms": "-1", **settings})
        for number, count in enumerate(batches):
            record = NewRecord(value=b"v", timestamp=NOW - 3_600_000 + number * step_ms)
            log.append("flights", [record] * count, partition=0)
            clock.advance(10_000)
    return clock


def cluster_of(directory: Directory, committed: int) -> FakeCluster:
    """Return a cluster that serves the directory's topic."""
    log = directory.partition("flights", 0)
    cluster = FakeCluster().with_log(FLIGHTS_0, *[record.timestamp for record in log.records()])
    topic_id = directory.topic("flights").topic_id
    assert topic_id is not None
    cluster.topic_ids["flights"] = files.encode_topic_id(topic_id)
    cluster.put(GROUP, {FLIGHTS_0: committed})
    return cluster


def test_counts_by_headers_and_opens_batches_at_the_edges(tmp_path: Path) -> None:
    write(tmp_path, 10, 10, 10)
    with Directory.open(str(tmp_path)) as directory:
        own = OwnLogs(directory, cluster_of(directory, 0))
        for start, end in [(0, 30), (3, 30), (10, 20), (7, 12), (4, 5), (30, 30)]:
            assert own.count(FLIGHTS_0, start, end) == Count(end - start, is_exact=True)


def test_counts_whole_segments_by_their_zone_maps(tmp_path: Path) -> None:
    """The middle batch of each segment is not read, so damage in it has no effect."""
    write(tmp_path, *[10] * 9, step_ms=300_000, segment_ms="600000")
    with Directory.open(str(tmp_path)) as directory:
        segments = directory.partition("flights", 0).segments
        assert [segment.base_offset for segment in segments] == [0, 30, 60]
        for segment in segments:
            if isinstance(segment, ClosedSegment):
                Path(segment.log_path).with_suffix(".zones").write_bytes(
                    zone_map_files.build(segment)
                )
        cluster = cluster_of(directory, 0)
        log = Path(segments[0].log_path)
    data = bytearray(log.read_bytes())
    data[len(data) // 3 + 16] = 9  # the second batch's magic
    log.write_bytes(data)
    with Directory.open(str(tmp_path)) as directory:
        own = OwnLogs(directory, cluster)
        assert own.count(FLIGHTS_0, 0, 60) == Count(60, is_exact=True)
        with pytest.raises(CorruptBatch):
            own.count(FLIGHTS_0, 1, 60)


def test_counts_segments_in_part_and_the_last_one_by_headers(tmp_path: Path) -> None:
    write(tmp_path, 10, 10, 10, step_ms=1_200_000, segment_ms="600000")
    with Directory.open(str(tmp_path)) as directory:
        own = OwnLogs(directory, cluster_of(directory, 0))
        for start, end in [(0, 30), (3, 30), (3, 17), (10, 20), (12, 14), (15, 29)]:
            assert own.count(FLIGHTS_0, start, end) == Count(end - start, is_exact=True)


@pytest.mark.parametrize("has_zones", [False, True])
@pytest.mark.parametrize(
    ("isolation", "expected"),
    [
        (IsolationLevel.READ_UNCOMMITTED, [5, 2, 3]),
        (IsolationLevel.READ_COMMITTED, [3, 2, 1]),
    ],
)
def test_markers_are_no_records_and_aborted_records_count_only_if_they_are_read(
    tmp_path: Path, isolation: IsolationLevel, expected: list[int], *, has_zones: bool
) -> None:
    """Offsets: 0 and 1 committed, 2 the marker, 3 and 4 aborted, 5 the marker, 6 plain."""
    write(tmp_path)
    with Directory.open(str(tmp_path), writable=True) as directory:
        log = directory.log("flights", 0)
        transact(log, 7, count=2)
        end(log, 7, commit=True)
        transact(log, 7, sequence=2, count=2)
        end(log, 7, commit=False)
        directory.append("flights", [NewRecord(value=b"v", timestamp=NOW)], partition=0)
        if has_zones:
            log.roll()
            zone_map_files.build_missing(log.segments)
    with Directory.open(str(tmp_path)) as directory:
        own = OwnLogs(directory, cluster_of(directory, 0))
        ranges = [(0, 7), (0, 3), (2, 7)]
        counts = [own.count(FLIGHTS_0, *each, isolation) for each in ranges]
        assert counts == [Count(number, is_exact=True) for number in expected]


def test_offsets_after_the_directorys_end_are_an_upper_bound(tmp_path: Path) -> None:
    write(tmp_path, 10)
    with Directory.open(str(tmp_path)) as directory:
        own = OwnLogs(directory, cluster_of(directory, 0))
        assert own.count(FLIGHTS_0, 5, 14) == Count(9, is_exact=False)
        assert own.count(FLIGHTS_0, 12, 14) == Count(2, is_exact=False)


def test_records_appended_meanwhile_are_counted(tmp_path: Path) -> None:
    write(tmp_path, 10)
    with Directory.open(str(tmp_path)) as directory:
        own = OwnLogs(directory, cluster_of(directory, 0))
        assert own.count(FLIGHTS_0, 0, 12) == Count(12, is_exact=False)
        with Directory.open(str(tmp_path), writable=True) as writer:
            writer.append("flights", [NewRecord(value=b"v")] * 2, partition=0)
        assert own.count(FLIGHTS_0, 0, 12) == Count(12, is_exact=True)


def test_seconds_behind_are_by_the_append_clock(tmp_path: Path) -> None:
    """Only append times count: the second batch was appended ten seconds after the first."""
    clock = write(tmp_path, 5, 5)
    clock.advance(100_000)
    with Directory.open(str(tmp_path)) as directory:
        cluster = cluster_of(directory, 7)
        own = OwnLogs(directory, cluster)
        counter = own_logs.counter(cluster, own)
        (seen,) = group_lag.observe(
            cluster, GROUP, [FLIGHTS_0], clock=clock, counter=counter, own=own
        )
        assert seen.unread == Unread(7, NOW + 10_000, AgeClock.APPEND)
        assert seen.left == Count(3, is_exact=True)
        assert group_lag.lag_of(seen, seen).behind_ms == 110_000
        assert cluster.records_read == 0


def test_a_rewind_by_the_append_clock_reads_the_own_directory(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, 5)
    with Directory.open(str(tmp_path)) as directory:
        cluster = cluster_of(directory, 15)
        own = OwnLogs(directory, cluster)
        for at, offset in [(0, 0), (1, 5), (10_000, 5), (10_001, 10)]:
            target = Target(time_ms=NOW + at, clock=ClockName.APPEND)
            (move,) = group_rewind.plan(cluster, GROUP, [FLIGHTS_0], target, own=own)
            assert move.new == Committed(offset, 0)
        late = Target(time_ms=NOW + 20_001, clock=ClockName.APPEND)
        (move,) = group_rewind.plan(cluster, GROUP, [FLIGHTS_0], late, own=own)
        assert move.match is None


def test_unknown_append_times_that_may_match_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 5, 5)
    for path in tmp_path.glob("*/*.appendtime"):
        path.unlink()
    with Directory.open(str(tmp_path)) as directory:
        cluster = cluster_of(directory, 10)
        own = OwnLogs(directory, cluster)
        assert own.first_record(FLIGHTS_0, 6) == TimedRecord(6, None, NOW - 3_600_000)
        with pytest.raises(InvalidRequest, match="offset 9 has no known append time") as refused:
            own.first_appended(FLIGHTS_0, NOW)
        assert "appended at 2023-11-14T22:13:20.000Z or later" in str(refused.value)
        assert times_of(refused.value) == (NOW,)


def test_stamped_records_need_no_rows(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, message_timestamp_type="LogAppendTime")
    for path in tmp_path.glob("*/*.appendtime"):
        path.unlink()
    with Directory.open(str(tmp_path)) as directory:
        own = OwnLogs(directory, cluster_of(directory, 10))
        found = own.first_appended(FLIGHTS_0, NOW + 1)
        assert found is not None
        assert (found.offset, found.timestamp) == (5, NOW + 10_000)
        assert own.first_appended(FLIGHTS_0, NOW + 10_001) is None
        assert own.first_record(FLIGHTS_0, 2) == TimedRecord(2, NOW, NOW)


def test_another_topic_of_that_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 5)
    with Directory.open(str(tmp_path)) as directory:
        cluster = cluster_of(directory, 0)
        cluster.topic_ids["flights"] = "AAAAAAAAAAAAAAAAAAAAAQ"
        with pytest.raises(InvalidRequest, match="must be the directory of a broker of that"):
            OwnLogs(directory, cluster).has(FLIGHTS_0)


def test_a_nonexistent_topic_or_partition_is_not_an_own_one(tmp_path: Path) -> None:
    write(tmp_path, 5)
    with Directory.open(str(tmp_path)) as directory:
        own = OwnLogs(directory, cluster_of(directory, 0))
        assert not own.has(TopicPartition("ships", 0))
        assert not own.has(TopicPartition("flights", 1))
