"""Replays on Spark write exactly the range, with unchanged times, each record once."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.worlds.directories.topics import held

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest
from tidelog.jobs.chunks import Rate
from tidelog.jobs.replay.job import replay
from tidelog.jobs.replay.options import ReplayOptions
from tidelog.jobs.replay.run import Replay
from tidelog.jobs.target_check import TargetLoses
from tidelog.record.record import Record
from tidelog.spark.places import Place
from tidelog.types import ClockName, Header, NewRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = 1_360_342_800_000
MINUTE = 60_000
PARTITIONS = 3
COUNT = 600
KEEP_ALL = {"retention.ms": "-1"}


def late_records() -> list[NewRecord]:
    """Return records created every 10 s; each seventh one is out of order, by up to an hour."""
    dice = Random(5)
    return [
        NewRecord(
            key=None if number % 9 == 4 else b"k%d" % (number % 20),
            value=None if number % 31 == 0 else b"%d" % number,
            timestamp=T0
            + number * 10_000
            - (dice.randrange(60) * MINUTE if number % 7 == 0 else 0),
            headers=(Header("n", b"%d" % number),) if number % 2 else (),
        )
        for number in range(COUNT)
    ]


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Create a directory with `late_records`, appended 50 at a time."""
    path = str(tmp_path / "source")
    clock = ManualClock(T0)
    with Directory.open(path, writable=True, env=Env(clock=clock)) as directory:
        config = KEEP_ALL | {"internal.segment.bytes": "4000", "index.interval.bytes": "100"}
        directory.create_topic("flights", partitions=PARTITIONS, config=config)
        made = late_records()
        for start in range(0, COUNT, 50):
            clock.set(T0 + (start + 50) * 10_000)
            for number in range(PARTITIONS):
                directory.append("flights", made[start + number : start + 50 : 3], partition=number)
    return path


def make(path: Path, topic: str = "flights", **config: str) -> str:
    given = {name.replace("_", "."): text for name, text in config.items()}
    with Directory.open(str(path), writable=True) as directory:
        directory.create_topic(topic, partitions=PARTITIONS, config=KEEP_ALL | given)
    return str(path)


def plain(found: list[list[Record]]) -> list[list[tuple[object, ...]]]:
    """Return timestamp, key, value and headers of each record; a replay must not change these."""
    return [[(r.timestamp, r.key, r.value, r.headers) for r in part] for part in found]


def in_range(path: str, start_ms: int, end_ms: int) -> list[list[tuple[object, ...]]]:
    kept = [
        [r for r in part if start_ms <= (r.timestamp or 0) < end_ms]
        for part in held(path, "flights")
    ]
    return plain(kept)


class Killed(Exception):
    """Raised to simulate the end of a driver."""


def test_a_range_by_record_time_is_replayed_into_a_directory(
    spark: "SparkSession", source: str, tmp_path: Path
) -> None:
    target = make(tmp_path / "target")
    start, end = T0 + 20 * MINUTE, T0 + 50 * MINUTE
    (told,) = replay(spark, source, "flights", to=target, start=start, end=end).collect()
    expected = in_range(source, start, end)
    assert plain(held(target, "flights")) == expected
    assert told["records"] == sum(map(len, expected)) > 100
    assert told["chunks"] == 1
    assert not told["was_resumed"]
    sizes = [len(r[1] or b"") + len(r[2] or b"") for part in expected for r in part]  # type: ignore[arg-type] # key and value
    assert told["size_bytes"] == sum(sizes)


def test_a_range_by_append_time_is_replayed_with_a_transform(
    spark: "SparkSession", source: str, tmp_path: Path
) -> None:
    from pyspark.sql import functions as f

    target = make(tmp_path / "target", topic="copy")
    start = T0 + 400 * 10_000

    def shout(rows: "DataFrame") -> "DataFrame":
        return rows.where("value is not null").withColumn(
            "value", f.concat(f.col("value"), f.lit(b"!"))
        )

    replay(
        spark,
        source,
        "flights",
        to=target,
        to_topic="copy",
        start=start,
        clock="append",
        transform=shout,
    )
    # The range includes the records appended at exactly `start`, so it begins with record number
    # 350.
    made = [r for r in late_records()[350:] if r.value is not None]
    expected = sorted((r.timestamp, r.value + b"!") for r in made if r.value and r.timestamp)
    found = [(r.timestamp, r.value) for part in held(target, "copy") for r in part]
    assert sorted(found, key=str) == sorted(expected, key=str)


