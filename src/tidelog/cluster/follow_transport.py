"""The seam between the follower and the network: a connection that sends and receives bytes.

Tests bring their own. Errors are plain OSError; `LeaderClient` makes ClusterFailure of them.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from tidelog.errors import ClusterFailure
from tidelog.types import Buffer

TIMEOUT_S: Final = 30.0


class Transport(Protocol):
    """One connection to one broker. One owner."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all pieces, in order."""
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


class SocketTransport:
    """A TCP connection; its calls wait as long as it was made for."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all pieces, in order."""
        for part in parts:
            self._socket.sendall(part)

    def receive(self, max_bytes: int) -> bytes:
        """Wait for bytes, at most as many; empty at the end of the stream."""
        return self._socket.recv(max_bytes)

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()


def connect_socket(host: str, port: int, *, timeout_s: float = TIMEOUT_S) -> Transport:
    """A TCP connection whose calls wait at most `timeout_s`; raises OSError."""
    connection = socket.create_connection((host, port), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return SocketTransport(connection)
