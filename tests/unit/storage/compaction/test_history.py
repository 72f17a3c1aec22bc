"""The time from which tables of the past are exact, and how other cleaners are detected."""

from itertools import pairwise

import pytest
from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.plain_cleaner import PlainWorker

from tidelog.errors import CorruptFile
from tidelog.record.builder import build_batch
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions, inspect_log, is_whole
from tidelog.storage.compaction.eligibility import DueReason
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.compaction_history import (
    HISTORY_FILE,
    CompactionHistory,
    cut_history,
    load_history,
    read_history,
    write_history,
)
from tidelog.types import INT64_MAX, UNKNOWN_MS, ClockName, NewRecord, TopicPartition

ROOT = "/data"
DIRECTORY = f"{ROOT}/t-0"
NAME = TopicPartition("t", 0)
ASKED = CleanerOptions(is_asked=True)
HISTORY = CompactionHistory(
    end_offset=7,
    record_exact_ms=5,
    append_exact_ms=0,
    run_ms=9,
    horizons_ms=(11, 12),
    segments=frozenset({(0, 100), (0, 50), (5, 10)}),
)


def open_dir(env: SeededEnv) -> LogDir:
    return LogDir.open(ROOT, env=env, options=LogDirOptions(create=True))


def begin(env: SeededEnv) -> LogDir:
    log_dir = open_dir(env)
    log_dir.create_topic("t", config={"cleanup.policy": "compact", "file.delete.delay.ms": "0"})
    return log_dir


def append(log_dir: LogDir, env: SeededEnv, key: bytes, timestamp: int) -> int:
    env.clock.advance(10)
    log = log_dir.log("t", 0)
    record = NewRecord(key=key, value=b"v", timestamp=timestamp)
    log.append([record])
    log.roll()
    return env.clock.now_ms()


def clean(log_dir: LogDir, env: SeededEnv) -> None:
    clean_partition(log_dir, NAME, PlainWorker(env), ASKED)


def history(env: SeededEnv) -> CompactionHistory:
    found = read_history(env.files, DIRECTORY)
    assert found is not None
    return found


def test_round_trip() -> None:
    assert CompactionHistory.decode(HISTORY.encode()) == HISTORY
    empty = CompactionHistory(end_offset=0)
    assert CompactionHistory.decode(empty.encode()) == empty


@pytest.mark.parametrize("at", range(0, 90, 7))
def test_damage_is_noticed(at: int) -> None:
    damaged = bytearray(HISTORY.encode())
    damaged[at % len(damaged)] ^= 1
    with pytest.raises(CorruptFile):
        CompactionHistory.decode(damaged)


@pytest.mark.parametrize("size", [0, 1, 40])
def test_a_torn_file_is_noticed(size: int) -> None:
    with pytest.raises(CorruptFile):
        CompactionHistory.decode(HISTORY.encode()[:size])


def test_a_log_without_a_cleaning_has_no_history() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        append(log_dir, env, b"a", 100)
        assert read_history(env.files, DIRECTORY) is None
        assert is_whole(log_dir.log("t", 0).segments, 0)


def test_headers_are_used_without_zone_maps() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        for key in (b"a", b"b", b"a"):
            append(log_dir, env, key, 100)
        log = log_dir.log("t", 0)
        segments = [each for each in log.segments if isinstance(each, ClosedSegment)]
        assert all(each.zones is not None for each in segments)
        for each in segments:
            each.use_zones(None)
        assert is_whole(segments, 0)
        assert is_whole(segments, 1)
        clean(log_dir, env)
        for segment in log.segments:
            if isinstance(segment, ClosedSegment):
                assert not is_whole([segment], 0)
                segment.use_zones(None)
                assert not is_whole([segment], 0)


def test_a_cleaning_that_removes_no_record_leaves_every_time_exact() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        append(log_dir, env, b"a", 100)
        append(log_dir, env, b"b", 200)
        clean(log_dir, env)
        found = history(env)
        assert [found.exact_since_ms(clock) for clock in ClockName] == [0, 0]
        assert found.end_offset == 2


