"""A client of a broker without sockets, which sends real frames and keeps the responses."""

import asyncio
from typing import TYPE_CHECKING

from tests.worlds.brokers.socketless import FakeTransport

from tidelog.protocol.messages import API_VERSIONS, FETCH, PRODUCE
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.metadata import ApiVersionsRequest
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.requests import ClientConnection
from tidelog.record.builder import build_batch
from tidelog.server.api.node import Node
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.schema import Api

TURNS = 20  # loop iterations, more than needed
WAIT_MS = 3_600_000


class WireClient:
    """A client with one connection.

    Attributes:
        clients: All connections of the broker. Several clients may use the same object.
        transport: Receives the broker's output.
        connection: The broker's side.
    """

    def __init__(
        self,
        node: Node,
        clients: Clients | None = None,
        transport: FakeTransport | None = None,
        name: str = "test",
    ) -> None:
        self.clients = Clients(node) if clients is None else clients
        self.transport = transport or FakeTransport()
        self.connection = Connection(node, self.clients)
        self._wire = ClientConnection(name)
        self._fed = 0
        self.connection.connection_made(self.transport)

    def frame(
        self,
        api: "Api[DataclassInstance, DataclassInstance]",
        version: int,
        message: "DataclassInstance",
    ) -> bytes:
        """Return a request, preceded by its length."""
        return b"".join(self._wire.request(api, version, message))

    def versions(self) -> bytes:
        """Return an ApiVersions request, which gets a response at once."""
        return self.frame(API_VERSIONS, 2, ApiVersionsRequest())

    def produce(self, topic: str, size: int = 1) -> bytes:
        """Return a request with a record of `size` bytes for the first partition of a topic."""
        data = PartitionProduceData(index=0, records=build_batch([NewRecord(value=bytes(size))]))
        topics = [TopicProduceData(name=topic, partition_data=[data])]
        message = ProduceRequest(
            transactional_id=None, acks=1, timeout_ms=WAIT_MS, topic_data=topics
        )
        return self.frame(PRODUCE, 9, message)

    def fetch(self, topic: str, offset: int = 0) -> bytes:
        """Return a Fetch request, which waits until a record at or after `offset` exists."""
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, partitions=[wanted])]
        message = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, topics=topics, rack_id="")
        return self.frame(FETCH, 12, message)

    def send(self, *frames: bytes) -> None:
        """Deliver these frames together."""
        data = b"".join(frames)
        while data:
            room = self.connection.get_buffer(-1)
            size = min(len(room), len(data))
            assert size
            room[:size] = data[:size]
            room.release()
            self.connection.buffer_updated(size)
            data = data[size:]

    def answers(self) -> "list[DataclassInstance]":
        """Return the responses since the last call."""
        self._wire.feed(bytes(self.transport.sent[self._fed :]))
        self._fed = len(self.transport.sent)
        found = []
        while (answer := self._wire.next_response()) is not None:
            found.append(answer)
        return found


async def turns() -> None:
    """Let the event loop run `TURNS` times, so that pending tasks proceed."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
