"""Records fetched directly from their leader equal those of librdkafka, and have append times."""

from typing import TYPE_CHECKING, cast

import pytest
from tests.worlds.clusters.fake_leader import HOST, PORT, FakeLeader, leader_of_twelve
from tests.worlds.repetition import rarely

from tidelog.errors import CorruptBatch
from tidelog.protocol.messages import FETCH
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.offset_order import Reach, reach_of
from tidelog.remote.partition_fetch import FetchSeams, FetchSettings, PartitionFetch
from tidelog.remote.records import fetched_records
from tidelog.remote.rows import fetched
from tidelog.scan.batch_filters import reach
from tidelog.scan.split import ScanStats, Split
from tidelog.types import IsolationLevel, NewRecord, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import DataclassInstance

    from tidelog.protocol.messages import fetch as fe
    from tidelog.protocol.requests import ReceivedRequest

NAME = TopicPartition("t", 0)
COMMITTED = IsolationLevel.READ_COMMITTED


def open_fetch(
    leader: FakeLeader,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    max_bytes: int = 1 << 20,
) -> PartitionFetch:
    seams = FetchSeams(
        connect=leader.connect,
        clock=leader.env.clock,
        pause=lambda seconds: leader.env.clock.advance(int(seconds * 1000)),
        reach=reach_of,
    )
    settings = FetchSettings(isolation=isolation, timeout_ms=5_000, partition_max_bytes=max_bytes)
    return PartitionFetch(f"{HOST}:{PORT}", NAME, seams, settings=settings)


