"""Message declarations: dataclasses whose fields define their encoding, and `Api`.

    @dataclass(slots=True, kw_only=True, eq=False, repr=False)
    class FetchPartition(Declaration):
        partition: int = wire(INT32)
        current_leader_epoch: int = wire(INT32, since=9, default=-1)
        high_watermark: int = wire(INT64, since=18, tag=1, default=INT64_MAX)

A field exists in the versions [since, until], both inclusive. In other versions it has its default
when read and is omitted when written. `codecs` compiles declarations.

Source: Kafka's protocol guide; KIP-482; docs/protocol.md.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast
from uuid import UUID

from tidelog.protocol.wire import NO_UUID
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T")


Message = TypeVar("Message", bound="DataclassInstance")


ANY_VERSION: Final = 2**15 - 1


_SPEC: Final = "wire"


# Records to send: one buffer, or several that follow each other. What is read is one buffer.
Pieces: TypeAlias = Buffer | Sequence[Buffer] | None


class Form(Enum):
    """How a type lies on the wire; the value of a fixed-size one is its letter for `struct`."""

    INT8 = "b"
    INT16 = "h"
    UINT16 = "H"
    INT32 = "i"
    INT64 = "q"
    FLOAT64 = "d"
    BOOLEAN = "?"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    ARRAY = "array"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of the protocol.

    Attributes:
        form: How it lies on the wire.
        zero: The value of a field that is not there and has no other default; of a list or a
            struct its class, of which every message gets its own.
        null_since: First version in which it may be null; None for never.
        item: What an array holds.
        struct: The declaration of a struct.
    """

    form: Form
    zero: T | Callable[[], T]
    null_since: int | None = None
    item: "Kind[object] | None" = None
    struct: "type[DataclassInstance] | None" = None

    def may_be_null(self, version: int) -> bool:
        """Whether a version knows null for it."""
        return self.null_since is not None and version >= self.null_since


INT8: Final = Kind(Form.INT8, 0)


INT16: Final = Kind(Form.INT16, 0)


UINT16: Final = Kind(Form.UINT16, 0)


INT32: Final = Kind(Form.INT32, 0)


INT64: Final = Kind(Form.INT64, 0)


FLOAT64: Final = Kind(Form.FLOAT64, 0.0)


BOOLEAN: Final = Kind(Form.BOOLEAN, False)


UUID16: Final[Kind[UUID]] = Kind(Form.UUID, NO_UUID)


STRING: Final[Kind[str]] = Kind(Form.STRING, "")


BYTES: Final[Kind[Buffer]] = Kind(Form.BYTES, b"")


# Record batches: bytes that may be null in every version.
RECORDS: Final[Kind[Buffer | None]] = Kind(Form.BYTES, None, 0)


# The same to be sent in pieces.
RECORD_PIECES: Final[Kind[Pieces]] = Kind(Form.BYTES, None, 0)


# The same where Kafka knows no null.
RECORD_PIECES_NEVER_NULL: Final[Kind[Pieces]] = Kind(Form.BYTES, b"")


def nullable_string(since: int = 0) -> Kind[str | None]:
    """A string that may be null from a version on; its default is null."""
    return Kind(Form.STRING, None, since)


def nullable_bytes(since: int = 0) -> Kind[Buffer | None]:
    """Bytes that may be null from a version on; their default is null."""
    return Kind(Form.BYTES, None, since)


def array(item: Kind[T]) -> Kind[list[T]]:
    """Any number of one type."""
    return Kind(Form.ARRAY, list, None, cast("Kind[object]", item))


def nullable_array(item: Kind[T], since: int = 0) -> Kind[list[T] | None]:
    """An array that may be null from a version on; its default is null."""
    return Kind(Form.ARRAY, None, since, cast("Kind[object]", item))


def struct(kind: type[Message]) -> Kind[Message]:
    """Another declaration, inside."""
    return Kind(Form.STRUCT, kind, None, None, kind)


