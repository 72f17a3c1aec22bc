"""Fetch sessions by the rules of KIP-227."""

import asyncio
import gc
from pathlib import Path
from random import Random
from weakref import ref

from tests.unit.server.steps import steps
from tests.unit.server.wire_client import WireClient
from tests.worlds.brokers.topics import delete_topic

from tidelog.config import BrokerConfig
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import FETCH
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.server.broker import open_node
from tidelog.server.partitions.fetch import PartitionKey, PartitionRead
from tidelog.server.partitions.fetch_sessions import (
    SESSION_PARTITIONS_MAX,
    FetchSessions,
    RequestedPartition,
    SessionRequest,
    next_epoch,
)
from tidelog.types import INT32_MAX

SAFE_MS = 1000


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, SAFE_MS, Random(7))


def asked(*numbers: int, offset: int = 0) -> list[RequestedPartition]:
    return [
        (("t", number), FetchPartition(partition=number, fetch_offset=offset)) for number in numbers
    ]


def request(
    session_id: int = 0,
    epoch: int = 0,
    *,
    wanted: list[RequestedPartition] | None = None,
    forgotten: tuple[PartitionKey, ...] = (),
    by_id: bool = False,
    is_follower: bool = False,
) -> SessionRequest:
    return SessionRequest(
        session_id=session_id,
        epoch=epoch,
        by_id=by_id,
        is_follower=is_follower,
        partitions=asked(0, 1, 2) if wanted is None else wanted,
        forgotten=forgotten,
    )


def answer(number: int, *, records: bytes = b"", end: int = 5, code: int = 0) -> PartitionRead:
    read = PartitionRead(None, number, 0, 0)
    read.refuse(code)
    read.records = records
    if not code:
        read.high_watermark, read.log_start_offset = end, 0
    return read


def run(
    found: FetchSessions, what: SessionRequest, now_ms: int = 0, **answers: PartitionRead
) -> tuple[int, int, list[int]]:
    """Send a request; return the response's error code, session id and partition indexes.

    `p0=...` sets the result of partition 0.
    """
    fetching, reads = found.open(what, now_ms), []
    for cached in fetching.partitions:
        number = cached.key[1]
        reads.append(answers.get(f"p{number}", answer(number)))
        reads[-1].cached = cached
    told = fetching.respond(reads, now_ms)
    return told.error_code, told.session_id, [read.number for read in told.partitions]


def begin(found: FetchSessions, now_ms: int = 0, *, is_follower: bool = False) -> int:
    return run(found, request(is_follower=is_follower), now_ms)[1]


def test_a_full_request_begins_a_session_and_gets_all_partitions() -> None:
    code, session_id, told = run(sessions(), request())
    assert (code, told) == (0, [0, 1, 2])
    assert session_id > 0


def test_final_epoch_begins_none_and_ends_the_one_named() -> None:
    found = sessions()
    session_id = begin(found)
    assert run(found, request(session_id, -1)) == (0, 0, [0, 1, 2])
    assert run(found, request(session_id, 1, wanted=[]))[0] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_incremental_request_gets_only_changed_partitions() -> None:
    found = sessions()
    session_id = begin(found)
    assert run(found, request(session_id, 1, wanted=[])) == (0, session_id, [])
    moved = answer(1, end=6)
    assert run(found, request(session_id, 2, wanted=[]), p1=moved)[2] == [1]
    assert run(found, request(session_id, 3, wanted=[]), p1=moved)[2] == []


def test_an_error_is_in_each_response_and_the_partition_once_more_after_it() -> None:
    found = sessions()
    session_id = begin(found)
    for epoch in (1, 2):
        assert run(found, request(session_id, epoch, wanted=[]), p2=answer(2, code=56))[2] == [2]
    assert run(found, request(session_id, 3, wanted=[]))[2] == [2]
    assert run(found, request(session_id, 4, wanted=[]))[2] == []


def test_a_partition_with_records_moves_to_the_end() -> None:
    found = sessions()
    session_id = begin(found)
    full = answer(0, records=b"x")
    assert run(found, request(session_id, 1, wanted=[]), p0=full)[2] == [0]
    order = [c.key[1] for c in found.open(request(session_id, 2, wanted=[]), 0).partitions]
    assert order == [1, 2, 0]


def test_partitions_are_added_changed_and_forgotten() -> None:
    found = sessions()
    session_id = begin(found)
    wanted = [*asked(3), *asked(1, offset=9)]
    fetching = found.open(request(session_id, 1, wanted=wanted, forgotten=(("t", 0),)), 0)
    assert [(c.key[1], c.request.fetch_offset) for c in fetching.partitions] == [
        (1, 9),
        (2, 0),
        (3, 0),
    ]


