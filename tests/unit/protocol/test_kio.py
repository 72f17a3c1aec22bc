"""Each API in each version compared with kio, whose messages are generated from Kafka's schemas.

kio's classes define the fields of a version and their order. kio must read the same values from our
bytes, and write the same bytes. We must read the same values from kio's bytes.
"""

import dataclasses
import datetime as dt
import io
from collections.abc import Iterator
from enum import Enum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast, get_args
from uuid import UUID

import pytest
from tests.worlds.records.messages import Fill, Sampler, every_version, kafkas_fields

from tidelog.protocol.codecs import Codec, struct_codec
from tidelog.protocol.messages import AnyApi
from tidelog.protocol.messages.group_records import ASSIGNMENT, SUBSCRIPTION
from tidelog.protocol.schema import Field, Form, Kind
from tidelog.protocol.wire import NO_UUID, Reader, Writer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from kio.static.protocol import Entity

Theirs = type["DataclassInstance"]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MS = dt.timedelta(milliseconds=1)
# In tidelog, a time field's name ends with this unit. In kio, the name has no unit.
UNIT = "_ms"
TheirField: TypeAlias = "dataclasses.Field[object]"
Path: TypeAlias = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of a message: our class, and its name in kio."""

    number: int
    is_flexible: bool
    kind: type
    their_name: str
    part: str  # request, response or data


def known_messages() -> dict[str, list[Version]]:
    """Return all versions of each message. Don't import kio for this: the import takes seconds."""
    found: dict[str, list[Version]] = {}
    for api, number in every_version():
        for part, kind in (("request", api.request), ("response", api.response)):
            version = Version(number, api.is_flexible(number), kind, snake(api), part)
            found.setdefault(f"{api.name}{part.title()}", []).append(version)
    for data in (SUBSCRIPTION, ASSIGNMENT):
        name = "consumer_protocol_" + data.kind.__name__.removeprefix("ConsumerProtocol").lower()
        found[data.kind.__name__] = [
            Version(number, False, data.kind, name, "data") for number in range(data.last + 1)
        ]
    return found


def snake(api: AnyApi) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in api.name).lstrip("_")


def load(version: Version) -> Theirs | None:
    """Return kio's class of a version, or None if kio doesn't have it."""
    from kio.schema.index import schema_name_map
    from kio.static.constants import EntityType

    entity = EntityType[version.part]
    if entity not in schema_name_map[version.their_name].get(version.number, {}):
        return None
    name = f"kio.schema.{version.their_name}.v{version.number}.{version.part}"
    wanted = [
        value
        for value in vars(import_module(name)).values()
        if isinstance(value, type) and getattr(value, "__type__", None) is entity
    ]
    return cast("Theirs", wanted[0])


@cache
def numbers() -> dict[str, list[int]]:
    """Return valid values, by type name, of each kio type that can't represent all numbers."""
    from kio.schema.errors import ErrorCode

    return {
        "error_code": [code.value for code in ErrorCode],
        "timedelta_i32": [0, 1, 2**31 - 1],
        "timedelta_i64": [0, 1, 10**12],
        "datetime_i64": [-1, 0, 1_700_000_000_123],
    }


# ------------------------------------------------------------------------------ kio's fields


def inner_class(hint: object) -> Theirs | None:
    """Return the class of a nested struct in a type such as `tuple[X, ...] | None`."""
    if dataclasses.is_dataclass(hint):
        return cast("Theirs", hint)
    return next((found for arg in get_args(hint) if (found := inner_class(arg))), None)


@cache
def pairs(
    kind: type, theirs: Theirs, version: int
) -> "list[tuple[Field, dataclasses.Field[object]]]":
    """Pair tidelog's fields with kio's; assert that counts, names and tags are equal, in order."""
    ours = kafkas_fields(kind, version)
    found = list(zip(ours, dataclasses.fields(theirs), strict=True))
    for mine, other in found:
        assert mine.name.removesuffix(UNIT) == other.name.removesuffix(UNIT), theirs
        assert mine.tag == other.metadata.get("tag"), other.name
    return found


def number_kinds(
    kind: type, theirs: Theirs, version: int, at: tuple[str, ...] = ()
) -> dict[tuple[str, ...], str]:
    """Return kio's type of each field without nested fields, by the path of field names."""
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


def converted(mine: Field, other: TheirField, value: object, version: int) -> object:
    """Convert the value of a kio field to the value that our field has."""
    inner, item = inner_class(other.type), mine.kind.item or mine.kind
    if isinstance(value, tuple):
        return [converted_item(item, inner, each, version) for each in value]
    return converted_item(item, inner, value, version)


def converted_item(kind: Kind[object], inner: Theirs | None, value: object, version: int) -> object:
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
    return value.value if isinstance(value, Enum) else value


