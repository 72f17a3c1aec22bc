"""Primitive types: known bytes, limits, false lengths."""

import tracemalloc
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptMessage, InvalidRequest
from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.schema import (
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID16,
    Form,
    Kind,
    message,
    wire,
)
from tidelog.protocol.wire import Reader, Writer, varint_bytes
from tidelog.types import INT16_MAX, UINT32_MAX

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def array(item: Kind[T]) -> Kind[list[T]]:
    return Kind(Form.ARRAY, list, None, item)


def nullable(kind: Kind[T], since: int = 0) -> Kind[T | None]:
    return Kind(kind.form, None, since, kind.item, kind.struct)


def alone(kind: Kind[T]) -> "type[DataclassInstance]":
    """Return a declaration with a single field."""
    parts = {"__annotations__": {"value": object}, "value": wire(kind)}
    return message(type("Alone", (), parts))


def write(kind: Kind[T], value: T, *, flexible: bool = False, version: int = 0) -> bytes:
    writer, declared = Writer(), alone(kind)
    struct_codec(declared, version, flexible).write(writer, declared(value=value))  # type: ignore[call-arg] # the field
    written = b"".join(bytes(part) for part in writer.parts())
    # The count of tagged fields follows the value.
    return written[: len(written) - flexible]


def read(kind: Kind[T], data: bytes, *, flexible: bool = False, version: int = 0) -> T:
    reader = Reader(data + bytes(flexible))
    message = struct_codec(alone(kind), version, flexible).read(reader)
    assert reader.left == 0
    return message.value  # type: ignore[attr-defined,no-any-return] # the field


def sized(data: bytes, *, flexible: bool) -> bytes:
    """Return the bytes of a string with their length in front."""
    return (varint_bytes(len(data) + 1) if flexible else len(data).to_bytes(2, "big")) + data


class TestKnownBytes:
    @pytest.mark.parametrize(
        ("kind", "value", "plain", "compact"),
        [
            (STRING, "ab", "00026162", "036162"),
            (STRING, "", "0000", "01"),
            (nullable(STRING), None, "ffff", "00"),
            (BYTES, b"xyz", "0000000378797a", "0478797a"),
            (nullable(BYTES), None, "ffffffff", "00"),
            (array(INT32), [1, -1], "0000000200000001ffffffff", "0300000001ffffffff"),
            (nullable(array(INT32)), None, "ffffffff", "00"),
            (INT64, -2, "fffffffffffffffe", "fffffffffffffffe"),
            (FLOAT64, 1.5, "3ff8000000000000", "3ff8000000000000"),
        ],
    )
    def test_plain_and_compact(
        self, kind: Kind[object], value: object, plain: str, compact: str
    ) -> None:
        assert write(kind, value).hex() == plain
        assert write(kind, value, flexible=True).hex() == compact
        assert read(kind, bytes.fromhex(plain)) == value
        assert read(kind, bytes.fromhex(compact), flexible=True) == value

    def test_a_uuid(self) -> None:
        assert write(UUID16, UUID(int=258)) == bytes(14) + b"\x01\x02"
        assert read(UUID16, bytes(14) + b"\x01\x02") == UUID(int=258)


class TestVarints:
    @given(st.integers(0, UINT32_MAX))
    def test_round_trip(self, value: int) -> None:
        writer = Writer()
        writer.unsigned_varint(value)
        assert Reader(bytes(writer.parts()[0])).unsigned_varint() == value

    @pytest.mark.parametrize("data", [b"\x80", b"\xff" * 5 + b"\x01", b"\xff\xff\xff\xff\x7f", b""])
    def test_a_varint_that_is_too_long_too_large_or_cut_is_an_error(self, data: bytes) -> None:
        with pytest.raises(CorruptMessage):
            Reader(data).unsigned_varint()


class TestText:
    @pytest.mark.parametrize("flexible", [False, True])
    def test_invalid_utf_8_is_replaced_as_in_kafka(self, *, flexible: bool) -> None:
        length = b"\x05" if flexible else b"\0\x04"
        assert read(STRING, length + b"a\xffb\xc3", flexible=flexible) == "a\ufffdb\ufffd"

    @pytest.mark.parametrize("flexible", [False, True])
    def test_a_string_that_replacements_make_too_long_to_write_is_refused(
        self, *, flexible: bool
    ) -> None:
        # Five characters of two bytes, and as many replacements of three bytes as still fit.
        longest = b"\xc3\xa9" * 5 + b"\xff" * 10_919
        text = read(STRING, sized(longest, flexible=flexible), flexible=flexible)
        assert text == "\u00e9" * 5 + "\ufffd" * 10_919
        assert len(write(STRING, text)) == 2 + INT16_MAX
        with pytest.raises(CorruptMessage, match="invalid UTF-8, whose replacement has 32770"):
            read(STRING, sized(longest + b"\xff", flexible=flexible), flexible=flexible)

    @pytest.mark.parametrize("data", ["ffff", "fffe", "8000"])
    def test_any_length_below_0_is_null_as_kafka_reads_it(self, data: str) -> None:
        assert read(nullable(STRING), bytes.fromhex(data), flexible=False) is None
        assert read(nullable(BYTES), bytes.fromhex(data + "0000"), flexible=False) is None
        assert read(nullable(array(INT32)), bytes.fromhex(data + "0000"), flexible=False) is None