def test_a_removed_record_bounds_both_clocks_by_its_successor() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        append(log_dir, env, b"a", 100)
        append(log_dir, env, b"a", 300)
        last_ms = append(log_dir, env, b"b", 200)
        clean(log_dir, env)
        found = history(env)
        assert found.exact_since_ms(ClockName.RECORD) == 300
        assert found.exact_since_ms(ClockName.APPEND) == last_ms
        assert not is_whole(log_dir.log("t", 0).segments, 0)
        # Later cleanings leave this time unchanged if they remove no record.
        append(log_dir, env, b"c", 900)
        clean(log_dir, env)
        assert history(env).exact_since_ms(ClockName.RECORD) == 300
        append(log_dir, env, b"c", 950)
        clean(log_dir, env)
        assert history(env).exact_since_ms(ClockName.RECORD) == 950
    assert history(env).exact_since_ms(ClockName.RECORD) == 950


def test_another_cleaners_checkpoint_makes_it_unknown_until_our_next_run() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        for key in (b"a", b"a", b"b"):
            append(log_dir, env, key, 100)
        clean(log_dir, env)
        append(log_dir, env, b"b", 100)
        log_dir.note_cleaned(NAME, 4)
        assert read_history(env.files, DIRECTORY) is None
        append(log_dir, env, b"d", 100)
        env.clock.advance(5)
        clean(log_dir, env)
        found = history(env)
        assert found.exact_since_ms(ClockName.RECORD) is None
        assert found.exact_since_ms(ClockName.APPEND) == env.clock.now_ms()


def test_another_cleaners_segment_makes_it_unknown() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        for key in (b"a", b"a", b"b"):
            append(log_dir, env, key, 100)
        clean(log_dir, env)
    file = env.files.open(f"{DIRECTORY}/00000000000000000000.log", write=True)
    file.truncate(file.size() - 1)
    file.close()
    assert load_history(env.files, DIRECTORY) is not None
    assert read_history(env.files, DIRECTORY) is None


def test_a_log_with_gaps_of_others_is_never_called_exact_by_its_records_times() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        for key in (b"a", b"a", b"b"):
            append(log_dir, env, key, 100)
        clean(log_dir, env)
        env.files.remove(f"{DIRECTORY}/{HISTORY_FILE}")
        append(log_dir, env, b"c", 200)
        clean(log_dir, env)
        found = history(env)
        assert found.exact_since_ms(ClockName.RECORD) is None
        assert found.exact_since_ms(ClockName.APPEND) == env.clock.now_ms()


def test_a_damaged_history_is_ignored_and_rewritten() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        for key in (b"a", b"a"):
            append(log_dir, env, key, 100)
        clean(log_dir, env)
        path = f"{DIRECTORY}/{HISTORY_FILE}"
        file = env.files.open(path, write=True)
        file.pwrite(b"9", 0)
        file.close()
        assert read_history(env.files, DIRECTORY) is None
        append(log_dir, env, b"b", 100)
        clean(log_dir, env)
        assert history(env).exact_since_ms(ClockName.RECORD) is None


def test_a_cut_below_the_cleaned_end_makes_it_unknown() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        for key in (b"a", b"a", b"b"):
            append(log_dir, env, key, 100)
        clean(log_dir, env)
        log_dir.log("t", 0).truncate_to(3)
        assert history(env).exact_since_ms(ClockName.APPEND) is not None
        log_dir.log("t", 0).truncate_to(2)
        found = load_history(env.files, DIRECTORY)
        assert found is not None
        assert found.end_offset == 2
        assert [found.exact_since_ms(clock) for clock in ClockName] == [None, None]
        assert log_dir.cleaner_offset(NAME) == 2


