"""Reads and writes the primitive types of Kafka's wire protocol, big-endian.

The compiled codecs (`codecs`) read and write whole messages; this module's functions are for
headers and single values. If a value to read exceeds the buffer, CorruptMessage with the position
is raised before anything is allocated. If a value to write does not fit into its field,
InvalidRequest is raised. Bytes and records are read as views of the given buffer and written
without a copy.

Source: Kafka's protocol guide, protocol primitive types; KIP-482 (compact types, tagged fields).
"""

from codecs import register_error
from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Final
from uuid import UUID

from tidelog.errors import CorruptMessage, InvalidRequest
from tidelog.types import INT16_MAX, INT32_MAX, UINT32_MAX, Buffer

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")

# Maximum size in bytes of a varint of a 32-bit number. Each byte has seven bits of the number.
VARINT_MAX_BYTES: Final = 5
# Maximum length of a string in bytes. The compact form allows longer strings, but Kafka rejects
# them.
STRING_BYTES_MAX: Final = INT16_MAX
# Maximum number of tagged fields in a struct. Kafka's messages have at most nine. The limit bounds
# the time to skip fields: skipping one field takes about a microsecond.
TAGS_MAX: Final = 100
ITEMS_MAX: Final = 2**62
NO_UUID: Final = UUID(int=0)
# Minimum size in bytes of a buffer that becomes a separate piece of a message. Smaller buffers are
# copied and joined.
COPY_LIMIT_BYTES: Final = 4096
# Maximum number of cached topic ids. Creating a UUID object is slow, and the same topic ids occur
# often.
_UUIDS_MAX: Final = 1024
_uuids: Final[dict[bytes, UUID]] = {}


# Name of the error handler for strings with invalid UTF-8.
REPLACE_INVALID: Final = "tidelog.protocol"


def _replace_invalid(failed: UnicodeError) -> tuple[str, int]:
    """Replace the invalid parts of a string by U+FFFD, as in Kafka, and return the rest decoded.

    An invalid byte becomes a character of three bytes, so the result may be longer than
    `STRING_BYTES_MAX`. A broker could neither return nor store such a string. If a group had such a
    name, for example, the broker could not list its groups any more.

    Raises:
        CorruptMessage: The result is longer than `STRING_BYTES_MAX`.
    """
    assert isinstance(failed, UnicodeDecodeError)
    data = failed.object
    rest = data[failed.start :].decode(errors="replace")
    size_bytes = failed.start + len(rest.encode())
    if size_bytes > STRING_BYTES_MAX:
        raise CorruptMessage(
            f"string of {len(data)} bytes with invalid UTF-8, whose replacement has {size_bytes}"
            f" bytes, at most {STRING_BYTES_MAX}"
        )
    return rest, len(data)


register_error(REPLACE_INVALID, _replace_invalid)


class TooManyItems(Exception):
    """Raised for a message with more list elements and tagged fields than `Reader.items`."""


