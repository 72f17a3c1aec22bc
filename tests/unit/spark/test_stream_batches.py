"""Micro-batches over a log in memory read each offset once, within limits, from the right start."""

import json
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.spark.fake_log import FakeLog, FakePartition
from tests.unit.spark.stream_query import Query, Read, at, loss_of, ranges, restarted

from tidelog.errors import InvalidRequest, OffsetsGone, UnknownTopic
from tidelog.spark.stream_offset import StreamOffset
from tidelog.spark.stream_options import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.types import TopicPartition

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
    """Apply one step to the log."""
    names = sorted(log.partitions)
    partition = log.partitions[names[number % len(names)]]
    if what == "append":
        partition.append(count)
    elif what == "epoch":
        partition.append(count, (partition.epochs[-1] if partition.epochs else 0) + 1)
    elif what == "partition" and len(names) < 6:
        log.partitions[at(len(names))] = FakePartition()


def trigger(query: Query, what: str) -> None:
    """Apply one step to the query."""
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
def test_every_offset_is_read_once_after_any_events(
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
            # The first plan determines where a new query begins; later plans don't change it.
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


def test_a_repeated_first_batch_has_the_same_start() -> None:
    log = FakeLog(t=2)
    log["t", 0].append(5)
    query = Query(log, startingOffsets="latest")
    assert query.step() == {}  # no new records, but the position is stored
    query = Query(log, startingOffsets="latest")
    query.plan()
    log["t", 0].append(3)
    query.restart()
    query.batches.initial_offset()  # without the stored plan, the batch would begin at 8
    assert query.run() == {}
    assert query.step() == {at(0): (5, 8)}


def test_an_empty_batch_reads_no_record() -> None:
    log = FakeLog(t=1)
    log["t", 0].append(5)
    query = Query(log)
    query.step()
    same = json.loads(query.offsets[-1])
    assert query.batches.plan(same, same) == []


def test_the_offset_has_the_same_text_without_new_records() -> None:
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


def test_a_checkpoint_of_the_kafka_connector_continues() -> None:
    log = FakeLog(t=2)
    log["t", 0].append(9)
    query = Query(log)
    query.offsets, query.done = ['{"t":{"0":4,"1":0}}'], 1
    assert query.step() == {at(0): (4, 9)}
    assert query.last.topic_id("t") == log.ids["t"]


# -- starts ----------------------------------------------------------------------------------------


def test_a_stream_starts_at_the_offset_of_each_partition() -> None:
    log = FakeLog(t=3)
    for number in range(3):
        log["t", number].append(9)
    query = Query(log, startingOffsets='{"t": {"0": 4, "1": -1, "2": -2}}')
    assert query.step() == {at(0): (4, 9), at(2): (0, 9)}
    assert query.last.positions[at(1)].offset == 9


def test_starts_must_name_all_partitions_and_no_others() -> None:
    log = FakeLog(t=2)
    with pytest.raises(InvalidRequest, match="startingOffsets by partition lacks t-1"):
        Query(log, startingOffsets='{"t": {"0": 4}}').plan()
    with pytest.raises(InvalidRequest, match="has t-2, which is not read"):
        Query(log, startingOffsets='{"t": {"0": 0, "1": 0, "2": 0}}').plan()


@pytest.mark.parametrize(("asked", "lost"), [(3, (3, 5)), (12, (9, 12))])
def test_starts_outside_the_log_are_a_loss(asked: int, lost: tuple[int, int]) -> None:
    log = FakeLog(t=1)
    log["t", 0].append(9)
    log["t", 0].start = 5
    starts = json.dumps({"t": {"0": asked}})
    with pytest.raises(OffsetsGone) as caught:
        Query(log, startingOffsets=starts).plan()
    assert ranges(caught.value.lost) == [("t", 0, *lost)]
    query = Query(log, startingOffsets=starts, failOnDataLoss="false")
    assert query.step() == ({at(0): (5, 9)} if asked == 3 else {})
    assert query.batches.progress is not None
    assert query.batches.progress["lostRanges"] == 1


@pytest.mark.parametrize(("asked", "read"), [(5, {at(0): (5, 9)}), (9, {})])
def test_starts_at_either_end_of_the_log_lose_no_record(asked: int, read: Read) -> None:
    log = FakeLog(t=1)
    log["t", 0].append(9)
    log["t", 0].start = 5
    query = Query(log, startingOffsets=json.dumps({"t": {"0": asked}}))
    assert query.step() == read
    log["t", 0].append(1)
    assert query.step() == {at(0): (9, 10)}


def test_start_times() -> None:
    log = FakeLog(t=2)
    log["t", 0].append(9)
    log["t", 1].append(9)
    log.times = {at(0): 4, at(1): None}
    query = Query(log, startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest")
    assert query.step() == {at(0): (4, 9)}
    with pytest.raises(InvalidRequest, match="t-1: no record at 1970-01-01 00:00:01 UTC or later"):
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


def test_all_available_has_no_limit() -> None:
    log = FakeLog(t=1)
    log["t", 0].append(50)
    query = Query(log, maxOffsetsPerTrigger="20")
    start = query.batches.initial_offset()
    end = StreamOffset.decode(query.batches.next_offset(start, BatchLimits()))
    assert end.positions[at(0)].offset == 50


def test_a_batch_waits_for_its_minimum_or_its_delay() -> None:
    log = FakeLog(t=1)
    query = Query(log, minOffsetsPerTrigger="10", maxTriggerDelay="5s", maxOffsetsPerTrigger="12")
    assert query.step() == {}
    log["t", 0].append(3)
    assert query.step() == {at(0): (0, 3)}  # no minimum applies to the first batch with records
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


def test_available_now_ends_without_reading_new_records() -> None:
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


def test_new_partitions_are_read_from_their_start() -> None:
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


# -- progress --------------------------------------------------------------------------------------


def test_progress() -> None:
    log = FakeLog(t=2)
    log["t", 0].append(30)
    log["t", 1].append(10)
    query = Query(log, maxOffsetsPerTrigger="4")
    assert query.batches.progress is None
    query.available_now()
    log["t", 1].append(11)
    query.step()
    progress = cast("Mapping[str, Mapping[str, object]]", query.batches.progress)
    # The progress includes records that were appended after AvailableNow had fixed its end.
    assert progress["latest"] == {"t": {"0": 30, "1": 21}}
    assert progress["behind"] == {"t": {"0": 27, "1": 20}}
    assert progress["metrics"] == {
        "minOffsetsBehindLatest": 20,
        "maxOffsetsBehindLatest": 27,
        "avgOffsetsBehindLatest": 23.5,
        "offsetsBehindLatest": 47,
    }
    assert progress["secondsBehind"] == {"record": 0.0, "append": None}  # the clock is at 0
