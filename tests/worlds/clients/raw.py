"""Sends requests to a broker without a client library: by a blocking socket and our own codecs.

The codecs are verified against kio (tests/unit/protocol), so tests can use them to compare two
brokers.
"""

import select
import socket
import struct
from typing import TYPE_CHECKING, TypeVar, cast, overload

from tests.worlds.waiting import PATIENCE_S, until_equal

from tidelog.closing import Closing
from tidelog.protocol.messages import (
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.messages.transactions import InitProducerIdRequest
from tidelog.protocol.requests import ClientConnection
from tidelog.protocol.schema import Api
from tidelog.record.batch_walk import walk
from tidelog.record.record import Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TIMEOUT_S = PATIENCE_S
ACKS_ALL = -1
PRODUCE_VERSION = 9
FETCH_VERSION = 12
LIST_OFFSETS_VERSION = 11
FETCH_BYTES = 1 << 20

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")


class Refused(Exception):
    """Raised if a response has an error for the partition.

    Attributes:
        code: Kafka's error code.
    """

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = code
        super().__init__(f"error {code}: {message}")


class RawClient(Closing):
    """One connection. Not thread-safe."""

    def __init__(self, bootstrap: str, name: str = "raw") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = ClientConnection(name)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def send(self, api: "Api[Request, DataclassInstance]", version: int, message: Request) -> None:
        """Send a request and don't wait; `receive` returns the responses in order of requests."""
        self._sock.sendall(b"".join(self._connection.request(api, version, message)))

    @overload
    def receive(self) -> "DataclassInstance": ...

    @overload
    def receive(self, api: "Api[Request, Response]") -> Response: ...

    def receive(
        self, api: "Api[Request, Response] | None" = None
    ) -> "DataclassInstance | Response":
        """Return the next response; if `api` is given, the response must have its type.

        Raises:
            ConnectionError: The broker closed the connection.
        """
        while (found := self._connection.next_response()) is None:
            data = self._sock.recv(1 << 20)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._connection.feed(data)
        return found

    def reset(self) -> None:
        """Reset the connection, so that the system refuses all further bytes from the broker."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors."""
        return self._sock.fileno()

    def await_answer(self) -> None:
        """Wait until the socket has bytes to read."""
        assert select.select([self._sock], [], [], TIMEOUT_S)[0]

    def has_answer(self) -> bool:
        """Whether the socket has bytes to read."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def ask(self, api: Api[Request, Response], version: int, message: Request) -> Response:
        """Send one request and return the response."""
        self.send(api, version, message)
        return self.receive(api)

    def auto_create(self, topic: str) -> None:
        """Request a topic's metadata until the broker has created it with default settings."""
        wanted = [MetadataRequestTopic(name=topic)]
        message = MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
        until_equal(0, lambda: self.ask(METADATA, 9, message).topics[0].error_code)

    def produce(self, topic: str, batch: bytes, partition: int = 0) -> PartitionProduceResponse:
        """Produce one batch; return the partition's response, which can be an error."""
        answer = self.ask(PRODUCE, PRODUCE_VERSION, produce_request(topic, batch, partition))
        return answer.responses[0].partition_responses[0]

    def list_offsets(
        self, topic: str, *timestamps: int, partition: int = 0, isolation_level: int = 0
    ) -> list[ListOffsetsPartitionResponse]:
        """Look up each timestamp with a separate request; return the partition's responses."""
        found = []
        for timestamp in timestamps:
            wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            message = ListOffsetsRequest(
                isolation_level=isolation_level,
                topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
            )
            answer = self.ask(LIST_OFFSETS, LIST_OFFSETS_VERSION, message)
            found.append(answer.topics[0].partitions[0])
        return found

    def read_all(self, topic: str, partition: int = 0) -> list[Record]:
        """Return all records of a partition."""
        found: list[Record] = []
        start, end = (one.offset for one in self.list_offsets(topic, -2, -1, partition=partition))
        while start < end:
            data = self._fetch(topic, partition, start)
            assert data, f"no batch at offset {start}, and the partition ends at {end}"
            for batch in walk(data):
                found += [record for record in batch.records() if record.offset >= start]
                start = batch.next_offset
        return found

    def _fetch(self, topic: str, partition: int, offset: int) -> bytes:
        wanted = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        message = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
            rack_id="",
        )
        answer = self.ask(FETCH, FETCH_VERSION, message).responses[0].partitions[0]
        if answer.error_code:
            raise Refused(answer.error_code)
        assert not isinstance(answer.records, list)
        return bytes(cast("bytes", answer.records) or b"")

    def producer_id(self) -> int:
        """Return a new producer id, with epoch 0."""
        asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = self.ask(INIT_PRODUCER_ID, 4, asked)
        if answer.error_code:
            raise Refused(answer.error_code)
        return answer.producer_id


def produce_request(topic: str, batch: bytes, partition: int = 0) -> ProduceRequest:
    """Return a request that produces one batch with acks=all."""
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        transactional_id=None,
        acks=ACKS_ALL,
        timeout_ms=TIMEOUT_S * 1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
