"""Runs the same queries with Spark's own Kafka connector and with ours; prints the results.

Called with one JSON object: `jars` (the folder of the connector), `folder` (for checkpoints) and
`asks` (the options of each query, by name). A streaming query has an option `stream`. Each query
runs in each format (the connector's and ours). Its result is the schema and the rows (bytes as
hexadecimal digits), or `refused`.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("kafka", "tidelog")
COLUMNS = (
    "topic",
    "partition",
    "offset",
    "hex(key)",
    "hex(value)",
    "unix_millis(timestamp)",
    "timestampType",
)
HEADERS = "transform(headers, h -> array(h.key, hex(h.value)))"


def session(jars: Path) -> "SparkSession":
    from pyspark.sql import SparkSession

    found = ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))
    builder = SparkSession.builder.master("local[2]").config("spark.jars", found)
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    return builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()


def streamed(spark: "SparkSession", kind: str, options: dict[str, str], folder: str) -> "DataFrame":
    """Stream the existing records; return the rows of all micro-batches."""
    name = f"{kind}_{len(spark.catalog.listTables())}"
    frame = spark.readStream.format(kind).options(**options).load()
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", tempfile.mkdtemp(dir=folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table(name)


def answer(
    spark: "SparkSession", kind: str, options: dict[str, str], folder: str
) -> dict[str, object]:
    """Return schema and rows in the order of topic, partition and offset, or `refused`."""
    given = dict(options)
    is_stream = given.pop("stream", None)
    try:
        if is_stream:
            frame = streamed(spark, kind, given, folder)
        else:
            frame = spark.read.format(kind).options(**given).load()
        columns = [*COLUMNS, HEADERS] if "headers" in frame.columns else COLUMNS
        rows = frame.selectExpr(*columns).collect()
    except (PySparkException, Py4JError) as refusal:
        return {"refused": True, "why": str(refusal)[:300]}
    schema = [[field.name, field.dataType.simpleString()] for field in frame.schema]
    return {"schema": schema, "rows": sorted((list(row) for row in rows), key=lambda r: r[:3])}


def main() -> None:
    asked = json.loads(sys.argv[1])
    spark = session(Path(asked["jars"]))
    spark.sparkContext.setLogLevel("OFF")
    found = {
        name: {kind: answer(spark, kind, options, asked["folder"]) for kind in FORMATS}
        for name, options in asked["asks"].items()
    }
    print("RESULT" + json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
