"""Generated Python source of readers and writers, and the errors that the compiled code raises.

Names in the source come from declarations and counters. Values are never written into the source.
The source refers to a value by a name in the namespace of the compiled code, so no outside input
becomes code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptMessage, InvalidRequest
from tidelog.lazy_dataclass import compiled_function
from tidelog.protocol.schema import Field, Form, Kind, fields_of
from tidelog.protocol.wire import STRING_BYTES_MAX, TAGS_MAX

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


FIXED: Final = frozenset(
    (
        Form.INT8,
        Form.INT16,
        Form.UINT16,
        Form.INT32,
        Form.INT64,
        Form.FLOAT64,
        Form.BOOLEAN,
        Form.UUID,
    )
)


def plain_fields(kind: "type[DataclassInstance]", version: int) -> list[Field]:
    """Return the fields that exist in a version, without tagged fields, in wire order."""
    return [field for field in fields_of(kind, version) if field.is_there and field.tag is None]


def tagged_fields(kind: "type[DataclassInstance]", version: int) -> list[Field]:
    """Return the tagged fields that exist in a version, by ascending tag."""
    tagged = [field for field in fields_of(kind, version) if field.is_there]
    return sorted((f for f in tagged if f.tag is not None), key=lambda field: field.tag or 0)


def item_of(kind: Kind[object]) -> Kind[object]:
    """Return the type of an array's items."""
    assert kind.item is not None
    return kind.item


def struct_of(kind: Kind[object]) -> "type[DataclassInstance]":
    """Return the declaration of a struct."""
    assert kind.struct is not None
    return kind.struct


class Source:
    """Builder of Python source. Call `function` once, at the end. Not thread-safe."""

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self._lines: list[str] = []
        self._names: dict[str, object] = {}
        self._names_by_id: dict[int, str] = {}
        self._depth = 0
        self._counter = 0

    def line(self, text: str) -> None:
        """Append one line at the current indentation."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append `head` and indent the lines that follow inside the context."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """Return a new unique name."""
        self._counter += 1
        return f"{stem}{self._counter}"

    def name(self, value: object, stem: str = "k") -> str:
        """Return the name with which the source refers to an object."""
        name = self._names_by_id.get(id(value))
        if name is None:
            name = self._names_by_id[id(value)] = self.fresh(stem)
            # This reference keeps the object alive, so that no other object gets the same id.
            self._names[name] = value
        return name

    def layout(self, letters: str, method: str) -> str:
        """Return the name with which the source refers to a method of `Struct`.

        `letters` is the format of the `Struct`, without its byte order.
        """
        name = f"{method}_{letters.replace('?', 't')}"
        if name not in self._names:
            self._names[name] = getattr(Struct(f">{letters}"), method)
        return name

    def function(self, name: str, what: str) -> Callable[..., object]:
        """Compile the source and return its function `name`."""
        return compiled_function(name, self._lines, self._names, what)


_BITS: Final = {
    Form.INT8: 8,
    Form.INT16: 16,
    Form.UINT16: 16,
    Form.INT32: 32,
    Form.INT64: 64,
}


def cut(what: str, at: int, end: int) -> CorruptMessage:
    """Build the error for a message that ends before its last field is complete."""
    return CorruptMessage(f"{what}: only {max(end - at, 0)} bytes remain, more are needed", at=at)


def bad_length(form: str, length: int, least: int, at: int, end: int, left: int) -> CorruptMessage:
    """Build the error for an invalid length or count, or for items that take too much memory."""
    what = f"array of {length} elements" if form == "array" else f"{form} of {length} bytes"
    if length < 0:
        return CorruptMessage(f"length {length}, but null is not allowed here", at=at)
    if length * least > end - at:
        each = f"; each element needs at least {least} bytes" if form == "array" else ""
        return CorruptMessage(f"{what}, but only {end - at} bytes remain{each}", at=at)
    if form == "string" and length > STRING_BYTES_MAX:
        return CorruptMessage(f"{what} exceeds {STRING_BYTES_MAX} bytes", at=at)
    return too_much(what, at, end, left)


def too_much(what: str, at: int, end: int, left: int) -> CorruptMessage:
    """Build the error for a message whose objects take too much memory."""
    return CorruptMessage(
        f"{what}: the objects of this message of {end} bytes would take {-left} bytes of memory"
        " more than allowed",
        at=at,
    )


def too_many_tags(count: int, at: int) -> CorruptMessage:
    """Build the error for a struct with too many tagged fields."""
    return CorruptMessage(f"{count} tagged fields in a struct, at most {TAGS_MAX}", at=at)


def bad_tag(tag: int, at: int, stop: int) -> CorruptMessage:
    """Build the error for a tagged field whose size is wrong."""
    how = f"{stop - at} bytes too long" if at < stop else f"{at - stop} bytes too short"
    return CorruptMessage(f"tag {tag} is {how}", at=at)


# -- writing


def refusal(
    kind: "type[DataclassInstance]", version: int, message: "DataclassInstance"
) -> InvalidRequest | None:
    """Return the error for the first invalid value of a message; None if all values are valid."""
    fault = _struct_fault(kind, version, message)
    return InvalidRequest(f"{kind.__name__} v{version}: {fault}") if fault else None


def _struct_fault(kind: "type[DataclassInstance]", version: int, message: object) -> str | None:
    for field in [*plain_fields(kind, version), *tagged_fields(kind, version)]:
        if not hasattr(message, field.name):
            return f"{message!r} where there must be a {kind.__name__}"
        fault = _fault(field.kind, version, getattr(message, field.name))
        if fault is not None:
            return f"{field.name}: {fault}"
    return None


def _fault(kind: Kind[object], version: int, value: object) -> str | None:
    if value is None:
        return None if kind.may_be_null(version) else "null is not allowed in this version"
    if kind.form is Form.STRUCT:
        return _struct_fault(struct_of(kind), version, value)
    if kind.form is Form.ARRAY:
        return _array_fault(item_of(kind), version, value)
    others = {Form.STRING: _string_fault, Form.BYTES: _bytes_fault}
    return others[kind.form](value) if kind.form in others else _fixed_fault(kind.form, value)


def _array_fault(item: Kind[object], version: int, value: object) -> str | None:
    if not isinstance(value, list | tuple):
        return f"{value!r} where there must be a list"
    faults = (_fault(item, version, each) for each in value)
    return next((fault for fault in faults if fault), None)


def _string_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return f"{value!r} where there must be a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError as problem:
        return f"string can't be encoded as UTF-8: {problem.reason}"
    limit = STRING_BYTES_MAX
    return f"string of {size} bytes exceeds {limit} bytes" if size > limit else None


def _bytes_fault(value: object) -> str | None:
    pieces = value if isinstance(value, list | tuple) else [value]
    is_data = all(isinstance(piece, bytes | bytearray | memoryview) for piece in pieces)
    return None if is_data else f"{value!r} where there must be bytes"


def _fixed_fault(form: Form, value: object) -> str | None:
    bits = _BITS.get(form)
    if bits is None:
        return None
    if not isinstance(value, int):
        return f"{value!r} where there must be a number"
    low, end = -(1 << bits - 1), 1 << bits - 1
    if form is Form.UINT16:
        low, end = 0, 1 << bits
    fits = low <= value < end
    return None if fits else f"{value!r} does not fit into {bits // 8} bytes"
