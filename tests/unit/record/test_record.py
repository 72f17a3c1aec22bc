"""A violation of each rule of a magic-2 record, and lengths that must not allocate memory."""

import tracemalloc

import pytest

from tidelog.errors import CorruptBatch, CorruptRecord
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.coding import write_varint
from tidelog.record.compression import compress
from tidelog.record.header import (
    HEADER,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    RECORD_COUNT_AT,
    seal,
)
from tidelog.record.record import Record
from tidelog.types import INT32_MAX, Codec, Header, NewRecord, TimestampType

# A record: length 6, attributes 0, timestamp delta 0, offset delta 0, null key, null value, no
# headers.
BARE = "0c 00 00 00 01 01 00"


def batch_with_body(
    body: bytes, *, count: int = 1, codec: Codec = Codec.NONE, last: int = 10
) -> RecordBatch:
    """Return a batch that has this records section and a correct checksum."""
    data = build_batch([NewRecord()], base_offset=70, codec=codec)[:HEADER_SIZE]
    data += compress(codec, body)
    for at, value in (
        (LENGTH_AT, len(data) - 12),
        (RECORD_COUNT_AT, count),
        (LAST_OFFSET_DELTA_AT, last),
    ):
        data[at : at + 4] = value.to_bytes(4, "big", signed=True)
    seal(data, 0)
    return RecordBatch(bytes(9) + data, 9)


def refused(batch: RecordBatch) -> CorruptRecord:
    with pytest.raises(CorruptRecord) as caught:
        list(batch.records())
    assert caught.value.offset == 70
    return caught.value


def varint(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def test_a_bare_record_is_read() -> None:
    (record,) = batch_with_body(bytes.fromhex(BARE)).records()
    assert (record.offset, record.key, record.value, record.headers) == (70, None, None, ())


def test_record_attributes_are_ignored() -> None:
    (record,) = batch_with_body(bytes.fromhex("0c ff 00 00 01 01 00")).records()
    assert record.offset == 70


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("0e 00 00 00 01 01 00", "a record of 7 bytes, but only 6 are left"),
        ("01 00 00 00 01 01 00", "a record of -1 bytes"),
        ("00 00 00 00 01 01 00", "extends past the end"),
        ("0a 00 00 00 01 01 00", "extends past the end"),
        ("0e 00 00 00 01 01 00 00", "1 bytes before the record's end"),
        ("0c 00 00 00 03 01 00", "a key of -2 bytes"),
        ("0c 00 00 00 06 01 00", "a key of 3 bytes, but only 2 are left"),
        ("0c 00 00 00 01 03 00", "a value of -2 bytes"),
        ("0c 00 00 00 01 04 00", "a value of 2 bytes, but only 1 are left"),
        ("0c 00 00 00 01 01 01", "-1 headers"),
        ("0c 00 00 00 01 01 02", "1 headers in 0 bytes"),
        ("10 00 00 00 01 01 04 00 01", "2 headers in 2 bytes"),
        ("10 00 00 00 01 01 02 01 01", "a header without a key"),
        ("10 00 00 00 01 01 02 03 01", "a header key of -2 bytes"),
        ("10 00 00 00 01 01 02 00 03", "a header value of -2 bytes"),
        ("10 00 00 00 01 01 02 00 02", "a header value of 1 bytes, but only 0 are left"),
        ("0c 00 00 01 01 01 00", "offset delta -1"),
        ("0c 00 00 16 01 01 00", "offset delta 11"),
        ("80 80 80 80 80 00 00 00", "32 bits"),
    ],
)
def test_a_broken_rule(body: str, rule: str) -> None:
    error = refused(batch_with_body(bytes.fromhex(body)))
    assert rule in error.reason
    assert error.at is not None
    assert 9 + HEADER_SIZE <= error.at <= 9 + HEADER_SIZE + len(bytes.fromhex(body))


def test_a_broken_rule_in_compressed_records_is_placed_at_the_batch() -> None:
    error = refused(batch_with_body(bytes.fromhex("0c 00 00 00 03 01 00"), codec=Codec.LZ4))
    assert error.at == 9
    assert "byte 4 of the decompressed records" in error.reason


@pytest.mark.parametrize("second", ["0c 00 00 00 01 01 00", "0c 00 00 02 01 01 00"])
def test_offset_deltas_have_to_grow(second: str) -> None:
    body = bytes.fromhex("0c 00 00 02 01 01 00" + second)
    records = batch_with_body(body, count=2).records()
    assert next(records).offset == 71
    with pytest.raises(CorruptRecord, match="offset delta"):
        next(records)


@pytest.mark.parametrize("count", [-1, -(2**31), 2, 3, INT32_MAX])
def test_a_wrong_count_is_refused(count: int) -> None:
    assert "declared in" in refused(batch_with_body(bytes.fromhex(BARE), count=count)).reason


def test_records_after_the_last_one_are_refused() -> None:
    body = bytes.fromhex(BARE) * 2
    assert "7 bytes left after 1 record" in refused(batch_with_body(body, count=1)).reason
    assert "7 bytes left after 0 records" in refused(batch_with_body(body[:7], count=0)).reason


def test_a_batch_shorter_than_its_header_is_refused() -> None:
    data = bytearray(build_batch([NewRecord()]))
    data[LENGTH_AT : LENGTH_AT + 4] = (48).to_bytes(4, "big")
    batch = RecordBatch(data)
    assert not batch.is_valid()
    with pytest.raises(CorruptBatch, match="its header needs 61"):
        batch.records()


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    "body",
    [
        varint(2**30) + b"\0" * 20,
        b"\x28\0\0\0" + varint(2**30) + b"\0" * 20,
        b"\x28\0\0\0\x01" + varint(2**30) + b"\0" * 20,
        b"\x28\0\0\0\x01\x01" + varint(2**30) + b"\0" * 20,
        b"\x28\0\0\0\x01\x01\x02" + varint(2**30) + b"\0" * 20,
        b"\x28\0\0\0\x01\x01\x02\x00" + varint(2**30) + b"\0" * 20,
    ],
    ids=["record", "key", "value", "header count", "header key", "header value"],
)
def test_a_huge_length_allocates_no_memory(codec: Codec, body: bytes) -> None:
    batch = batch_with_body(body, codec=codec)
    refused(batch)
    tracemalloc.start()
    try:
        refused(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The frame of an lz4 or zstd block of a few bytes allows up to 128 KiB of decompressed data.
    assert peak < 300_000


def test_a_huge_count_allocates_no_memory() -> None:
    batch = batch_with_body(bytes.fromhex(BARE), count=INT32_MAX)
    refused(batch)
    tracemalloc.start()
    try:
        refused(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_header_key_that_is_not_utf_8_is_replaced_as_kafka_does() -> None:
    (record,) = batch_with_body(bytes.fromhex("14 00 00 00 01 01 02 04 61ff 01")).records()
    assert record.headers == (Header("a\ufffd", None),)


def test_key_and_value_of_a_record() -> None:
    def record(key: bytes | None, value: bytes | None) -> Record:
        return Record(0, 0, TimestampType.CREATE_TIME, key, value)

    assert record(b"", None).has_key
    assert record(b"", None).is_tombstone
    assert not record(b"", b"").is_tombstone
    assert record(None, b"").has_value
    assert not record(None, None).has_key
    assert not record(None, None).has_value
    assert not record(None, None).is_tombstone


def test_the_header_struct_has_the_places_of_the_constants() -> None:
    assert HEADER.size == HEADER_SIZE
    assert RECORD_COUNT_AT + 4 == HEADER_SIZE
