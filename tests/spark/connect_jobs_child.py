"""Bootstrap, replay and mirror as a user's program over Spark Connect; prints the results.

Called with one JSON object: `spark` (an `sc://` URL) and `work`, a folder that has the directory
`logs` with the topic `events`, and the empty directories `target` and `copy`.
"""

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.jobs.test_mirror import some
from tests.spark.maps import map_of
from tests.worlds.directories.topics import append, held, make, plain

import tidelog.spark
from tidelog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tidelog.jobs.mirror.options import BatchDone

TOPIC = "events"
ROWS = 300


def bootstrap(spark: "SparkSession", work: Path) -> dict[str, object]:
    """Bootstrap twice with one id: the table is loaded once."""
    table = spark.range(ROWS).selectExpr(
        "cast(id as string) as plane",
        "timestamp_millis(1700000000000 + id * 1000) as departure",
    )
    told = []
    for _ in range(2):
        rows = tidelog.spark.bootstrap(
            spark,
            table,
            "flights",
            to=f"{work}/target",
            key="plane",
            time="departure",
            create=2,
            config={"retention.ms": "-1"},
            job_id="once",
        ).collect()
        told.append(sum(row.records for row in rows))
    return {"told": told, "held": sum(map(len, held(f"{work}/target", "flights")))}


def replay(spark: "SparkSession", work: Path) -> dict[str, object]:
    """Replay in chunks, with a progress file on the client; a second call has nothing to copy."""
    told = []
    for _ in range(2):
        (row,) = tidelog.spark.replay(
            spark,
            f"{work}/target",
            "flights",
            to=f"{work}/copy",
            to_topic="again",
            start=1_700_000_000_000 + 100_000,
            rate="1000000/s",
            progress=f"{work}/progress.json",
        ).collect()
        told.append([row.records, row.was_resumed])
    copies = sorted(one for part in held(f"{work}/copy", "again") for one in plain(part))
    wanted = [one for part in held(f"{work}/target", "flights") for one in plain(part)]
    kept = sorted(one for one in wanted if int(str(one[2])) >= 1_700_000_100_000)
    return {"told": told, "equal": copies == kept, "count": len(copies)}


def mirror(spark: "SparkSession", work: Path) -> dict[str, object]:
    """Mirror continuously while a topic is created; then copy the remaining records and stop."""
    source, target, checkpoint = f"{work}/logs", f"{work}/copy", f"{work}/check"
    stopped = threading.Event()
    done: list[BatchDone] = []

    def watch(one: "BatchDone") -> None:
        done.append(one)
        if len(done) == 1:
            make(source, "events.late", 1)
            append(source, "events.late", 0, some(0, 0, 25))
        else:
            stopped.set()

    def thinned(rows: "DataFrame") -> "DataFrame":
        return rows.where("value is not null")

    given = {"pattern": "events.*", "checkpoint": checkpoint, "create": True}
    both = {"transform": thinned, "settings": "report", **given}
    tidelog.spark.mirror(
        spark,
        source,
        (),
        target,
        continuous=True,
        stopped=stopped,
        trigger_ms=100,
        watch=watch,
        **both,  # type: ignore[arg-type] # options by name
    )
    append(source, TOPIC, 0, some(0, 1_000, 10))
    rows = tidelog.spark.mirror(spark, source, (), target, **both).collect()  # type: ignore[arg-type] # as above
    equal = [
        list(map(plain, held(target, topic))) == list(map(plain, held(source, topic)))
        for topic in (TOPIC, "events.late")
    ]
    found = map_of(checkpoint)
    return {
        "lags": [row.lag for row in rows],
        "equal": equal,
        "records": sum(one.records for one in done),
        "notes": [note for one in done for note in one.notes],
        "sources": [one.topic for one in found.sources],
        "batch": found.batch_id,
    }


def refused(spark: "SparkSession", work: Path) -> list[str]:
    """Return the errors of calls with relative paths, which Connect can't support."""
    calls: list[Callable[[], object]] = [
        lambda: tidelog.spark.replay(spark, "logs", TOPIC, to=f"{work}/copy"),
        lambda: tidelog.spark.mirror(
            spark, "logs", [TOPIC], f"{work}/copy", checkpoint=f"{work}/no"
        ),
        lambda: tidelog.spark.bootstrap(spark, spark.range(1), "t", to="copy", key="id"),
    ]
    told = []
    for call in calls:
        try:
            call()
        except InvalidRequest as error:
            told.append(str(error))
    return told


def main(given: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(given["spark"]).getOrCreate()
    tidelog.spark.setup(spark)
    work = Path(given["work"])
    found = {
        "bootstrap": bootstrap(spark, work),
        "replay": replay(spark, work),
        "mirror": mirror(spark, work),
        "refused": refused(spark, work),
    }
    print("RESULT", json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
