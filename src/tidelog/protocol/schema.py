"""Messages as declarations: dataclasses whose fields say how they lie on the wire.

    @dataclass(slots=True, kw_only=True)
    class FetchPartition:
        partition: int = wire(INT32)
        current_leader_epoch: int = wire(INT32, since=9, default=-1)
        high_watermark: int = wire(INT64, since=18, tag=1, default=INT64_MAX)

A field exists in the versions [since, until], both inclusive; in others it has its default when
read and is left out when written. A codec is made of a declaration for one version at its first
use and kept. Source: Kafka's protocol guide; KIP-482.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast
from uuid import UUID

from tidelog.errors import CorruptMessage
from tidelog.protocol.wire import NO_UUID, Reader, Writer
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Message = TypeVar("Message", bound="DataclassInstance")

ANY_VERSION: Final = 2**15 - 1
_SPEC: Final = "wire"


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one type is read and written in one version.

    Attributes:
        read: Takes a value from a reader.
        write: Puts a value into a writer.
        min_bytes: What the shortest value takes, by which counts are checked.
    """

    read: Callable[[Reader], T]
    write: Callable[[Writer, T], None]
    min_bytes: int


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of the protocol.

    Attributes:
        codec: Makes its codec for a version; `flexible` versions have compact lengths and tags.
        zero: Makes the value of a field that is not there and has no other default.
    """

    codec: Callable[[int, bool], Codec[T]]
    zero: Callable[[], T]


def _plain(codec: Codec[T], zero: T) -> Kind[T]:
    return Kind(lambda _version, _flexible: codec, lambda: zero)


INT8: Final = _plain(Codec(Reader.int8, Writer.int8, 1), 0)
INT16: Final = _plain(Codec(Reader.int16, Writer.int16, 2), 0)
INT32: Final = _plain(Codec(Reader.int32, Writer.int32, 4), 0)
INT64: Final = _plain(Codec(Reader.int64, Writer.int64, 8), 0)
FLOAT64: Final = _plain(Codec(Reader.float64, Writer.float64, 8), 0.0)
BOOLEAN: Final = _plain(Codec(Reader.boolean, Writer.boolean, 1), False)
UUID16: Final[Kind[UUID]] = _plain(Codec(Reader.uuid, Writer.uuid, 16), NO_UUID)


def _sized(
    read_value: Callable[[Reader, int], T],
    write_value: Callable[[Writer, T], None],
    size_of: Callable[[T], int],
    *,
    flexible: bool,
    nullable: bool,
    short: bool = False,
) -> Codec[T | None]:
    """A value behind its length, null where that is -1."""

    def read(reader: Reader) -> T | None:
        at = reader.at
        count = reader.length(compact=flexible, short=short)
        if count >= 0:
            return read_value(reader, count)
        if count < -1 or not nullable:
            raise CorruptMessage(f"length {count} where there must be a value", at=at)
        return None

    def write(writer: Writer, value: T | None) -> None:
        if value is None:
            assert nullable, "null in a version that knows none"
            writer.length(-1, compact=flexible, short=short)
            return
        writer.length(size_of(value), compact=flexible, short=short)
        write_value(writer, value)

    return Codec(read, write, 1 if flexible else 2 if short else 4)


def _text_codec(*, flexible: bool, nullable: bool) -> Codec[str | None]:
    inner = _sized(
        lambda reader, count: bytes(reader.raw(count, "string")),
        Writer.raw,
        len,
        flexible=flexible,
        nullable=nullable,
        short=True,
    )

    def read(reader: Reader) -> str | None:
        at = reader.at
        found = inner.read(reader)
        try:
            return None if found is None else str(found, "utf-8")
        except UnicodeDecodeError as problem:
            raise CorruptMessage(f"a string that is not UTF-8: {problem.reason}", at=at) from None

    def write(writer: Writer, value: str | None) -> None:
        inner.write(writer, None if value is None else value.encode())

    return Codec(read, write, inner.min_bytes)


def _bytes_codec(*, flexible: bool, nullable: bool) -> Codec[Buffer | None]:
    def read(reader: Reader, count: int) -> Buffer:
        return reader.raw(count)

    return _sized(
        read,
        Writer.raw,
        len,
        flexible=flexible,
        nullable=nullable,
    )


STRING: Final[Kind[str]] = Kind(
    lambda _version, flexible: cast("Codec[str]", _text_codec(flexible=flexible, nullable=False)),
    lambda: "",
)


def nullable_string(since: int = 0) -> Kind[str | None]:
    """A string that may be null from a version on; its default is null."""
    return Kind(
        lambda version, flexible: _text_codec(flexible=flexible, nullable=version >= since),
        lambda: None,
    )


BYTES: Final[Kind[Buffer]] = Kind(
    lambda _version, flexible: cast(
        "Codec[Buffer]", _bytes_codec(flexible=flexible, nullable=False)
    ),
    lambda: b"",
)


def nullable_bytes(since: int = 0) -> Kind[Buffer | None]:
    """Bytes that may be null from a version on; their default is null."""
    return Kind(
        lambda version, flexible: _bytes_codec(flexible=flexible, nullable=version >= since),
        lambda: None,
    )


# Record batches: bytes that may be null in every version.
RECORDS: Final[Kind[Buffer | None]] = Kind(
    lambda _version, flexible: _bytes_codec(flexible=flexible, nullable=True), lambda: None
)


def _array_codec(item: Codec[T], *, flexible: bool, nullable: bool) -> Codec[list[T] | None]:
    def read_items(reader: Reader, count: int) -> list[T]:
        if count * item.min_bytes > reader.left:
            raise CorruptMessage(
                f"an array of {count}, {reader.left} bytes are left, {item.min_bytes} each needed",
                at=reader.at,
            )
        read = item.read
        return [read(reader) for _ in range(count)]

    def write_items(writer: Writer, values: list[T]) -> None:
        for value in values:
            item.write(writer, value)

    return _sized(read_items, write_items, len, flexible=flexible, nullable=nullable)


def array(item: Kind[T]) -> Kind[list[T]]:
    """Any number of one type."""
    return Kind(
        lambda version, flexible: cast(
            "Codec[list[T]]",
            _array_codec(item.codec(version, flexible), flexible=flexible, nullable=False),
        ),
        list,
    )


def nullable_array(item: Kind[T], since: int = 0) -> Kind[list[T] | None]:
    """An array that may be null from a version on; its default is null."""
    return Kind(
        lambda version, flexible: _array_codec(
            item.codec(version, flexible), flexible=flexible, nullable=version >= since
        ),
        lambda: None,
    )


def struct(kind: type[Message]) -> Kind[Message]:
    """Another declaration, inside."""
    return Kind(lambda version, flexible: struct_codec(kind, version, flexible), kind)


def nullable_struct(kind: type[Message]) -> Kind[Message | None]:
    """Another declaration, inside, behind a byte that is -1 where there is none."""
    return Kind(
        lambda version, flexible: _nullable_codec(struct_codec(kind, version, flexible)),
        lambda: None,
    )


def _nullable_codec(inner: Codec[Message]) -> Codec[Message | None]:
    def read(reader: Reader) -> Message | None:
        return None if reader.int8() < 0 else inner.read(reader)

    def write(writer: Writer, value: Message | None) -> None:
        writer.int8(-1 if value is None else 1)
        if value is not None:
            inner.write(writer, value)

    return Codec(read, write, 1)


@dataclass(frozen=True, slots=True)
class _Spec:
    kind: Kind[object]
    since: int
    until: int
    tag: int | None


class _Missing:
    pass


_MISSING: Final = _Missing()


def wire(
    kind: Kind[T],
    *,
    since: int = 0,
    until: int = ANY_VERSION,
    tag: int | None = None,
    default: T | _Missing = _MISSING,
) -> T:
    """A field of a message.

    Args:
        kind: Its type.
        since: First version that has it.
        until: Last version that has it, inclusive.
        tag: Its number among the tagged fields; None for an ordinary one.
        default: Its value where it is not there; the type's zero unless given.
    """
    spec = _Spec(cast("Kind[object]", kind), since, until, tag)
    if isinstance(default, _Missing):
        made: object = dataclasses.field(default_factory=kind.zero, metadata={_SPEC: spec})
    else:
        made = dataclasses.field(default=default, metadata={_SPEC: spec})
    return cast("T", made)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    codec: Codec[object]


@cache
def struct_codec(kind: type[Message], version: int, flexible: bool) -> Codec[Message]:
    """The codec of a declaration in one version."""
    plain, tagged = _fields_of(kind, version, flexible=flexible)
    blank = kind()

    def read(reader: Reader) -> Message:
        values = {field.name: field.codec.read(reader) for field in plain}
        if flexible:
            _read_tags(reader, tagged, values)
        return kind(**values)

    def write(writer: Writer, value: Message) -> None:
        for field in plain:
            field.codec.write(writer, getattr(value, field.name))
        if flexible:
            _write_tags(writer, tagged, value, blank)

    smallest = sum(field.codec.min_bytes for field in plain) + flexible
    return Codec(read, write, max(smallest, 1))


def _fields_of(
    kind: "type[DataclassInstance]", version: int, *, flexible: bool
) -> tuple[list[_Field], dict[int, _Field]]:
    plain: list[_Field] = []
    tagged: dict[int, _Field] = {}
    for declared in dataclasses.fields(kind):
        spec = declared.metadata[_SPEC]
        assert isinstance(spec, _Spec)
        if not spec.since <= version <= spec.until:
            continue
        field = _Field(declared.name, spec.kind.codec(version, flexible))
        if spec.tag is None:
            plain.append(field)
        else:
            assert flexible, f"{kind.__name__}.{declared.name}: tags need a flexible version"
            tagged[spec.tag] = field
    return plain, dict(sorted(tagged.items()))


def _read_tags(reader: Reader, tagged: dict[int, _Field], values: dict[str, object]) -> None:
    """Tagged fields in any order; those nobody knows are stepped over."""
    for _ in range(reader.unsigned_varint()):
        tag = reader.unsigned_varint()
        size = reader.unsigned_varint()
        at = reader.need(size, "tagged field")
        field = tagged.get(tag)
        if field is None:
            continue
        end, reader.at, reader.end = reader.end, at, at + size
        values[field.name] = field.codec.read(reader)
        if reader.left:
            raise CorruptMessage(f"tag {tag} is {reader.left} bytes too long", at=reader.at)
        reader.end = end


def _write_tags(
    writer: Writer,
    tagged: dict[int, _Field],
    value: "DataclassInstance",
    blank: "DataclassInstance",
) -> None:
    """The tagged fields that differ from their defaults, by rising numbers."""
    present = [
        (tag, field)
        for tag, field in tagged.items()
        if getattr(value, field.name) != getattr(blank, field.name)
    ]
    writer.unsigned_varint(len(present))
    for tag, field in present:
        inner = Writer()
        field.codec.write(inner, getattr(value, field.name))
        writer.unsigned_varint(tag)
        writer.unsigned_varint(inner.size_bytes)
        writer.extend(inner)
