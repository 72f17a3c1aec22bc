"""`spark.read.format("tidelog")` returns the log's records, in the Kafka connector's columns."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.worlds.directories.random_logs import (
    SPAN_MS,
    T0,
    TOPIC,
    append_times_of,
    make_log_dir,
    records_of,
)
from tests.worlds.repetition import rarely

from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import ClockName, IsolationLevel, NewRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
SEEDS = (21, 22)
CONNECTOR_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int>"
)
# All columns, with times in ms, so that rows can be compared.
EVERYTHING = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "unix_millis(timestamp)",
    "timestampType",
    "unix_millis(appendTimestamp)",
    "headers",
)


class Row(NamedTuple):
    """A row of a read as Python values, so that tests can compare rows."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    kind: int
    append_ms: int | None
    headers: list[tuple[str, bytes | None]] | None


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    found = {}
    for seed in SEEDS:
        path = str(tmp_path_factory.mktemp(f"log{seed}"))
        make_log_dir(path, seed, partitions=PARTITIONS, steps=80)
        found[seed] = path
    return found


def load(spark: "SparkSession", path: str, **options: object) -> "DataFrame":
    reader = spark.read.format("tidelog").option("subscribe", TOPIC)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(path)


def rows_of(frame: "DataFrame") -> list[Row]:
    rows = frame.selectExpr(*EVERYTHING).collect()
    found = []
    for row in rows:
        headers = row[8] and [(h.key, h.value and bytes(h.value)) for h in row[8]]
        key, value = (part if part is None else bytes(part) for part in row[:2])
        found.append(Row(key, value, row[2], row[3], row[4], row[5], row[6], row[7], headers))
    return sorted(found, key=lambda row: (row.partition, row.offset))


