"""Append times are added to records as headers; other parts of a batch stay unchanged."""

from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.server.partitions.fetch import HEADER_KEY, expose_append_times
from tidelog.types import Codec, Header, NewRecord, TimestampType

RECORDS = [
    NewRecord(key=b"a", value=b"1", timestamp=9),
    NewRecord(key=b"b", value=None, timestamp=7),
]


def test_all_but_the_header_stays() -> None:
    before = build_batch(
        RECORDS,
        base_offset=100,
        leader_epoch=3,
        codec=Codec.ZSTD,
        producer_id=5,
        producer_epoch=1,
        base_sequence=40,
        transactional=True,
        offset_deltas=[0, 4],
        last_offset_delta=6,
    )
    after = RecordBatch(expose_append_times(before, lambda _: 1234))
    after.ensure_valid()
    old = RecordBatch(before)
    for name in (
        "base_offset",
        "last_offset",
        "leader_epoch",
        "codec",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "is_transactional",
        "max_timestamp",
        "timestamp_type",
        "record_count",
    ):
        assert getattr(after, name) == getattr(old, name), name
    shown = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in after.records()]
    header = Header(HEADER_KEY, (1234).to_bytes(8, "big"))
    assert shown == [(100, 9, b"a", b"1", (header,)), (104, 7, b"b", None, (header,))]


def test_stamped_batches_keep_their_stamp() -> None:
    before = build_batch(
        RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=77_000
    )
    after = RecordBatch(expose_append_times(before, lambda _: 77_000))
    assert [r.timestamp for r in after.records()] == [77_000, 77_000]


def test_batches_without_times_or_headers_stay_unchanged() -> None:
    plain = build_batch(RECORDS)
    old = build_legacy_set(RECORDS, magic=1)
    marker = build_end_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5
    )
    assert expose_append_times(plain, lambda _: None) == plain
    assert expose_append_times(old + marker, lambda _: 5) == old + marker
    plain[-1] ^= 1
    assert expose_append_times(plain, lambda _: 5) == plain
