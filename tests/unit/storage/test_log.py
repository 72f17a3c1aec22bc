"""A partition open for writing: offsets, rolls, indexes, times, rules, failures."""

import pytest
from tests.faults import START_MS, Fault, FaultKind
from tests.worlds.constants import set_constant
from tests.worlds.directories.logs import (
    DAY_MS,
    HOUR_MS,
    SMALL,
    bases,
    batch,
    fill,
    names,
    new_log,
    new_records,
    offsets,
    put,
    read,
    reader_of,
    reopen,
)

from tidelog.errors import (
    Closed,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    StorageFailure,
)
from tidelog.record.builder import build_batch
from tidelog.storage.log.batch_building import group_records, record_bytes
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.types import Codec, NewRecord, TimestampType

BIG = {"index.interval.bytes": "0"}


def test_records_are_grouped_up_to_the_size_of_a_batch() -> None:
    record = NewRecord(value=b"v" * 88)
    size = record_bytes(record)
    assert [*group_records([record] * 5, 2 * size)] == [[record] * 2, [record] * 2, [record]]
    assert [*group_records([record] * 2, 2 * size - 1)] == [[record], [record]]
    assert [*group_records([record] * 2, 1)] == [[record], [record]]


class TestOffsets:
    def test_records_get_the_next_offsets_in_any_batches(self) -> None:
        _, _, log = new_log()
        first = log.append(new_records([1, 2, 3]), batch_bytes=1)
        second = log.append(new_records([4, 5]), codec=Codec.LZ4)
        third = log.append_batches(batch([6]))
        assert [(r.base_offset, r.last_offset) for r in (first, second, third)] == [
            (0, 2),
            (3, 4),
            (5, 5),
        ]
        assert offsets(log.records()) == list(range(6))
        assert log.log_end_offset == 6

    def test_offsets_continue_after_a_restart(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 25)
        directory.close()
        _, log = reopen(env)
        assert log.append(new_records([1])).base_offset == 25
        assert offsets(log.records()) == list(range(26))

    def test_an_append_of_nearly_a_segment_is_one_batch(self) -> None:
        _, _, log = new_log(SMALL)
        log.append(new_records([1] * 8, value=b"v" * 69))
        assert 660 < log.size_bytes() <= 700

    def test_a_refused_append_takes_no_offset(self) -> None:
        _, _, log = new_log({"max.message.bytes": "200"})
        with pytest.raises(MessageTooLarge):
            log.append([NewRecord(value=b"x" * 300)])
        assert log.append([NewRecord(value=b"x")]).base_offset == 0

    def test_records_beyond_the_decompression_limit_are_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_constant(monkeypatch, "APPEND_DECOMPRESSION_LIMIT", 1000, inside="tidelog.storage")
        _, _, log = new_log()
        for count, size, batch_bytes in ((1, 1000, 1), (20, 60, 2000)):
            records = [NewRecord(value=b"x" * size)] * count
            for codec in (Codec.LZ4, Codec.GZIP):
                with pytest.raises(MessageTooLarge, match="at most 1000"):
                    log.append(records, codec=codec, batch_bytes=batch_bytes)
        assert log.log_end_offset == 0
        log.append([NewRecord(value=b"x" * 1000)])
        log.append([NewRecord(value=b"x" * 980)], codec=Codec.LZ4)
        many = [NewRecord(value=b"x" * 60)] * 20
        assert log.append(many, codec=Codec.LZ4, batch_bytes=300).base_offset == 2

    def test_an_append_needs_a_record(self) -> None:
        _, _, log = new_log()
        with pytest.raises(InvalidRequest):
            log.append([])
        with pytest.raises(InvalidRecord):
            log.append_batches(b"")


