"""Manifests and tier records are decoded as they were encoded; damaged ones are refused."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.storage.tiers.tiered import NAME, Tiered

from tidelog.errors import CorruptFile, InvalidRequest, TierConflict, UnsupportedVersion
from tidelog.storage.text_files import Fields
from tidelog.storage.tier.manifest import (
    Manifest,
    TierSegment,
    decode_manifest,
    decode_row,
    encode_manifest,
    encode_row,
    manifest_object,
    manifest_of,
    seal,
)
from tidelog.storage.tier.tier_record import (
    DELETED_FILE,
    DeletedFolder,
    TierRecord,
    decode_record,
    encode_record,
    note_deleted,
    read_deleted,
)


def sample() -> Manifest:
    tiered = Tiered().start()
    tiered.fill(20)
    tiered.move()
    tiered.log.delete_records(6)
    tiered.move()
    tier = tiered.log.tier
    assert tier is not None
    assert tier.record.manifest.garbage
    return tier.record.manifest


SAMPLE = sample()
ROWS = SAMPLE.segments


def at(base: int, end: int, uid: str = "a") -> TierSegment:
    return dataclasses.replace(ROWS[0], base_offset=base, end_offset=end, uid=uid * 32)


def plain(*rows: TierSegment) -> Manifest:
    return dataclasses.replace(SAMPLE, segments=rows, garbage=(), log_start_offset=0)


def test_manifests_and_records_are_read_back() -> None:
    assert decode_manifest(encode_manifest(SAMPLE)) == SAMPLE
    record = TierRecord(
        url="s3://b/p", folder="f/0", manifest=SAMPLE, local_start_offset=7, cut_offset=9
    )
    assert decode_record(encode_record(record)) == record
    with pytest.raises(CorruptFile, match="expected TOPIC/PARTITION"):
        decode_record(encode_record(dataclasses.replace(record, folder="a/f/0")))
    clipped = dataclasses.replace(ROWS[0], clip_bytes=5)
    assert decode_row(json.loads(json.dumps(encode_row(clipped)))) == clipped


@given(st.data())
def test_any_damage_is_refused(data: st.DataObject) -> None:
    content = bytearray(encode_manifest(SAMPLE))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptFile):
        decode_manifest(bytes(content))
    with pytest.raises(CorruptFile):
        decode_manifest(encode_manifest(SAMPLE)[:place])


PATHS = ["version", "topic", "partition", "writer", "generation", "segments", "garbage"]
ROW_PATHS = ["base", "end", "uid", "objects", "total", "times", "capped", "note", "clip"]
WRONG: list[object] = [None, -1, "x", [], {}, [1], 1.5, True, {"a": 1}, 2**70, [[]]]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_values_of_another_kind_are_refused(wrong: object) -> None:
    for name in PATHS:
        inner = manifest_object(SAMPLE)
        if inner[name] == wrong or (name in ("segments", "garbage") and wrong == []):
            continue
        if name in ("partition", "generation") and wrong == -1:
            continue
        if name in ("topic", "writer") and isinstance(wrong, str):
            continue
        inner[name] = wrong
        with pytest.raises((CorruptFile, UnsupportedVersion)):
            manifest_of(Fields.of(inner, "m"))
    for name in ROW_PATHS:
        row = encode_row(ROWS[0])
        if wrong is None and name in ("capped", "clip"):
            continue
        row[name] = wrong
        with pytest.raises(CorruptFile):
            decode_row(row)


def test_a_row_consists_of_a_log_and_of_files_of_a_segment() -> None:
    row = encode_row(ROWS[0])
    objects = row["objects"]
    assert isinstance(objects, dict)
    foreign = {**objects, ".exe": objects[".log"]}
    without = {suffix: one for suffix, one in objects.items() if suffix != ".log"}
    assert without
    for wrong in (foreign, without, {}):
        with pytest.raises(CorruptFile, match="has no log, or an unknown file"):
            decode_row({**row, "objects": wrong})


def test_a_later_version_is_named() -> None:
    inner = json.dumps({**manifest_object(SAMPLE), "version": 2}).encode()
    with pytest.raises(UnsupportedVersion, match="version 2; this release reads up to version 1"):
        decode_manifest(seal(inner, b', "manifest": '))


def test_adding_is_idempotent_and_refuses_other_records() -> None:
    one, two = at(0, 10), at(10, 20, "b")
    found = plain(one).with_added([two])
    assert found.segments == (one, two)
    assert found.with_added([at(10, 20, "c")]).segments == (one, two)
    other = dataclasses.replace(at(10, 21, "c"))
    with pytest.raises(TierConflict, match="offsets 10 to 19"):
        found.with_added([other])


def test_an_exchange_spans_the_same_offsets() -> None:
    rows = [at(0, 10), at(10, 20, "b"), at(20, 30, "c")]
    found = plain(*rows).with_exchanged(rows[:2], [at(0, 20, "d")], 5)
    assert [(row.base_offset, row.end_offset) for row in found.segments] == [(0, 20), (20, 30)]
    assert [one.segment for one in found.garbage] == rows[:2]
    assert {one.since_ms for one in found.garbage} == {5}
    assert found.without_garbage({rows[0].folder}).garbage == found.garbage[1:]
    for old, new in ((rows[:1], [at(0, 9, "d")]), ([rows[0], rows[2]], [at(0, 30, "d")])):
        with pytest.raises(InvalidRequest, match=r"adjacent|offsets 0 to 9 can't .* 0 to 8;"):
            plain(*rows).with_exchanged(old, new, 5)
    with pytest.raises(TierConflict):
        found.with_exchanged(rows[:2], [at(0, 20, "e")], 5)


def test_a_segment_stays_until_the_log_start_is_past_the_gap_after_it() -> None:
    rows = [dense(0, 10, "a"), dense(10, 20, "b"), dense(25, 30, "c")]
    found = plain(*rows)
    for offset, count in ((9, 3), (10, 2), (20, 2), (24, 2), (25, 1), (30, 1), (39, 1), (40, 0)):
        moved = found.with_start(offset, 40, 5)
        assert moved.segments == tuple(rows[3 - count :])
        assert moved.end_offset == max(30, offset)
        found = moved
    # If compaction explains a gap, the segment before the gap is not kept.
    assert plain(*rows).with_start(21, 40, 5, gaps_are_losses=False).segments == (rows[2],)
    # A segment that lacks offsets itself does not show whether the offsets after it are lost.
    assert plain(at(0, 10)).with_start(10, 40, 5).segments == ()


def dense(base: int, end: int, uid: str) -> TierSegment:
    total = ROWS[0].total._replace(data_records=end - base, control_records=0)
    return dataclasses.replace(at(base, end, uid), total=total)


def test_new_starts_and_cuts_remove_whole_segments() -> None:
    rows = [at(0, 10), at(10, 20, "b"), at(20, 30, "c")]
    found = plain(*rows).with_start(15, 30, 5)
    assert found.segments == tuple(rows[1:])
    assert found.with_start(3, 30, 6) == found
    ended = plain(*rows).with_start(30, 40, 5)
    assert (ended.segments, ended.end_offset) == ((), 30)
    clipped = dataclasses.replace(rows[1], end_offset=14, clip_bytes=3)
    cut = plain(*rows).with_cut(15, lambda _row, _offset: clipped, 5)
    assert cut.segments == (rows[0], clipped)
    assert cut.end_offset == 14
    assert plain(*rows).with_cut(15, lambda _row, _offset: None, 5).segments == (rows[0],)
    assert plain(*rows).with_cut(20, lambda _row, _offset: None, 5).segments == tuple(rows[:2])


def test_deleted_folders_are_noted_once() -> None:
    tiered = Tiered().start()
    one, two = DeletedFolder("s3://b", "t/0"), DeletedFolder("s3://b", "t/1")
    note_deleted(tiered.disk, "/data", [one])
    note_deleted(tiered.disk, "/data", [one, two])
    assert read_deleted(tiered.disk, "/data") == [one, two]
    for content in (b"[]", b'{"version": 1, "folders": [["a"]]}', b"\xff"):
        tiered.disk.remove(f"/data/{DELETED_FILE}")
        file = tiered.disk.open(f"/data/{DELETED_FILE}", create=True)
        file.pwrite(content, 0)
        file.close()
        with pytest.raises(CorruptFile, match=DELETED_FILE):
            read_deleted(tiered.disk, "/data")
    assert NAME.topic in tiered.directory.topics()
