"""Reading and writing the primitive types of Kafka's wire protocol, big-endian.

Every length and count is compared with the bytes that are left before anything is allocated; what
does not fit raises CorruptMessage with the place. Bytes and records come out as views of the
buffer that was handed in, and go in without a copy.

Source: Kafka's protocol guide, protocol primitive types; KIP-482 (compact types, tagged fields).
"""

from struct import Struct, error
from typing import Final
from uuid import UUID

from tidelog.errors import CorruptMessage, InvalidRequest
from tidelog.types import INT32_MAX, Buffer

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_FLOAT64: Final = Struct(">d")

# A 32-bit number in groups of seven bits.
VARINT_MAX_BYTES: Final = 5
UINT32_MAX: Final = 2**32 - 1
INT16_MAX: Final = 2**15 - 1
NO_UUID: Final = UUID(int=0)
# Larger pieces go out as they are instead of being copied together.
_COPY_LIMIT_BYTES: Final = 4096


class Reader:
    """A place in a buffer that runs on. One owner.

    Attributes:
        at: Position of the next byte.
        end: Position behind the last byte that may be read.
    """

    __slots__ = ("_view", "at", "end")

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
        self.at = 0
        self.end = len(self._view)

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return self.end - self.at

    def need(self, count: int, what: str) -> int:
        """Step over `count` bytes and say where they began.

        Raises:
            CorruptMessage: There are not as many, or the count is negative.
        """
        at = self.at
        if not 0 <= count <= self.end - at:
            raise CorruptMessage(f"{what} of {count} bytes, {self.end - at} are left", at=at)
        self.at = at + count
        return at

    def int8(self) -> int:
        """One byte with a sign."""
        value = self._view[self.need(1, "int8")]
        return value - 256 if value > 127 else value

    def boolean(self) -> bool:
        """One byte; everything but 0 is true."""
        return self._view[self.need(1, "boolean")] != 0

    def int16(self) -> int:
        """Two bytes."""
        value: int = _INT16.unpack_from(self._view, self.need(2, "int16"))[0]
        return value

    def int32(self) -> int:
        """Four bytes."""
        value: int = _INT32.unpack_from(self._view, self.need(4, "int32"))[0]
        return value

    def int64(self) -> int:
        """Eight bytes."""
        value: int = _INT64.unpack_from(self._view, self.need(8, "int64"))[0]
        return value

    def float64(self) -> float:
        """Eight bytes, IEEE 754."""
        value: float = _FLOAT64.unpack_from(self._view, self.need(8, "float64"))[0]
        return value

    def unsigned_varint(self) -> int:
        """A number of at most 32 bits, seven to a byte, the lowest first."""
        value = shift = 0
        start = self.at
        while True:
            byte = self._view[self.need(1, "varint")]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= 7 * VARINT_MAX_BYTES:
                raise CorruptMessage("a varint of more than 5 bytes", at=start)
        if value > UINT32_MAX:
            raise CorruptMessage(f"varint {value} does not fit into 32 bits", at=start)
        return value

    def uuid(self) -> UUID:
        """Sixteen bytes."""
        at = self.need(16, "uuid")
        return UUID(bytes=bytes(self._view[at : at + 16]))

    def raw(self, count: int, what: str = "bytes") -> memoryview:
        """The next `count` bytes as a view."""
        at = self.need(count, what)
        return self._view[at : at + count]

    def length(self, *, compact: bool, short: bool = False) -> int:
        """A length or count as it stands before strings, bytes and arrays; -1 for null."""
        if compact:
            return self.unsigned_varint() - 1
        return self.int16() if short else self.int32()

    def skip_tags(self) -> None:
        """Step over a section of tagged fields of which none is known."""
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self.need(self.unsigned_varint(), "tagged field")


class Writer:
    """Collects a message as pieces: small values together, large ones as they were handed in."""

    __slots__ = ("_now", "_parts", "size_bytes")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._now = bytearray()
        self.size_bytes = 0

    def parts(self) -> list[Buffer]:
        """All pieces, in order; nothing may be written after it."""
        return [*self._parts, self._now] if self._now else list(self._parts)

    def raw(self, data: Buffer) -> None:
        """Bytes as they are; large ones are not copied and must not change until they are sent."""
        size = len(data)
        self.size_bytes += size
        if size < _COPY_LIMIT_BYTES:
            self._now += data
            return
        if self._now:
            self._parts.append(self._now)
            self._now = bytearray()
        self._parts.append(data)

    def extend(self, other: "Writer") -> None:
        """All that another one has collected."""
        for part in other.parts():
            self.raw(part)

    def _pack(self, layout: Struct, value: float) -> None:
        try:
            self.raw(layout.pack(value))
        except error:
            raise InvalidRequest(f"{value!r} does not fit into {layout.size} bytes") from None

    def int8(self, value: int) -> None:
        """One byte with a sign."""
        if not -128 <= value <= 127:
            raise InvalidRequest(f"{value!r} does not fit into 1 byte")
        self.raw(bytes((value & 0xFF,)))

    def boolean(self, value: bool) -> None:
        """One byte, 0 or 1."""
        self.raw(b"\x01" if value else b"\x00")

    def int16(self, value: int) -> None:
        """Two bytes."""
        self._pack(_INT16, value)

    def int32(self, value: int) -> None:
        """Four bytes."""
        self._pack(_INT32, value)

    def int64(self, value: int) -> None:
        """Eight bytes."""
        self._pack(_INT64, value)

    def float64(self, value: float) -> None:
        """Eight bytes, IEEE 754."""
        self._pack(_FLOAT64, value)

    def unsigned_varint(self, value: int) -> None:
        """A number of at most 32 bits, seven to a byte, the lowest first."""
        if not 0 <= value <= UINT32_MAX:
            raise InvalidRequest(f"{value!r} does not fit into a varint of 32 bits")
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        self.raw(out)

    def uuid(self, value: UUID) -> None:
        """Sixteen bytes."""
        self.raw(value.bytes)

    def length(self, count: int, *, compact: bool, short: bool = False) -> None:
        """A length or count as it stands before strings, bytes and arrays; -1 for null.

        Raises:
            InvalidRequest: It is more than the format can say.
        """
        if count > (INT16_MAX if short and not compact else INT32_MAX - 1):
            raise InvalidRequest(f"a length of {count} is more than this version can say")
        if compact:
            self.unsigned_varint(count + 1)
        elif short:
            self.int16(count)
        else:
            self.int32(count)
