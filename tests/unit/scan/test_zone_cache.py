"""A cached zone map is used only for its own partition of its own directory."""

from pathlib import Path

import pytest
from tests.worlds.directories.random_logs import T0, TOPIC

from tidelog import scan
from tidelog.env import Env, ManualClock
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

HOUR_MS = 3_600_000


@pytest.mark.parametrize("has_id", [True, False])
def test_partitions_with_equal_ends_have_their_own_maps(tmp_path: Path, has_id: bool) -> None:
    """Segments of several partitions differ, but have equal first and last batches."""
    path, cache = str(tmp_path / "data"), str(tmp_path / "cache")
    names = [(TOPIC, 0, 1), (TOPIC, 1, HOUR_MS), ("tide2", 0, 2 * HOUR_MS)]
    env = Env(clock=ManualClock(T0))
    with LogDir.open(path, env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, partitions=2, config={"retention.ms": "-1"})
        log_dir.create_topic("tide2", config={"retention.ms": "-1"})
        for topic, partition, between_ms in names:
            log = log_dir.log(topic, partition)
            for time_ms in (T0, T0 - between_ms, T0 + 2):
                log.append([NewRecord(value=b"alike", timestamp=time_ms)])
            log.roll()
    for file in (*Path(path).rglob("*.zones"), *Path(path).rglob("*.appendtime")):
        file.unlink()
    for file in () if has_id else Path(path).rglob("partition.metadata"):
        file.unlink()
    wanted = scan.RequestedRange(start_ms=T0 - 10, end_ms=T0 + 10)
    for _ in range(2):
        found = scan.count(path, requested_range=wanted, zone_cache=cache)
        counts = {
            (name.topic, name.partition): one.records for name, one in found.partitions.items()
        }
        assert counts == {(TOPIC, 0): 3, (TOPIC, 1): 2, ("tide2", 0): 2}
