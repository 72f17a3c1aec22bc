"""A plan examines the zones of a block one by one only while it finds zones to exclude."""

import random
from pathlib import Path

from tests.worlds.directories.random_logs import T0, TOPIC
from tests.worlds.directories.zoning import add_zones, gaps_up_to

from tidelog import scan
from tidelog.env import Env, ManualClock
from tidelog.scan.split import RequestedRange
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

BATCHES = 400
PER_BATCH = 8
SPAN_MS = 1_000_000


def make(path: str, *, shuffled: bool) -> None:
    """Write batches of records at random times, or at increasing times."""
    draw = random.Random(7)
    with LogDir.open(path, env=Env(clock=ManualClock(T0)), options=LogDirOptions(create=True)) as d:
        d.create_topic(TOPIC, config={"retention.ms": "-1"})
        log = d.log(TOPIC, 0)
        for number in range(BATCHES):
            step = SPAN_MS // BATCHES
            low, high = (0, SPAN_MS) if shuffled else (number * step, (number + 1) * step)
            times = [T0 + draw.randrange(low, high) for _ in range(PER_BATCH)]
            log.append([NewRecord(value=b"x" * 50, timestamp=time) for time in times])
        log.roll()
    add_zones(path, TOPIC)


def read(path: str, wanted: RequestedRange) -> tuple[int, scan.ScanPlan]:
    plan = scan.plan(path, TOPIC, requested_range=wanted)
    return scan.to_table(plan, ("offset", "timestamp")).num_rows, plan


def in_range(path: str, start_ms: int, end_ms: int) -> int:
    with LogDir.open(path) as log_dir:
        records = log_dir.reader(TOPIC, 0).records()
        return sum(start_ms <= record.timestamp < end_ms for record in records)


def test_shuffled_times_are_read_exactly_without_judging_each_zone(tmp_path: Path) -> None:
    path = str(tmp_path)
    make(path, shuffled=True)
    start, end = T0 + 300_000, T0 + 700_000
    with gaps_up_to(1 << 20):
        found, plan = read(path, RequestedRange(start_ms=start, end_ms=end))
    assert found == in_range(path, start, end) > 0
    map_bytes = sum(file.stat().st_size for file in tmp_path.rglob("*.zones"))
    rows = BATCHES * 69
    assert map_bytes - plan.sidecar_bytes > rows // 2, "half of the rows and more stay unread"


def test_growing_times_are_pruned_to_the_zone(tmp_path: Path) -> None:
    path = str(tmp_path)
    make(path, shuffled=False)
    start, end = T0 + 300_000, T0 + 700_000
    with gaps_up_to(0):
        found, plan = read(path, RequestedRange(start_ms=start, end_ms=end))
    assert found == in_range(path, start, end) > 0
    assert plan.scan_bytes <= plan.log_bytes * 0.4 + 2 * plan.log_bytes // BATCHES
