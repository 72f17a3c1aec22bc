"""A lookup that comes alone takes a shorter way through its connection, and is told the same."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worlds.brokers.running import node_fixture
from tests.worlds.waiting import turn_until

from tidelog.protocol.connection import ClientConnection
from tidelog.protocol.messages import LIST_OFFSETS, METADATA
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.server.clients import Clients
from tidelog.server.connection import Connection
from tidelog.server.metrics import Counters
from tidelog.server.node import Node
from tidelog.types import Buffer, NewRecord

TOPIC = "lookups"


class Wire:
    """A transport that keeps what is sent; it hands out no socket."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_closed = False

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        """None here."""

    def writelines(self, pieces: Sequence[Buffer]) -> None:
        for piece in pieces:
            self.sent += piece

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        """All comes by hand."""

    def resume_reading(self) -> None:
        """Likewise."""


def take_three(node: Node) -> None:
    """Records at 1, 2 and 3 seconds in a topic of one partition; what is asked is counted."""
    node.metrics = Counters()
    node.topics.create(TOPIC, 1)
    log = node.partitions.get(TOPIC, 0).log
    log.append([NewRecord(value=b"", timestamp=1000 * n) for n in range(1, 4)])
    node.partitions.get(TOPIC, 0).advance()


node = node_fixture(prepare=take_three, scope="module")


def lookup(time: int, partition: int = 0) -> bytes:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=time)
    message = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    return b"".join(ClientConnection("somebody").request(LIST_OFFSETS, 7, message))


def metadata() -> bytes:
    return b"".join(ClientConnection("somebody").request(METADATA, 9, MetadataRequest(topics=[])))


def talk(node: Node, stream: bytes, sizes: Sequence[int], *, short_way: bool) -> Wire:
    """A connection on which a stream comes in pieces of these sizes; the client goes behind it."""

    async def run() -> Wire:
        wire, connection = Wire(), Connection(node, Clients(node))
        if not short_way:
            connection._is_plain = lambda: False  # type: ignore[method-assign]
        connection.connection_made(cast("asyncio.Transport", wire))
        at = number = 0
        while at < len(stream):
            room = connection.get_buffer(-1)
            piece = stream[at : at + min(sizes[number % len(sizes)], len(room))]
            room[: len(piece)] = piece
            room.release()
            connection.buffer_updated(len(piece))
            at, number = at + len(piece), number + 1
        await turn_until(lambda: not connection.is_busy)  # some may have to wait for their turn
        connection.connection_lost(None)
        return wire

    return asyncio.run(run())


def answers(node: Node, stream: bytes, sizes: Sequence[int], *, short_way: bool) -> bytes:
    """What a client is sent."""
    wire = talk(node, stream, sizes, short_way=short_way)
    assert not wire.is_closed
    return bytes(wire.sent)


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
    is_one_by_one=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_same_is_said_and_counted(
    node: Node, requests: list[bytes], sizes: list[int], is_one_by_one: bool
) -> None:
    lengths = [len(request) for request in requests] if is_one_by_one else sizes
    stream, found = b"".join(requests), []
    for short_way in (True, False):
        before = counted(node)
        told = answers(node, stream, lengths, short_way=short_way)
        found.append((told, [now - was for now, was in zip(counted(node), before, strict=True)]))
    assert found[0] == found[1]


def test_the_short_way_is_taken(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(node, lookup(1500), [1000], short_way=True)  # makes the memory
    told = answers(node, lookup(1500), [1000], short_way=False)
    monkeypatch.setattr(Connection, "_go_on", lambda _: pytest.fail("the long way"))
    assert answers(node, lookup(1500), [1000], short_way=True) == told


def test_what_goes_wrong_there_closes_the_connection_as_on_the_long_way(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_frame: Buffer) -> None:
        raise RuntimeError("a mistake")

    answers(node, lookup(1500), [1000], short_way=True)  # makes the memory
    monkeypatch.setattr(node.repeated_lookups, "answer", fail)
    for short_way in (True, False):
        caplog.clear()
        wire = talk(node, lookup(1500), [1000], short_way=short_way)
        assert wire.is_closed
        assert not wire.sent
        assert "an error of our own" in caplog.text