class TestRolls:
    def test_by_size_before_the_limit_is_passed(self) -> None:
        _, _, log = new_log({"internal.segment.bytes": "700"})
        fill(log, 20)
        assert len(log.segments) > 1
        assert all(segment.size_bytes <= 700 for segment in log.segments)

    def test_by_message_time_from_the_first_records_timestamp(self) -> None:
        """A roll by message time counts from the time of the segment's first batch."""
        _, _, log = new_log({"segment.ms": "1000"})
        put(log, 5000)
        put(log, 5999)
        put(log, 3000)
        put(log, 6000)
        assert bases(log) == [0]
        put(log, 6001)
        assert bases(log) == [0, 4]
        put(log, 5500)  # earlier than the segment's first record: no roll
        assert bases(log) == [0, 4]

    def test_message_time_still_counts_from_the_first_record_after_a_restart(self) -> None:
        env, directory, log = new_log({"segment.ms": "1000"})
        put(log, 5000)
        put(log, 5900)
        directory.close()
        _, log = reopen(env)
        put(log, 6001)
        assert bases(log) == [0, 2]

    def test_a_segment_rolls_by_the_wall_clock_if_records_have_no_time(self) -> None:
        env, _, log = new_log({"segment.ms": "1000"})
        put(log, -1)
        env.clock.advance(1000)
        put(log, -1)
        assert bases(log) == [0]
        env.clock.advance(1)
        put(log, -1)
        assert bases(log) == [0, 2]

    def test_no_segment_rolls_without_an_append(self) -> None:
        env, _, log = new_log({"segment.ms": "1000"})
        put(log, -1)
        env.clock.advance(DAY_MS)
        assert bases(log) == [0]

    def test_a_full_offset_index_rolls_the_segment(self) -> None:
        _, _, log = new_log({"segment.index.bytes": "36", "index.interval.bytes": "1"})
        for _ in range(5):
            put(log, 7)  # equal times get at most one entry in the time index
        assert log.active.offset_index.entry_count == 4
        assert bases(log) == [0]
        put(log, 7)
        assert bases(log) == [0, 5]

    def test_by_a_full_time_index_whose_last_slot_is_for_the_roll(self) -> None:
        _, _, log = new_log({"segment.index.bytes": "36", "index.interval.bytes": "1"})
        put(log, 1)
        put(log, 2)
        log.append(new_records([3, 4]), batch_bytes=1)
        assert list(log.active.time_index.entries()) == [(2, 1), (3, 2)]
        put(log, 9)
        assert bases(log) == [0, 4]
        assert list(log.segments[0].time_index.entries()) == [(2, 1), (3, 2), (4, 3)]

    @pytest.mark.parametrize("size", ["4", "8", "12"])
    def test_an_index_without_room_still_leaves_a_segment_its_largest_time(self, size: str) -> None:
        _, _, log = new_log({"segment.index.bytes": size})
        for time in (5, 6, 7):
            put(log, time)
        found = log.offset_for_time(5)
        assert found is not None
        assert found.offset == 0
        assert [segment.largest_timestamp for segment in log.segments] == [5, 6, 7]

    def test_before_an_offset_does_not_fit_into_32_bits(self) -> None:
        _, _, log = new_log()
        put(log, 1)
        far = 2**31 + 5
        log.follower.append(build_batch(new_records([2]), base_offset=2**31 - 1, leader_epoch=1))
        assert bases(log) == [0]
        log.follower.append(build_batch(new_records([3]), base_offset=far, leader_epoch=1))
        assert bases(log) == [0, far]
        assert offsets(log.records()) == [0, 2**31 - 1, far]

    def test_an_empty_segment_gives_way_to_a_far_offset(self) -> None:
        """The leader has deleted the beginning of its log, so a follower begins far ahead."""
        env, _, log = new_log()
        far = 2**31 + 5
        copied = build_batch(new_records([3]), base_offset=far, leader_epoch=1)
        log.follower.append(copied, append_ms=START_MS)
        assert bases(log)[-1] == far
        assert offsets(log.records()) == [far]
        assert log.append_time_of(far) == START_MS
        assert offsets(reader_of(env).records()) == [far]

    def test_a_log_rolls_on_demand_but_not_if_empty(self) -> None:
        _, _, log = new_log()
        assert not log.roll()
        put(log, 1)
        assert log.roll()
        assert not log.roll()
        assert bases(log) == [0, 1]

    def test_a_roll_syncs_the_segment_and_writes_a_snapshot(self) -> None:
        env, _, log = new_log()
        put(log, 1, 2)
        log.roll()
        assert log.recovery_point == 2
        assert "00000000000000000002.snapshot" in names(env)


class TestIndexes:
    def test_index_entries_follow_the_interval(self) -> None:
        """More bytes than the interval precede each entry; the first batch never gets an entry."""
        _, _, log = new_log({"index.interval.bytes": "139"})
        for time in range(10):
            put(log, time)
        size = log.active.size_bytes // 10
        assert size == 70
        assert list(log.active.offset_index.entries()) == [(2, 140), (4, 280), (6, 420), (8, 560)]
        assert list(log.active.time_index.entries()) == [(2, 2), (4, 4), (6, 6), (8, 8)]

    def test_every_offset_is_found_through_them(self) -> None:
        _, _, log = new_log(SMALL)
        for number in range(40):
            log.append(new_records([number] * (1 + number % 3)), batch_bytes=1 << 20)
        for offset in range(log.log_end_offset):
            assert offsets(log.records(offset, offset + 1)) == [offset]

    def test_roll_and_close_write_a_last_time_index_entry(self) -> None:
        env, directory, log = new_log()  # batches are too small for index entries before the last
        put(log, 5)
        put(log, 9, 2)
        put(log, 7)
        log.roll()
        put(log, 3)
        directory.close()
        first = TimeIndex(0, data=read(env, "00000000000000000000.timeindex"))
        second = TimeIndex(4, data=read(env, "00000000000000000004.timeindex"))
        assert list(first.entries()) == [(9, 2)]
        assert list(second.entries()) == [(3, 4)]
        assert read(env, "00000000000000000000.index") == b""

    def test_index_files_equal_the_indexes_in_memory_after_each_append(self) -> None:
        env, _, log = new_log(BIG)
        for time in (1, 5, 3, 8):
            put(log, time)
            index = OffsetIndex(0, data=read(env, "00000000000000000000.index"))
            times = TimeIndex(0, data=read(env, "00000000000000000000.timeindex"))
            assert list(index.entries()) == list(log.active.offset_index.entries())
            assert list(times.entries()) == list(log.active.time_index.entries())


