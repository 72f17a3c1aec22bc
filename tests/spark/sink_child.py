"""A driver of its own, to be killed: a stream of Parquet files into the sink.

    python sink_child.py WORK OPTIONS

Reads `WORK/input`, two files in each batch, until all are written; OPTIONS are the sink's, as JSON.
"""

import json
import os
import sys
import warnings

from tests.spark.conftest import SETTINGS


def main(work: str, options: str) -> None:
    """Run the query to its end; its checkpoint is in `work`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").appName("tidelog tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    schema = "key binary, value binary, timestamp timestamp"
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(f"{work}/input")
    writer = frame.writeStream.format("tidelog").options(**json.loads(options))
    writer = writer.option("checkpointLocation", f"{work}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
