"""Records of groups: partition, encoding, decoding, transactions, damage."""

import pytest
from tests.worlds.brokers.groups import GROUP, World

from tidelog.errors import CorruptMessage
from tidelog.record.batch_walk import view_batch
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.server.coordinator.java_hash import java_hash, partition_for
from tidelog.server.coordinator.state_topic import KeyValue
from tidelog.server.groups.committed_offsets import CommittedOffset, OffsetChange
from tidelog.server.groups.records import (
    GroupChange,
    group_record,
    offset_record,
    read_change,
    tombstone,
)
from tidelog.server.groups.replay import Replay, restore_group
from tidelog.types import NewRecord


@pytest.mark.parametrize(
    ("text", "found"),
    [("", 0), ("hello", 99_162_322), ("readers", 1_080_410_128), ("é", 233), ("😀", 1_772_899)],
)
def test_java_hash(text: str, found: int) -> None:
    assert java_hash(text) == found


@pytest.mark.parametrize("count", [15, 16, 17, 50])
def test_java_hash_of_names_of_every_length(count: int) -> None:
    text, found = "a\U0001f600z" * count, 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        found = (found * 31 + unit) % 2**32
    assert java_hash(text) % 2**32 == found


def test_smallest_hash_has_no_positive() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert partition_for("polygenelubricants", 50) == 0


def test_a_commit_and_its_tombstone_have_kafkas_bytes() -> None:
    found = CommittedOffset(5, 2, "why", 100)
    record = offset_record(GROUP, "flights", 3, found)
    assert record.key.hex() == "00010007726561646572730007666c696768747300000003"
    assert record.value is not None
    assert record.value[:2] == b"\0\4"
    change = read_change(record.key, record.value, 77)
    assert change == OffsetChange(
        GROUP, "flights", 3, CommittedOffset(5, 2, "why", 100, -1, found.topic_id, 77)
    )
    assert offset_record(GROUP, "flights", 3, None) == KeyValue(record.key, None)


def test_own_expiry_is_written_in_the_version_that_has_it() -> None:
    record = offset_record(GROUP, "flights", 0, CommittedOffset(5, 2, "", 100, 900))
    assert record.value is not None
    assert record.value[:2] == b"\0\1"
    change = read_change(record.key, record.value, 0)
    assert isinstance(change, OffsetChange)
    assert (change.offset.expire_ms, change.offset.leader_epoch) == (900, -1)


def test_a_generation_and_its_tombstone_have_kafkas_bytes() -> None:
    world = World()
    members = world.form(2, ["seat"])
    record = group_record(world.group)
    assert record.value is not None
    change = read_change(record.key, record.value, 0)
    assert isinstance(change, GroupChange)
    assert change.value.generation == 1
    assert [m.group_instance_id for m in change.value.members] == ["seat", None]
    assert {bytes(m.assignment).decode() for m in change.value.members} == {
        member.member_id for member in members
    }
    assert tombstone(GROUP) == KeyValue(record.key, None)


def test_records_of_unknown_kinds_are_skipped() -> None:
    assert read_change(b"\0\x11\0\1g", b"\0\0", 0) is None
    with pytest.raises(CorruptMessage):
        read_change(b"\0\1\0\x40g", b"", 0)


class TestReplay:
    def commit(self, replay: Replay, offset: int, at: int, producer_id: int = -1) -> None:
        record = offset_record(GROUP, "flights", 0, CommittedOffset(offset))
        batch = build_batch(
            [NewRecord(key=record.key, value=record.value, timestamp=0)],
            base_offset=at,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
        replay.add(view_batch(batch))

    def end(self, replay: Replay, at: int, *, commit: bool) -> None:
        marker = build_end_marker(
            commit=commit,
            producer_id=5,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=at,
        )
        replay.add(view_batch(marker))

    def found(self, replay: Replay) -> int | None:
        groups = replay.groups()
        if GROUP not in groups:
            return None
        offset = restore_group(GROUP, groups[GROUP], 0).offsets.get("flights", 0)
        return None if offset is None else offset.offset

    def test_last_commit_counts(self) -> None:
        replay = Replay()
        self.commit(replay, 1, 0)
        self.commit(replay, 2, 1)
        assert self.found(replay) == 2

    def test_transaction_counts_from_its_commit(self) -> None:
        replay = Replay()
        self.commit(replay, 1, 0)
        self.commit(replay, 9, 1, producer_id=5)
        assert self.found(replay) == 1
        self.end(replay, 2, commit=True)
        assert self.found(replay) == 9

    def test_aborted_transaction_never_counts(self) -> None:
        replay = Replay()
        self.commit(replay, 9, 0, producer_id=5)
        self.end(replay, 1, commit=False)
        self.end(replay, 2, commit=True)
        assert self.found(replay) is None

    def test_commit_that_is_newer_than_the_transaction_s_stays(self) -> None:
        replay = Replay()
        self.commit(replay, 9, 0, producer_id=5)
        self.commit(replay, 3, 1)
        self.end(replay, 2, commit=True)
        assert self.found(replay) == 3

    def test_record_that_cannot_be_read_is_left_out_and_named(self) -> None:
        replay = Replay()
        self.commit(replay, 1, 0)
        damaged = [NewRecord(key=b"\0\1\0\1gx", value=b"\0\1", timestamp=0)]
        replay.add(view_batch(build_batch(damaged, base_offset=1)))
        assert self.found(replay) == 1
        assert len(replay.skipped) == 1
        assert replay.skipped[0].startswith("offset 1:")