def nullable_struct(kind: type[Message]) -> Kind[Message | None]:
    """Another declaration, inside, behind a byte that is -1 where there is none.

    As a tagged field it is always written, and the byte is 0 where there is none.
    """
    return Kind(Form.STRUCT, None, 0, None, kind)


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
    metadata = {_SPEC: _Spec(cast("Kind[object]", kind), since, until, tag)}
    zero = kind.zero if isinstance(default, _Missing) else default
    if callable(zero):
        made: object = dataclasses.field(default_factory=zero, metadata=metadata)
    else:
        made = dataclasses.field(default=zero, metadata=metadata)
    return cast("T", made)


class Declaration:
    """What messages have in common: they are equal field by field, and print their fields.

    `dataclass` would compile both for each of some 400 classes, a tenth of a broker's start. A
    message with a secret prints none of its fields: `__repr__ = object.__repr__`.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment] # its fields change

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names_of(type(self)))

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in _names_of(type(self)))
        return f"{type(self).__name__}({', '.join(values)})"


def _names_of(kind: type[Declaration]) -> list[str]:
    return [declared.name for declared in dataclasses.fields(cast("type[DataclassInstance]", kind))]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a declaration in one version.

    Attributes:
        name: Its name.
        kind: Its type.
        tag: Its number among the tagged fields; None for an ordinary one.
        is_there: Whether the version has it.
        default: Its value where it is not there, or the class that makes one.
    """

    name: str
    kind: Kind[object]
    tag: int | None
    is_there: bool
    default: object


def fields_of(kind: "type[DataclassInstance]", version: int) -> list[Field]:
    """All fields of a declaration, in the order of the wire."""
    return [_field_of(declared, version) for declared in dataclasses.fields(kind)]


def _field_of(declared: "dataclasses.Field[object]", version: int) -> Field:
    spec = declared.metadata[_SPEC]
    assert isinstance(spec, _Spec)
    is_there = spec.since <= version <= spec.until
    default: object = declared.default
    if declared.default_factory is not dataclasses.MISSING:
        default = declared.default_factory
    return Field(declared.name, spec.kind, spec.tag, is_there, default)


Request_co = TypeVar("Request_co", bound="DataclassInstance", covariant=True)


Response_co = TypeVar("Response_co", bound="DataclassInstance", covariant=True)


# Who asks, in the field `replica_id`: an ordinary consumer, which sees up to the high watermark.
CONSUMER_REPLICA_ID: Final = -1


NO_OPERATIONS: Final = -(2**31)


# Tagged fields from this number on are our own (docs/fetch.md): a broker or client that does
# not know them steps over them, and Kafka's own numbers are far below. Source: KIP-482.
OWN_TAGS_START: Final = 10_000


EARLIEST_TIMESTAMP: Final = -2


LATEST_TIMESTAMP: Final = -1


# The first offset that lies on the broker itself, not in a remote tier. Source: KIP-405.
EARLIEST_LOCAL_TIMESTAMP: Final = -4


@dataclass(frozen=True, slots=True)
class Api(Generic[Request_co, Response_co]):
    """One kind of question and its answer.

    The declarations are imported when somebody first asks for them: there are many, and a broker
    has to be up quickly.

    Attributes:
        name: Kafka's name; the declarations are called NameRequest and NameResponse.
        key: Its number on the wire.
        first: Lowest version that Kafka 4.3 knows.
        last: Highest version that the declarations know, inclusive.
        flexible: First version with compact lengths and tagged fields.
        module: Where the declarations are, in this package.
        first_declared: Lowest version that the declarations know; below `first` are those of
            clients older than Kafka 0.11.
    """

    name: str
    key: int
    first: int
    last: int
    flexible: int
    module: str
    first_declared: int

    @property
    def request(self) -> type[Request_co]:
        """The question's declaration."""
        return cast("type[Request_co]", _declaration(self.module, f"{self.name}Request"))

    @property
    def response(self) -> type[Response_co]:
        """The answer's declaration."""
        return cast("type[Response_co]", _declaration(self.module, f"{self.name}Response"))

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields."""
        return version >= self.flexible


@cache
def _declaration(module: str, name: str) -> object:
    return getattr(import_module(f"tidelog.protocol.messages.{module}"), name)
