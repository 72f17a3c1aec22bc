"""Responses of many active clients are sent together; none is late, lost or out of order."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.socketless import FakeTransport

from tidelog.env import ManualClock
from tidelog.server.api.node import Node
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.server.net.scheduling import AT_ONCE, CROWD, HOLD_NS, BusyPoll, WriteCoalescer

node = node_fixture(clock=ManualClock)


class Sent:
    """The sending side of a connection; sends are recorded in a shared list."""

    def __init__(self, name: str, out: list[str], *, breaks: bool = False) -> None:
        self.name, self.out, self.breaks = name, out, breaks

    def flush(self) -> bool:
        if self.breaks:
            raise RuntimeError("planted")
        self.out.append(self.name)
        return True

    def fail(self, error: Exception) -> None:
        self.out.append(f"{self.name}: {error}")
        raise RuntimeError("planted there, too")


class Nothing(Sent):
    """A connection that has no response, or whose response is not complete yet."""

    def flush(self) -> bool:
        return False


def answer(turn: WriteCoalescer, sent: Sent, now_ns: int = 0) -> bool:
    """Respond as a connection does; return whether the response was held."""
    holds = turn.holds or turn.tries()
    if holds:
        turn.hold(sent, now_ns)
    return holds


async def crowd(turn: WriteCoalescer) -> None:
    """Respond to so many clients that the coalescer holds responses."""
    for _ in range(AT_ONCE + CROWD):
        answer(turn, Sent("crowd", []))
    await asyncio.sleep(0)
    assert turn.holds


def played(story: Callable[[WriteCoalescer, list[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        await story(WriteCoalescer(BusyPoll(0, lambda: 0)), [])

    asyncio.run(run())


def test_a_few_responses_are_sent_at_once_except_for_some() -> None:
    async def story(turn: WriteCoalescer, out: list[str]) -> None:
        held = []
        for number in range(3 * (AT_ONCE + 1)):
            if answer(turn, Sent("one", out)):
                held.append(number)
            await asyncio.sleep(0)
        assert held == [(AT_ONCE + 1) * turns - 1 for turns in (1, 2, 3)]
        assert len(out) == len(held)

    played(story)


def test_responses_of_many_clients_wait_for_the_end_of_the_iteration() -> None:
    async def story(turn: WriteCoalescer, out: list[str]) -> None:
        await crowd(turn)
        for _ in range(3):
            out.clear()
            for name in "abcd":
                assert answer(turn, Sent(name, out))
            assert out == []
            await asyncio.sleep(0)
            assert out == list("abcd")

    played(story)


def test_a_few_remaining_clients_get_responses_at_once_again() -> None:
    async def story(turn: WriteCoalescer, out: list[str]) -> None:
        await crowd(turn)
        for _ in range(CROWD - 1):
            answer(turn, Sent("few", out))
        await asyncio.sleep(0)
        assert out == ["few"] * (CROWD - 1)
        held = [answer(turn, Sent("one", out)) for _ in range(AT_ONCE + 1)]
        assert held == [False] * AT_ONCE + [True]

    played(story)


def test_held_responses_are_due_after_a_time() -> None:
    async def story(turn: WriteCoalescer, out: list[str]) -> None:
        await crowd(turn)
        never = turn.due_ns
        assert never > 1 << 62
        answer(turn, Sent("a", out), now_ns=5)
        answer(turn, Sent("b", out), now_ns=50)
        assert turn.due_ns == 5 + HOLD_NS
        turn.send()
        assert out == ["a", "b"]
        assert turn.due_ns == never
        answer(turn, Sent("c", out), now_ns=70)
        assert turn.due_ns == 70 + HOLD_NS
        answer(turn, Sent("d", out))
        await asyncio.sleep(0)
        assert out == ["a", "b", "c", "d"]
        assert turn.due_ns == never
        assert turn.holds  # `holds` also counts responses sent earlier in the iteration

    played(story)


def test_requests_without_a_response_are_not_counted() -> None:
    async def story(turn: WriteCoalescer, out: list[str]) -> None:
        await crowd(turn)
        for _ in range(2 * CROWD):
            answer(turn, Nothing("none", out))
        await asyncio.sleep(0)
        assert not turn.holds

    played(story)


def test_responses_are_sent_at_once_while_the_loop_polls() -> None:
    async def run() -> None:
        poll = BusyPoll(200, lambda: 0)
        turn = WriteCoalescer(poll)
        poll.is_polling = True
        assert not any(answer(turn, Sent("one", [])) for _ in range(3 * AT_ONCE))
        poll.is_polling = False
        assert answer(turn, Sent("one", []))

    asyncio.run(run())


def test_a_failed_send_closes_the_connection_and_affects_no_other() -> None:
    async def story(turn: WriteCoalescer, out: list[str]) -> None:
        await crowd(turn)
        for sent in (Sent("a", out), Sent("b", out, breaks=True), Sent("c", out)):
            answer(turn, sent)
        await asyncio.sleep(0)
        assert out == ["a", "b: planted", "c"]

    played(story)


# -- connections -----------------------------------------------------------------------------------


def request(correlation_id: int) -> bytes:
    """Return an ApiVersions request of version 0, without a client id."""
    return b"\0\0\0\x0a\0\x12\0\0" + correlation_id.to_bytes(4, "big") + b"\xff\xff"


BAD = b"\0\0\0\x02\0\x12"


def ids(sent: bytes | bytearray) -> list[int]:
    """Return the correlation ids of the responses, in order."""
    found, at = [], 0
    while at < len(sent):
        found.append(int.from_bytes(sent[at + 4 : at + 8], "big"))
        at += 4 + int.from_bytes(sent[at : at + 4], "big")
    return found


class Wires:
    """Connections of a node that holds each response until the end of the loop iteration."""

    def __init__(self, node: Node, count: int = 4) -> None:
        self.clients = Clients(node)
        self.clients.coalescer.holds = True
        self.transports = [FakeTransport() for _ in range(count)]
        self.connections = [Connection(node, self.clients) for _ in range(count)]
        for connection, transport in zip(self.connections, self.transports, strict=True):
            connection.connection_made(cast("asyncio.Transport", transport))

    def receive(self, number: int, data: bytes) -> None:
        room = self.connections[number].get_buffer(-1)
        room[: len(data)] = data
        room.release()
        self.connections[number].buffer_updated(len(data))

    def sent(self) -> list[list[int]]:
        return [ids(transport.sent) for transport in self.transports]


def told(node: Node, story: Callable[[Wires], Awaitable[None]]) -> None:
    async def run() -> None:
        wires = Wires(node)
        await story(wires)
        for connection in wires.connections:
            connection.connection_lost(None)

    asyncio.run(run())


def test_responses_are_sent_at_the_end_of_the_loop_iteration(node: Node) -> None:
    async def story(wires: Wires) -> None:
        for number in range(4):
            wires.receive(number, request(number))
        assert wires.sent() == [[], [], [], []]
        await asyncio.sleep(0)
        assert wires.sent() == [[0], [1], [2], [3]]

    told(node, story)


def test_responses_of_one_connection_keep_their_order(node: Node) -> None:
    async def story(wires: Wires) -> None:
        wires.receive(0, request(1))
        assert wires.sent()[0] == []
        wires.receive(0, request(2) + request(3))
        assert wires.sent()[0] == [1, 2, 3]
        wires.receive(0, request(4))
        assert wires.sent()[0] == [1, 2, 3]
        await asyncio.sleep(0)
        assert wires.sent()[0] == [1, 2, 3, 4]

    told(node, story)


def test_held_responses_are_sent_before_an_invalid_request_closes_the_connection(
    node: Node,
) -> None:
    async def story(wires: Wires) -> None:
        wires.receive(0, request(1))
        wires.receive(1, request(2))
        assert wires.sent()[:2] == [[], []]
        wires.receive(0, BAD)
        assert wires.transports[0].is_over
        assert wires.sent()[0] == [1]
        await asyncio.sleep(0)
        assert wires.sent()[:2] == [[1], [2]]

    told(node, story)


def test_a_client_that_disconnected_meanwhile_is_sent_nothing(node: Node) -> None:
    async def story(wires: Wires) -> None:
        wires.receive(0, request(1))
        wires.receive(1, request(2))
        wires.connections[0].connection_lost(None)
        await asyncio.sleep(0)
        assert wires.sent()[:2] == [[], [2]]

    told(node, story)


def test_the_next_response_sends_held_responses_that_are_due(node: Node) -> None:
    async def story(wires: Wires) -> None:
        wires.receive(0, request(1))
        clock = cast("ManualClock", node.env.clock)
        clock.advance(HOLD_NS // 1_000_000)
        wires.receive(1, request(2))
        assert wires.sent()[:2] == [[], []]
        clock.advance(1)
        # Pipelined requests don't count as active clients. When the pipelined requests get their
        # responses, held responses that are due are sent, too.
        wires.receive(2, request(3) + request(4))
        assert wires.sent()[:3] == [[1], [2], [3, 4]]

    told(node, story)


def test_closing_all_connections_sends_held_responses(node: Node) -> None:
    async def story(wires: Wires) -> None:
        wires.receive(0, request(1))
        wires.clients.close()
        assert wires.sent()[0] == [1]
        assert wires.transports[0].is_over

    told(node, story)
