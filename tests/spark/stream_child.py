"""A separate driver, to be killed, that streams a directory into Parquet files.

python stream_child.py DIRECTORY WORK
"""

import sys
from functools import partial
from typing import TYPE_CHECKING

from tests.spark.drivers import open_session
from tests.spark.streams import to_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PER_TRIGGER = 150


def start(spark: "SparkSession", root: str, work: str, *, is_last: bool) -> "StreamingQuery":
    """Start and return the query; its checkpoint and its rows are in `work`."""
    reader = spark.readStream.format("tidelog").option("path", root).option("subscribe", "t")
    # The last run reads more per batch, which also tests that a restart may change limits.
    limit = 20 * PER_TRIGGER if is_last else PER_TRIGGER
    frame = reader.option("startingOffsets", "latest").option("maxOffsetsPerTrigger", limit).load()
    writer = frame.select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{work}/checkpoint")
    if is_last:
        writer = writer.trigger(availableNow=True)
    return writer.start(f"{work}/rows")


def main(root: str, work: str) -> None:
    """Run the query until this process is killed."""
    spark = open_session("local[2]")
    to_end(partial(start, spark, root, work, is_last=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
