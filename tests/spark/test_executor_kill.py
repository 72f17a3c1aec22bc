"""Executors of a cluster are killed while a stream, a bootstrap and a mirror write a directory.

The driver keeps running, and Spark repeats the killed executors' tasks in other executors. SIGKILL
ends one or both executors, but not their Python processes. The signal is sent after a random step
of the work has become visible on disk. Meanwhile readers see only whole commits of each partition.
"""

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from tests.peers.test_sink_broker import read
from tests.spark import sink_child
from tests.spark.cluster import Processes, start_standalone
from tests.spark.drivers import LIMIT_S, STEP_S, Driver, ends_within
from tests.spark.executors import Application, Told, variables
from tests.spark.jobs import mirror_child, test_bootstrap_kill, test_mirror_kill
from tests.spark.jobs.test_bootstrap_kill import Run, check_all, write_table
from tests.spark.settled import await_markers
from tests.spark.test_sink_kill import (
    BATCHES,
    FILE_ROWS,
    PARTITIONS,
    TOPIC,
    check_directory,
    judge,
    make_input,
    make_target,
)
from tests.worlds.directories.topics import append, held, make
from tests.worlds.kafka.either import AnyBroker

from tidelog.directory import Directory
from tidelog.storage import commits

if TYPE_CHECKING:
    import subprocess

LOOK_S = 0.2
# Between the visible step and the kill, the test makes a random number of pauses, which is less
# than this number.
STEPS_MAX = 30
STAGED = "*/*.stag*"
BOOTSTRAP_TASKS = 16
MIRROR_BATCHES = 8
# The last batch in which a kill may occur, so that some batches remain to be written.
LAST_BATCH = 4
MIRROR_PART = mirror_child.BATCH_RECORDS // test_mirror_kill.PARTITIONS


class Work(Protocol):
    """A running driver."""

    process: "subprocess.Popen[bytes]"

    def wait_for(self, is_so: Callable[[], bool]) -> bool:
        """See `Driver`."""
        ...


@dataclass(slots=True)
class Killing:
    """Kills executors of a driver once, and records what readers see until the driver ends.

    Attributes:
        application: The application of the executors.
        data: The directory that the application writes; it does not exist if the application writes
            to a broker.
        topic: The topic.
        draw: Draws the time of the kill, and the executors.
        looks: Ends of the partitions, at each look at the directory.
        killed: Number of executors killed while there was work for them.
    """

    application: Application
    data: Path
    topic: str
    draw: random.Random
    looks: list[list[int]] = field(default_factory=list)
    killed: int = 0

    def kill(self, work: Work, is_time: Callable[[], bool], is_done: Callable[[], bool]) -> None:
        """Kill executors as soon as `is_time` holds, and let the driver finish."""
        work.wait_for(is_time)
        ends_within(work.process, self.draw.randrange(STEPS_MAX) * STEP_S)
        killed = self.application.kill_some(self.draw)
        # `is_done` is called after the kill. If the work was already done, Spark might not notice
        # that executors are lost.
        self.killed = 0 if is_done() else killed
        self.look()
        end = time.monotonic() + LIMIT_S
        while not ends_within(work.process, LOOK_S):
            assert time.monotonic() < end, f"after {LIMIT_S} s the driver still runs"
            self.look()

    def look(self) -> None:
        """Record the partitions' ends as a reader sees them, unless there is no directory."""
        if not self.data.exists():
            return
        with Directory.open(str(self.data)) as directory:
            if self.topic in directory.topics():
                ends = directory.end_offsets(directory.log_dir.partitions(self.topic))
                self.looks.append([end for _, end in sorted(ends.items())])

    def check(self, wholes: Sequence[Collection[int]]) -> Told:
        """Check that Spark lost executors and readers saw whole commits; return Spark's counts.

        Args:
            wholes: For each partition, the ends that a reader may see: 0, and the end of each
                commit.
        """
        told = self.application.told()
        print(f"killed {self.killed}: {told}; {len(self.looks)} looks")
        assert told.removed >= self.killed
        for look in self.looks:
            assert all(end in whole for end, whole in zip(look, wholes, strict=True)), self.looks
        return told


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Processes, str]]:
    folder = tmp_path_factory.mktemp("cluster")
    processes = Processes(folder, variables=variables(folder))
    try:
        yield processes, start_standalone(processes)
    finally:
        processes.stop()


@pytest.fixture
def application(cluster: tuple[Processes, str], tmp_path: Path) -> Application:
    processes, url = cluster
    return Application(processes=processes, url=url, events=tmp_path / "events")


def drawn_batch(
    draw: random.Random, application: Application, checkpoint: Path, data: Path
) -> Callable[[], bool]:
    """Choose a random batch and step; return a check of whether the batch has reached the step.

    The steps are the batch's start, running tasks, a staged file, and the batch's end.
    """
    number = draw.randint(0, LAST_BATCH)
    begun, done = checkpoint / f"offsets/{number}", checkpoint / f"commits/{number}"
    steps: dict[str, Callable[[], bool]] = {
        "begun": begun.exists,
        "running": lambda: begun.exists() and application.is_busy(),
        "staged": lambda: begun.exists() and any(data.glob(STAGED)),
        "done": done.exists,
    }
    is_so = steps[draw.choice(list(steps))]
    return lambda: is_so() or done.exists()


# Seed 7 kills one executor while tasks run, or while other executors need its shuffle files.
SEEDS = [7, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 11) if n != 7)]


