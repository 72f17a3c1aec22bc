"""Records that leave the start of a log: by request, by age, by size, on a manual clock."""

import pytest
from tests.faults import START_MS, SeededEnv
from tests.worlds.directories.logs import (
    DAY_MS,
    SMALL,
    bases,
    fill,
    names,
    new_log,
    offsets,
    put,
    reopen,
)

from tidelog.errors import (
    OffsetOutOfRange,
    PolicyViolation,
)
from tidelog.storage.log.log import Log
from tidelog.storage.segment.retention import RetentionRule


class TestDeleteRecords:
    def test_the_start_moves_at_once_and_retention_deletes_the_files(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 30)
        second = bases(log)[1]
        assert log.delete_records(second + 1) == second + 1
        assert offsets(log.records())[0] == second + 1
        assert bases(log)[0] == 0
        plan = log.apply_retention()
        assert [(d.base_offset, d.rule) for d in plan] == [(0, RetentionRule.LOG_START)]
        assert bases(log)[0] == second
        directory.close()
        _, log = reopen(env)
        assert log.log_start_offset == second + 1

    def test_survives_a_hard_stop(self) -> None:
        env, directory, log = new_log()
        put(log, 1, 2, 3)
        log.flush()
        log.delete_records(2)
        directory.abandon()
        _, log = reopen(env)
        assert offsets(log.records()) == [2]

    def test_bounds(self) -> None:
        _, _, log = new_log()
        put(log, 1, 2)
        for offset in (-1, 3):
            with pytest.raises(OffsetOutOfRange):
                log.delete_records(offset)
        assert log.delete_records(1) == 1
        assert log.delete_records(0) == 1
        assert log.delete_records(2) == 2
        assert list(log.records()) == []

    def test_segments_are_deleted_only_if_the_policy_allows_it(self) -> None:
        _, _, log = new_log({"cleanup.policy": "compact"})
        put(log, 1)
        with pytest.raises(PolicyViolation):
            log.delete_records(1)

    @pytest.mark.parametrize("policy", ["", "delete", "compact,delete"])
    def test_a_policy_other_than_only_compact_prevents_no_deletion(self, policy: str) -> None:
        _, _, log = new_log({"cleanup.policy": policy})
        put(log, 1)
        assert log.delete_records(1) == 1


class TestRetention:
    """Retention on a manual clock; test_retention has tests of each rule alone."""

    def deleted(self, log: Log) -> list[tuple[int, str]]:
        return [(d.base_offset, d.rule.value) for d in log.apply_retention()]

    def by_times(self, times: list[int], **config: str) -> tuple[SeededEnv, Log]:
        env, _, log = new_log({key.replace("_", "."): text for key, text in config.items()})
        for time in times:
            put(log, time)
            log.roll()
        return env, log

    def test_oldest_first_up_to_the_first_that_stays(self) -> None:
        """If an old segment follows a younger one, the old segment stays, as in Kafka."""
        now = START_MS
        _, log = self.by_times([now - 300, now - 200, now - 10, now - 500], retention_ms="100")
        assert self.deleted(log) == [(0, "time"), (1, "time")]
        assert log.log_start_offset == 2
        assert offsets(log.records()) == [2, 3]

    def test_a_difference_equal_to_the_limit_stays(self) -> None:
        _, log = self.by_times([START_MS - 100], retention_ms="100")
        assert self.deleted(log) == []
        _, log = self.by_times([START_MS - 101], retention_ms="100")
        assert self.deleted(log) == [(0, "time")]

    def test_the_largest_time_of_a_segment_counts(self) -> None:
        env, _, log = new_log({"retention.ms": "100"})
        put(log, START_MS, START_MS - 900)
        put(log, START_MS - 800)
        assert self.deleted(log) == []
        env.clock.advance(101)
        assert self.deleted(log) == [(0, "time")]

    def test_the_active_segment_is_deleted_too_and_offsets_continue(self) -> None:
        env, _, log = new_log({"retention.ms": "100"})
        put(log, START_MS)
        log.roll()
        put(log, START_MS)
        env.clock.advance(101)
        assert self.deleted(log) == [(0, "time"), (1, "time")]
        assert (log.log_start_offset, log.log_end_offset, bases(log)) == (2, 2, [2])
        assert self.deleted(log) == []
        put(log, START_MS)
        assert offsets(log.records()) == [2]

    def test_the_modification_time_is_used_if_records_have_no_timestamps(self) -> None:
        env, _, log = new_log({"retention.ms": "100"})
        put(log, -1)
        log.roll()
        env.clock.advance(100)
        assert self.deleted(log) == []
        env.clock.advance(1)
        assert self.deleted(log) == [(0, "time")]

    def test_a_future_time_keeps_its_segment_and_all_later_ones(self) -> None:
        _, log = self.by_times(
            [START_MS - 500, START_MS + DAY_MS, START_MS - 500],
            retention_ms="100",
            tidelog_retention_clock="record",
        )
        log.context.env.clock.advance(1_000)  # type: ignore[attr-defined] # the test moves it
        assert self.deleted(log) == [(0, "time")]
        assert bases(log)[0] == 1

    def test_by_size_the_log_stays_at_or_above_the_limit(self) -> None:
        _, _, log = new_log({**SMALL, "retention.bytes": "1400"})
        fill(log, 40)
        sizes = [segment.size_bytes for segment in log.segments]
        gone = self.deleted(log)
        assert {rule for _, rule in gone} == {"size"}
        assert sum(sizes[len(gone) :]) >= 1400 > sum(sizes[len(gone) + 1 :])

    def test_files_wait_under_kafkas_suffix_for_their_delay(self) -> None:
        env, log = self.by_times(
            [START_MS - 500, START_MS], retention_ms="100", file_delete_delay_ms="60000"
        )
        assert self.deleted(log) == [(0, "time")]
        assert "00000000000000000000.log.deleted" in names(env)
        assert "00000000000000000000.log" not in names(env)

    def test_no_segment_of_a_compacted_topic_is_deleted_by_age(self) -> None:
        env, _, log = new_log({"cleanup.policy": "compact", "retention.ms": "100"})
        put(log, START_MS)
        log.roll()
        env.clock.advance(DAY_MS // 48)
        assert self.deleted(log) == []


class TestLogLines:
    """Log lines of retention runs, for every caller: a broker, a tier, a standby, a command."""

    @pytest.fixture(autouse=True)
    def _info(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "tidelog.storage")

    def test_name_the_deleted_offsets_and_the_reason(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, _, log = new_log({"retention.bytes": "1"})
        for _ in range(3):
            put(log, START_MS)
            log.roll()
        assert len(log.apply_retention()) == 2
        assert log.apply_retention() == []
        assert caplog.messages == [
            (
                "t-0: retention deleted 2 segments, offsets 0..1, by size; the last segment: after"
                " its deletion, 70 of 210 bytes remain, at least retention.bytes=1"
            )
        ]

    def test_do_not_name_offsets_that_were_deleted_before(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        env, _, log = new_log({"retention.ms": "100"})
        for _ in range(3):
            put(log, START_MS, START_MS)
            log.roll()
        log.delete_records(3)
        assert len(log.apply_retention()) == 1
        env.clock.advance(101)
        assert len(log.apply_retention()) == 2
        assert caplog.messages == [
            (
                "t-0: retention deleted 1 segment, by log start; the last segment: ends at offset"
                " 2, the log starts at offset 3"
            ),
            (
                "t-0: retention deleted 2 segments, offsets 3..5, by time; the last segment:"
                " largest record timestamp is 101ms old, over retention.ms=100"
            ),
        ]
