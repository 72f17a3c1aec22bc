"""`df.write.format("tidelog")`: either all rows of a write are in the topic, or none."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.worlds.waiting import until_equal, until_so

import tidelog
from tidelog.record.partitioner import partition_of
from tidelog.record.record import Record
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import Header, NewRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

TOPIC = "tides"
PARTITIONS = 3
T0 = 1_360_342_800_000
SCHEMA = (
    "id int, key binary, value binary, partition int, timestamp timestamp,"
    " headers array<struct<key:string,value:binary>>"
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    with LogDir.open(str(tmp_path), options=LogDirOptions(create=True)) as log_dir:
        # With default retention, records with create times older than a week would be deleted.
        config = {"internal.segment.bytes": "20000", "retention.ms": "-1"}
        log_dir.create_topic(TOPIC, partitions=PARTITIONS, config=config)
        for number in range(PARTITIONS):
            log_dir.log(TOPIC, number).append([NewRecord(value=b"old")])
    return str(tmp_path)


def writer(frame: "DataFrame", root: str) -> "DataFrameWriter":
    return frame.write.format("tidelog").mode("append").option("path", root)


def rows(spark: "SparkSession", count: int = 2_000) -> "DataFrame":
    """Return rows with and without key, value, headers and partition; times have microseconds."""
    return spark.range(0, count, 1, 4).selectExpr(
        "cast(if(id % 5 = 0, null, id % 97) as string) as key",
        "cast(if(id % 7 = 0, null, rpad(cast(id as string), 20 + id % 40, 'x')) as binary) value",
        f"timestamp_micros({T0} * 1000 + id * 1001) as timestamp",
        "if(id % 11 = 0, cast(id % 3 as int), null) as partition",
        "if(id % 3 = 0, null, array(named_struct('key', 'id', 'value', cast(cast(id as string)"
        " as binary)), named_struct('key', 'none', 'value', cast(null as binary)))) as headers",
    )


def expected(count: int = 2_000) -> dict[int, NewRecord]:
    found = {}
    for number in range(count):
        text = str(number)
        found[number] = NewRecord(
            key=None if number % 5 == 0 else str(number % 97).encode(),
            value=None if number % 7 == 0 else text.ljust(20 + number % 40, "x").encode(),
            timestamp=T0 + number * 1001 // 1000,
            headers=() if number % 3 == 0 else (Header("id", text.encode()), Header("none", None)),
        )
    return found


def new_records(root: str) -> list[list[Record]]:
    """Return each partition's records after the first one, which existed before the write."""
    with LogDir.open(root) as log_dir:
        assert log_dir.reports == []
        return [list(log_dir.reader(TOPIC, number).records(1)) for number in range(PARTITIONS)]


def content(record: Record | NewRecord) -> tuple[object, ...]:
    return record.key, record.value, record.timestamp, record.headers


def contents(parts: list[list[Record]]) -> Counter[tuple[object, ...]]:
    return Counter(content(record) for part in parts for record in part)


def all_paths(root: str) -> list[Path]:
    return sorted(Path(root).rglob("*"))


def leftovers(root: str) -> list[str]:
    return [str(found) for found in Path(root).rglob("*") if ".sta" in found.name]


def await_nothing_left(root: str) -> None:
    """Wait until the other tasks of an aborted write have ended; Spark doesn't wait for them."""
    until_equal([], lambda: leftovers(root))


def test_everything_is_read_back(spark: "SparkSession", root: str) -> None:
    writer(rows(spark), root).option("topic", TOPIC).save()
    found = new_records(root)
    want = expected()
    assert contents(found) == Counter(map(content, want.values()))
    for number, part in enumerate(found):
        assert [record.offset for record in part] == list(range(1, len(part) + 1))
        for record in part:
            if record.key is not None and record.headers and int(record.headers[0].value) % 11:  # type: ignore[arg-type] # the id, never null
                assert partition_of(record.key, PARTITIONS) == number
    assert leftovers(root) == []


def test_given_partition_wins(spark: "SparkSession", root: str) -> None:
    frame = spark.range(30).selectExpr(
        "'k' as key", "'v' as value", "cast(id % 3 as int) partition"
    )
    writer(frame, root).option("topic", TOPIC).save()
    assert [len(part) for part in new_records(root)] == [10, 10, 10]


