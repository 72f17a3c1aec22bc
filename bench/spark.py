"""Compares the Spark source with a Python data source that does nothing, in one session.

The rival yields one prebuilt record batch repeatedly, with the same columns and sizes and in the
same number of tasks. So the rival's time is the time that Spark itself needs, mostly for the
conversion from Arrow to rows in the JVM. Both sides are measured in turn. Spark runs in local mode
on two cores. The page cache is warm. Batches are uncompressed and have 16 KB, with 8-byte keys and
100-byte values. Segments have 128 MiB. CRCs are checked. Each run is a new query with a new plan,
because Spark would reuse the results of an earlier shuffle. CPU time and memory are measured in
this process, without the JVM and its workers.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.harness import Case
from bench.spark_jobs import job_cases
from tidelog import scan
from tidelog.record.columns.encode import encode_table
from tidelog.spark.options import scan_columns
from tidelog.spark.rows import SparkRows, row_type
from tidelog.spark.source import plan_splits
from tidelog.spark.tasks import BATCH_ROWS
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import BUILT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000_000
ROWS_QUICK = 4_000_000
CHUNK_ROWS = 50_000
WARM_UPS = 4
TOPIC = "numbers"
GOAL = ">= 0.9"
# Rates of Spark's Kafka connector. This benchmark does not measure these rates. They were measured
# once on this kind of machine, with a broker on the same two cores.
CONNECTOR = "Spark's Kafka connector 4.2 was recorded at 0.80 M rows/s, 1.22 M with minPartitions=2"
HERE = Path(__file__).parent.parent
ALL_COLUMNS = (
    "sum(length(key))",
    "sum(length(value))",
    "count(topic)",
    "sum(partition)",
    "sum(offset)",
    "max(timestamp)",
    "sum(timestampType)",
)


def random_rows(rows: int, seed: int) -> pa.Table:
    """Return rows with 8-byte keys, 100-byte random values and increasing times."""
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "key": fixed(draw.bytes(8 * rows), 8, rows),
            "value": fixed(draw.bytes(100 * rows), 100, rows),
            "timestamp": pa.array(1_700_000_000_000 + np.arange(rows) + seed * rows),
        }
    )


def fixed(data: bytes, size: int, rows: int) -> "pa.Array[pa.Scalar[pa.DataType]]":
    ends = np.arange(0, size * (rows + 1), size, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def fill(path: str, rows: int) -> None:
    """Create and fill a topic of one partition."""
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, config={"retention.ms": "-1", "segment.bytes": str(128 << 20)})
        log = log_dir.log(TOPIC, 0)
        for number in range(rows // CHUNK_ROWS):
            batches = encode_table(random_rows(CHUNK_ROWS, number), now_ms=0)
            data = bytearray().join(batches)
            log.append_batches(data, BUILT)


class NothingSource(DataSource):
    """Yields the same record batch repeatedly."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> StructType:
        return row_type(self.options["columns"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return NothingReader(dict(self.options))


class NothingReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.batch = Path(options["batch"]).read_bytes()
        self.times = [int(count) for count in options["times"].split(",")]

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(count) for count in self.times]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.ipc.open_stream(self.batch).read_next_batch()
        for _ in range(partition.value):
            yield batch


def session() -> "SparkSession":
    """Return a session on two cores, whose workers can import this module."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").appName("tidelog bench")
        builder = builder.config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.memory", "2g")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        found = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    found.dataSource.register(NothingSource)
    return found


def nothing(
    spark: "SparkSession", path: str, columns: tuple[str, ...]
) -> Callable[[], "DataFrame"]:
    """Return a function that loads the rival's data source as a DataFrame.

    The rival yields as many batches as tidelog's source, each with as many rows.
    """
    plan = plan_splits({"path": path, "subscribe": TOPIC, "columns": ",".join(columns)})
    wanted, how = scan_columns(columns, {}), scan.ReadOptions(rows=BATCH_ROWS)
    batch = next(scan.read(plan.splits[0], wanted, options=how))
    sink = Path(path, f"batch-{len(columns)}.arrow")
    first = SparkRows(columns).convert(batch, plan.splits[0].topic_partition)
    with pa.OSFile(str(sink), "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
        writer.write_batch(first)
    counts = [-(-(split.end_offset - split.start_offset) // batch.num_rows) for split in plan]
    reader = spark.read.format("nothing").option("columns", ",".join(columns))
    times = ",".join(map(str, counts))
    return reader.option("batch", str(sink)).option("times", times).load


def ours(spark: "SparkSession", path: str, columns: tuple[str, ...]) -> Callable[[], "DataFrame"]:
    reader = spark.read.format("tidelog").option("subscribe", TOPIC)
    return reader.option("columns", ",".join(columns)).option("path", path).load


def run(load: Callable[[], "DataFrame"], aggregates: tuple[str, ...]) -> Callable[[], float]:
    """Return a function that runs the query and returns the number of rows it processed."""
    return lambda: float(load().selectExpr("count(*)", *aggregates).collect()[0][0])


def cases(quick: bool) -> Iterator[Case]:
    rows = ROWS_QUICK if quick else ROWS
    name = f"a Python data source that does nothing, pyspark {pyspark.__version__}"
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as path:
        fill(path, rows)
        spark = session()
        try:
            for what, columns, aggregates in (
                ("full schema, sum(length(value))", scan.COLUMNS, ("sum(length(value))",)),
                ("full schema, all columns used", scan.COLUMNS, ALL_COLUMNS),
                ("columns=value, sum(length(value))", ("value",), ("sum(length(value))",)),
            ):
                read = run(ours(spark, path, columns), aggregates)
                rival = run(nothing(spark, path, columns), aggregates)
                for _ in range(WARM_UPS):  # warms up both sides in turn, until the JVM has compiled
                    read()
                    rival()
                yield Case(
                    case=f"read {rows / 1e6:.0f} M records, {what}",
                    unit="rows/s",
                    ours=read,
                    rival=rival,
                    rival_name=name,
                    goal=GOAL,
                    note="the rival's time is Spark's own share; " + CONNECTOR,
                )
            yield from job_cases(spark, quick=quick)
        finally:
            spark.stop()
