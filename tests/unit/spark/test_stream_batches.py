"""Micro-batches over a log in memory: everything once, within the limits, and what is lost by name.

`Query` keeps offsets as Spark does: as texts in a checkpoint that a restart finds again.
"""

import json
from collections import Counter
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.spark.fake_log import FakeLog, FakePartition, FakeTask

from tidelog.env import ManualClock
from tidelog.errors import InvalidRequest, LostOffsets, OffsetsGone, UnknownTopic
from tidelog.spark.stream_batches import MicroBatches
from tidelog.spark.stream_limits import Limits
from tidelog.spark.stream_log import StreamLog
from tidelog.spark.stream_offset import Json, StreamOffset
from tidelog.spark.stream_options import StreamOptions, read_stream_options
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

Read = dict[TopicPartition, tuple[int, int]]


class Query:
    """Spark's side of one query: its checkpoint survives `restart`."""

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
        """A new process, which knows the checkpoint alone."""
        log = StreamLog(self.options.source, ["value"], self.log.open)
        self.batches = MicroBatches(self.options, log, self.clock)

    def available_now(self) -> None:
        """A new process with Trigger.AvailableNow."""
        self.restart()
        self.batches.freeze()

    def plan(self) -> bool:
        """Plan one batch as Spark does; whether there is one."""
        first = not self.offsets
        start = self.batches.initial_offset() if first else json.loads(self.offsets[-1])
        end = json.dumps(self.batches.next_offset(start, self.options.limits))
        if not first and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> Read:
        """Run the batch that was planned last and is not done."""
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
        """One trigger; {} where there is nothing."""
        return self.run() if self.plan() else {}

    def drain(self) -> Read:
        """Triggers until nothing is new; what they read, from first to last."""
        total: Read = {}
        while self.plan():
            for name, (start, end) in self.run().items():
                assert name not in total or total[name][1] == start
                total[name] = (total[name][0] if name in total else start, end)
        return total

    def counts(self) -> Counter[tuple[TopicPartition, int]]:
        """How often each offset was read."""
        return Counter(
            (name, offset)
            for read in self.read
            for name, (start, end) in read.items()
            for offset in range(start, end)
        )

    @property
    def last(self) -> StreamOffset:
        """The last offset planned."""
        return StreamOffset.decode(cast("Json", json.loads(self.offsets[-1])))


