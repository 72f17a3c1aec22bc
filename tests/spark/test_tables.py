"""Tables and diffs computed by Spark equal those of the library, for splits of any size."""

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.worlds.directories.random_logs import SPAN_MS, T0, TOPIC, make_log_dir

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import InexactTable
from tidelog.spark import tables
from tidelog.types import NewRecord, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MIDDLE = T0 + SPAN_MS // 2
# Maximum size of a split in bytes: a few batches.
SPLIT_BYTES = 2_000
COLUMNS = ("partition", "key", "value", "offset")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = str(tmp_path_factory.mktemp("tables"))
    make_log_dir(found, 31, partitions=2, steps=120)
    return found


def library_rows(table: "pa.Table", columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in table.to_pylist())


def spark_rows(frame: "DataFrame", columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    def plain(cell: object) -> object:
        return bytes(cell) if isinstance(cell, bytearray) else cell

    return sorted(tuple(map(plain, row)) for row in frame.select(*columns).collect())


@pytest.mark.parametrize("clock", ["record", "append"])
@pytest.mark.parametrize("at_ms", [None, MIDDLE])
def test_a_table_is_the_librarys_by_partition_and_by_split(
    spark: "SparkSession", path: str, clock: str, at_ms: int | None
) -> None:
    with Directory.open(path) as directory:
        table = directory.table(TOPIC, at=at_ms, clock=clock, inexact="mark")
        expected = library_rows(table.to_table(), COLUMNS)
    assert expected
    options = {"subscribe": TOPIC, "table": "true", "clock": clock, "inexact": "mark"}
    if at_ms is not None:
        options["asOf"] = str(at_ms)
    by_source = spark.read.format("tidelog").options(**options).load(path)
    assert spark_rows(by_source, COLUMNS) == expected
    by_split = tables.table(
        spark, path, TOPIC, at=at_ms, clock=clock, inexact="mark", split_bytes=SPLIT_BYTES
    )
    assert spark_rows(by_split, COLUMNS) == expected


def test_a_diff_is_the_librarys(spark: "SparkSession", path: str) -> None:
    columns = ("change", "partition", "key", "before", "after", "beforeOffset", "afterOffset")
    with Directory.open(path) as directory:
        diff = directory.diff(TOPIC, MIDDLE, inexact="mark")
        expected = [
            tuple(-1 if cell is None else cell for cell in row)
            for row in library_rows_of(diff.to_table(), columns)
        ]
    found = tables.diff(spark, path, TOPIC, MIDDLE, inexact="mark", split_bytes=SPLIT_BYTES)
    rows = [
        tuple(
            -1 if cell is None else bytes(cell) if isinstance(cell, bytearray) else cell
            for cell in row
        )
        for row in found.select(*columns).collect()
    ]
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert {row[0] for row in rows} >= {"changed"}


def library_rows_of(table: "pa.Table", columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in columns) for row in table.to_pylist()]


def test_a_past_without_times_is_refused(spark: "SparkSession", path: str) -> None:
    options = {"subscribe": TOPIC, "table": "true", "asOf": str(MIDDLE)}
    frame = spark.read.format("tidelog").options(**options).load(path)
    with pytest.raises(Exception, match=r"records? ha(s|ve) no timestamp"):
        frame.count()


def test_keys_and_values_by_the_name_of_their_serializer(
    spark: "SparkSession", tmp_path: Path
) -> None:
    env = Env(clock=ManualClock(T0))
    data = str(tmp_path / "typed")
    with Directory.open(data, writable=True, env=env) as directory:
        directory.create_topic(TOPIC)
        records = [NewRecord(key=struct.pack(">q", n), value=b"value %d" % n) for n in range(3)]
        directory.append(TOPIC, [*records, NewRecord(key=None, value=None)])
    options = {"subscribe": TOPIC, "keyAs": "int64", "valueAs": "string"}
    frame = spark.read.format("tidelog").options(**options).load(data)
    assert dict(frame.dtypes)["key"] == "bigint"
    rows = {(row.key, row.value) for row in frame.collect()}
    assert rows == {(0, "value 0"), (1, "value 1"), (2, "value 2"), (None, None)}
    table = frame.where("key > 1").selectExpr("max(value)").collect()
    assert table[0][0] == "value 2"
    typed = tables.table(spark, data, TOPIC, key_as="int64", value_as="string")
    assert {(row.key, row.value) for row in typed.collect()} == rows - {(None, None)}
    wrong = spark.read.format("tidelog").options(**options | {"keyAs": "int32"}).load(data)
    message = r"tides-0 offset 0 \(column key\): 8 bytes can't be read as int32"
    with pytest.raises(Exception, match=message) as raised:
        wrong.count()
    assert "Traceback" not in str(raised.value)


def test_the_job_refuses_deleted_records_before_it_reads(
    spark: "SparkSession", tmp_path: Path
) -> None:
    env = Env(clock=ManualClock(T0))
    data = str(tmp_path / "cut")
    with Directory.open(data, writable=True, env=env) as directory:
        directory.create_topic(TOPIC)
        directory.append(TOPIC, [NewRecord(key=b"a", value=b"1"), NewRecord(key=b"b", value=b"2")])
        directory.log(TOPIC, 0).delete_records(1)
    with pytest.raises(InexactTable, match="records below offset 1 were deleted"):
        tables.table(spark, data, TopicPartition(TOPIC, 0), at=T0)
    assert tables.table(spark, data, TOPIC).count() == 1


def test_typed_columns_are_written_by_the_name_of_their_serializer(
    spark: "SparkSession", tmp_path: Path
) -> None:
    data = str(tmp_path / "written")
    with Directory.open(data, writable=True) as directory:
        directory.create_topic(TOPIC)
    frame = spark.createDataFrame([(1, "one"), (2, None)], "key int, value string")
    options = {"path": data, "topic": TOPIC, "keyAs": "int64", "valueAs": "json"}
    writer = frame.selectExpr("key", "to_json(struct(value)) value").coalesce(1).write
    writer.format("tidelog").mode("append").options(**options).save()
    with Directory.open(data) as directory:
        rows = directory.table(TOPIC).to_table().to_pylist()
    assert {(row["key"], row["value"]) for row in rows} == {
        (struct.pack(">q", 1), b'{"value":"one"}'),
        (struct.pack(">q", 2), b"{}"),
    }
    text = spark.createDataFrame([("a", "b")], "key string, value string").write
    with pytest.raises(
        Exception, match="column key has type string; it must be integer or long or short"
    ):
        text.format("tidelog").mode("append").options(**options).save()