class TestTimestamps:
    def test_create_time_stays_and_a_missing_one_is_the_clocks(self) -> None:
        _, _, log = new_log()
        log.append(new_records([5, None, -1]))
        found = list(log.records())
        assert [record.timestamp for record in found] == [5, START_MS, -1]
        assert {record.timestamp_type for record in found} == {TimestampType.CREATE_TIME}

    def test_log_append_time_keeps_the_producers_times_on_disk(self) -> None:
        env, _, log = new_log({"message.timestamp.type": "LogAppendTime"})
        answer = log.append_batches(batch([5, 9, 7]))
        assert answer.log_append_time_ms == START_MS
        for view in (log, reader_of(env)):
            found = list(view.records())
            assert [record.timestamp for record in found] == [START_MS] * 3
            assert [record.create_timestamp for record in found] == [5, 9, 7]
            assert {record.timestamp_type for record in found} == {TimestampType.LOG_APPEND_TIME}

    def test_log_append_time_does_not_run_back(self) -> None:
        """After the clock is set back, times decrease in Kafka's log, but not in tidelog's."""
        env, _, log = new_log({"message.timestamp.type": "LogAppendTime"})
        put(log, 1)
        env.clock.advance(-5000)
        put(log, 1)
        assert [record.timestamp for record in log.records()] == [START_MS] * 2

    def test_limits_are_inclusive(self) -> None:
        _, _, log = new_log(
            {"message.timestamp.before.max.ms": "100", "message.timestamp.after.max.ms": "50"}
        )
        put(log, START_MS - 100, START_MS + 50, -1)
        for time in (START_MS - 101, START_MS + 51):
            with pytest.raises(InvalidTimestamp):
                put(log, time)
        assert log.log_end_offset == 3

    def test_an_hour_ahead_is_the_default_limit(self) -> None:
        _, directory, _ = new_log()
        directory.create_topic("usual", config={"retention.ms": "-1"})
        usual = directory.log("usual", 0)
        usual.append(new_records([START_MS + HOUR_MS, 0]))
        with pytest.raises(InvalidTimestamp):
            usual.append(new_records([START_MS + HOUR_MS + 1]))


