"""After any changes to a log, a stream that ignores losses has read each existing record once.

Each record has its own number, because an offset gets a different record if the log is truncated
and written again.
"""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.spark.fake_log import FakeLog, FakePartition
from tests.unit.spark.stream_query import Query, Read, at

from tidelog.types import TopicPartition

Record = tuple[TopicPartition, int]


class Numbered:
    """A log with numbered records, and a query over it."""

    def __init__(self, limit: str) -> None:
        self.log = FakeLog(t=2)
        self.numbers = itertools.count()
        self.records: dict[TopicPartition, list[int]] = {at(0): [], at(1): []}
        self.query = Query(self.log, failOnDataLoss="false", maxOffsetsPerTrigger=limit)
        self.read: Counter[Record] = Counter()

    # -- changes of the log ------------------------------------------------------------------

    def partition(self, number: int) -> tuple[TopicPartition, FakePartition]:
        names = sorted(self.log.partitions)
        name = names[number % len(names)]
        return name, self.log.partitions[name]

    def append(self, number: int, count: int) -> None:
        name, partition = self.partition(number)
        partition.append(count)
        self.records[name] += itertools.islice(self.numbers, count)

    def elect(self, number: int, count: int) -> None:
        """Elect a new leader, which may lack the last records, and append records to its log."""
        name, partition = self.partition(number)
        epoch = max(partition.epochs, default=0) + 1
        keep = max(len(partition.epochs) - count, partition.start)
        partition.truncate(keep)
        del self.records[name][keep:]
        partition.append(1 + number, epoch)
        self.records[name] += itertools.islice(self.numbers, 1 + number)

    def delete(self, number: int, count: int) -> None:
        _, partition = self.partition(number)
        partition.start = min(partition.start + count, len(partition.epochs))

    def recreate(self, number: int, count: int) -> None:
        self.log.delete("t")
        self.log.create("t", 1 + number % 3)
        for name in [name for name in self.records if name not in self.log.partitions]:
            del self.records[name]
        for name in self.log.partitions:
            self.records[name] = []
        self.append(number, count)

    # -- steps of the query ------------------------------------------------------------------

    def trigger(self, *, is_killed: bool) -> bool:
        """Plan a batch; run it if the process survives; return whether a batch was planned."""
        if not self.query.plan():
            return False
        if is_killed:
            self.query.restart()
            return True
        self.run()
        return True

    def run(self) -> None:
        """Run the planned batch; store which of the log's present records are in its ranges."""
        done: Read = self.query.run()
        for name, (start, end) in done.items():
            first = max(start, self.log.partitions[name].start)
            self.read.update((name, number) for number in self.records[name][first:end])

    def step(self, *, is_killed: bool) -> None:
        """Run one trigger; if a killed process has planned a batch, this batch runs first."""
        if len(self.query.offsets) > self.query.done:
            self.run()
        else:
            self.trigger(is_killed=is_killed)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "elect", "delete", "recreate", "trigger", "killed", "trigger"]),
        st.integers(0, 3),
        st.integers(1, 12),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from(["3", "1000"]))
def test_all_records_of_the_log_were_read_once(
    steps: list[tuple[str, int, int]], limit: str
) -> None:
    world = Numbered(limit)
    for what, number, count in steps:
        if what in ("trigger", "killed"):
            world.step(is_killed=what == "killed")
        else:
            getattr(world, what)(number, count)
    for _ in range(500):
        if len(world.query.offsets) > world.query.done:
            world.run()
        elif not world.trigger(is_killed=False):
            break
    else:
        raise AssertionError("no end")
    there = {
        (name, number)
        for name, partition in world.log.partitions.items()
        for number in world.records[name][partition.start :]
    }
    assert not there - world.read.keys()
    assert {one for one in there if world.read[one] > 1} == set()
