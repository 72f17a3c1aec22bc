"""Records from their leader one by one: those that librdkafka would bring, with append times."""

from typing import TYPE_CHECKING, cast

import pytest
from tests.unit.cluster.fake_leader import HOST, PORT, FakeLeader, leader_of_twelve

from tidelog.cluster.fetched_records import fetched_records, reach
from tidelog.cluster.partition_fetch import FetchSeams, FetchSettings, PartitionFetch
from tidelog.errors import CorruptBatch
from tidelog.protocol.messages import FETCH
from tidelog.record.builder import build_batch
from tidelog.scan.fetched import next_offset
from tidelog.storage.appends import AppendOrigin
from tidelog.types import IsolationLevel, NewRecord, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.connection import ReceivedRequest
    from tidelog.protocol.messages import fetch as fe

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
        reach=reach,
    )
    settings = FetchSettings(isolation=isolation, timeout_ms=5_000, partition_max_bytes=max_bytes)
    return PartitionFetch(f"{HOST}:{PORT}", NAME, seams, settings=settings)


def told(leader: FakeLeader, *runs: int) -> None:
    """The broker names these append times, where it is asked for them."""
    inner = leader.mangle

    def mangle(request: "ReceivedRequest", answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == FETCH.key:
            assert cast("fe.FetchRequest", request.message).with_append_times
            cast("fe.FetchResponse", answer).responses[0].partitions[0].append_times = list(runs)
        return inner(request, answer)

    leader.mangle = mangle


@pytest.fixture
def leader() -> FakeLeader:
    return leader_of_twelve()


@pytest.mark.parametrize(("start", "end"), [(0, 12), (1, 11), (4, 5), (11, 12), (7, 7)])
@pytest.mark.parametrize("max_bytes", [1, 200, 1 << 20])
def test_every_record_once(leader: FakeLeader, start: int, end: int, max_bytes: int) -> None:
    found = list(fetched_records(open_fetch(leader, max_bytes=max_bytes), start, end))
    assert [r.offset for r, _ in found] == list(range(start, end))
    assert [r.value for r, _ in found] == [b"%d" % n for n in range(start, end)]


def test_append_times_are_those_that_the_broker_tells(leader: FakeLeader) -> None:
    told(leader, 3, 5_000, 6, -1, 9, 7_000)
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
        log.append_batches(batch, origin=AppendOrigin.CLIENT)
        log.end_transaction(producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=commit)
    committed = [r.offset for r, _ in fetched_records(open_fetch(leader, COMMITTED), 12, 18)]
    assert committed == [14]
    every = [r.offset for r, _ in fetched_records(open_fetch(leader), 12, 18)]
    assert every == [12, 14, 16]


def test_damage_is_named_behind_what_is_right(leader: FakeLeader) -> None:
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
    assert reach(data) == next_offset(data) == 12
    assert reach(data[:-1]) == next_offset(data[:-1]) == 9
    assert reach(b"") is next_offset(b"") is None
    damaged = data[: len(data) // 4 + 16] + b"\x07" + data[len(data) // 4 + 17 :]
    assert reach(damaged) == next_offset(damaged) == 3
