"""`tidelog.retention.clock`: the time by which records age, independent of the files' times."""

import pytest
from tests.faults import START_MS, SeededEnv, seeded_env
from tests.worlds.directories.logs import (
    DAY_MS,
    PATH,
    names,
    new_log,
    offsets,
    path_of,
    put,
    reader_of,
    reopen,
    write,
)
from tests.worlds.directories.staged import ROOT, attach_all, make_directory, stage
from tests.worlds.directories.staged import TOPIC as STAGED

from tidelog.config import RetentionClock
from tidelog.record.builder import build_batch
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_retention import Notes
from tidelog.storage.log.log import Log
from tidelog.storage.log.segment_times import read_times
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.retention import CountedTime, SegmentTimes, TimeBasis, counted_time
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.segment.zone_map_files import load_or_build
from tidelog.types import NewRecord

WEEK_MS = 7 * DAY_MS
RECORD, APPEND, CAPPED = RetentionClock
NOTES = "segment-notes"


def settings(clock: str = "record-capped", retention_ms: int = WEEK_MS) -> dict[str, str]:
    return {"retention.ms": str(retention_ms), "tidelog.retention.clock": clock}


def times(largest: int = 50, append: int = 100, **more: int | bool) -> SegmentTimes:
    fields: dict[str, int | bool] = {
        "mtime_ms": 1_000,
        "now_ms": 2_000,
        "is_append_known": True,
        **more,
    }
    return SegmentTimes(largest_timestamp=largest, largest_append_ms=append, **fields)  # type: ignore[arg-type] # ints and bools


@pytest.mark.parametrize(
    ("facts", "clock", "ms", "basis"),
    [
        (times(), RECORD, 50, TimeBasis.TIMESTAMP),
        (times(largest=-1), RECORD, 1_000, TimeBasis.FILE_TIME),
        (times(largest=9_999), RECORD, 9_999, TimeBasis.TIMESTAMP),
        (times(), APPEND, 100, TimeBasis.APPEND_TIME),
        (times(append=-1, is_append_known=False), APPEND, 1_000, TimeBasis.FILE_TIME),
        (times(append=-1, is_append_known=False, seen_ms=7), APPEND, 7, TimeBasis.FIRST_SEEN),
        (times(append=30, is_append_known=False, seen_ms=7), APPEND, 30, TimeBasis.APPEND_TIME),
        (times(), CAPPED, 50, TimeBasis.TIMESTAMP),
        (times(largest=9_999), CAPPED, 100, TimeBasis.APPEND_TIME),
        (times(largest=-1), CAPPED, 100, TimeBasis.APPEND_TIME),
        (times(9_999, -1, is_append_known=False), CAPPED, 1_000, TimeBasis.FILE_TIME),
        (times(9_999, -1, is_append_known=False, seen_ms=7), CAPPED, 7, TimeBasis.FIRST_SEEN),
        (times(5, -1, is_append_known=False, seen_ms=7), CAPPED, 5, TimeBasis.TIMESTAMP),
    ],
)
def test_the_counted_time_depends_on_clock_and_facts(
    facts: SegmentTimes, clock: RetentionClock, ms: int, basis: TimeBasis
) -> None:
    counted = counted_time(facts, clock)
    assert (counted.ms, counted.basis) == (ms, basis)
    assert counted.leans_on_file_time == (basis is TimeBasis.FILE_TIME)


@pytest.mark.parametrize("mtime", [-5, 0, 2_001, 9_999])
def test_a_file_time_that_cant_be_is_none(mtime: int) -> None:
    facts = times(9_999, -1, is_append_known=False, mtime_ms=mtime)
    assert counted_time(facts, CAPPED).ms == facts.now_ms


def test_an_exact_time_takes_precedence_over_the_bound() -> None:
    exact = CountedTime(80, TimeBasis.APPEND_TIME, offset=3)
    facts = SegmentTimes(
        largest_timestamp=9_999,
        largest_append_ms=100,
        is_append_known=True,
        mtime_ms=1,
        now_ms=2_000,
        capped=exact,
    )
    assert counted_time(facts, CAPPED) == exact
    assert counted_time(facts, APPEND).ms == 100


