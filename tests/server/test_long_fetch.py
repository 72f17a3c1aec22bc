"""The response to a large Fetch without a session, made in many loop iterations, is complete."""

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import FETCH
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.server.api.fetch import PARTITIONS_MAX
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.types import NewRecord

TOPIC = "many"
VERSION = 12
COUNT = 11_600
THERE = (0, 7, 149)
VALUE = b"v" * 1000


@pytest.fixture
def address(broker: Broker) -> str:
    """Return the address of a broker with a topic of 150 partitions."""
    broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=150))
    return broker.bootstrap_servers


def put(broker: Broker, *numbers: int) -> None:
    def append(node: Node) -> None:
        for number in numbers:
            found = node.partitions.get(TOPIC, number)
            found.log.append([NewRecord(value=VALUE)])
            found.advance()

    broker.call(append)


def fetch_request(count: int = COUNT, **more: int) -> FetchRequest:
    partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(count)
    ]
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **more}
    return FetchRequest(
        topics=[FetchTopic(topic=TOPIC, partitions=partitions)],
        **fields,  # type: ignore[arg-type] # all are numbers
    )


def codes(answer: FetchResponse) -> dict[int, int]:
    return {
        each.partition_index: each.error_code
        for topic in answer.responses
        for each in topic.partitions
    }


def with_records(answer: FetchResponse) -> set[int]:
    return {
        each.partition_index
        for topic in answer.responses
        for each in topic.partitions
        if each.records
    }


@pytest.mark.parametrize("epoch", [-1, 0])
def test_without_a_session_all_partitions_are_in_the_response(
    broker: Broker, address: str, epoch: int
) -> None:
    put(broker, *THERE)
    with RawClient(address) as client:
        answer = client.ask(FETCH, VERSION, fetch_request(session_epoch=epoch))
    assert (answer.error_code, answer.session_id) == (0, 0)
    expected = {
        number: 0 if number < 150 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for number in range(COUNT)
    }
    assert codes(answer) == expected
    assert with_records(answer) == set(THERE)


def test_all_partitions_share_one_limit(broker: Broker, address: str) -> None:
    put(broker, *range(150))
    with RawClient(address) as client:
        answer = client.ask(FETCH, VERSION, fetch_request(max_bytes=5000))
    assert with_records(answer) == {0, 1, 2, 3}


def test_a_long_fetch_waits_for_records(broker: Broker, address: str) -> None:
    with RawClient(address) as client:
        client.send(FETCH, VERSION, fetch_request(max_wait_ms=PATIENCE_S * 2000))
        assert not client.has_answer()
        put(broker, 149)
        answer = client.receive()
    assert isinstance(answer, FetchResponse)
    assert with_records(answer) == {149}


def test_an_incremental_request_gets_an_error_for_its_session(address: str) -> None:
    with RawClient(address) as client:
        begun = client.ask(FETCH, VERSION, fetch_request(3, session_epoch=0))
        answer = client.ask(
            FETCH, VERSION, fetch_request(session_id=begun.session_id, session_epoch=1)
        )
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert answer.responses == []


def test_more_than_may_wait_are_refused_one_by_one(address: str) -> None:
    with RawClient(address) as client:
        answer = client.ask(FETCH, VERSION, fetch_request(PARTITIONS_MAX + 1))
    assert codes(answer) == dict.fromkeys(range(PARTITIONS_MAX + 1), ErrorCode.INVALID_REQUEST)


def test_an_unknown_isolation_level_is_an_error_of_each_partition(address: str) -> None:
    with RawClient(address) as client:
        answer = client.ask(FETCH, VERSION, fetch_request(isolation_level=7))
    assert codes(answer) == dict.fromkeys(range(COUNT), -1)
