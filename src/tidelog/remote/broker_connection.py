"""Sends requests to a broker over one connection, in the highest version that both sides support.

A failure (no connection, a timeout, a malformed response) is a ClusterFailure that names the broker
and the operation. The connection is then closed, and the next request opens a new one. Callers
check the error codes in responses. Tests replace the network by implementing the protocol class
`Transport`. Its methods raise OSError. Not thread-safe.
"""

import errno
import os
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from tidelog.env import Clock, SystemClock
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, CorruptMessage, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.framing import MAX_FRAME_BYTES
from tidelog.protocol.messages import API_VERSIONS, AnyApi
from tidelog.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.requests import ClientConnection
from tidelog.protocol.schema import Api
from tidelog.remote import client
from tidelog.types import INT16_MAX, Buffer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance


TIMEOUT_S: Final = 30.0

# The timeout of a response is extended by one second each time this number of bytes is received.
_LEAST_BYTES_PER_S: Final = 1 << 16

# Maximum time in seconds that a wait for a connection or for bytes lasts before `is_stopped` is
# called again.
_SLICE_S: Final = 0.25

_Address: TypeAlias = tuple[int, int, int, str, tuple[object, ...]]


class Transport(Protocol):
    """Connection to one broker. Not thread-safe."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all buffers, in order."""
        ...

    def begin_answer(self) -> None:
        """Start the timeout of the next response; the timeout applies to the whole response."""
        ...

    def receive(self, max_bytes: int) -> bytes:
        """Wait for data, and return at most `max_bytes` bytes; empty at the end of the stream."""
        ...

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        ...


# Function that opens a connection to a host and port.
Connect: TypeAlias = Callable[[str, int], Transport]


def split_server(server: str) -> tuple[str, int]:
    """Return host and port of `host:port`, where the host can be an IPv6 address in brackets.

    Raises:
        ClusterFailure: The text doesn't have this form.
    """
    host, colon, port = server.strip().rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ClusterFailure(server, "connect", "host:port is needed")
    return host.removeprefix("[").removesuffix("]"), int(port)


def never() -> bool:
    """Return False; the default of `Patience.is_stopped`, which never ends a wait."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Timeout and cancellation of waits for a broker.

    Attributes:
        timeout_s: Timeout for connecting, for sending a buffer of a request, and for a whole
            response. The timeout of a response is extended by one second for each 64 KiB received.
        is_stopped: Function that is called at least four times a second while a connection is
            opened or a response is awaited. If it returns true, the wait ends with
            InterruptedError.
        clock: Clock for the timeouts.
    """

    timeout_s: float = TIMEOUT_S
    is_stopped: Callable[[], bool] = never
    clock: Clock = field(default_factory=SystemClock)

    def deadline(self) -> float:
        """Return the deadline of a wait that starts now, in seconds on `clock`."""
        return self._now() + self.timeout_s

    def left(self, deadline: float, what: str) -> float:
        """Return how long the next system call may wait, in seconds.

        Errors contain the text `what`.

        Raises:
            InterruptedError: `is_stopped` is true.
            TimeoutError: The deadline has passed.
        """
        if self.is_stopped():
            raise InterruptedError(f"canceled while waiting for a {what}")
        remaining_s = deadline - self._now()
        if remaining_s <= 0:
            raise TimeoutError(f"no {what} within {self.timeout_s:g} s")
        return min(remaining_s, _SLICE_S)

    def _now(self) -> float:
        return self.clock.monotonic_ms() / 1000