class TestRules:
    def test_compacted_topics_need_keys(self) -> None:
        _, _, log = new_log({"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecord) as caught:
            log.append([NewRecord(key=b"k"), NewRecord(value=b"v")])
        assert [error.index for error in caught.value.record_errors] == [1]
        log.append([NewRecord(key=b"", value=b"v")])
        assert log.log_end_offset == 1

    def test_a_refused_record_is_counted_from_the_start_of_the_append(self) -> None:
        _, _, log = new_log({"cleanup.policy": "compact"})
        records = [NewRecord(key=b"k", value=b"v" * 50) for _ in range(9)]
        records[7] = NewRecord(value=b"v")
        with pytest.raises(InvalidRecord, match="-0: record 7: ") as caught:
            log.append(records, batch_bytes=100)
        assert [error.index for error in caught.value.record_errors] == [7]

    def test_an_append_larger_than_a_segment_is_refused(self) -> None:
        _, _, log = new_log(SMALL)
        with pytest.raises(RecordListTooLarge):
            log.append(new_records([1] * 30), batch_bytes=1)
        assert log.log_end_offset == 0

    def test_old_names_of_settings_are_taken_and_reported(self) -> None:
        _, directory, _ = new_log()
        notes = directory.create_topic(
            "old", config={"log.roll.ms": "1000", "log.retention.hours": "2"}
        )[1]
        config = directory.topic("old").config
        assert (config.segment_ms, config.retention_ms) == (1000, 2 * HOUR_MS)
        assert len(notes) == 2

    def test_changed_settings_have_effect_from_the_next_append_on(self) -> None:
        _, directory, log = new_log()
        put(log, 5000)
        directory.alter_config("t", {"segment.ms": "10"})
        put(log, 5011)
        assert bases(log) == [0, 1]
        directory.alter_config("t", {"segment.ms": None})
        put(log, 9000)
        assert bases(log) == [0, 1]


class TestFailuresAndClosing:
    def test_a_failed_write_takes_the_partition_offline_and_reads_continue(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        env.files.writes.fault = Fault(env.files.writes.calls, FaultKind.EIO)
        with pytest.raises(StorageFailure):
            put(log, 2)
        env.files.writes.fault = None
        for change in (lambda: put(log, 3), log.flush, log.roll, lambda: log.truncate_to(0)):
            with pytest.raises(StorageFailure, match="offline"):
                change()
        assert offsets(log.records()) == [0]
        assert log.failure is not None
        with pytest.raises(StorageFailure):
            directory.close()

    def test_a_closed_log_refuses_appends(self) -> None:
        _, directory, log = new_log()
        directory.close()
        with pytest.raises(Closed):
            put(log, 1)
        log.close()

    def test_refresh_of_a_writer_changes_nothing(self) -> None:
        _, _, log = new_log()
        put(log, 1)
        log.refresh()
        put(log, 2)
        assert offsets(log.records()) == [0, 1]

    def test_flush_settings(self) -> None:
        env, _, log = new_log({"flush.messages": "3", "flush.ms": "1000"})
        put(log, 1)
        put(log, 1)
        assert log.recovery_point == 0
        put(log, 1)
        assert log.recovery_point == 3
        env.clock.advance(1000)
        put(log, 1)
        assert log.recovery_point == 4

    def test_flush_messages_counts_from_the_end_at_the_opening(self) -> None:
        env, directory, log = new_log({"flush.messages": "3"})
        for _ in range(4):
            put(log, 1)
        directory.close()
        _, log = reopen(env)
        ends = []
        for _ in range(3):
            put(log, 1)
            ends.append(log.recovery_point)
        assert ends == [4, 4, 7]

    def test_flush_messages_counts_from_a_roll_or_a_truncation(self) -> None:
        _, _, log = new_log({"flush.messages": "3"})
        put(log, 1)
        put(log, 1)
        log.roll()
        ends = []
        for _ in range(3):
            put(log, 1)
            ends.append(log.recovery_point)
        assert ends == [2, 2, 5]
        log.truncate_to(3)
        ends = []
        for _ in range(3):
            put(log, 1)
            ends.append(log.recovery_point)
        assert ends == [3, 3, 6]

    def test_each_start_writes_under_a_new_leader_epoch(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        directory, log = reopen(env)
        put(log, 1)
        directory.close()
        _, log = reopen(env)
        epochs = [(e.epoch, e.start_offset) for e in log.leader_epochs.entries]
        assert epochs == [(0, 0), (1, 1)]
        assert [b.leader_epoch for part in log.slices() for _, b in part.batches()] == [0, 1]

    def test_an_epoch_is_not_used_again_after_a_truncation_of_all_its_records(self) -> None:
        env, directory, log = new_log()
        for _ in range(3):
            put(log, 1)
            directory.close()
            directory, log = reopen(env)
        log.truncate_to(0)
        assert read(env, "leader-epoch-checkpoint").split() == [b"0", b"1", b"2", b"0"]
        directory.close()
        _, log = reopen(env)
        put(log, 1)
        assert [(e.epoch, e.start_offset) for e in log.leader_epochs.entries] == [(3, 0)]

    def test_deleted_records_take_their_epochs_from_the_file(self) -> None:
        env, directory, log = new_log()
        for _ in range(3):
            put(log, 1)
            directory.close()
            directory, log = reopen(env)
        log.delete_records(2)
        assert read(env, "leader-epoch-checkpoint").split() == [b"0", b"1", b"2", b"2"]


def test_coarse_append_times_are_rounded_down_and_never_fall() -> None:
    env, directory, log = new_log({"tidelog.append.time.granularity.ms": "1000"})
    start = START_MS  # a whole second
    for _ in range(3):
        put(log, 1)
        env.clock.advance(400)
    assert [log.append_time_of(offset) for offset in range(3)] == [start] * 3
    assert log.active.append_times.row_count == 1
    directory.alter_config("t", {"tidelog.append.time.granularity.ms": "1"})
    log.roll()
    put(log, 1)
    assert log.append_time_of(3) == start + 1200
    directory.alter_config("t", {"tidelog.append.time.granularity.ms": "1000"})
    log.roll()
    put(log, 1)
    assert log.append_time_of(4) == start + 1200  # rounded down, it would decrease
