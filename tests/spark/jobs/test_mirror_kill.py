"""A mirror whose driver is killed at a random moment neither loses nor repeats a record.

After every kill the target has whole batches, in order, with their times.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.jobs import mirror_child
from tests.spark.maps import check_map, map_of
from tests.worlds.directories.topics import append, append_times, held, make, plain

from tidelog.jobs.mirror.job import mirror
from tidelog.types import Header, NewRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
T0 = 1_700_000_000_000
TOPIC, PARTITIONS = "orders", 2
LIMIT_S = 500
# Approximate number of the driver's renames, removals and directory syncs in a batch.
CALLS_OF_A_BATCH = 45


def enough(kills: int) -> int:
    """Return a count of records per partition that leaves batches to copy after the last kill."""
    return (4 * kills + 2) * mirror_child.BATCH_RECORDS // PARTITIONS


def some(partition: int, first: int, count: int) -> list[NewRecord]:
    return [
        NewRecord(
            key=b"k%d" % (n % 7),
            value=b"%d/%d" % (partition, n),
            timestamp=T0 + 10 * n - 400 * (n % 5),
            headers=(Header("n", b"%d" % n),) if n % 2 else (),
        )
        for n in range(first, first + count)
    ]


def start_child(given: dict[str, object]) -> "subprocess.Popen[bytes]":
    """Start a driver in a separate process session, so that it can be killed with its JVM."""
    return subprocess.Popen(
        [sys.executable, mirror_child.__file__, json.dumps(given)],
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )


def kill(child: "subprocess.Popen[bytes]") -> None:
    """Kill Python and the JVM at once; Spark's daemon ends with them."""
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate(timeout=LIMIT_S)


def wait_for(child: "subprocess.Popen[bytes]", is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds; the child must stay alive until then."""
    for _ in range(LIMIT_S * 200):
        if is_so():
            return
        try:
            status = child.wait(timeout=0.005)
        except subprocess.TimeoutExpired:
            continue
        assert child.stderr is not None
        raise AssertionError(f"ended with {status}: {child.stderr.read().decode()[-3000:]}")
    raise AssertionError("never came to it")


def run_until_killed(given: dict[str, object]) -> None:
    """Run a driver until it kills itself at its `calls`-th counted call."""
    child = start_child(given)
    try:
        errors = child.communicate(timeout=LIMIT_S)[1]
    except subprocess.TimeoutExpired:
        kill(child)
        raise
    assert child.returncode == -signal.SIGKILL, errors.decode()[-3000:]


def check_whole(source: str, target: str) -> list[int]:
    """Assert that the target has whole batches from each partition's start; return the counts."""
    counts = []
    for originals, copies in zip(held(source, TOPIC), held(target, TOPIC), strict=True):
        assert plain(copies) == plain(originals)[: len(copies)]
        counts.append(len(copies))
    # A batch takes the same number of records from each partition.
    assert len(set(counts)) == 1, counts
    assert counts[0] % (mirror_child.BATCH_RECORDS // PARTITIONS) == 0, counts
    return counts


def check_copied(source: str, target: str, work: str, *, later_than_ms: int) -> None:
    """Assert that the target has all records once, unchanged, and that the map is right.

    The append times at the target must increase.
    """
    copies, originals = held(target, TOPIC), held(source, TOPIC)
    assert list(map(plain, copies)) == list(map(plain, originals))
    check_map(map_of(work), {0: originals}, copies, exactly=True)
    for partition in range(PARTITIONS):
        times = append_times(target, TOPIC, partition)
        assert times == sorted(times)
        assert min(times) > later_than_ms
    leftovers = [str(path) for path in Path(target).rglob("*") if ".sta" in path.name]
    assert leftovers == []


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 2), *(pytest.param(n, 5, marks=pytest.mark.slow) for n in range(2, 8))],
)
def test_every_record_once_whenever_the_driver_is_killed(
    spark: "SparkSession", tmp_path: Path, seed: int, kills: int
) -> None:
    dice, count = random.Random(seed), enough(kills)
    source = make(f"{tmp_path}/a", TOPIC, PARTITIONS)
    target = make(f"{tmp_path}/b", TOPIC, PARTITIONS)
    work = f"{tmp_path}/check"
    for partition in range(PARTITIONS):
        append(source, TOPIC, partition, some(partition, 0, count))
    given: dict[str, object] = {
        "source": source,
        "topic": TOPIC,
        "target": target,
        "checkpoint": work,
    }
    seen = [0]
    for _ in range(kills):
        run_until_killed(given | {"calls": dice.randrange(1, 3 * CALLS_OF_A_BATCH)})
        seen.append(check_whole(source, target)[0])
    assert seen == sorted(seen)
    append(source, TOPIC, 1, some(1, count, 7))
    mirror(spark, source, [TOPIC], target, checkpoint=work)
    check_copied(source, target, work, later_than_ms=T0 + 10 * count)
