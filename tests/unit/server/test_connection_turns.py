"""Turns of connections with pipelined requests, throttles, and the memory of lost connections."""

import asyncio
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref

import pytest
from tests.unit.server.wire_client import WireClient, turns
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.socketless import FakeTransport

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.protocol.messages.produce import ProduceResponse
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node, planned
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.server.net.listener_authentication import ListenerAuthentication
from tidelog.server.net.scheduling import TURN_REQUESTS

if TYPE_CHECKING:
    from tidelog.storage.directory.broker_files import Quotas

MORE = 2

node = node_fixture(clock=lambda: ManualClock(1_700_000_000_000), topics={"t": 1})


def answered(client: WireClient) -> int:
    return len(client.answers())


def test_others_have_their_turn_after_so_many_requests(node: Node) -> None:
    async def run() -> None:
        client = WireClient(node)
        client.send(*[client.versions() for _ in range(TURN_REQUESTS + MORE)])
        assert answered(client) == TURN_REQUESTS
        await turns()
        assert answered(client) == MORE
        assert not client.connection.is_busy
        client.connection.connection_lost(None)

    asyncio.run(run())


class SlowClock(ManualClock):
    """Clock that advances 1 ms at each read, so that requests take time."""

    def monotonic_ns(self) -> int:
        self.advance(1)
        return super().monotonic_ns()


class Named(FakeTransport):
    """Transport that records the name of its client at each write."""

    def __init__(self, name: str, order: list[str]) -> None:
        super().__init__()
        self._name = name
        self._order = order

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._order.append(self._name)
        super().writelines(list_of_data)


class Crowd:
    """Connections whose requests take some ms each, and the order of their responses."""

    def __init__(self, folder: Path, names: str) -> None:
        env = Env(clock=SlowClock(1_700_000_000_000))
        self.node = open_node(str(folder), BrokerConfig(), env=env)
        clients = Clients(self.node)
        self._order: list[str] = []
        self._crowd = {
            name: WireClient(self.node, clients, Named(name, self._order)) for name in names
        }

    @property
    def order(self) -> str:
        return "".join(self._order)

    def send(self, name: str, count: int) -> None:
        client = self._crowd[name]
        client.send(*[client.versions() for _ in range(count)])

    def leave(self) -> None:
        for client in self._crowd.values():
            client.connection.connection_lost(None)
        self.node.close()


def test_long_pipelined_requests_are_handled_one_per_turn(tmp_path: Path) -> None:
    async def run() -> None:
        crowd = Crowd(tmp_path, "abc")
        for name in "abc":
            crowd.send(name, 4)
        await turns()
        assert crowd.order == "abc" * 4
        crowd.leave()

    asyncio.run(run())


def test_a_single_request_does_not_wait_for_all_pipelined_ones(tmp_path: Path) -> None:
    async def run() -> None:
        crowd = Crowd(tmp_path, "abcdefgh")
        for name in "abcdefg":
            crowd.send(name, 3)
        await asyncio.sleep(0)
        crowd.send("h", 1)
        assert crowd.order.startswith("abcdefga")
        assert crowd.order.index("h") < 2 * len("abcdefg")
        await turns()
        assert crowd.order.replace("h", "") == "abcdefg" * 3
        crowd.leave()

    asyncio.run(run())


def test_a_full_transport_gets_no_further_writes(node: Node) -> None:
    """No response is written while the transport pauses writing; later all responses are sent."""

    async def run() -> None:
        client = WireClient(node)
        client.connection.pause_writing()
        client.send(client.versions(), client.versions())
        await turns()
        assert client.answers() == []
        client.connection.resume_writing()
        await turns()
        assert len(client.answers()) == 2
        client.connection.connection_lost(None)

    asyncio.run(run())


async def limit_producers(node: Node) -> None:
    """Set a quota: a request of 50,000 bytes throttles its client for 14 hours."""
    quotas: Quotas = {(("client-id", "test"),): {"producer_byte_rate": 1.0}}
    await node.cluster.change(lambda state: state._replace(quotas=quotas))
    node.partitions.get("t", 0)


