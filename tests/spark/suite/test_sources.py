"""One suite for our directory, Kafka's directory and a Kafka broker.

`cases` derives the expected rows from the sent records, by the documentation of Spark's Kafka
connector. All sources must return exactly these rows in any way of reading: a directory from its
files, a broker by batches and by librdkafka.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest
from tests.spark.suite.cases import (
    APPEND_MS,
    GAPS,
    PREFIX,
    SPAN_MS,
    TOPICS,
    Row,
    fill_directory,
    gap_rows,
)
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.samples import T0

from tidelog.env import SystemClock
from tidelog.types import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.kafka

SOURCES = ("our directory", "Kafka's directory", "broker", "broker by librdkafka")
STAMPED = {topic.name for topic in TOPICS if topic.is_stamped}
RECORDS = f"{PREFIX}records"
Load = Callable[..., "DataFrame"]
Places = Mapping[str, dict[str, str]]


@pytest.fixture(scope="module")
def places(filled_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Return the options of each source."""
    ours = str(tmp_path_factory.mktemp("suite") / "data")
    fill_directory(ours, filled_broker.partition_dir(GAPS))
    broker = {"kafka.bootstrap.servers": filled_broker.bootstrap}
    return {
        "our directory": {"path": ours},
        "Kafka's directory": {"path": str(filled_broker.log_dir)},
        "broker": broker,
        "broker by librdkafka": {**broker, "kafka.socket.keepalive.enable": "true"},
    }


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def load(spark: "SparkSession", places: Places, source: str) -> Load:
    """Return a function that reads topics of the source, by default all."""

    def read(**options: object) -> "DataFrame":
        given = {name.replace("_", "."): str(value) for name, value in options.items()}
        if not given.keys() & {"subscribe", "assign"}:
            given["subscribePattern"] = f"{PREFIX}.*"
        reader = spark.read.format("tidelog").option("includeHeaders", "true")
        return reader.options(**places[source], **given).load()

    return read


def rows_of(frame: "DataFrame") -> list[Row]:
    """Return the rows in order. Check times set by the source's clock; replace them with None."""
    chosen = frame.selectExpr(
        "topic",
        "partition",
        "offset",
        "key",
        "value",
        "unix_millis(timestamp)",
        "timestampType",
        "headers",
    )
    found = []
    for row in chosen.collect():
        topic, partition, offset, key, value, timestamp, kind, headers = row
        if topic in STAMPED:
            assert T0 < timestamp <= SystemClock().now_ms()
            timestamp = None
        pairs = headers and tuple((h.key, _bytes(h.value)) for h in headers)
        place = (topic, partition, offset)
        found.append(Row(*place, _bytes(key), _bytes(value), timestamp, kind, pairs))
    return sorted(found, key=lambda row: row[:3])


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def documented(isolation: IsolationLevel, gaps: list[Row]) -> list[Row]:
    rows = [row for topic in TOPICS for row in topic.rows(isolation)]
    return sorted([*rows, *gaps], key=lambda row: row[:3])


@pytest.fixture(scope="module")
def gaps(filled_broker: Broker, kafka_oracle: Oracle) -> list[Row]:
    return gap_rows(kafka_oracle, filled_broker)


@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_all_records(load: Load, gaps: list[Row], isolation: IsolationLevel) -> None:
    """The topics have nulls, headers, gaps, aborted transactions, all codecs, both time types."""
    frame = load(kafka_isolation_level=isolation.name.lower())
    assert rows_of(frame) == documented(isolation, gaps)


def test_small_tasks(load: Load, gaps: list[Row]) -> None:
    """Small tasks begin and end in batches, gaps and transactions, and at markers."""
    committed = IsolationLevel.READ_COMMITTED
    frame = load(kafka_isolation_level="read_committed", maxRecordsPerPartition=7)
    assert frame.rdd.getNumPartitions() > 50
    assert rows_of(frame) == documented(committed, gaps)


