"""Answers that another one's request brings: they go out behind it, in its turn of the loop."""

import asyncio
from collections.abc import Callable
from typing import cast

from tests.unit.server.loops import turns
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.socketless import FakeTransport

from tidelog.server.arrivals import Arrivals
from tidelog.server.clients import Clients
from tidelog.server.connection import Connection
from tidelog.server.dispatch import Pieces, Promised
from tidelog.server.node import ConnectionFacts, Node
from tidelog.types import Buffer

FRAME = b"\0\0\0\4\0\x12\0\0"
TURNS = 5  # of the loop, more than it takes

node = node_fixture()


class Promise(Promised):
    """An answer that the test brings."""

    def __init__(self) -> None:
        self.tell: Callable[[Callable[[], Pieces]], None]

    def when_there(self, tell: Callable[[Callable[[], Pieces]], None]) -> None:
        self.tell = tell


class One:
    """A client whose requests are answered with what the test says."""

    def __init__(self, node: Node, clients: Clients, said: Callable[[], object]) -> None:
        self.transport = FakeTransport()
        self.connection = Connection(node, clients)
        self.connection._answer = self._answer  # type: ignore[assignment]  # any outcome
        self.connection.connection_made(cast("asyncio.Transport", self.transport))
        self._said = said

    def _answer(self, _node: Node, _facts: ConnectionFacts, _frame: Buffer) -> object:
        return self._said()

    def ask(self) -> None:
        room = self.connection.get_buffer(-1)
        room[: len(FRAME)] = FRAME
        room.release()
        self.connection.buffer_updated(len(FRAME))

    @property
    def sent(self) -> bytes:
        return bytes(self.transport.sent)


def test_an_answer_goes_out_behind_the_request_that_brings_it(node: Node) -> None:
    async def run() -> None:
        clients, promise = Clients(node), Promise()
        waits = One(node, clients, lambda: promise)
        sent_before = list[bytes]()

        def bring() -> list[Buffer]:
            promise.tell(lambda: [b"late"])
            sent_before.append(waits.sent)
            return [b"now"]

        brings = One(node, clients, bring)
        waits.ask()
        brings.ask()
        assert sent_before == [b""]
        assert (brings.sent, waits.sent) == (b"now", b"late")
        waits.connection.connection_lost(None)
        brings.connection.connection_lost(None)

    asyncio.run(run())


def test_what_no_request_brings_goes_out_in_the_next_turn(node: Node) -> None:
    async def run() -> None:
        promise = Promise()
        waits = One(node, Clients(node), lambda: promise)
        waits.ask()
        promise.tell(lambda: [b"late"])
        sent = [waits.sent]
        await turns(TURNS)
        assert [*sent, waits.sent] == [b"", b"late"]
        waits.connection.connection_lost(None)

    asyncio.run(run())


def test_an_answer_that_cannot_be_made_ends_its_own_connection_alone(node: Node) -> None:
    async def run() -> None:
        clients, promise = Clients(node), Promise()
        waits = One(node, clients, lambda: promise)

        def fail() -> list[Buffer]:
            raise ValueError("no answer")

        def bring() -> list[Buffer]:
            promise.tell(fail)
            return [b"now"]

        brings = One(node, clients, bring)
        waits.ask()
        brings.ask()
        assert (brings.sent, brings.transport.is_over) == (b"now", False)
        assert (waits.sent, waits.transport.is_over) == (b"", True)

    asyncio.run(run())


def test_answers_go_in_order_and_those_they_bring_behind_them() -> None:
    async def run() -> list[str]:
        arrivals, sent = Arrivals(), list[str]()

        def first() -> None:
            arrivals.add(lambda: sent.append("third"))
            sent.append("first")

        arrivals.add(first)
        arrivals.add(lambda: sent.append("second"))
        arrivals.send()
        await turns(TURNS)
        return sent

    assert asyncio.run(run()) == ["first", "second", "third"]
