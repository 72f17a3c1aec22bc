"""Random messages for any declaration and version."""

import dataclasses
from typing import TYPE_CHECKING, get_args, get_origin, get_type_hints
from uuid import UUID

from hypothesis import strategies as st

from tidelog.protocol.messages import BY_KEY, AnyApi
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN: dict[type, st.SearchStrategy[object]] = {
    bool: st.booleans(),
    str: TEXTS,
    UUID: st.uuids(version=4),
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
    hints = get_type_hints(kind, include_extras=True)
    fields = {}
    for field in dataclasses.fields(kind):
        spec = field.metadata["wire"]
        if spec.since <= version <= spec.until:
            flexible = True
            least = spec.kind.codec(version, flexible).min_bytes
            fields[field.name] = _values(hints[field.name], version, least, spec)
    return st.builds(kind, **fields)


def _values(hint: object, version: int, least: int, spec: object) -> st.SearchStrategy[object]:
    if hint is int:
        limit = 1 << (8 * least - 1)
        return st.integers(-limit, limit - 1)
    if isinstance(hint, type) and hint in PLAIN:
        return PLAIN[hint]
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return messages(hint, version)
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        return st.lists(_values(item, version, 1, spec), max_size=3)
    return _optional(hint, version, spec)


def _optional(hint: object, version: int, spec: object) -> st.SearchStrategy[object]:
    """A union with None: null only in versions that know it."""
    if set(get_args(Buffer)) <= set(get_args(hint)):
        data = st.binary(max_size=20)
        return st.none() | data if knows_null(spec, version) else data
    (plain,) = [part for part in get_args(hint) if part is not type(None)]
    values = _values(plain, version, 4, spec)
    return st.none() | values if knows_null(spec, version) else values


def knows_null(spec: object, version: int) -> bool:
    """Whether a null can be written in a version."""
    from tidelog.protocol.wire import Writer

    try:
        spec.kind.codec(version, True).write(Writer(), None)  # type: ignore[attr-defined]
    except AssertionError:
        return False
    return True
