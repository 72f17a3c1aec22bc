"""Random messages for any declaration and version."""

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tidelog.protocol.messages import BY_KEY, AnyApi
from tidelog.protocol.schema import Form, Kind, fields_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NUMBERS = {Form.INT8: 8, Form.INT16: 16, Form.INT32: 32, Form.INT64: 64}
OTHERS: dict[Form, st.SearchStrategy[object]] = {
    Form.FLOAT64: st.floats(allow_nan=False),
    Form.BOOLEAN: st.booleans(),
    Form.UUID: st.uuids(version=4),
    Form.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    Form.BYTES: st.binary(max_size=20),
}


def every_version() -> list[tuple[AnyApi, int]]:
    return [
        (api, version)
        for api in BY_KEY.values()
        for version in range(api.first_declared, api.last + 1)
    ]


def messages(
    kind: "type[DataclassInstance]", version: int
) -> "st.SearchStrategy[DataclassInstance]":
    """Messages of a class with every field that a version has; the others keep their defaults."""
    there = [field for field in fields_of(kind, version) if field.is_there]
    return st.builds(kind, **{field.name: values(field.kind, version) for field in there})


def values(kind: Kind[object], version: int) -> st.SearchStrategy[object]:
    """Values of a type, null too in versions that know it."""
    plain = _plain(kind, version)
    return st.none() | plain if kind.may_be_null(version) else plain


def _plain(kind: Kind[object], version: int) -> st.SearchStrategy[object]:
    if kind.form in NUMBERS:
        limit = 1 << NUMBERS[kind.form] - 1
        return st.integers(-limit, limit - 1)
    if kind.form is Form.ARRAY:
        assert kind.item is not None
        return st.lists(values(kind.item, version), max_size=3)
    if kind.form is Form.STRUCT:
        assert kind.struct is not None
        return messages(kind.struct, version)
    return OTHERS[kind.form]
