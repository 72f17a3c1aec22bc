"""Compaction of one partition: its steps, the reasons to stop, and the files that it leaves."""

from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom

import pytest
from tests.faults import SeededEnv, seeded_env
from tests.unit.storage.tiers.tiered import Tiered
from tests.worlds.directories.logs import watched
from tests.worlds.directories.plain_cleaner import PlainWorker

from tidelog.env import Env
from tidelog.errors import (
    CleaningAborted,
    CleaningFailed,
    CorruptFile,
    InvalidRequest,
    StorageFailure,
)
from tidelog.record.builder import build_batch
from tidelog.storage import commits, files, log_files
from tidelog.storage.checks import DirectoryCheck
from tidelog.storage.checks.repair import repair
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions, inspect_log
from tidelog.storage.compaction.eligibility import DueReason
from tidelog.storage.compaction.job import SEED_SIZE, CleaningJob, CleaningResult
from tidelog.storage.compaction.worker import InProcess, Pace
from tidelog.storage.directory.attach import ensure_finished
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import read_file, write_atomically
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.log.log import Log
from tidelog.storage.segment.compaction_history import HISTORY_FILE
from tidelog.types import INT64_MAX, NewRecord, TopicPartition

ROOT = "/data"
DIRECTORY = f"{ROOT}/t-0"
NAME = TopicPartition("t", 0)
ASKED = CleanerOptions(is_asked=True)
DUE = CleanerOptions()
DAY_MS = 86_400_000


@dataclass(slots=True)
class Meddling:
    """Worker that calls a function after each cleaning, before its result is used."""

    env: SeededEnv
    meddle: Callable[[], object]

    def clean(self, job: CleaningJob) -> CleaningResult:
        done = PlainWorker(self.env).clean(job)
        self.meddle()
        return done


@dataclass(slots=True)
class SeedRecorder:
    """Worker that records the hash seed of each job."""

    env: Env
    seeds: list[bytes]

    def clean(self, job: CleaningJob) -> CleaningResult:
        self.seeds.append(job.seed)
        return PlainWorker(self.env).clean(job)


def open_dir(env: Env, **config: str) -> LogDir:
    log_dir = LogDir.open(ROOT, env=env, options=LogDirOptions(create=True))
    if "t" not in log_dir.topics():
        settings = {name.replace("_", "."): value for name, value in config.items()}
        log_dir.create_topic("t", config={"cleanup.policy": "compact", **settings})
    return log_dir


def append(env: SeededEnv, log: Log, *keys: bytes, value: bytes | None = b"v") -> None:
    """Append one batch with a record for each key, and roll."""
    env.clock.advance(10)
    now_ms = env.clock.now_ms()
    log.append([NewRecord(key=key, value=value, timestamp=now_ms) for key in keys])
    log.roll()


def keys(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.key) for record in log.records()]


def names(env: SeededEnv, suffix: str = "") -> list[str]:
    return [e.name for e in env.files.list_dir(DIRECTORY) if e.name.endswith(suffix)]


def test_a_run_keeps_the_last_of_each_key_and_moves_the_checkpoint() -> None:
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        for key in (b"a", b"b", b"a", b"c"):
            append(env, log, key)
        report = clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        assert (report.passes, report.segments_before, report.segments_after) == (1, 4, 1)
        assert (report.records_before, report.records_after) == (4, 3)
        assert keys(log) == [(1, b"b"), (2, b"a"), (3, b"c")]
        assert log_dir.cleaner_offset(NAME) == report.cleaned_to == 4
        assert [segment.base_offset for segment in log.segments] == [0, 4]
        # Only the new segment and the active one have log files; the replaced files await deletion.
        assert names(env, ".log") == [f"{0:020d}.log", f"{4:020d}.log"]
        assert not [n for n in names(env, ".snapshot") if n.startswith(f"{2:020d}")]
        assert clean_partition(log_dir, NAME, PlainWorker(env), DUE).passes == 0


def test_each_run_of_compaction_draws_its_own_hash_seed() -> None:
    """Keys that collide under one seed don't collide under the next run's seed."""
    seeds: list[bytes] = []
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        for _ in range(3):
            append(env, log_dir.log("t", 0), b"a", b"a")
            assert clean_partition(log_dir, NAME, SeedRecorder(env, seeds), DUE).passes == 1
    assert len(set(seeds)) == 3
    assert {len(seed) for seed in seeds} == {SEED_SIZE}


def test_processes_with_the_default_environment_draw_different_hash_seeds() -> None:
    """The seeds come from the system's random source, so they differ between processes."""
    assert isinstance(Env().random, SystemRandom)


