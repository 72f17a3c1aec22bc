"""Wire format of the control channel: socket path, frames, JSON requests, responses and errors.

- Frame: a length (4 bytes, big-endian), then this number of bytes of JSON. A length over
  `FRAME_BYTES_MAX` is refused before memory is allocated.
- Request: `{"version": 1, "verb": NAME, "arguments": {...}}`.
- Response: `{"version": 1, "result": {...}}`, or `{"version": 1, "error": {"type": CLASS, "text":
  ..., "fields": {...}}}` with a class of `tidelog.errors`.

A Unix socket address holds about 100 bytes. On Linux, a socket with a longer path is addressed
through a descriptor of the directory (`/proc/self/fd/N/NAME`). On systems without `/proc/self/fd`,
a longer path raises an error that states the limit.
"""

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from tidelog import errors
from tidelog.errors import CorruptMessage, InvalidRequest, TidelogError, UnsupportedVersion

# Maximum length of a frame in bytes. A request of this length can attach about 60,000 staged
# segments.
FRAME_BYTES_MAX: Final = 16 << 20

_LENGTH: Final = struct.Struct(">I")
Message: TypeAlias = dict[str, object]


def encode_frame(message: Mapping[str, object]) -> bytes:
    """Encode a frame; raises InvalidRequest if the message is too large."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise InvalidRequest(
            f"message of {len(body)} bytes for the control channel exceeds {FRAME_BYTES_MAX} bytes;"
            " attach fewer segments at a time"
        )
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Converts the received bytes of one connection to messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes, and yield the messages that are now complete.

        Raises:
            CorruptMessage: A frame is too long or not a JSON object; the connection must be closed.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > FRAME_BYTES_MAX:
                raise CorruptMessage(
                    f"control channel frame of {size} bytes exceeds {FRAME_BYTES_MAX} bytes"
                )
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _message(body)


def _message(body: bytes) -> Message:
    try:
        message: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptMessage(f"control channel frame is not valid JSON: {error}") from error
    if not isinstance(message, dict):
        raise CorruptMessage(
            f"control channel frame contains a {type(message).__name__}, expected a JSON object"
        )
    return message


CONTROL_VERSION: Final = 1

# For each error class whose constructor takes more than a text: the names of the attributes that
# hold the constructor's arguments, in order. "" stands for the text.
_FIELDS: Final[Mapping[type[TidelogError], tuple[str, ...]]] = {
    errors.StorageFailure: ("path", "operation", "reason"),
    errors.ClockJump: ("last_ms", "now_ms", ""),
    errors.ConfigError: ("key", "value", "allowed"),
}

_CORRUPT: Final = ("reason", "at", "offset", "path", "position")


class ControlFailure(TidelogError):
    """The channel failed, or a response had an unknown error type.

    If a request was sent, it may have been executed.
    """


def request(verb: str, arguments: Mapping[str, object]) -> Message:
    """Build a request."""
    return {"version": CONTROL_VERSION, "verb": verb, "arguments": dict(arguments)}


def response(result: Mapping[str, object]) -> Message:
    """Build the response with a result."""
    return {"version": CONTROL_VERSION, "result": dict(result)}


def refusal(error: TidelogError) -> Message:
    """Build the response with an error."""
    kind = type(error)
    names = _CORRUPT if isinstance(error, errors.CorruptData) else _fields_of(kind)
    fields = {name: getattr(error, name) for name in names if name}
    described = {"type": kind.__name__, "text": str(error), "fields": fields}
    return {"version": CONTROL_VERSION, "error": described}


def _fields_of(kind: type[TidelogError]) -> tuple[str, ...]:
    for base, names in _FIELDS.items():
        if issubclass(kind, base):
            return names
    return ()


def read_request(message: Message) -> tuple[str, Mapping[str, object]]:
    """Return the verb and arguments of a request.

    Raises:
        UnsupportedVersion: The message's version is not `CONTROL_VERSION`.
        CorruptMessage: The message is not a request.
    """
    _check_version(message)
    verb, arguments = message.get("verb"), message.get("arguments")
    if not isinstance(verb, str) or not isinstance(arguments, dict):
        raise CorruptMessage(
            f"control channel request without `verb` and `arguments`: {_excerpt(message)}"
        )
    return verb, arguments


def read_response(message: Message) -> Mapping[str, object]:
    """Return the result of a response.

    Raises:
        TidelogError: The response is an error. The exception has the type that the response names,
            or `ControlFailure` if this release doesn't know that type or its fields.
        UnsupportedVersion: The message's version is not `CONTROL_VERSION`.
        CorruptMessage: The message is not a response.
    """
    _check_version(message)
    error = message.get("error")
    if isinstance(error, dict):
        raise _read_error(error)
    result = message.get("result")
    if not isinstance(result, dict):
        raise CorruptMessage(
            f"control channel response without `result` and `error`: {_excerpt(message)}"
        )
    return result


def _check_version(message: Message) -> None:
    if message.get("version") != CONTROL_VERSION:
        raise UnsupportedVersion(
            f"control channel version {message.get('version')!r} is not supported,"
            f" only {CONTROL_VERSION}"
        )


def _read_error(described: Mapping[str, object]) -> TidelogError:
    kind = getattr(errors, str(described.get("type")), None)
    text, fields = str(described.get("text")), described.get("fields")
    if not (isinstance(kind, type) and issubclass(kind, TidelogError)):
        return ControlFailure(f"{described.get('type')}: {text}")
    if not isinstance(fields, dict):
        return ControlFailure(f"{kind.__name__}: {text}")
    try:
        if issubclass(kind, errors.CorruptData):
            return kind(fields["reason"], **{name: fields[name] for name in _CORRUPT[1:]})
        names = _fields_of(kind)
        return kind(*[fields[name] if name else text for name in names]) if names else kind(text)
    except (KeyError, TypeError):
        return ControlFailure(f"{kind.__name__}: {text}")  # an error type of a later release


def _excerpt(message: Mapping[str, object]) -> str:
    return json.dumps(message)[:200]


SOCKET_FILE: Final = "tidelog-control.sock"

# Maximum number of connections. If one more client connects, the server closes the least recently
# active connection that has no pending request or response. If there is no such connection, the
# server closes the least recently active connection.
CONNECTIONS_MAX: Final = 32

MODE: Final = 0o600
_BACKLOG: Final = 16

# Maximum length of a socket address, in bytes. The systems' limits, 108 on Linux and 104 on macOS,
# include a closing zero byte.
ADDRESS_BYTES_MAX: Final = 103

_DESCRIPTORS: Final = "/proc/self/fd"


@contextmanager
def address(directory: str, name: str = SOCKET_FILE) -> Iterator[str]:
    """Yield the address of a socket in a directory. The address is valid in the `with` block.

    Raises:
        InvalidRequest: The path is too long, and this system can't shorten it.
        OSError: The path is too long, and the directory can't be opened.
    """
    path = f"{directory}/{name}"
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield path
        return
    if not Path(_DESCRIPTORS).is_dir():
        raise InvalidRequest(
            f"{path} has {len(os.fsencode(path))} bytes, but a socket's address has at most"
            f" {ADDRESS_BYTES_MAX}; open the directory by a shorter path, such as a link to it"
        )
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_DESCRIPTORS}/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def remove_socket(directory: str) -> None:
    """Remove the socket file, if this is possible."""
    with suppress(OSError):
        Path(directory, SOCKET_FILE).unlink()


def listen(directory: str) -> socket.socket:
    """Return a listening socket. Only the user that owns the socket file may connect to it.

    The socket file gets its final name after the socket has begun to listen.

    Raises:
        InvalidRequest: The directory's path is too long for a socket.
        OSError: The socket can't be created.
    """
    temporary = Path(directory, f"{SOCKET_FILE}.tmp")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(OSError):  # fails on macOS: there, the file has another mode until `chmod`
            os.fchmod(listener.fileno(), MODE)
        temporary.unlink(missing_ok=True)
        with address(directory, temporary.name) as bound_to:
            listener.bind(bound_to)
        temporary.chmod(MODE)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        temporary.rename(temporary.with_name(SOCKET_FILE))
    except BaseException:
        listener.close()
        raise
    return listener
