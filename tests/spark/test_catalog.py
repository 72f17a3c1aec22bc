"""Tables and views of Spark's catalog are readable, or refused before a row is written."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidelog
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

TOPIC = "tides"


@pytest.fixture
def root(tmp_path: Path) -> str:
    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic(TOPIC, partitions=2)
        directory.append(TOPIC, [NewRecord(value=b"old")])
    return str(tmp_path)


def values(root: str) -> list[str]:
    with tidelog.open(root) as directory:
        found = directory.records(TOPIC)
        return sorted(bytes(record.value or b"").decode() for _, record in found)


def test_one_view_is_read_and_inserted_into(spark: "SparkSession", root: str) -> None:
    spark.sql(
        "create or replace temporary view tides using tidelog"
        f" options (path '{root}', topic '{TOPIC}', valueAs 'string')"
    )
    spark.sql("insert into tides (key, value) values (null, 'new'), (cast('k' as binary), 'newer')")
    found = {row.value for row in spark.sql("select value from tides").collect()}
    assert found == {"old", "new", "newer"}
    assert values(root) == ["new", "newer", "old"]


def test_a_table_that_could_not_be_read_is_refused_before_anything_is_written(
    spark: "SparkSession", root: str
) -> None:
    frame = spark.range(10).selectExpr("string(id) as value")
    options = {"path": root, "topic": TOPIC}
    plain = frame.write.format("tidelog").mode("append").options(**options)
    new = frame.writeTo("kept").using("tidelog").options(**options)
    writes: dict[str, Callable[[], object]] = {
        "saveAsTable": lambda: plain.saveAsTable("kept"),
        "create": new.create,
        "createOrReplace": new.createOrReplace,
        "as select": lambda: spark.sql(
            f"create table kept using tidelog options (path '{root}', topic '{TOPIC}')"
            " as select 'v' as value"
        ),
    }
    for name, write in writes.items():
        said = "only appends" if name == "createOrReplace" else "CREATE TEMPORARY VIEW"
        with pytest.raises(Exception, match=said) as raised:
            write()
        assert "Traceback" not in str(raised.value)
        assert not spark.catalog.tableExists("kept"), name
    with tidelog.broker(root) as broker:
        served = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": TOPIC}
        at_broker = frame.write.format("tidelog").mode("append").options(**served)
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            at_broker.saveAsTable("kept")
    assert values(root) == ["old"]
    assert [path for path in Path(root).rglob("*") if ".sta" in path.name] == []


def test_a_write_inside_foreach_batch_is_no_new_table(spark: "SparkSession", root: str) -> None:
    """Spark runs a write to a new table as a command. This test writes within a micro-batch."""

    def write(batch: "DataFrame", number: int) -> None:
        options = {"path": root, "topic": TOPIC, "txnAppId": "again", "txnVersion": str(number)}
        batch.select("value").write.format("tidelog").mode("append").options(**options).save()

    stream = spark.readStream.format("tidelog").options(path=root, topic=TOPIC)
    query = stream.option("startingOffsets", "earliest").load().writeStream.foreachBatch(write)
    query = query.trigger(availableNow=True).option("checkpointLocation", f"{root}-checkpoint")
    query.start().awaitTermination()
    assert values(root) == ["old", "old"]


def test_a_table_of_the_catalog_is_written_only_with_options(
    spark: "SparkSession", root: str
) -> None:
    """Spark creates the table without calling the source, and passes no options when it writes."""
    spark.sql("create table named (value string) using tidelog options (path 'x', topic 'y')")
    try:
        frame = spark.range(3).selectExpr("string(id) as value")
        for write in (
            lambda: spark.sql("insert into named values ('w')"),
            lambda: frame.write.insertInto("named"),
            lambda: frame.writeTo("named").append(),
            lambda: spark.table("named").collect(),
        ):
            with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
                write()
        frame.writeTo("named").options(path=root, topic=TOPIC).append()
        read = spark.read.options(path=root, topic=TOPIC, valueAs="string").table("named")
        assert {row.value for row in read.collect()} == {"old", "0", "1", "2"}
    finally:
        spark.sql("drop table named")
