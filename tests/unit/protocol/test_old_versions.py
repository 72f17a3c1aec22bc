"""Versions for clients older than Kafka 0.11, compared with kafka-python's messages."""

import dataclasses
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from tests.worlds.records.messages import Fill, Sampler

from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.messages import FETCH, LIST_OFFSETS, PRODUCE, AnyApi
from tidelog.protocol.schema import fields_of
from tidelog.protocol.wire import Reader, Writer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OLD = [
    (api, version)
    for api in (PRODUCE, FETCH, LIST_OFFSETS)
    for version in range(api.first_declared, api.first)
]
MODULES = {"Produce": "produce", "Fetch": "fetch", "ListOffsets": "list_offsets"}


def values_of(message: "DataclassInstance", version: int) -> list[object]:
    """Return the values of a version's fields, in the order on the wire."""
    there = [field for field in fields_of(type(message), version) if field.is_there]
    return [plain(getattr(message, field.name), version) for field in there]


def plain(value: object, version: int) -> object:
    if isinstance(value, list):
        return [plain(item, version) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return values_of(value, version)
    return value


def listed(value: object) -> object:
    return [listed(item) for item in value] if isinstance(value, list | tuple) else value


def test_the_old_versions_are_those_before_kafka_0_11() -> None:
    assert [(api.key, version) for api, version in OLD] == [
        *((0, version) for version in (0, 1, 2)),
        *((1, version) for version in (0, 1, 2, 3)),
        (2, 0),
    ]


@pytest.mark.parametrize(("api", "version"), OLD, ids=lambda part: getattr(part, "name", part))
@pytest.mark.parametrize("suffix", ["Request", "Response"])
def test_both_ways(api: AnyApi, version: int, suffix: str) -> None:
    module = import_module(f"kafka.protocol.old.{MODULES[api.name]}")
    theirs = getattr(module, f"{api.name}{suffix}_v{version}")
    kind = api.request if suffix == "Request" else api.response
    codec = struct_codec(kind, version, False)
    for seed, fill in enumerate([Fill.FULL, Fill.EMPTY, *[Fill.ANY] * 3]):
        message = Sampler(version, seed, fill).message(kind)
        writer = Writer()
        codec.write(writer, message)
        written = b"".join(writer.parts())
        read = theirs.decode(written)
        found = [getattr(read, name) for name in read.SCHEMA.names]
        assert listed(found) == plain(message, version)
        again = read.encode()
        assert again == written
        assert codec.read(Reader(again)) == message


def test_known_bytes_of_list_offsets_v0() -> None:
    """The request asks for at most 3 offsets before time 9; the response has two offsets."""
    asked = bytes.fromhex("ffffffff 00000001 000174 00000001 00000005 0000000000000009 00000003")
    request = struct_codec(LIST_OFFSETS.request, 0, False).read(Reader(asked))
    partition = request.topics[0].partitions[0]
    assert (partition.partition_index, partition.timestamp, partition.max_num_offsets) == (5, 9, 3)
    told = bytes.fromhex(
        "00000001 000174 00000001 00000005 0000 00000002 0000000000000007 0000000000000000"
    )
    response = struct_codec(LIST_OFFSETS.response, 0, False).read(Reader(told))
    assert response.topics[0].partitions[0].old_style_offsets == [7, 0]
