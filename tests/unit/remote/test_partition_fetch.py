"""A partition is read to its end despite changes of leader, without waiting for missing records."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from tests.worlds.clusters.fake_leader import HOST, PORT, FakeLeader

from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, NotAuthorized, OffsetOutOfRange, UnknownTopic
from tidelog.protocol.messages import FETCH, LIST_OFFSETS, METADATA
from tidelog.protocol.messages import fetch as fe
from tidelog.protocol.messages import list_offsets as of
from tidelog.protocol.messages import metadata as md
from tidelog.protocol.requests import ReceivedRequest
from tidelog.protocol.wire import NO_UUID
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.remote.broker_connection import split_server
from tidelog.remote.partition_fetch import FetchedBatches, FetchSeams, FetchSettings, PartitionFetch
from tidelog.scan.batch_filters import aborted_spans, reach
from tidelog.types import (
    EARLIEST_LOCAL_TIMESTAMP,
    INT64_MAX,
    NewRecord,
    TopicPartition,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NAME = TopicPartition("t", 0)
TIMEOUT_MS = 5_000


def seams_of(leader: FakeLeader) -> FetchSeams:
    return FetchSeams(
        connect=leader.connect,
        clock=leader.env.clock,
        pause=lambda seconds: leader.env.clock.advance(int(seconds * 1000)),
    )


def open_fetch(leader: FakeLeader, **settings: int) -> PartitionFetch:
    topic_id = leader.directory.topic("t").topic_id
    assert topic_id is not None
    return PartitionFetch(
        f"{HOST}:{PORT}",
        NAME,
        seams_of(leader),
        topic_id=topic_id.hex,
        settings=FetchSettings(timeout_ms=TIMEOUT_MS, **settings),  # type: ignore[arg-type] # settings by name
    )


def values(parts: list[FetchedBatches], start: int, end: int) -> list[bytes | None]:
    return [
        record.value
        for part in parts
        for batch in walk(part.data)
        for record in batch.records()
        if max(start, part.offset) <= record.offset < end
    ]


@pytest.fixture
def leader() -> FakeLeader:
    found = FakeLeader()
    found.create()
    for number in range(10):
        found.put(*(b"%d" % (number * 3 + n) for n in range(3)))
    return found


@pytest.mark.parametrize(("start", "end"), [(0, 30), (1, 29), (4, 5), (29, 30), (7, 7)])
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_every_record_once(leader: FakeLeader, start: int, end: int, max_bytes: int) -> None:
    parts = list(open_fetch(leader, partition_max_bytes=max_bytes).parts(start, end))
    assert values(parts, start, end) == [b"%d" % n for n in range(start, end)]
    if max_bytes == 1:
        assert len(parts) == len({n // 3 for n in range(start, end)})


def test_the_next_response_is_requested_while_one_is_used(leader: FakeLeader) -> None:
    parts = open_fetch(leader, partition_max_bytes=1).parts(0, 30)
    next(parts)
    assert leader.asked.count("Fetch") == 2


def test_a_fetch_continues_at_another_leader(leader: FakeLeader) -> None:
    leader.nodes = 2
    parts = open_fetch(leader, partition_max_bytes=1).parts(0, 30)
    came = [next(parts)]
    leader.shift = 1
    came += parts
    assert values(came, 0, 30) == [b"%d" % n for n in range(30)]
    assert leader.asked.count("Metadata") == 2


def test_a_fetch_continues_after_a_new_leader_epoch(leader: FakeLeader) -> None:
    parts = open_fetch(leader, partition_max_bytes=1).parts(0, 30)
    came = [next(parts)]
    leader.restart()
    came += parts
    assert values(came, 0, 30) == [b"%d" % n for n in range(30)]


def test_an_unreachable_leader_is_an_error(leader: FakeLeader) -> None:
    leader.is_down = True
    with pytest.raises(
        ClusterFailure,
        match=r"no record at or after offset 3 .* within 5 s .*connection refused",
    ):
        list(open_fetch(leader).parts(3, 30))


def empty_from(offset: int, leader: FakeLeader) -> None:
    """Let the leader return no records from an offset on, as if compaction had removed them."""

    def mangle(request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == FETCH.key:
            asked = cast("fe.FetchRequest", request.message).topics[0].partitions[0]
            data = cast("fe.FetchResponse", answer).responses[0].partitions[0]
            if asked.fetch_offset >= offset:
                data.records = b""
        return answer

    leader.mangle = mangle


def test_a_gap_at_the_end_is_not_waited_for(leader: FakeLeader) -> None:
    empty_from(15, leader)
    parts = list(open_fetch(leader, partition_max_bytes=1).parts(0, 30))
    assert values(parts, 0, 30) == [b"%d" % n for n in range(15)]


def test_a_remote_tier_may_be_slow(leader: FakeLeader) -> None:
    """Below the local log start, an empty response doesn't prove that records are missing."""
    empty_from(15, leader)
    inner = leader.mangle

    def mangle(request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        leader.env.clock.advance(500)
        if request.api.key == LIST_OFFSETS.key:
            asked = cast("of.ListOffsetsRequest", request.message).topics[0].partitions[0]
            assert asked.timestamp == EARLIEST_LOCAL_TIMESTAMP
            cast("of.ListOffsetsResponse", answer).topics[0].partitions[0].offset = 20
        return inner(request, answer)

    leader.mangle = mangle
    with pytest.raises(ClusterFailure, match="no record at or after offset 15"):
        list(open_fetch(leader, partition_max_bytes=1).parts(0, 30))


def test_deleted_offsets_are_an_error_with_their_range(leader: FakeLeader) -> None:
    parts = open_fetch(leader, partition_max_bytes=1).parts(0, 30)
    next(parts)
    leader.log().roll()
    leader.log().delete_records(20)
    with pytest.raises(OffsetOutOfRange) as caught:
        list(parts)
    assert (caught.value.start, caught.value.end) == (20, 30)
    with pytest.raises(OffsetOutOfRange):
        list(open_fetch(leader).parts(31, 40))


def test_a_deleted_or_recreated_topic_is_an_error(leader: FakeLeader) -> None:
    fetch = open_fetch(leader)
    leader.directory.delete_topic("t")
    with pytest.raises(UnknownTopic, match="partition t-0 doesn't exist"):
        list(fetch.parts(0, 30))
    leader.create()
    with pytest.raises(UnknownTopic, match="deleted and recreated"):
        list(fetch.parts(0, 30))


def test_a_refusal_is_reported_at_once(leader: FakeLeader) -> None:
    def mangle(request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == FETCH.key:
            cast("fe.FetchResponse", answer).responses[0].partitions[0].error_code = 29
        return answer

    leader.mangle = mangle
    before = leader.env.clock.monotonic_ms()
    with pytest.raises(NotAuthorized) as caught:
        list(open_fetch(leader).parts(0, 30))
    assert caught.value.error_code == 29
    assert leader.env.clock.monotonic_ms() == before


def test_a_cut_batch_is_no_progress(leader: FakeLeader) -> None:
    def mangle(request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == FETCH.key:
            data = cast("fe.FetchResponse", answer).responses[0].partitions[0]
            assert data.records is not None
            data.records = bytes(data.batches)[:70]
        return answer

    leader.mangle = mangle
    with pytest.raises(ClusterFailure, match="the response has no complete batch"):
        list(open_fetch(leader).parts(0, 30))


def test_the_first_server_that_responds_is_used(leader: FakeLeader) -> None:
    def connect(host: str, port: int) -> object:
        if host != HOST:
            raise ConnectionRefusedError(host)
        return leader.connect(host, port)

    several = PartitionFetch(
        f"[::1]:1,{HOST}:{PORT}",
        NAME,
        replace(seams_of(leader), connect=connect),  # type: ignore[arg-type] # it calls the leader
    )
    assert len(values(list(several.parts(0, 30)), 0, 30)) == 30


@pytest.mark.parametrize("text", ["there", "there:", ":9092", "there:port", ""])
def test_invalid_servers_are_refused(text: str) -> None:
    with pytest.raises(ClusterFailure, match="host:port is needed"):
        split_server(text)
    assert split_server(" [::1]:9092 ") == ("::1", 9092)


def test_aborted_transactions_end_at_their_markers(leader: FakeLeader) -> None:
    log = leader.log()
    for number, commit in enumerate((False, True, False)):
        batch = build_batch(
            [NewRecord(value=b"x")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        log.append_batches(batch)
        log.end_transaction(producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=commit)
    (part,) = open_fetch(leader).parts(0, 36)
    found = reach(part.data)
    assert found is not None
    assert found.next_offset == 36
    spans = list(aborted_spans(part.data, [(7, 30), (7, 34), (8, 0)]))
    assert spans == [(7, 30, 31), (7, 34, 35), (8, 0, INT64_MAX)]
    assert list(aborted_spans(bytes(part.data)[:-1], [(7, 34)])) == [(7, 34, INT64_MAX)]
    assert reach(b"") is None


def refuse(leader: FakeLeader, code: int, *, replicas: int, times: int = 1 << 30) -> None:
    """Let the first `times` fetches fail with a code; the partition has `replicas` replicas."""
    left = [times]

    def mangle(request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == METADATA.key:
            for topic in cast("md.MetadataResponse", answer).topics:
                topic.partitions[0].replica_nodes = list(range(replicas))
        elif request.api.key == FETCH.key and left[0]:
            left[0] -= 1
            data = cast("fe.FetchResponse", answer).responses[0].partitions[0]
            data.error_code, data.records = code, b""
        return answer

    leader.mangle = mangle


def test_each_error_is_repeated_at_another_leader_or_raised(leader: FakeLeader) -> None:
    """Error codes in the list cause another attempt; all others are raised after one request."""
    repeated = (
        *("UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE", "NOT_LEADER_OR_FOLLOWER"),
        *("REPLICA_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "FENCED_LEADER_EPOCH"),
        *("UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE", "UNKNOWN_TOPIC_ID"),
        "INCONSISTENT_TOPIC_ID",
    )
    found, raised = [], []
    for code in set(ErrorCode) - {ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE}:
        refuse(leader, code, replicas=2, times=1)
        leader.asked.clear()
        try:
            parts = list(open_fetch(leader).parts(0, 30))
        except ClusterFailure as error:
            raised.append((code, error.error_code, leader.asked.count("Fetch")))
            continue
        assert len(values(parts, 0, 30)) == 30, code
        found.append(code.name)
    assert sorted(found) == sorted(repeated)
    assert all(code == error_code and count == 1 for code, error_code, count in raised)


def test_a_storage_error_of_the_only_replica_is_not_retried(leader: FakeLeader) -> None:
    refuse(leader, ErrorCode.KAFKA_STORAGE_ERROR, replicas=1)
    before = leader.env.clock.monotonic_ms()
    with pytest.raises(ClusterFailure) as failed:
        list(open_fetch(leader).parts(0, 30))
    assert leader.asked.count("Fetch") == 1
    assert leader.env.clock.monotonic_ms() == before, "no wait for what does not pass"
    assert failed.value.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    for word in ("t-0", f"{HOST}:{PORT}", "KAFKA_STORAGE_ERROR (error 56)", "tidelog doctor"):
        assert word in str(failed.value)


def test_another_replica_may_take_over_after_a_storage_error(leader: FakeLeader) -> None:
    refuse(leader, ErrorCode.KAFKA_STORAGE_ERROR, replicas=3, times=2)
    parts = list(open_fetch(leader).parts(0, 30))
    assert values(parts, 0, 30) == [b"%d" % n for n in range(30)]


def test_a_topic_without_an_id_is_requested_by_name(leader: FakeLeader) -> None:
    """A topic without an id is fetched with a version of Fetch that names topics by name.

    Kafka's clients do so, too. Newer versions name topics only by id (KIP-516).
    """

    def mangle(request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        if request.api.key == METADATA.key:
            for topic in cast("md.MetadataResponse", answer).topics:
                topic.topic_id = NO_UUID
        return answer

    leader.mangle = mangle
    parts = list(open_fetch(leader).parts(0, 30))
    assert values(parts, 0, 30) == [b"%d" % n for n in range(30)]