def expected(path: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> list[Row]:
    found: list[Row] = []
    for number in range(PARTITIONS):
        records = records_of(path, number, isolation)
        times = append_times_of(path, number, records)
        for record, append_ms in zip(records, times, strict=True):
            headers = [(h.key, h.value) for h in record.headers]
            found.append(
                Row(
                    record.key,
                    record.value,
                    TOPIC,
                    number,
                    record.offset,
                    None if record.timestamp == -1 else record.timestamp,
                    int(record.timestamp_type),
                    append_ms,
                    headers or None,
                )
            )
    return found


ALL = {"includeHeaders": "true", "includeAppendTimestamp": "true"}


@pytest.mark.parametrize("isolation", list(IsolationLevel))
@pytest.mark.parametrize("seed", SEEDS)
def test_all_records_by_several_workers(
    spark: "SparkSession", roots: dict[int, str], seed: int, isolation: IsolationLevel
) -> None:
    name = isolation.name.lower()
    frame = load(spark, roots[seed], splitBytes=2_000, isolation=name, **ALL)
    assert rows_of(frame) == expected(roots[seed], isolation)
    assert frame.select("partition").rdd.getNumPartitions() > 2 * PARTITIONS


@pytest.fixture(scope="module")
def bare_roots(roots: dict[int, str], tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The same logs without zone maps, as another program leaves them."""
    found = {}
    for seed, path in roots.items():
        found[seed] = str(tmp_path_factory.mktemp(f"bare{seed}") / "data")
        shutil.copytree(path, found[seed], ignore=shutil.ignore_patterns("*.zones"))
    return found


@pytest.mark.parametrize("clock", list(ClockName))
@pytest.mark.parametrize(
    ("seed", "maps"),
    [
        (SEEDS[0], "beside the log"),
        (SEEDS[1], "none"),
        (SEEDS[0], "in a cache"),
        rarely(SEEDS[1], "beside the log"),
        rarely(SEEDS[0], "none"),
        rarely(SEEDS[1], "in a cache"),
    ],
)
def test_time_range_is_exact(
    spark: "SparkSession",
    roots: dict[int, str],
    bare_roots: dict[int, str],
    tmp_path: Path,
    seed: int,
    clock: ClockName,
    maps: str,
) -> None:
    def time_of(row: Row) -> int | None:
        return row.timestamp if clock is ClockName.RECORD else row.append_ms

    want = expected(roots[seed])
    known = sorted({ms for ms in map(time_of, want) if ms is not None})
    start, end = known[len(known) // 3], known[2 * len(known) // 3]
    frame = load(
        spark,
        (roots if maps == "beside the log" else bare_roots)[seed],
        startingTimestamp=start,
        endingTimestamp=end,
        clock=clock,
        splitBytes=2_000,
        **({"zoneCache": tmp_path / "maps"} if maps == "in a cache" else {}),
        **ALL,
    )
    inside = [row for row in want if (ms := time_of(row)) is not None and start <= ms < end]
    assert 0 < len(inside) < len(want)
    assert rows_of(frame) == inside
    if clock is ClockName.RECORD:  # append times need no zone maps
        assert (tmp_path / "maps").exists() == (maps == "in a cache")
    assert any(Path(roots[seed]).rglob("*.zones"))
    assert not any(Path(bare_roots[seed]).rglob("*.zones"))


def test_times_as_people_write_them(spark: "SparkSession", roots: dict[int, str]) -> None:
    frame = load(spark, roots[21], startingTimestamp="2013-02-08T12:00:00-05:00", **ALL)
    noon = T0  # the start of the logs
    want = [r for r in expected(roots[21]) if r.timestamp is not None and r.timestamp >= noon]
    assert rows_of(frame) == want
    with pytest.raises(Exception, match="zone"):
        load(spark, roots[21], startingTimestamp="2013-02-08 12:00").count()


def test_schema_is_the_connectors(spark: "SparkSession", roots: dict[int, str]) -> None:
    assert load(spark, roots[21]).schema.simpleString() == CONNECTOR_SCHEMA
    wide = load(spark, roots[21], **ALL).schema
    assert wide["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert wide["appendTimestamp"].dataType.simpleString() == "timestamp"
    assert all(field.nullable for field in wide)


def test_fewer_columns(spark: "SparkSession", roots: dict[int, str]) -> None:
    want = expected(roots[21])
    frame = load(spark, roots[21], columns="offset, value")
    assert frame.columns == ["offset", "value"]
    assert sorted(row.offset for row in frame.collect()) == sorted(row.offset for row in want)
    reader = spark.read.format("tidelog").schema("partition int, offset bigint")
    narrow = reader.option("subscribe", TOPIC).load(roots[21])
    assert sorted(tuple(row) for row in narrow.collect()) == [
        (row.partition, row.offset) for row in want
    ]
    with pytest.raises(Exception, match="column offset is bigint, not int"):
        spark.read.format("tidelog").schema("offset int").option("subscribe", TOPIC).load(
            roots[21]
        ).count()


def test_offsets_by_partition(spark: "SparkSession", roots: dict[int, str]) -> None:
    starts = json.dumps({TOPIC: {"0": 5, "1": -2}})
    ends = json.dumps({TOPIC: {"0": 30, "1": -1}})
    frame = load(spark, roots[21], startingOffsets=starts, endingOffsets=ends, **ALL)
    want = [row for row in expected(roots[21]) if row.partition == 1 or 5 <= row.offset < 30]
    assert rows_of(frame) == want
    with pytest.raises(Exception, match="lacks tides-1; give a value for each partition"):
        load(spark, roots[21], startingOffsets=json.dumps({TOPIC: {"0": 5}})).count()


def test_times_by_partition_as_positions(spark: "SparkSession", roots: dict[int, str]) -> None:
    start_ms = T0 + SPAN_MS // 2
    starts = json.dumps({TOPIC: {"0": start_ms, "1": start_ms}})
    frame = load(spark, roots[21], startingOffsetsByTimestamp=starts, timeRange="positions", **ALL)
    with LogDir.open(roots[21]) as log_dir:
        found = [log_dir.reader(TOPIC, n).offset_for_time(start_ms) for n in range(PARTITIONS)]
    first = {number: hit.offset for number, hit in enumerate(found) if hit is not None}
    want = [row for row in expected(roots[21]) if row.offset >= first[row.partition]]
    assert rows_of(frame) == want


def test_topics_by_pattern_and_partitions(spark: "SparkSession", roots: dict[int, str]) -> None:
    reader = spark.read.format("tidelog").option("includeHeaders", "true")
    reader = reader.option("includeAppendTimestamp", "true")
    by_pattern = reader.option("subscribePattern", "ti.*").load(roots[21])
    assert rows_of(by_pattern) == expected(roots[21])
    assigned = spark.read.format("tidelog").option("assign", json.dumps({TOPIC: [1]}))
    assert {row.partition for row in assigned.load(roots[21]).collect()} == {1}


def test_empty_range_has_no_rows(spark: "SparkSession", roots: dict[int, str]) -> None:
    """The plan has no tasks, so the source gives Spark one partition without rows."""
    frame = load(spark, roots[21], startingTimestamp=T0 + 2 * SPAN_MS)
    assert frame.count() == 0


def test_min_partitions(spark: "SparkSession", roots: dict[int, str]) -> None:
    frame = load(spark, roots[21], minPartitions=6, splitBytes=1 << 30)
    assert frame.selectExpr("spark_partition_id() as id").distinct().count() >= 6
    assert frame.count() == len(expected(roots[21]))


def test_sql_view(spark: "SparkSession", roots: dict[int, str]) -> None:
    spark.sql(
        f"create or replace temporary view tides using tidelog"
        f" options (path '{roots[21]}', subscribe '{TOPIC}')"
    )
    (row,) = spark.sql("select count(*), max(offset) from tides where partition = 0").collect()
    want = [r for r in expected(roots[21]) if r.partition == 0]
    assert tuple(row) == (len(want), want[-1].offset)


def test_tables_of_the_catalog_are_refused(spark: "SparkSession", roots: dict[int, str]) -> None:
    options = f"options (path '{roots[21]}', subscribe '{TOPIC}')"
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"create table tides_table using tidelog {options}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingTimestmp": "1"}, "did you mean startingTimestamp?"),
        ({"columns": "value,ofset"}, "no column 'ofset'"),
        ({"startingOffsets": "latest"}, "earliest, or offsets by partition"),
        ({"splitBytes": "many"}, "splitBytes=many"),
        ({"clock": "wall"}, "record, append"),
        ({"assign": '{"tides": [0]}'}, "one of the options subscribe"),
        ({"kafka.bootstrap.servers": "localhost:9092"}, "not both"),
        ({"subscribe": "tide"}, "tides"),
    ],
)
def test_the_error_for_wrong_options_has_advice(
    spark: "SparkSession", roots: dict[int, str], options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said.replace("?", r"\?")) as raised:
        load(spark, roots[21], **options).count()
    assert "Traceback" not in str(raised.value)


def test_an_error_of_the_users_own_code_keeps_its_traceback(
    spark: "SparkSession", roots: dict[int, str]
) -> None:
    from pyspark.sql.functions import udf

    fails = udf(lambda value: value[1_000_000])
    with pytest.raises(Exception, match=r"Traceback[\s\S]*IndexError"):
        load(spark, roots[21]).select(fails("topic")).collect()


def test_strict_is_about_records_without_a_time(
    spark: "SparkSession", roots: dict[int, str]
) -> None:
    assert any(row.timestamp is None for row in expected(roots[21]))
    with pytest.raises(Exception, match="MissingTimestamps"):
        load(spark, roots[21], startingTimestamp=0, strict="true").count()


def test_data_loss(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path)
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC)
        log_dir.log(TOPIC, 0).append([NewRecord(value=b"%d" % number) for number in range(10)])
        log_dir.log(TOPIC, 0).delete_records(4)
    starts = json.dumps({TOPIC: {"0": 1}})
    with pytest.raises(Exception, match="offsets 1 to 3: deleted"):
        load(spark, path, startingOffsets=starts).count()
    frame = load(spark, path, startingOffsets=starts, failOnDataLoss="false")
    assert sorted(row.offset for row in frame.collect()) == list(range(4, 10))


def test_a_time_outside_of_sparks_range_is_an_error(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path)
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
        log_dir.log(TOPIC, 0).append([NewRecord(value=b"far", timestamp=2**62)])
    with pytest.raises(Exception, match="does not fit into Spark's timestamps"):
        load(spark, path).count()
    assert load(spark, path, columns="value").count() == 1


def test_live_directory_is_read_without_its_lock(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path)
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC)
        log = log_dir.log(TOPIC, 0)
        log.append([NewRecord(value=b"%d" % number) for number in range(10)])
        names = sorted(found.name for found in Path(path).rglob("*"))
        frame = load(spark, path)
        assert frame.count() == 10
        log.append([NewRecord(value=b"late")])
        assert load(spark, path).count() == 11
        assert sorted(found.name for found in Path(path).rglob("*")) == names
