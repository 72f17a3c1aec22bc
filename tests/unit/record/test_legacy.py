"""Magic 0 and 1: known bytes of messages and wrappers, and a violation of each rule."""

import struct
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    InvalidRequest,
    UnsupportedCompression,
    UnsupportedForMessageFormat,
)
from tidelog.record.batch_walk import walk
from tidelog.record.compression import compress
from tidelog.record.legacy import LegacyBatch, build_legacy_message
from tidelog.types import INT32_MAX, INT64_MAX, Codec, Header, NewRecord, TimestampType

TIME = 1_700_000_000_000
LEGACY_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
# These bytes were built by hand from the layout, not by Kafka. The tests in tests/peers run Kafka
# itself.
MAGIC_0 = "0000000000000005 00000010 1fecd70a 00 00 00000001 6b 00000001 76"
MAGIC_1 = "0000000000000005 00000018 39268c33 01 00 0000018bcfe56800 00000001 6b 00000001 76"
NEW = [
    NewRecord(key=b"a", value=b"1", timestamp=TIME + 5),
    NewRecord(key=None, value=b"2", timestamp=TIME + 9),
    NewRecord(key=b"", value=None, timestamp=TIME),
]


def message(offset: int, *, magic: int, timestamp: int = -1, attributes: int = 0) -> bytearray:
    return build_legacy_message(
        b"k", b"v", magic=magic, offset=offset, timestamp=timestamp, attributes=attributes
    )


def wrapper(
    inner: bytes | bytearray, *, magic: int, offset: int, timestamp: int = -1, attributes: int = 0
) -> LegacyBatch:
    """Return a gzip wrapper around these bytes; it begins at byte 7 of a buffer."""
    data = build_legacy_message(
        None,
        compress(Codec.GZIP, inner, magic=magic),
        magic=magic,
        offset=offset,
        timestamp=timestamp,
        attributes=attributes | Codec.GZIP,
    )
    return LegacyBatch(bytes(7) + data, 7)


def refused(batch: LegacyBatch) -> CorruptRecord:
    with pytest.raises(CorruptRecord) as caught:
        list(batch.records())
    assert caught.value.at == 7
    return caught.value


class TestKnownBytes:
    def test_magic_0(self) -> None:
        assert message(5, magic=0) == bytes.fromhex(MAGIC_0.replace(" ", ""))
        batch = LegacyBatch(bytes.fromhex(MAGIC_0.replace(" ", "")))
        (record,) = batch.records()
        assert (record.offset, record.key, record.value) == (5, b"k", b"v")
        assert (record.timestamp, record.create_timestamp) == (-1, None)
        assert record.timestamp_type is TimestampType.NO_TIMESTAMP_TYPE
        assert (batch.max_timestamp, batch.timestamp_type) == (
            -1,
            TimestampType.NO_TIMESTAMP_TYPE,
        )

    def test_magic_1(self) -> None:
        assert message(5, magic=1, timestamp=TIME) == bytes.fromhex(MAGIC_1.replace(" ", ""))
        batch = LegacyBatch(bytes.fromhex(MAGIC_1.replace(" ", "")))
        (record,) = batch.records()
        assert (record.offset, record.timestamp, record.create_timestamp) == (5, TIME, TIME)
        assert record.timestamp_type is TimestampType.CREATE_TIME
        assert (batch.max_timestamp, batch.timestamp_type) == (TIME, TimestampType.CREATE_TIME)

    def test_the_checksum_is_zlibs_over_all_from_the_magic_on(self) -> None:
        data = message(5, magic=1, timestamp=TIME)
        assert struct.unpack_from(">I", data, 12) == (zlib.crc32(data[16:]),)

    def test_nulls_are_not_empty(self) -> None:
        for key, value in ((None, None), (b"", b""), (None, b""), (b"", None)):
            for magic in (0, 1):
                batch = LegacyBatch(build_legacy_message(key, value, magic=magic, offset=0))
                (record,) = batch.records()
                assert (record.key, record.value) == (key, value)


class TestFields:
    @pytest.mark.parametrize("magic", [0, 1])
    def test_a_message_has_the_fields_of_a_batch(self, magic: int) -> None:
        batch = LegacyBatch(message(5, magic=magic))
        assert (batch.base_offset, batch.last_offset, batch.next_offset) == (5, 5, 6)
        assert (batch.last_offset_delta, batch.record_count, batch.magic) == (0, 1, magic)
        assert (batch.leader_epoch, batch.producer_id, batch.producer_epoch) == (-1, -1, -1)
        assert (batch.base_sequence, batch.last_sequence) == (-1, -1)
        assert not batch.has_producer_id
        assert not batch.is_transactional
        assert not batch.is_control
        assert batch.delete_horizon_ms is None
        assert batch.codec is Codec.NONE
        assert batch.body() == batch.view

    def test_a_wrapper_does_not_know_its_record_count(self) -> None:
        batch = LegacyBatch(build_legacy_set(NEW, magic=1, codec=Codec.GZIP, base_offset=40))
        assert batch.record_count is None
        assert (batch.base_offset, batch.last_offset, batch.last_offset_delta) == (40, 42, 2)
        assert batch.max_timestamp == TIME + 9

    def test_the_append_time_bit_of_magic_1_replaces_the_create_time(self) -> None:
        batch = LegacyBatch(message(0, magic=1, timestamp=TIME, attributes=8))
        assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        (record,) = batch.records()
        assert (record.timestamp, record.create_timestamp) == (TIME, None)


