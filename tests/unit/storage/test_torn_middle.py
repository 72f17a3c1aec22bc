"""In a finished segment, too large a batch length hides later batches; each reader reports this.

The checksum doesn't cover the length field, so such a batch looks incomplete.
"""

from pathlib import Path

import pytest

from tidelog import scan
from tidelog.env import Env, ManualClock
from tidelog.errors import CorruptBatch
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.segment import zone_map_files
from tidelog.types import ClockName, NewRecord

TOPIC = "tides"
T0 = 1_360_342_800_000
COUNT = 10
BROKEN = 5
LENGTH_AT = 8


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Write ten batches into a finished segment, and set the length of the sixth to 256 MB."""
    root = tmp_path / "log"
    env = Env(clock=ManualClock(T0))
    with LogDir.open(str(root), env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, config={"retention.ms": "-1", "index.interval.bytes": "1000"})
        log = log_dir.log(TOPIC, 0)
        for number in range(COUNT):
            log.append([NewRecord(value=b"x" * 1_000, timestamp=T0 + number)])
        log.roll()
        log.append([NewRecord(value=b"x", timestamp=T0 + COUNT)])
    for sidecar in root.rglob("*.zones"):
        sidecar.unlink()
    file = min(root.rglob("*.log"))
    data = bytearray(file.read_bytes())
    data[BROKEN * (len(data) // COUNT) + LENGTH_AT] = 0x10
    file.write_bytes(data)
    return str(root)


@pytest.mark.parametrize("drops_index", [False, True])
@pytest.mark.parametrize("uses_kernels", [False, True])
def test_readers_and_lookups_report_an_incomplete_batch(
    path: str, drops_index: bool, uses_kernels: bool
) -> None:
    if drops_index:
        for file in Path(path).rglob("*index"):
            file.unlink()
    with LogDir.open(path) as log_dir:
        reader = log_dir.reader(TOPIC, 0)
        if uses_kernels:
            reader.use_kernels()
        records = reader.records()
        assert [next(records).offset for _ in range(BROKEN)] == list(range(BROKEN))
        with pytest.raises(CorruptBatch, match=r"no complete batch in the last .* 5 to "):
            next(records)
        with pytest.raises(CorruptBatch):
            reader.offset_for_time(T0 + BROKEN, clock=ClockName.RECORD)


def test_scans_and_counts_report_an_incomplete_batch(path: str) -> None:
    plan = scan.plan(path, TOPIC)
    with pytest.raises(CorruptBatch, match="no complete batch"):
        scan.to_table(plan)
    with pytest.raises(CorruptBatch, match="no complete batch"):
        scan.count(path, TOPIC)


def test_no_zone_map_is_made_of_half_a_segment(path: str) -> None:
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        built = zone_map_files.build_missing(log_dir.log(TOPIC, 0).segments)
        assert not built
        assert not list(Path(path).rglob("*.zones"))
        assert any("no complete batch" in line for line in log_dir.reports)
