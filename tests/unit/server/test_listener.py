"""Pending connections are accepted together, on each kind of event loop, and closed at a stop."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final

import pytest
from tests.unit.server.loops import turns

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.server.broker import Server, open_node
from tidelog.server.net.listener import ACCEPTS
from tidelog.server.runtime.loop import run

LOOPS: Final = pytest.mark.parametrize("runs", [asyncio.run, run], ids=["asyncio", "installed"])
Runs = Callable[[Coroutine[object, object, None]], None]
CROWD: Final = ACCEPTS // 2
TURNS: Final = 5  # number of loop iterations, lower than the number of connections


async def crowded(path: Path, count: int, **settings: str) -> tuple[Server, list[socket.socket]]:
    """Start a broker, connect clients, and return before the broker accepts them."""
    named = {name.replace("_", "."): text for name, text in settings.items()}
    config = BrokerConfig.parse(named)[0]
    server = Server(open_node(str(path), config, env=Env(clock=ManualClock())))
    port = await server.start("127.0.0.1", 0)
    return server, [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


@LOOPS
def test_all_pending_connections_are_accepted_in_few_iterations(tmp_path: Path, runs: Runs) -> None:
    async def check() -> None:
        server, clients = await crowded(tmp_path, CROWD)
        await turns(TURNS)
        assert len(server.clients) == CROWD
        await server.stop()
        assert all(is_closed(each) for each in clients)

    runs(check())


@LOOPS
def test_simultaneous_connections_are_accepted_up_to_the_limit(tmp_path: Path, runs: Runs) -> None:
    async def check() -> None:
        server, clients = await crowded(tmp_path, CROWD, max_connections="3")
        await turns(TURNS)
        assert len(server.clients) == 3
        assert server.node.metrics.connections_refused == CROWD - 3
        assert all(is_closed(each) for each in clients[3:])
        await server.stop()
        assert all(is_closed(each) for each in clients[:3])

    runs(check())


@LOOPS
@pytest.mark.parametrize("seen", range(TURNS))
def test_pending_connections_are_closed_at_a_stop(tmp_path: Path, runs: Runs, seen: int) -> None:
    async def check() -> None:
        server, clients = await crowded(tmp_path, 2)
        await turns(seen)
        await server.stop()
        await turns(TURNS)
        assert len(server.clients) == 0
        assert all(is_closed(each) for each in clients)

    runs(check())


def is_closed(client: socket.socket) -> bool:
    """Return whether the other end has closed or reset the connection."""
    with client:
        client.setblocking(False)
        try:
            return not client.recv(1)
        except ConnectionError:
            return True
