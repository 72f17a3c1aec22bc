"""Batches of magic 2: known bytes, the view, changes in place, builders."""

from dataclasses import replace

import pytest

from tidelog.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    UnsupportedCompression,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch, build_empty_batch
from tidelog.record.header import (
    ATTRIBUTES_AT,
    CRC_AT,
    assign_offset,
    seal,
    set_create_time_max,
    stamp_append_time,
)
from tidelog.types import INT32_MAX, INT64_MAX, INT64_MIN, Codec, Header, NewRecord, TimestampType

TIME = 1_700_000_000_000
DAY = 86_400_000
NEW = [
    NewRecord(key=b"k", value=b"v", timestamp=TIME),
    NewRecord(key=b"k", value=None, timestamp=TIME - 10),
]

# These bytes were built by hand from the layout, not by Kafka. The tests in tests/peers run Kafka
# itself.
TWO_RECORDS = (
    "0000000000000005 00000042 00000003 02 bdd556a6 0000 00000001 0000018bcfe56800 0000018bcfe56800"
    "ffffffffffffffff ffff ffffffff 00000002 1000000002 6b 02 76 00 0e00130202 6b 01 00"
)
STAMPED = TWO_RECORDS.replace("bdd556a6 0000", "fbef9f27 0008").replace(
    "0000018bcfe56800 0000018bcfe56800", "0000018bcfe56800 0000018bcfe56be8"
)
EMPTY = (
    "0000000000000005 00000031 00000003 02 bbf28776 0000 00000001 ffffffffffffffff 0000018bcfe56800"
    "0000000000000007 0000 00000004 00000000"
)
HORIZON = (
    "0000000000000005 0000003c 00000003 02 5e51e9a0 0040 00000001 0000018bd50bc400 0000018bcfe567f6"
    "ffffffffffffffff ffff ffffffff 00000001 14 00 93f0b252 02 02 6b 01 00"
)


def known(text: str) -> bytearray:
    return bytearray.fromhex(text.replace(" ", ""))


class TestKnownBytes:
    def test_two_records(self) -> None:
        assert build_batch(NEW, base_offset=5, leader_epoch=3) == known(TWO_RECORDS)

    def test_two_records_are_read(self) -> None:
        batch = RecordBatch(known(TWO_RECORDS))
        first, second = batch.records()
        assert (first.offset, first.timestamp, first.key, first.value) == (5, TIME, b"k", b"v")
        assert (second.offset, second.timestamp, second.value) == (6, TIME - 10, None)
        assert (batch.base_offset, batch.last_offset, batch.next_offset) == (5, 6, 7)
        assert (batch.leader_epoch, batch.magic, batch.record_count) == (3, 2, 2)
        assert (batch.max_timestamp, batch.base_timestamp) == (TIME, TIME)

    def test_two_records_with_an_append_time(self) -> None:
        data = known(TWO_RECORDS)
        stamp_append_time(data, 0, TIME + 1000)
        assert data == known(STAMPED)
        assert [record.timestamp for record in RecordBatch(data).records()] == [TIME + 1000] * 2

    def test_an_append_time_can_be_built_in_at_once(self) -> None:
        data = build_batch(
            NEW,
            base_offset=5,
            leader_epoch=3,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            append_time_ms=TIME + 1000,
        )
        assert data == known(STAMPED)

    def test_an_empty_batch_keeps_offsets_and_sequences(self) -> None:
        data = build_empty_batch(
            base_offset=5,
            last_offset=6,
            max_timestamp=TIME,
            leader_epoch=3,
            producer_id=7,
            producer_epoch=0,
            base_sequence=4,
        )
        assert data == known(EMPTY)
        batch = RecordBatch(data)
        assert list(batch.records()) == []
        assert (batch.last_offset, batch.last_sequence, batch.record_count) == (6, 5, 0)

    def test_a_delete_horizon_replaces_the_base_timestamp(self) -> None:
        data = build_batch(
            NEW[1:],
            base_offset=5,
            leader_epoch=3,
            offset_deltas=[1],
            delete_horizon_ms=TIME + DAY,
        )
        assert data == known(HORIZON)
        batch = RecordBatch(data)
        (record,) = batch.records()
        assert batch.delete_horizon_ms == TIME + DAY
        assert (record.offset, record.timestamp, record.is_tombstone) == (6, TIME - 10, True)

    @pytest.mark.parametrize("text", [TWO_RECORDS, STAMPED, EMPTY, HORIZON])
    def test_their_checksums_match(self, text: str) -> None:
        batch = RecordBatch(known(text))
        assert batch.is_valid()
        batch.ensure_valid()


