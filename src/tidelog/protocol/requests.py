"""Request and response headers and correlation ids, for clients and for a broker.

`ClientConnection` is a client's side: it encodes requests, and decodes responses in the order of
the requests. `read_request` and `write_response` are the broker's side. This module opens no
socket: the caller passes received bytes to `ClientConnection.feed`, and sends the returned pieces
in order.

The methods of a ClientConnection can be called in any order. After a CorruptMessage, the
ClientConnection can't be used any more.

Source: Kafka's protocol guide, request and response headers; KIP-482.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping
from functools import cache, lru_cache
from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tidelog.amounts import plural
from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedRequest, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.codecs import Codec, struct_codec
from tidelog.protocol.framing import LENGTH_BYTES, MAX_FRAME_BYTES, Frames
from tidelog.protocol.messages import API_VERSIONS, BY_KEY, AnyApi
from tidelog.protocol.schema import ANY_VERSION, Api
from tidelog.protocol.wire import COPY_LIMIT_BYTES, REPLACE_INVALID, Reader, TooManyItems, Writer
from tidelog.types import INT32_MAX, Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Request = TypeVar("Request", bound="DataclassInstance")

# Beginning of a request: API key, version, correlation id, and the length of the client id.
_HEAD: Final = Struct(">hhih")

_LENGTH_SIZE: Final = 2
_RESPONSE_HEAD: Final = Struct(">ii")
_RESPONSE_HEAD_FLEXIBLE: Final = Struct(">iix")


class _Waiting(NamedTuple):
    correlation_id: int
    api: AnyApi
    version: int


class ClientConnection:
    """Client side of one connection. Not thread-safe."""

    def __init__(self, client_id: str, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._client_id = client_id
        self._frames = Frames(max_frame_bytes)
        self._waiting: deque[_Waiting] = deque()
        self._next_id = 0

    @property
    def remaining_bytes(self) -> int:
        """Number of bytes missing from the current response, or from its incomplete length."""
        return self._frames.remaining_bytes

    def request(
        self, api: "Api[Request, DataclassInstance]", version: int, message: Request
    ) -> list[Buffer]:
        """Return the pieces to send for a request.

        Raises:
            UnsupportedVersion: The declarations do not know the version.
            InvalidRequest: A value does not fit into its field.
        """
        _check_version(api, version)
        waiting = _Waiting(self._next_id, api, version)
        self._next_id = 0 if self._next_id == INT32_MAX else self._next_id + 1
        writer = Writer()
        writer.int16(api.key)
        writer.int16(version)
        writer.int32(waiting.correlation_id)
        # In every version of the header, the client id's length is an int16, never a compact
        # length.
        writer.nullable_string(self._client_id)
        if api.is_flexible(version):
            writer.unsigned_varint(0)
        _body_codec(api.request, api, version).write(writer, message)
        self._waiting.append(waiting)
        return _framed(writer)

    def feed(self, data: Buffer) -> None:
        """Add bytes received from the broker; raises CorruptMessage for an invalid frame length."""
        self._frames.feed(data)

    def next_response(self) -> "DataclassInstance | None":
        """Return the next response, an instance of `api.response`; None if no response is complete.

        Raises:
            CorruptMessage: The frame is invalid, or its correlation id is not the expected one.
        """
        frame = self._frames.next()
        if frame is None:
            return None
        reader = Reader(frame)
        correlation_id = reader.int32()
        waiting = self._waiting.popleft() if self._waiting else None
        if waiting is None or waiting.correlation_id != correlation_id:
            expected = "none" if waiting is None else f"the response to {waiting.correlation_id}"
            raise CorruptMessage(f"response to request {correlation_id}, expected {expected}")
        return _read_response(reader, waiting)


def _read_response(reader: Reader, waiting: _Waiting) -> "DataclassInstance":
    api, version = waiting.api, waiting.version
    if api.key == API_VERSIONS.key:
        # A broker that does not know the requested version responds with UNSUPPORTED_VERSION, in
        # version 0.
        start = reader.at
        if reader.int16() == ErrorCode.UNSUPPORTED_VERSION:
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
            f"{api.name} v{version}: {plural(reader.left, 'byte')} after the message", at=reader.at
        )
    return message


def _body_codec(kind: type[Request], api: AnyApi, version: int) -> Codec[Request]:
    return struct_codec(kind, version, api.is_flexible(version))


def _check_version(api: AnyApi, version: int) -> None:
    if not api.first_declared <= version <= api.last:
        raise UnsupportedVersion(
            f"{api.name} v{version} is unknown; known versions are {api.first_declared}"
            f" to {api.last}"
        )


def _framed(writer: Writer) -> list[Buffer]:
    return [writer.size_bytes.to_bytes(LENGTH_BYTES, "big"), *writer.parts()]


# -- a broker's side -----------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """Request that a broker received; read-only.

    Attributes:
        api: API of the request.
        version: Version of the request.
        correlation_id: Correlation id, which the response repeats.
        client_id: Client id in the header; None for null.
        message: Body of the request, an instance of `api.request`.
    """

    api: AnyApi
    version: int
    correlation_id: int
    client_id: str | None
    message: "DataclassInstance"


class LongRequest(Exception):
    """Raised for a request with more list elements than may be read at once.

    The error keeps the request's encoded body; `read` decodes it in parts.

    Attributes:
        api: API of the request.
        version: Version of the request.
        correlation_id: Correlation id, which the response repeats.
        client_id: Client id in the header; None for null.
        items_max: Number of list elements that may be read at once.
    """

    def __init__(self, head: ReceivedRequest, items_max: int, body: Buffer) -> None:
        super().__init__(f"{head.api.name} v{head.version}: more than {items_max} list elements")
        self.api = head.api
        self.version = head.version
        self.correlation_id = head.correlation_id
        self.client_id = head.client_id
        self.items_max = items_max
        self._body = body

    def read(self) -> "Generator[None, None, ReceivedRequest]":
        """Decode the body; yield after every `SLICE_ITEMS` elements, so that other work can run.

        Raises:
            CorruptMessage: The message is invalid.
        """
        codec = _body_codec(self.api.request, self.api, self.version)
        message = yield from codec.read_sliced(Reader(self._body))
        return ReceivedRequest(self.api, self.version, self.correlation_id, self.client_id, message)


def read_request(
    frame: Buffer,
    served: Mapping[int, tuple[int, int]] | None = None,
    items: Callable[[int, int], int] | None = None,
) -> ReceivedRequest:
    """Decode the request in a frame. Bytes and records in the request are views of the frame.

    Bytes after the request's last field are ignored, as in Kafka, because librdkafka sends such
    bytes.

    Args:
        frame: Frame without its length.
        served: First and last supported version (inclusive) by API key; None for all declared
            versions of all APIs.
        items: Function that returns how many list elements may be read at once. Its arguments are
            the API key and the frame's size in bytes. None for no limit.

    Raises:
        CorruptMessage: The frame is invalid.
        LongRequest: The request has more list elements than `items` allows.
        UnsupportedRequest: The API or the version is not in `served`, or has no declaration. The
            request's body was not decoded.
    """
    reader = Reader(frame)
    view = reader.view
    try:
        key, version, correlation_id, length = _HEAD.unpack_from(view)
    except error:
        raise _headless(reader) from None
    first, last = (0, ANY_VERSION) if served is None else served.get(key, _NO_VERSIONS)
    codec = _request_codec(key, version) if first <= version <= last else None
    reader.at = end = _HEAD.size + max(length, 0)
    if end > len(view):
        reader.at = _HEAD.size
        raise CorruptMessage(
            f"string of {length} bytes, but only {reader.left} bytes remain", at=reader.at
        )
    client_id = None if length < 0 else str(view[_HEAD.size : end], "utf-8", REPLACE_INVALID)
    if codec is None:
        raise UnsupportedRequest(key, version, correlation_id, client_id)
    if codec.flexible:
        reader.skip_tags()
    if items is not None:
        reader.items = items(key, len(view))
    try:
        message = codec.read(reader)
    except TooManyItems:
        api = codec.api
        head = ReceivedRequest(api, version, correlation_id, client_id, api.request())
        raise LongRequest(head, reader.items, view[reader.at :]) from None
    return ReceivedRequest(codec.api, version, correlation_id, client_id, message)


def _headless(reader: Reader) -> CorruptMessage:
    """Return the error for a frame that ends inside the fixed-size fields of its header."""
    if reader.left < _HEAD.size - _LENGTH_SIZE:
        return CorruptMessage(f"a request of {reader.left} bytes has no header", at=0)
    at = _HEAD.size - _LENGTH_SIZE
    return CorruptMessage(
        f"the length of the client id needs {_LENGTH_SIZE} bytes, but only {reader.left - at}"
        " remain",
        at=at,
    )


_NO_VERSIONS: Final = (0, -1)


class _RequestCodec(NamedTuple):
    api: AnyApi
    flexible: bool
    read: "Callable[[Reader], DataclassInstance]"


@lru_cache(maxsize=1024)
def _request_codec(key: int, version: int) -> _RequestCodec | None:
    api = BY_KEY.get(key)
    if api is None or not api.first_declared <= version <= api.last:
        return None
    read = _body_codec(api.request, api, version).read
    return _RequestCodec(api, api.is_flexible(version), read)


def write_response(request: ReceivedRequest, message: "DataclassInstance") -> list[Buffer]:
    """Return the pieces to send for a response.

    Raises:
        InvalidRequest: A value does not fit into its field.
    """
    write, layout = _response_codec(request.api.key, request.version)
    return _written(request, message, write, layout)


def write_response_around(
    request: ReceivedRequest, message: "DataclassInstance", written: str
) -> list[Buffer]:
    """Return the pieces of a response in which one list is already encoded (`WrittenItems`).

    `written` is the name of the field with the encoded list.
    """
    api, (_, layout) = request.api, _response_codec(request.api.key, request.version)
    write = _body_codec(api.response, api, request.version).write_around(written)
    return _written(request, message, write, layout)


def _written(
    request: ReceivedRequest,
    message: "DataclassInstance",
    write: "Callable[[Writer, DataclassInstance], None]",
    layout: Struct,
) -> list[Buffer]:
    writer = Writer()
    write(writer, message)
    whole = writer.whole()
    if whole is not None:  # the usual case: no large pieces
        size = len(whole) + layout.size - LENGTH_BYTES
        head = layout.pack(size, request.correlation_id)
        return [head + whole] if len(whole) < COPY_LIMIT_BYTES else [head, whole]
    parts = writer.parts()
    size = sum(map(len, parts)) + layout.size - LENGTH_BYTES
    head = layout.pack(size, request.correlation_id)
    if parts and len(parts[0]) < COPY_LIMIT_BYTES:
        parts[0] = head + parts[0]
    else:
        parts.insert(0, head)
    return parts


@cache
def _response_codec(
    key: int, version: int
) -> "tuple[Callable[[Writer, DataclassInstance], None], Struct]":
    api = BY_KEY[key]
    # The response of ApiVersions always has the header's oldest version, because a client may know
    # no newer version.
    flexible = api.is_flexible(version) and api.key != API_VERSIONS.key
    layout = _RESPONSE_HEAD_FLEXIBLE if flexible else _RESPONSE_HEAD
    return _body_codec(api.response, api, version).write, layout