def chunked(target: Place | str, progress: Path | None = None) -> ReplayOptions:
    """Return options with chunks of about 100 records."""
    return {
        "to": target,
        "start": T0 + 10 * MINUTE,
        "end": T0 + 90 * MINUTE,
        "clock": ClockName.RECORD,
        "rate": Rate(50),
        "progress": None if progress is None else str(progress),
    }


def killed_at(replaying: Replay, number: int, *, after_write: bool) -> None:
    """Make a run raise `Killed` before or after it writes the chunk with this index."""
    write = replaying._write
    count = 0

    def dying(*arguments: object, **named: object) -> object:
        nonlocal count
        if count == number and not after_write:
            raise Killed
        result = write(*arguments, **named)  # type: ignore[arg-type] # passed on
        if count == number:
            raise Killed
        count += 1
        return result

    replaying._write = dying  # type: ignore[method-assign, assignment] # the simulated kill


@pytest.mark.parametrize("after_write", [False, True])
def test_a_run_continues_exactly_at_its_last_offset(
    spark: "SparkSession", source: str, tmp_path: Path, after_write: bool
) -> None:
    target = make(tmp_path / "target")
    options = chunked(Place(target), tmp_path / "progress.json")
    clock = ManualClock(T0 + 1_440 * MINUTE)
    env, waits = Env(clock=clock), list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(round(seconds * 1000))

    for at in (1, 0):
        run = Replay(Place(source), "flights", **options, env=env, wait=wait)
        killed_at(run, at, after_write=after_write)
        with pytest.raises(Killed):
            run.run(spark)
    waits.clear()
    outcome = Replay(Place(source), "flights", **options, env=env, wait=wait).run(spark)
    # The remaining five chunks of about 100 records are written at 50 records per second.
    assert len(waits) == 4
    assert all(1.5 < seconds <= 2 for seconds in waits)
    assert outcome.seconds == pytest.approx(sum(waits))
    expected = in_range(source, T0 + 10 * MINUTE, T0 + 90 * MINUTE)
    assert plain(held(target, "flights")) == expected
    assert outcome.was_resumed
    assert outcome.records == sum(map(len, expected))
    assert outcome.chunks == 6
    again = Replay(Place(source), "flights", **options, env=env).run(spark)
    assert again.records == outcome.records
    assert plain(held(target, "flights")) == expected


def test_a_finished_run_does_not_create_the_target_again(
    spark: "SparkSession", source: str, tmp_path: Path
) -> None:
    target = Place(str(tmp_path / "target"))
    options = chunked(target, tmp_path / "progress.json")
    options |= {"create": PARTITIONS, "config": KEEP_ALL}
    env = Env(clock=ManualClock(T0 + 1_440 * MINUTE))
    outcome = Replay(Place(source), "flights", **options, env=env, wait=lambda _: None).run(spark)
    with Directory.open(target.address, writable=True) as directory:
        directory.delete_topic("flights")
    again = Replay(Place(source), "flights", **options, env=env)
    again.check_target()
    assert again.run(spark).records == outcome.records
    with Directory.open(target.address) as directory:
        assert "flights" not in directory.topics()
    with Directory.open(target.address) as directory:
        assert "flights" not in directory.topics()


def test_a_rate_is_kept_without_sleeping(
    spark: "SparkSession", source: str, tmp_path: Path
) -> None:
    clock = ManualClock(T0)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(round(seconds * 1000))

    options = chunked(f"parquet:{tmp_path / 'files'}")
    run = Replay(Place(source), "flights", **options, env=Env(clock=clock), wait=wait)
    outcome = run.run(spark)
    last = spark.read.parquet(str(tmp_path / "files" / f"chunk={outcome.chunks - 1:06d}")).count()
    assert sum(waits) == pytest.approx((outcome.records - last) / 50, abs=0.01)
    rows = spark.read.parquet(str(tmp_path / "files"))
    assert rows.count() == outcome.records
    assert {"offset", "timestampType", "appendTimestamp", "chunk"} <= set(rows.columns)
    assert rows.where("appendTimestamp is null").count() == 0
    with pytest.raises(Exception, match="already exists"):
        run.run(spark)