class TestWrappers:
    @pytest.mark.parametrize("codec", LEGACY_CODECS)
    @pytest.mark.parametrize("magic", [0, 1])
    def test_records_are_read_back(self, magic: int, codec: Codec) -> None:
        batch = LegacyBatch(build_legacy_set(NEW, magic=magic, codec=codec, base_offset=40))
        batch.ensure_valid()
        records = list(batch.records())
        assert [(r.offset, r.key, r.value) for r in records] == [
            (40, b"a", b"1"),
            (41, None, b"2"),
            (42, b"", None),
        ]
        times = [-1, -1, -1] if magic == 0 else [TIME + 5, TIME + 9, TIME]
        assert [r.timestamp for r in records] == times

    def test_inner_offsets_are_absolute_in_magic_0_and_relative_in_magic_1(self) -> None:
        for magic, offsets in ((0, [40, 41, 42]), (1, [0, 1, 2])):
            batch = LegacyBatch(
                build_legacy_set(NEW, magic=magic, codec=Codec.GZIP, base_offset=40)
            )
            assert [inner.last_offset for inner in walk(batch.body())] == offsets
            assert batch.last_offset == 42

    def test_an_append_time_is_that_of_all(self) -> None:
        data = build_legacy_set(NEW, magic=1, codec=Codec.GZIP, append_time_ms=TIME + 99)
        batch = LegacyBatch(data)
        assert [inner.max_timestamp for inner in walk(batch.body())] == [TIME + 99] * 3
        assert {r.timestamp for r in batch.records()} == {TIME + 99}
        assert {r.timestamp_type for r in batch.records()} == {TimestampType.LOG_APPEND_TIME}
        assert {r.create_timestamp for r in batch.records()} == {None}

    def test_the_wrappers_append_time_counts_and_not_the_inner_one(self) -> None:
        inner = message(0, magic=1, timestamp=TIME)
        batch = wrapper(inner, magic=1, offset=3, timestamp=TIME + 99, attributes=8)
        assert [r.timestamp for r in batch.records()] == [TIME + 99]

    def test_gaps_that_compaction_left_count_from_the_last_inner_offset(self) -> None:
        inner = message(1, magic=1) + message(4, magic=1)
        batch = wrapper(inner, magic=1, offset=104)
        assert [r.offset for r in batch.records()] == [101, 104]
        assert batch.base_offset == 101

    def test_an_outer_offset_of_0_means_a_base_of_0(self) -> None:
        inner = message(0, magic=1) + message(1, magic=1) + message(2, magic=1)
        batch = wrapper(inner, magic=1, offset=0)
        assert [r.offset for r in batch.records()] == [0, 1, 2]
        assert batch.base_offset == 0

    def test_magic_0_messages_in_a_magic_1_wrapper_are_read(self) -> None:
        inner = message(0, magic=1, timestamp=TIME) + message(1, magic=0)
        batch = wrapper(inner, magic=1, offset=11, timestamp=TIME)
        first, second = batch.records()
        assert (first.offset, first.timestamp) == (10, TIME)
        assert (second.offset, second.timestamp) == (11, -1)
        assert second.timestamp_type is TimestampType.NO_TIMESTAMP_TYPE

    def test_lz4_in_magic_0_has_the_faulty_header_checksum(self) -> None:
        for magic, checksum in ((0, 0x1A), (1, 0x82)):
            data = build_legacy_set(NEW, magic=magic, codec=Codec.LZ4)
            assert data[data.index(b"\x04\x22\x4d\x18") + 6] == checksum


def without_value() -> LegacyBatch:
    data = build_legacy_message(None, None, magic=1, offset=3, attributes=Codec.GZIP)
    return LegacyBatch(bytes(7) + data, 7)


def with_inner_size(size: int) -> bytes:
    inner = message(0, magic=1)
    inner[8:12] = struct.pack(">i", size)
    return bytes(inner)


def with_flipped_inner_byte() -> bytes:
    inner = message(0, magic=1)
    inner[-1] ^= 1
    return bytes(inner)


