"""A stream and a mirror write each record once although the broker is killed and restarted.

The driver keeps running. Spark's tasks get no response to their last requests and retry, or the
query fails and the test restarts it from the checkpoint, as users would do. The kill occurs when
a broker's file has grown, which shows that a transaction has begun, has records, or is being
committed.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.peers.test_sink_broker import read
from tests.spark.jobs.test_mirror_broker import bare, consumed
from tests.spark.jobs.test_mirror_kill import some
from tests.spark.maps import map_of
from tests.spark.settled import await_markers
from tests.spark.test_sink_kill import FILE_ROWS, PARTITIONS, Row, add_file, judge
from tests.worlds.directories.topics import append, make
from tests.worlds.kafka.either import MortalBroker

from tidelog.jobs.mirror.job import mirror
from tidelog.jobs.offset_map import SourcePartition
from tidelog.spark.sink_options import MARKER_TOPIC
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "tides"
STATES = "__transaction_state"
# For each moment of a kill, the topics whose files grow before the kill, in this order.
MOMENTS = {
    "begun": [STATES],
    "written": [TOPIC],
    "marked": [TOPIC, MARKER_TOPIC],
    "decided": [TOPIC, MARKER_TOPIC, STATES],
    "done": [],
}
LIMIT_S = 300
STEP_S = 0.005
FAILURES_MAX = 100
# Count of records that are added to each partition of a mirror's source at a time.
GIVEN = 40
Restarts = Sequence[tuple[str, int]]
# The kills of seed 0. Other seeds draw from all moments, and may kill a restarted broker at once.
PLAIN: Restarts = [("written", 1), ("marked", 1), ("decided", 1)]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 11))]


def restarts(seed: int) -> Restarts:
    """Return the moments at which the broker is killed, and the number of kills at each moment."""
    if seed == 0:
        return PLAIN
    draw = random.Random(seed)
    return [(draw.choice(list(MOMENTS)), draw.choice([1, 1, 2])) for _ in range(6)]


class Work:
    """A query or job that writes to a broker; it is restarted if it fails.

    Attributes:
        story: Events so far, for failure messages.
    """

    def __init__(self, broker: MortalBroker, checkpoint: Path) -> None:
        self.story: list[str] = []
        self._broker = broker
        self._commits = checkpoint / "commits"

    def keep_running(self) -> None:
        """Restart the work if it has ended."""
        raise NotImplementedError

    def batches(self) -> int:
        """Return the number of batches that Spark has recorded as done."""
        return len(list(self._commits.glob("[0-9]*")))

    def failed(self, error: object) -> None:
        """Record the error after which the work has to be restarted."""
        self.story.append(str(error)[:500])
        assert len(self.story) < FAILURES_MAX, self.story[-5:]

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Keep the work running until a condition holds."""
        pause, end = threading.Event(), time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < end, f"never came to it: {self.story}"
            self.keep_running()
            pause.wait(STEP_S)

    def _wait_to_grow(self, topic: str, known: int, is_done: Callable[[], bool]) -> None:
        self.wait_for(lambda: is_done() or self._broker.size_bytes(topic) > known)

    def kill_broker(self, moment: str, times: int, give: Callable[[], None]) -> None:
        """Add records, kill the broker at this moment (`times` in a row); wait for the batch."""
        before = self.batches()

        def is_done() -> bool:
            return self.batches() > before

        sizes = {topic: self._broker.size_bytes(topic) for topic in MOMENTS[moment]}
        give()
        for number, (topic, size) in enumerate(sizes.items()):
            # The transaction log also grows when a transaction starts. So measure its size again
            # here, after the marker has been written.
            later = number > 0 and topic == STATES
            known = self._broker.size_bytes(topic) if later else size
            self._wait_to_grow(topic, known, is_done)
        if moment == "done":
            self.wait_for(is_done)
        self.story.append(f"killed when {moment}{' too late' * is_done()}")
        for _ in range(times):
            self._broker.restart()
        self.wait_for(is_done)


