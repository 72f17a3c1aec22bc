"""A separate driver, to be killed, that streams Parquet files into the sink.

    python sink_child.py WORK OPTIONS [CONF]

Reads the files of `WORK/input`, two in each batch, until all their rows are written. OPTIONS are
the sink's options, CONF are settings of Spark such as `spark.master`; both are JSON.
"""

import json
import sys

from tests.spark.drivers import open_session
from tests.spark.streams import to_end


def main(work: str, options: str, conf: str = "{}") -> None:
    """Run the query to its end; its checkpoint is in `work`."""
    spark = open_session("local[2,4]", json.loads(conf))
    schema = "key binary, value binary, timestamp timestamp"
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(f"{work}/input")
    writer = frame.writeStream.format("tidelog").options(**json.loads(options))
    writer = writer.option("checkpointLocation", f"{work}/checkpoint").trigger(availableNow=True)
    to_end(writer.start)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
