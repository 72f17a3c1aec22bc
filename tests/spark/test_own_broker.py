"""Spark reads from our broker by the requested clock, and gets append times as a column."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidelog
from tidelog.env import Env, ManualClock, os_env
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "tides"
T0 = 1_700_000_000_000
# Create times in ms; the append times of the records are a second apart.
CREATED = [0, 5_000, 1_000, 4_000, 2_000]
SECOND = 1_000
FIELDS = ("offset", "unix_millis(timestamp)", "unix_millis(appendTimestamp)")
Row = tuple[int, int, int]


def times() -> list[Row]:
    """Return offset, create time and append time of each record."""
    return [(n, T0 + ms, T0 + 10_000 + n * SECOND) for n, ms in enumerate(CREATED)]


class Moved(ManualClock):
    """The machine's clock, plus an amount that a test advances."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self._real = os_env().clock
        self._began_ms = self._real.monotonic_ms()

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self._real.monotonic_ms() - self._began_ms


@pytest.fixture
def late_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a topic that is searched by append time; its records are out of order."""
    clock = Moved(T0)

    def fill(node: Node) -> None:
        config = {"tidelog.lookup.clock": "append", "retention.ms": "-1"}
        node.log_dir.create_topic(TOPIC, partitions=1, config=config)
        partition = node.partitions.get(TOPIC, 0)
        for _, created_ms, append_ms in times():
            clock.set(append_ms)
            partition.log.append([NewRecord(value=b"v", timestamp=created_ms)])
        partition.advance()

    with tidelog.broker(str(tmp_path / "data"), env=Env(clock=clock)) as running:
        running.call(fill)
        yield running


def load(spark: "SparkSession", broker: Broker, **options: object) -> "DataFrame":
    reader = spark.read.format("tidelog").option("subscribe", TOPIC)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.option("includeAppendTimestamp", "true").load()


def rows(frame: "DataFrame") -> list[Row]:
    return sorted(tuple(row) for row in frame.selectExpr(*FIELDS).collect())


def test_append_times_are_shown_and_each_clock_is_searched(
    spark: "SparkSession", late_broker: Broker
) -> None:
    known = times()
    assert rows(load(spark, late_broker)) == known
    start, end = T0 + 1_500, T0 + 4_500
    frame = load(
        spark, late_broker, startingTimestamp=start, endingTimestamp=end, timeRange="exact"
    )
    assert rows(frame) == [row for row in known if start <= row[1] < end]
    # As in Spark's own connector, a start time is a position: the read returns all records from the
    # first record with that create time or later.
    assert rows(load(spark, late_broker, startingTimestamp=T0 + 1_500)) == known[1:]
    start, end = known[1][2], known[4][2]
    frame = load(spark, late_broker, startingTimestamp=start, endingTimestamp=end, clock="append")
    assert rows(frame) == known[1:4]
