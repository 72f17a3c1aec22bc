"""A bootstrap that is killed at random moments and started again loads its table once.

SIGKILL ends the command's process group, then Spark's Python processes, which have separate process
groups. Each kill waits until files of one kind appear in the directory: segments that tasks stage,
files that the commit prepares, the commit's own file, or the file that marks the job as done.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.worlds.spark.settings import QUICK_JVM

from tidelog.directory import Directory
from tidelog.storage import commits

LIMIT_S: Final = 240
ROWS: Final = 20_000
PARTITIONS: Final = 3
TASKS: Final = 6
T0: Final = 1_360_281_600_000
STEP_MS: Final = 60_000
# Steps of a bootstrap that are visible on disk: a pattern of file names, and the largest number of
# files that will match it. A kill waits until a random number of files, up to this one, match.
MOMENTS: Final = {
    "*/*.staging": TASKS,
    "*/*.staged": TASKS * PARTITIONS,
    "tidelog-commit-*": 1,
    commits.WRITERS_FILE: 1,
}


def write_table(path: Path) -> None:
    """Write rows whose times are out of order, in enough row groups for several tasks."""
    numbers = [(n * 7919) % ROWS for n in range(ROWS)]
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "plane": pa.array([None if n % 13 == 0 else f"plane{n % 70}" for n in numbers]),
            "made": pa.array([T0 + n * STEP_MS for n in numbers], pa.timestamp("ms", "UTC")),
        }
    )
    parquet.write_table(table, path, row_group_size=ROWS // 8)


def _alive(pids: list[int]) -> list[int]:
    """Return the processes that still run; zombies (ended, not reaped; state Z) are left out."""
    names = ",".join(map(str, pids))
    listed = subprocess.run(
        ["ps", "-o", "pid=,stat=", "-p", names], capture_output=True, text=True, check=False
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, state, *_ in rows if not state.startswith("Z")]


class Run:
    """One run of the command."""

    def __init__(
        self,
        table: Path,
        data: Path,
        master: str = "local[2]",
        *,
        tasks: int = TASKS,
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "tidelog.cli.app", "spark", "bootstrap"]
        command += [
            str(table),
            "orders",
            "--to",
            str(data),
            "--key",
            "plane",
            "--time",
            "made",
            "--tasks",
            str(tasks),
        ]
        command += ["--create", str(PARTITIONS), "--config", "retention.ms=-1"]
        command += ["--config", "internal.segment.bytes=150000", "--no-count", "-o", "json"]
        command += ["--master", master, "--conf", "spark.driver.memory=1g"]
        for name, setting in (conf or {}).items():
            command += ["--conf", f"{name}={setting}"]
        self.process = subprocess.Popen(
            command,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**(os.environ if env is None else env), "JAVA_TOOL_OPTIONS": QUICK_JVM},
        )

    def wait_for(self, is_so: Callable[[], bool]) -> bool:
        """Wait until a condition holds; return False if the command ends first."""
        for _ in range(LIMIT_S * 500):
            if is_so():
                return True
            try:
                self.process.wait(timeout=0.002)
            except subprocess.TimeoutExpired:
                continue
            return False
        raise AssertionError("never came to it")

    def kill(self) -> None:
        """Kill the command and all its descendants, and wait for their end.

        Spark's Python processes, one of which may be committing, are in other process groups.
        """
        started = self._held()
        os.killpg(self.process.pid, signal.SIGKILL)
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=LIMIT_S)
        for _ in range(LIMIT_S * 10):
            if not _alive(started):
                return
        raise AssertionError(f"of {started} some are still there")

    def end(self) -> None:
        """Kill the command unless it has ended."""
        if self.process.poll() is None:
            self.kill()

    def _held(self) -> list[int]:
        """Suspend the command and its descendants; return the ids of the descendants."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        held: list[int] = []
        while new := [pid for pid in self.descendants() if pid not in held]:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            held += new
        return held

    def descendants(self) -> list[int]:
        """Return the ids of all descendants of the command."""
        listed = subprocess.run(
            ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
        )
        rows = [line.split() for line in listed.stdout.splitlines()]
        parents = {int(pid): int(parent) for pid, parent in rows}
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]

    def workers(self) -> list[int]:
        """Return the ids of the tasks' Python processes, which are children of Spark's daemons."""
        listed = subprocess.run(
            ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        )
        rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
        parents = {int(pid): int(parent) for pid, parent, *_ in rows}
        daemons = {int(row[0]) for row in rows if "pyspark.daemon" in row[-1]}

        def is_ours(pid: int) -> bool:
            while pid in parents and pid != self.process.pid:
                pid = parents[pid]
            return pid == self.process.pid

        return [pid for pid in daemons if parents[pid] in daemons and is_ours(pid)]

    def finish(self) -> list[dict[str, object]]:
        """Wait for the command's end; return its output."""
        out, errors = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, errors.decode()[-3000:]
        return [json.loads(line) for line in out.decode().splitlines()]


