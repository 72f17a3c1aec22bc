"""Message declarations: dataclasses whose fields define their encoding, and `Api`.

    @message
    class FetchPartition:
        partition: int = wire(INT32)
        current_leader_epoch: int = wire(INT32, since=9, default=-1)
        high_watermark: int = wire(INT64, since=18, tag=1, default=INT64_MAX)

The annotation of a field decides its encoding: `str`, `bool`, `float`, `UUID`, `Buffer`, a message,
or a list of one of these types. With `| None`, the value can be null. For `int`, an argument of
`wire` gives the width.

A field exists in the versions [since, until], both inclusive. In other versions the field is not
written, and a message that is read has the field's default. `codecs` compiles declarations.

Source: Kafka's protocol guide; KIP-482; docs/protocol.md.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache, reduce
from importlib import import_module
from inspect import get_annotations
from operator import or_
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,  # noqa: TID251 - as in `dataclasses`
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)
from uuid import UUID

from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.wire import NO_UUID
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T_co = TypeVar("T_co", covariant=True)
ANY_VERSION: Final = 2**15 - 1
_SPEC: Final = "wire"

# Records of a message, in one buffer or in several consecutive buffers. A decoded message has them
# in one buffer.
Pieces: TypeAlias = Buffer | Sequence[Buffer] | None


class Form(Enum):
    """Encoding of a type. For a fixed-size type, the enum value is a format of module `struct`."""

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

    __hash__ = object.__hash__  # faster than Enum's own `__hash__`, which hashes the name


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """A data type of the protocol.

    Attributes:
        form: Encoding of the type.
        zero: Default of a field without an explicit default. For a list or a struct, `zero` is the
            value's class, so that every message gets a new object.
        null_since: First version in which the value can be null; None for never.
        item: Type of an array's items.
        struct: Declaration of a struct.
    """

    form: Form
    zero: T_co | Callable[[], T_co]
    null_since: int | None = None
    item: "Kind[object] | None" = None
    struct: "type[DataclassInstance] | None" = None

    def may_be_null(self, version: int) -> bool:
        """Whether a value of this type can be null in this version."""
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

# Record batches that can be null, and can be sent in several buffers.
RECORD_PIECES: Final[Kind[Pieces]] = Kind(Form.BYTES, None, 0)

# Record batches that are never null, and may be sent in several buffers.
RECORD_PIECES_NEVER_NULL: Final[Kind[Pieces]] = Kind(Form.BYTES, b"")


# Types of the annotations that need no further argument of `wire`.
_KINDS: Final[Mapping[object, Kind[object]]] = {
    str: STRING,
    bool: BOOLEAN,
    float: FLOAT64,
    UUID: UUID16,
    Buffer: BYTES,
}


class _Missing:
    pass


_MISSING: Final = _Missing()


class _Wire(NamedTuple):
    """Arguments of `wire`, until `message` turns them into a field."""

    kind: Kind[object] | None
    since: int
    until: int
    tag: int | None
    null_since: int
    default: object


class _Spec(NamedTuple):
    kind: Kind[object]
    since: int
    until: int
    tag: int | None


def wire(
    kind: Kind[object] | None = None,
    *,
    since: int = 0,
    until: int = ANY_VERSION,
    tag: int | None = None,
    null_since: int = 0,
    default: object = _MISSING,
) -> Any:
    """Declare a field of a message.

    Args:
        kind: Type of the value, or of a list's items, if the annotation does not determine it, such
            as the width of an `int`.
        since: First version with the field.
        until: Last version with the field, inclusive.
        tag: Tag of a tagged field; None for an ordinary field.
        null_since: First version in which a value that is annotated as `| None` can be null.
        default: Value in versions without the field; by default null if the value can be null,
            else the type's zero.
    """
    return _Wire(kind, since, until, tag, null_since, default)


DeclarationT = TypeVar("DeclarationT")


@dataclass_transform(kw_only_default=True)
def message(declared: type[DeclarationT]) -> type[DeclarationT]:
    """Turn a class of `wire` fields into a dataclass whose constructor takes only keywords.

    If a message contains a secret, its class sets `__repr__ = object.__repr__` to hide the fields.
    """
    for name, annotation in get_annotations(declared).items():
        setattr(declared, name, _dataclass_field(annotation, getattr(declared, name)))
    return dataclass(slots=True, kw_only=True)(declared)


def _dataclass_field(annotation: object, declared: _Wire) -> object:
    kind = _kind_of(annotation, declared.kind, declared.null_since)
    metadata = {_SPEC: _Spec(kind, declared.since, declared.until, declared.tag)}
    zero = kind.zero if isinstance(declared.default, _Missing) else declared.default
    if callable(zero):
        return dataclasses.field(default_factory=zero, metadata=metadata)
    return dataclasses.field(default=zero, metadata=metadata)


def _kind_of(annotation: object, given: Kind[object] | None, null_since: int = 0) -> Kind[object]:
    """Return a field's type; `given` and `null_since` are `wire`'s `kind` and `null_since`."""
    options = [one for one in get_args(annotation) if one is not NoneType]
    may_be_null = NoneType in get_args(annotation)
    inner = reduce(or_, options) if may_be_null else annotation
    if get_origin(inner) is list:
        kind = Kind[object](Form.ARRAY, list, None, _kind_of(get_args(inner)[0], given))
    elif given is not None:
        return given
    elif inner in _KINDS:
        kind = _KINDS[inner]
    else:
        assert isinstance(inner, type), f"{annotation} is no type of the protocol"
        assert dataclasses.is_dataclass(inner), f"{annotation}: give `wire` its width"
        # A byte precedes a struct that can be null: 1 before the struct's fields, or -1 for a null
        # struct, which has no further bytes. In a tagged field, a null struct is also written, as
        # the byte 0.
        kind = Kind(Form.STRUCT, inner, None, None, inner)
    return replace(kind, zero=None, null_since=null_since) if may_be_null else kind


class Field(NamedTuple):
    """Field of a declaration in one version.

    Attributes:
        name: Name of the field.
        kind: Type of the field.
        tag: Tag of a tagged field; None for an ordinary field.
        is_there: Whether the field exists in the version.
        default: Value in versions without the field, or a class whose call returns this value.
    """

    name: str
    kind: Kind[object]
    tag: int | None
    is_there: bool
    default: object


@cache
def fields_of(kind: "type[DataclassInstance]", version: int) -> tuple[Field, ...]:
    """Return all fields of a declaration, in their order on the wire."""
    return tuple(_field_of(declared, version) for declared in dataclasses.fields(kind))


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

# Value of `replica_id` in requests of consumers, which read up to the high watermark.
CONSUMER_REPLICA_ID: Final = -1

NO_OPERATIONS: Final = -(2**31)

# First tag of tidelog extensions (docs/fetch.md). Brokers and clients that do not know a tag skip
# its field. Kafka's own tags have much smaller numbers. Source: KIP-482.
OWN_TAGS_START: Final = 10_000


class Api(NamedTuple, Generic[Request_co, Response_co]):
    """API of the protocol: a request and its response.

    An API's declarations are imported at their first use, because importing all of them would delay
    a broker's start.

    Attributes:
        name: Kafka's name. The API `Fetch` has the declarations `FetchRequest` and `FetchResponse`.
        key: API key.
        first: Lowest version that Kafka 4.3 supports.
        last: Highest version that the declarations know, inclusive.
        flexible: First version with compact lengths and tagged fields.
        module: Module of the declarations in `protocol.messages`.
        first_declared: Lowest version that the declarations know. It may be below `first`, for
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
        """Declaration of the request."""
        return cast("type[Request_co]", _declaration(self.module, f"{self.name}Request"))

    @property
    def response(self) -> type[Response_co]:
        """Declaration of the response."""
        return cast("type[Response_co]", _declaration(self.module, f"{self.name}Response"))

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields."""
        return version >= self.flexible


@cache
def _declaration(module: str, name: str) -> object:
    return getattr(import_module(f"tidelog.protocol.messages.{module}"), name)
