"""Pending requests of a client that has half-closed its connection, or disconnected."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.faults.hooked import HookedDisk
from tests.unit.server.wire_client import WireClient, turns
from tests.worlds.brokers.socketless import FakeTransport
from tests.worlds.waiting import turn_until

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import ENDED_WAIT_MS, Connection
from tidelog.server.partitions.partition import Partition

TOPIC = "t"


class Encrypted(FakeTransport):
    """Transport with TLS."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return object() if name == "sslcontext" else super().get_extra_info(name, default)


class World:
    """A broker whose topic can be locked: after `hold`, appends wait until `go_on`."""

    def __init__(self, node: Node, clock: ManualClock, disk: HookedDisk) -> None:
        self.node = node
        self.clock = clock
        self.disk = disk
        self._held = AsyncExitStack()

    @property
    def partition(self) -> Partition:
        return self.node.partitions.get(TOPIC, 0)

    @property
    def count(self) -> int:
        """Return the number of appended records."""
        return self.partition.log.log_end_offset

    async def hold(self) -> None:
        held = self.node.partitions.holds.hold([TOPIC], stops_appends=True)
        await self._held.enter_async_context(held)

    async def go_on(self) -> None:
        """Release the lock, and let the appends and their effects run."""
        await self._held.aclose()
        await turns()

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.node.timers.run_due()


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    clock, disk = ManualClock(1_700_000_000_000), HookedDisk()
    node = open_node(str(path), BrokerConfig(), env=Env(clock=clock, files=disk))
    node.log_dir.create_topic(TOPIC, partitions=1)
    made = World(node, clock, disk)
    assert made.partition.failure is None
    await made.hold()
    try:
        yield made
    finally:
        await made.go_on()
        node.close()


def on_a_loop(test: Callable[[World], Awaitable[None]]) -> Callable[[Path], None]:
    """Run a test on its own broker and event loop."""

    def run(tmp_path: Path) -> None:
        async def whole() -> None:
            async with world(tmp_path) as it:
                await test(it)

        asyncio.run(whole())

    return run


def is_left(client: WireClient) -> bool:
    """Return whether the broker still has a connection, or counts memory of a connection."""
    return bool(len(client.clients) or client.clients.in_flight.used_bytes)


@on_a_loop
async def test_a_half_closed_connection_gets_all_responses_before_it_closes(it: World) -> None:
    client = WireClient(it.node)
    client.send(client.produce(TOPIC), client.fetch(TOPIC, 1), client.produce(TOPIC))
    await turns()
    assert client.connection.eof_received()
    await it.go_on()
    assert (len(client.answers()), client.transport.is_over) == (1, False)
    other = WireClient(it.node)
    other.send(other.produce(TOPIC))
    await turn_until(lambda: client.transport.is_over)  # the read runs in a thread
    assert len(client.answers()) == 2
    assert it.count == 3
    client.connection.connection_lost(None)
    assert not is_left(client)
    other.connection.connection_lost(None)


@on_a_loop
async def test_a_half_closed_connection_without_pending_requests_is_closed(it: World) -> None:
    client = WireClient(it.node)
    assert not client.connection.eof_received()
    client.connection.connection_lost(None)
    assert not is_left(client)


@on_a_loop
async def test_a_fetch_of_a_half_closed_connection_ends_after_a_time(it: World) -> None:
    reads, writes = WireClient(it.node), WireClient(it.node)
    reads.send(reads.fetch(TOPIC))
    writes.send(writes.produce(TOPIC))
    for each in (reads, writes):
        each.connection.eof_received()
    it.pass_time(ENDED_WAIT_MS - 1)
    before = reads.transport.is_over, writes.transport.is_over
    it.pass_time(2)
    after = reads.transport.is_over, writes.transport.is_over
    assert (before, after) == ((False, False), (True, False))
    for each in (reads, writes):
        each.connection.connection_lost(None)
    await it.go_on()
    assert not is_left(reads)
    assert not is_left(writes)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_failed_request_leaves_nothing_of_its_client(tmp_path: Path, *, is_gone: bool) -> None:
    def fail(call: str, path: str) -> None:
        if call.startswith("pwrite") and TOPIC in path:
            raise RuntimeError("unforeseen")

    @on_a_loop
    async def story(it: World) -> None:
        client = WireClient(it.node)
        client.send(client.produce(TOPIC))
        await turns()
        it.disk.hook = fail
        if is_gone:
            client.connection.connection_lost(ConnectionResetError())
        await it.go_on()
        it.disk.hook = lambda _call, _path: None
        assert client.transport.is_over is not is_gone
        assert not client.transport.sent
        assert not is_left(client)

    story(tmp_path)