def deleted(log: Log) -> list[int]:
    return [deletion.base_offset for deletion in log.apply_retention()]


class TestFuture:
    """Three finished segments of one record each; the second record's time is a year ahead."""

    def log(self, clock: str) -> tuple[SeededEnv, Log]:
        env, _, log = new_log(settings(clock))
        for ahead in (0, 365 * DAY_MS, 0):
            put(log, START_MS + ahead)
            log.roll()
            env.clock.advance(1)
        return env, log

    def test_by_kafkas_rule_a_future_record_and_all_later_ones_stay_for_a_year(self) -> None:
        env, log = self.log("record")
        env.clock.advance(WEEK_MS + 1_000)
        assert deleted(log) == [0]
        env.clock.advance(300 * DAY_MS)
        assert deleted(log) == []
        env.clock.advance(100 * DAY_MS)
        assert deleted(log) == [1, 2]

    @pytest.mark.parametrize(("clock", "rest"), [("append", [1]), ("record-capped", [1, 2])])
    def test_by_append_time_and_with_the_cap_a_segment_is_deleted_by_its_append_times_age(
        self, clock: str, rest: list[int]
    ) -> None:
        env, log = self.log(clock)
        env.clock.set(START_MS + 1 + WEEK_MS)
        assert deleted(log) == [0]
        env.clock.advance(1)
        assert deleted(log) == rest


@pytest.mark.parametrize(
    ("clock", "goes"), [("record", [0]), ("record-capped", [0]), ("append", [])]
)
def test_old_timestamps_act_as_in_kafka_but_for_append(clock: str, goes: list[int]) -> None:
    _, _, log = new_log(settings(clock))
    put(log, START_MS - WEEK_MS - 1)
    log.roll()
    assert deleted(log) == goes


def test_the_cap_is_of_each_record_not_of_the_segment() -> None:
    """A past record follows a future one, so the segment's bounds don't give the exact time."""
    env, _, log = new_log(settings())
    put(log, START_MS + 365 * DAY_MS)
    env.clock.advance(DAY_MS + 1)  # not a multiple of any granularity above 1 ms
    put(log, START_MS - DAY_MS)
    segment = log.segments[0]
    bound = counted_time(read_times(log, segment, clock=CAPPED), CAPPED)
    assert (bound.ms, bound.is_exact) == (START_MS + DAY_MS + 1, False), "errs to keeping"
    log.roll()
    closed = log.segments[0]
    assert isinstance(closed, ClosedSegment)
    closed.use_zones(load_or_build(closed))
    exact = counted_time(read_times(log, closed, clock=CAPPED), CAPPED)
    assert (exact.ms, exact.is_exact, exact.offset) == (START_MS, True, 0)
    env.clock.set(START_MS + WEEK_MS + 1)
    assert deleted(log) == [0]


def set_file_times(env: SeededEnv, mtime_ms: int) -> None:
    """Set the times of all files, as a copy of the directory does."""
    for name in names(env):
        env.files.set_mtime(path_of(name), mtime_ms)


def lose_append_times(env: SeededEnv) -> None:
    for name in names(env):
        if name.endswith(".appendtime") or name == "append-time-checkpoint":
            env.files.remove(path_of(name))


COPIES = [1, START_MS - 900 * DAY_MS, START_MS + 3 * DAY_MS, START_MS + 900 * DAY_MS]


class TestCopies:
    """Retention keeps the same segments after all file times have changed."""

    @pytest.mark.parametrize("mtime_ms", COPIES)
    @pytest.mark.parametrize("clock", ["record", "append", "record-capped"])
    def test_copies_with_append_times_have_the_same_retention(
        self, clock: str, mtime_ms: int
    ) -> None:
        assert self.life(clock, mtime_ms) == self.life(clock, None)

    @pytest.mark.parametrize("mtime_ms", COPIES)
    @pytest.mark.parametrize("clock", ["append", "record-capped"])
    def test_copies_without_append_times_have_the_same_retention_by_notes(
        self, clock: str, mtime_ms: int
    ) -> None:
        same = self.life(clock, mtime_ms, loses=True)
        assert same == self.life(clock, None, loses=True)
        assert [day for day, gone in same if gone] != []

    def life(
        self, clock: str, mtime_ms: int | None, *, loses: bool = False
    ) -> list[tuple[int, list[int]]]:
        """Return the base offsets that retention deletes on each day after a copy."""
        env, directory, log = new_log(settings(clock))
        for day in range(4):
            put(log, START_MS + day * DAY_MS, START_MS + (day + 30) * DAY_MS * (day == 1))
            log.roll()
            env.clock.advance(DAY_MS)
        put(log, START_MS + 4 * DAY_MS)
        directory.close()
        if loses:
            lose_append_times(env)
        if mtime_ms is not None:
            set_file_times(env, mtime_ms)
        found: list[tuple[int, list[int]]] = []
        for day in range(4, 50):
            env.clock.set(START_MS + day * DAY_MS + 1)
            directory, log = reopen(env)
            found.append((day, deleted(log)))
            directory.close()
            if mtime_ms is not None:
                set_file_times(env, mtime_ms + day)
        return found


