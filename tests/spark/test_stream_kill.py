"""A stream whose driver is killed at a random moment loses and repeats no record."""

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark import stream_child
from tests.spark.drivers import Driver
from tests.spark.streams import to_end
from tests.spark.test_stream import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEFORE = 100
RECORDS = 1500


def kill_at_random(root: Path, work: Path, draw: random.Random) -> str:
    """Run the stream, and kill its driver when a randomly chosen file of a batch appears."""
    done = [int(name.name) for name in (work / "checkpoint/commits").glob("[0-9]*")]
    number = max(done, default=0) + draw.randrange(1, 4)
    folder = draw.choice(["checkpoint/offsets", "checkpoint/commits", "rows/_spark_metadata"])
    driver = Driver([stream_child.__file__, str(root), str(work)])
    try:
        assert driver.wait_for((work / "checkpoint/commits/0").exists), driver.finish()
        if number < 4 and not done:
            append(root, {"t": {0: RECORDS, 1: RECORDS}}, per_batch=50)
        # Spark compacts its log of written files at every tenth entry. The name of a compacted
        # entry ends in .compact.
        names = {str(number), f"{number}.compact"}
        is_there = driver.wait_for(lambda: any((work / folder / name).exists() for name in names))
        assert is_there, driver.finish()
    finally:
        driver.end()
    return f"killed at {folder}/{number}"


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 1), *(pytest.param(n, 3, marks=pytest.mark.slow) for n in range(2, 12))]
)
def test_no_record_is_lost_or_repeated(
    spark: "SparkSession", tmp_path: Path, seed: int, kills: int
) -> None:
    root, work = tmp_path / "log", tmp_path / "work"
    append(root, {"t": {0: BEFORE, 1: BEFORE}})
    draw = random.Random(seed)
    story = [kill_at_random(root, work, draw) for _ in range(kills)]
    append(root, {"t": {0: 10, 2: 10}})
    to_end(partial(stream_child.start, spark, str(root), str(work), is_last=True))
    read = spark.read.parquet(str(work / "rows")).collect()
    found = sorted((row[0], row[1], bytes(row[2])) for row in read)
    starts = {0: BEFORE, 1: BEFORE, 2: 0}
    ends = {0: BEFORE + RECORDS + 10, 1: BEFORE + RECORDS, 2: 10}
    assert found == [
        (number, offset, f"t-{number}-{offset}".encode())
        for number in range(3)
        for offset in range(starts[number], ends[number])
    ], story