class SocketTransport:
    """TCP connection.

    The timeout of a response applies to the whole response, however many reads it takes.
    """

    def __init__(self, connection: socket.socket, patience: Patience) -> None:
        self._socket = connection
        self._patience = patience
        self._deadline = patience.deadline()

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all buffers, in order."""
        self._socket.settimeout(self._patience.timeout_s)
        for part in parts:
            self._socket.sendall(part)

    def begin_answer(self) -> None:
        """Start the timeout of the next response."""
        self._deadline = self._patience.deadline()

    def receive(self, max_bytes: int) -> bytes:
        """Wait for data, and return at most `max_bytes` bytes; empty at the end of the stream."""
        while True:
            self._socket.settimeout(self._patience.left(self._deadline, "complete response"))
            try:
                data = self._socket.recv(max_bytes)
            except TimeoutError:
                continue
            self._deadline += len(data) / _LEAST_BYTES_PER_S
            return data

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def connect_socket(
    host: str,
    port: int,
    *,
    timeout_s: float = TIMEOUT_S,
    is_stopped: Callable[[], bool] = never,
) -> Transport:
    """Open a TCP connection; raises OSError.

    `timeout_s` applies to connecting, to sending each buffer of a request, and to each response.
    """
    patience = Patience(timeout_s=timeout_s, is_stopped=is_stopped)
    deadline = patience.deadline()
    failure = OSError(f"host {host} has no IP address")
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
        raise OSError(f"invalid port {port}: give 1 to 65535")
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # UnicodeError (a ValueError) is raised if a label of the host name is empty or too long
    except ValueError as error:
        raise OSError(f"{host!r} is not a valid host name: {error}") from error


def _connect(
    connection: socket.socket, address: tuple[object, ...], patience: Patience, deadline: float
) -> None:
    connection.setblocking(False)
    code = connection.connect_ex(address)
    if code == errno.EINPROGRESS:
        poll = select.poll()
        poll.register(connection, select.POLLOUT)
        while not poll.poll(1000 * patience.left(deadline, "connection")):
            pass
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")
CLIENT_ID: Final = "tidelog-follow"

# Maximum number of bytes per read. With this limit, a response that declares a large size takes
# memory only for the bytes that have arrived.
_RECEIVE_BYTES: Final = 1 << 20


def _reason(error: OSError) -> str:
    """Return the text of a failed connection, without the number of the error."""
    if isinstance(error, socket.gaierror):
        return client.unresolved_text(error)
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error.strerror or f"{error}"


class BrokerConnection:
    """Client of one broker, with at most one open connection."""

    def __init__(
        self,
        host: str,
        port: int,
        connect: Connect,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        client_id: str = CLIENT_ID,
    ) -> None:
        self.host = host
        self.port = port
        self._connect = connect
        self._max_frame_bytes = max_frame_bytes
        self._client_id = client_id
        self._transport: Transport | None = None
        self._connection = ClientConnection(client_id)
        self._versions: Mapping[int, tuple[int, int]] = {}

    @property
    def address(self) -> str:
        """Broker as `host:port`."""
        return f"{self.host}:{self.port}"

    def request(self, api: Api[Request, Response], message: Request, *, least: int = 0) -> Response:
        """Send a request and wait for the response.

        Args:
            api: The API of the request.
            message: The request.
            least: Lowest usable version: the first version with all needed fields.

        Raises:
            ClusterFailure: The broker can't be reached or doesn't respond in time, or its response
                is invalid.
            UnsupportedVersion: The broker supports no suitable version.
        """
        self.send(api, message, least=least)
        return self.receive(api)

    def version_of(self, api: AnyApi, *, least: int = 0, most: int = INT16_MAX) -> int:
        """Return the highest version from `least` to `most` that both sides support.

        Raises the errors of `request`.
        """
        if self._transport is None:
            self._open()
        lowest, highest = self._versions.get(api.key, (0, -1))
        version = min(api.last, highest, most)
        if version < max(api.first, lowest, least):
            supported = f"{lowest} to {highest}" if highest >= 0 else "none"
            needed = f"{max(api.first, least)} to {min(api.last, most)}"
            raise UnsupportedVersion(
                f"{self.address}: a version of {api.name} from {needed} is needed, but the broker"
                f" supports {supported}"
            )
        return version

    def send(
        self,
        api: Api[Request, Response],
        message: Request,
        *,
        least: int = 0,
        most: int = INT16_MAX,
    ) -> None:
        """Send a request in a version from `least` to `most`, without waiting for the response."""
        version = self.version_of(api, least=least, most=most)
        self._send(api, version, message)

    def receive(self, api: Api[Request, Response]) -> Response:
        """Wait for the response to the oldest pending request; raises the errors of `request`."""
        try:
            response = self._read()
        except OSError as error:
            raise self._broken(api, _reason(error)) from error
        except CorruptMessage as error:
            raise self._broken(api, f"the response is invalid: {error}") from error
        assert isinstance(response, api.response)
        return response

    def _send(self, api: Api[Request, Response], version: int, message: Request) -> None:
        assert self._transport is not None
        try:
            self._transport.send(self._connection.request(api, version, message))
        except OSError as error:
            raise self._broken(api, _reason(error)) from error

    def _read(self) -> "DataclassInstance":
        if self._transport is None:
            raise ConnectionError("the connection was closed")
        self._transport.begin_answer()
        while (response := self._connection.next_response()) is None:
            size = min(max(self._connection.remaining_bytes, 1), _RECEIVE_BYTES)
            data = self._transport.receive(size)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._connection.feed(data)
        return response

    def _open(self) -> None:
        try:
            self._transport = self._connect(self.host, self.port)
        except OSError as error:
            raise ClusterFailure(self.address, "connect", _reason(error)) from error
        self._connection = ClientConnection(self._client_id, max_frame_bytes=self._max_frame_bytes)
        self._versions = self._request_versions()

    def _request_versions(self) -> dict[int, tuple[int, int]]:
        from tidelog import __version__

        request = ApiVersionsRequest(
            client_software_name="tidelog", client_software_version=__version__
        )
        self._send(API_VERSIONS, 3, request)
        response = self.receive(API_VERSIONS)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self._send(API_VERSIONS, 0, request)
            response = self.receive(API_VERSIONS)
        self._ensure_right(response)
        return {
            api_versions.api_key: (api_versions.min_version, api_versions.max_version)
            for api_versions in response.api_keys
        }

    def _ensure_right(self, response: ApiVersionsResponse) -> None:
        if response.error_code:
            raise self._broken(API_VERSIONS, client.named(response.error_code), response.error_code)

    def _broken(self, api: AnyApi, reason: str, code: int | None = None) -> ClusterFailure:
        self.close()
        return ClusterFailure(self.address, f"request {api.name}", reason, error_code=code)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
