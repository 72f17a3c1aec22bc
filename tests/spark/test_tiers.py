"""`format("tidelog")` on a topic whose older part is in a store."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.worlds.command_line import Cli

import tidelog
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "flights"
COUNT = 300
STEP_MS = 1000


def test_two_tiers_are_one_topic(spark: "SparkSession", tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    settings = {"internal.segment.bytes": "3000", "local.retention.bytes": "0"}
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as directory:
        directory.create_topic(TOPIC, config=settings | {"retention.ms": "-1"})
        start_ms = cli.clock.now_ms()
        for number in range(COUNT):
            directory.append(TOPIC, [NewRecord(value=b"%d" % number)])
            cli.clock.advance(STEP_MS)
    cli.ok("tier", TOPIC, "--to", (tmp_path / "store").as_uri())
    (status,) = cli.ok("tier", "--status", "-o", "json").objects
    local_start = status["local_start"]
    assert isinstance(local_start, int)
    assert COUNT // 2 < local_start < COUNT
    reader = spark.read.format("tidelog").option("path", str(cli.data)).option("subscribe", TOPIC)
    cached = reader.option("store.tier_cache_dir", str(tmp_path / "cache"))
    for _ in range(2):
        rows = cached.option("minPartitions", "4").load().select("offset", "value").collect()
        assert sorted((row.offset, int(row.value)) for row in rows) == [
            (number, number) for number in range(COUNT)
        ]
    assert list((tmp_path / "cache").iterdir())
    frame = reader.option("clock", "append").load()
    end = min(local_start + 20, COUNT)
    end_ms = start_ms + end * STEP_MS
    times = f"timestamp >= timestamp_millis({start_ms + 50 * STEP_MS})"
    times += f" and timestamp < timestamp_millis({end_ms})"
    found = frame.where(times).select("offset").collect()
    assert sorted(row.offset for row in found) == list(range(50, end))
