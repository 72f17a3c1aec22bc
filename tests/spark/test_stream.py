"""`spark.readStream.format("tidelog")` on a directory: every record once, losses reported."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.streams import to_end

from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Row = tuple[str, int, int, bytes]


def append(root: Path, counts: dict[str, dict[int, int]], *, per_batch: int = 5) -> None:
    """Create missing topics and partitions, then append records to the partitions."""
    with LogDir.open(str(root), options=LogDirOptions(create=True)) as log_dir:
        for topic, numbers in counts.items():
            if topic not in log_dir.topics():
                config = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
                log_dir.create_topic(topic, partitions=max(numbers) + 1, config=config)
            elif log_dir.topic(topic).partitions <= max(numbers):
                log_dir.add_partitions(topic, max(numbers) + 1)
            for number, count in numbers.items():
                log = log_dir.log(topic, number)
                end = log.log_end_offset
                for first in range(end, end + count, per_batch):
                    last = min(first + per_batch, end + count)
                    log.append(
                        [
                            NewRecord(value=f"{topic}-{number}-{n}".encode())
                            for n in range(first, last)
                        ]
                    )


def run(spark: "SparkSession", root: Path, work: Path, **options: str) -> "StreamingQuery":
    """Stream the existing records into Parquet files; the query's offsets are in `work`."""
    reader = spark.readStream.format("tidelog").option("path", str(root))
    given = {"startingOffsets": "earliest", "columns": "topic,partition,offset,value"}
    writer = (
        reader.options(**given | options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
    )
    return to_end(partial(writer.start, str(work / "rows")))


def rows(spark: "SparkSession", work: Path) -> list[Row]:
    """Return the sink's rows, in order."""
    found = spark.read.parquet(str(work / "rows")).collect()
    return sorted((row[0], row[1], row[2], bytes(row[3])) for row in found)


def expected(counts: dict[str, dict[int, int]]) -> list[Row]:
    return [
        (topic, number, offset, f"{topic}-{number}-{offset}".encode())
        for topic, numbers in sorted(counts.items())
        for number, count in sorted(numbers.items())
        for offset in range(count)
    ]


def test_available_now_reads_in_batches_and_then_only_new_records(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root, work = tmp_path / "log", tmp_path / "work"
    append(root, {"t1": {0: 200, 1: 20}})
    limits = {"subscribePattern": "t[0-9]", "maxOffsetsPerTrigger": "100"}
    query = run(spark, root, work, **limits)
    progress = [json.loads(one.json) for one in query.recentProgress if one.numInputRows]
    assert [one["numInputRows"] for one in progress] == [99, 99, 22]
    assert rows(spark, work) == expected({"t1": {0: 200, 1: 20}})
    source = progress[0]["sources"][0]
    assert source["endOffset"]["topics"]["t1"]["partitions"]["1"] == {"epoch": 0, "offset": 9}
    assert source["latestOffset"]["behind"] == {"t1": {"0": 110, "1": 11}}
    assert source["latestOffset"]["metrics"]["offsetsBehindLatest"] == 121

    append(root, {"t1": {0: 10, 2: 7}, "t2": {0: 30}, "other": {0: 5}})
    query = run(spark, root, work, subscribePattern="t[0-9]", maxBytesPerTrigger="600")
    assert rows(spark, work) == expected({"t1": {0: 210, 1: 20, 2: 7}, "t2": {0: 30}})
    assert len([one for one in query.recentProgress if one.numInputRows]) > 1

    # A checkpoint as Spark's Kafka connector would have written it.
    offsets = work / "checkpoint" / "offsets"
    last = max(offsets.glob("[0-9]*"), key=lambda path: int(path.name))
    (offsets / f".{last.name}.crc").unlink()
    head, _ = last.read_text().rsplit("\n", 1)
    last.write_text(head + '\n{"t2":{"0":30},"t1":{"2":7,"1":20,"0":210}}')
    append(root, {"t1": {0: 5}})
    run(spark, root, work, subscribePattern="t[0-9]")
    assert rows(spark, work) == expected({"t1": {0: 215, 1: 20, 2: 7}, "t2": {0: 30}})


def test_options_of_the_other_kind_of_query_are_refused(
    spark: "SparkSession", tmp_path: Path
) -> None:
    append(tmp_path, {"t": {0: 1}})
    with pytest.raises(Exception, match="option endingOffsets is for batches: a stream has no end"):
        run(spark, tmp_path, tmp_path / "work", subscribe="t", endingOffsets="latest")
    batch = spark.read.format("tidelog").option("subscribe", "t").option("path", str(tmp_path))
    with pytest.raises(Exception, match=r"maxOffsetsPerTrigger is for streams .readStream."):
        batch.option("maxOffsetsPerTrigger", "5").load().collect()


def test_a_loss_is_a_named_error_or_is_skipped_if_allowed(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root, work = tmp_path / "log", tmp_path / "work"
    append(root, {"t": {0: 50}, "u": {0: 20}})
    run(spark, root, work, subscribe="t,u")
    append(root, {"t": {0: 50}, "u": {0: 5}})
    with LogDir.open(str(root), options=LogDirOptions(writable=True)) as log_dir:
        log_dir.log("t", 0).delete_records(70)
        log_dir.delete_topic("u")
    append(root, {"u": {0: 3}})
    with pytest.raises(Exception, match="OffsetsGone") as caught:
        run(spark, root, work, subscribe="t,u")
    said = str(caught.value)
    assert (
        "t-0: offsets 50 to 69: deleted before they were read, the log starts at offset 70" in said
    )
    assert "u-0: offset 20: the topic was deleted and recreated" in said
    assert "With failOnDataLoss=false" in said
    query = run(spark, root, work, subscribe="t,u", failOnDataLoss="false")
    told = json.loads(query.recentProgress[0].json)["sources"][0]["latestOffset"]
    assert told["lostRanges"] == 2
    both = expected({"t": {0: 100}, "u": {0: 20}})
    assert sorted(rows(spark, work)) == sorted(
        [row for row in both if row[0] == "u" or not 50 <= row[2] < 70] + expected({"u": {0: 3}})
    )