class TestLies:
    @pytest.mark.parametrize(
        ("kind", "data", "flexible"),
        [
            (STRING, "7fff61", False),
            (STRING, "ffff", False),
            (STRING, "00", True),
            (STRING, "fffe", False),
            (BYTES, "7fffffff00", False),
            (BYTES, "ffffffff0f00", True),
            (BYTES, "fffffffe", False),
            (array(INT64), "0000000200000000000000000000", False),
            (array(STRING), "ffffffff0f", True),
            (array(INT32), "fffffff0", False),
            (nullable(array(INT32)), "7ffffff0", False),
        ],
    )
    def test_an_impossible_length_is_refused(
        self, kind: Kind[object], data: str, *, flexible: bool
    ) -> None:
        with pytest.raises(CorruptMessage) as caught:
            read(kind, bytes.fromhex(data), flexible=flexible)
        assert caught.value.at is not None

    def test_no_memory_is_allocated_for_a_count_that_is_too_large(self) -> None:
        data = (2**31 - 1).to_bytes(4, "big") + bytes(64)
        peaks = []
        for _ in range(5):  # threads of other tests may allocate memory meanwhile
            tracemalloc.start()
            with pytest.raises(CorruptMessage, match="array of 2147483647"):
                read(array(INT64), data)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert min(peaks) < 200_000  # compiling the reader allocates about 100,000 bytes

    def test_null_is_refused_in_a_version_without_it(self) -> None:
        with pytest.raises(CorruptMessage, match="length -1"):
            read(nullable(STRING, 3), b"\xff\xff", version=2)


class TestWriting:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("int16", 1 << 15),
            ("int32", 1 << 31),
            ("unsigned_varint", -1),
            ("unsigned_varint", 1 << 32),
        ],
    )
    def test_a_number_out_of_range_is_refused(self, name: str, value: int) -> None:
        with pytest.raises(InvalidRequest, match=f"{value}"):
            getattr(Writer(), name)(value)

    @pytest.mark.parametrize("flexible", [False, True])
    @pytest.mark.parametrize(
        ("kind", "value", "reason"),
        [
            (INT8, 128, "128 does not fit into 1 bytes"),
            (INT16, -(1 << 15) - 1, "-32769 does not fit into 2 bytes"),
            (INT32, 1 << 31, "2147483648 does not fit into 4 bytes"),
            (INT64, 1 << 63, "9223372036854775808 does not fit into 8 bytes"),
            (INT64, None, "null is not allowed in this version"),
            (INT64, "7", "'7' where there must be a number"),
            (array(INT8), [1, 200], "200 does not fit into 1 bytes"),
            (array(STRING), ["a", None], "null is not allowed"),
            (array(STRING), None, "null is not allowed"),
            (array(INT32), 7, "7 where there must be a list"),
            (STRING, 7, "7 where there must be a string"),
            (STRING, "x" * 32768, "string of 32768 bytes exceeds 32767 bytes"),
            (STRING, "\ud800", "string can't be encoded as UTF-8"),
            (BYTES, None, "null is not allowed"),
            (BYTES, 7, "7 where there must be bytes"),
        ],
    )
    def test_the_error_of_an_unwritable_message_has_the_reason(
        self, kind: Kind[object], value: object, reason: str, *, flexible: bool
    ) -> None:
        with pytest.raises(InvalidRequest, match=f"Alone v0: value: {reason}"):
            write(kind, value, flexible=flexible)

    def test_a_string_has_at_most_32767_bytes(self) -> None:
        assert len(write(STRING, "x" * 32767)) == 32769
        assert len(write(STRING, "x" * 32767, flexible=True)) == 32770
        with pytest.raises(CorruptMessage, match="exceeds 32767"):
            read(STRING, varint_bytes(32769) + b"x" * 32768, flexible=True)
