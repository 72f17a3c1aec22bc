"""`socket.send.buffer.bytes` sets the system's send buffer of a connection, as in Kafka.

A loopback connection has the system's default size unless the setting is given explicitly.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final, cast

import pytest
from tests.server.test_tls import World
from tests.worlds.waiting import turn_until

from tidelog.config import BrokerConfig
from tidelog.errors import ConfigError
from tidelog.server.broker import Server, open_node, planned
from tidelog.server.net.connection import Connection
from tidelog.server.runtime.loop import run

LOOPS: Final = pytest.mark.parametrize("runs", [asyncio.run, run], ids=["asyncio", "installed"])
DOORS: Final = pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
Runs = Callable[[Coroutine[object, object, None]], None]
SETTING: Final = "socket.send.buffer.bytes"


async def size_of_accepted(folder: Path, protocol: str, **settings: str) -> int:
    """Return the system's send buffer size, in bytes, of a connection accepted by the broker."""
    world = World(folder)
    given = world.settings | {"listeners": f"{protocol}://127.0.0.1:0"}
    given |= {name.replace("_", "."): text for name, text in settings.items()}
    config = BrokerConfig.parse(given)[0]
    server = Server(open_node(str(folder / "log"), config))
    ports = await server.open_listeners(planned(config))
    context = world.key("SSL").context() if protocol == "SSL" else None
    _, writer = await asyncio.open_connection("127.0.0.1", ports[protocol], ssl=context)
    try:
        await turn_until(lambda: len(_made(server)) == 1)
        transport = _made(server)[0]._transport
        assert transport is not None
        found: int = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF
        )
        return found
    finally:
        writer.close()
        await server.stop()


def _made(server: Server) -> list[Connection]:
    """Return the connections that are ready for their first request."""
    there = cast("list[Connection]", list(server.clients._clients))
    return [each for each in there if each._transport is not None]


def _reported_size(size: int) -> int:
    """Set a socket's send buffer to `size`; return the reported size, which is more on Linux."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


@LOOPS
@DOORS
def test_a_connection_has_the_send_buffer_of_kafkas(
    tmp_path: Path, runs: Runs, protocol: str
) -> None:
    async def check() -> None:
        settings = {SETTING.replace(".", "_"): "102400"}
        assert await size_of_accepted(tmp_path, protocol, **settings) == _reported_size(102_400)

    runs(check())


@LOOPS
@DOORS
def test_another_size_is_given_to_each(tmp_path: Path, runs: Runs, protocol: str) -> None:
    async def check() -> None:
        settings = {SETTING.replace(".", "_"): "30000"}
        assert await size_of_accepted(tmp_path, protocol, **settings) == _reported_size(30_000)

    runs(check())


@LOOPS
@DOORS
def test_the_loopback_s_default_is_the_system_s(tmp_path: Path, runs: Runs, protocol: str) -> None:
    async def check() -> None:
        assert await size_of_accepted(tmp_path, protocol) != _reported_size(102_400)

    runs(check())


@LOOPS
def test_the_system_may_choose(tmp_path: Path, runs: Runs) -> None:
    async def check() -> None:
        settings = {SETTING.replace(".", "_"): "-1"}
        assert await size_of_accepted(tmp_path, "PLAINTEXT", **settings) != _reported_size(102_400)

    runs(check())


@pytest.mark.parametrize("size", ["0", "-2", "many"])
def test_an_impossible_size_is_refused(size: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.parse({SETTING: size})
    assert refused.value.key == SETTING
