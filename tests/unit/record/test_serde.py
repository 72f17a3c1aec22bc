"""Serializers and deserializers, compared with bytes of Kafka's Java serializers."""

import math
import uuid

import pytest

from tidelog.errors import SerdeError
from tidelog.record.exact_json import parse
from tidelog.record.serde import DOUBLE, SERDE_NAMES, deserializer, serde, serializer

ID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
KNOWN = [
    ("bytes", b"\x00\xff", "00ff"),
    ("bytes", b"", ""),
    ("string", "Zürich", "5ac3bc72696368"),
    ("string", "", ""),
    ("int32", 1, "00000001"),
    ("int32", -(2**31), "80000000"),
    ("int64", -2, "fffffffffffffffe"),
    ("int64", 2**63 - 1, "7fffffffffffffff"),
    ("double", 1.5, "3ff8000000000000"),
    ("double", -math.inf, "fff0000000000000"),
    ("uuid", ID, str(ID).encode().hex()),
    ("json", {"a": [1, None, "ü"]}, b'{"a":[1,null,"\xc3\xbc"]}'.hex()),
]


@pytest.mark.parametrize(("name", "value", "encoded"), KNOWN)
def test_known_bytes_both_ways(name: str, value: object, encoded: str) -> None:
    data = serializer(name)(value)
    assert data is not None
    assert data.hex() == encoded
    assert deserializer(name)(data) == value


@pytest.mark.parametrize("name", ["int32", "int64"])
def test_minus_zero_in_json_is_the_integer_0(name: str) -> None:
    assert serializer(name)(parse("-0")) == serializer(name)(0)
    with pytest.raises(SerdeError, match="expected int"):
        serializer(name)(parse("1e-400"))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("int32", b"12345678", "8 bytes can't be read as int32: must be 4 bytes"),
        ("int64", b"1", "1 byte can't be read as int64: must be 8 bytes"),
        ("double", b"1234", "4 bytes can't be read as double: must be 8 bytes"),
    ],
)
def test_a_number_of_another_size_is_refused_with_the_right_size(
    name: str, data: bytes, message: str
) -> None:
    with pytest.raises(SerdeError) as caught:
        deserializer(name)(data)
    assert str(caught.value) == message


@pytest.mark.parametrize(("name", "bits"), [("int32", 32), ("int64", 64)])
def test_a_number_out_of_range_is_refused_with_the_range(name: str, bits: int) -> None:
    limit = 2 ** (bits - 1)
    for number in (limit, -limit - 1, 10**5_000):
        with pytest.raises(SerdeError) as caught:
            serializer(name)(number)
        assert f"{caught.value}".endswith(
            f"a value of type int can't be written as {name}: must be from {-limit} to {limit - 1}"
        )


@pytest.mark.parametrize("name", SERDE_NAMES)
def test_null_passes_through(name: str) -> None:
    assert serializer(name)(None) is None
    assert deserializer(name)(None) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", "text"),
        ("bytes", 5),
        ("string", b"bytes"),
        ("string", "\ud800"),
        ("int32", 2**31),
        ("int32", "1"),
        ("int32", True),
        ("int64", -(2**63) - 1),
        ("int64", 1.0),
        ("double", "1"),
        ("double", 10**400),
        ("double", False),
        ("uuid", str(ID)),
        ("json", math.nan),
        ("json", {1, 2}),
        ("json", "\ud800"),
    ],
)
def test_values_without_bytes_are_refused(name: str, value: object) -> None:
    with pytest.raises(SerdeError, match=name):
        serializer(name)(value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("string", b"\xff"),
        ("int32", b"\0\0\0"),
        ("int32", b""),
        ("int64", b"\0\0\0\0"),
        ("double", b"\0" * 9),
        ("uuid", b"{6ba7b810-9dad-11d1-80b4-00c04fd430c8}"),
        ("uuid", b"6ba7b8109dad11d180b400c04fd430c8"),
        ("uuid", b"no uuid"),
        ("json", b"{"),
        ("json", b"NaN"),
        ("json", b"\xff\xfe"),
        ("json", b"[" * 100_000),
    ],
)
def test_other_bytes_are_refused(name: str, data: bytes) -> None:
    with pytest.raises(SerdeError, match=name):
        deserializer(name)(data)


def test_the_error_for_an_unknown_name_has_the_known_ones() -> None:
    with pytest.raises(SerdeError, match="bytes, string, int32, int64, double, uuid, json"):
        serde("int16")


def test_every_nan_is_written_as_java_writes_it() -> None:
    assert DOUBLE.serialize(math.nan) == DOUBLE.serialize(-math.nan)
    assert serializer("double")(math.copysign(math.nan, -1)) == bytes.fromhex("7ff8000000000000")


def test_a_whole_number_is_a_double_too() -> None:
    assert serializer("double")(3) == serializer("double")(3.0)


def test_json_reads_null_inside_and_alone() -> None:
    assert deserializer("json")(b"null") is None
    assert deserializer("json")(b'{"a":null}') == {"a": None}
