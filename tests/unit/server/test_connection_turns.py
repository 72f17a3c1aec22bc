"""When a connection looks at its next request: after its turn, an answer, a quota's silence."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast
from weakref import ref

import pytest
from tests.unit.server.loops import turns
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.socketless import FakeTransport

from tidelog.env import ManualClock
from tidelog.server.clients import Clients
from tidelog.server.connection import Connection
from tidelog.server.dispatch import answer
from tidelog.server.gate import Gate
from tidelog.server.line import LINE_NS, TURN_REQUESTS
from tidelog.server.node import ConnectionFacts, Node
from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.server.doors import Door

FRAME = b"\0\0\0\4\0\x12\0\0"
SILENCE_MS = 500
TURNS = 5  # of the loop, more than it takes

node = node_fixture(clock=lambda: ManualClock(1_700_000_000_000))


class Asked:
    """A connection whose requests are counted; one of them, by its number, uses up a quota."""

    def __init__(
        self,
        node: Node,
        silenced: int | None = None,
        clients: Clients | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self.count = 0
        self.connection = Connection(node, Clients(node) if clients is None else clients)
        self.connection._answer = self._answer
        self._silenced = silenced
        self._on_answer = on_answer

    def _answer(self, _node: Node, facts: ConnectionFacts, _frame: Buffer) -> list[Buffer]:
        self.count += 1
        self._on_answer()
        if self.count == self._silenced:
            facts.throttle_ms = SILENCE_MS
        return [b"answer"]

    def is_busy(self) -> bool:
        """Whether its silence would be ours."""
        return self.connection.is_busy

    def send(self, frames: int) -> None:
        self.connection.connection_made(cast("asyncio.Transport", FakeTransport()))
        data = FRAME * frames
        room = self.connection.get_buffer(-1)
        room[: len(data)] = data
        room.release()
        self.connection.buffer_updated(len(data))


def test_others_have_their_turn_after_so_many_requests(node: Node) -> None:
    async def run() -> None:
        asked = Asked(node)
        asked.send(TURN_REQUESTS + 2)
        assert asked.count == TURN_REQUESTS
        assert asked.is_busy()
        await turns(TURNS)
        assert asked.count == TURN_REQUESTS + 2
        assert not asked.is_busy()
        asked.connection.connection_lost(None)

    asyncio.run(run())


class Crowd:
    """Connections whose requests take a millisecond each; who was answered, in order."""

    def __init__(self, node: Node, names: str) -> None:
        self._node, self._clients = node, Clients(node)
        self.order = ""
        self._asked = {name: self._come(name) for name in names}

    def _come(self, name: str) -> Asked:
        return Asked(self._node, clients=self._clients, on_answer=lambda: self._answer(name))

    def _answer(self, name: str) -> None:
        self.order += name
        clock = self._node.env.clock
        assert isinstance(clock, ManualClock)
        clock.advance(1)

    def send(self, name: str, frames: int) -> None:
        self._asked[name].send(frames)

    def leave(self) -> None:
        for asked in self._asked.values():
            asked.connection.connection_lost(None)


def test_who_sends_long_requests_in_a_row_has_one_at_a_turn(node: Node) -> None:
    async def run() -> None:
        crowd = Crowd(node, "abc")
        for name in "abc":
            crowd.send(name, 4)
        await turns(TURNS)
        await turns(TURNS)
        assert crowd.order == "abc" * 4
        crowd.leave()

    asyncio.run(run())


def test_who_asks_once_does_not_wait_until_all_others_had_their_turn(node: Node) -> None:
    async def run() -> None:
        crowd = Crowd(node, "abcdefgh")
        for name in "abcdefg":
            crowd.send(name, 3)
        await asyncio.sleep(0)
        crowd.send("h", 1)
        in_line = LINE_NS // 1_000_000
        assert crowd.order == "abcdefg" + "abcdefg"[:in_line] + "h"
        for _ in range(3):
            await turns(TURNS)
        assert crowd.order.replace("h", "") == "abcdefg" * 3
        crowd.leave()

    asyncio.run(run())


@pytest.mark.parametrize("silenced", [1, TURN_REQUESTS - 1, TURN_REQUESTS])
def test_silence_ends_by_its_time_and_by_no_turn(node: Node, silenced: int) -> None:
    async def run() -> None:
        clock = node.env.clock
        assert isinstance(clock, ManualClock)
        asked = Asked(node, silenced)
        asked.send(TURN_REQUESTS + 2)
        await turns(TURNS)
        assert asked.count == silenced
        clock.advance(SILENCE_MS)
        node.timers.run_due()
        await turns(TURNS)
        assert asked.count == TURN_REQUESTS + 2
        asked.connection.connection_lost(None)

    asyncio.run(run())


def test_a_connection_that_goes_takes_no_other_look(node: Node) -> None:
    async def run() -> None:
        asked = Asked(node)
        asked.send(TURN_REQUESTS + 2)
        asked.connection.connection_lost(ConnectionResetError())
        await turns(TURNS)
        assert asked.count == TURN_REQUESTS

    asyncio.run(run())


def test_a_connection_that_has_gone_leaves_memory_at_once(node: Node) -> None:
    """Not when somebody looks for cycles, which is rarely: its buffers are large."""

    async def run() -> "ref[Connection]":
        asked = Asked(node)
        asked.send(2)
        connection = asked.connection
        connection._answer = answer
        del asked
        connection.connection_lost(None)
        return ref(connection)

    with without_collector():
        assert asyncio.run(run())() is None


def test_a_gate_that_is_closed_keeps_nobody(node: Node) -> None:
    late = Late()
    gate = Gate(
        node, ConnectionFacts(1, "here"), cast("Door", None), waited_ms=0, on_late=late.tell
    )
    kept = ref(late)
    del late
    with without_collector():
        assert kept() is not None
        gate.close()
        assert kept() is None


class Late:
    """Is told of who is late."""

    def tell(self, reason: str) -> None:
        """Nothing comes of it."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Only what nobody refers to goes."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
