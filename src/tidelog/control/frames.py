"""Frames of the control channel: a length of 4 bytes, big-endian, and so many bytes of JSON.

Pure: bytes in, objects out. A length over `FRAME_BYTES_MAX` is refused before anything is kept.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from tidelog.errors import CorruptMessage, InvalidRequest

# Some 60,000 staged segments in one request.
FRAME_BYTES_MAX: Final = 16 << 20
_LENGTH: Final = struct.Struct(">I")

Message: TypeAlias = dict[str, object]


def encode_frame(message: Mapping[str, object]) -> bytes:
    """One frame; raises InvalidRequest where the message is too large for one."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise InvalidRequest(
            f"a message of {len(body)} bytes for the control channel, at most {FRAME_BYTES_MAX}"
            " are sent: attach fewer segments at a time"
        )
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Bytes as they come, messages as they are whole. For one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are whole with these bytes.

        Raises:
            CorruptMessage: A frame that is too long, or holds no JSON object; give up the
                connection.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > FRAME_BYTES_MAX:
                raise CorruptMessage(f"a frame of {size} bytes, at most {FRAME_BYTES_MAX} are read")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _message(body)


def _message(body: bytes) -> Message:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptMessage(f"a frame that is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptMessage(f"a frame with a {type(found).__name__} where an object is due")
    return found
