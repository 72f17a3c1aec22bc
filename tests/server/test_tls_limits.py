"""Connections to a TLS listener are counted when accepted, even if the handshake never ends."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final

import pytest
from tests.server.test_tls import World
from tests.worlds.waiting import PATIENCE_S, turn_until

from tidelog.config import BrokerConfig
from tidelog.server.broker import Server, open_node, planned
from tidelog.server.net import listener
from tidelog.server.net import listener as tls_listener
from tidelog.server.runtime.loop import run

FRAME: Final = b"\0\x12\0\0\0\0\0\1\xff\xff"  # ApiVersions 0
LOOPS: Final = pytest.mark.parametrize("runs", [asyncio.run, run], ids=["asyncio", "installed"])
Runs = Callable[[Coroutine[object, object, None]], None]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Door:
    """A broker with one TLS listener, and the TLS context of its clients."""

    def __init__(self, server: Server, port: int, context: ssl.SSLContext) -> None:
        self.server = server
        self.port = port
        self.context = context

    async def tcp(self) -> Streams:
        """Return a connection without TLS."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def is_let_in(self) -> bool:
        """Whether the first request of a TLS client gets a response."""
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=self.context, server_hostname="127.0.0.1"
            )
        except (ssl.SSLError, ConnectionError):
            return False
        try:
            writer.write(len(FRAME).to_bytes(4, "big") + FRAME)
            return bool(await reader.read(4))
        except (ssl.SSLError, ConnectionError):
            return False
        finally:
            await leave(writer)

    async def until_there_are(self, count: int) -> None:
        """Wait until the broker counts `count` clients."""
        await turn_until(lambda: len(self.server.clients) == count)


@asynccontextmanager
async def door(tmp_path: Path, **settings: str) -> AsyncIterator[Door]:
    world = World(tmp_path)
    named = {name.replace("_", "."): text for name, text in settings.items()}
    settings_of_world = world.settings | {"listeners": "SSL://127.0.0.1:0"} | named
    config = BrokerConfig.parse(settings_of_world)[0]
    server = Server(open_node(str(tmp_path / "log"), config))
    ports = await server.open_listeners(planned(config))
    context = world.key("SSL").context()
    assert context is not None
    try:
        yield Door(server, ports["SSL"], context)
    finally:
        await server.stop()


async def is_closed(streams: Streams) -> bool:
    """Whether the broker closes the connection."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return not await streams[0].read()
    except ConnectionError:
        return True
    finally:
        await leave(streams[1])


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@LOOPS
@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
def test_an_unfinished_handshake_counts_as_a_connection(
    tmp_path: Path, limit: str, runs: Runs
) -> None:
    async def check() -> None:
        async with door(tmp_path, **{limit: "2"}) as it:
            silent = [await it.tcp() for _ in range(2)]
            await it.until_there_are(2)
            assert await is_closed(await it.tcp())
            assert not await it.is_let_in()
            assert it.server.node.metrics.connections_refused == 2
            await leave(silent.pop()[1])  # a closed connection frees its slot
            await it.until_there_are(1)
            assert await it.is_let_in()
            await it.until_there_are(1)
            silent[0][1].write(b"no TLS at all " * 100)
            assert await is_closed(silent[0])
            await it.until_there_are(0)

    runs(check())


@LOOPS
def test_a_handshake_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    monkeypatch.setattr(tls_listener, "TLS_TIMEOUT_S", 0.05)

    async def check() -> None:
        async with door(tmp_path) as it:
            assert await is_closed(await it.tcp())
            await it.until_there_are(0)

    runs(check())


@LOOPS
def test_a_broker_stops_while_handshakes_are_open(tmp_path: Path, runs: Runs) -> None:
    async def check() -> None:
        async with door(tmp_path) as it:
            silent = [await it.tcp() for _ in range(3)]
            await it.until_there_are(3)
        for each in silent:
            assert await is_closed(each)
        assert len(it.server.clients) == 0

    runs(check())


class FullSystem(socket.socket):
    """A listening socket whose `accept` raises the errors in `failures` first."""

    failures: ClassVar[list[int]] = []

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            raise OSError(self.failures.pop(0), "as accept says")
        return super().accept()


@LOOPS
def test_clients_wait_while_the_system_has_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    monkeypatch.setattr(listener, "PAUSE_MS", 1)
    failures = [errno.EMFILE, errno.ECONNABORTED, errno.EPROTO, errno.EINVAL, errno.ENFILE]
    monkeypatch.setattr(FullSystem, "failures", failures)
    made = listener._listening

    def full(
        family: int,
        address: tuple[object, ...],
        backlog: int,
        prepare: Callable[[socket.socket], None],
    ) -> list[socket.socket]:
        (sock,) = made(family, address, backlog, prepare)
        return [FullSystem(family, socket.SOCK_STREAM, fileno=sock.detach())]

    monkeypatch.setattr(listener, "_listening", full)

    async def check() -> None:
        async with door(tmp_path) as it:
            assert await it.is_let_in()
            assert not failures

    runs(check())


def test_addresses_of_a_kind_that_the_system_does_not_know_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = socket.socket

    def without_ipv6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "not supported")
        return known(family, kind)

    async def check() -> None:
        loop = asyncio.get_running_loop()
        kind = (socket.SOCK_STREAM, 6, "")
        found = [
            (socket.AF_INET6, *kind, ("::1", 0, 0, 0)),
            (socket.AF_INET, *kind, ("127.0.0.1", 0)),
        ]

        async def told(*_: object, **__: object) -> list[object]:
            return list(found)

        monkeypatch.setattr(loop, "getaddrinfo", told)
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", without_ipv6)
            (made,) = await listener.listening_sockets("localhost", 0, 1)
            assert made.family is socket.AF_INET
            made.close()
            found.pop()
            with pytest.raises(OSError, match="'localhost' has no IPv4 or IPv6 address"):
                await listener.listening_sockets("localhost", 0, 1)

    asyncio.run(check())


def test_addresses_that_the_machine_does_not_have_are_left_out_beside_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        found = [(*kind, ("203.0.113.77", 0)), (*kind, ("127.0.0.1", 0))]  # the first is foreign

        async def told(*_: object, **__: object) -> list[object]:
            return list(found)

        monkeypatch.setattr(loop, "getaddrinfo", told)
        (made,) = await listener.listening_sockets("both", 0, 1)
        assert made.getsockname()[0] == "127.0.0.1"
        made.close()
        found.pop()
        with pytest.raises(OSError, match=r"203\.0\.113\.77: Cannot assign"):
            await listener.listening_sockets("both", 0, 1)

    asyncio.run(check())


def test_no_address_is_kept_if_one_is_in_use() -> None:
    async def check() -> None:
        (first,) = await listener.listening_sockets("127.0.0.1", 0, 1)
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use"):
            await listener.listening_sockets("127.0.0.1", port, 1)
        first.close()
        (again,) = await listener.listening_sockets("127.0.0.1", port, 1)
        again.close()

    asyncio.run(check())
