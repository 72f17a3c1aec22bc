"""What becomes of the requests of a client that sends no more, or has gone."""

import asyncio
from collections.abc import Generator
from typing import cast

import pytest
from tests.unit.server.loops import turns
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.socketless import FakeTransport

from tidelog.env import ManualClock
from tidelog.errors import Closed
from tidelog.protocol.messages import FETCH, PRODUCE
from tidelog.server.clients import Clients
from tidelog.server.connection import ENDED_WAIT_MS, Connection
from tidelog.server.dispatch import Later, Pieces
from tidelog.server.node import ConnectionFacts, Node
from tidelog.types import Buffer

TURNS = 5  # of the loop, more than it takes

node = node_fixture(clock=lambda: ManualClock(1_700_000_000_000))


class Encrypted(FakeTransport):
    """One of TLS."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return object() if name == "sslcontext" else super().get_extra_info(name, default)


class Work(Later):
    """An answer that comes when the test says so, and what became of it."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.is_done = False
        self.failure: BaseException | None = None

    def __await__(self) -> Generator[object, None, Pieces | None]:
        return self._work().__await__()

    async def _work(self) -> Pieces | None:
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        self.is_done = True
        return [b"late"]

    def close(self) -> None:
        """Nothing is left behind."""


class Client:
    """Its requests take as long as the test wants."""

    def __init__(self, node: Node, transport: FakeTransport | None = None) -> None:
        self.clients = Clients(node)
        self.transport = transport or FakeTransport()
        self.works: list[Work] = []
        self.connection = Connection(node, self.clients)
        self.connection._answer = self._answer
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    def _answer(self, _node: Node, _facts: ConnectionFacts, _frame: Buffer) -> Later:
        self.works.append(Work())
        return self.works[-1]

    def ask(self, *keys: int) -> None:
        data = b"".join(b"\0\0\0\4" + key.to_bytes(2, "big") + b"\0\0" for key in keys)
        room = self.connection.get_buffer(-1)
        room[: len(data)] = data
        room.release()
        self.connection.buffer_updated(len(data))

    async def work(self) -> None:
        """Let what is at work come to its end, and the next begin."""
        for each in self.works:
            each.go_on.set()
        await turns(TURNS)


def test_who_sends_no_more_has_all_of_its_answers_before_it_closes(node: Node) -> None:
    async def run() -> None:
        client = Client(node)
        client.ask(FETCH.key)
        await turns(TURNS)
        assert client.connection.eof_received()
        was_over = client.transport.is_over
        await client.work()
        assert bytes(client.transport.sent) == b"late"
        assert (was_over, client.transport.is_over) == (False, True)
        client.connection.connection_lost(None)
        assert not len(client.clients)

    asyncio.run(run())


def test_who_sends_no_more_and_waits_for_nothing_is_closed(node: Node) -> None:
    async def run() -> None:
        client = Client(node)
        assert not client.connection.eof_received()
        client.connection.connection_lost(None)
        assert not len(client.clients)

    asyncio.run(run())


@pytest.mark.parametrize(("key", "is_over"), [(FETCH.key, True), (PRODUCE.key, False)])
def test_who_sends_no_more_is_not_told_for_ever_what_comes(
    node: Node, key: int, *, is_over: bool
) -> None:
    async def run() -> None:
        client, clock = Client(node), node.env.clock
        assert isinstance(clock, ManualClock)
        client.ask(key)
        client.connection.eof_received()
        clock.advance(ENDED_WAIT_MS - 1)
        node.timers.run_due()
        was_over = client.transport.is_over
        clock.advance(2)
        node.timers.run_due()
        assert (was_over, client.transport.is_over) == (False, is_over)
        client.connection.connection_lost(None)
        await client.work()
        assert not len(client.clients)

    asyncio.run(run())