@pytest.mark.parametrize("silenced", [1, TURN_REQUESTS - 1, TURN_REQUESTS])
def test_silence_ends_by_its_time_and_by_no_turn(node: Node, silenced: int) -> None:
    """Request number `silenced` exceeds a quota; the next request waits until the throttle ends."""

    async def run() -> None:
        clock = node.env.clock
        assert isinstance(clock, ManualClock)
        await limit_producers(node)
        client = WireClient(node)
        frames = [client.versions() for _ in range(silenced - 1)]
        frames.append(client.produce("t", 50_000))
        left = TURN_REQUESTS + MORE - silenced
        frames += [client.versions() for _ in range(left)]
        client.send(*frames)
        await turns()
        *others, silencing = client.answers()
        assert len(others) == silenced - 1
        assert isinstance(silencing, ProduceResponse)
        clock.advance(silencing.throttle_time_ms - 1)
        node.timers.run_due()
        await turns()
        assert answered(client) == 0
        clock.advance(1)
        node.timers.run_due()
        await turns()
        assert answered(client) == left
        client.connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize("more", [0, 1, TURN_REQUESTS + MORE])
def test_a_throttled_connection_closes_once_its_client_sends_no_more(node: Node, more: int) -> None:
    """Without this rule, connections of throttled clients that left would count for hours."""

    async def run() -> None:
        await limit_producers(node)
        client = WireClient(node)
        produce = client.produce("t", 50_000)
        client.send(produce, *[client.versions() for _ in range(more)])
        await turns()
        assert answered(client) == 1
        if client.connection.eof_received():
            await turns()
        else:
            client.transport.close()
        assert client.transport.is_over
        assert answered(client) == more
        client.connection.connection_lost(None)
        assert not len(client.clients)

    asyncio.run(run())


def test_a_throttle_after_the_end_of_the_input_delays_no_request(node: Node) -> None:
    async def run() -> None:
        await limit_producers(node)
        client = WireClient(node)
        client.connection.pause_writing()
        client.send(client.produce("t", 50_000), client.produce("t", 50_000), client.versions())
        assert client.connection.eof_received()
        client.connection.resume_writing()
        await turns()
        assert answered(client) == 3
        assert client.transport.is_over
        client.connection.connection_lost(None)

    asyncio.run(run())


def test_a_throttled_connection_closes_when_it_is_idle(node: Node) -> None:
    """As in Kafka. Otherwise the connection of a vanished client could stay open for days."""

    async def run() -> None:
        clock = node.env.clock
        assert isinstance(clock, ManualClock)
        await limit_producers(node)
        client = WireClient(node)
        client.send(client.produce("t", 50_000))
        await turns()
        clock.advance(node.config.connections_max_idle_ms)
        client.clients.watch_idle()
        before = client.transport.is_over
        clock.advance(1)
        client.clients.watch_idle()
        assert (before, client.transport.is_over) == (False, True)
        client.connection.connection_lost(None)

    asyncio.run(run())


def test_a_lost_connection_reads_no_further_requests(node: Node) -> None:
    async def run() -> None:
        client = WireClient(node)
        client.send(*[client.versions() for _ in range(TURN_REQUESTS + MORE)])
        client.connection.connection_lost(ConnectionResetError())
        await turns()
        assert answered(client) == TURN_REQUESTS

    asyncio.run(run())


def test_the_memory_of_a_lost_connection_is_freed_at_once(node: Node) -> None:
    """A connection's buffers are large, so they must not wait for garbage collection."""

    async def run() -> "ref[Connection]":
        node.partitions.get("t", 0)
        client = WireClient(node)
        for _ in range(3):  # the filled caches must be freed, too
            client.send(client.versions(), client.produce("t"), client.fetch("t"))
        assert answered(client) == 9
        connection = client.connection
        del client
        connection.connection_lost(None)
        return ref(connection)

    with without_collector():
        assert asyncio.run(run())() is None


def test_a_connection_that_never_logged_in_leaves_memory_at_once(tmp_path: Path) -> None:
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"}
    users = tmp_path / "users"
    users.write_text("")
    settings["tidelog.sasl.plain.users.file"] = str(users)
    config = BrokerConfig.parse(settings)[0]
    node = open_node(str(tmp_path / "log"), config)

    async def run() -> "ref[Connection]":
        door = ListenerAuthentication(node, planned(config)[0])
        connection = Connection(node, Clients(node), door)
        connection.connection_made(FakeTransport())
        connection.connection_lost(None)
        return ref(connection)

    with without_collector():
        assert asyncio.run(run())() is None
    node.close()


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable garbage collection, so that only reference counts free objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