class TestForeign:
    """Logs that another program wrote, without append times and segment notes."""

    def foreign(self, *, at_ms: int) -> SeededEnv:
        env, directory, log = new_log(settings())
        put(log, START_MS + 365 * DAY_MS)
        log.roll()
        put(log, START_MS + 365 * DAY_MS)
        directory.close()
        lose_append_times(env)
        env.files.remove(path_of(NOTES))
        set_file_times(env, at_ms)
        return env

    def test_the_file_time_counts_until_it_is_noted(self) -> None:
        env = self.foreign(at_ms=START_MS - 3 * DAY_MS)
        reader = reader_of(env)
        counted = counted_time(read_times(reader, reader.segments[0], clock=CAPPED), CAPPED)
        assert (counted.ms, counted.basis) == (START_MS - 3 * DAY_MS, TimeBasis.FILE_TIME)
        assert NOTES not in names(env), "reading writes nothing"
        directory, log = reopen(env)
        directory.close()
        set_file_times(env, START_MS + DAY_MS)
        env.clock.set(START_MS + 4 * DAY_MS + 1)
        _, log = reopen(env)
        assert deleted(log) == [0, 1]

    def test_the_time_of_first_sight_is_used_if_the_file_is_newer(self) -> None:
        env = self.foreign(at_ms=START_MS + 20 * DAY_MS)
        directory, _ = reopen(env)
        directory.close()
        env.clock.set(START_MS + WEEK_MS)
        directory, log = reopen(env)
        assert deleted(log) == []
        env.clock.advance(1)
        assert deleted(log) == [0, 1]

    def test_its_reasons_are_unknown(self) -> None:
        env = self.foreign(at_ms=START_MS)
        _, log = reopen(env)
        assert [Notes(log).reason(segment) for segment in log.segments] == ["unknown", "open"]

    def test_a_segment_that_was_filled_again_gets_a_new_note(self) -> None:
        """The note belongs to other records: its time is too early for the new records."""
        env = self.foreign(at_ms=START_MS)
        directory, log = reopen(env)
        directory.close()
        late = build_batch([NewRecord(value=b"w", timestamp=START_MS + 365 * DAY_MS)])
        env.clock.advance(30 * DAY_MS)
        write(env, "00000000000000000000.log", bytes(late))
        for suffix in ("index", "timeindex"):
            env.files.remove(path_of(f"00000000000000000000.{suffix}"))
        _, log = reopen(env)
        assert deleted(log) == []
        env.clock.advance(WEEK_MS + 1)
        assert deleted(log) == [0, 1]


class TestWithoutTheAppendClock:
    CONFIG = settings() | {"tidelog.append.time.enable": "false"}

    def test_the_time_of_the_last_append_counts(self) -> None:
        env, _, log = new_log(self.CONFIG)
        put(log, START_MS + 365 * DAY_MS)
        env.clock.advance(DAY_MS)
        log.roll()
        env.clock.advance(WEEK_MS - DAY_MS)
        assert deleted(log) == []
        env.clock.advance(1)
        assert deleted(log) == [0]

    def test_the_retention_time_survives_a_stop(self) -> None:
        env, directory, log = new_log(self.CONFIG)
        put(log, START_MS + 365 * DAY_MS)
        env.clock.advance(DAY_MS)
        directory.close()
        set_file_times(env, START_MS + 9 * DAY_MS)
        env.clock.set(START_MS + WEEK_MS)
        _, log = reopen(env)
        assert deleted(log) == []
        env.clock.advance(1)
        assert deleted(log) == [0]


