"""A driver of its own, to be killed: a stream of a directory into Parquet files.

    python stream_child.py DIRECTORY WORK stream|drain

`stream` runs until it is killed, `drain` until it has read what is there.
"""

import os
import sys
import warnings

from tests.spark.conftest import SETTINGS

PER_TRIGGER = 150


def main(root: str, work: str, mode: str) -> None:
    """Run the query; its checkpoint and its rows are in `work`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tidelog tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    reader = spark.readStream.format("tidelog").option("path", root).option("subscribe", "t")
    # The second one is more than the first could take: a restart may change limits.
    limit = PER_TRIGGER if mode == "stream" else 20 * PER_TRIGGER
    frame = reader.option("startingOffsets", "latest").option("maxOffsetsPerTrigger", limit).load()
    writer = frame.select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{work}/checkpoint")
    if mode == "drain":
        writer = writer.trigger(availableNow=True)
    query = writer.start(f"{work}/rows")
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
