"""The errors of compiled readers and writers: what was read or given, and what would be right."""

from struct import unpack_from
from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptMessage, InvalidRequest
from tidelog.protocol.schema import Form, Kind
from tidelog.protocol.source import item_of, plain_fields, struct_of, tagged_fields
from tidelog.protocol.wire import STRING_BYTES_MAX, TAGS_MAX

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "bad_length",
    "bad_tag",
    "cut",
    "refusal",
    "too_many_tags",
    "too_much",
    "unpack_from",
]

_BITS: Final = {
    Form.INT8: 8,
    Form.INT16: 16,
    Form.UINT16: 16,
    Form.INT32: 32,
    Form.INT64: 64,
}


def cut(what: str, at: int, end: int) -> CorruptMessage:
    """A message that ends before its fields do."""
    return CorruptMessage(f"{what}: {max(end - at, 0)} bytes are left, more are needed", at=at)


def bad_length(form: str, length: int, least: int, at: int, end: int, left: int) -> CorruptMessage:
    """A length or count that can't be, or whose items would take too much memory."""
    what = f"an array of {length}" if form == "array" else f"{form} of {length} bytes"
    if length < 0:
        return CorruptMessage(f"length {length} where there must be a value", at=at)
    if length * least > end - at:
        each = f", {least} each needed" if form == "array" else ""
        return CorruptMessage(f"{what}, {end - at} bytes are left{each}", at=at)
    if form == "string" and length > STRING_BYTES_MAX:
        return CorruptMessage(f"{what}, at most {STRING_BYTES_MAX} are allowed", at=at)
    return too_much(what, at, end, left)


def too_much(what: str, at: int, end: int, left: int) -> CorruptMessage:
    """A message of too many objects."""
    return CorruptMessage(
        f"{what}: with it {end} bytes would take {-left} bytes of memory more than they may",
        at=at,
    )


def too_many_tags(count: int, at: int) -> CorruptMessage:
    """A struct of too many tagged fields."""
    return CorruptMessage(f"{count} tagged fields in a struct, at most {TAGS_MAX}", at=at)


def bad_tag(tag: int, at: int, stop: int) -> CorruptMessage:
    """A tagged field that is not as long as it says."""
    how = f"{stop - at} bytes too long" if at < stop else f"{at - stop} bytes too short"
    return CorruptMessage(f"tag {tag} is {how}", at=at)


# -- writing


def refusal(
    kind: "type[DataclassInstance]", version: int, message: "DataclassInstance"
) -> InvalidRequest | None:
    """Why a message can't be written; None where nothing is wrong with its values."""
    found = _struct_fault(kind, version, message)
    return InvalidRequest(f"{kind.__name__} v{version}: {found}") if found else None


def _struct_fault(kind: "type[DataclassInstance]", version: int, message: object) -> str | None:
    for field in [*plain_fields(kind, version), *tagged_fields(kind, version)]:
        if not hasattr(message, field.name):
            return f"{message!r} where there must be a {kind.__name__}"
        found = _fault(field.kind, version, getattr(message, field.name))
        if found is not None:
            return f"{field.name}: {found}"
    return None


def _fault(kind: Kind[object], version: int, value: object) -> str | None:
    if value is None:
        return None if kind.may_be_null(version) else "null in a version that knows none"
    if kind.form is Form.STRUCT:
        return _struct_fault(struct_of(kind), version, value)
    if kind.form is Form.ARRAY:
        return _array_fault(item_of(kind), version, value)
    others = {Form.STRING: _string_fault, Form.BYTES: _bytes_fault}
    return others[kind.form](value) if kind.form in others else _fixed_fault(kind.form, value)


def _array_fault(item: Kind[object], version: int, value: object) -> str | None:
    if not isinstance(value, list | tuple):
        return f"{value!r} where there must be a list"
    found = (_fault(item, version, each) for each in value)
    return next((fault for fault in found if fault), None)


def _string_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return f"{value!r} where there must be a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError as problem:
        return f"a string that has no UTF-8: {problem.reason}"
    limit = STRING_BYTES_MAX
    return f"a string of {size} bytes, at most {limit} are allowed" if size > limit else None


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