def as_ours(kind: type, value: object, version: int) -> "DataclassInstance":
    theirs = cast("Theirs", type(value))
    return cast(
        "DataclassInstance",
        kind(
            **{
                mine.name: converted(mine, other, getattr(value, other.name), version)
                for mine, other in pairs(kind, theirs, version)
            }
        ),
    )


# ------------------------------------------------------------------------------------- Tests

MESSAGES = known_messages()
# APIs for which kio lacks some versions. Kafka 4 has removed all these versions.
GIVEN_UP = {"Produce", "Fetch", "ListOffsets"}


@pytest.mark.parametrize("name", MESSAGES)
def test_both_ways(name: str) -> None:
    """Check each version with full, empty and random values."""
    for version in MESSAGES[name]:
        theirs = load(version)
        if theirs is None:
            assert name.removesuffix("Request").removesuffix("Response") in GIVEN_UP
            assert version.number < first_of(version.kind)
            continue
        check(version, theirs, Fill.FULL, 0)
        check(version, theirs, Fill.EMPTY, 0)
        for seed in range(3):
            check(version, theirs, Fill.ANY, seed)


def test_defaults_are_kafkas() -> None:
    found = set[tuple[str, str]]()
    for name, versions in MESSAGES.items():
        for version in versions:
            theirs = load(version)
            if theirs is not None:
                paths = other_defaults(version.kind, theirs, version.number)
                found |= {(name, ".".join(path)) for path in paths}
    # tidelog's default is None, which requests all keys. kio's default is an empty list.
    assert found == {("DescribeConfigsRequest", "resources.configuration_keys")}


def other_defaults(kind: type, theirs: Theirs, version: int, at: Path = ()) -> Iterator[Path]:
    """Yield the paths of the fields whose defaults differ from kio's.

    Fields without a default in kio are left out.
    """
    for mine, other in pairs(kind, theirs, version):
        path = (*at, mine.name)
        inner, item = inner_class(other.type), mine.kind.item or mine.kind
        if inner is not None:
            assert item.struct is not None
            yield from other_defaults(item.struct, inner, version, path)
        if other.default is not dataclasses.MISSING:
            ours = mine.default() if callable(mine.default) else mine.default
            if converted(mine, other, other.default, version) != ours:
                yield path


def test_the_same_fields_may_be_null_as_in_kafka() -> None:
    found = set[tuple[str, int, str]]()
    for name, versions in MESSAGES.items():
        for version in versions:
            theirs = load(version)
            if theirs is not None:
                paths = other_nulls(version.kind, theirs, version.number)
                found |= {(name, version.number, ".".join(path)) for path in paths}
    assert found == set()


def other_nulls(kind: type, theirs: Theirs, version: int, at: Path = ()) -> Iterator[Path]:
    """Yield the paths of the fields that can be null only in tidelog or only in kio.

    Numbers and ids are left out, because kio represents some of their values by None.
    """
    for mine, other in pairs(kind, theirs, version):
        path = (*at, mine.name)
        inner, item = inner_class(other.type), mine.kind.item or mine.kind
        if inner is not None:
            assert item.struct is not None
            yield from other_nulls(item.struct, inner, version, path)
        is_theirs = type(None) in get_args(other.type)
        if mine.kind.form in NULLABLE and mine.kind.may_be_null(version) is not is_theirs:
            yield path


NULLABLE = {Form.STRING, Form.BYTES, Form.ARRAY, Form.STRUCT}


def first_of(kind: type) -> int:
    """Return the first version of a message in Kafka 4."""
    return next(api.first for api, _ in every_version() if kind in (api.request, api.response))


def check(version: Version, theirs: Theirs, fill: Fill, seed: int) -> None:
    from kio.serial import entity_reader, entity_writer

    kind, number = version.kind, version.number
    codec: Codec[DataclassInstance] = struct_codec(kind, number, version.is_flexible)
    kinds = number_kinds(kind, theirs, number)

    def choice(path: Path, _: Kind[object]) -> list[int] | None:
        return numbers().get(kinds[path])

    entity = cast("type[Entity]", theirs)
    message = Sampler(number, seed, fill, choice).message(kind)
    writer = Writer()
    codec.write(writer, message)
    written = b"".join(writer.parts())
    read, size = entity_reader(entity)(written, 0)
    assert size == len(written), number
    assert as_ours(kind, read, number) == message, number
    again = io.BytesIO()
    entity_writer(entity)(again, read)
    assert codec.read(Reader(again.getvalue())) == message, number
    assert again.getvalue() == written, number


def test_a_uuid_of_zeros_is_none_of_theirs() -> None:
    assert converted_item(Kind(Form.UUID, NO_UUID), None, None, 0) == UUID(int=0)
