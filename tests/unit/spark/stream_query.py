"""Spark's side of a stream over a log in memory, for the tests of micro-batches."""

import json
from collections import Counter
from typing import cast

import pytest
from tests.unit.spark.fake_log import FakeLog, FakeTask

from tidelog.env import ManualClock
from tidelog.errors import LostOffsets, OffsetsGone
from tidelog.spark.micro_batches import MicroBatches
from tidelog.spark.stream_log import StreamLog
from tidelog.spark.stream_offset import Json, StreamOffset
from tidelog.spark.stream_options import StreamOptions, read_stream_options
from tidelog.types import TopicPartition

Read = dict[TopicPartition, tuple[int, int]]
BATCHES_MAX = 10_000


class Query:
    """Spark's side of one query.

    It stores offsets as Spark does: as texts in a checkpoint, which a restart reads.
    """

    def __init__(self, log: FakeLog, **given: str) -> None:
        self.log = log
        self.clock = ManualClock(0)
        base = {"path": "/data", "startingOffsets": "earliest"}
        if not {"subscribe", "subscribePattern", "assign"} & given.keys():
            base["subscribe"] = "t"
        self.options: StreamOptions = read_stream_options(base | given)
        self.offsets: list[str] = []
        self.done = 0
        self.read: list[Read] = []
        self.restart()

    def restart(self) -> None:
        """Start again, with nothing but the checkpoint."""
        log = StreamLog(self.options.source, ["value"], self.log.open)
        self.batches = MicroBatches(self.options, log, self.clock)

    def available_now(self) -> None:
        """Start again with Trigger.AvailableNow."""
        self.restart()
        self.batches.freeze()

    def plan(self) -> bool:
        """Plan one batch as Spark does; return whether there is a batch to run."""
        first = not self.offsets
        start = self.batches.initial_offset() if first else json.loads(self.offsets[-1])
        end = json.dumps(self.batches.next_offset(start, self.options.limits))
        if not first and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> Read:
        """Run the planned batch; return the ranges that it read."""
        number = self.done
        start = (
            self.batches.initial_offset() if number == 0 else json.loads(self.offsets[number - 1])
        )
        tasks = self.batches.plan(start, json.loads(self.offsets[number]))
        found = {task.name: (task.start, task.end) for task in cast("list[FakeTask]", tasks)}
        self.done += 1
        self.read.append(found)
        return found

    def step(self) -> Read:
        """Run one trigger; return the ranges that it read, {} if there was no batch."""
        return self.run() if self.plan() else {}

    def drain(self) -> Read:
        """Run triggers until there is no new batch; return the joined ranges."""
        total: Read = {}
        while self.plan():
            assert len(self.offsets) < BATCHES_MAX, self.offsets[-1]
            for name, (start, end) in self.run().items():
                assert name not in total or total[name][1] == start
                total[name] = (total[name][0] if name in total else start, end)
        return total

    def counts(self) -> Counter[tuple[TopicPartition, int]]:
        """Return how often each offset was read."""
        return Counter(
            (name, offset)
            for read in self.read
            for name, (start, end) in read.items()
            for offset in range(start, end)
        )

    @property
    def last(self) -> StreamOffset:
        """Return the last planned offset."""
        return StreamOffset.decode(cast("Json", json.loads(self.offsets[-1])))


def at(number: int, topic: str = "t") -> TopicPartition:
    """Return a partition of the topic."""
    return TopicPartition(topic, number)


def loss_of(query: Query) -> list[tuple[str, int, int, int]]:
    """Run the next trigger, which must fail; return the lost ranges that the error names."""
    with pytest.raises(OffsetsGone) as caught:
        query.step()
    return ranges(caught.value.lost)


def ranges(lost: tuple[LostOffsets, ...]) -> list[tuple[str, int, int, int]]:
    """Return the topic, partition, start and end of each lost range."""
    return [(one.topic, one.partition, one.start, one.end) for one in lost]


def restarted(query: Query, fail: str = "false") -> Query:
    """Return the query after a restart; by default the restarted query ignores losses."""
    again = Query(query.log, failOnDataLoss=fail)
    again.offsets, again.done, again.read = query.offsets, query.done, query.read
    return again


def begun(count: int = 10, epoch: int = 2) -> Query:
    """Return a query that has read a whole partition."""
    log = FakeLog(t=1)
    log["t", 0].append(count, epoch)
    query = Query(log)
    assert query.step() == {at(0): (0, count)}
    return query
