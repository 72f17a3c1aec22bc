"""Plans by zone maps: pruned zones, records counted without reading, unchanged results."""

import pickle  # noqa: TID251 - as Spark sends splits to its workers
import shutil
from pathlib import Path

import pytest
from tests.worlds.directories.random_logs import T0, TOPIC
from tests.worlds.directories.zoning import add_zones, gaps_up_to

import tidelog
from tidelog import scan
from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest, MissingTimestamps
from tidelog.record.builder import build_batch
from tidelog.storage.clocks.zone_map import Limits
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import ClockName, IsolationLevel, NewRecord

MINUTE_MS = 60_000
COUNT = 400
LATE = tuple(range(5, COUNT, 10))
UNTIMED = (101, 250)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a record per minute, then roll; one in ten is 200 minutes late, two have no time."""
    path = str(tmp_path_factory.mktemp("zoned"))
    clock = ManualClock(T0)
    with LogDir.open(path, env=Env(clock=clock), options=LogDirOptions(create=True)) as log_dir:
        config = {"internal.segment.bytes": "8000", "index.interval.bytes": "100"}
        log_dir.create_topic(TOPIC, config={**config, "retention.ms": "-1"})
        log = log_dir.log(TOPIC, 0)
        for number in range(COUNT):
            clock.set(T0 + number * MINUTE_MS)
            created = clock.now_ms() - (200 * MINUTE_MS if number in LATE else 0)
            if number in UNTIMED:
                created = -1
            log.append([NewRecord(value=b"%032d" % number, timestamp=created)])
        log.roll()
    assert add_zones(path, TOPIC) > 4
    return path


def minutes(start: int, end: int) -> scan.RequestedRange:
    return scan.RequestedRange(start_ms=T0 + start * MINUTE_MS, end_ms=T0 + end * MINUTE_MS)


def inside(start: int, end: int) -> list[int]:
    made = {n: n - 200 if n in LATE else n for n in range(COUNT) if n not in UNTIMED}
    return [number for number, minute in made.items() if start <= minute < end]


@pytest.mark.parametrize(("start", "end"), [(100, 104), (0, 1), (150, 160), (395, 500), (-200, 0)])
def test_both_sides_of_an_unordered_range_are_skipped(path: str, start: int, end: int) -> None:
    with gaps_up_to(0):
        plan = scan.plan(path, TOPIC, requested_range=minutes(start, end))
    stats = scan.ScanStats()
    found = scan.to_table(plan, ["offset"], stats=stats)["offset"].to_pylist()
    assert found == inside(start, end)
    # Each batch is a zone. So a scan reads only matching records, and records without a time that
    # are between them.
    assert stats.batches - len(found) in (0, sum(start <= n < end for n in UNTIMED))
    assert plan.sidecar_bytes > 0
    assert stats.without_time == len(UNTIMED)


def test_small_gaps_are_read_over(path: str) -> None:
    wanted = minutes(100, 200)
    with gaps_up_to(0):
        apart = scan.plan(path, TOPIC, requested_range=wanted)
    whole = scan.plan(path, TOPIC, requested_range=wanted)
    assert apart.scan_bytes < whole.scan_bytes
    assert sum(len(s.pieces) for s in whole) < sum(len(s.pieces) for s in apart)
    assert scan.to_table(whole, ["offset"]) == scan.to_table(apart, ["offset"])


def test_unread_records_without_a_time_are_counted_and_refused_if_strict(path: str) -> None:
    plan = scan.plan(path, TOPIC, requested_range=minutes(390, 391))
    stats = scan.ScanStats()
    scan.to_table(plan, stats=stats)
    assert stats.without_time == len(UNTIMED)
    with pytest.raises(MissingTimestamps, match="1 record without a timestamp"):
        scan.to_table(plan, options=scan.ReadOptions(strict=True))


def test_splits_travel(path: str) -> None:
    plan = scan.plan(path, TOPIC, requested_range=minutes(100, 200), split_bytes=300)
    there = [pickle.loads(pickle.dumps(split)) for split in plan]
    assert scan.to_table(there) == scan.to_table(plan)


def test_a_replaced_segment_is_planned_again(path: str, tmp_path: Path) -> None:
    """A file that replaces a segment is planned by offset and time.

    The positions in the old segment's zone map don't apply to it.
    """
    copy = str(tmp_path / "copy")
    shutil.copytree(path, copy)
    plan = scan.plan(copy, TOPIC, requested_range=minutes(100, 104))
    for file in (tmp_path / "copy").rglob("*.log"):
        other = file.with_suffix(".new")
        other.write_bytes(file.read_bytes())
        other.rename(file)
    stats = scan.ScanStats()
    assert scan.to_table(plan, ["offset"], stats=stats)["offset"].to_pylist() == inside(100, 104)
    assert stats.replanned > 0


@pytest.mark.parametrize("damage", ["cut", "flipped", "other log", "gone"])
def test_a_map_that_does_not_fit_changes_no_result(path: str, tmp_path: Path, damage: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    maps = sorted(copy.rglob("*.zones"))
    for file in maps:
        data = bytearray(file.read_bytes())
        if damage == "cut":
            file.write_bytes(data[:-1])
        elif damage == "flipped":
            data[-40] ^= 1
            file.write_bytes(data)
        elif damage == "other log":
            file.write_bytes(maps[0].read_bytes() if file != maps[0] else maps[1].read_bytes())
        else:
            file.unlink()
    plan = scan.plan(str(copy), TOPIC, requested_range=minutes(100, 104))
    assert scan.to_table(plan, ["offset"])["offset"].to_pylist() == inside(100, 104)
    assert bool(plan.reports) == (damage != "gone")


def test_a_cache_prunes_a_directory_that_has_no_maps(path: str, tmp_path: Path) -> None:
    copy, cache = tmp_path / "copy", str(tmp_path / "cache")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.zones"))
    before = sorted(copy.rglob("*"))
    plain = scan.plan(str(copy), TOPIC, requested_range=minutes(10, 11))
    for _ in range(2):
        cached = scan.plan(str(copy), TOPIC, requested_range=minutes(10, 11), zone_cache=cache)
        assert cached.scan_bytes < plain.scan_bytes
        assert scan.to_table(cached) == scan.to_table(plain)
    assert sorted(copy.rglob("*")) == before


def test_plans_leave_no_map_in_memory(path: str) -> None:
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        segments = log_dir.log(TOPIC, 0).segments
        closed = [segment for segment in segments if isinstance(segment, ClosedSegment)]
        for segment in closed:
            segment.use_zones(None, loaded=False)
        plan = scan.plan(log_dir, TOPIC, requested_range=minutes(10, 11))
        assert plan.sidecar_bytes > 0
        assert [segment.loaded_zones for segment in closed] == [None] * len(closed)


class TestCount:
    @pytest.mark.parametrize(("start", "end"), [(100, 300), (0, 1), (-200, 500), (7, 7)])
    def test_no_log_byte_is_read_if_batches_are_zones(
        self, path: str, start: int, end: int
    ) -> None:
        with gaps_up_to(0):
            found = scan.count(path, TOPIC, requested_range=minutes(start, end))
        assert found.records == len(inside(start, end))
        assert found.log_bytes == 0

    def test_the_append_clock_is_cut_exactly(self, path: str) -> None:
        found = scan.count(path, TOPIC, requested_range=minutes(10, 33), clock=ClockName.APPEND)
        assert (found.records, found.without_time) == (23, 0)

    def test_only_transactional_zones_are_opened(self, tmp_path: Path) -> None:
        root = str(tmp_path / "data")
        with LogDir.open(root, options=LogDirOptions(create=True)) as log_dir:
            log_dir.create_topic(TOPIC, config={"retention.ms": "-1"})
            log = log_dir.log(TOPIC, 0)
            batch = bytearray()
            for number in range(20):
                log.append([NewRecord(value=b"v" * 50, timestamp=T0)])
                if number % 5:
                    continue
                batch = build_batch(
                    [NewRecord(value=b"t", timestamp=T0)],
                    producer_id=number,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
                log.append_batches(batch)
                log.end_transaction(
                    producer_id=number, producer_epoch=0, coordinator_epoch=0, commit=number > 9
                )
            log.roll()
        add_zones(root, TOPIC)
        sizes = []
        for level, expected in (
            (IsolationLevel.READ_UNCOMMITTED, 24),
            (IsolationLevel.READ_COMMITTED, 22),
        ):
            with gaps_up_to(0):
                found = scan.count(root, TOPIC, isolation=level)
            assert found.records == expected
            sizes.append(found.log_bytes)
        assert sizes[0] == 0
        assert sizes[1] == 4 * len(batch)

    def test_without_maps_no_batch_is_read_for_its_records_without_a_time_alone(
        self, path: str, tmp_path: Path
    ) -> None:
        copy = str(tmp_path / "copy")
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.zones"))
        found = scan.count(copy, TOPIC, requested_range=minutes(390, 500))
        assert found.records == len(inside(390, 500))
        assert (found.without_time, found.is_least) == (0, True)

    def test_a_range_that_ends_before_it_starts(self, path: str) -> None:
        with pytest.raises(InvalidRequest, match="after its end"):
            scan.count(path, TOPIC, requested_range=minutes(5, 4))


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_batches_ruled_out_by_their_header_are_opened_for_records_without_a_time(
    tmp_path: Path, level: IsolationLevel
) -> None:
    """One zone has a batch in the range, and an earlier batch with a record without a time."""
    root = str(tmp_path / "data")
    with LogDir.open(root, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, config={"retention.ms": "-1"})
        log = log_dir.log(TOPIC, 0)
        log.append([NewRecord(timestamp=1), NewRecord(timestamp=-1)])
        log.append([NewRecord(timestamp=T0)])
        log.roll()
    add_zones(root, TOPIC, limits=Limits())
    wanted = scan.RequestedRange(start_ms=T0)
    stats = scan.ScanStats()
    scan.to_table(scan.plan(root, TOPIC, requested_range=wanted, isolation=level), stats=stats)
    assert (stats.rows, stats.without_time) == (1, 1)
    found = scan.count(root, TOPIC, requested_range=wanted, isolation=level)
    assert (found.records, found.without_time) == (1, 1)


@pytest.mark.parametrize("is_one_segment", [True, False])
@pytest.mark.parametrize("has_zones", [True, False])
def test_counts_are_the_rows_if_append_times_are_unknown_in_between(
    tmp_path: Path, is_one_segment: bool, has_zones: bool
) -> None:
    """Records with known and unknown append times are in separate pieces, whose bytes overlap."""
    segment_bytes = "100000" if is_one_segment else "700"
    with tidelog.open(str(tmp_path), writable=True) as log:
        log.create_topic("t", partitions=1, config={"internal.segment.bytes": segment_bytes})
        for number in range(30):
            enabled = "true" if number // 3 % 2 == 0 else "false"
            log.alter_config("t", {"tidelog.append.time.enable": enabled})
            log.append("t", [NewRecord(value=b"v", timestamp=number) for _ in range(2)])
    if not has_zones:
        for path in tmp_path.glob("t-0/*.zones"):
            path.unlink()
    known = [offset for offset in range(60) if offset // 6 % 2 == 0]
    for start, end in ((0, 60), (1, 59), (5, 6), (5, 7), (11, 31), (13, 60)):
        for clock, timed in ((ClockName.RECORD, range(60)), (ClockName.APPEND, known)):
            wanted = scan.RequestedRange(
                start_offset=start, end_offset=end, start_ms=0, end_ms=2**60
            )
            counted = scan.count(str(tmp_path), "t", requested_range=wanted, clock=clock)
            planned = scan.plan(str(tmp_path), "t", requested_range=wanted, clock=clock)
            offsets = scan.to_table(planned, ["offset"])["offset"].to_pylist()
            assert offsets == [each for each in timed if start <= each < end]
            assert counted.records == len(offsets)
            assert counted.without_time == end - start - len(offsets)
