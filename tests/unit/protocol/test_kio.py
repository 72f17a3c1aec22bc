"""Every API in every version against kio, whose messages others have written from Kafka's.

Its classes say which fields a version has and in which order; what we write it must read with the
same values, and what it writes of them must be the same bytes, which we read again.
"""

import dataclasses
import datetime as dt
import io
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast, get_args
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.worlds.records.messages import Fill, Sampler, every_version, kafkas_fields

from tidelog.protocol.compiler import Codec, struct_codec
from tidelog.protocol.data_messages import ASSIGNMENT, SUBSCRIPTION
from tidelog.protocol.messages import AnyApi
from tidelog.protocol.schema import Field, Form, Kind
from tidelog.protocol.wire import NO_UUID, Reader, Writer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from kio.static.protocol import Entity

Theirs = type["DataclassInstance"]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MS = dt.timedelta(milliseconds=1)
# What kio makes of a number: only values that it knows how to say.
NUMBERS: dict[str, list[int]] = {
    "error_code": [code.value for code in ErrorCode],
    "timedelta_i32": [0, 1, 2**31 - 1],
    "timedelta_i64": [0, 1, 10**12],
    "datetime_i64": [-1, 0, 1_700_000_000_123],
}
# Times have units in our names, and none in theirs.
UNIT = "_ms"
TheirField: TypeAlias = "dataclasses.Field[object]"
Path: TypeAlias = tuple[str, ...]


def known_versions() -> list[tuple[str, int, bool, type, Theirs]]:
    """(name, version, flexible, our class, kio's class) of all that both know."""
    found = []
    for api, version in every_version():
        for suffix, entity, kind in (
            ("request", EntityType.request, api.request),
            ("response", EntityType.response, api.response),
        ):
            theirs = load(snake(api), version, suffix, entity)
            if theirs is not None:
                name = f"{api.name}{suffix.title()}"
                found.append((name, version, api.is_flexible(version), kind, theirs))
    for data in (SUBSCRIPTION, ASSIGNMENT):
        name = "consumer_protocol_" + data.kind.__name__.removeprefix("ConsumerProtocol").lower()
        for version in range(data.last + 1):
            theirs = load(name, version, "data", EntityType.data)
            assert theirs is not None
            found.append((data.kind.__name__, version, False, data.kind, theirs))
    return found


def snake(api: AnyApi) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in api.name).lstrip("_")


def load(name: str, version: int, module: str, entity: EntityType) -> Theirs | None:
    if entity not in schema_name_map[name].get(version, {}):
        return None
    loaded = import_module(f"kio.schema.{name}.v{version}.{module}")
    wanted = [
        value
        for value in vars(loaded).values()
        if isinstance(value, type) and getattr(value, "__type__", None) is entity
    ]
    return cast("Theirs", wanted[0])


# ------------------------------------------------------------------------------ Their fields


def inner_class(hint: object) -> Theirs | None:
    """The class of a nested struct in a type such as `tuple[X, ...] | None`."""
    if dataclasses.is_dataclass(hint):
        return cast("Theirs", hint)
    return next((found for arg in get_args(hint) if (found := inner_class(arg))), None)


@cache
def pairs(
    kind: type, theirs: Theirs, version: int
) -> "list[tuple[Field, dataclasses.Field[object]]]":
    """Our fields of a version with theirs: as many, in the same order, by the same names."""
    ours = kafkas_fields(kind, version)
    found = list(zip(ours, dataclasses.fields(theirs), strict=True))
    for mine, other in found:
        assert mine.name.removesuffix(UNIT) == other.name.removesuffix(UNIT), theirs
        assert mine.tag == other.metadata.get("tag"), other.name
    return found


def number_kinds(
    kind: type, theirs: Theirs, version: int, at: tuple[str, ...] = ()
) -> dict[tuple[str, ...], str]:
    """kio's types of numbers, by the names that lead to them."""
    found: dict[Path, str] = {}
    for mine, other in pairs(kind, theirs, version):
        path = (*at, mine.name)
        inner, item = inner_class(other.type), mine.kind.item or mine.kind
        if inner is not None:
            assert item.struct is not None
            found |= number_kinds(item.struct, inner, version, path)
        else:
            found[path] = other.metadata["kafka_type"]
    return found


def told(mine: Field, other: TheirField, value: object, version: int) -> object:
    """Their value as ours is."""
    inner, item = inner_class(other.type), mine.kind.item or mine.kind
    if isinstance(value, tuple):
        return [told_item(item, inner, each, version) for each in value]
    return told_item(item, inner, value, version)


def told_item(kind: Kind[object], inner: Theirs | None, value: object, version: int) -> object:
    if inner is not None and value is not None:
        assert kind.struct is not None
        return as_ours(kind.struct, value, version)
    if kind.form is Form.UUID:
        return value or NO_UUID
    if isinstance(value, dt.timedelta):
        return value // MS
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // MS
    if value is None and kind.form is Form.INT64:
        return -1
    return value.value if isinstance(value, ErrorCode) else value


def as_ours(kind: type, value: object, version: int) -> "DataclassInstance":
    theirs = cast("Theirs", type(value))
    return cast(
        "DataclassInstance",
        kind(
            **{
                mine.name: told(mine, other, getattr(value, other.name), version)
                for mine, other in pairs(kind, theirs, version)
            }
        ),
    )


# ------------------------------------------------------------------------------------- Tests

KNOWN = known_versions()


@pytest.mark.parametrize(
    ("name", "version", "flexible", "kind", "theirs"),
    KNOWN,
    ids=[f"{name}-{version}" for name, version, *_ in KNOWN],
)
@pytest.mark.parametrize("fill", [Fill.FULL, Fill.EMPTY, Fill.ANY])
def test_both_ways(
    name: str, version: int, flexible: bool, kind: type, theirs: Theirs, fill: Fill
) -> None:
    codec: Codec[DataclassInstance] = struct_codec(kind, version, flexible)
    kinds = number_kinds(kind, theirs, version)

    def choice(path: Path, _: Kind[object]) -> list[int] | None:
        return NUMBERS.get(kinds[path])

    entity = cast("type[Entity]", theirs)
    for seed in range(3 if fill is Fill.ANY else 1):
        sampler = Sampler(version, seed, fill, choice)
        message = sampler.message(kind)
        writer = Writer()
        codec.write(writer, message)
        written = b"".join(writer.parts())
        read, size = entity_reader(entity)(written, 0)
        assert size == len(written)
        assert as_ours(kind, read, version) == message
        again = io.BytesIO()
        entity_writer(entity)(again, read)
        assert codec.read(Reader(again.getvalue())) == message
        assert again.getvalue() == written


def test_only_versions_that_kafka_gave_up_are_not_known() -> None:
    known = {(name, version) for name, version, *_ in KNOWN}
    lacking = {
        (api.name, version, version < api.first)
        for api, version in every_version()
        for suffix in ("Request", "Response")
        if (f"{api.name}{suffix}", version) not in known
    }
    assert all(given_up for _, _, given_up in lacking), lacking
    assert {name for name, _, _ in lacking} == {"Produce", "Fetch", "ListOffsets"}


def test_a_uuid_of_zeros_is_none_of_theirs() -> None:
    assert told_item(Kind(Form.UUID, NO_UUID), None, None, 0) == UUID(int=0)