class TestFields:
    def test_a_batch_of_an_idempotent_producer(self) -> None:
        batch = RecordBatch(
            build_batch(NEW, producer_id=9, producer_epoch=2, base_sequence=INT32_MAX)
        )
        assert batch.has_producer_id
        assert (batch.producer_id, batch.producer_epoch) == (9, 2)
        # Sequence numbers wrap: 0 follows the largest number.
        assert (batch.base_sequence, batch.last_sequence) == (INT32_MAX, 0)
        assert [record.sequence for record in batch.records()] == [INT32_MAX, 0]

    def test_a_batch_without_a_producer(self) -> None:
        batch = RecordBatch(build_batch(NEW))
        assert not batch.has_producer_id
        assert (batch.producer_id, batch.producer_epoch) == (-1, -1)
        assert (batch.base_sequence, batch.last_sequence) == (-1, -1)
        assert [record.sequence for record in batch.records()] == [-1, -1]
        assert not batch.is_transactional
        assert not batch.is_control
        assert batch.delete_horizon_ms is None
        assert batch.timestamp_type is TimestampType.CREATE_TIME

    @pytest.mark.parametrize("codec", Codec)
    def test_the_codec(self, codec: Codec) -> None:
        batch = RecordBatch(build_batch(NEW * 100, codec=codec))
        assert batch.codec is codec
        assert [record.value for record in batch.records()] == [b"v", None] * 100
        assert (batch.is_transactional, batch.is_control) == (False, False)

    @pytest.mark.parametrize("number", [5, 6, 7])
    def test_undefined_codecs_are_refused(self, number: int) -> None:
        data = build_batch(NEW)
        data[ATTRIBUTES_AT + 1] = number
        seal(data, 0)
        batch = RecordBatch(data)
        assert batch.is_valid()
        with pytest.raises(UnsupportedCompression):
            _ = batch.codec
        with pytest.raises(UnsupportedCompression):
            batch.records()

    def test_the_view_has_the_position_of_the_batch(self) -> None:
        data = build_batch(NEW)
        batch = RecordBatch(b"junk" + data + b"junk", at=4)
        assert batch.view == data
        assert batch.at == 4
        assert batch.size_bytes == len(data)
        assert len(list(batch.records())) == 2

    def test_a_plain_body_is_a_view_and_not_a_copy(self) -> None:
        data = build_batch(NEW)
        body = RecordBatch(data).body()
        assert isinstance(body, memoryview)
        assert body.obj is data

    def test_attribute_bits_without_a_meaning_are_ignored(self) -> None:
        data = build_batch(NEW)
        data[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = b"\xff\x80"
        seal(data, 0)
        assert len(list(RecordBatch(data).records())) == 2


class TestChangesInPlace:
    def test_offset_and_leader_epoch_do_not_affect_the_checksum(self) -> None:
        data = bytearray(b"junk") + build_batch(NEW)
        crc = RecordBatch(data, 4).crc
        assign_offset(data, 4, INT64_MAX - 1, INT32_MAX)
        batch = RecordBatch(data, 4)
        assert (batch.base_offset, batch.last_offset) == (INT64_MAX - 1, INT64_MAX)
        assert (batch.leader_epoch, batch.crc, batch.is_valid()) == (INT32_MAX, crc, True)
        assert data[:4] == b"junk"

    def test_changes_in_place_work_on_a_view_of_a_buffer(self) -> None:
        data = build_batch(NEW)
        view = memoryview(data)
        assign_offset(view, 0, 77, 1)
        stamp_append_time(view, 0, TIME + 5)
        batch = RecordBatch(data)
        assert (batch.base_offset, batch.max_timestamp, batch.is_valid()) == (77, TIME + 5, True)

    def test_an_append_time_keeps_the_producers_times(self) -> None:
        data = build_batch(NEW, transactional=True, producer_id=1, producer_epoch=0)
        stamp_append_time(data, 0, TIME + 5)
        batch = RecordBatch(data)
        assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert batch.is_transactional
        records = list(batch.records())
        assert [record.create_timestamp for record in records] == [TIME, TIME - 10]
        assert {record.timestamp_type for record in records} == {TimestampType.LOG_APPEND_TIME}

    def test_an_append_time_clears_bits_without_a_meaning_only(self) -> None:
        data = build_batch(NEW, control=True, transactional=True, delete_horizon_ms=1)
        data[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = b"\xff\xf0"
        stamp_append_time(data, 0, TIME)
        assert RecordBatch(data).attributes == 0x78

    def test_the_create_time_maximum_is_put_right(self) -> None:
        data = build_batch(NEW)
        set_create_time_max(data, 0, TIME + 1)
        batch = RecordBatch(data)
        assert (batch.max_timestamp, batch.is_valid()) == (TIME + 1, True)

    def test_a_create_time_maximum_replaces_an_append_time(self) -> None:
        data = build_batch(NEW)
        before = bytes(data)
        stamp_append_time(data, 0, TIME)
        set_create_time_max(data, 0, TIME)
        assert data == before

    def test_a_right_create_time_maximum_changes_nothing(self) -> None:
        data = build_batch(NEW)
        data[ATTRIBUTES_AT] = 0xFF
        data[CRC_AT] ^= 0xFF
        before = bytes(data)
        set_create_time_max(data, 0, TIME)
        assert data == before


class TestTimes:
    def test_the_base_is_the_first_records_time_and_not_the_smallest(self) -> None:
        batch = RecordBatch(build_batch([NEW[1], NEW[0]]))
        assert (batch.base_timestamp, batch.max_timestamp) == (TIME - 10, TIME)
        batch = RecordBatch(build_batch(NEW))
        assert (batch.base_timestamp, batch.max_timestamp) == (TIME, TIME)

    def test_records_without_a_time_take_the_default(self) -> None:
        new = [NewRecord(value=b"a"), NewRecord(value=b"b", timestamp=-1)]
        batch = RecordBatch(build_batch(new, default_timestamp=TIME))
        assert [record.timestamp for record in batch.records()] == [TIME, -1]
        assert [record.create_timestamp for record in batch.records()] == [TIME, None]

    def test_no_times_at_all(self) -> None:
        batch = RecordBatch(build_batch([NewRecord(value=b"a")] * 2))
        assert (batch.base_timestamp, batch.max_timestamp) == (-1, -1)
        assert {record.timestamp for record in batch.records()} == {-1}

    def test_extreme_times_are_read_back(self) -> None:
        times = [INT64_MAX, INT64_MIN, -1, 0, INT64_MIN + 1, INT64_MAX - 1]
        batch = RecordBatch(build_batch([NewRecord.of_log(timestamp=time) for time in times]))
        assert [record.timestamp for record in batch.records()] == times
        assert batch.max_timestamp == INT64_MAX

    def test_a_time_beyond_64_bits_is_refused(self) -> None:
        for time in (INT64_MAX + 1, INT64_MIN - 1):
            with pytest.raises(InvalidTimestamp):
                build_batch([NewRecord.of_log(timestamp=time)])

    def test_create_times_are_lost_if_a_cleaner_overwrote_them_with_the_append_time(self) -> None:
        same = [replace(new, timestamp=TIME) for new in NEW]
        stamped = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": TIME}
        # Gaps in the offsets or a delete horizon show that a cleaner rewrote the batch. Without
        # them, the batch still has the producer's times.
        gaps = build_batch(same, offset_deltas=[0, 2], **stamped)  # type: ignore[arg-type]  # mixed values
        horizon = build_batch(same, delete_horizon_ms=TIME + DAY, **stamped)  # type: ignore[arg-type]  # mixed values
        untouched = build_batch(same, **stamped)  # type: ignore[arg-type]  # mixed values
        ours = build_batch(NEW, offset_deltas=[0, 2], **stamped)  # type: ignore[arg-type]  # mixed values
        assert [r.create_timestamp for r in RecordBatch(gaps).records()] == [None, None]
        assert [r.create_timestamp for r in RecordBatch(horizon).records()] == [None, None]
        assert [r.create_timestamp for r in RecordBatch(untouched).records()] == [TIME, TIME]
        assert [r.create_timestamp for r in RecordBatch(ours).records()] == [TIME, TIME - 10]


class TestBuilder:
    def test_records_of_a_log_can_be_built_again(self) -> None:
        headers = (Header("a", b"1"), Header("a", None), Header("", b""), Header("ü", b"\xff"))
        new = [NewRecord(key=b"", value=b"", timestamp=7, headers=headers), NewRecord(timestamp=8)]
        first = build_batch(new, base_offset=40)
        records = list(RecordBatch(first).records())
        assert build_batch(records, base_offset=40) == first
        assert records[0].headers == headers

    @pytest.mark.parametrize("text", [TWO_RECORDS, STAMPED, HORIZON])
    def test_a_batch_that_is_rebuilt_from_its_records_is_the_same(self, text: str) -> None:
        batch = RecordBatch(known(text))
        kept = [
            NewRecord(key=r.key, value=r.value, timestamp=r.create_timestamp, headers=r.headers)
            for r in batch.records()
        ]
        offsets = [record.offset for record in batch.records()]
        assert batch.rebuilt(kept, offsets) == known(text)

    def test_gaps_and_a_later_end_are_kept(self) -> None:
        batch = RecordBatch(
            build_batch(NEW, base_offset=100, offset_deltas=[3, 7], last_offset_delta=9)
        )
        assert [record.offset for record in batch.records()] == [103, 107]
        assert (batch.last_offset, batch.next_offset) == (109, 110)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"offset_deltas": [0]},
            {"offset_deltas": [1, 1]},
            {"offset_deltas": [1, 0]},
            {"offset_deltas": [-1, 0]},
            {"last_offset_delta": 0},
            {"offset_deltas": [0, 2**31]},
            {"base_offset": INT64_MAX},
            {"append_time_ms": 5},
            {"timestamp_type": TimestampType.LOG_APPEND_TIME},
            {"codec": Codec.SNAPPY, "level": 3},
        ],
    )
    def test_contradictions_are_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(InvalidRequest):
            build_batch(NEW, **wrong)  # type: ignore[arg-type]  # wrong on purpose

    def test_no_records_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="build_empty_batch"):
            build_batch([])

    def test_a_header_key_that_is_no_text_is_refused(self) -> None:
        with pytest.raises(InvalidRecord, match="UTF-8"):
            build_batch([NewRecord(headers=(Header("\ud800", None),))])


def test_a_wrong_checksum_is_reported_with_its_place() -> None:
    data = bytearray(b"junk") + build_batch(NEW, base_offset=30)
    data[-1] ^= 1
    batch = RecordBatch(data, 4)
    assert not batch.is_valid()
    with pytest.raises(CorruptBatch, match="CRC-32C") as caught:
        batch.records()
    assert (caught.value.at, caught.value.offset) == (4, 30)
    located = caught.value.located("segment.log", 1000)
    assert (located.path, located.position) == ("segment.log", 1004)


def test_the_checksum_is_skipped_only_on_demand() -> None:
    data = build_batch(NEW)
    data[CRC_AT] ^= 1
    assert len(list(RecordBatch(data).records(check_crc=False))) == 2


def test_a_batch_that_decompresses_beyond_the_limit_is_refused_with_its_place() -> None:
    data = bytearray(7) + build_batch(
        [NewRecord(value=bytes(10_000))], base_offset=3, codec=Codec.ZSTD
    )
    with pytest.raises(CorruptBatch, match="zstd") as caught:
        list(RecordBatch(data, 7).records(limit=9_000))
    assert (caught.value.at, caught.value.offset) == (7, 3)