def test_a_folder_of_another_replay_is_not_overwritten(
    spark: "SparkSession", source: str, tmp_path: Path
) -> None:
    """The other replay, which has a progress file, is refused both times."""
    env, files = Env(clock=ManualClock(T0)), tmp_path / "files"
    first = Replay(
        Place(source), "flights", to=f"parquet:{files}", end=T0 + 2 * MINUTE, env=env
    ).run(spark)
    for _ in range(2):
        other = Replay(
            Place(source),
            "flights",
            to=f"parquet:{files}",
            start=T0 + 10 * MINUTE,
            progress=str(tmp_path / "progress.json"),
            env=env,
        )
        with pytest.raises(InvalidRequest, match="chunk=000000 already exists"):
            other.run(spark)
        assert spark.read.parquet(str(files)).count() == first.records > 0


def test_a_replay_that_fails_before_its_first_write_does_not_own_the_folder(
    spark: "SparkSession", source: str, tmp_path: Path
) -> None:
    env, files = Env(clock=ManualClock(T0)), tmp_path / "files"
    first = Replay(
        Place(source), "flights", to=f"parquet:{files}", end=T0 + 2 * MINUTE, env=env
    ).run(spark)

    def fail(_rows: "DataFrame") -> "DataFrame":
        raise ZeroDivisionError("a defect in the transform")

    def other(transform: "Callable[[DataFrame], DataFrame] | None") -> Replay:
        return Replay(
            Place(source),
            "flights",
            to=f"parquet:{files}",
            start=T0 + 10 * MINUTE,
            progress=str(tmp_path / "progress.json"),
            transform=transform,
            env=env,
        )

    with pytest.raises(ZeroDivisionError):
        other(fail).run(spark)
    with pytest.raises(InvalidRequest, match="chunk=000000 already exists"):
        other(None).run(spark)
    assert spark.read.parquet(str(files)).count() == first.records > 0


def test_a_console_shows_lines(spark: "SparkSession", source: str) -> None:
    lines: list[str] = []
    end, clock = T0 + 2 * MINUTE, ManualClock(T0)

    def show(line: str) -> None:
        lines.append(line)
        clock.advance(1_500)

    env = Env(clock=clock)
    outcome = Replay(Place(source), "flights", to="console", end=end, show=show, env=env).run(spark)
    assert outcome.seconds == 1.5 * len(lines)
    shown = [json.loads(line) for line in lines]
    expected = in_range(source, 0, T0 + 2 * MINUTE)
    assert [row["value"] for row in shown] == [
        None if value is None else value.decode()  # type: ignore[attr-defined] # bytes
        for part in expected
        for _, _, value, _ in part
    ]
    assert all(row["headers"] is None or row["headers"][0][0] == "n" for row in shown)


def test_a_target_that_would_lose_records_is_refused_before_any_write(
    spark: "SparkSession", source: str, tmp_path: Path
) -> None:
    target = make(tmp_path / "target", retention_ms="86400000")
    expected = sum(map(len, held(source, "flights")))
    with pytest.raises(TargetLoses, match=f"{expected} records created before .* would be deleted"):
        replay(spark, source, "flights", to=target)
    assert held(target, "flights") == [[]] * PARTITIONS
    stamped = make(tmp_path / "stamped", message_timestamp_type="LogAppendTime")
    with pytest.raises(TargetLoses, match="would be overwritten"):
        replay(spark, source, "flights", to=stamped)
    (told,) = replay(spark, source, "flights", to=target, force=True).collect()
    assert told["records"] == expected
    assert told["findings"][0].startswith("loss: flights: retention.ms=86400000")


@pytest.fixture
def nothing(source: str) -> Iterator[str]:
    yield source
    assert sum(map(len, held(source, "flights"))) == COUNT


def test_an_invalid_replay_is_refused(spark: "SparkSession", nothing: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="replayed into itself"):
        replay(spark, nothing, "flights", to=nothing)
    with pytest.raises(InvalidRequest, match="a replay to a console can't be resumed"):
        replay(spark, nothing, "flights", to="console", progress=str(tmp_path / "p"))
    with pytest.raises(InvalidRequest, match="partitions is 'same'; give one of keep, key"):
        replay(spark, nothing, "flights", to="console", partitions="same")
    with pytest.raises(InvalidRequest, match="empty time range now to 5"):
        replay(spark, nothing, "flights", to="console", start="now", end=5)
    with pytest.raises(InvalidRequest, match="read_committed"):
        replay(spark, nothing, "flights", to="console", isolation="serializable")