def test_old_files_stay_for_their_readers_until_their_delay_is_over() -> None:
    env = seeded_env(1)
    with open_dir(env, file_delete_delay_ms="1000") as log_dir:
        log = log_dir.log("t", 0)
        for key in (b"a", b"a", b"b"):
            append(env, log, key)
        old = [part.segment for part in log.slices()]
        reading = log.records()
        assert next(reading).offset == 0
        clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        # A reader that began before the swap continues to read the replaced files.
        assert [record.offset for record in reading] == [1, 2]
        log_dir.log("t", 0).drop_caches()
        assert [segment.view(0, segment.size_bytes).nbytes > 0 for segment in old[:3]] == [True] * 3
        assert keys(log) == [(1, b"a"), (2, b"b")]
        env.clock.advance(999)
        log.deleter.unlink_due()
        assert len(names(env, ".log.deleted")) == 3
        env.clock.advance(2)
        log.deleter.unlink_due()
        assert names(env, ".deleted") == []


@pytest.mark.parametrize(
    "meddle",
    [
        lambda log: log.truncate_to(2),
        lambda log: (log.delete_records(1), log.apply_retention()),
    ],
    ids=["cut", "deleted"],
)
def test_a_log_that_changes_meanwhile_is_not_touched(meddle: Callable[[Log], object]) -> None:
    env = seeded_env(1)
    with open_dir(env, cleanup_policy="compact,delete") as log_dir:
        log = log_dir.log("t", 0)
        for key in (b"a", b"a", b"b"):
            append(env, log, key)
        worker = Meddling(env, lambda: meddle(log))
        with pytest.raises(CleaningAborted, match="truncated, deleted or replaced"):
            clean_partition(log_dir, NAME, worker, ASKED)
        assert names(env, ".cleaned") == []
        assert log.failure is None
        before = keys(log)
        clean_partition(log_dir, NAME, PlainWorker(env), ASKED)
        assert {key for _, key in keys(log)} == {key for _, key in before}


def test_appends_during_a_cleaning_are_kept() -> None:
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        append(env, log, b"a", b"a")
        clean_partition(log_dir, NAME, Meddling(env, lambda: append(env, log, b"a", b"z")), DUE)
        assert keys(log) == [(1, b"a"), (2, b"a"), (3, b"z")]
        clean_partition(log_dir, NAME, PlainWorker(env), ASKED)
        assert keys(log) == [(2, b"a"), (3, b"z")]


def meddling(env: SeededEnv, moment: str, work: Callable[[], None]) -> Env:
    """Return an environment that calls a function once while a segment is swapped in.

    Args:
        env: Environment with the disk.
        moment: "staged", just before the first new file is renamed, or "published", when the
            swap is visible but its files are not yet renamed.
        work: Function to call.
    """
    surroundings, disk = watched(env)
    done: list[str] = []

    def look(operation: str, path: str) -> None:
        is_staged = operation == "rename" and path.endswith(log_files.SWAP_SUFFIX)
        is_published = (operation, path) == ("sync_dir", ROOT) and bool(
            commits.find_commits(env.files, ROOT)
        )
        if not done and (is_staged if moment == "staged" else is_published):
            done.append(path)
            work()

    disk.before_change = look
    return surroundings


def test_a_swap_in_progress_does_not_prevent_a_commit_to_another_topic() -> None:
    env = seeded_env(1)
    looked: list[int] = []

    def look_meanwhile() -> None:
        looked.append(len(commits.find_commits(env.files, ROOT)))
        ensure_finished(log_dir)

    with open_dir(meddling(env, "published", look_meanwhile)) as log_dir:
        append(env, log_dir.log("t", 0), b"a", b"a")
        clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        assert looked == [1]
        assert not log_dir.commit_records.under_way
        assert keys(log_dir.log("t", 0)) == [(1, b"a")]


@pytest.mark.parametrize("moment", ["staged", "published"])
def test_a_partition_is_not_reopened_in_the_midst_of_a_swap(moment: str) -> None:
    """A second swap would move the files of the first, and one commit record would remain."""
    env = seeded_env(1)

    def fail_meanwhile() -> None:
        log_dir.log("t", 0).swaps.go_offline("swap", "no disk")
        with pytest.raises(StorageFailure, match="are being swapped"):
            log_dir.reopen("t", 0)

    with open_dir(meddling(env, moment, fail_meanwhile)) as log_dir:
        append(env, log_dir.log("t", 0), b"a", b"a")
        with pytest.raises(StorageFailure):
            clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        log = log_dir.reopen("t", 0)
        ensure_finished(log_dir)
        assert keys(log) == [(1, b"a")]
        append(env, log, b"b", b"b")
        clean_partition(log_dir, NAME, PlainWorker(env), ASKED)
        assert keys(log) == [(1, b"a"), (3, b"b")]