def set_append_times(leader: FakeLeader, *runs: int) -> None:
    """Let the broker return these append times if they are requested."""
    inner = leader.mangle

    def mangle(request: "ReceivedRequest", answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == FETCH.key:
            assert cast("fe.FetchRequest", request.message).with_append_times
            cast("fe.FetchResponse", answer).responses[0].partitions[0].append_times = list(runs)
        return inner(request, answer)

    leader.mangle = mangle


leader = pytest.fixture(leader_of_twelve)


@pytest.mark.parametrize(("start", "end"), [(0, 12), (1, 11), (4, 5), (11, 12), (7, 7)])
@pytest.mark.parametrize("max_bytes", [1, 200, 1 << 20])
def test_every_record_once(leader: FakeLeader, start: int, end: int, max_bytes: int) -> None:
    found = list(fetched_records(open_fetch(leader, max_bytes=max_bytes), start, end))
    assert [r.offset for r, _ in found] == list(range(start, end))
    assert [r.value for r, _ in found] == [b"%d" % n for n in range(start, end)]


def test_append_times_are_those_that_the_broker_tells(leader: FakeLeader) -> None:
    set_append_times(leader, 3, 5_000, 6, -1, 9, 7_000)
    found = [ms for _, ms in fetched_records(open_fetch(leader), 0, 12)]
    assert found == [None] * 3 + [5_000] * 3 + [None] * 3 + [7_000] * 3


def test_a_brokers_stamp_is_an_append_time(leader: FakeLeader) -> None:
    leader.directory.alter_config("t", {"message.timestamp.type": "LogAppendTime"})
    leader.put(b"stamped")
    ((record, append_ms),) = fetched_records(open_fetch(leader), 12, 13)
    assert append_ms == record.timestamp == leader.env.clock.now_ms()


def test_aborted_transactions_and_markers_are_left_out(leader: FakeLeader) -> None:
    log = leader.log()
    for number, commit in enumerate((False, True, False)):
        batch = build_batch(
            [NewRecord(value=b"%d" % commit)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        log.append_batches(batch)
        log.end_transaction(producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=commit)
    committed = [r.offset for r, _ in fetched_records(open_fetch(leader, COMMITTED), 12, 18)]
    assert committed == [14]
    every = [r.offset for r, _ in fetched_records(open_fetch(leader), 12, 18)]
    assert every == [12, 14, 16]


def test_records_before_damage_are_returned_and_the_damage_is_named(leader: FakeLeader) -> None:
    def mangle(request: "ReceivedRequest", answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == FETCH.key:
            data = cast("fe.FetchResponse", answer).responses[0].partitions[0]
            data.records = bytes(data.batches)[:-1] + b"?"
        return answer

    leader.mangle = mangle
    found = fetched_records(open_fetch(leader), 0, 12)
    assert [next(found)[0].offset for _ in range(9)] == list(range(9))
    with pytest.raises(CorruptBatch, match=f"kafka://{HOST}:{PORT}/t-0"):
        next(found)


def test_reach_is_that_of_the_kernel(leader: FakeLeader) -> None:
    (part,) = open_fetch(leader).parts(0, 12)
    data = bytes(part.data)
    size = len(data) // 4
    assert reach_of(data) == reach(data) == Reach(12, 3 * size, 9)
    assert reach_of(data[:-1]) == reach(data[:-1]) == Reach(9, 2 * size, 6)
    assert reach_of(data[:size]) == reach(data[:size]) == Reach(3, 0, None)
    assert reach_of(b"") is reach(b"") is None
    damaged = data[: size + 16] + b"\x07" + data[size + 17 :]
    assert reach_of(damaged) == reach(damaged) == Reach(3, 0, None)
    moved = data[:7] + b"\x04" + data[8:]
    assert reach_of(moved) is reach(moved) is None


def moves(leader: FakeLeader, base: int, wrong: int) -> None:
    """Let the broker send a batch with another base offset."""
    inner = leader.mangle

    def mangle(request: "ReceivedRequest", answer: "DataclassInstance") -> "DataclassInstance":
        answer = inner(request, answer)
        if request.api.key == FETCH.key:
            for topic in cast("fe.FetchResponse", answer).responses:
                for part in topic.partitions:
                    data = bytearray(part.batches)
                    for batch in walk(bytes(data)):
                        if batch.base_offset == base:
                            data[batch.at : batch.at + 8] = wrong.to_bytes(8, "big")
                    part.records = bytes(data)
        return answer

    leader.mangle = mangle


@pytest.mark.parametrize("base", [0, 3, 6, 9])
@pytest.mark.parametrize("bit", [0, 2, 40, *map(rarely, (1, 3, 4, 20, 62))])
@pytest.mark.parametrize("max_bytes", [1, 300, rarely(1 << 20)])
def test_a_base_offset_that_is_wrong_is_a_damaged_batch(
    leader: FakeLeader, base: int, bit: int, max_bytes: int
) -> None:
    moves(leader, base, base ^ 1 << bit)
    for read in (plain_rows, column_rows):
        found: list[tuple[int, bytes | None]] = []
        with pytest.raises(CorruptBatch, match="t-0"):
            found.extend(read(open_fetch(leader, max_bytes=max_bytes), 0, 12))
        if max_bytes > 1:  # with max_bytes=1, a response has one batch
            assert all(value == b"%d" % offset for offset, value in found)


@pytest.mark.parametrize(("base", "wrong"), [(3, 2), (6, 4), (9, 8), (9, 7)])
def test_the_first_batch_is_held_against_the_one_before_it(
    leader: FakeLeader, base: int, wrong: int
) -> None:
    start = base + 1
    assert [row for row, _ in plain_rows(open_fetch(leader), start, 12)] == list(range(start, 12))
    moves(leader, base, wrong)
    for read in (plain_rows, column_rows):
        with pytest.raises(CorruptBatch, match=f"offsets {wrong} to {wrong + 2}, expected {base}"):
            list(read(open_fetch(leader), start, 12))


def test_a_log_that_begins_within_a_batch_is_read(leader: FakeLeader) -> None:
    leader.log().delete_records(4)
    assert [row for row, _ in plain_rows(open_fetch(leader), 4, 12)] == list(range(4, 12))


def plain_rows(fetch: PartitionFetch, start: int, end: int) -> "Iterator[tuple[int, bytes | None]]":
    for record, _ in fetched_records(fetch, start, end):
        yield record.offset, record.value


def column_rows(
    fetch: PartitionFetch, start: int, end: int
) -> "Iterator[tuple[int, bytes | None]]":
    split = Split(topic="t", partition=0, start_offset=start, end_offset=end, directory="")
    for batch in fetched(split, ("offset", "value"), fetch, ScanStats()):
        yield from zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
