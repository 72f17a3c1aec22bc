"""A repeated batch of a stream or of a numbered write reaches a directory or a broker once."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.peers.test_sink_broker import read, values
from tests.spark.settled import await_markers
from tests.worlds.kafka.either import AnyBroker

import tidelog
from tidelog.errors import InvalidRequest
from tidelog.spark.sink import make_stream_writer, make_writer
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "tides"
T0 = 1_360_342_800_000
SCHEMA = "key binary, value binary, timestamp timestamp"


def rows(spark: "SparkSession", start: int, end: int) -> "DataFrame":
    return spark.range(start, end, 1, 2).selectExpr(
        "cast(cast(id % 7 as string) as binary) as key",
        "cast(cast(id as string) as binary) as value",
        f"timestamp_millis({T0} + id) as timestamp",
    )


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = str(tmp_path / "log")
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, partitions=2)
    return path


class Stream:
    """A stream from files to the sink; `add` writes rows as a batch, `again` repeats the batch."""

    def __init__(self, spark: "SparkSession", work: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._work = work
        self._options = options

    def add(self, start: int, end: int) -> None:
        rows(self._spark, start, end).write.mode("append").parquet(str(self._work / "input"))
        self.run()

    def run(self) -> None:
        frame = self._spark.readStream.schema(SCHEMA).parquet(str(self._work / "input"))
        writer = frame.writeStream.format("tidelog").options(**self._options)
        writer = writer.option("checkpointLocation", str(self._work / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def again(self) -> None:
        """Repeat the last batch, as if Spark crashed after the sink's commit and before its own."""
        commits = self._work / "checkpoint/commits"
        last = max(int(found.name) for found in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        self.run()
        assert (commits / str(last)).exists()


def found_in(root: str) -> Counter[tuple[bytes | None, bytes | None, int]]:
    with LogDir.open(root) as log_dir:
        readers = [log_dir.reader(TOPIC, number) for number in range(2)]
        return Counter((r.key, r.value, r.timestamp) for one in readers for r in one.records())


def expected(end: int) -> Counter[tuple[bytes | None, bytes | None, int]]:
    return Counter((b"%d" % (n % 7), b"%d" % n, T0 + n) for n in range(end))


def test_a_repeated_batch_is_in_the_directory_once(
    spark: "SparkSession", root: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, {"path": root, "topic": TOPIC})
    stream.add(0, 500)
    stream.again()
    assert found_in(root) == expected(500)
    stream.add(500, 900)
    stream.again()
    assert found_in(root) == expected(900)
    assert [str(found) for found in Path(root).rglob("*.sta*")] == []


def test_streams_and_batches_into_a_directory_that_is_in_use(
    spark: "SparkSession", root: str, tmp_path: Path
) -> None:
    """The process that has locked the directory can still append, and sees new records at once."""
    with tidelog.open(root, writable=True, control=True) as directory:
        stream = Stream(spark, tmp_path, {"path": root, "topic": TOPIC})
        stream.add(0, 300)
        stream.again()
        frame = rows(spark, 300, 400)
        writer = frame.write.format("tidelog").mode("append").option("topic", TOPIC)
        writer.option("txnAppId", "app").option("txnVersion", "0").save(root)
        writer.option("txnAppId", "app").option("txnVersion", "0").save(root)
        assert len(list(directory.records(TOPIC))) == 400
        directory.append(TOPIC, [tidelog.NewRecord(value=b"own", timestamp=T0)])
        with pytest.raises(Exception, match=r"clock\.ms"):
            writer.option("txnVersion", "1").option("clock.ms", str(T0)).save(root)
    assert found_in(root) == expected(400) + Counter([(None, b"own", T0)])


def test_a_version_is_in_the_directory_once(spark: "SparkSession", root: str) -> None:
    def write(version: str, start: int, end: int) -> None:
        writer = rows(spark, start, end).write.format("tidelog").mode("append")
        writer = writer.option("topic", TOPIC).option("txnAppId", "app")
        writer.option("txnVersion", version).save(root)

    write("7", 0, 100)
    write("7", 0, 100)
    write("6", 500, 600)
    write("8", 100, 150)
    assert found_in(root) == expected(150)


def test_a_version_is_in_each_topic_once(spark: "SparkSession", root: str) -> None:
    """A batch with rows for several topics is written with the same number to all of them."""
    with tidelog.open(root, writable=True) as directory:
        directory.create_topic("other", partitions=1)
    named = rows(spark, 0, 100).selectExpr("*", "if(string(value) < '5', 'other', 'new') AS topic")
    with tidelog.open(root, writable=True) as directory:
        directory.create_topic("new", partitions=1)
    for topic in (TOPIC, "other", "other", None):
        frame = named if topic is None else rows(spark, 0, 100)
        writer = frame.write.format("tidelog").mode("append").option("txnAppId", "app")
        writer = writer if topic is None else writer.option("topic", topic)
        writer.option("txnVersion", "7").save(root)
    with tidelog.open(root) as directory:
        found = {name: directory.count(name) for name in (TOPIC, "other", "new")}
    new = sum(not str(n) < "5" for n in range(100))
    assert {name: int(n) for name, n in found.items()} == {TOPIC: 100, "other": 100, "new": new}


@pytest.mark.kafka
def test_a_repeated_batch_is_at_the_broker_once(
    spark: "SparkSession", either_broker: AnyBroker, tmp_path: Path
) -> None:
    """A repeated batch is written once if delivery is exactly-once, twice by default."""
    either_broker.create_topic("stream-once", 2)
    either_broker.create_topic("stream-more", 2)
    broker = {"kafka.bootstrap.servers": either_broker.bootstrap}
    once = Stream(
        spark, tmp_path / "a", broker | {"topic": "stream-once", "delivery": "exactly-once"}
    )
    once.add(0, 300)
    once.again()
    once.add(300, 350)
    await_markers(either_broker, "stream-once")
    found = read(either_broker, "stream-once")
    assert Counter((m.key(), m.value(), m.timestamp()[1]) for m in found) == expected(350)
    more = Stream(spark, tmp_path / "b", broker | {"topic": "stream-more"})
    more.add(0, 10)
    more.again()
    assert Counter(values(either_broker, "stream-more")) == Counter(
        {b"%d" % n: 2 for n in range(10)}
    )


@pytest.mark.kafka
def test_a_version_is_at_the_broker_once(spark: "SparkSession", either_broker: AnyBroker) -> None:
    either_broker.create_topic("batch-once", 2)
    for version in ("3", "3", "2"):
        writer = rows(spark, 0, 100).write.format("tidelog").mode("append")
        writer = writer.option("kafka.bootstrap.servers", either_broker.bootstrap)
        writer = writer.option("topic", "batch-once").option("txnAppId", "app")
        writer.option("txnVersion", version).save()
    await_markers(either_broker, "batch-once")
    assert Counter(values(either_broker, "batch-once")) == Counter(b"%d" % n for n in range(100))
    either_broker.create_topic("batch-other", 1)
    where = "if(string(value) < '5', '{}', '{}') AS topic"
    named = rows(spark, 0, 90).selectExpr("*", where.format("batch-once", "batch-other"))
    for frame in (named, named):
        writer = frame.write.format("tidelog").mode("append").option("txnAppId", "app")
        writer = writer.option("kafka.bootstrap.servers", either_broker.bootstrap)
        writer.option("txnVersion", "3").save()
    await_markers(either_broker, "batch-other")
    assert len(values(either_broker, "batch-once")) == 100
    others = [b"%d" % n for n in range(90) if not str(n) < "5"]
    assert Counter(values(either_broker, "batch-other")) == Counter(others)
    frame = spark.range(1).selectExpr("'v' as value", "timestamp_millis(0) as timestamp")
    writer = frame.write.format("tidelog").mode("append").option("topic", "batch-once")
    with pytest.raises(Exception, match="InvalidTimestamp: a row whose timestamp is 1970"):
        writer.option("kafka.bootstrap.servers", either_broker.bootstrap).save()


BROKER = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": TOPIC}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": TOPIC}, "neither is given"),
        (BROKER | {"path": "/x"}, "not both"),
        (BROKER | {"lockWaitMs": "1"}, "brokers have no lock"),
        (BROKER | {"clock.ms": "1"}, "their own clock"),
        ({"path": "/x", "markerTopic": "m"}, "applies to brokers only"),
        ({"path": "/x", "kafka.acks": "all"}, "kafka.acks applies to brokers only"),
        ({"path": "/x", "delivery": "idempotent"}, "always written exactly"),
        ({"path": "s3://b/x"}, "is read-only"),
        (BROKER | {"delivery": "twice"}, "one of idempotent, exactly-once"),
        (BROKER | {"txnAppId": "a"}, "belong together"),
        (BROKER | {"txnAppId": "a", "txnVersion": "-1"}, "a number of at least 0"),
        (BROKER | {"txnAppId": "a", "txnVersion": "1", "delivery": "idempotent"}, "need delivery"),
        (BROKER | {"delivery": "exactly-once"}, "needs txnAppId"),
        (BROKER | {"kafka.transactional.id": "t"}, "give delivery=exactly-once"),
        (BROKER | {"kafka.enable.idempotence": "false"}, "always idempotent"),
        (BROKER | {"kafka.value.serializer": "x"}, "give valueAs"),
    ],
)
def test_options_that_contradict(given: dict[str, str], said: str) -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(InvalidRequest, match=said):
        make_writer(given, schema, overwrite=False)


