"""If the system refuses some connections or addresses, the others are served; no socket leaks."""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.worlds.waiting import turn_until

from tidelog.config import BrokerConfig
from tidelog.server.broker import open_node
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.server.net.listener import Listener, listening_sockets

HERE = ("127.0.0.1", 0)
ELSEWHERE = ("192.0.2.1", 0)  # TEST-NET-1 of RFC 5737: no machine has this address


class Troubled(socket.socket):
    """Listening socket whose first calls of `accept` fail with these error codes."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.errors = [OSError(code, os.strerror(code)) for code in codes]
        self.setblocking(False)
        self.bind(HERE)
        self.listen()

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            raise self.errors.pop(0)
        return super().accept()


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EPROTO])
def test_a_connection_is_accepted_after_a_failed_one(tmp_path: Path, code: int) -> None:
    async def story() -> None:
        node = open_node(str(tmp_path), BrokerConfig.parse({})[0])
        clients, troubled = Clients(node), Troubled(code)
        listener = Listener([troubled], node, lambda: Connection(node, clients))
        with socket.create_connection(troubled.getsockname()):
            await turn_until(lambda: len(clients) == 1)
        assert not troubled.errors
        listener.close()
        clients.close()
        await listener.wait_closed()
        node.close()

    asyncio.run(story())


async def opened(
    monkeypatch: pytest.MonkeyPatch, places: Sequence[tuple[int, tuple[str, int]]]
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Listen on a host with these addresses; return the listening and all bound sockets.

    If listening fails, check that all bound sockets are closed.
    """
    bound: list[socket.socket] = []

    async def resolve(*_arguments: object, **_more: object) -> list[tuple[object, ...]]:
        return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in places]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    try:
        return await listening_sockets("some.host", 0, 5, bound.append), bound
    except OSError:
        assert all(each.fileno() < 0 for each in bound)
        raise


def test_an_address_that_the_machine_lacks_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        places = [(socket.AF_INET, ELSEWHERE), (999, HERE), (socket.AF_INET, HERE)]
        sockets, bound = await opened(monkeypatch, places)
        assert sockets == bound
        assert [each.getsockname()[0] for each in sockets] == ["127.0.0.1"]
        sockets[0].close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("family", "reason"),
    [(socket.AF_INET, "192.0.2.1: Cannot assign"), (999, "no IPv4 or IPv6 address")],
)
def test_a_host_without_an_address_of_the_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, family: int, reason: str
) -> None:
    async def story() -> None:
        with pytest.raises(OSError, match=reason):
            await opened(monkeypatch, [(family, ELSEWHERE)])

    asyncio.run(story())


def test_no_address_stays_open_when_another_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        with socket.create_server(HERE) as other:
            taken = other.getsockname()
            with pytest.raises(OSError, match="Address already in use"):
                await opened(monkeypatch, [(socket.AF_INET, HERE), (socket.AF_INET, taken)])

    asyncio.run(story())