def test_order_of_a_task_stays(spark: "SparkSession", root: str) -> None:
    frame = spark.range(0, 25_000, 1, 1).selectExpr(
        "cast(id % 10 as string) as key", "cast(id as string) as value"
    )
    writer(frame, root).option("topic", TOPIC).save()
    for part in new_records(root):
        ids = [int(record.value or b"") for record in part]
        assert ids == sorted(ids)
    with LogDir.open(root) as log_dir:
        for number in range(PARTITIONS):
            segments = log_dir.reader(TOPIC, number).segments
            assert all(segment.size_bytes <= 20_000 for segment in segments)


def test_topics_by_column(spark: "SparkSession", root: str) -> None:
    with LogDir.open(root, options=LogDirOptions(writable=True)) as log_dir:
        log_dir.create_topic("other", config={"compression.type": "zstd"})
    frame = spark.range(100).selectExpr(
        "if(id < 40, 'other', 'tides') as topic", "cast(id as string) as value"
    )
    writer(frame, root).save()
    assert sum(map(len, new_records(root))) == 60
    with LogDir.open(root) as log_dir:
        reader = log_dir.reader("other", 0)
        assert sorted(int(r.value or b"") for r in reader.records()) == list(range(40))
        codecs = {b.codec.config_name for part in reader.slices() for _, b in part.batches()}
        assert codecs == {"zstd"}


def test_the_jobs_codec_is_used_if_the_topic_has_none(spark: "SparkSession", root: str) -> None:
    frame = spark.range(100).selectExpr("cast(id as string) as value")
    writer(frame, root).option("topic", TOPIC).option("compression", "lz4").save()
    with LogDir.open(root) as log_dir:
        parts = [part for n in range(PARTITIONS) for part in log_dir.reader(TOPIC, n).slices(1)]
        codecs = {batch.codec.config_name for part in parts for _, batch in part.batches()}
    assert codecs == {"lz4"}


def test_topic_is_copied_as_it_is(spark: "SparkSession", root: str) -> None:
    """A write accepts the columns of a read, and keeps keys, times and headers."""
    writer(rows(spark, 300), root).option("topic", TOPIC).save()
    with LogDir.open(root, options=LogDirOptions(writable=True)) as log_dir:
        log_dir.create_topic("copy", partitions=PARTITIONS)
    source = spark.read.format("tidelog").option("subscribe", TOPIC)
    frame = source.option("includeHeaders", "true").load(root)
    writer(frame, root).option("topic", "copy").save()
    with LogDir.open(root) as log_dir:
        for number in range(PARTITIONS):
            want = [content(r) for r in log_dir.reader(TOPIC, number).records()]
            assert [content(r) for r in log_dir.reader("copy", number).records()] == want


def test_the_option_clock_ms_is_the_time_of_the_commit(spark: "SparkSession", root: str) -> None:
    with LogDir.open(root, options=LogDirOptions(writable=True)) as log_dir:
        log_dir.create_topic("old")
    frame = spark.range(5).selectExpr("cast(id as string) as value")
    writer(frame, root).option("topic", "old").option("clock.ms", str(T0)).save()
    with LogDir.open(root) as log_dir:
        reader = log_dir.reader("old", 0)
        assert {record.timestamp for record in reader.records()} == {T0}
        assert {reader.append_time_of(offset) for offset in range(5)} == {T0}


def test_no_rows(spark: "SparkSession", root: str) -> None:
    writer(rows(spark).where("1 = 0"), root).option("topic", TOPIC).save()
    assert new_records(root) == [[], [], []]


# -- failures ------------------------------------------------------------------------------------


def failing(
    batches: Iterator[pa.RecordBatch], attempts: int, after: Path | None
) -> Iterator[pa.RecordBatch]:
    """Yield all rows, then wait for the file `after`, and let the first attempts of task 3 fail."""
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 3 and context.attemptNumber() < attempts:
        if after is not None:
            until_so(after.exists, "the end of the other tasks")
        raise RuntimeError("the last task failed at its end")


