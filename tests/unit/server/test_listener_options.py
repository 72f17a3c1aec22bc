"""Socket options that connections inherit from their listening socket."""

import socket
from typing import cast

import pytest
from tests.worlds.needs import need

from tidelog.server.net.listener import PACING, WITHOUT_PACING, prepare

CONGESTION = getattr(socket, "TCP_CONGESTION", 13)


class Bound:
    """Socket that only records its options."""

    def __init__(self, host: str, congestion: bytes, refusal: OSError | None = None) -> None:
        self.told: list[tuple[int, int, object]] = []
        self._name = (host, 9092)
        self._congestion = congestion
        self._refusal = refusal

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, CONGESTION)
        return self._congestion.ljust(size, b"\0")

    def setsockopt(self, level: int, option: int, value: object) -> None:
        if self._refusal is not None and option == CONGESTION:
            raise self._refusal
        self.told.append((level, option, value))


def told(bound: Bound, size: int = -1) -> list[tuple[int, int, object]]:
    prepare(cast("socket.socket", bound), size)
    return bound.told


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "::1%lo"])
@pytest.mark.parametrize("pacing", [PACING, b"bbr2"])
def test_loopback_listeners_are_not_paced(host: str, pacing: bytes) -> None:
    need(hasattr(socket, "TCP_CONGESTION"), "TCP_CONGESTION of Linux")
    assert told(Bound(host, pacing)) == [(socket.IPPROTO_TCP, CONGESTION, WITHOUT_PACING)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "fe80::1%eth0"])
def test_other_listeners_use_the_machines_congestion_control(host: str) -> None:
    assert told(Bound(host, PACING)) == []


@pytest.mark.parametrize("other", [b"cubic", b"reno", b""])
def test_congestion_control_without_pacing_stays(other: bytes) -> None:
    assert told(Bound("127.0.0.1", other)) == []


def test_a_system_that_refuses_is_left_as_it_is() -> None:
    assert told(Bound("127.0.0.1", PACING, OSError(95, "not supported"))) == []


def test_an_explicit_buffer_size_is_set_on_every_address() -> None:
    size = (socket.SOL_SOCKET, socket.SO_SNDBUF, 30_000)
    assert size in told(Bound("127.0.0.1", PACING), 30_000)
    assert told(Bound("192.0.2.7", PACING), 30_000) == [size]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "192.0.2.7"])
def test_a_default_buffer_size_is_not_set_on_the_loopback(host: str) -> None:
    bound = Bound(host, b"cubic")
    prepare(cast("socket.socket", bound), 30_000, is_configured=False)
    is_set = (socket.SOL_SOCKET, socket.SO_SNDBUF, 30_000) in bound.told
    assert is_set == (host in ("0.0.0.0", "192.0.2.7"))


def test_connections_inherit_the_congestion_control() -> None:
    """Connections on the loopback are not paced, whatever the machine's default is."""
    need(hasattr(socket, "TCP_CONGESTION"), "TCP_CONGESTION of Linux")
    with socket.socket() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        prepare(listening, -1)
        listening.listen()
        client.connect(listening.getsockname())
        with listening.accept()[0] as accepted:
            found = accepted.getsockopt(socket.IPPROTO_TCP, CONGESTION, 16)
    assert not found.startswith(PACING)