class TestBrokenWrappers:
    @pytest.mark.parametrize(
        ("make", "rule"),
        [
            (without_value, "without a value"),
            (lambda: wrapper(b"", magic=1, offset=3), "without messages"),
            (lambda: wrapper(message(2, magic=1), magic=1, offset=1), "last inner offset is 2"),
            (lambda: wrapper(message(2, magic=0), magic=0, offset=3), "last inner offset is 2"),
            (lambda: wrapper(message(0, magic=1), magic=0, offset=0), "a wrapper of magic 0"),
            (lambda: wrapper(message(-1, magic=1), magic=1, offset=3), "inner offset -1"),
            (
                lambda: wrapper(message(0, magic=1) * 2, magic=1, offset=3),
                "inner offset 0 is not above 0",
            ),
            (
                lambda: wrapper(message(0, magic=1, attributes=1), magic=1, offset=3),
                "compressed message inside",
            ),
            (
                lambda: wrapper(message(0, magic=1) + b"abc", magic=1, offset=3),
                "3 bytes left after the inner messages",
            ),
            (lambda: wrapper(with_inner_size(13), magic=1, offset=3), "of length 13"),
            (lambda: wrapper(with_inner_size(25), magic=1, offset=3), "of length 25"),
            (lambda: wrapper(with_inner_size(-1), magic=1, offset=3), "of length -1"),
            (lambda: wrapper(with_inner_size(INT32_MAX), magic=1, offset=3), "length 2147483647"),
            (lambda: wrapper(with_flipped_inner_byte(), magic=1, offset=3), "CRC-32"),
        ],
    )
    def test_a_broken_rule(self, make: Callable[[], LegacyBatch], rule: str) -> None:
        assert rule in refused(make()).reason

    def test_the_base_offset_of_a_broken_wrapper_is_refused_too(self) -> None:
        with pytest.raises(CorruptRecord):
            _ = without_value().base_offset

    def test_inner_offsets_beyond_63_bits_are_refused(self) -> None:
        inner = message(5, magic=1) + message(INT64_MAX, magic=1)
        assert list(wrapper(inner, magic=1, offset=INT64_MAX).records())[-1].offset == INT64_MAX
        assert "last inner" in refused(wrapper(inner, magic=1, offset=INT64_MAX - 1)).reason

    def test_a_stream_that_is_cut_is_refused(self) -> None:
        value = compress(Codec.GZIP, message(0, magic=1))[:-1]
        data = build_legacy_message(None, value, magic=1, offset=0, attributes=Codec.GZIP)
        with pytest.raises(CorruptBatch, match="gzip"):
            LegacyBatch(data).records()

    def test_zstd_and_unknown_codecs_are_refused(self) -> None:
        for number in (4, 5, 6, 7):
            data = build_legacy_message(None, b"x", magic=1, offset=0, attributes=number)
            batch = LegacyBatch(data)
            with pytest.raises(UnsupportedCompression):
                _ = batch.codec
            with pytest.raises(UnsupportedCompression):
                batch.records()

    def test_a_bomb_costs_no_more_than_its_cap(self) -> None:
        data = build_legacy_message(
            None, compress(Codec.GZIP, bytes(1 << 26)), magic=1, offset=0, attributes=Codec.GZIP
        )
        tracemalloc.start()
        try:
            with pytest.raises(CorruptBatch, match="more than"):
                LegacyBatch(data).records(limit=1 << 20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 3 << 20


class TestBrokenMessages:
    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("size", [-2, -(2**31), 3, 2**30, INT32_MAX])
    @pytest.mark.parametrize("field", ["key", "value"])
    def test_a_wrong_length_is_refused(self, magic: int, size: int, field: str) -> None:
        data = bytes(7) + message(5, magic=magic)
        at = len(data) - (10 if field == "key" else 5)
        data = data[:at] + struct.pack(">i", size) + data[at + 4 :]
        batch = LegacyBatch(data, 7)
        with pytest.raises(CorruptRecord) as caught:
            batch.records(check_crc=False)
        assert (caught.value.at, caught.value.offset) == (7, 5)

    def test_bytes_after_the_value_are_refused(self) -> None:
        data = message(5, magic=1)
        data[-5:] = struct.pack(">i", 0) + b"v"
        with pytest.raises(CorruptRecord, match="1 byte left after the value"):
            LegacyBatch(data).records(check_crc=False)

    def test_a_wrong_checksum_is_refused(self) -> None:
        data = message(5, magic=1)
        data[-1] ^= 1
        batch = LegacyBatch(data)
        assert not batch.is_valid()
        with pytest.raises(CorruptBatch, match="CRC-32"):
            batch.ensure_valid()
        with pytest.raises(CorruptBatch, match="CRC-32"):
            batch.records()


class TestBuilder:
    def test_without_a_codec_messages_lie_back_to_back(self) -> None:
        data = build_legacy_set(NEW, magic=1, base_offset=40)
        assert [batch.last_offset for batch in walk(data)] == [40, 41, 42]
        assert [batch.max_timestamp for batch in walk(data)] == [TIME + 5, TIME + 9, TIME]

    def test_values_that_the_format_lacks_are_refused(self) -> None:
        with pytest.raises(UnsupportedForMessageFormat, match="headers"):
            build_legacy_set([NewRecord(headers=(Header("a", b""),))], magic=1)
        with pytest.raises(UnsupportedForMessageFormat, match="append time"):
            build_legacy_set(NEW, magic=0, append_time_ms=5)
        with pytest.raises(UnsupportedForMessageFormat, match="timestamps"):
            message(0, magic=0, timestamp=5)
        with pytest.raises(UnsupportedCompression):
            build_legacy_set(NEW, magic=1, codec=Codec.ZSTD)
        with pytest.raises(InvalidRequest):
            build_legacy_set([], magic=1)