def kill_at(table: Path, data: Path, pattern: str, count: int) -> bool:
    """Run the command; kill it as soon as `count` files match; return False if it ends first."""
    run = Run(table, data)
    was_there = False
    try:
        was_there = run.wait_for(lambda: len(list(data.glob(pattern))) >= count)
    finally:
        if was_there:
            run.kill()
        else:
            run.finish()
    return was_there


def visible(data: Path) -> list[int]:
    """Return how many records of each partition a reader sees."""
    try:
        with Directory.open(str(data)) as directory:
            if "orders" not in directory.topics():
                return []
            ends = directory.end_offsets(directory.log_dir.partitions("orders"))
    except FileNotFoundError:
        return []
    return [end for _, end in sorted(ends.items())]


def check_all(data: Path) -> None:
    """Assert that the topic has every row once, with its time, in order of time."""
    found = []
    with Directory.open(str(data)) as directory:
        for number in range(PARTITIONS):
            records = list(directory.partition("orders", number).records())
            assert [record.offset for record in records] == list(range(len(records)))
            times = [record.timestamp or 0 for record in records]
            assert times == sorted(times)
            found += [(json.loads(r.value or b"")["id"], r.timestamp) for r in records]
    assert sorted(found) == [(n, T0 + n * STEP_MS) for n in range(ROWS)]


# With seed 14, the test kills the command once, while tasks stage segments. With each other seed,
# it tries five kills, at any step of the job.
@pytest.mark.parametrize(
    ("seed", "kills"),
    [(14, 1), *(pytest.param(n, 5, marks=pytest.mark.slow) for n in range(2, 15))],
)
def test_no_row_is_lost_or_repeated(tmp_path: Path, seed: int, kills: int) -> None:
    table, data = tmp_path / "table.parquet", tmp_path / "data"
    write_table(table)
    draw = random.Random(seed)
    story: list[str] = []
    for _ in range(kills):
        pattern = draw.choice(list(MOMENTS))
        count = draw.randint(1, MOMENTS[pattern])
        was_killed = kill_at(table, data, pattern, count)
        story.append(f"{'killed' if was_killed else 'ended'} at {count} of {pattern}")
        shown = visible(data)
        assert sum(shown) in (0, ROWS), story
    told = Run(table, data).finish()
    assert sum(int(str(row["records"])) for row in told) == ROWS, story
    check_all(data)
    left = [str(path) for path in data.glob("*/*.stag*")]
    assert left == [], story


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_task_of_a_killed_worker_is_repeated(tmp_path: Path, count: int) -> None:
    table, data = tmp_path / "table.parquet", tmp_path / "data"
    write_table(table)
    run = Run(table, data, master="local[2,4]")
    killed = 0
    try:
        assert run.wait_for(lambda: len(list(data.glob("*/*.staging"))) >= count)
        for pid in run.workers():
            os.kill(pid, signal.SIGKILL)
            killed += 1
    finally:
        told = run.finish()
    assert killed > 0
    assert sum(int(str(row["records"])) for row in told) == ROWS
    check_all(data)
    assert [str(path) for path in data.glob("*/*.stag*")] == []
