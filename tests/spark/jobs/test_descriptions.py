"""In Spark's UI, the description of each job names our job and its topic."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidelog
from tidelog import spark as tidelog_spark
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

POSITIONS = "group string, topic string, partition int, offset bigint"
SETTINGS = {"retention.ms": "-1", "internal.segment.bytes": "4000", "cleanup.policy": "compact"}


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = str(tmp_path / "log")
    with tidelog.open(path, writable=True) as directory:
        directory.create_topic("prices", config=SETTINGS)
        for start in range(0, 200, 20):
            made = [
                NewRecord(key=b"%d" % (n % 7), value=b"%d" % n) for n in range(start, start + 20)
            ]
            directory.append("prices", made)
    tidelog.open(tmp_path / "b", writable=True).close()
    return path


def descriptions(spark: "SparkSession") -> list[str]:
    """Return the descriptions of this session's jobs in Spark's UI, oldest first; "" for none."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    found = [jobs.apply(number) for number in range(jobs.size())]
    return [
        job.description().get() if job.description().isDefined() else ""
        for job in sorted(found, key=lambda job: int(job.jobId()))
    ]


@pytest.mark.parametrize(
    "name", ["latency", "reindex", "compact", "lag", "audit", "replay", "bootstrap", "mirror"]
)
def test_each_job_of_spark_names_our_job_and_its_topic(
    spark: "SparkSession", root: str, tmp_path: Path, name: str
) -> None:
    def lag() -> object:
        positions = spark.createDataFrame([("readers", "prices", 0, 3)], POSITIONS)
        return tidelog_spark.lag(spark, root, "readers", "prices", positions=positions)

    def bootstrap() -> object:
        table = spark.range(5).selectExpr("string(id) as key", "string(id) as value")
        return tidelog_spark.bootstrap(spark, table, "prices", to=root, key="key", value="value")

    runs: dict[str, Callable[[], object]] = {
        "latency": lambda: tidelog_spark.latency(spark, root),
        "reindex": lambda: tidelog_spark.reindex(spark, root, "prices"),
        "compact": lambda: tidelog_spark.compact(spark, root, "prices", roll=True),
        "lag": lag,
        "audit": lambda: tidelog_spark.audit(spark, root, root, topics="prices"),
        "replay": lambda: tidelog_spark.replay(
            spark, root, "prices", to=f"parquet:{tmp_path}/out", clock="append", start="-1d"
        ),
        "bootstrap": bootstrap,
        # A string stands for a list with one topic.
        "mirror": lambda: tidelog_spark.mirror(
            spark, root, "prices", str(tmp_path / "b"), checkpoint=f"{tmp_path}/c", create=True
        ),
    }
    context = spark.sparkContext
    context.setJobDescription("mine")
    try:
        before = len(descriptions(spark))
        runs[name]()
        found = [text for text in descriptions(spark)[before:] if text != "mine"]
        assert found
        assert all(name in text and "prices" in text for text in found), found
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type] # removed