def at(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


# -- everything once -------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5), st.integers(1, 40)),
        st.tuples(st.just("epoch"), st.integers(0, 5), st.integers(1, 5)),
        st.tuples(st.just("partition"), st.just(0), st.just(0)),
        st.tuples(st.just("trigger"), st.just(0), st.just(0)),
        st.tuples(st.just("plan, then killed"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("available now"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def change(log: FakeLog, what: str, number: int, count: int) -> None:
    """One step of the log's life."""
    names = sorted(log.partitions)
    partition = log.partitions[names[number % len(names)]]
    if what == "append":
        partition.append(count)
    elif what == "epoch":
        partition.append(count, (partition.epochs[-1] if partition.epochs else 0) + 1)
    elif what == "partition" and len(names) < 6:
        log.partitions[at(len(names))] = FakePartition()


def trigger(query: Query, what: str) -> None:
    """One step of the query's life."""
    if what == "restart":
        query.restart()
    elif query.plan():
        if what == "plan, then killed":
            query.restart()
        query.run()
    if what == "available now":
        query.available_now()
        query.drain()
        query.restart()


@given(
    STEPS,
    st.sampled_from(["earliest", "latest"]),
    st.dictionaries(st.just("maxOffsetsPerTrigger"), st.integers(1, 60).map(str)),
    st.dictionaries(st.just("minOffsetsPerTrigger"), st.just("1")),
)
def test_every_offset_once_whatever_happens(
    steps: list[tuple[str, int, int]], start: str, most: dict[str, str], least: dict[str, str]
) -> None:
    log = FakeLog(t=2)
    log["t", 0].append(7)
    query = Query(log, startingOffsets=start, **most, **least)
    first: dict[TopicPartition, int] = {}
    for what, number, count in steps:
        if what in ("append", "epoch", "partition"):
            change(log, what, number, count)
            continue
        if not query.offsets and start == "latest":
            # What a new query begins with is told by its first plan alone.
            first = {name: len(one.epochs) for name, one in log.partitions.items()}
        trigger(query, what)
    if query.offsets:
        query.drain()
        counts = query.counts()
        assert set(counts.values()) <= {1}
        assert counts.keys() == {
            (name, offset)
            for name, partition in log.partitions.items()
            for offset in range(first.get(name, 0), len(partition.epochs))
        }


def test_a_repeated_first_batch_begins_where_it_began() -> None:
    log = FakeLog(t=2)
    log["t", 0].append(5)
    query = Query(log, startingOffsets="latest")
    assert query.step() == {}  # nothing yet, but its place is written down
    query = Query(log, startingOffsets="latest")
    query.plan()
    log["t", 0].append(3)
    query.restart()
    query.batches.initial_offset()  # would be 8 now
    assert query.run() == {}
    assert query.step() == {at(0): (5, 8)}


def test_a_batch_that_ends_where_it_begins_reads_nothing() -> None:
    log = FakeLog(t=1)
    log["t", 0].append(5)
    query = Query(log)
    query.step()
    same = json.loads(query.offsets[-1])
    assert query.batches.plan(same, same) == []


def test_nothing_new_is_the_same_text() -> None:
    log = FakeLog(t=2)
    log["t", 1].append(5)
    query = Query(log)
    assert query.step() == {at(1): (0, 5)}
    log["t", 1].append(1, epoch=4)
    assert query.step() == {at(1): (5, 6)}
    for _ in range(3):
        query.restart()
        assert not query.plan()
    assert json.loads(query.offsets[-1])["topics"]["t"]["partitions"] == {
        "0": {"epoch": -1, "offset": 0},
        "1": {"epoch": 4, "offset": 6},
    }


def test_a_checkpoint_of_the_kafka_connector_goes_on() -> None:
    log = FakeLog(t=2)
    log["t", 0].append(9)
    query = Query(log)
    query.offsets, query.done = ['{"t":{"0":4,"1":0}}'], 1
    assert query.step() == {at(0): (4, 9)}
    assert query.last.topic_id("t") == log.ids["t"]


# -- starts ----------------------------------------------------------------------------------------


def test_starts_by_partition() -> None:
    log = FakeLog(t=3)
    for number in range(3):
        log["t", number].append(9)
    query = Query(log, startingOffsets='{"t": {"0": 4, "1": -1, "2": -2}}')
    assert query.step() == {at(0): (4, 9), at(2): (0, 9)}
    assert query.last.positions[at(1)].offset == 9


def test_starts_must_name_all_partitions_and_no_others() -> None:
    log = FakeLog(t=2)
    with pytest.raises(InvalidRequest, match="startingOffsets by partition: t-1 is missing"):
        Query(log, startingOffsets='{"t": {"0": 4}}').plan()
    with pytest.raises(InvalidRequest, match="t-2 is not among those read"):
        Query(log, startingOffsets='{"t": {"0": 0, "1": 0, "2": 0}}').plan()


@pytest.mark.parametrize(("asked", "lost"), [(3, (3, 5)), (12, (9, 12))])
def test_starts_outside_the_log(asked: int, lost: tuple[int, int]) -> None:
    log = FakeLog(t=1)
    log["t", 0].append(9)
    log["t", 0].start = 5
    starts = json.dumps({"t": {"0": asked}})
    with pytest.raises(OffsetsGone) as caught:
        Query(log, startingOffsets=starts).plan()
    assert [(one.start, one.end) for one in caught.value.lost] == [lost]
    query = Query(log, startingOffsets=starts, failOnDataLoss="false")
    assert query.step() == ({at(0): (5, 9)} if asked == 3 else {})
    assert query.batches.progress is not None
    assert query.batches.progress["lostRanges"] == 1


def test_start_times() -> None:
    log = FakeLog(t=2)
    log["t", 0].append(9)
    log["t", 1].append(9)
    log.times = {at(0): 4, at(1): None}
    query = Query(log, startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest")
    assert query.step() == {at(0): (4, 9)}
    with pytest.raises(InvalidRequest, match="t-1: no record at 1000 ms or later"):
        Query(log, startingTimestamp="1000").plan()


def test_starts_are_for_new_queries() -> None:
    log = FakeLog(t=1)
    log["t", 0].append(9)
    query = Query(log)
    query.step()
    query.options = Query(log, startingOffsets='{"t": {"5": 4}}').options
    query.restart()
    log["t", 0].append(1)
    assert query.step() == {at(0): (9, 10)}


def test_named_topics_must_be_there_at_the_start() -> None:
    with pytest.raises(UnknownTopic):
        Query(FakeLog(t=1), subscribe="t,u").plan()
    with pytest.raises(UnknownTopic):
        Query(FakeLog(t=1), assign='{"t": [0, 1]}').plan()


def test_assigned_partitions_and_no_others() -> None:
    log = FakeLog(t=3)
    for number in range(3):
        log["t", number].append(2)
    query = Query(log, assign='{"t": [0, 2]}')
    assert query.step() == {at(0): (0, 2), at(2): (0, 2)}


# -- limits ----------------------------------------------------------------------------------------


def test_limit_of_offsets() -> None:
    log = FakeLog(t=3)
    for number, count in enumerate((100, 10, 1)):
        log["t", number].append(count)
    query = Query(log, maxOffsetsPerTrigger="20")
    assert query.step() == {at(0): (0, 18), at(1): (0, 1), at(2): (0, 1)}
    query.drain()
    assert set(query.counts().values()) == {1}
    assert max(sum(e - s for s, e in read.values()) for read in query.read) <= 22


def test_all_available_knows_no_limit() -> None:
    log = FakeLog(t=1)
    log["t", 0].append(50)
    query = Query(log, maxOffsetsPerTrigger="20")
    start = query.batches.initial_offset()
    end = StreamOffset.decode(query.batches.next_offset(start, Limits()))
    assert end.positions[at(0)].offset == 50


def test_minimum_and_its_delay() -> None:
    log = FakeLog(t=1)
    query = Query(log, minOffsetsPerTrigger="10", maxTriggerDelay="5s", maxOffsetsPerTrigger="12")
    assert query.step() == {}
    log["t", 0].append(3)
    assert query.step() == {at(0): (0, 3)}  # the first with records passes
    log["t", 0].append(9)
    assert query.step() == {}
    query.clock.advance(4999)
    assert query.step() == {}
    query.clock.advance(1)
    assert query.step() == {at(0): (3, 12)}
    log["t", 0].append(15)
    assert query.step() == {at(0): (12, 24)}
    assert query.step() == {}


# -- Trigger.AvailableNow, new partitions, new topics ----------------------------------------------


def test_available_now_ends_and_lets_new_ones_wait() -> None:
    log = FakeLog(t1=2)
    log["t1", 0].append(10)
    query = Query(log, subscribePattern="t.*", maxOffsetsPerTrigger="3", minOffsetsPerTrigger="3")
    query.available_now()
    assert query.step() == {at(0, "t1"): (0, 3)}
    log["t1", 0].append(10)
    log["t1", 1].append(10)
    log.create("t2")
    log["t2", 0].append(10)
    log.partitions[at(2, "t1")] = FakePartition([0, 0])
    assert query.drain() == {at(0, "t1"): (3, 10)}
    query.available_now()
    assert query.drain() == {
        at(0, "t1"): (10, 20),
        at(1, "t1"): (0, 10),
        at(2, "t1"): (0, 2),
        at(0, "t2"): (0, 10),
    }


def test_new_partitions_start_at_their_start_whatever_the_query_began_with() -> None:
    log = FakeLog(t=1)
    log["t", 0].append(10)
    query = Query(log, startingOffsets="latest")
    query.step()
    log.partitions[at(1)] = FakePartition()
    assert not query.plan()
    log["t", 1].append(4)
    assert query.step() == {at(1): (0, 4)}


def test_a_new_partition_that_begins_later_may_have_lost_something() -> None:
    log = FakeLog(t=1)
    query = Query(log)
    query.step()
    log.partitions[at(1)] = FakePartition([0] * 9, start=4)
    assert loss_of(query) == [("t", 1, 0, 4)]
    query = restarted(query)
    assert query.step() == {at(1): (4, 9)}


# -- loss ------------------------------------------------------------------------------------------


def loss_of(query: Query) -> list[tuple[str, int, int, int]]:
    """What the next trigger fails with."""
    with pytest.raises(OffsetsGone) as caught:
        query.step()
    return ranges(caught.value.lost)


def ranges(lost: tuple[LostOffsets, ...]) -> list[tuple[str, int, int, int]]:
    return [(one.topic, one.partition, one.start, one.end) for one in lost]


def restarted(query: Query, fail: str = "false") -> Query:
    """The same query, after a restart that lets it go on in spite of losses."""
    again = Query(query.log, failOnDataLoss=fail)
    again.offsets, again.done, again.read = query.offsets, query.done, query.read
    return again


def begun(count: int = 10, epoch: int = 2) -> Query:
    """A query that has read all of a partition."""
    log = FakeLog(t=1)
    log["t", 0].append(count, epoch)
    query = Query(log)
    assert query.step() == {at(0): (0, count)}
    return query


def test_log_start_moved_past_the_position() -> None:
    query = begun()
    query.log["t", 0].append(10)
    query.log["t", 0].start = 14
    assert loss_of(query) == [("t", 0, 10, 14)]
    query = restarted(query)
    assert query.step() == {at(0): (14, 20)}
    assert query.batches.progress is not None
    assert query.batches.progress["lost"] == [
        "t-0: offsets 10 to 14: deleted before they were read, the log starts at 14"
    ]
    assert not query.plan()
    assert "lost" not in query.batches.progress


def test_log_rewritten_after_the_position() -> None:
    query = begun()
    query.log["t", 0].truncate(7)
    query.log["t", 0].append(9, epoch=3)
    assert loss_of(query) == [("t", 0, 7, 10)]
    query = restarted(query)
    assert query.step() == {at(0): (7, 16)}
    assert not query.plan()


def test_log_rewritten_so_that_no_batch_of_the_epoch_is_left() -> None:
    log = FakeLog(t=1)
    log["t", 0].append(4, epoch=1)
    log["t", 0].append(6, epoch=2)
    query = Query(log)
    query.step()
    log["t", 0].truncate(3)
    log["t", 0].append(9, epoch=3)
    assert loss_of(query) == [("t", 0, 3, 10)]
    assert restarted(query).step() == {at(0): (3, 12)}


def test_log_rewritten_by_an_older_one() -> None:
    query = begun(epoch=5)
    query.log["t", 0].truncate(0)
    query.log["t", 0].append(12, epoch=3)
    assert loss_of(query) == [("t", 0, 0, 10)]
    query = restarted(query)
    assert query.step() == {at(0): (10, 12)}


def test_end_moved_back_where_no_epoch_tells() -> None:
    query = begun(epoch=-1)
    query.log["t", 0].truncate(6)
    assert loss_of(query) == [("t", 0, 6, 10)]
    query = restarted(query)
    assert query.step() == {}
    query.log["t", 0].append(2)
    assert query.step() == {at(0): (6, 8)}


@pytest.mark.parametrize("epoch", [2, -1])
def test_a_lower_end_of_the_isolation_level_is_no_loss(epoch: int) -> None:
    query = begun(epoch=epoch)
    query.options = Query(query.log, isolation="read_committed").options
    query.restart()
    query.log["t", 0].visible = 6
    assert not query.plan()
    query.log["t", 0].append(2)
    query.log["t", 0].visible = None
    assert query.step() == {at(0): (10, 12)}


def test_topic_deleted() -> None:
    log = FakeLog(t=1, u=1)
    log["t", 0].append(4)
    log["u", 0].append(10)
    query = Query(log, subscribe="t,u", maxOffsetsPerTrigger="7")
    assert query.step() == {at(0): (0, 2), at(0, "u"): (0, 5)}
    log.delete("u")
    assert loss_of(query) == [("u", 0, 5, 10)]  # as far as this process saw it
    query.options = Query(log, subscribe="t", failOnDataLoss="false").options
    query.restart()
    assert query.step() == {at(0): (2, 4)}
    assert query.last.positions.keys() == {at(0)}
    assert not query.plan()


def test_topic_created_anew() -> None:
    query = begun()
    query.log.delete("t")
    query.log.create("t")
    query.log["t", 0].append(3)
    assert loss_of(query) == [("t", 0, 10, 10)]
    query = restarted(query)
    assert query.step() == {at(0): (0, 3)}
    assert query.last.topic_id("t") == query.log.ids["t"]


def test_available_now_does_not_read_a_topic_created_meanwhile() -> None:
    query = restarted(begun())
    query.available_now()
    query.log.delete("t")
    query.log.create("t")
    query.log["t", 0].append(3)
    assert query.drain() == {}
    query.available_now()
    assert query.drain() == {at(0): (0, 3)}


# -- loss inside of a batch that was planned and is repeated ---------------------------------------


def planned(count: int = 10) -> Query:
    """A query with a batch [10, 20) that was planned, not run, by a process that is dead."""
    query = begun()
    query.log["t", 0].append(10, epoch=3)
    assert query.plan()
    query.restart()
    return query


def lost_at_once(query: Query) -> list[tuple[str, int, int, int]]:
    with pytest.raises(OffsetsGone) as caught:
        query.run()
    return ranges(caught.value.lost)


def test_repeated_batch_of_a_log_that_is_the_same() -> None:
    assert planned().run() == {at(0): (10, 20)}


def test_repeated_batch_partly_deleted() -> None:
    query = planned()
    query.log["t", 0].start = 13
    assert lost_at_once(query) == [("t", 0, 10, 13)]
    assert restarted(query).run() == {at(0): (13, 20)}


def test_repeated_batch_wholly_deleted() -> None:
    query = planned()
    query.log["t", 0].append(9)
    query.log["t", 0].start = 25
    assert lost_at_once(query) == [("t", 0, 10, 20)]
    query = restarted(query)
    assert query.run() == {}
    assert query.step() == {at(0): (25, 29)}


def test_repeated_batch_rewritten_reads_the_new_records_once() -> None:
    query = planned()
    query.log["t", 0].truncate(15)
    query.log["t", 0].append(8, epoch=4)
    assert lost_at_once(query) == [("t", 0, 15, 20)]
    query = restarted(query)
    assert query.run() == {at(0): (10, 15)}
    assert query.step() == {at(0): (15, 23)}


def test_repeated_batch_of_a_topic_created_anew() -> None:
    query = planned()
    query.log.delete("t")
    query.log.create("t")
    query.log["t", 0].append(30)
    assert lost_at_once(query) == [("t", 0, 10, 20)]
    query = restarted(query)
    assert query.run() == {}
    assert query.step() == {at(0): (0, 30)}


# -- progress --------------------------------------------------------------------------------------


def test_progress() -> None:
    log = FakeLog(t=2)
    log["t", 0].append(30)
    log["t", 1].append(10)
    query = Query(log, maxOffsetsPerTrigger="4")
    assert query.batches.progress is None
    query.available_now()
    log["t", 1].append(10)
    query.step()
    progress = cast("Mapping[str, Mapping[str, object]]", query.batches.progress)
    # What there is beyond the end of AvailableNow counts too.
    assert progress["latest"] == {"t": {"0": 30, "1": 20}}
    assert progress["behind"] == {"t": {"0": 27, "1": 19}}
    assert progress["metrics"] == {
        "minOffsetsBehindLatest": 19,
        "maxOffsetsBehindLatest": 27,
        "avgOffsetsBehindLatest": 23.0,
        "offsetsBehindLatest": 46,
    }
