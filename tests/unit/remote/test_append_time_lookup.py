"""Append times from a broker for records that came through librdkafka."""

from typing import TYPE_CHECKING, cast

import pytest
from tests.unit.remote.test_fetched_records import NAME, open_fetch, set_append_times
from tests.unit.remote.test_partition_fetch import seams_of
from tests.worlds.clusters.fake_leader import HOST, NODE, PORT, FakeLeader, leader_of_twelve

from tidelog.protocol.messages import FETCH, LIST_OFFSETS
from tidelog.record.record import Record
from tidelog.remote.partition_fetch import PartitionFetch
from tidelog.remote.records import fetched_records
from tidelog.remote.time_lookup import AppendTimeLookup, Leaders
from tidelog.types import OffsetAndTimestamp, TimeMatch, TimestampType, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    from tidelog.protocol.messages import fetch as fe
    from tidelog.protocol.messages import list_offsets as of
    from tidelog.protocol.requests import ReceivedRequest

REST_MS = 60_000
leader = pytest.fixture(leader_of_twelve)


def record(offset: int, stamp_ms: int | None = None) -> Record:
    kind = TimestampType.CREATE_TIME if stamp_ms is None else TimestampType.LOG_APPEND_TIME
    return Record(offset, 7 if stamp_ms is None else stamp_ms, kind, None, b"x")


def leaders_of(leader: FakeLeader, unsupported: set[int] | None = None) -> Leaders:
    def look_up(topic: str) -> dict[int, int]:
        partitions = range(leader.directory.topic(topic).partitions)
        return {number: NODE + leader.node_of(number) for number in partitions}

    return Leaders(look_up, set() if unsupported is None else unsupported)


def open_times(
    leader: FakeLeader, opened: "Callable[[TopicPartition], PartitionFetch] | None" = None
) -> AppendTimeLookup:
    opened = opened or (lambda _name: open_fetch(leader))
    return AppendTimeLookup(opened, leader.env.clock, leaders_of(leader), rest_ms=REST_MS)


def test_each_record_has_the_time_that_the_broker_tells(leader: FakeLeader) -> None:
    set_append_times(leader, 0, -1, 3, 5_000, 6, -1, 9, 7_000)
    times = open_times(leader)
    found = [times.time_of(NAME, record(offset)) for offset in range(12)]
    assert found == [None] * 3 + [5_000] * 3 + [None] * 3 + [7_000] * 3
    assert leader.asked.count("Fetch") == 1
    assert times.time_of(NAME, record(1)) is None
    assert leader.asked.count("Fetch") == 1


def test_later_records_are_looked_up_on_the_same_connection(leader: FakeLeader) -> None:
    set_append_times(leader, 0, 5_000, 12, 7_000)
    times = open_times(leader)
    assert times.time_of(NAME, record(11)) == 5_000
    leader.put(b"later")
    assert times.time_of(NAME, record(12)) == 7_000
    assert leader.asked.count("Metadata") == 1


def test_a_broker_without_append_times_gets_no_second_fetch(leader: FakeLeader) -> None:
    times = open_times(leader)
    leader.put(b"later")
    found = [times.time_of(NAME, record(offset)) for offset in (0, 12)]
    assert found == [None, None]
    assert times.time_of(NAME, record(13, stamp_ms=9_000)) == 9_000
    assert leader.asked.count("Fetch") == 1


def test_a_leader_without_append_times_does_not_end_the_search_at_others() -> None:
    """One of two leaders can't search by append time; the other's partitions have results."""
    leader = FakeLeader(nodes=2)
    leader.create(partitions=4)

    def mangle(request: "ReceivedRequest", answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == LIST_OFFSETS.key:
            part = cast("of.ListOffsetsResponse", answer).topics[0].partitions[0]
            part.without_append_time = -1 if leader.node == 0 else 0
            part.offset, part.timestamp, part.leader_epoch = 3, 5_000, -1
        return answer

    leader.mangle = mangle
    unsupported: set[int] = set()
    times = AppendTimeLookup(
        lambda name: PartitionFetch(f"{HOST}:{PORT}", name, seams_of(leader)),
        leader.env.clock,
        leaders_of(leader, unsupported),
        rest_ms=REST_MS,
    )
    answers = [times.first_appended(TopicPartition("t", number), 4_000) for number in range(4)]
    hit = TimeMatch(OffsetAndTimestamp(3, 5_000, None, 0), 0)
    assert answers == [None, hit, None, hit]
    assert unsupported == {NODE}
    assert leader.asked.count("ListOffsets") == 3
    times.close()


def test_no_request_is_sent_without_a_connection_to_leaders(leader: FakeLeader) -> None:
    times = AppendTimeLookup(None, leader.env.clock, leaders_of(leader), rest_ms=REST_MS)
    assert times.time_of(NAME, record(0)) is None
    assert times.time_of(NAME, record(0, stamp_ms=9_000)) == 9_000
    times.close()


def test_unavailable_times_are_unknown_and_requested_later(leader: FakeLeader) -> None:
    set_append_times(leader, 0, 5_000)
    times = open_times(leader)
    leader.is_down = True
    before = leader.env.clock.monotonic_ms()
    assert times.time_of(NAME, record(0)) is None
    waited = leader.env.clock.monotonic_ms()
    assert waited > before
    assert times.time_of(NAME, record(1)) is None
    assert leader.env.clock.monotonic_ms() == waited
    leader.is_down = False
    leader.env.clock.advance(REST_MS)
    assert times.time_of(NAME, record(2)) == 5_000


def test_deleted_records_have_no_known_time(leader: FakeLeader) -> None:
    set_append_times(leader, 0, 5_000)
    times = open_times(leader)
    leader.log().delete_records(6)
    assert times.time_of(NAME, record(3)) is None
    assert times.time_of(NAME, record(6)) == 5_000


def test_only_so_many_partitions_have_a_connection(leader: FakeLeader) -> None:
    """When a 33rd partition connects, the least recently used partition loses its connection."""
    set_append_times(leader, 0, 5_000)
    opened: list[int] = []

    def open_one(name: TopicPartition) -> "PartitionFetch":
        opened.append(name.partition)
        return open_fetch(leader)

    times = open_times(leader, open_one)
    for number in (*range(32), 0, 32, 0, 1):
        assert times.time_of(TopicPartition("t", number), record(0)) == 5_000
    assert opened == [*range(33), 1]
    times.close()


def test_the_times_are_those_of_the_records_themselves(leader: FakeLeader) -> None:
    def mangle(request: "ReceivedRequest", answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == FETCH.key:
            data = cast("fe.FetchResponse", answer).responses[0].partitions[0]
            data.append_times = [0, 1_000, 4, 2_000, 8, -1]
        return answer

    leader.mangle = mangle
    times = open_times(leader)
    for found, append_ms in fetched_records(open_fetch(leader), 0, 12):
        assert times.time_of(NAME, found) == append_ms