def with_failure(frame: "DataFrame", attempts: int, *, after: Path | None = None) -> "DataFrame":
    return frame.mapInArrow(lambda batches: failing(batches, attempts, after), frame.schema)


def note_end_of_others(spark: "SparkSession", note: Path) -> None:
    """Create a file as soon as all tasks of the running stage but one have ended."""
    tracker = spark.sparkContext.statusTracker()

    def have_others_ended() -> bool:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(each and each.numCompletedTasks == each.numTasks - 1 for each in stages)

    until_so(have_others_ended, "the end of the other tasks")
    note.touch()


def test_a_failed_task_leaves_no_files(spark: "SparkSession", root: str, tmp_path: Path) -> None:
    """Tasks may outlive an aborted write, so the failing task waits until all others have ended."""
    before, note = all_paths(root), tmp_path.parent / f"{tmp_path.name}-ended"
    with ThreadPoolExecutor(1) as threads:
        noting = threads.submit(note_end_of_others, spark, note)
        with pytest.raises(Exception, match="the last task failed"):
            writer(with_failure(rows(spark), 99, after=note), root).option("topic", TOPIC).save()
        noting.result()
    assert new_records(root) == [[], [], []]
    assert all_paths(root) == before


def test_task_that_is_tried_again_writes_its_rows_once(spark: "SparkSession", root: str) -> None:
    writer(with_failure(rows(spark), 1), root).option("topic", TOPIC).save()
    assert contents(new_records(root)) == Counter(map(content, expected().values()))
    assert leftovers(root) == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["'v' as value", "1 as partiton"], "did you mean partition?"),
        (["'k' as key"], "there is no column 'value', only 'key'"),
        (["1.5 as value"], "column value has type decimal"),
        (["'v' as value", "7 as partition"], "partition 7"),
    ],
)
def test_rows_that_cannot_be_written(
    spark: "SparkSession", root: str, columns: list[str], said: str
) -> None:
    frame = spark.range(1).selectExpr(*columns)
    with pytest.raises(Exception, match=said.replace("?", r"\?")):
        writer(frame, root).option("topic", TOPIC).save()
    assert new_records(root) == [[], [], []]


def test_a_record_that_the_topic_refuses_fails_the_write(spark: "SparkSession", root: str) -> None:
    with LogDir.open(root, options=LogDirOptions(writable=True)) as log_dir:
        log_dir.alter_config(TOPIC, {"message.timestamp.before.max.ms": "3600000"})
    with pytest.raises(Exception, match="InvalidTimestamp"):
        writer(rows(spark), root).option("topic", TOPIC).save()
    assert new_records(root) == [[], [], []]
    await_nothing_left(root)


def test_options_that_cannot_be(spark: "SparkSession", root: str) -> None:
    frame = spark.range(1).selectExpr("'v' as value")
    with pytest.raises(Exception, match="give the option topic"):
        writer(frame, root).save()
    with pytest.raises(Exception, match="tides"):
        writer(frame, root).option("topic", "tide").save()
    with pytest.raises(Exception, match=r"did you mean topic\?"):
        writer(frame, root).option("topick", TOPIC).save()
    with pytest.raises(Exception, match='mode\\("append"\\)'):
        frame.write.format("tidelog").mode("overwrite").option("topic", TOPIC).save(root)


def test_directory_that_is_in_use(spark: "SparkSession", root: str) -> None:
    frame = spark.range(1).selectExpr("'v' as value")
    with (
        LogDir.open(root, options=LogDirOptions(writable=True)),
        pytest.raises(Exception, match="another process has it open for writing"),
    ):
        writer(frame, root).option("topic", TOPIC).option("lockWaitMs", "0").save()
    assert leftovers(root) == []


def test_directory_that_a_broker_serves(spark: "SparkSession", root: str) -> None:
    with tidelog.broker(root) as broker:
        writer(rows(spark, 300), root).option("topic", TOPIC).save()
        ends = broker.call(
            lambda node: [
                node.partitions.get(TOPIC, number).high_watermark for number in range(PARTITIONS)
            ]
        )
    assert sum(ends) == 300 + PARTITIONS
    assert contents(new_records(root)) == Counter(map(content, expected(300).values()))
    assert leftovers(root) == []
