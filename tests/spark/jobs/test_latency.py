"""`tidelog.spark.latency` on real Spark: the same numbers as the library, for any log."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.directories.random_logs import TOPIC, make_log_dir
from tests.worlds.kafka.groups import tidelog

from tidelog import broker
from tidelog import spark as tidelog_spark
from tidelog.errors import ClusterFailure, InvalidRequest, UnknownTopic
from tidelog.jobs.latency.job import measure, whole_hours
from tidelog.record.builder import build_batch
from tidelog.scan.latency import latency as library_latency
from tidelog.scan.latency import lateness
from tidelog.spark.places import Place
from tidelog.types import HOUR_MS, INT64_MAX, NewRecord, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELAYS = (0, 1_000, 300_000)
START_MS = 1_360_342_800_000


class Told:
    """A progress listener that records its calls."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.last = (0, 0)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def at(self, done: int, planned: int) -> None:
        self.last = done, planned


@pytest.mark.parametrize(
    ("kind", "split_bytes"), [("CreateTime", 2_000), ("LogAppendTime", 1 << 20)]
)
def test_the_numbers_are_the_librarys(
    spark: "SparkSession", tmp_path: Path, kind: str, split_bytes: int
) -> None:
    """The logs have all codecs, transactions, missing timestamps, and unknown append times."""
    path = str(tmp_path)
    make_log_dir(path, 5, steps=60, config={"message.timestamp.type": kind})
    told = Told()
    found = tidelog_spark.latency(
        spark, path, TOPIC, delays_ms=DELAYS, split_bytes=split_bytes, listener=told
    )
    expected, late = library_latency(path)[TOPIC], lateness(path, delays_ms=DELAYS)[TOPIC]
    topic = found.found[TOPIC]
    assert topic.by_append == expected.by_hour
    assert topic.by_create.total() == expected.total
    assert topic.without == expected.without
    assert (topic.late.records, topic.late.without_time) == (late.records, late.without_time)
    assert (topic.late.out_of_order, topic.late.lost) == (late.out_of_order, late.lost)
    assert topic.late.late == late.late
    assert told.last[0] == told.last[1] > 0
    rows = [row for row in found.hours.collect() if row["clock"] == "append"]
    assert {row["hour_ms"]: row["records"] for row in rows} == {
        hour: histogram.count for hour, histogram in expected.by_hour.items()
    }
    assert all(row["hour"].timestamp() * 1000 == row["hour_ms"] for row in rows)
    marks = {row["delay_ms"]: row["lost"] for row in found.watermarks.collect()}
    assert marks == late.lost
    (summary,) = found.topics.collect()
    assert summary["out_of_order"] == late.out_of_order
    assert found.log_bytes > 0
    assert not found.notes


def test_hours_of_a_range_and_single_partitions(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path)
    make_log_dir(path, 6, steps=60)
    name = TopicPartition(TOPIC, 1)
    hours = list(library_latency(path, name)[TOPIC].by_hour)
    start, end = hours[0] + 5, hours[0] + HOUR_MS
    expected = library_latency(path, name, start_ms=start, end_ms=end)[TOPIC]
    found = measure(spark, Place(path), name, start=start, end=end).topics[TOPIC]
    assert found.by_append == expected.by_hour
    empty = measure(spark, Place(path), start=hours[-1] + 9 * HOUR_MS).topics[TOPIC]
    assert (empty.records, dict(empty.by_append)) == (0, {})


def test_the_command(spark: "SparkSession", tmp_path: Path) -> None:
    path, page = str(tmp_path / "data"), tmp_path / "page.html"
    make_log_dir(path, 7, steps=50)
    assert spark is not None  # the command uses this session
    ended = tidelog("spark", "latency", path, "-o", "json", "--report", str(page))
    assert ended.code == 0, ended.err
    rows = [row for row in ended.rows if row["clock"] == "append"]
    expected = library_latency(path)[TOPIC].by_hour
    assert {row["hour_ms"]: (row["records"], row["p99_ms"]) for row in rows} == {
        hour: (histogram.count, histogram.percentile(99)) for hour, histogram in expected.items()
    }
    assert f"{TOPIC}: 226 records: P50 " in ended.err
    assert " records/s" in ended.err
    shown = page.read_text()
    assert shown.count("<svg") >= 2
    assert f"{TOPIC}: latency by hour" in shown
    arguments = ("spark", "latency", path, f"{TOPIC}:0", "--delay", "1s", "--show", "watermarks")
    marks = tidelog(*arguments, "-o", "json").rows
    late = lateness(path, TopicPartition(TOPIC, 0), delays_ms=(1_000,))[TOPIC]
    assert [row["lost"] for row in marks] == [late.lost[1_000]]
    precision = "note: percentiles are off by at most 1.6%, and rounded by at most another 1.6%"
    for show in ("topics", "hours"):
        table = tidelog("spark", "latency", path, "--show", show)
        assert "TOPIC" in table.out
        assert precision in table.err
    assert precision not in tidelog("spark", "latency", path, "--show", "watermarks").err
    assert precision not in ended.err
    wrong = tidelog("spark", "latency", path, "other")
    assert (wrong.code, "no topic other" in wrong.err or "other" in wrong.err) == (1, True)


# If a setting is given that only librdkafka has, librdkafka reads the records. TLS or SASL settings
# have the same effect.
BY_LIBRARY = {"socket.keepalive.enable": "true"}


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_cluster_read_by_the_client_library_has_the_create_times_of_messages(
    spark: "SparkSession", tmp_path: Path, kind: str
) -> None:
    with broker(str(tmp_path / "data"), settings={"log.retention.ms": "-1"}) as running:
        address = f"kafka://{running.bootstrap_servers}"
        config = {"message.timestamp.type": kind}
        running.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1, config=config))
        with RawClient(running.bootstrap_servers) as client:
            times = [START_MS + (number * 7 % 20) * HOUR_MS for number in range(100)]
            records = [NewRecord(value=b"v", timestamp=time_ms) for time_ms in times]
            assert not client.produce(TOPIC, bytes(build_batch(records))).error_code
        by_batches, by_library = (
            measure(spark, Place.parse(address, client=given), TOPIC, delays_ms=DELAYS).topics[
                TOPIC
            ]
            for given in ({}, BY_LIBRARY)
        )
    if kind == "CreateTime":
        assert by_library.late.out_of_order == by_batches.late.out_of_order > 0
        assert by_library.late.lost == by_batches.late.lost
    else:
        assert by_library.late.without_time == len(times)


def test_invalid_measurements_are_typed_errors(spark: "SparkSession", tmp_path: Path) -> None:
    make_log_dir(str(tmp_path), 6, steps=3)
    with pytest.raises(UnknownTopic):
        measure(spark, Place(str(tmp_path)), "other")
    with pytest.raises(InvalidRequest, match="delays must be 0 or more"):
        measure(spark, Place(str(tmp_path)), delays_ms=(-1,))
    with pytest.raises(ClusterFailure, match="could not list topics"):
        measure(spark, Place.parse("kafka://localhost:1"), start="-1h")


def test_whole_hours_count() -> None:
    wanted = whole_hours(HOUR_MS + 1, 3 * HOUR_MS - 1)
    assert (wanted.start_ms, wanted.end_ms) == (HOUR_MS, 3 * HOUR_MS)
    assert whole_hours(None, INT64_MAX).end_ms == INT64_MAX