class TestReasons:
    def reasons(self, log: Log) -> list[RollReason]:
        notes = Notes(log)
        return [notes.reason(segment) for segment in log.segments]

    def test_each_roll_is_remembered_across_a_stop(self) -> None:
        env, directory, log = new_log({"internal.segment.bytes": "500", "segment.ms": "1000"})
        put(log, START_MS, value=b"v" * 200)
        put(log, START_MS, value=b"v" * 200)
        put(log, START_MS + 1_001)
        log.roll()
        put(log, START_MS)
        expected = ["size", "time", "request", "open"]
        assert self.reasons(log) == expected
        directory.close()
        _, log = reopen(env)
        assert self.reasons(log) == expected
        assert Notes(log).roll_ms(log.segments[0]) == START_MS

    def test_an_index_that_is_full_is_named(self) -> None:
        _, _, log = new_log({"segment.index.bytes": "24", "index.interval.bytes": "0"})
        for turn in range(8):
            put(log, START_MS + turn)
        assert "time-index-full" in self.reasons(log)

    def test_retention_of_all_segments_leaves_an_open_one(self) -> None:
        env, _, log = new_log(settings(retention_ms=100))
        put(log, START_MS)
        env.clock.advance(101)
        assert deleted(log) == [0]
        assert self.reasons(log) == ["open"]

    def test_truncation_forgets_why_a_segment_was_rolled(self) -> None:
        env, directory, log = new_log(settings())
        for turn in range(4):
            put(log, START_MS + turn)
            log.roll()
        log.truncate_to(2)
        put(log, START_MS + 9)
        assert self.reasons(log)[-1] == "open"
        log.roll()
        assert offsets(log.records()) == [0, 1, 2]
        assert self.reasons(log) == ["request", "request", "request", "open"]
        directory.close()
        _, log = reopen(env)
        assert self.reasons(log)[:2] == ["request", "request"]
        assert env.files.exists(f"{PATH}/t-0/{NOTES}")

    def test_attached_segments_and_the_segment_before_have_the_reason_attach(self) -> None:
        env = seeded_env(1)
        make_directory(env, partitions=1)
        attach_all(env, stage(env, 0, "a", 7))
        log = LogDir.open(ROOT, env=env).reader(STAGED, 0)
        notes = Notes(log)
        assert [notes.reason(segment) for segment in log.segments] == ["attach", "attach", "open"]
        assert notes.seen_ms(log.segments[1]) == env.clock.now_ms()


def test_a_coarse_append_clock_deletes_nothing_too_early() -> None:
    """Append times are rounded down to minutes, so ages are computed from the minute's end."""
    for clock in ("append", "record-capped"):
        step = {"tidelog.append.time.granularity.ms": "60000"}
        env, _, log = new_log(settings(clock) | step)
        env.clock.set(START_MS // 60_000 * 60_000 + 59_000)
        appended_ms = env.clock.now_ms()
        put(log, appended_ms + 365 * DAY_MS)
        log.roll()
        env.clock.set(appended_ms + WEEK_MS)
        assert deleted(log) == []
        env.clock.advance(60_000)
        assert deleted(log) == [0]


@pytest.mark.parametrize("clock", ["append", "record-capped"])
def test_a_step_that_was_coarser_once_deletes_nothing_too_early(clock: str) -> None:
    """A row doesn't store the granularity of its rounding, and the setting may have changed."""
    step = {"tidelog.append.time.granularity.ms": "3600000"}
    hour_ms = 3_600_000
    env, directory, log = new_log(settings(clock, hour_ms) | step)
    env.clock.set(START_MS // hour_ms * hour_ms + hour_ms - 1_000)
    put(log, env.clock.now_ms() + 365 * DAY_MS)
    log.roll()
    directory.alter_config("t", {"tidelog.append.time.granularity.ms": "1"})
    env.clock.advance(60_000)
    assert deleted(log) == [], "it is a minute old"
    env.clock.advance(hour_ms)
    assert deleted(log) == [0]