def test_a_worker_that_fails_leaves_nothing_behind() -> None:
    env = seeded_env(1)

    def fail() -> None:
        raise CleaningFailed("killed")

    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        append(env, log, b"a", b"a")
        with pytest.raises(CleaningFailed):
            clean_partition(log_dir, NAME, Meddling(env, fail), DUE)
        assert names(env, ".cleaned") == []
        assert keys(log) == [(0, b"a"), (1, b"a")]
        assert log_dir.cleaner_offset(NAME) is None
        clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        assert keys(log) == [(1, b"a")]


def test_a_head_with_more_keys_than_the_maps_capacity_needs_several_passes() -> None:
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        for _ in range(2):
            for number in range(7):
                append(env, log, b"%d" % number)
        report = clean_partition(log_dir, NAME, PlainWorker(env, map_keys=2), DUE)
        assert report.passes == 7
        assert report.stopped is None
        assert len(keys(log)) == 7


def test_tombstones_of_an_idle_log_go() -> None:
    env = seeded_env(1)
    with open_dir(env, delete_retention_ms="1000") as log_dir:
        log = log_dir.log("t", 0)
        append(env, log, b"a", b"b")
        append(env, log, b"a", value=None)
        clean_partition(log_dir, NAME, PlainWorker(env), ASKED)
        assert keys(log) == [(1, b"b"), (2, b"a")]
        env.clock.advance(999)
        assert inspect_log(log_dir, NAME).decision.due is None
        env.clock.advance(101)
        assert inspect_log(log_dir, NAME).decision.due is DueReason.HORIZON
        clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        assert keys(log) == [(1, b"b")]
        assert inspect_log(log_dir, NAME).decision.due is None
    with open_dir(env) as log_dir:
        assert keys(log_dir.log("t", 0)) == [(1, b"b")]


def test_tombstones_with_unlimited_retention_are_not_removed() -> None:
    env = seeded_env(1)
    with open_dir(env, delete_retention_ms=str(INT64_MAX)) as log_dir:
        log = log_dir.log("t", 0)
        append(env, log, b"a", value=None)
        # One producer has two transactions. After the second transaction, the marker of the first
        # is not needed.
        for sequence, key in enumerate((b"2", b"b")):
            transaction = build_batch(
                [NewRecord(key=key, value=b"v", timestamp=env.clock.now_ms())],
                producer_id=1,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            log.append_batches(transaction, AppendTerms(owned=True))
            log.end_transaction(producer_id=1, producer_epoch=0, coordinator_epoch=0, commit=True)
            log.roll()
        for number in range(4):
            append(env, log, b"%d" % number)
            clean_partition(log_dir, NAME, InProcess(env), ASKED)
            env.clock.advance(1_000 * DAY_MS)
        left = [(0, b"a"), (3, b"b"), (5, b"0"), (6, b"1"), (7, b"2"), (8, b"3")]
        assert keys(log) == left


def test_tombstones_that_another_cleaner_left_are_removed_too() -> None:
    env = seeded_env(1)
    with open_dir(env, delete_retention_ms="1000") as log_dir:
        log = log_dir.log("t", 0)
        append(env, log, b"a", value=None)
        log_dir.note_cleaned(NAME, 1)
        assert inspect_log(log_dir, NAME).decision.due is None
        env.clock.advance(1001)
        assert inspect_log(log_dir, NAME).decision.due is DueReason.HORIZON
        for _ in range(2):
            clean_partition(log_dir, NAME, PlainWorker(env), DUE)
            env.clock.advance(1101)
        clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        assert keys(log) == []
        assert inspect_log(log_dir, NAME).decision.due is None
        assert log.log_end_offset == 1


def test_a_checkpoint_behind_the_log_is_written_again() -> None:
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        append(env, log_dir.log("t", 0), b"a", b"a")
        log_dir.note_cleaned(NAME, 99)
        clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        assert log_dir.cleaner_offset(NAME) == 2


def test_append_times_are_those_of_the_records_that_are_left() -> None:
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        for key in (b"a", b"b", b"a", b"c"):
            append(env, log, key)
        before = {offset: log.append_time_of(offset) for offset in range(4)}
        clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        assert [log.append_time_of(n) for n in (1, 2, 3)] == [before[n] for n in (1, 2, 3)]
    with LogDir.open(ROOT, env=env) as log_dir:
        reader = log_dir.reader("t", 0)
        assert [reader.append_time_of(n) for n in (1, 2, 3)] == [before[n] for n in (1, 2, 3)]
        assert log_dir.reports == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "removed"])
