"""The seam between the follower and the network: a connection that sends and receives bytes.

Tests bring their own. Errors are plain OSError; `LeaderClient` makes ClusterFailure of them.
"""

import errno
import os
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from tidelog.env import Clock, SystemClock
from tidelog.errors import ClusterFailure
from tidelog.types import Buffer

TIMEOUT_S: Final = 30.0
# An answer that comes more slowly is given up once its time is over.
_LEAST_BYTES_PER_S: Final = 1 << 16
# How long a call of the system waits at once, in seconds.
_SLICE_S: Final = 0.25
_Address: TypeAlias = tuple[int, int, int, str, tuple[object, ...]]


class Transport(Protocol):
    """One connection to one broker. One owner."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all pieces, in order."""
        ...

    def begin_answer(self) -> None:
        """Wait for an answer from now on: its deadline is counted from here, not piece by piece."""
        ...

    def receive(self, max_bytes: int) -> bytes:
        """Wait for bytes, at most as many; empty at the end of the stream."""
        ...

    def close(self) -> None:
        """Let go of it; once is enough."""
        ...


# Takes host and port.
Connect: TypeAlias = Callable[[str, int], Transport]


def split_server(server: str) -> tuple[str, int]:
    """Host and port of `host:port`, where the host may be an IPv6 address in brackets.

    Raises:
        ClusterFailure: It is no such text.
    """
    host, colon, port = server.strip().rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ClusterFailure(server, "connect", "host:port is needed")
    return host.removeprefix("[").removesuffix("]"), int(port)


def never() -> bool:
    """Whether to stop waiting: no."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits of waiting for a broker.

    Attributes:
        timeout_s: For a connection, for sending a request, and for a whole answer, which is given a
            second more for each 64 KiB that have come.
        is_stopped: Looked at four times a second; ends the waiting.
        clock: Measures it.
    """

    timeout_s: float = TIMEOUT_S
    is_stopped: Callable[[], bool] = never
    clock: Clock = field(default_factory=SystemClock)

    def deadline(self) -> float:
        """From now on, in seconds of `clock`."""
        return self._now() + self.timeout_s

    def left(self, deadline: float, what: str) -> float:
        """How long to wait at once, in seconds.

        Raises:
            InterruptedError: It is over because somebody wants to stop.
            TimeoutError: It is over.
        """
        if self.is_stopped():
            raise InterruptedError(f"{what} was waited for, and then told to stop")
        left = deadline - self._now()
        if left <= 0:
            raise TimeoutError(f"{what} did not come within {self.timeout_s:g} s")
        return min(left, _SLICE_S)

    def _now(self) -> float:
        return self.clock.monotonic_ms() / 1000


class SocketTransport:
    """A TCP connection; a whole answer has one deadline, however many pieces it comes in."""

    def __init__(self, connection: socket.socket, patience: Patience) -> None:
        self._socket = connection
        self._patience = patience
        self._deadline = patience.deadline()

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all pieces, in order."""
        self._socket.settimeout(self._patience.timeout_s)
        for part in parts:
            self._socket.sendall(part)

    def begin_answer(self) -> None:
        """From now on an answer is waited for."""
        self._deadline = self._patience.deadline()

    def receive(self, max_bytes: int) -> bytes:
        """Wait for bytes, at most as many; empty at the end of the stream."""
        while True:
            self._socket.settimeout(self._patience.left(self._deadline, "a whole answer"))
            try:
                data = self._socket.recv(max_bytes)
            except TimeoutError:
                continue
            self._deadline += len(data) / _LEAST_BYTES_PER_S
            return data

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()


def connect_socket(
    host: str,
    port: int,
    *,
    timeout_s: float = TIMEOUT_S,
    is_stopped: Callable[[], bool] = never,
) -> Transport:
    """A TCP connection that waits as `Patience` says; raises OSError."""
    patience = Patience(timeout_s=timeout_s, is_stopped=is_stopped)
    deadline = patience.deadline()
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in _addresses(host, port):
        connection = socket.socket(family, kind, protocol)
        try:
            _connect(connection, address, patience, deadline)
        except OSError as error:
            connection.close()
            failure = error
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SocketTransport(connection, patience)
    raise failure


def _addresses(host: str, port: int) -> Sequence[_Address]:
    if not 0 < port < 1 << 16:
        raise OSError(f"port {port} can't be: 1 to 65535 is needed")
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError as error:  # a UnicodeError, for labels that are empty or too long
        raise OSError(f"{host!r} is no name of a host: {error}") from error


def _connect(
    connection: socket.socket, address: object, patience: Patience, deadline: float
) -> None:
    connection.setblocking(False)
    code = connection.connect_ex(address)  # type: ignore[arg-type]  # as getaddrinfo has given it
    if code == errno.EINPROGRESS:
        poll = select.poll()
        poll.register(connection, select.POLLOUT)
        while not poll.poll(1000 * patience.left(deadline, "a connection")):
            pass
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
