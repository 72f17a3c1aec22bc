"""Lookups by time find the earliest offset with this time or a later time, on either clock."""

import pytest
from tests.faults import START_MS
from tests.worlds.directories.logs import (
    SMALL,
    new_log,
    new_records,
    put,
    read,
    reader_of,
    reopen,
    write,
)
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptBatch
from tidelog.record.builder import build_batch, build_empty_batch
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView
from tidelog.types import ClockName, Codec, OffsetAndTimestamp, TimestampType

FIRST_LOG = "00000000000000000000.log"


def at(log: LogView, time: int, clock: ClockName = ClockName.RECORD) -> tuple[int, int] | None:
    return pair(log.offset_for_time(time, clock=clock))


def pair(found: OffsetAndTimestamp | None) -> tuple[int, int] | None:
    return None if found is None else (found.offset, found.timestamp)


class TestRecordClock:
    def test_a_lookup_finds_the_earliest_offset_not_the_nearest_time(self) -> None:
        _, _, log = new_log()
        put(log, 10, 50, 20)
        put(log, 30, 50)
        assert at(log, 0) == (0, 10)
        assert at(log, 11) == (1, 50)
        assert at(log, 50) == (1, 50)
        assert at(log, 51) is None

    def test_across_segments_with_times_out_of_order(self) -> None:
        _, _, log = new_log()
        for time in (30, 10, 60, 20, 70):
            put(log, time)
            log.roll()
        assert [at(log, t) for t in (5, 31, 61, 71)] == [(0, 30), (2, 60), (4, 70), None]

    def test_leader_epoch_is_the_batchs(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        _, log = reopen(env)
        put(log, 9)
        assert log.offset_for_time(2) == OffsetAndTimestamp(1, 9, 1)
        log.follower.append(
            build_legacy_set(new_records([20]), magic=1, base_offset=log.log_end_offset)
        )
        assert log.offset_for_time(20) == OffsetAndTimestamp(2, 20, None)

    def test_negative_times_are_refused(self) -> None:
        _, _, log = new_log()
        for clock in ClockName:
            with pytest.raises(ValueError, match="negative"):
                log.offset_for_time(-1, clock=clock)

    def test_records_without_a_time_are_never_found(self) -> None:
        _, _, log = new_log()
        put(log, -1, -1)
        log.roll()
        put(log, -1)
        put(log, 3, -1)
        assert at(log, 0) == (3, 3)
        assert pair(log.max_timestamp()) == (3, 3)

    def test_extreme_times(self) -> None:
        _, _, log = new_log()
        put(log, 2**63 - 1, 0)
        assert at(log, 2**63 - 1) == (0, 2**63 - 1)
        log.delete_records(1)
        assert at(log, 0) == (1, 0)
        assert at(log, 1) is None

    def test_log_append_time_gives_the_first_record_of_the_batch(self) -> None:
        _, _, log = new_log({"message.timestamp.type": "LogAppendTime"})
        put(log, 1, 2, 3)
        assert at(log, START_MS) == (0, START_MS)

    @pytest.mark.parametrize("codec", list(Codec))
    def test_compressed_batches_are_opened(self, codec: Codec) -> None:
        _, _, log = new_log(SMALL)
        for start in range(0, 60, 4):
            put(log, start + 2, start, start + 3, start + 1, codec=codec)
        for time in range(60):
            expected = (time // 4) * 4 + (0 if time % 4 <= 2 else 2)
            assert at(log, time) == (expected, time // 4 * 4 + (2 if time % 4 <= 2 else 3))

    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
    def test_legacy_messages_between_others(self, magic: int, codec: Codec) -> None:
        _, _, log = new_log(SMALL)
        put(log, 10)
        times = [-1] * 3 if magic == 0 else [20, 40, 30]
        data = build_legacy_set(new_records(times), magic=magic, codec=codec, base_offset=1)
        log.follower.append(data)
        log.roll()
        put(log, 50)
        assert at(log, 11) == ((4, 50) if magic == 0 else (1, 20))
        assert at(log, 31) == ((4, 50) if magic == 0 else (2, 40))
        assert at(log, 45) == (4, 50)
        assert at(log, START_MS, ClockName.APPEND) == (0, START_MS)


class TestBelowTheLogStart:
    def test_a_match_in_a_later_segment_is_still_found(self) -> None:
        """Kafka searches only the first segment, whose match is deleted, and finds nothing."""
        _, _, log = new_log()
        put(log, 90)
        put(log, 10)
        log.roll()
        put(log, 80)
        log.delete_records(1)
        assert at(log, 50) == (2, 80)
        assert log.segments[0].base_offset == 0  # this segment's file still exists

    def test_segments_below_the_start_that_are_not_yet_deleted_do_not_count(self) -> None:
        _, _, log = new_log()
        for time in (90, 10, 80):
            put(log, time)
            log.roll()
        log.delete_records(1)
        assert at(log, 50) == (2, 80)
        log.delete_records(3)
        assert at(log, 0) is None

    @pytest.mark.parametrize("kernels", [True, False])
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
    def test_a_log_start_in_the_middle_of_a_batch_excludes_earlier_records(
        self, codec: Codec, *, kernels: bool
    ) -> None:
        _, _, log = new_log()
        if kernels:
            log.use_kernels()
        put(log, 90, 70, 80, codec=codec)
        log.delete_records(1)
        assert at(log, 60) == (1, 70)
        assert at(log, 75) == (2, 80)
        assert at(log, 85) is None


class TestMaxTimestamp:
    def test_the_first_record_with_the_largest_time_is_returned(self) -> None:
        _, _, log = new_log()
        assert log.max_timestamp() is None
        put(log, 5, 9, 9)
        log.roll()
        put(log, 9)
        assert pair(log.max_timestamp()) == (1, 9)

    def test_a_deleted_offset_is_never_returned(self) -> None:
        """Kafka returns the offset of a deleted record until its file is deleted (KIP-734)."""
        _, _, log = new_log()
        put(log, 99, 50, 60)
        log.roll()
        put(log, 70)
        assert pair(log.max_timestamp()) == (0, 99)
        log.delete_records(1)
        assert pair(log.max_timestamp()) == (3, 70)
        log.delete_records(3)
        assert pair(log.max_timestamp()) == (3, 70)
        log.delete_records(4)
        assert log.max_timestamp() is None

    def test_of_a_batch_that_reaches_over_the_start(self) -> None:
        _, _, log = new_log()
        put(log, 99, 60, 80, 70)
        log.delete_records(1)
        assert pair(log.max_timestamp()) == (2, 80)
        log.delete_records(3)
        assert pair(log.max_timestamp()) == (3, 70)

    def test_an_emptied_batch_does_not_hide_the_records_of_others(self) -> None:
        """A cleaner may leave a producer's last batch without records, but with its timestamp."""
        _, _, log = new_log()
        log.follower.append(build_batch(new_records([5, 7]), base_offset=0, leader_epoch=1))
        empty = build_empty_batch(
            base_offset=2,
            last_offset=4,
            max_timestamp=99,
            leader_epoch=1,
            producer_id=3,
            producer_epoch=0,
            base_sequence=0,
        )
        log.follower.append(empty)
        for _ in range(2):
            assert pair(log.max_timestamp()) == (1, 7)
            assert at(log, 8) is None
            log.roll()
        put(log, 50)
        assert pair(log.max_timestamp()) == (5, 50)
        assert at(log, 8) == (5, 50)


class TestAppendClock:
    def times(self, log: Log) -> list[int | None]:
        return [log.append_time_of(offset) for offset in range(log.log_end_offset)]

    def test_exact_to_the_ms_on_create_time_topics(self) -> None:
        env, _, log = new_log(SMALL)
        expected = []
        for step in (0, 1, 7, 0, 1000, 3, 0, 0, 50, 2):
            env.clock.advance(step)
            put(log, 5, 5, value=b"x" * 90)
            expected += [env.clock.now_ms()] * 2
        assert len(log.segments) > 2
        assert self.times(log) == expected
        for time in range(START_MS - 1, START_MS + 1070):
            first = next((n for n, ms in enumerate(expected) if ms >= time), None)
            wanted = None if first is None else (first, expected[first])
            assert at(log, time, ClockName.APPEND) == wanted

    def test_a_clock_set_back_gives_the_last_time_again(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        env.clock.advance(-60_000)
        put(log, 1)
        directory.close()
        env.clock.advance(-60_000)
        _, log = reopen(env)
        put(log, 1)
        assert self.times(log) == [START_MS] * 3
        env.clock.advance(120_001)
        put(log, 1)
        assert self.times(log)[3] == START_MS + 1

    def test_a_foreign_directory_has_only_the_append_times_in_its_batches(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        stamped = build_batch(
            new_records([5, 6]),
            base_offset=1,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            append_time_ms=777,
        )
        log.follower.append(stamped)
        put(log, 900)
        directory.close()
        for name in ("00000000000000000000.appendtime", "append-time-checkpoint"):
            env.files.remove(f"/data/t-0/{name}")
        reader = reader_of(env)
        assert [reader.append_time_of(offset) for offset in range(4)] == [None, 777, 777, None]
        assert at(reader, 0, ClockName.APPEND) == (1, 777)
        assert at(reader, 778, ClockName.APPEND) is None
        assert at(reader, 778) == (3, 900)

    def test_if_switched_off_no_append_time_is_written_or_known(self) -> None:
        env, _, log = new_log({"tidelog.append.time.enable": "false"})
        answer = log.append(new_records([1]))
        assert answer.append_time_ms == -1
        assert log.append_time_of(0) is None
        assert not env.files.exists("/data/t-0/00000000000000000000.appendtime")

    def test_append_times_can_be_switched_off_and_on(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.alter_config("t", {"tidelog.append.time.enable": "false"})
        put(log, 1)
        directory.alter_config("t", {"tidelog.append.time.enable": None})
        env.clock.advance(5)
        put(log, 1)
        assert self.times(log) == [START_MS, None, START_MS + 5]
        assert at(log, START_MS + 1, ClockName.APPEND) == (2, START_MS + 5)

    def test_a_reader_has_append_times_of_all_batches_before_they_were_switched_off(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        put(log, 1)  # same append time as before, so no row is written
        directory.alter_config("t", {"tidelog.append.time.enable": "false"})
        put(log, 1)
        reader = reader_of(env)
        assert [reader.append_time_of(offset) for offset in range(3)] == [START_MS, START_MS, None]
        assert reader.without_append_time() == 1

    def test_gaps_that_compaction_left_are_skipped(self) -> None:
        _, _, log = new_log()
        first = build_batch(new_records([1]), base_offset=0, leader_epoch=0)
        log.follower.append(first, append_ms=START_MS)
        gaps = build_batch(
            new_records([1, 1]),
            base_offset=5,
            leader_epoch=0,
            offset_deltas=[3, 6],
            last_offset_delta=9,
        )
        log.follower.append(gaps, append_ms=START_MS + 10)
        assert at(log, START_MS + 1, ClockName.APPEND) == (8, START_MS + 10)
        assert log.append_time_of(8) == START_MS + 10


class TestDamage:
    @pytest.mark.parametrize("kernels", [False, True])
    def test_a_damaged_batch_on_the_way_is_named(self, *, kernels: bool) -> None:
        env, directory, log = new_log({"index.interval.bytes": "0"})
        for time in range(10):
            put(log, time)
        log.roll()
        put(log, 50)
        directory.close()
        data = bytearray(read(env, FIRST_LOG))
        size = len(data) // 10
        data[4 * size + 66] ^= 0xFF
        write(env, FIRST_LOG, bytes(data))
        reader = reader_of(env)
        if kernels:
            reader.use_kernels()
        with pytest.raises(CorruptBatch) as caught:
            reader.offset_for_time(4)
        assert (caught.value.position, caught.value.offset) == (4 * size, 4)
        assert str(caught.value.path).endswith(FIRST_LOG)
        assert at(reader, 3) == (3, 3)
        assert at(reader, 5) == (5, 5)
        assert at(reader, 10) == (10, 50)

    def test_an_impossible_frame_hides_no_earlier_record(self) -> None:
        env, directory, log = new_log({"index.interval.bytes": "0"})
        for time in range(10):
            put(log, time)
        log.roll()
        put(log, 50)
        directory.close()
        data = bytearray(read(env, FIRST_LOG))
        size = len(data) // 10
        data[4 * size + 8] = 0xFF
        write(env, FIRST_LOG, bytes(data))
        reader = reader_of(env)
        with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position {4 * size}"):
            reader.offset_for_time(4)
        assert at(reader, 2) == (2, 2)
        assert at(reader, 10) == (10, 50)


def test_a_search_in_memory_gives_the_same_results_and_skips_deleted_records() -> None:
    _, _, log = new_log({"index.interval.bytes": "100"})
    for number in range(6):
        log.append(new_records([number * 10, number * 10 + 5]))
        if number in (1, 3):
            log.roll()
    for segment in log.segments[:-1]:
        assert segment.offset_index.entry_count + segment.time_index.entry_count
    for start in (0, 3, 4, 7, 8, 11):
        log.delete_records(start)
        for target in range(60):
            assert log.offset_for_time(target, may_block=False) == log.offset_for_time(target)
    assert log.log_start_offset == 11
    assert log.offset_for_time(56, may_block=False) is None
