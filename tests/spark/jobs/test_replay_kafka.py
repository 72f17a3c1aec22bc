"""Replays to and from a real broker write each record once, with its times, or are refused."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.settled import await_markers
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.clients import Seen, consume
from tests.worlds.kafka.oracle import Oracle

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock, SystemClock
from tidelog.errors import InvalidRequest
from tidelog.jobs.chunks import Rate
from tidelog.jobs.replay.job import replay
from tidelog.jobs.replay.run import Replay
from tidelog.jobs.target_check import TargetLoses
from tidelog.spark.places import Place
from tidelog.types import Header, IsolationLevel, NewRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.jobs.replay.options import ReplayOptions

pytestmark = pytest.mark.kafka

T0 = 1_360_342_800_000
PARTITIONS = 2
COUNT = 200
COMMITTED = IsolationLevel.READ_COMMITTED


class Killed(Exception):
    """Raised to simulate the end of a driver."""


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = str(tmp_path / "source")
    with Directory.open(path, writable=True, env=Env(clock=ManualClock(T0 + COUNT * 1_000))) as d:
        d.create_topic("tides", partitions=PARTITIONS, config={"retention.ms": "-1"})
        for number in range(COUNT):
            record = NewRecord(
                key=b"k%d" % (number % 7),
                value=b"%d" % number,
                timestamp=T0 + number * 1_000,
                headers=(Header("n", b"%d" % number),),
            )
            d.append("tides", [record], partition=number % PARTITIONS)
    return path


def seen(records: list[Seen]) -> list[tuple[object, ...]]:
    return [(r.timestamp, r.key, r.value, r.headers) for r in records]


def expected(partition: int, start: int = 0, end: int = COUNT) -> list[tuple[object, ...]]:
    return [
        (T0 + n * 1_000, b"k%d" % (n % 7), b"%d" % n, (("n", b"%d" % n),))
        for n in range(start, end)
        if n % PARTITIONS == partition
    ]


def test_records_are_replayed_to_a_broker_and_back(
    spark: "SparkSession",
    kafka_broker: Broker,
    kafka_oracle: Oracle,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka_broker.create_topic("tides-again", PARTITIONS, retention_ms="-1")
    place = Place.parse(f"kafka://{kafka_broker.bootstrap}")
    options: ReplayOptions = {
        "to": place,
        "to_topic": "tides-again",
        "rate": Rate(40),
        "progress": str(tmp_path / "progress.json"),
    }
    # The first run ends after it has written a chunk, but before it records this. The second run
    # writes the chunk again, but the broker keeps it only once.
    dying = Replay(Place(source), "tides", **options, wait=lambda _seconds: None)
    write = dying._write
    count = 0

    def killed(*arguments: object, **named: object) -> object:
        nonlocal count
        result = write(*arguments, **named)  # type: ignore[arg-type] # passed on
        count += 1
        if count == 2:
            raise Killed
        return result

    monkeypatch.setattr(dying, "_write", killed)
    with pytest.raises(Killed):
        dying.run(spark)
    outcome = Replay(Place(source), "tides", **options, wait=lambda _seconds: None).run(spark)
    assert outcome.was_resumed
    assert outcome.records == COUNT
    await_markers(kafka_broker, "tides-again")
    for partition in range(PARTITIONS):
        found = consume(kafka_oracle, kafka_broker, "tides-again", COMMITTED, partition)
        assert seen(found) == expected(partition)
    back = str(tmp_path / "back")
    with Directory.open(back, writable=True) as directory:
        directory.create_topic("tides", partitions=PARTITIONS, config={"retention.ms": "-1"})
    (told,) = replay(
        spark,
        place,
        "tides-again",
        to=back,
        to_topic="tides",
        start=T0 + 50_000,
        end=T0 + 150_000,
    ).collect()
    assert told["records"] == 100
    with Directory.open(back) as directory:
        for partition in range(PARTITIONS):
            records = directory.partition("tides", partition).records()
            assert [
                (r.timestamp, r.key, r.value, tuple((h.key, h.value) for h in r.headers))
                for r in records
            ] == expected(partition, 50, 150)


def test_the_settings_of_a_target_broker_are_checked(
    spark: "SparkSession", kafka_broker: Broker, source: str
) -> None:
    kafka_broker.create_topic("tides-short", PARTITIONS, retention_ms="3600000")
    to = f"kafka://{kafka_broker.bootstrap}"
    with pytest.raises(TargetLoses, match=f"{COUNT} records created before .* deleted at once"):
        replay(spark, source, "tides", to=to, to_topic="tides-short")
    kafka_broker.create_topic("tides-stamped", 1, message_timestamp_type="LogAppendTime")
    with pytest.raises(TargetLoses, match="would be overwritten") as caught:
        replay(spark, source, "tides", to=to, to_topic="tides-stamped", partitions="keep")
    assert "need partitions 0 to 1, but the target has 1 partition" in str(caught.value)
    # The count in the message is an estimate: the number of offsets before the time limit, from the
    # broker's lookups by time. Here it is exact, because the transaction's marker is after the
    # limit.
    now = SystemClock().now_ms()
    kafka_broker.create_topic("tides-all", PARTITIONS, retention_ms="-1")
    replay(spark, source, "tides", to=to, to_topic="tides-all")
    with pytest.raises(TargetLoses, match=f"about {COUNT} records created before"):
        replay(spark, to, "tides-all", to=to, to_topic="tides-short", end=now)
    with pytest.raises(InvalidRequest, match="from brokers, a range of append times needs a topic"):
        replay(spark, to, "tides-all", to="console", clock="append")
