"""Frames, headers and correlation ids: a stream of bytes to requests or answers, and back.

`Frames` cuts a stream; `ClientConnection` asks and matches answers, in the order of its questions;
`read_request` and `write_response` are a broker's side. Owns no socket: bytes come in through
`feed`, and go out as pieces that the caller sends in order.

Life cycle of a ClientConnection: (request | feed | next_response)*; after a CorruptMessage it is of
no use any more. Source: Kafka's protocol guide, request and response headers; KIP-482.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.compiler import Codec, struct_codec
from tidelog.protocol.messages import API_VERSIONS, BY_KEY, AnyApi, Api
from tidelog.protocol.wire import Reader, Writer
from tidelog.types import INT32_MAX, Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Request = TypeVar("Request", bound="DataclassInstance")

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 128 * 1024 * 1024
UNSUPPORTED_VERSION_CODE: Final = 35


class Frames:
    """Cuts a stream into frames: four bytes of length, then as many."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def wanted_bytes(self) -> int:
        """How many bytes are missing to the end of the present frame, or of its length."""
        have = len(self._buffer)
        if have < LENGTH_BYTES:
            return LENGTH_BYTES - have
        return max(LENGTH_BYTES + self._length() - have, 0)

    def feed(self, data: Buffer) -> None:
        """Take what came from the other side."""
        self._buffer += data

    def next(self) -> memoryview | None:
        """The next whole frame without its length, None where more bytes are needed.

        Raises:
            CorruptMessage: A negative length, or one above the limit; nothing was allocated for it.
        """
        if len(self._buffer) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + self._length()
        if len(self._buffer) < end:
            return None
        whole, self._buffer = self._buffer, bytearray(memoryview(self._buffer)[end:])
        return memoryview(whole)[LENGTH_BYTES:end]

    def _length(self) -> int:
        length = int.from_bytes(self._buffer[:LENGTH_BYTES], "big", signed=True)
        if not 0 <= length <= self._max_frame_bytes:
            raise CorruptMessage(
                f"a frame of {length} bytes, 0 to {self._max_frame_bytes} are allowed", at=0
            )
        return length


@dataclass(frozen=True, slots=True)
class _Waiting:
    correlation_id: int
    api: AnyApi
    version: int


class ClientConnection:
    """A client's side of one connection. One owner."""

    def __init__(self, client_id: str, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._client_id = client_id
        self._frames = Frames(max_frame_bytes)
        self._waiting: deque[_Waiting] = deque()
        self._next_id = 0

    @property
    def wanted_bytes(self) -> int:
        """How many bytes the present answer still needs, as far as is known."""
        return self._frames.wanted_bytes

    def request(
        self, api: "Api[Request, DataclassInstance]", version: int, message: Request
    ) -> list[Buffer]:
        """Pieces to send for a question.

        Raises:
            UnsupportedVersion: The declarations don't know the version.
        """
        _check_version(api, version)
        waiting = _Waiting(self._next_id, api, version)
        self._next_id = 0 if self._next_id == INT32_MAX else self._next_id + 1
        writer = Writer()
        writer.int16(api.key)
        writer.int16(version)
        writer.int32(waiting.correlation_id)
        # In every version of the header it has the old form.
        writer.nullable_string(self._client_id)
        if api.is_flexible(version):
            writer.unsigned_varint(0)
        _body_codec(api.request, api, version).write(writer, message)
        self._waiting.append(waiting)
        return _framed(writer)

    def feed(self, data: Buffer) -> None:
        """Take what came from the broker."""
        self._frames.feed(data)

    def next_response(self) -> "DataclassInstance | None":
        """The next answer, of the class that its question's API names; None for not yet.

        Raises:
            CorruptMessage: The frame breaks a rule, or answers another question.
        """
        frame = self._frames.next()
        if frame is None:
            return None
        reader = Reader(frame)
        correlation_id = reader.int32()
        waiting = self._waiting.popleft() if self._waiting else None
        if waiting is None or waiting.correlation_id != correlation_id:
            expected = "none" if waiting is None else waiting.correlation_id
            raise CorruptMessage(f"an answer to request {correlation_id}, expected {expected}")
        return _read_response(reader, waiting)


def _read_response(reader: Reader, waiting: _Waiting) -> "DataclassInstance":
    api, version = waiting.api, waiting.version
    if api.key == API_VERSIONS.key:
        # Who doesn't know the version asked answers with error 35 in version 0.
        start = reader.at
        if reader.int16() == UNSUPPORTED_VERSION_CODE:
            version = 0
        reader.at = start
    elif api.is_flexible(version):
        reader.skip_tags()
    return _whole(reader, api.response, api, version)


def _whole(
    reader: Reader, kind: "type[DataclassInstance]", api: AnyApi, version: int
) -> "DataclassInstance":
    message = _body_codec(kind, api, version).read(reader)
    if reader.left:
        raise CorruptMessage(
            f"{api.name} v{version}: {reader.left} bytes behind the message", at=reader.at
        )
    return message


def _body_codec(kind: type[Request], api: AnyApi, version: int) -> Codec[Request]:
    return struct_codec(kind, version, api.is_flexible(version))


def _check_version(api: AnyApi, version: int) -> None:
    if not api.first_declared <= version <= api.last:
        raise UnsupportedVersion(
            f"{api.name} v{version}: versions {api.first_declared} to {api.last} are known"
        )


def _framed(writer: Writer) -> list[Buffer]:
    return [writer.size_bytes.to_bytes(LENGTH_BYTES, "big"), *writer.parts()]


# -- a broker's side -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A question as a broker got it.

    Attributes:
        api: What is asked.
        version: In which version.
        correlation_id: What the answer must repeat.
        client_id: How the client calls itself.
        message: The question, of the class `api.request`.
    """

    api: AnyApi
    version: int
    correlation_id: int
    client_id: str | None
    message: "DataclassInstance"


def read_request(frame: Buffer) -> ReceivedRequest:
    """The question in a frame.

    Raises:
        CorruptMessage: It breaks a rule.
        UnsupportedVersion: An API or version that the declarations don't know.
    """
    reader = Reader(frame)
    key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    api = BY_KEY.get(key)
    if api is None:
        raise UnsupportedVersion(f"API {key} v{version}: not known")
    _check_version(api, version)
    client_id = reader.nullable_string()
    if api.is_flexible(version):
        reader.skip_tags()
    # Bytes behind a request are passed over, as Kafka does: librdkafka sends three of them.
    message = _body_codec(api.request, api, version).read(reader)
    return ReceivedRequest(api, version, correlation_id, client_id, message)


def write_response(request: ReceivedRequest, message: "DataclassInstance") -> list[Buffer]:
    """Pieces to send for the answer to a question."""
    api, version = request.api, request.version
    writer = Writer()
    writer.int32(request.correlation_id)
    if api.is_flexible(version) and api.key != API_VERSIONS.key:
        writer.unsigned_varint(0)
    _body_codec(api.response, api, version).write(writer, message)
    return _framed(writer)