class Reader:
    """Reads values from a buffer, one after another. Not thread-safe.

    Attributes:
        view: The buffer.
        at: Position of the next byte.
        items: Maximum number of list elements and tagged fields in a message, above which
            TooManyItems is raised.
    """

    __slots__ = ("at", "items", "view")

    def __init__(self, data: Buffer) -> None:
        view = data if isinstance(data, memoryview) else memoryview(data)
        self.view = view if view.format == "B" else view.cast("B")
        self.at = 0
        self.items = ITEMS_MAX

    @property
    def left(self) -> int:
        """Number of remaining bytes."""
        return len(self.view) - self.at

    def need(self, count: int, what: str) -> int:
        """Skip `count` bytes, and return the position of the first skipped byte.

        In errors, `what` is the name of these bytes.

        Raises:
            CorruptMessage: Fewer bytes remain, or the count is negative.
        """
        at = self.at
        if not 0 <= count <= self.left:
            raise CorruptMessage(
                f"{what} of {count} bytes, but only {self.left} bytes remain", at=at
            )
        self.at = at + count
        return at

    def int16(self) -> int:
        """Read a signed number of two bytes."""
        value: int = _INT16.unpack_from(self.view, self.need(2, "int16"))[0]
        return value

    def int32(self) -> int:
        """Read a signed number of four bytes."""
        value: int = _INT32.unpack_from(self.view, self.need(4, "int32"))[0]
        return value

    def unsigned_varint(self) -> int:
        """Read a number of at most 32 bits, seven bits per byte, the lowest bits first."""
        try:
            value, self.at = read_varint(self.view, self.at)
        except IndexError:
            raise CorruptMessage("message ends inside a varint", at=self.at) from None
        return value

    def skip_tags(self) -> None:
        """Skip a section of tagged fields without decoding them."""
        at = self.at
        try:
            # The section is nearly always empty.
            self.at = at + 1 if self.view[at] == 0 else skip_tags(self.view, at)
        except IndexError:
            raise CorruptMessage("message ends inside tagged fields", at=self.at) from None


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned number of at most 32 bits, and the position after it.

    The number has seven bits per byte, the lowest bits first.

    Raises:
        IndexError: The buffer ends inside the number.
        CorruptMessage: The number has more than 5 bytes or 32 bits.
    """
    first = view[at]
    if first < 0x80:
        return first, at + 1
    second = view[at + 1]
    value = first & 0x7F | (second & 0x7F) << 7
    if second < 0x80:
        return value, at + 2
    third = view[at + 2]
    value |= (third & 0x7F) << 14
    if third < 0x80:  # three bytes are enough for the length of nearly all records
        return value, at + 3
    shift, start = 21, at
    at += 3
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 7 * VARINT_MAX_BYTES:
            raise CorruptMessage("a varint of more than 5 bytes", at=start)
    if value > UINT32_MAX:
        raise CorruptMessage(f"varint {value} does not fit into 32 bits", at=start)
    return value, at


def skip_tags(view: memoryview, at: int) -> int:
    """Return the position after a section of tagged fields.

    Raises:
        IndexError: The buffer ends inside the section.
        CorruptMessage: A field is longer than the rest of the buffer, a varint is invalid, or there
            are more than `TAGS_MAX` fields.
    """
    count, at = read_varint(view, at)
    if count > TAGS_MAX:
        raise CorruptMessage(f"{count} tagged fields in a struct, at most {TAGS_MAX}", at=at)
    for _ in range(count):
        _, at = read_varint(view, at)
        size, at = read_varint(view, at)
        if size > len(view) - at:
            raise CorruptMessage(
                f"tagged field of {size} bytes, but only {len(view) - at} bytes remain", at=at
            )
        at += size
    return at


def varint_bytes(value: int) -> bytes:
    """Encode a number of at most 32 bits as an unsigned varint.

    Raises:
        InvalidRequest: The number is negative or has more than 32 bits.
    """
    if not 0 <= value <= UINT32_MAX:
        raise InvalidRequest(f"{value!r} does not fit into a varint of 32 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text_varint(value: int) -> bytes:
    """Encode the length field of a compact string; `value` is the string's length plus 1.

    Raises:
        ValueError: The string is longer than `STRING_BYTES_MAX`.
    """
    if value > STRING_BYTES_MAX + 1:
        raise ValueError
    return varint_bytes(value)


def uuid_of(data: bytes) -> UUID:
    """Return the UUID of these 16 bytes, from a cache."""
    uuid = _uuids.get(data)
    if uuid is None:
        if len(_uuids) >= _UUIDS_MAX:
            _uuids.clear()
        uuid = _uuids[data] = UUID(bytes=data) if any(data) else NO_UUID
    return uuid


def pieces_size(data: Buffer | Sequence[Buffer]) -> int:
    """Return the size in bytes of one buffer, or the total size of several buffers.

    Raises:
        InvalidRequest: The size does not fit into a length field.
    """
    size = len(data) if isinstance(data, bytes | bytearray | memoryview) else sum(map(len, data))
    if size >= INT32_MAX:
        raise InvalidRequest(f"{size} bytes are more than a length field can hold")
    return size


class Writer:
    """Collects a message as pieces. Small values are joined; large buffers stay separate.

    Attributes:
        add: Adds a small piece.
    """

    __slots__ = ("_parts", "_small", "add")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._small: list[Buffer] = []
        self.add: Callable[[Buffer], None] = self._small.append

    @property
    def size_bytes(self) -> int:
        """Size of all pieces in bytes."""
        return sum(map(len, self._parts)) + sum(map(len, self._small))

    def parts(self) -> list[Buffer]:
        """Return all pieces, in order."""
        self._gather()
        return self._parts

    def whole(self) -> bytes | None:
        """Return the message as one piece; None if it has large buffers (then use `parts`)."""
        return None if self._parts else b"".join(self._small)

    def pieces(self, data: Buffer | Sequence[Buffer]) -> None:
        """Add one buffer or several.

        Large buffers are not copied, so no buffer may change until the message is sent.
        """
        if isinstance(data, bytes | bytearray | memoryview):
            self._piece(data)
            return
        for piece in data:
            self._piece(piece)

    def _piece(self, data: Buffer) -> None:
        if len(data) < COPY_LIMIT_BYTES:
            self.add(data)
            return
        self._gather()
        self._parts.append(data)

    def _gather(self) -> None:
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small.clear()

    def _pack(self, layout: Struct, value: int) -> None:
        try:
            self.add(layout.pack(value))
        except error:
            raise InvalidRequest(f"{value!r} does not fit into {layout.size} bytes") from None

    def int16(self, value: int) -> None:
        """Write a signed number of two bytes."""
        self._pack(_INT16, value)

    def int32(self, value: int) -> None:
        """Write a signed number of four bytes."""
        self._pack(_INT32, value)

    def unsigned_varint(self, value: int) -> None:
        """Write a number of at most 32 bits, seven bits per byte, the lowest bits first."""
        self.add(varint_bytes(value))

    def nullable_string(self, value: str | None) -> None:
        """Write a nullable string with an int16 length."""
        data = b"" if value is None else value.encode()
        self.int16(-1 if value is None else len(data))
        self.add(data)