def test_append_times_that_could_be_restored_are_not_compacted_away(damage: str) -> None:
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        for _ in range(3):
            env.clock.advance(10)
            log.append([NewRecord(key=b"a", value=b"1")])
            append(env, log, b"b", b"c")
        before = {offset: log.append_time_of(offset) for offset in range(9)}
    path = f"{DIRECTORY}/{3:020}.appendtime"
    data = read_file(env.files, path)
    spoiled = {"flipped": data[:50] + bytes([data[50] ^ 1]) + data[51:], "cut": data[:-40]}
    if damage == "removed":
        env.files.remove(path)
    else:
        write_atomically(env.files, path, spoiled[damage])
    with open_dir(env) as log_dir:
        with pytest.raises(CorruptFile, match="--accept-lost-times") as caught:
            clean_partition(log_dir, NAME, InProcess(env), ASKED)
        assert caught.value.path == path
        assert [record.offset for record in log_dir.log("t", 0).records()] == list(range(9))
    write_atomically(env.files, path, data)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        assert clean_partition(log_dir, NAME, InProcess(env), ASKED).passes == 1
        assert [(n, log.append_time_of(n)) for n in (6, 7, 8)] == [
            (n, before[n]) for n in (6, 7, 8)
        ]


def test_a_repair_of_an_index_keeps_the_loss_of_append_times() -> None:
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        for key in (b"a", b"b", b"c"):
            append(env, log, key)
    path = f"{DIRECTORY}/{1:020}.appendtime"
    env.files.remove(path)
    write_atomically(env.files, f"{DIRECTORY}/{1:020}.timeindex", b"x" * 12)
    check = DirectoryCheck(env.files, ROOT, clock=env.clock)
    found = [*check.load(), *check.findings()]
    assert repair(env, check, found) == []
    check = DirectoryCheck(env.files, ROOT, clock=env.clock)
    assert path in [one.path for one in [*check.load(), *check.findings()]]
    with (
        open_dir(env) as log_dir,
        pytest.raises(CorruptFile, match="--accept-lost-times") as caught,
    ):
        clean_partition(log_dir, NAME, InProcess(env), ASKED)
    assert caught.value.path == path


def test_lost_append_times_are_unknown_if_that_is_accepted() -> None:
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        for key in (b"a", b"b", b"c"):
            append(env, log, key)
        before = {offset: log.append_time_of(offset) for offset in range(3)}
    env.files.remove(f"{DIRECTORY}/{1:020}.appendtime")
    accepting = CleanerOptions(is_asked=True, accepts_lost_times=True)
    with open_dir(env) as log_dir:
        assert clean_partition(log_dir, NAME, InProcess(env), accepting).passes == 1
        log = log_dir.log("t", 0)
        assert [log.append_time_of(n) for n in range(3)] == [before[0], None, before[2]]


def test_times_before_an_unknown_source_are_proven_without_a_checkpoint() -> None:
    """The row that begins the unknown times also proves the time of the last batch before it."""
    env = seeded_env(1)
    with open_dir(env) as log_dir:
        log = log_dir.log("t", 0)
        log.append([NewRecord(key=b"a", value=b"1")])
        log.append([NewRecord(key=b"b", value=b"1")])
        log.roll()
        append(env, log, b"c")
        known_ms = log.append_time_of(1)
        assert known_ms == log.append_time_of(0)
    env.files.remove(f"{DIRECTORY}/{2:020}.appendtime")
    accepting = CleanerOptions(is_asked=True, accepts_lost_times=True)
    with open_dir(env) as log_dir:
        assert clean_partition(log_dir, NAME, InProcess(env), accepting).segments_after == 1
    env.files.remove(f"{DIRECTORY}/{files.APPEND_TIME_CHECKPOINT_FILE}")
    with LogDir.open(ROOT, env=env) as log_dir:
        reader = log_dir.reader("t", 0)
        assert [reader.append_time_of(n) for n in range(3)] == [known_ms, known_ms, None]


