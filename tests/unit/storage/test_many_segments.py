"""Many more segments are opened, read and searched than a process may have descriptors.

A writer and a reader each do so in their own process, whose limit is lowered.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.worlds.directories.logs import ANY_TIME, TOPIC, WRITABLE, new_records
from tests.worlds.needs import need

from tidelog.record.builder import build_batch
from tidelog.record.header import seal
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.segment.time_index import TimeIndex

CHILD = """
import resource, sys
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
path, count = sys.argv[1], int(sys.argv[2])

def check(log):
    assert len(log.segments) == count + 1, len(log.segments)
    assert log.log_end_offset == 2 * count
    values = [record.offset for record in log.records(1)]
    assert values == list(range(1, 2 * count))
    for target in (0, 7, 10 * count // 2 + 1, 10 * (count - 1)):
        found = log.offset_for_time(target)
        segment, rest = divmod(target, 10)  # segment n has the times 10n and 10n + 1
        assert found.offset == 2 * segment + (rest if rest < 2 else 2), (target, found)
    assert log.offset_for_time(10 * count) is None
    assert log.max_timestamp().offset == 2 * count - 1
    held = [s.view(0, s.size_bytes) for s in log.segments]
    assert sum(map(len, held)) == log.size_bytes()

with LogDir.open(path) as directory:
    log = directory.reader("t", 0)
    check(log)
    log.use_kernels()
    check(log)
with LogDir.open(path, options=LogDirOptions(writable=True)) as directory:
    log = directory.log("t", 0)
    check(log)
print("fine")
"""


def write_segments(directory: Path, count: int) -> None:
    """Write segments 10 ms apart, as after a clean stop; each has one batch of two records."""
    batch = build_batch(new_records([0, 1]), leader_epoch=0)
    for number in range(count):
        base, time = 2 * number, 10 * number
        batch[:8] = base.to_bytes(8, "big")
        batch[27:35] = time.to_bytes(8, "big")
        batch[35:43] = (time + 1).to_bytes(8, "big")
        seal(batch, 0)
        times = TimeIndex(base)
        times.maybe_append(time + 1, base + 1)
        name = f"{base:020d}"
        (directory / f"{name}.log").write_bytes(batch)
        (directory / f"{name}.index").touch()
        (directory / f"{name}.timeindex").write_bytes(times.encoded)
    last = directory / f"{2 * count:020d}.log"
    for suffix in (".log", ".index", ".timeindex"):
        last.with_suffix(suffix).touch()


@pytest.mark.parametrize(("count", "limit"), [(10_000, 1024), (600, 100)])
def test_more_segments_than_descriptors(count: int, limit: int, tmp_path: Path) -> None:
    need(sys.platform == "linux", "Linux's limit on maps")
    root = tmp_path / "data"
    with LogDir.open(str(root), options=WRITABLE) as directory:
        directory.create_topic(TOPIC, config=ANY_TIME)
    write_segments(root / "t-0", count)
    run = [sys.executable, "-c", CHILD, str(root), str(count), str(limit)]
    found = subprocess.run(run, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout == "fine\n"
