"""Clients that don't complete their authentication are closed in time and harm no other client."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.server.test_tls_limits import FRAME, LOOPS, Door, Runs, Streams, door, leave
from tests.server.test_tls_refusals import VERSIONS
from tests.worlds.brokers.logins import (
    is_closed,
    is_served,
    logged_in,
    place,
    plain,
    settings_in,
    shake,
)
from tests.worlds.clients.raw import RawClient
from tests.worlds.clocks import StandingClock
from tests.worlds.waiting import PATIENCE_S, Patience, until_equal

import tidelog
from tidelog.env import os_env
from tidelog.protocol.messages import SASL_AUTHENTICATE
from tidelog.protocol.messages.security import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.server.net import listener, sasl_session

COUNT: Final = 200
VERSIONS_FRAME: Final = len(FRAME).to_bytes(4, "big") + FRAME
SHAKE: Final = b"\0\0\0\x11\0\x11\0\1\0\0\0\1\xff\xff\0\5PLAIN"
TOKEN: Final = b"\0\x24\0\1\0\0\0\2\xff\xff" + len(plain()).to_bytes(4, "big") + plain()
TOKEN_FRAME: Final = len(TOKEN).to_bytes(4, "big") + TOKEN
# Bytes that a client sends before it becomes silent.
STAGES: Final = (
    b"",
    b"\0",
    b"\0\1\0\0" + bytes(1000),  # start of the longest allowed frame
    VERSIONS_FRAME,
    SHAKE,
    VERSIONS_FRAME + SHAKE + TOKEN_FRAME[:-1],
)


class Crowd:
    """A broker whose clock the test advances, and one client that has authenticated."""

    def __init__(self, running: Broker, clock: StandingClock, friend: RawClient) -> None:
        self.running = running
        self.clock = clock
        self.friend = friend

    def pass_time(self, ms: int) -> None:
        """Advance the clock and run due timers."""
        self.clock.ahead_ms += ms
        self.running.call(lambda node: node.timers.run_due())

    def connections(self) -> int:
        return self.running.call(lambda node: node.metrics.connections)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    clock = StandingClock()
    settings = settings_in(tmp_path, connection_failed_authentication_delay_ms="60000")
    with (
        tidelog.broker(settings=settings, env=replace(os_env(), clock=clock)) as running,
        logged_in(running) as friend,
    ):
        yield Crowd(running, clock, friend)


def came(place_of: str, said: bytes) -> socket.socket:
    host, _, port = place_of.rpartition(":")
    sock = socket.create_connection((host, int(port)), PATIENCE_S)
    sock.sendall(said)
    return sock


def is_at_its_end(sock: socket.socket) -> bool:
    """Receive all responses until the broker closes the connection; fail if it stays open."""
    with suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass
    return True


def test_many_unauthenticated_clients_are_disconnected_after_the_timeout(crowd: Crowd) -> None:
    with ExitStack() as stack:
        where = place(crowd.running)
        waiting = [
            stack.enter_context(came(where, STAGES[number % len(STAGES)]))
            for number in range(COUNT)
        ]
        until_equal(COUNT + 1, crowd.connections)
        assert is_served(crowd.friend)
        crowd.pass_time(sasl_session.DEADLINE_MS - 1)
        assert crowd.connections() == COUNT + 1
        crowd.pass_time(1)
        assert all(is_at_its_end(sock) for sock in waiting)
        until_equal(1, crowd.connections)
        assert is_served(crowd.friend)


def test_bytes_do_not_prolong_the_time_for_a_login(crowd: Crowd) -> None:
    said = VERSIONS_FRAME + SHAKE + TOKEN_FRAME
    with came(place(crowd.running), b"") as sock:
        until_equal(2, crowd.connections)
        for number in range(9):
            sock.sendall(said[number : number + 1])
            crowd.pass_time(sasl_session.DEADLINE_MS // 10)
            assert crowd.connections() == 2
        with suppress(ConnectionError):
            sock.sendall(said[9:-1])
            crowd.pass_time(sasl_session.DEADLINE_MS // 10)
        assert is_at_its_end(sock)


def test_a_login_byte_by_byte_succeeds(crowd: Crowd) -> None:
    with came(place(crowd.running), b"") as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in VERSIONS_FRAME + SHAKE + TOKEN_FRAME:
            sock.sendall(bytes((byte,)))
        until_equal(2, lambda: crowd.running.call(lambda node: node.metrics.logins["PLAIN", "ok"]))


def failed_logins(node: Node) -> int | None:
    return node.metrics.logins.get(("PLAIN", "failed"))


def test_many_failed_logins_are_delayed_together_and_delay_no_other_client(crowd: Crowd) -> None:
    with ExitStack() as stack:
        guessing = [stack.enter_context(RawClient(place(crowd.running))) for _ in range(COUNT)]
        for client in guessing:
            shake(client, "PLAIN")
            token = SaslAuthenticateRequest(auth_bytes=plain(password="a guess"))
            # The first request has a wrong password. The broker then ignores all further requests,
            # such as the second one with the right password.
            for _ in range(2):
                client.send(SASL_AUTHENTICATE, 2, token)
                token = SaslAuthenticateRequest(auth_bytes=plain())
        until_equal(COUNT, lambda: crowd.running.call(failed_logins))
        crowd.pass_time(59_999)  # longer than every other time limit of the connection
        assert not any(client.has_answer() for client in guessing)
        assert is_served(crowd.friend)
        crowd.pass_time(1)
        for client in guessing:
            said = client.receive()
            assert isinstance(said, SaslAuthenticateResponse)
            assert said.error_code == 58
            assert is_closed(client)
        assert crowd.running.call(failed_logins) == COUNT
        assert crowd.running.call(lambda node: node.metrics.logins["PLAIN", "ok"]) == 1
        until_equal(1, crowd.connections)


# -- TLS -----------------------------------------------------------------------------------------


async def shaken_byte_by_byte(it: Door, version: ssl.TLSVersion) -> bytes:
    """Send a handshake and ApiVersions byte by byte; return the response."""
    it.context.minimum_version = it.context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = it.context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    streams = await it.tcp()
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            await send_byte_by_byte(streams, outgoing.read())
            incoming.write(await streams[0].readexactly(1))
    tls.write(VERSIONS_FRAME)
    await send_byte_by_byte(streams, outgoing.read())
    try:
        while True:
            with suppress(ssl.SSLWantReadError):
                return tls.read(4)
            incoming.write(await streams[0].readexactly(1))
    finally:
        await leave(streams[1])


async def send_byte_by_byte(streams: Streams, data: bytes) -> None:
    for byte in data:
        streams[1].write(bytes((byte,)))
        await streams[1].drain()
        await asyncio.sleep(0)


@LOOPS
@VERSIONS
def test_a_handshake_byte_by_byte_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs, version: ssl.TLSVersion
) -> None:
    monkeypatch.setattr(listener, "TLS_TIMEOUT_S", PATIENCE_S)

    async def check() -> None:
        async with door(tmp_path) as it:
            assert len(await shaken_byte_by_byte(it, version)) == 4

    runs(check())


@LOOPS
def test_bytes_do_not_prolong_a_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    monkeypatch.setattr(listener, "TLS_TIMEOUT_S", 0.05)

    async def check() -> None:
        async with door(tmp_path) as it:
            streams = await it.tcp()
            streams[1].write(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03")  # a long ClientHello
            patience = Patience()
            with suppress(ConnectionError):
                while not streams[0].at_eof():
                    patience.check("closed")
                    streams[1].write(b"\0")
                    await streams[1].drain()
                    await asyncio.sleep(0)
            await it.until_there_are(0)
            await leave(streams[1])

    runs(check())


@LOOPS
def test_many_stalled_handshakes_delay_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    monkeypatch.setattr(listener, "TLS_TIMEOUT_S", PATIENCE_S)

    async def check() -> None:
        async with door(tmp_path) as it:
            waiting = [await it.tcp() for _ in range(COUNT)]
            for number, (_, writer) in enumerate(waiting):
                writer.write(b"\x16\x03\x01\x02\x00\x01\x00"[: number % 8])
            await it.until_there_are(COUNT)
            assert await it.is_let_in()
            for _, writer in waiting:
                await leave(writer)
            await it.until_there_are(0)

    runs(check())