@on_a_loop
async def test_received_requests_are_executed_after_a_response_cannot_be_sent(it: World) -> None:
    """The client has disconnected; the broker notices this only when it sends a response."""
    ours, theirs = socket.socketpair()
    loop, clients, client = asyncio.get_running_loop(), Clients(it.node), WireClient(it.node)
    _, connection = await loop.create_connection(lambda: Connection(it.node, clients), sock=ours)
    frames = client.produce(TOPIC), client.fetch(TOPIC, 9), client.produce(TOPIC)
    theirs.sendall(b"".join(frames))
    await turn_until(lambda: connection.is_busy)
    theirs.close()
    await it.go_on()
    await turn_until(lambda: not len(clients))
    assert it.count == 2
    assert not clients.in_flight.used_bytes
    client.connection.connection_lost(None)


@on_a_loop
async def test_a_connection_stopped_before_it_is_made_is_closed(it: World) -> None:
    connection, transport = Connection(it.node, Clients(it.node)), FakeTransport()
    connection.admit("127.0.0.1")
    connection.stop()
    connection.connection_made(transport)
    assert transport.is_over


@pytest.mark.parametrize("way", ["gone", "sent away"])
def test_a_write_of_a_disconnected_client_is_executed_and_counted_until_its_end(
    tmp_path: Path, way: str
) -> None:
    @on_a_loop
    async def story(it: World) -> None:
        client = WireClient(it.node)
        client.send(client.produce(TOPIC))
        if way == "sent away":
            client.connection.close()
        client.connection.connection_lost(ConnectionResetError())
        await turns()
        assert len(client.clients) == 1
        assert client.clients.in_flight.used_bytes
        await it.go_on()
        assert it.count == 1
        assert not is_left(client)
        assert not client.transport.sent

    story(tmp_path)


@on_a_loop
async def test_a_fetch_of_a_disconnected_client_is_cancelled(it: World) -> None:
    client = WireClient(it.node)
    before = len(it.partition._watchers)
    client.send(client.fetch(TOPIC))
    await turns()
    assert len(it.partition._watchers) > before
    client.connection.connection_lost(ConnectionResetError())
    assert not is_left(client)
    await turns()
    assert len(it.partition._watchers) == before


@pytest.mark.parametrize("is_told", [True, False])
def test_requests_before_the_end_of_an_encrypted_stream_are_processed(
    tmp_path: Path, *, is_told: bool
) -> None:
    @on_a_loop
    async def story(it: World) -> None:
        client = WireClient(it.node, transport=Encrypted())
        client.send(client.produce(TOPIC), client.fetch(TOPIC, 9), client.produce(TOPIC))
        assert not (is_told and client.connection.eof_received())
        client.connection.connection_lost(None)
        await it.go_on()
        assert it.count == 2
        assert not is_left(client)

    story(tmp_path)


@on_a_loop
async def test_no_further_request_of_a_reset_connection_is_executed(it: World) -> None:
    client = WireClient(it.node)
    client.send(client.produce(TOPIC), client.produce(TOPIC))
    client.connection.connection_lost(ConnectionResetError())
    await it.go_on()
    assert it.count == 1
    assert not is_left(client)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_broker_that_stops_continues_no_request(tmp_path: Path, *, is_gone: bool) -> None:
    @on_a_loop
    async def story(it: World) -> None:
        client = WireClient(it.node)
        client.send(client.produce(TOPIC))
        await turns()
        if is_gone:
            client.connection.connection_lost(None)
        client.clients.close()
        if not is_gone:
            client.connection.connection_lost(None)
        assert not is_left(client)
        await it.go_on()
        assert it.count == 0

    story(tmp_path)
