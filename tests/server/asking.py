"""A client that says exactly what it is told to, in the version it is told to."""

import select
import socket
import struct
from typing import TYPE_CHECKING, TypeVar, cast

from tests.worlds.waiting import PATIENCE_S

from tidelog.closing import Closing
from tidelog.protocol.connection import ClientConnection
from tidelog.server.in_process import Broker

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.messages import Api
    from tidelog.types import Buffer

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")
READ_BYTES = 1 << 16


class Asking(Closing):
    """One connection to a broker."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._connection = ClientConnection("asking")

    def send(self, api: "Api[Request, Response]", version: int, request: Request) -> None:
        """Send a request."""
        for piece in self._connection.request(api, version, request):
            self._socket.sendall(piece)

    def receive(self, api: "Api[Request, Response]") -> Response:
        """The next answer."""
        while (found := self._connection.next_response()) is None:
            data: Buffer = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the broker has closed the connection")
            self._connection.feed(data)
        return cast("Response", found)

    def reset(self) -> None:
        """Go without a word: what comes from now on is refused."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def ask(self, api: "Api[Request, Response]", version: int, request: Request) -> Response:
        """Send a request; its answer."""
        self.send(api, version, request)
        return self.receive(api)

    def await_answer(self) -> None:
        """Return when some bytes have come that nobody has received."""
        assert select.select([self._socket], [], [], PATIENCE_S)[0]

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