@pytest.mark.parametrize(
    "failure", [Closed("closed"), RuntimeError("a fault"), asyncio.CancelledError()], ids=repr
)
@pytest.mark.parametrize("is_gone", [True, False])
def test_what_fails_leaves_nothing_of_its_client(
    node: Node, failure: BaseException, *, is_gone: bool
) -> None:
    async def run() -> None:
        client = Client(node)
        client.ask(PRODUCE.key)
        await turns(TURNS)
        client.works[0].failure = failure
        if is_gone:
            client.connection.connection_lost(ConnectionResetError())
        await client.work()
        assert client.transport.is_over is not is_gone
        assert not len(client.clients)
        assert not client.clients.in_flight.used_bytes

    asyncio.run(run())


def test_what_came_is_worked_on_where_an_answer_finds_nobody(node: Node) -> None:
    async def run() -> None:
        client = Client(node)
        client.ask(PRODUCE.key, FETCH.key, PRODUCE.key)
        client.connection._cut_off(BrokenPipeError())
        assert client.transport.is_over
        client.connection.connection_lost(None)
        for _ in range(2):
            await client.work()
        assert [each.is_done for each in client.works] == [True, False, True]
        assert not len(client.clients)

    asyncio.run(run())


def test_who_is_stopped_on_the_way_in_is_not_let_in(node: Node) -> None:
    connection, transport = Connection(node, Clients(node)), FakeTransport()
    connection.come_from("127.0.0.1")
    connection.stop()
    connection.connection_made(cast("asyncio.Transport", transport))
    assert transport.is_over


@pytest.mark.parametrize("way", ["gone", "sent away"])
def test_what_changes_something_is_carried_out_and_counted_until_then(node: Node, way: str) -> None:
    async def run() -> None:
        client = Client(node)
        client.ask(PRODUCE.key)
        if way == "sent away":
            client.connection.close()
        client.connection.connection_lost(ConnectionResetError())
        await turns(TURNS)
        assert len(client.clients) == 1
        assert client.clients.in_flight.used_bytes
        await client.work()
        assert client.works[0].is_done
        assert not len(client.clients)
        assert not client.clients.in_flight.used_bytes
        assert not client.transport.sent

    asyncio.run(run())


def test_what_only_its_client_wants_is_given_up_with_it(node: Node) -> None:
    async def run() -> None:
        client = Client(node)
        client.ask(FETCH.key)
        client.connection.connection_lost(ConnectionResetError())
        assert not len(client.clients)
        assert not client.clients.in_flight.used_bytes
        await client.work()
        assert not client.works[0].is_done

    asyncio.run(run())


@pytest.mark.parametrize("is_told", [True, False])
def test_all_that_came_before_the_end_of_an_encrypted_stream_is_worked_on(
    node: Node, *, is_told: bool
) -> None:
    async def run() -> None:
        client = Client(node, Encrypted())
        client.ask(PRODUCE.key, FETCH.key, PRODUCE.key)
        assert not (is_told and client.connection.eof_received())
        client.connection.connection_lost(None)
        await client.work()
        await client.work()
        assert [each.is_done for each in client.works] == [True, False, True]
        assert not len(client.clients)

    asyncio.run(run())


def test_who_is_reset_has_nothing_more_begun(node: Node) -> None:
    async def run() -> None:
        client = Client(node)
        client.ask(PRODUCE.key, PRODUCE.key)
        client.connection.connection_lost(ConnectionResetError())
        await client.work()
        assert [each.is_done for each in client.works] == [True]
        assert not len(client.clients)

    asyncio.run(run())


def test_a_broker_that_stops_carries_nothing_on(node: Node) -> None:
    async def run() -> None:
        client = Client(node)
        client.ask(PRODUCE.key)
        client.clients.close()
        client.connection.connection_lost(None)
        assert not len(client.clients)
        await client.work()
        assert not client.works[0].is_done

    asyncio.run(run())


def test_a_broker_that_stops_gives_up_what_it_did_for_who_has_gone(node: Node) -> None:
    async def run() -> None:
        client = Client(node)
        client.ask(PRODUCE.key)
        client.connection.connection_lost(None)
        client.clients.close()
        assert not len(client.clients)
        await client.work()
        assert not client.works[0].is_done

    asyncio.run(run())
