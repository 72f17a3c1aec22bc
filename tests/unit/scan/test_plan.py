"""Plans: pruned pieces, reported lost offsets, and no writes."""

import os
from pathlib import Path

import pytest
from tests.worlds.directories.random_logs import T0, TOPIC, make_log_dir, names, records_of

from tidelog import scan
from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest, OffsetsGone, UnknownTopic
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import ClockName, IsolationLevel, NewRecord, TopicPartition

MINUTE_MS = 60_000
COUNT = 400
ZERO = TopicPartition(TOPIC, 0)


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a record per minute to many segments; create times are an hour before append times."""
    path = str(tmp_path_factory.mktemp("ordered"))
    clock = ManualClock(T0)
    with LogDir.open(path, env=Env(clock=clock), options=LogDirOptions(create=True)) as log_dir:
        config = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
        log_dir.create_topic(TOPIC, config=config)
        for number in range(COUNT):
            clock.set(T0 + number * MINUTE_MS)
            created = clock.now_ms() - 60 * MINUTE_MS
            value = b"%032d" % number
            log_dir.log(TOPIC, 0).append([NewRecord(value=value, timestamp=created)])
    return path


def offsets_of(plan: scan.ScanPlan) -> list[int]:
    column = scan.to_table(plan, ["offset"]).column("offset").to_pylist()
    return [offset for offset in column if offset is not None]


# -- pruning -------------------------------------------------------------------------------------


def test_a_start_on_the_record_clock_excludes_earlier_segments(ordered: str) -> None:
    start = T0 + (300 - 60) * MINUTE_MS
    plan = scan.plan(ordered, TOPIC, requested_range=scan.RequestedRange(start_ms=start))
    assert offsets_of(plan) == list(range(300, COUNT))
    assert plan.scan_bytes < plan.log_bytes * 0.3


def test_append_clock_passes_over_both_sides(ordered: str) -> None:
    wanted = scan.RequestedRange(start_ms=T0 + 200 * MINUTE_MS, end_ms=T0 + 210 * MINUTE_MS)
    plan = scan.plan(ordered, TOPIC, requested_range=wanted, clock=ClockName.APPEND)
    assert offsets_of(plan) == list(range(200, 210))
    assert plan.scan_bytes < plan.log_bytes * 0.1


def test_offsets_pass_over_the_rest(ordered: str) -> None:
    plan = scan.plan(
        ordered, TOPIC, requested_range=scan.RequestedRange(start_offset=50, end_offset=55)
    )
    assert offsets_of(plan) == list(range(50, 55))
    assert plan.scan_bytes < plan.log_bytes * 0.05
    assert plan.bounds == {ZERO: (50, 55)}


@pytest.mark.parametrize("clock", list(ClockName))
def test_a_range_after_all_records_reads_no_record(ordered: str, clock: ClockName) -> None:
    plan = scan.plan(
        ordered, TOPIC, requested_range=scan.RequestedRange(start_ms=2**60), clock=clock
    )
    assert len(plan) == 0
    assert plan.scan_bytes == 0


def test_an_empty_time_range_reads_no_record(ordered: str) -> None:
    wanted = scan.RequestedRange(start_ms=T0, end_ms=T0)
    assert len(scan.plan(ordered, TOPIC, requested_range=wanted)) == 0
    assert (
        offsets_of(scan.plan(ordered, TOPIC, requested_range=wanted, clock=ClockName.APPEND)) == []
    )


# -- cutting -------------------------------------------------------------------------------------


def test_splits_cover_the_log_once_and_have_the_requested_size(ordered: str) -> None:
    plan = scan.plan(ordered, TOPIC, split_bytes=5_000)
    assert len(plan) > 5
    ends = [split.end_offset for split in plan]
    assert [split.start_offset for split in plan] == [0, *ends[:-1]]
    assert ends[-1] == COUNT
    # Some splits are larger than requested: pieces overlap, because the sparse index lacks entries
    # for some batches.
    assert max(split.size_bytes for split in plan) < 5_000 * 1.2


def test_small_segments_share_a_split(ordered: str) -> None:
    (split,) = scan.plan(ordered, TOPIC)
    assert len(split.pieces) > 10


def test_splits_are_as_large_as_the_limits_allow(tmp_path: Path) -> None:
    """Six segments of two offsets each and of equal size, with limits that fit them exactly."""
    path = str(tmp_path)
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC)
        log = log_dir.log(TOPIC, 0)
        for _ in range(6):
            log.append([NewRecord(value=b"x", timestamp=T0), NewRecord(value=b"y", timestamp=T0)])
            log.roll()
    size = scan.plan(path, TOPIC).scan_bytes // 6

    def ends(split_bytes: int, max_offsets: int) -> list[int]:
        plan = scan.plan(path, TOPIC, split_bytes=split_bytes, max_offsets=max_offsets)
        return [split.end_offset for split in plan]

    assert ends(100 * size, 4) == [4, 8, 12]
    assert ends(100 * size, 5) == [4, 8, 12]
    assert ends(100 * size, 6) == [6, 12]
    assert ends(2 * size, 100) == [4, 8, 12]
    assert ends(2 * size - 1, 100) == [2, 4, 6, 8, 10, 12]
    assert ends(3 * size, 100) == [6, 12]


def test_min_splits_cuts_inside_segments(tmp_path: Path) -> None:
    path = str(tmp_path)
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC)
        log = log_dir.log(TOPIC, 0)
        for _ in range(10):
            log.append([NewRecord(value=b"x" * 1_000) for _ in range(100)])
    assert len(scan.plan(path, TOPIC)) == 1
    plan = scan.plan(path, TOPIC, min_splits=4)
    assert 4 <= len(plan) <= 6
    assert {len(split.pieces) for split in plan} == {1}
    assert offsets_of(plan) == list(range(1_000))


def test_small_splits_are_divided_further_only_on_request(ordered: str) -> None:
    assert len(scan.plan(ordered, TOPIC, min_splits=4)) == 1
    plan = scan.plan(ordered, TOPIC, min_splits=4, min_split_bytes=0)
    assert len(plan) >= 4
    assert offsets_of(plan) == offsets_of(scan.plan(ordered, TOPIC))
    with pytest.raises(InvalidRequest, match="min_split_bytes must be 0 or more, got -1"):
        scan.plan(ordered, TOPIC, min_split_bytes=-1)


# -- topics, partitions and bounds ---------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("two"))
    make_log_dir(path, 7, steps=20)
    return path


def test_partitions_one_by_one_or_all(two: str) -> None:
    whole = scan.plan(two)
    assert {split.partition for split in whole} == {0, 1}
    assert scan.plan(two, names(2)).splits == scan.plan(two, [TOPIC, TOPIC]).splits == whole.splits
    assert {split.partition for split in scan.plan(two, ZERO)} == {0}


def test_own_bounds_of_a_partition_win(two: str) -> None:
    own = {ZERO: scan.RequestedRange(start_offset=3)}
    plan = scan.plan(
        two, requested_range=scan.RequestedRange(start_offset=1, end_offset=5), per_partition=own
    )
    assert plan.bounds == {ZERO: (3, 5), TopicPartition(TOPIC, 1): (1, 5)}


def test_ends_by_name(two: str) -> None:
    end = records_of(two, 0)[-1].offset + 1
    latest = scan.RequestedRange(start_offset=scan.LATEST, end_offset=scan.LATEST)
    assert len(scan.plan(two, ZERO, requested_range=latest)) == 0
    earliest = scan.RequestedRange(start_offset=scan.EARLIEST)
    (start, found_end) = scan.plan(two, ZERO, requested_range=earliest).bounds[ZERO]
    assert start == 0
    assert found_end >= end


@pytest.mark.parametrize(
    "wanted",
    [
        scan.RequestedRange(start_offset=-3),
        scan.RequestedRange(end_offset=scan.EARLIEST),
        scan.RequestedRange(start_offset=5, end_offset=4),
        scan.RequestedRange(start_ms=5, end_ms=4),
    ],
)
def test_invalid_bounds_are_refused(two: str, wanted: scan.RequestedRange) -> None:
    with pytest.raises(InvalidRequest):
        scan.plan(two, requested_range=wanted)


def test_topics_and_partitions_that_do_not_exist(two: str) -> None:
    with pytest.raises(UnknownTopic, match=TOPIC):
        scan.plan(two, "tide")
    with pytest.raises(UnknownTopic):
        scan.plan(two, TopicPartition(TOPIC, 2))


def test_positions_are_those_of_offsets_for_times(two: str) -> None:
    """As in Kafka's connector, start and end time select offsets; all records between are read."""
    start_ms, end_ms = T0 + 300_000, T0 + 600_000
    with LogDir.open(two) as log_dir:
        reader = log_dir.reader(TOPIC, 0)
        first, last = reader.offset_for_time(start_ms), reader.offset_for_time(end_ms)
    assert first is not None
    plan = scan.plan(
        two,
        ZERO,
        requested_range=scan.RequestedRange(start_ms=start_ms, end_ms=end_ms),
        times=scan.TimeMode.POSITIONS,
    )
    end = 2**62 if last is None else last.offset
    want = [r.offset for r in records_of(two, 0) if first.offset <= r.offset < end]
    assert offsets_of(plan) == want


