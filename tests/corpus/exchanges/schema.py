"""Fields of each message of Kafka's protocol, in each version.

The fields come from the package kio, whose classes are generated from Kafka's own descriptions. kio
lacks the versions that Kafka 4 has removed; their fields are in `old_schemas`.
"""

import dataclasses
import datetime as dt
import types
from functools import cache
from importlib import import_module
from typing import Final, Literal, get_args, get_origin
from uuid import UUID

# kio registers its types with hypothesis, which fails while a broker's thread imports numpy.
# So these types are imported before a broker starts.
import kio.static.primitive  # noqa: F401
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType
from tests.corpus.exchanges.codec import names
from tests.corpus.exchanges.old_schemas import OLD
from tests.corpus.exchanges.values import Field, Message, Value

Side = Literal["request", "response"]
API_VERSIONS: Final = 18
# Kinds of fields in kio that are encoded as another kind.
_WRITTEN_AS: Final = {
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "error_code": "int16",
    "records": "bytes",
}
_EMPTY: Final[dict[str, Value]] = {
    "string": "",
    "bytes": b"",
    "uuid": UUID(int=0),
    "bool": False,
    "float64": 0.0,
    "struct": {},
}
_MS: Final = dt.timedelta(milliseconds=1)


def api_name(key: int) -> str:
    """Return an API's name, such as `list_offsets`."""
    return api_key_map[key]


@cache
def api_key(name: str) -> int:
    """Return an API's number."""
    return next(key for key, each in api_key_map.items() if each == name)


@cache
def message(key: int, version: int, side: Side) -> Message:
    """Return the fields of a request or a response."""
    old = OLD.get((key, version, side))
    if old is not None:
        return Message(old, flexible=False)
    module = import_module(f"kio.schema.{api_key_map[key]}.v{version}.{side}")
    kind = EntityType[side]
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    (found,) = (each for each in classes if getattr(each, "__type__", None) is kind)
    return Message(_fields(found), flexible=found.__flexible__)  # type: ignore[attr-defined] # all have it


@cache
def known_names(key: int) -> frozenset[str]:
    """Return the names of all fields that requests of an API have in any version."""
    versions = set(schema_name_map[api_key_map[key]])
    versions |= {version for old, version, _ in OLD if old == key}
    found = (message(key, version, "request").fields for version in versions)
    return frozenset[str]().union(*map(names, found))


def _fields(owner: object) -> tuple[Field, ...]:
    assert dataclasses.is_dataclass(owner)
    return tuple(_field(each) for each in dataclasses.fields(owner))


def _field(given: "dataclasses.Field[object]") -> Field:
    hint, nullable = _without_none(given.type)
    is_array = get_origin(hint) is tuple
    if is_array:
        hint = get_args(hint)[0]
    kind = given.metadata.get("kafka_type", "struct")
    written = _WRITTEN_AS.get(kind, kind)
    return Field(
        name=given.name,
        kind=written,
        is_array=is_array,
        nullable=nullable,
        tag=given.metadata.get("tag"),
        fields=_fields(hint) if kind == "struct" else (),
        default=_default(given, written, is_array=is_array, nullable=nullable),
    )


def _without_none(hint: object) -> tuple[object, bool]:
    if not isinstance(hint, types.UnionType):
        return hint, False
    (other,) = (each for each in get_args(hint) if each is not types.NoneType)
    return other, True


def _default(
    given: "dataclasses.Field[object]", kind: str, *, is_array: bool, nullable: bool
) -> Value:
    found = given.default
    if isinstance(found, dt.timedelta):
        return found // _MS
    if isinstance(found, bool | int | str | bytes):
        return int(found) if type(found) not in {bool, str, bytes} else found
    if is_array:
        return None if found is None else []
    is_null = nullable if kind == "struct" else found is None and kind in {"string", "bytes"}
    return None if is_null else _EMPTY.get(kind, 0)
