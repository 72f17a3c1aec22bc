"""Responses and counters are the same whether requests arrive in pieces, singly or together."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.faults.hooked import HookedDisk
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.socketless import FakeTransport
from tests.worlds.waiting import turn_until

from tidelog.protocol.messages import LIST_OFFSETS, METADATA
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.requests import ClientConnection
from tidelog.server.api.node import Node
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.server.runtime.counters import Counters
from tidelog.types import NewRecord

TOPIC = "lookups"


@pytest.fixture(scope="module")
def disk() -> HookedDisk:
    return HookedDisk()


def take_three(node: Node) -> None:
    """Write records with times 1, 2 and 3 s to a one-partition topic; begin to count requests."""
    node.metrics = Counters()
    node.log_dir.create_topic(TOPIC, partitions=1)
    log = node.partitions.get(TOPIC, 0).log
    log.append([NewRecord(value=b"", timestamp=1000 * n) for n in range(1, 4)])
    node.partitions.get(TOPIC, 0).advance()


node = node_fixture(prepare=take_three, has_disk=True, scope="module")


def lookup(time: int, partition: int = 0) -> bytes:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=time)
    message = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    return b"".join(ClientConnection("somebody").request(LIST_OFFSETS, 7, message))


def metadata() -> bytes:
    return b"".join(ClientConnection("somebody").request(METADATA, 9, MetadataRequest(topics=[])))


def talk(node: Node, stream: bytes, sizes: Sequence[int]) -> FakeTransport:
    """Send a stream in pieces of these sizes over a new connection, then disconnect."""

    async def run() -> FakeTransport:
        transport, connection = FakeTransport(), Connection(node, Clients(node))
        connection.connection_made(transport)
        at = number = 0
        while at < len(stream) and not transport.is_over:
            room = connection.get_buffer(-1)
            piece = stream[at : at + min(sizes[number % len(sizes)], len(room))]
            room[: len(piece)] = piece
            room.release()
            assert piece
            connection.buffer_updated(len(piece))
            at, number = at + len(piece), number + 1
        # Some requests are handled only in a later turn of the connection.
        await turn_until(lambda: not connection.is_busy)
        connection.connection_lost(None)
        return transport

    return asyncio.run(run())


def counted(node: Node) -> tuple[int, int, int]:
    metrics = node.metrics
    assert isinstance(metrics, Counters)
    tally = metrics.apis["ListOffsets"]
    return sum(tally.seconds.counts), tally.bytes_in, tally.bytes_out


REQUESTS = st.one_of(
    st.sampled_from([-6, -3, -2, -1, 0, 1500, 3000, 3001, 2**63 - 1]).map(lookup),
    st.just(lookup(1500, partition=7)),
    st.just(metadata()),
)


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=8),
    sizes=st.lists(st.sampled_from([1, 3, 40, 61, 62, 63, 64, 200, 1000]), min_size=1, max_size=3),
)
@examples(60)
def test_responses_and_counters_are_the_same(
    node: Node, requests: list[bytes], sizes: list[int]
) -> None:
    found = []
    for cut in ([len(request) for request in requests], sizes):
        before = counted(node)
        transport = talk(node, b"".join(requests), cut)
        assert not transport.is_over
        tally = [now - was for now, was in zip(counted(node), before, strict=True)]
        found.append((bytes(transport.sent), tally))
    assert found[0] == found[1]


@pytest.mark.parametrize("cut", [1000, 20], ids=["whole", "in pieces"])
def test_an_internal_error_closes_the_connection(
    node: Node, disk: HookedDisk, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    def fail(_call: str, _path: str) -> None:
        raise RuntimeError("a mistake")

    disk.hook = fail
    try:
        transport = talk(node, lookup(1500), [cut])
    finally:
        disk.hook = lambda _call, _path: None
    assert transport.is_over
    assert not transport.sent
    assert "internal error" in caplog.text


@pytest.mark.parametrize("cut", [1000, 20], ids=["whole", "in pieces"])
def test_a_request_that_is_cut_closes_the_connection(
    node: Node, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    request = lookup(1500)
    short = (len(request) - 6).to_bytes(4, "big") + request[4:-2]
    transport = talk(node, short, [cut])
    assert transport.is_over
    assert not transport.sent
    assert "closed" in caplog.text