def test_a_position_after_all_records_gives_an_empty_plan(two: str) -> None:
    late = scan.RequestedRange(start_ms=2**61)
    positions = scan.TimeMode.POSITIONS
    assert len(scan.plan(two, ZERO, requested_range=late, times=positions)) == 0
    with pytest.raises(InvalidRequest, match="no record"):
        scan.plan(two, ZERO, requested_range=late, times=positions, needs_match=True)


def test_transaction_is_dropped_though_its_marker_is_after_the_range(tmp_path: Path) -> None:
    path = str(tmp_path)
    make_log_dir(path, 3, partitions=1, steps=120)
    committed = [r.offset for r in records_of(path, 0, IsolationLevel.READ_COMMITTED)]
    every = [r.offset for r in records_of(path, 0)]
    assert len(committed) < len(every)
    for end in every[:: max(1, len(every) // 20)]:
        plan = scan.plan(
            path,
            ZERO,
            requested_range=scan.RequestedRange(end_offset=end),
            isolation=IsolationLevel.READ_COMMITTED,
        )
        assert offsets_of(plan) == [offset for offset in committed if offset < end]


# -- lost offsets --------------------------------------------------------------------------------


def test_offsets_outside_the_log_are_named(ordered: str, tmp_path: Path) -> None:
    path = str(tmp_path)
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC)
        log = log_dir.log(TOPIC, 0)
        log.append([NewRecord(value=b"x") for _ in range(10)])
        log.delete_records(4)
    wanted = scan.RequestedRange(start_offset=2, end_offset=12)
    with pytest.raises(OffsetsGone, match=r"offsets 2 to 3.*deleted.*offsets 10 to 11"):
        scan.plan(path, TOPIC, requested_range=wanted)
    plan = scan.plan(path, TOPIC, requested_range=wanted, fail_on_data_loss=False)
    assert [(lost.start, lost.end) for lost in plan.lost] == [(2, 4), (10, 12)]
    assert offsets_of(plan) == list(range(4, 10))


def test_a_start_after_the_log_end_is_an_error(ordered: str) -> None:
    with pytest.raises(OffsetsGone, match=f"{COUNT} to {COUNT + 4}"):
        scan.plan(ordered, TOPIC, requested_range=scan.RequestedRange(start_offset=COUNT + 5))


def test_open_bounds_lose_no_record(tmp_path: Path) -> None:
    path = str(tmp_path)
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC)
        log = log_dir.log(TOPIC, 0)
        log.append([NewRecord(value=b"x") for _ in range(10)])
        log.delete_records(4)
    plan = scan.plan(path, TOPIC)
    assert plan.lost == ()
    assert offsets_of(plan) == list(range(4, 10))


# -- reading never writes ------------------------------------------------------------------------


def snapshot(path: str) -> dict[str, tuple[int, int]]:
    return {
        str(found): (found.stat().st_mtime_ns, found.stat().st_size)
        for found in Path(path).rglob("*")
    }


def test_scan_writes_nothing(two: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for sidecar in list(Path(two).rglob("*.index"))[:2]:
        sidecar.unlink()  # the index is rebuilt in memory
    before = snapshot(two)
    flags_seen: list[int] = []
    real_open = os.open

    def spy(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).startswith(two):
            flags_seen.append(flags)
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", spy)
    assert scan.to_table(scan.plan(two, split_bytes=1_000)).num_rows
    assert flags_seen
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) for flags in flags_seen)
    assert snapshot(two) == before