def test_session_without_partitions_ends() -> None:
    found = sessions()
    session_id = begin(found)
    gone = (("t", 0), ("t", 1), ("t", 2))
    assert run(found, request(session_id, 1, wanted=[], forgotten=gone)) == (0, 0, [])
    assert len(found._sessions) == 0


def test_wrong_epoch_leaves_the_session_as_it_is() -> None:
    found = sessions()
    session_id = begin(found)
    assert run(found, request(session_id, 2, wanted=[]))[0] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert run(found, request(session_id, 1, wanted=[]))[0] == 0


def test_a_response_after_the_next_epoch_of_the_session_is_an_error() -> None:
    found = sessions()
    session_id = begin(found)
    slow = found.open(request(session_id, 1, wanted=[]), 0)
    run(found, request(session_id, 2, wanted=[]))
    assert slow.respond([], 0).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_names_and_ids_are_not_mixed_in_a_session() -> None:
    found = sessions()
    session_id = begin(found)
    assert (
        run(found, request(session_id, 1, wanted=[], by_id=True))[0]
        == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    )


def test_full_cache_gives_no_session_until_one_is_stale() -> None:
    found = sessions(slots=1)
    first = begin(found)
    assert begin(found, SAFE_MS) == 0
    second = begin(found, SAFE_MS + 1)
    assert second > 0
    assert run(found, request(first, 1, wanted=[]))[0] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_old_session_is_replaced_only_by_a_larger_one() -> None:
    found = sessions(slots=1)
    first = begin(found)
    run(found, request(first, 1, wanted=[]), SAFE_MS + 1)
    assert run(found, request(wanted=asked(0, 1, 2)), SAFE_MS + 2)[1] == 0
    assert run(found, request(wanted=asked(0, 1, 2, 3)), SAFE_MS + 2)[1] > 0


def test_follower_pushes_out_a_consumer_and_not_the_other_way_round() -> None:
    found = sessions(slots=1)
    begin(found)
    follower = begin(found, is_follower=True)
    assert follower > 0
    assert run(found, request(wanted=asked(0, 1, 2, 3)))[1] == 0


def test_no_slots_no_sessions() -> None:
    assert begin(sessions(slots=0)) == 0


def test_epochs_increase_and_wrap_to_one() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, INT32_MAX)] == [1, 2, 1]


def test_clients_continue_without_a_session_beyond_the_limit() -> None:
    found = FetchSessions(10, SAFE_MS, Random(7), partitions_max=8)
    first, second = begin(found), begin(found)
    assert min(first, second) > 0
    assert run(found, request()) == (0, 0, [0, 1, 2])
    assert run(found, request(first, 1, wanted=asked(3, 4)))[0] == 0
    assert (
        run(found, request(second, 1, wanted=asked(3)))[0] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert len(found._sessions) == 1
    assert begin(found) > 0


def test_a_session_with_too_many_partitions_ends() -> None:
    found = sessions()
    session = begin(found)
    grown = asked(*range(SESSION_PARTITIONS_MAX))
    assert run(found, request(session, 1, wanted=grown))[0] == 0
    more = asked(SESSION_PARTITIONS_MAX)
    assert run(found, request(session, 2, wanted=more))[0] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(found._sessions) == 0


def test_the_cost_of_a_new_offset_does_not_depend_on_other_sessions() -> None:
    found = sessions(slots=1000)
    session = begin(found)

    def move_on(epoch: int) -> int:
        return steps(lambda: found.open(request(session, epoch, wanted=asked(0, offset=epoch)), 0))

    alone = move_on(1)
    for _ in range(500):
        begin(found)
    assert move_on(2) == alone


def test_a_session_keeps_no_deleted_partition_in_memory(tmp_path: Path) -> None:
    node = open_node(str(tmp_path), BrokerConfig.parse({})[0])
    node.log_dir.create_topic("t", partitions=1)
    kept = ref(node.partitions.get("t", 0))

    async def story() -> None:
        client = WireClient(node)

        def fetch(session_id: int, epoch: int, *wanted: FetchPartition) -> FetchResponse:
            message = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                session_id=session_id,
                session_epoch=epoch,
                topics=[FetchTopic(topic="t", partitions=list(wanted))] if wanted else [],
                rack_id="",
            )
            client.send(client.frame(FETCH, 12, message))
            (answer,) = client.answers()
            assert isinstance(answer, FetchResponse)
            return answer

        begun = fetch(0, 0, FetchPartition(partition=0, fetch_offset=0))
        assert fetch(begun.session_id, 1).error_code == 0
        delete_topic(node, "t")
        (topic,) = fetch(begun.session_id, 2).responses
        assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        client.connection.connection_lost(None)

    asyncio.run(story())
    gc.collect()
    assert len(node.fetch_sessions._sessions) == 1
    assert kept() is None
    node.close()
