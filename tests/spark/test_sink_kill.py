"""A streaming write whose driver, workers and committers are killed writes each record once."""

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.peers.test_sink_broker import read
from tests.spark import sink_child
from tests.spark.drivers import STEP_S, Driver, command_of, descendants
from tests.spark.settled import await_markers
from tests.worlds.kafka.either import AnyBroker

from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

TOPIC = "tides"
PARTITIONS = 3
BATCHES = 12
FILE_ROWS = 1_500
ROWS = BATCHES * 2 * FILE_ROWS
T0 = 1_360_342_800_000
Row = tuple[bytes | str | None, bytes | str | None, int]
WORKER = "pyspark.daemon"
COMMITTER = "python_streaming_sink_runner"


class Child(Driver):
    """A driver whose child processes are killed, too."""

    def __init__(self, work: Path, options: dict[str, str]) -> None:
        super().__init__([sink_child.__file__, str(work), json.dumps(options)])

    def kill_one(self, name: str, draw: random.Random) -> bool:
        """Kill a descendant whose command contains this name; return False if there is none."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [pid for pid in descendants(self.process.pid) if name in command_of(pid)]
            if name == WORKER:  # the first process is the daemon, which only forks workers
                found[:] = found[1:]
            return bool(found)

        if not self.wait_for(is_there):
            return False
        moment = draw.randrange(60)
        self.ends_within(moment * STEP_S)  # the process is killed at some point of its work
        try:
            os.kill(draw.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False  # the process ended before the signal was sent
        return True


def make_input(work: Path) -> None:
    """Write all files of the query, two for each batch."""
    for number in range(BATCHES * 2):
        add_file(work, number)


def add_file(work: Path, number: int) -> None:
    """Write one more file of rows, which becomes visible only when it is complete."""
    folder = work / "input"
    folder.mkdir(parents=True, exist_ok=True)
    rows = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
    table = pa.table(
        {
            "key": [str(n % 97).encode() for n in rows],
            "value": [b"%d" % n for n in rows],
            "timestamp": pa.array([(T0 + n) * 1000 for n in rows], pa.timestamp("us", tz="UTC")),
        }
    )
    hidden = folder / f".{number:03d}.parquet"
    pq.write_table(table, hidden)
    os.utime(hidden, (T0 // 1000 + number,) * 2)
    hidden.rename(folder / f"{number:03d}.parquet")


def kill_at_random(work: Path, options: dict[str, str], kind: str, draw: random.Random) -> str:
    """Run the query, and kill a process in or after a drawn batch."""
    child = Child(work, options)
    try:
        done = [int(name.name) for name in (work / "checkpoint/commits").glob("[0-9]*")]
        number = max(done, default=0) + draw.randrange(1, 3)
        folder = draw.choice(["offsets", "commits"])
        came = child.wait_for((work / f"checkpoint/{folder}/{number}").exists)
        if came and kind != "driver":
            came = child.kill_one(WORKER if kind == "worker" else COMMITTER, draw)
            # If Spark recovers from the kill, let it write two more batches.
            child.wait_for((work / f"checkpoint/commits/{number + 2}").exists)
    finally:
        child.kill()
    return f"{kind} at {folder}/{number}{'' if came else ' (ended before)'}"


def run_and_kill(work: Path, options: dict[str, str], seed: int) -> list[str]:
    """Kill the driver, a worker, and a committer or another worker; then let the query finish.

    Each kill is in a run of its own; the order of the kills is drawn. Returns a text about each
    kill.
    """
    draw = random.Random(seed)
    make_input(work)
    kinds = ["driver", "worker", "committer" if "path" in options else "worker"]
    draw.shuffle(kinds)
    story = [kill_at_random(work, options, kind, draw) for kind in kinds]
    status, errors = Child(work, options).finish()
    assert status == 0, f"{story}: {errors}"
    return story


def judge(found: list[Row], story: list[str], rows: int = ROWS) -> None:
    """Assert that every record was written once, with its key and its time."""
    want: list[Row] = [(str(n % 97).encode(), b"%d" % n, T0 + n) for n in range(rows)]
    missing, more = Counter(want) - Counter(found), Counter(found) - Counter(want)
    assert not missing, f"{story}: {len(missing)} are lost, {list(missing)[:5]}"
    assert not more, f"{story}: {len(more)} too many, {list(more)[:5]}"


def make_target(folder: Path) -> str:
    """Create a directory with the topic."""
    root = str(folder / "log")
    with LogDir.open(root, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, partitions=PARTITIONS)
    return root


def check_directory(root: str, story: list[str]) -> None:
    """Assert that the directory has every record once, appended in order of time."""
    with LogDir.open(root, options=LogDirOptions(writable=True)) as log_dir:
        logs = [log_dir.log(TOPIC, number) for number in range(PARTITIONS)]
        judge([(r.key, r.value, r.timestamp) for log in logs for r in log.records()], story)
        for log in logs:
            times = [log.append_time_of(offset) for offset in range(log.log_end_offset)]
            assert None not in times, story
            assert times == sorted(times, key=lambda ms: ms or 0), story


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 31))]


@pytest.mark.parametrize("seed", SEEDS)
def test_kills_while_a_stream_writes_a_directory(tmp_path: Path, seed: int) -> None:
    root, work = make_target(tmp_path), tmp_path / "work"
    story = run_and_kill(work, {"path": root, "topic": TOPIC}, seed)
    check_directory(root, story)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("either_broker", "seed"),
    [
        ("kafka", 1),
        *(pytest.param("kafka", seed, marks=pytest.mark.slow) for seed in range(2, 31)),
        *(pytest.param("tidelog", seed, marks=pytest.mark.slow) for seed in range(1, 11)),
    ],
    indirect=["either_broker"],
)
def test_kills_while_a_stream_writes_to_a_broker(
    either_broker: AnyBroker, tmp_path: Path, seed: int
) -> None:
    topic = f"killed-{seed}"
    either_broker.create_topic(topic, PARTITIONS)
    options = {
        "kafka.bootstrap.servers": either_broker.bootstrap,
        "topic": topic,
        "delivery": "exactly-once",
    }
    story = run_and_kill(tmp_path / "work", options, seed)
    await_markers(either_broker, topic)
    found = read(either_broker, topic)
    judge([(m.key(), m.value(), m.timestamp()[1]) for m in found], story)
