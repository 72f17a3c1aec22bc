"""If a request completes responses of other clients, its own response is sent before them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import cast

from tests.unit.server.wire_client import WireClient, turns
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.socketless import FakeTransport
from tests.worlds.waiting import Patience, turn_until

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from tidelog.protocol.messages.classic_groups import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from tidelog.protocol.messages.shared import GroupProtocol
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.server.runtime.reply import Reply
from tidelog.types import Buffer

node = node_fixture()

FRAME = b"\0\0\0\4\0\x12\0\0"
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
GROUP = "readers"
REBALANCE_MS = 20_000


class Noted(FakeTransport):
    """Transport that records its client's initial at each write."""

    def __init__(self, name: str, sent: list[str]) -> None:
        super().__init__()
        self._name = name
        self._sent = sent

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self._sent.append(self._name)
        super().writelines(list_of_data)


class World:
    """A broker with a group.

    Attributes:
        sent: Initials of the clients that got a response, in order.
    """

    def __init__(self, node: Node, clock: ManualClock) -> None:
        self.node = node
        self.clock = clock
        self.sent: list[str] = []
        self._clients = Clients(node)

    def come(self, name: str) -> WireClient:
        """Connect a client that sends JoinGroup."""
        client = WireClient(self.node, self._clients, Noted(name[0], self.sent), name)
        protocols = [GroupProtocol(name="range", metadata=b"")]
        message = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=6000,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        client.send(client.frame(JOIN_GROUP, 3, message))
        return client

    async def stable(self, name: str) -> tuple[WireClient, str]:
        """Make a client the only member of a stable group; return client and member id."""
        client = self.come(name)
        joined = await self.answer(client)
        assert isinstance(joined, JoinGroupResponse)
        message = SyncGroupRequest(
            group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
        )
        client.send(client.frame(SYNC_GROUP, 2, message))
        await self.answer(client)
        self.sent.clear()
        return client, joined.member_id

    async def answer(self, client: WireClient) -> object:
        """Return the next response of a client."""
        patience = Patience()
        while not (found := client.answers()):
            patience.check()
            self.node.timers.run_due()
            await asyncio.sleep(0)
        (answer,) = found
        return answer

    def leave(self, client: WireClient, member_id: str) -> None:
        message = LeaveGroupRequest(group_id=GROUP, member_id=member_id)
        client.send(client.frame(LEAVE_GROUP, 2, message))


def on_a_loop(test: Callable[[World], Awaitable[None]]) -> Callable[[Path], None]:
    """Run a test on its own broker and event loop."""

    def run(tmp_path: Path) -> None:
        async def whole() -> None:
            clock = ManualClock(1_700_000_000_000)
            config = BrokerConfig.parse(SETTINGS)[0]
            node = open_node(str(tmp_path), config, env=Env(clock=clock))
            try:
                assert await node.groups.topic.ensure_topic() is ErrorCode.NONE
                await test(World(node, clock))
            finally:
                node.close()

        asyncio.run(whole())

    return run


@on_a_loop
async def test_responses_are_sent_in_order_after_the_request_that_caused_them(it: World) -> None:
    first, member_id = await it.stable("a")
    others = [it.come(name) for name in "bc"]
    await turns()
    assert it.sent == []
    it.leave(first, member_id)
    await turn_until(lambda: len(it.sent) >= 3)
    assert it.sent == ["a", "b", "c"]
    (left,) = first.answers()
    assert isinstance(left, LeaveGroupResponse)
    generations = set()
    for other in others:
        (joined,) = other.answers()
        assert isinstance(joined, JoinGroupResponse)
        generations.add(joined.generation_id)
    assert generations == {2}


@on_a_loop
async def test_a_response_completed_by_a_timer_is_sent_in_the_next_iteration(it: World) -> None:
    await it.stable("a")  # this member sends no further requests
    waits = it.come("b")
    it.clock.advance(REBALANCE_MS)
    it.node.timers.run_due()
    await turns()
    (joined,) = waits.answers()
    assert isinstance(joined, JoinGroupResponse)
    assert joined.error_code == 0
    assert joined.leader == joined.member_id


@on_a_loop
async def test_a_long_client_id_prevents_no_response(it: World) -> None:
    first, member_id = await it.stable("a")
    others = [it.come("b"), it.come("c"), it.come("d" * 32_760)]
    it.leave(first, member_id)
    assert isinstance(await it.answer(first), LeaveGroupResponse)
    for client in others:
        assert isinstance(await it.answer(client), JoinGroupResponse)
    assert not any(client.transport.is_over for client in (first, *others))


class One:
    """A client whose requests get the result that the test supplies."""

    def __init__(self, node: Node, clients: Clients, said: Callable[[], object]) -> None:
        self.transport = FakeTransport()
        self.connection = Connection(node, clients)
        self.connection._answer = lambda *_: said()  # type: ignore[assignment]  # any outcome
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    def ask(self) -> None:
        room = self.connection.get_buffer(-1)
        room[: len(FRAME)] = FRAME
        room.release()
        self.connection.buffer_updated(len(FRAME))


def test_a_failing_response_ends_only_its_own_connection(node: Node) -> None:
    async def run() -> None:
        clients, reply = Clients(node), Reply[None]()

        def fail(_: None) -> list[Buffer]:
            raise ValueError("no answer")

        def bring() -> list[Buffer]:
            reply.complete(None)
            return [b"now"]

        waits = One(node, clients, lambda: reply.map(fail))

        brings = One(node, clients, bring)
        waits.ask()
        brings.ask()
        assert (bytes(brings.transport.sent), brings.transport.is_over) == (b"now", False)
        assert (bytes(waits.transport.sent), waits.transport.is_over) == (b"", True)

    asyncio.run(run())