def test_offsets_by_partition(load: Load) -> None:
    starts = json.dumps({RECORDS: {"0": 10, "1": -2}})
    ends = json.dumps({RECORDS: {"0": -1, "1": 30}})
    frame = load(subscribe=RECORDS, startingOffsets=starts, endingOffsets=ends)
    (topic,) = (topic for topic in TOPICS if topic.name == RECORDS)
    every = topic.rows(IsolationLevel.READ_UNCOMMITTED)
    assert rows_of(frame) == [
        row for row in every if (row.offset >= 10 if row.partition == 0 else row.offset < 30)
    ]


def test_times_as_positions_and_exactly(load: Load) -> None:
    """As positions, times become offsets; exactly, a read returns only records in the range."""
    (topic,) = (topic for topic in TOPICS if topic.name == RECORDS)
    every = topic.rows(IsolationLevel.READ_UNCOMMITTED)
    start, end = T0 + SPAN_MS // 3, T0 + 9 * SPAN_MS // 10
    given = {"subscribe": RECORDS, "startingTimestamp": start, "endingTimestamp": end}
    want = []
    for partition in (0, 1):
        rows = [row for row in every if row.partition == partition]
        first = next(row.offset for row in rows if (row.timestamp or 0) >= start)
        last = next(row.offset for row in rows if (row.timestamp or 0) >= end)
        want += [row for row in rows if first <= row.offset < last]
    assert rows_of(load(timeRange="positions", **given)) == want
    exact = [row for row in every if start <= (row.timestamp or 0) < end]
    assert exact != want
    assert rows_of(load(timeRange="exact", **given)) == exact
    late = {"subscribe": RECORDS, "startingTimestamp": T0 + SPAN_MS, "timeRange": "positions"}
    with pytest.raises(Exception, match=r"no record at .* UTC or later"):
        load(**late).count()
    assert load(startingOffsetsByTimestampStrategy="latest", **late).count() == 0


@pytest.fixture
def pushing(spark: "SparkSession") -> "Iterator[SparkSession]":
    """The session with pushdown of filters turned on; restores the setting afterwards."""
    from tidelog.spark import setup
    from tidelog.spark.session import PUSHDOWN

    before = spark.conf.get(PUSHDOWN, "false") or "false"
    setup(spark)
    assert spark.conf.get(PUSHDOWN) == "true"
    yield spark
    spark.conf.set(PUSHDOWN, before)


MIDDLE = (
    f"timestamp >= timestamp_micros({T0 + 300_000}500) and value is null and"
    f" timestamp < timestamp_millis({T0 + 9**6})"
)
# Each filter in SQL, and a Python function that selects the same rows.
FILTERS: "list[tuple[str, Callable[[Row], bool]]]" = [
    (
        f"topic = '{RECORDS}' and partition = 1 and offset >= 5 and offset < 40",
        lambda row: row.topic == RECORDS and row.partition == 1 and 5 <= row.offset < 40,
    ),
    (
        "topic like '%records' and partition in (1, 7) and offset in (7, 21, 90)",
        lambda row: row.topic == RECORDS and row.partition == 1 and row.offset in (7, 21),
    ),
    (
        MIDDLE,
        lambda row: row.value is None and T0 + 300_000 < (row.timestamp or 0) < T0 + 9**6,
    ),
    ("offset > 1000000", lambda _: False),
]


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_filters_are_handed_over(
    pushing: "SparkSession", load: Load, gaps: list[Row], number: int
) -> None:
    """With pushdown of filters, a query returns exactly the rows that its filter selects."""
    where, keeps = FILTERS[number]
    frame = load().where(where)
    every = documented(IsolationLevel.READ_UNCOMMITTED, gaps)
    assert rows_of(frame) == [row for row in every if keeps(row)]
    if number == 0:
        assert frame.rdd.getNumPartitions() == 1


def test_append_clock(load: Load, source: str) -> None:
    """Every source supports queries by append time on topics with LogAppendTime."""
    topic = f"{PREFIX}stamped"
    start = APPEND_MS if source == "our directory" else T0 + 10 * SPAN_MS
    frame = load(subscribe=topic, clock="append", startingTimestamp=start)
    want = [row for one in TOPICS if one.name == topic for row in one.rows(IsolationLevel(0))]
    assert rows_of(frame) == want
    wide = load(subscribe=topic, includeAppendTimestamp="true", columns="offset,timestamp")
    assert wide.where("appendTimestamp = timestamp").count() == len(want)