def test_a_cut_inside_of_a_cleaned_batch_brings_no_deleted_key_back() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        log = log_dir.log("t", 0)
        log_dir.alter_config("t", {"delete.retention.ms": "1"})
        log.append([NewRecord(key=b"%d" % number, value=b"v") for number in range(4)])
        log.roll()
        clean(log_dir, env)
        assert log_dir.cleaner_offset(NAME) == 4
        log.truncate_to(3)  # removes the whole batch
        assert log.log_end_offset == log_dir.cleaner_offset(NAME) == 0
        assert history(env).end_offset == 0
        for record in (NewRecord(key=b"a", value=b"v"), NewRecord(key=b"a", value=None)):
            log.append([record])
        for key in (b"b", b"c", b"d"):
            append(log_dir, env, key, 100)
            clean(log_dir, env)
        assert b"a" not in [record.key for record in log.records()]


def test_a_cut_above_the_cleaned_offsets_changes_nothing() -> None:
    env = seeded_env(1)
    env.files.make_dirs(DIRECTORY)
    cut_history(env.files, DIRECTORY, 3)
    write_history(env.files, DIRECTORY, HISTORY)
    cut_history(env.files, DIRECTORY, 7)
    assert load_history(env.files, DIRECTORY) == HISTORY
    cut_history(env.files, DIRECTORY, 5)
    assert load_history(env.files, DIRECTORY) == HISTORY._replace(
        end_offset=5,
        record_exact_ms=UNKNOWN_MS,
        append_exact_ms=UNKNOWN_MS,
        segments=frozenset({(0, 100), (0, 50)}),
    )


def test_the_checkpoint_of_a_deleted_topic_is_removed() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        for key in (b"a", b"a"):
            append(log_dir, env, key, 100)
        clean(log_dir, env)
        assert log_dir.cleaner_offset(NAME) == 2
        log_dir.delete_topic("t")
        assert log_dir.cleaner_offset(NAME) is None


def test_times_of_consecutive_runs_are_merged() -> None:
    """Tombstones of several runs get one delete horizon, so one later run can remove them all."""
    env = seeded_env(1)
    with begin(env) as log_dir:
        log = log_dir.log("t", 0)
        for _ in range(30):
            env.clock.advance(1_000_000)
            log.append([NewRecord(key=b"%d" % env.clock.now_ms(), value=None)])
            log.roll()
            clean(log_dir, env)
        horizons = history(env).horizons_ms
        assert 1 < len(horizons) <= 12
        assert all(later - earlier == 8_640_000 for earlier, later in pairwise(horizons))


def test_without_a_history_tombstones_are_removable_after_the_age_of_their_segment() -> None:
    """Another cleaner leaves no history, so the age of the cleaned segment counts."""
    env = seeded_env(1)
    with begin(env) as log_dir:
        log = log_dir.log("t", 0)
        log.append([NewRecord(key=b"k", value=None)])
        log.roll()
        clean(log_dir, env)
        env.files.remove(f"{DIRECTORY}/{HISTORY_FILE}")
        env.clock.advance(log.context.config.delete_retention_ms - 1)
        assert inspect_log(log_dir, NAME).decision.due is None
        env.clock.advance(1)
        assert inspect_log(log_dir, NAME).decision.due is DueReason.HORIZON


def test_tombstones_with_unlimited_retention_have_a_valid_time() -> None:
    env = seeded_env(1)
    with begin(env) as log_dir:
        log_dir.alter_config("t", {"delete.retention.ms": str(INT64_MAX)})
        log = log_dir.log("t", 0)
        log.append([NewRecord(key=b"k", value=None)])
        log.roll()
        clean(log_dir, env)
        assert history(env).horizons_ms == (INT64_MAX,)


def test_a_marker_alone_brings_no_other_run() -> None:
    """A marker whose transaction has a record stays, and gets no delete horizon."""
    env = seeded_env(1)
    with begin(env) as log_dir:
        log = log_dir.log("t", 0)
        records = [NewRecord(key=b"k", value=b"v")]
        log.append_batches(
            build_batch(
                records, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
            ),
            AppendTerms(owned=True),
        )
        log.end_transaction(producer_id=1, producer_epoch=0, coordinator_epoch=0, commit=True)
        log.roll()
        clean(log_dir, env)
        env.clock.advance(30 * 86_400_000)
        assert history(env).horizons_ms == ()
        assert inspect_log(log_dir, NAME).decision.due is None
        assert [record.key for record in log.records()] == [b"k"]