@pytest.mark.parametrize("by_us", [True, False])
def test_a_gap_is_no_loss_after_a_hard_stop_during_a_swap(by_us: bool) -> None:
    """Recovery accepts gaps that compaction left, even if the segment notes don't list them.

    Another program's cleaner writes no history, but its checkpoint shows that it cleaned the log.
    """
    env = seeded_env(1)
    with open_dir(env, internal_segment_bytes="150") as log_dir:
        log = log_dir.log("t", 0)
        for key in (b"a", b"b"):  # two batches; compaction removes the second
            log.append([NewRecord(key=key, value=b"v", timestamp=env.clock.now_ms())])
        log.roll()
        append(env, log, b"b", b"c")
        clean_partition(log_dir, NAME, PlainWorker(env), DUE)
        assert keys(log) == [(0, b"a"), (2, b"b"), (3, b"c")]
        assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
        append(env, log, b"d")
        log.flush()
        found = keys(log)
        log_dir.abandon()
    if not by_us:
        env.files.remove(f"{DIRECTORY}/{HISTORY_FILE}")
    env.files.remove(f"{DIRECTORY}/segment-notes")
    notes = env.files.open(f"{DIRECTORY}/segment-notes", create=True)
    notes.pwrite(b"0\n", 0)
    notes.close()
    with open_dir(env) as log_dir:
        assert keys(log_dir.log("t", 0)) == found
        assert log_dir.log("t", 0).log_end_offset == 5


def test_a_partition_with_a_tier_is_left_alone() -> None:
    made = Tiered().start(cleanup_policy="compact")
    made.fill(10)
    made.log.roll()
    made.move()
    with pytest.raises(InvalidRequest, match="tier"):
        inspect_log(made.directory, NAME)


def test_a_pace_bounds_the_bytes_per_second() -> None:
    env = seeded_env(1)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        env.clock.advance(round(seconds * 1000))

    pace = Pace(1000, env.clock, wait)
    pace.take(100)
    pace.take(1900)
    assert sum(waited) == pytest.approx(2.0)
    assert max(waited) <= 0.5
    env.clock.advance(DAY_MS)  # unused throughput doesn't accumulate
    waited.clear()
    pace.take(500)
    assert sum(waited) == pytest.approx(0.5)


@pytest.mark.parametrize(("clock", "is_due"), [("record-capped", True), ("record", False)])
def test_the_minimum_lag_counts_from_the_append_at_the_latest(clock: str, is_due: bool) -> None:
    """A timestamp years ahead delays compaction by `record` time, but not by `record-capped`."""
    env = seeded_env(1)
    directory = open_dir(
        env,
        min_compaction_lag_ms="60000",
        tidelog_retention_clock=clock,
        message_timestamp_after_max_ms=str(2**63 - 1),
    )
    log = directory.log("t", 0)
    ahead_ms = env.clock.now_ms() + 2 * 365 * 86_400_000
    log.append([NewRecord(key=b"a", value=b"1", timestamp=ahead_ms)])
    log.append([NewRecord(key=b"a", value=b"2", timestamp=ahead_ms)])
    log.roll()
    assert not inspect_log(directory, NAME).decision.dirty_bytes
    env.clock.advance(61_000)
    assert bool(inspect_log(directory, NAME).decision.dirty_bytes) is is_due


GENERATIONAL = {"tidelog_compaction_scheduler": "generational"}


def test_without_retention_generations_remove_tombstones_of_an_idle_log() -> None:
    """The first pass that reads a tombstone keeps it, as in Kafka. The second pass drops it."""
    env = seeded_env(1)
    with open_dir(env, delete_retention_ms="0", **GENERATIONAL) as log_dir:
        log = log_dir.log("t", 0)
        append(env, log, b"a", b"b")
        append(env, log, b"a", value=None)
        clean_partition(log_dir, NAME, InProcess(env), ASKED)
        assert keys(log) == [(1, b"b"), (2, b"a")]
        env.clock.advance(1)
        clean_partition(log_dir, NAME, InProcess(env), DUE)
        assert keys(log) == [(1, b"b")]
        env.clock.advance(1)
        assert inspect_log(log_dir, NAME).decision.due is None


def test_tombstones_go_by_generations_though_a_segment_ends_between_any_two_looks() -> None:
    env = seeded_env(1)
    with open_dir(env, delete_retention_ms="1000", **GENERATIONAL) as log_dir:
        log = log_dir.log("t", 0)
        append(env, log, *(b"key %d" % n for n in range(100)))
        append(env, log, b"key 7", value=None)
        clean_partition(log_dir, NAME, InProcess(env), ASKED)
        assert (100, b"key 7") in keys(log)
        for number in range(3):
            env.clock.advance(1100)
            append(env, log, b"other %d" % number)
            clean_partition(log_dir, NAME, InProcess(env), DUE)
        assert (100, b"key 7") not in keys(log)