def test_options_of_streams() -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(InvalidRequest, match="a streaming query numbers its"):
        make_stream_writer(BROKER | {"txnAppId": "a", "txnVersion": "1"}, schema)
    with pytest.raises(InvalidRequest, match="only appends"):
        make_writer(BROKER, schema, overwrite=True)


def test_a_complete_result_is_appended_in_each_batch(
    spark: "SparkSession", root: str, tmp_path: Path
) -> None:
    """Output mode `complete` appends all rows in each batch, as Spark's Kafka sink does."""
    given = str(tmp_path / "rows")
    for batch in (1, 2):
        rows(spark, 0, 7).write.mode("append").parquet(given)
        found = spark.readStream.schema(SCHEMA).parquet(given).groupBy("key").count()
        counts = found.selectExpr("key", "string(count) AS value").coalesce(1)
        query = counts.writeStream.format("tidelog").outputMode("complete").trigger(once=True)
        query = query.option("topic", "counts").option("createPartitions", "1")
        query = query.option("checkpointLocation", str(tmp_path / "complete"))
        query.start(root).awaitTermination()
        with tidelog.open(root) as directory:
            values_of = [record.value for _, record in directory.records("counts")]
        assert values_of == [b"1"] * 7 + [b"2"] * 7 * (batch - 1)
