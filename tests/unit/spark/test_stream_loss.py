"""Losses in a log that has changed since it was read: lost offsets, and the next position."""

import pytest
from tests.unit.spark.fake_log import FakeLog
from tests.unit.spark.stream_query import Query, at, begun, loss_of, ranges, restarted

from tidelog.errors import OffsetsGone
from tidelog.spark.stream_offset import Extent, LogSnapshot, LossCheck, Position, StreamOffset


def test_a_log_start_above_the_position_is_a_loss() -> None:
    query = begun()
    query.log["t", 0].append(10)
    query.log["t", 0].start = 14
    assert loss_of(query) == [("t", 0, 10, 14)]
    query = restarted(query)
    assert query.step() == {at(0): (14, 20)}
    assert query.batches.progress is not None
    assert query.batches.progress["lost"] == [
        "t-0: offsets 10 to 13: deleted before they were read, the log starts at offset 14"
    ]
    assert not query.plan()
    assert "lost" not in query.batches.progress


def test_a_log_rewritten_below_the_position_is_a_loss() -> None:
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


def test_the_next_position_is_never_below_the_log_start() -> None:
    """The brokers may name an end below the log start if records are deleted between requests."""
    name = at(0)
    check = LossCheck(lambda _: {name: (1, 3)}, lambda _: {}, lambda _: {})
    offset = StreamOffset(positions={name: Position(10, 1)})
    snapshot = LogSnapshot(extents={name: Extent(5, 12)}, topic_ids={})
    checked = check.check(offset, snapshot)
    assert checked.positions == {name: Position(5)}
    assert ranges(tuple(checked.lost)) == [("t", 0, 5, 10)]


def test_a_log_rewritten_with_an_older_epoch_is_a_loss() -> None:
    query = begun(epoch=5)
    query.log["t", 0].truncate(0)
    query.log["t", 0].append(12, epoch=3)
    assert loss_of(query) == [("t", 0, 0, 10)]
    query = restarted(query)
    assert query.step() == {at(0): (10, 12)}


def test_a_log_end_below_the_position_without_a_new_epoch_is_a_loss() -> None:
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


def test_a_deleted_topic_ends_its_partitions() -> None:
    log = FakeLog(t=1, u=1)
    log["t", 0].append(4)
    log["u", 0].append(10)
    query = Query(log, subscribe="t,u", maxOffsetsPerTrigger="7")
    assert query.step() == {at(0): (0, 2), at(0, "u"): (0, 5)}
    log.delete("u")
    # The deleted topic has no log end, so the lost range ends at the last log end that this process
    # saw.
    assert loss_of(query) == [("u", 0, 5, 10)]
    query.options = Query(log, subscribe="t", failOnDataLoss="false").options
    query.restart()
    assert query.step() == {at(0): (2, 4)}
    assert query.last.positions.keys() == {at(0)}
    assert not query.plan()


def test_a_recreated_topic() -> None:
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


# -- loss within a batch that was planned and is repeated ------------------------------------------


def planned(count: int = 10) -> Query:
    """Return a query with a batch [10, 20) that a killed process has planned but not run."""
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


def test_a_partly_deleted_repeated_batch_is_a_loss() -> None:
    query = planned()
    query.log["t", 0].start = 13
    assert lost_at_once(query) == [("t", 0, 10, 13)]
    assert restarted(query).run() == {at(0): (13, 20)}


def test_a_wholly_deleted_repeated_batch_is_a_loss() -> None:
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


def test_a_repeated_batch_of_a_recreated_topic_is_a_loss() -> None:
    query = planned()
    query.log.delete("t")
    query.log.create("t")
    query.log["t", 0].append(30)
    assert lost_at_once(query) == [("t", 0, 10, 20)]
    query = restarted(query)
    assert query.run() == {}
    assert query.step() == {at(0): (0, 30)}
