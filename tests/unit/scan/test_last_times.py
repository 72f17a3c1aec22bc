"""Records with Long.MAX_VALUE as their time, which some producers send instead of no time."""

from pathlib import Path

import pytest
from tests.worlds.directories.random_logs import T0, TOPIC

from tidelog import scan
from tidelog.env import Env, ManualClock
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import INT64_MAX, NewRecord

TIMES = (T0, INT64_MAX, INT64_MAX - 1, INT64_MAX)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Write three records into a finished segment and a fourth into the active segment."""
    path = str(tmp_path / "data")
    config = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(INT64_MAX)}
    env = Env(clock=ManualClock(T0))
    with LogDir.open(path, env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, config=config)
        log = log_dir.log(TOPIC, 0)
        for number, time_ms in enumerate(TIMES):
            if number == len(TIMES) - 1:
                log.roll()
            log.append([NewRecord(value=b"late", timestamp=time_ms)])
    return path


@pytest.mark.parametrize("has_maps", [True, False])
@pytest.mark.parametrize(
    ("start_ms", "end_ms", "found"),
    [
        (T0, None, [0, 1, 2, 3]),
        (T0 + 1, None, [1, 2, 3]),
        (INT64_MAX, None, [1, 3]),
        (T0, INT64_MAX - 1, [0]),
        (None, T0 + 1, [0]),
    ],
)
def test_a_side_left_open_has_no_end(
    path: str, has_maps: bool, start_ms: int | None, end_ms: int | None, found: list[int]
) -> None:
    for file in () if has_maps else Path(path).rglob("*.zones"):
        file.unlink()
    wanted = scan.RequestedRange(start_ms=start_ms, end_ms=end_ms)
    assert scan.count(path, TOPIC, requested_range=wanted).records == len(found)
    rows = scan.to_table(scan.plan(path, TOPIC, requested_range=wanted), ["offset"])
    assert rows["offset"].to_pylist() == found
