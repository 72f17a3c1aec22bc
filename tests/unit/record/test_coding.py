"""Varints and checksums."""

import pytest

from tidelog.errors import CorruptRecord
from tidelog.record.coding import (
    SHORT_VARINTS,
    crc32,
    crc32c,
    encode_varlong,
    read_varint,
    read_varlong,
    write_varint,
    write_varlong,
)

INT32 = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (8192, "808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
INT64 = [
    *INT32,
    (2**31, "8080808010"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("value", "encoded"), INT32)
def test_varint_both_ways(value: int, encoded: str) -> None:
    out = bytearray(b"\xaa")
    write_varint(out, value)
    assert out[1:].hex() == encoded
    assert read_varint(out, 1, len(out)) == (value, len(out))


@pytest.mark.parametrize(("value", "encoded"), INT64)
def test_varlong_both_ways(value: int, encoded: str) -> None:
    out = bytearray(b"\xaa")
    write_varlong(out, value)
    assert out[1:].hex() == encoded
    assert read_varlong(out, 1, len(out)) == (value, len(out))
    assert encode_varlong(value).hex() == encoded


def test_short_ones_are_kept_as_they_are_written() -> None:
    for value in range(len(SHORT_VARINTS) + 2):
        out = bytearray()
        write_varlong(out, value)
        assert encode_varlong(value) == out


@pytest.mark.parametrize("encoded", [encoded for _, encoded in INT64])
def test_a_number_one_byte_short_is_refused(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(CorruptRecord) as caught:
        read_varlong(data, 0, len(data) - 1)
    assert caught.value.at == 0


def test_the_end_counts_and_not_the_buffer() -> None:
    with pytest.raises(CorruptRecord):
        read_varint(b"\x80\x01", 0, 1)
    with pytest.raises(CorruptRecord):
        read_varint(b"\x02", 1, 1)


@pytest.mark.parametrize("encoded", ["ffffffff10", "ffffffffff01", "ffffffff7f"])
def test_more_than_32_bits_are_refused(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(CorruptRecord, match="32 bits"):
        read_varint(data, 0, len(data))


@pytest.mark.parametrize("encoded", ["ffffffffffffffffff02", "ffffffffffffffffffff01"])
def test_more_than_64_bits_are_refused(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(CorruptRecord, match="64 bits"):
        read_varlong(data, 0, len(data))


def test_padded_numbers_are_read_as_kafka_reads_them() -> None:
    assert read_varint(bytes.fromhex("8280808000"), 0, 5) == (1, 5)
    assert read_varlong(bytes.fromhex("81808080808080808000"), 0, 10) == (-1, 10)


def test_checksums_give_their_check_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32(b"123456789") == 0xCBF43926


def test_checksums_continue_from_a_value() -> None:
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    assert crc32(b"6789", crc32(b"12345")) == 0xCBF43926
    assert crc32c(b"") == 0
