"""A relay between clients and a broker that reads every response and may change it.

It simulates faults between brokers: a lost leader, an unreachable address. It records the messages,
so that a test can inspect the responses.
"""

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tidelog.closing import Closing
from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.framing import Frames
from tidelog.protocol.messages import API_VERSIONS
from tidelog.protocol.messages.classic_groups import FindCoordinatorResponse
from tidelog.protocol.messages.metadata import MetadataBroker, MetadataResponse
from tidelog.protocol.requests import ReceivedRequest, read_request, write_response
from tidelog.protocol.wire import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    Change = Callable[[ReceivedRequest, DataclassInstance], None]

_CHUNK: Final = 1 << 16
_DEAD_NODE: Final = 77
# An unreachable address, because no test listens at port 9 ("discard").
DEAD_ADDRESS: Final = "127.0.0.1:9"


class Relay(Closing):
    """Listens on a separate port, and opens a connection to the broker for each client."""

    def __init__(self, upstream: str, change: "Change") -> None:
        """Listen at once.

        Args:
            upstream: The broker, `host:port`.
            change: Called with each request and its response; may change the response in place.
        """
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._change = change
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for one in (self._listening, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._sockets.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._upstream) as broker:
            self._sockets.append(broker)
            for one in (client, broker):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            requests = Frames()
            responses = Frames()
            while frame := _next_frame(client, requests):
                broker.sendall(len(frame).to_bytes(4, "big") + frame)
                request = read_request(frame)
                response = _next_frame(broker, responses)
                if not response:
                    return
                client.sendall(self._changed(request, response))

    def _changed(self, request: ReceivedRequest, frame: bytes) -> bytes:
        api, version = request.api, request.version
        reader = Reader(frame)
        reader.int32()
        flexible = api.is_flexible(version)
        if flexible and api is not API_VERSIONS:
            reader.skip_tags()
        message = struct_codec(api.response, version, flexible).read(reader)
        self._change(request, message)
        return b"".join(write_response(request, message))


def _next_frame(connection: socket.socket, frames: Frames) -> bytes:
    """Return the next frame without its length, empty at the end of the stream."""
    while (found := frames.next()) is None:
        data = connection.recv(_CHUNK)
        if not data:
            return b""
        frames.feed(data)
    return bytes(found)


class Led:
    """Changes responses, so that they have the relay's address and some unreachable leaders.

    Attributes:
        address: The address of the broker in changed responses.
        dead: Indexes of the partitions whose leader can't be reached.
    """

    def __init__(self, *dead: int) -> None:
        self.address = ""
        self.dead = set(dead)

    def __call__(self, _: ReceivedRequest, message: "DataclassInstance") -> None:
        host, _colon, port = self.address.rpartition(":")
        if isinstance(message, FindCoordinatorResponse):
            message.host, message.port = host, int(port)
            for one in message.coordinators:
                one.host, one.port = host, int(port)
        if not isinstance(message, MetadataResponse):
            return
        for broker in message.brokers:
            broker.host, broker.port = host, int(port)
        if not self.dead:
            return
        host, _colon, port = DEAD_ADDRESS.rpartition(":")
        message.brokers.append(MetadataBroker(node_id=_DEAD_NODE, host=host, port=int(port)))
        for topic in message.topics:
            for part in topic.partitions:
                if part.partition_index in self.dead:
                    part.leader_id = _DEAD_NODE