class Stream(Work):
    """A streaming query that reads files and writes to a topic."""

    def __init__(self, spark: "SparkSession", broker: MortalBroker, work: Path) -> None:
        super().__init__(broker, work / "checkpoint")
        self._spark = spark
        self._work = work
        self._query = self.start(processingTime="0 seconds")

    def start(self, **trigger: str | bool) -> "StreamingQuery":
        """Start and return the query, which continues from its checkpoint."""
        options = {
            "kafka.bootstrap.servers": self._broker.bootstrap,
            "topic": TOPIC,
            "delivery": "exactly-once",
            "checkpointLocation": str(self._work / "checkpoint"),
        }
        schema = "key binary, value binary, timestamp timestamp"
        reader = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 2)
        writer = reader.parquet(str(self._work / "input")).writeStream.format("tidelog")
        writer = writer.options(**options)
        return writer.trigger(**trigger).start()  # type: ignore[arg-type]  # one of its triggers

    def keep_running(self) -> None:
        if not self._query.isActive:
            self.failed(self._query.exception())
            self._query = self.start(processingTime="0 seconds")

    def finish(self) -> None:
        """Write the remaining records."""
        self._query.stop()
        self.start(availableNow=True).awaitTermination()

    def close(self) -> None:
        """Stop the query, in whatever state it is."""
        self._query.stop()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_is_written_once_whenever_the_broker_is_killed(
    spark: "SparkSession", mortal_broker: MortalBroker, tmp_path: Path, seed: int
) -> None:
    mortal_broker.create_topic(TOPIC, PARTITIONS)
    work, files = tmp_path / "work", 2
    for number in range(files):
        add_file(work, number)
    stream = Stream(spark, mortal_broker, work)
    try:
        stream.wait_for(lambda: stream.batches() > 0)
        for moment, times in restarts(seed):

            def give(first: int = files) -> None:
                add_file(work, first)
                add_file(work, first + 1)

            stream.kill_broker(moment, times, give)
            files += 2
        stream.finish()
    finally:
        stream.close()
    await_markers(mortal_broker, TOPIC)
    found = read(mortal_broker, TOPIC)
    rows: list[Row] = [(m.key(), m.value(), m.timestamp()[1]) for m in found]
    judge(rows, stream.story, files * FILE_ROWS)


class Mirroring(Work):
    """A continuous mirror in a thread."""

    def __init__(
        self, spark: "SparkSession", broker: MortalBroker, source: str, checkpoint: Path
    ) -> None:
        super().__init__(broker, checkpoint / "spark")
        self._mirror = partial(
            mirror,
            spark,
            source,
            [TOPIC],
            f"kafka://{broker.bootstrap}",
            checkpoint=str(checkpoint),
        )
        self._stopped = threading.Event()
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._mirror(continuous=True, stopped=self._stopped, trigger_ms=0)
        except Exception as error:  # noqa: BLE001 - raised in the waiting thread
            self._errors.append(error)

    def keep_running(self) -> None:
        if not self._thread.is_alive():
            self.failed(self._errors.pop())
            self._thread = threading.Thread(target=self._run)
            self._thread.start()

    def finish(self) -> None:
        """Copy the remaining records."""
        self.close()
        self._mirror()

    def close(self) -> None:
        """Stop the mirror after its batch is written or has failed."""
        self._stopped.set()
        self._thread.join()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mirror_copies_once_whenever_the_broker_is_killed(
    spark: "SparkSession", mortal_broker: MortalBroker, tmp_path: Path, seed: int
) -> None:
    source, check = make(f"{tmp_path}/a", TOPIC, PARTITIONS), tmp_path / "check"
    mortal_broker.create_topic(TOPIC, PARTITIONS)
    count = 0

    def give() -> None:
        for partition in range(PARTITIONS):
            append(source, TOPIC, partition, some(partition, count, GIVEN))

    give()
    work = Mirroring(spark, mortal_broker, source, check)
    try:
        work.wait_for(lambda: work.batches() > 0)
        for moment, times in restarts(seed):
            count += GIVEN
            work.kill_broker(moment, times, give)
        work.finish()
    finally:
        work.close()
    check_copies(mortal_broker, check, count + GIVEN, work.story)


def check_copies(broker: MortalBroker, check: Path, count: int, story: list[str]) -> None:
    """Assert that each record is copied once, in order, with its times, and that the map agrees."""
    await_markers(broker, TOPIC)
    found = map_of(str(check))
    for partition in range(PARTITIONS):
        seen = consumed(broker, TOPIC, partition)
        assert [record for _, record in seen] == bare(some(partition, 0, count)), story
        for offset in range(count):
            place = TopicPartition(TOPIC, partition)
            start = found.starts(SourcePartition(0, partition), offset)[place]
            assert start.offset <= seen[offset][0], story
            if start.is_exact:
                assert start.offset == seen[offset][0], story
