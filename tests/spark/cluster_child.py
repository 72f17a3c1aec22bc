"""The small pipeline as a user's program on a cluster; prints its results.

Called with one JSON object: `spark` (a master or `sc://` URL), `conf`, `data` (directory or URL),
`store` (its settings), `topic`, `target` (directory with the topics `copied` and `again`) and
`checkpoint`. The program does not depend on the kind of cluster.
"""

import json
import sys
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tidelog.spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

STREAM_TIMEOUT_S = 300
STARTS = 5


def connect(place: str, conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("tidelog cluster test")
    builder = builder.remote(place) if place.startswith("sc://") else builder.master(place)
    for name, value in conf.items():
        builder = builder.config(name, value)
    return tidelog.spark.setup(builder.getOrCreate())


def read(spark: SparkSession, path: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("tidelog").options(**options)
    return reader.option("subscribe", topic).load(path)


def summary(rows: DataFrame) -> list[int]:
    """Return counts and sums of rows, to compare the rows with another topic's rows.

    Times from 2020 on are left out: they are write times, set in rows that had no time.
    """
    time = "if(timestamp < '2020-01-01', unix_millis(timestamp), null)"
    row = rows.selectExpr(
        "count(*)",
        f"sum(xxhash64(partition, key, value, {time}) % 1000003)",
        "sum(coalesce(length(value), 0))",
        f"count({time})",
    ).first()
    assert row is not None
    return list(row)


def workers(rows: DataFrame) -> list[str]:
    """Return the folders in which the tasks of a read ran; each executor has one."""

    def tell(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from pathlib import Path

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"folder": [str(Path.cwd())]})

    found = rows.select("partition").mapInArrow(tell, "folder string").distinct().collect()
    return sorted(row["folder"] for row in found)


def pythons(rows: DataFrame) -> list[str]:
    """Return the paths of Python and of the package in a read's tasks, relative to the executor."""

    def tell(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import sys
        from pathlib import Path

        import pyarrow as pa

        import tidelog

        here = str(Path.cwd())
        for _ in batches:
            places = [str(Path(sys.prefix)), str(Path(tidelog.__file__))]
            found = [place.replace(here, ".") for place in places]
            yield pa.RecordBatch.from_pydict({"place": found})

    found = rows.select("partition").mapInArrow(tell, "place string").distinct().collect()
    return sorted(row["place"] for row in found)


def java_version(spark: SparkSession) -> str:
    """Return the driver's Java version; empty for a client of Spark Connect, which has no Java."""
    jvm = getattr(spark, "_jvm", None)
    return "" if jvm is None else str(jvm.java.lang.System.getProperty("java.version"))


def await_end(start: "Callable[[], StreamingQuery]") -> None:
    """Run a query to its end; restart the query if Spark's Python process started too slowly."""
    for _ in range(STARTS):
        try:
            if start().awaitTermination(STREAM_TIMEOUT_S):
                return
            raise SystemExit("the stream did not end")
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    raise SystemExit("the stream did not start")


def main(given: dict[str, str], conf: dict[str, str], store: dict[str, str]) -> None:
    spark = connect(given["spark"], conf)
    settings = {f"store.{name}": value for name, value in store.items()}
    log = read(spark, given["data"], given["topic"], splitBytes="2048", **settings)
    found: dict[str, object] = {"version": spark.version, "read": summary(log)}
    found["java"] = java_version(spark)
    found["workers"] = workers(log)
    found["pythons"] = pythons(log)
    stream = spark.readStream.format("tidelog").option("startingOffsets", "earliest")
    writer = (
        stream.options(subscribe=given["topic"], **settings)
        .load(given["data"])
        .writeStream.format("tidelog")
        .option("topic", "copied")
        .option("checkpointLocation", given["checkpoint"])
        .trigger(availableNow=True)
    )
    await_end(lambda: writer.start(given["target"]))
    found["copied"] = summary(read(spark, given["target"], "copied"))
    log.write.format("tidelog").mode("append").option("topic", "again").save(given["target"])
    found["again"] = summary(read(spark, given["target"], "again"))
    print("RESULT", json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(given, given.pop("conf"), given.pop("store"))
