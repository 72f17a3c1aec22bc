"""Acknowledgements in a fetch are applied even if the member disconnects after the request."""

from pathlib import Path

import pytest
from tests.unit.server.loops import on_a_loop, turns
from tests.unit.server.shares.share_worlds import GROUP, TOPIC, World, acquired, said, world
from tests.unit.server.test_hung_up import Encrypted
from tests.worlds.brokers.socketless import FakeTransport
from tests.worlds.waiting import turn_until

from tidelog.protocol.messages import FETCH, SHARE_FETCH
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.share_fetch import ShareFetchRequest
from tidelog.protocol.requests import ClientConnection
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.server.partitions.fetch_sessions import LAST_EPOCH
from tidelog.server.shares.record_runs import AckType
from tidelog.server.shares.share_partitions import SessionKey

MEMBER = "one"
KEY = SessionKey(GROUP, MEMBER)
WAIT_MS = 60_000
HELD = said(0, 2, AckType.ACCEPT)


class Client:
    """A member with one connection, which acquires records."""

    def __init__(self, it: World, *, encrypted: bool = False) -> None:
        self._it = it
        self.clients = Clients(it.node)
        self.transport = Encrypted() if encrypted else FakeTransport()
        self.connection = Connection(it.node, self.clients)
        self.connection.connection_made(self.transport)
        self._requests = ClientConnection("test")

    def fetch(self, epoch: int, *, wait_ms: int = WAIT_MS, says: bool = True) -> bytes:
        request = ShareFetchRequest(
            group_id=GROUP,
            member_id=MEMBER,
            share_session_epoch=epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_records=1000,
            batch_size=500,
            topics=self._it.topics([0], [HELD] if says else ()),
        )
        return b"".join(self._requests.request(SHARE_FETCH, 2, request))

    def other(self) -> bytes:
        """Return a Fetch request that waits for records that never arrive."""
        wanted = FetchPartition(partition=2, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, topics=topics, rack_id="")
        return b"".join(self._requests.request(FETCH, 12, request))

    def send(self, *requests: bytes) -> None:
        data = b"".join(requests)
        room = self.connection.get_buffer(-1)
        room[: len(data)] = data
        room.release()
        self.connection.buffer_updated(len(data))

    async def borrow(self) -> None:
        """Acquire all available records."""
        self._it.share()
        self._it.produce(5)
        self.send(self.fetch(0, says=False))
        await turn_until(lambda: bool(self.transport.sent))

    async def is_gone(self) -> None:
        """Wait until the connection and its session are gone."""
        await turn_until(lambda: not len(self.clients))
        assert self._it.node.shares.sessions.find(KEY) is None
        await turns()


async def left(it: World) -> list[tuple[int, int, int]]:
    """Fetch as another member, and return the ranges that this member acquires."""
    return acquired(await it.member().fetch(0))


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("failure", [None, ConnectionResetError()], ids=repr)
@pytest.mark.parametrize("is_late", [True, False])
def test_acknowledgements_sent_before_a_disconnect_are_applied(
    tmp_path: Path, failure: Exception | None, *, encrypted: bool, is_late: bool
) -> None:
    @on_a_loop
    async def story(path: Path) -> None:
        async with world(path) as it:
            client = Client(it, encrypted=encrypted)
            await client.borrow()
            client.send(client.fetch(1))
            if is_late:
                await turns()
            client.connection.connection_lost(failure)
            await client.is_gone()
            assert await left(it) == [(3, 4, 2)]
            assert it.waiting_count() == 0

    story(tmp_path)


@on_a_loop
async def test_acknowledgements_pipelined_after_another_request_are_applied(path: Path) -> None:
    async with world(path) as it:
        client = Client(it, encrypted=True)
        await client.borrow()
        client.send(client.other(), client.fetch(1))
        client.connection.connection_lost(None)
        await client.is_gone()
        assert await left(it) == [(3, 4, 2)]


@on_a_loop
async def test_a_session_ended_by_another_connection_ends_even_if_that_one_closes(
    path: Path,
) -> None:
    async with world(path) as it:
        owner, client = Client(it), Client(it, encrypted=True)
        await owner.borrow()
        client.send(client.fetch(LAST_EPOCH))
        client.connection.connection_lost(ConnectionResetError())
        await client.is_gone()
        assert await left(it) == [(3, 4, 2)]
