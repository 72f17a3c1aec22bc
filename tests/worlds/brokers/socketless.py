"""A broker without a socket: sends odd frames over transports that record the responses.

Everything runs on one event loop in the test's thread. A frame must be handled within a number of
loop iterations. No test measures time.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tidelog.config import BrokerConfig
from tidelog.env import Env
from tidelog.error_codes import ErrorCode
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection

# Enough loop iterations for each handler to finish, unless the handler waits for a timer or a
# thread.
TURNS = 50
SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}


class FakeTransport(asyncio.Transport):
    """Transport that collects all sent bytes without delay, and records whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_over = False
        self.takes = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.sent += data

    def pause_reading(self) -> None:
        self.takes = False

    def resume_reading(self) -> None:
        self.takes = True

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True


class Errors(logging.Handler):
    """Collects log lines about failures of the broker.

    These are errors, which report exceptions that no handler expected, and disconnects with the
    code INVALID_REQUEST. The codec raises an error with this code if a value of a response or of a
    record does not fit into its field.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        code = getattr(record, "error_code", None)
        if record.levelno >= logging.ERROR or code == ErrorCode.INVALID_REQUEST:
            self.records.append(logging.Formatter().format(record))


class Talk:
    """A client's connection to the node of a World."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.transport = FakeTransport()
        connection.connection_made(self.transport)

    def feed(self, data: bytes) -> None:
        """Pass bytes to the connection like an event loop."""
        connection: object = self._connection
        if isinstance(connection, asyncio.BufferedProtocol):
            _feed_buffered(connection, data)
        elif isinstance(connection, asyncio.Protocol):
            connection.data_received(data)

    async def settle(self) -> None:
        """Run the loop until no request is in progress, or for `TURNS` iterations."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if self.transport.is_over or not self._connection.is_busy:
                return

    async def hang_up(self) -> None:
        """Disconnect the client, and run the loop long enough to cancel a waiting request."""
        self._connection.connection_lost(None)
        for _ in range(TURNS):
            await asyncio.sleep(0)


def _feed_buffered(connection: asyncio.BufferedProtocol, data: bytes) -> None:
    at = 0
    while at < len(data):
        room = memoryview(connection.get_buffer(len(data) - at))
        count = min(len(room), len(data) - at)
        assert count
        room[:count] = data[at : at + count]
        room.release()
        connection.buffer_updated(count)
        at += count


class World:
    """A node without a socket, the node's clients, and the errors that the node logs."""

    def __init__(self, node: Node, errors: Errors) -> None:
        self.node = node
        self.errors = errors
        self._clients = Clients(node)

    @classmethod
    def open(cls, folder: Path, errors: Errors, env: Env | None = None) -> Self:
        """Open a node on a directory."""
        return cls(open_node(str(folder), BrokerConfig.parse(SETTINGS)[0], env=env), errors)

    def connect(self) -> Talk:
        """Connect a new client."""
        return Talk(Connection(self.node, self._clients))

    async def close(self) -> None:
        """Close all clients, then the node."""
        self._clients.close()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self.node.close()


@contextmanager
def watched() -> Iterator[Errors]:
    """Collect errors that are logged until the block ends."""
    errors = Errors()
    logger = logging.getLogger("tidelog.server")
    logger.addHandler(errors)
    try:
        yield errors
    finally:
        logger.removeHandler(errors)
