"""The demo's use of Spark: writes one month through the sink, reads one day through the source."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from examples.demo.flights import FLIGHTS_TOPIC, ZONE, Flights, Ints, record_table
from pyspark.sql import functions as f

from tidelog.spark.session import SessionOptions, start
from tidelog.spark.source import plan_splits

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.scan import ScanPlan

_WORKERS: Final = 2
_MASTER: Final = f"local[{_WORKERS}]"
# Fields of a row's JSON that the job needs.
_ROW: Final = "origin string, dep_delay int"
_COLUMNS: Final = "value,timestamp,appendTimestamp"
_GROUPS: Final = ("hour", "origin")


def start_spark(directory: Path, messages: Path) -> "Future[SparkSession]":
    """Start a local session in the background, because the JVM takes seconds to start.

    Args:
        directory: Folder for Spark's own files.
        messages: File for stderr of Spark, its JVM and its workers.
    """
    pool = ThreadPoolExecutor(max_workers=1)
    future = pool.submit(_session, directory, messages)
    pool.shutdown(wait=False)
    return future


def _session(directory: Path, messages: Path) -> "SparkSession":
    options = SessionOptions(
        master=_MASTER,
        name="tidelog demo",
        time_zone=ZONE,
        conf={"spark.sql.shuffle.partitions": str(_WORKERS)},
    )
    session = start(options, directory, messages=messages)
    # Spark's workers load the kernels while flights are being appended. The workers keep running
    # for later tasks.
    session.range(_WORKERS, numPartitions=_WORKERS).mapInArrow(_load_kernels, "id long").count()
    return session


def _load_kernels(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Import the modules that reads and writes need; yield the batches unchanged."""
    import tidelog.record.columns.decode
    import tidelog.record.columns.encode
    import tidelog.scan  # noqa: F401 - loaded for the next task

    yield from batches


def write_month(
    spark: "SparkSession", path: str, flights: Flights, partitions: Ints, *, clock_ms: int
) -> None:
    """Append flights through Spark's sink; all become visible at once, with the same append time.

    Args:
        spark: The session.
        path: The directory of topics.
        flights: Flights in the order of their offsets.
        partitions: The partition of each flight.
        clock_ms: Time of the log's clock at the commit.
    """
    numbers = pa.chunked_array([pa.array(partitions.tolist(), pa.int32())])
    rows = record_table(flights).append_column("partition", numbers)
    # With one task, the order of the rows is the order of their offsets.
    frame = spark.createDataFrame(rows).coalesce(1)
    options = {"path": path, "topic": FLIGHTS_TOPIC, "clock.ms": str(clock_ms)}
    frame.write.format("tidelog").mode("append").options(**options).save()


def read_options(path: str, start_ms: int, end_ms: int, clock: str) -> dict[str, str]:
    """Return options of `format("tidelog")` for records in [start, end) on a clock."""
    return {
        "path": path,
        "subscribe": FLIGHTS_TOPIC,
        "startingTimestamp": str(start_ms),
        "endingTimestamp": str(end_ms),
        "clock": clock,
        "columns": _COLUMNS,
    }


def planned(options: Mapping[str, str]) -> "ScanPlan":
    """Return the plan of a read with these options."""
    return plan_splits(options)


def read_flights(spark: "SparkSession", options: Mapping[str, str]) -> "DataFrame":
    """Return a row for each flight.

    A row has the scheduled hour, the airport, the delay that the airline reported, and append time
    minus create time.
    """
    records = spark.read.format("tidelog").options(**options).load()
    row = f.from_json(f.col("value").cast("string"), _ROW).alias("row")
    lateness = f.unix_millis("appendTimestamp") - f.unix_millis("timestamp")
    return records.select(row, "timestamp", (lateness / 60_000).alias("lateness_min")).select(
        f.hour("timestamp").alias("hour"), "row.origin", "row.dep_delay", "lateness_min"
    )


def by_hour_and_airport(flights: "DataFrame") -> "pd.DataFrame":
    """Return departures, cancellations, delay and lateness by scheduled hour and airport."""
    left = f.col("dep_delay").isNotNull()
    late = f.when(left, f.col("lateness_min"))
    grouped = flights.groupBy(*_GROUPS).agg(
        f.count("dep_delay").alias("departures"),
        f.sum(f.when(left, 0).otherwise(1)).alias("cancelled"),
        f.percentile("dep_delay", 0.5).alias("delay_p50"),
        f.percentile("dep_delay", 0.9).alias("delay_p90"),
        f.percentile(late, 0.5).alias("late_p50"),
        f.percentile(late, 0.9).alias("late_p90"),
        f.max(late).alias("late_max"),
        f.sum(
            f.when(f.col("lateness_min") != f.coalesce("dep_delay", f.lit(0)), 1).otherwise(0)
        ).alias("disagreeing"),
    )
    frame: pd.DataFrame = grouped.orderBy(*_GROUPS).toPandas()
    return frame.astype(dict.fromkeys(("hour", "departures", "cancelled"), np.int64))