@pytest.mark.parametrize("seed", SEEDS)
def test_executors_killed_under_a_stream(
    application: Application, tmp_path: Path, seed: int
) -> None:
    data = make_target(tmp_path)
    killing = Killing(application, Path(data), TOPIC, random.Random(seed))
    run_stream(killing, tmp_path / "work", {"path": data, "topic": TOPIC})
    check_directory(data, ["an executor"])
    killing.check([ends_of_batches(records) for records in values(data)])
    assert list(Path(data).glob(STAGED)) == []


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("seed", range(1, 6))
def test_executors_killed_under_a_stream_to_a_broker(
    application: Application, either_broker: AnyBroker, tmp_path: Path, seed: int
) -> None:
    topic = f"executors-{seed}"
    either_broker.create_topic(topic, PARTITIONS)
    options = {"kafka.bootstrap.servers": either_broker.bootstrap, "topic": topic}
    killing = Killing(application, tmp_path / "no directory", topic, random.Random(seed))
    run_stream(killing, tmp_path / "work", options | {"delivery": "exactly-once"})
    await_markers(either_broker, topic)
    found = read(either_broker, topic)
    judge([(m.key(), m.value(), m.timestamp()[1]) for m in found], ["an executor"])
    killing.check([])


def run_stream(killing: Killing, work: Path, options: dict[str, str]) -> None:
    """Let a query write its batches, and kill executors meanwhile."""
    make_input(work)
    conf = killing.application.conf()
    command = [sink_child.__file__, str(work), json.dumps(options), json.dumps(conf)]
    driver = Driver(command, killing.application.processes.environment())
    checkpoint = work / "checkpoint"
    is_time = drawn_batch(killing.draw, killing.application, checkpoint, killing.data)
    try:
        killing.kill(driver, is_time, (checkpoint / f"commits/{BATCHES - 1}").exists)
        status, errors = driver.finish()
    finally:
        driver.end()
    assert status == 0, errors


def values(data: str) -> list[list[int]]:
    """Return the record numbers in the rows of each partition, in order."""
    return [[int(record.value or b"") for record in records] for records in held(data, TOPIC)]


def ends_of_batches(numbers: Sequence[int]) -> set[int]:
    """Return the offsets at which batches end, and 0."""
    batches = [number // (2 * FILE_ROWS) for number in numbers]
    assert batches == sorted(batches)
    changes = {at + 1 for at, (one, other) in enumerate(pairwise(batches)) if one != other}
    return {0, len(numbers)} | changes


@pytest.mark.parametrize("seed", SEEDS)
def test_executors_killed_under_a_bootstrap(
    application: Application, tmp_path: Path, seed: int
) -> None:
    table, data, draw = tmp_path / "table.parquet", tmp_path / "data", random.Random(seed)
    write_table(table)
    conf = application.conf() | {"spark.sql.files.maxPartitionBytes": "40000"}
    killing = Killing(application, data, "orders", draw)
    is_time = partial(has_come, *draw_step(draw, application, data))
    run = Run(
        table,
        data,
        application.url,
        tasks=BOOTSTRAP_TASKS,
        conf=conf,
        env=application.processes.environment(),
    )
    try:
        killing.kill(run, is_time, (data / commits.WRITERS_FILE).exists)
        told = run.finish()
    finally:
        run.end()
    assert sum(int(str(row["records"])) for row in told) == test_bootstrap_kill.ROWS
    check_all(data)
    killing.check([{0, int(str(row["records"]))} for row in told])
    assert list(data.glob(STAGED)) == []


def draw_step(
    draw: random.Random, application: Application, data: Path
) -> tuple[Callable[[], int], int]:
    """Return a function that counts new shuffle or staged files, and the count to wait for."""
    before = application.shuffled()
    if draw.randrange(2):
        return lambda: len(application.shuffled() - before), draw.randint(1, 4)
    return lambda: len(list(data.glob(STAGED))), draw.randint(1, BOOTSTRAP_TASKS // 2)


def has_come(count: Callable[[], int], enough: int) -> bool:
    return count() >= enough


@pytest.mark.parametrize("seed", SEEDS)
def test_executors_killed_under_a_mirror(
    application: Application, tmp_path: Path, seed: int
) -> None:
    draw, topic, partitions = random.Random(seed), "orders", test_mirror_kill.PARTITIONS
    source = make(f"{tmp_path}/a", topic, partitions)
    target, work = make(f"{tmp_path}/b", topic, partitions), tmp_path / "check"
    count = MIRROR_BATCHES * MIRROR_PART
    for partition in range(partitions):
        append(source, topic, partition, test_mirror_kill.some(partition, 0, count))
    given: dict[str, object] = {
        "source": source,
        "topic": topic,
        "target": target,
        "checkpoint": str(work),
    }
    given |= {"once": True, "conf": application.conf()}
    driver = Driver([mirror_child.__file__, json.dumps(given)], application.processes.environment())
    killing = Killing(application, Path(target), topic, draw)
    is_time = drawn_batch(draw, application, work / "spark", Path(target))
    try:
        killing.kill(driver, is_time, (work / f"spark/commits/{MIRROR_BATCHES - 1}").exists)
        status, errors = driver.finish()
    finally:
        driver.end()
    assert status == 0, errors
    later_than_ms = test_mirror_kill.T0 + 10 * count
    test_mirror_kill.check_copied(source, target, str(work), later_than_ms=later_than_ms)
    killing.check([range(0, count + 1, MIRROR_PART)] * partitions)
