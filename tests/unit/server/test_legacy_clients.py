"""Batches converted to formats 0 and 1 for old clients, and the parts that these formats lack."""

import pytest
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptBatch, UnsupportedCompression
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.record.header import stamp_append_time
from tidelog.server.partitions.legacy_clients import down_convert, newest_magic
from tidelog.types import Codec, Header, NewRecord, TimestampType

RECORDS = [
    NewRecord(key=b"a", value=b"1", timestamp=1_000, headers=(Header("h", b"x"),)),
    NewRecord(key=None, value=b"2", timestamp=3_000),
    NewRecord(key=b"c", value=None, timestamp=2_000),
]


def batch_at(codec: Codec = Codec.NONE, base_offset: int = 10) -> bytearray:
    made = build_batch(RECORDS, codec=codec)
    made[:8] = base_offset.to_bytes(8, "big")
    return made


def shown(data: bytearray) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found = []
    for one in walk(data):
        one.ensure_valid()
        found += [(r.offset, r.timestamp, r.key, r.value) for r in one.records()]
    return found


def test_versions_and_formats() -> None:
    assert [newest_magic(version) for version in range(5)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_records_keep_offset_key_and_value(codec: Codec, magic: int) -> None:
    made = down_convert(batch_at(codec), magic, 10)
    times = [-1, -1, -1] if magic == 0 else [1_000, 3_000, 2_000]
    assert shown(made) == [
        (10, times[0], b"a", b"1"),
        (11, times[1], None, b"2"),
        (12, times[2], b"c", None),
    ]
    assert {(one.magic, one.codec) for one in walk(made)} == {(magic, codec)}
    assert [one.last_offset for one in walk(made)][-1] == 12


def test_append_time_is_kept_in_format_1() -> None:
    made = batch_at()
    stamp_append_time(made, 0, 7_000)
    (first, *_) = walk(down_convert(made, 1, 0))
    assert (first.timestamp_type, first.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 7_000)


def test_records_below_the_offset_are_excluded_if_uncompressed() -> None:
    assert [found[0] for found in shown(down_convert(batch_at(), 1, 12))] == [12]
    assert [found[0] for found in shown(down_convert(batch_at(Codec.GZIP), 1, 12))] == [10, 11, 12]


def test_known_formats_stay_as_they_are_and_markers_go() -> None:
    old = build_legacy_set(RECORDS[1:2], magic=0, base_offset=3)
    marker = build_end_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5
    )
    assert down_convert(old + marker, 1, 0) == old


def test_zstd_is_refused_for_old_formats() -> None:
    with pytest.raises(UnsupportedCompression):
        down_convert(batch_at(Codec.ZSTD), 1, 0)


def test_damage_is_not_hidden_by_a_new_checksum() -> None:
    made = batch_at()
    made[-1] ^= 1
    with pytest.raises(CorruptBatch):
        down_convert(made, 1, 0)
