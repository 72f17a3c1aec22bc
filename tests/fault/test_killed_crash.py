"""Power is lost after a process was killed with a roll's sync pending, and was restarted.

Unsynced bytes of a killed process are in the system's page cache. The next start reads these bytes
and treats them like all other bytes of the file: a flush or a clean stop makes them durable.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import pytest
from tests.core import thinned
from tests.fault.harness import survey
from tests.fault.judge import judge, judge_quickly
from tests.fault.test_deferred_crash import DeferringWorkload
from tests.fault.workload import ROOT
from tests.faults import (
    DamageFileSystem,
    Fault,
    FaultKind,
    Keep,
    SeededEnv,
    reopen,
    seeded_env,
)
from tests.faults.later import Later
from tests.worlds.repetition import rarely

from tidelog.env import File
from tidelog.errors import StorageFailure
from tidelog.storage import files, log_files
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.storage.log.recovery import UNSYNCED_FILE
from tidelog.types import NewRecord

SEEDS = (5, rarely(8))
STEP_COUNT = 60
STATES = 500
NEVER_WORKING = LogDirOptions(create=True, deferrals=Later)


class KilledWorkload(DeferringWorkload):
    """A `DeferringWorkload` that is sometimes killed, so that pending work never runs."""

    def weighted(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the steps of `DeferringWorkload`, and the kill."""
        return [*super().weighted(), (3, self.kill)]

    def kill(self) -> None:
        """Kill the process: the system keeps all writes, and the next start makes them durable."""
        assert self.directory is not None
        self.directory.abandon()
        self.laters.clear()
        self.directory = LogDir.open(ROOT, env=self.env, options=self.options)
        self.story.tell(self.story.latest.flushed())


@cache
def at_work(seed: int) -> KilledWorkload:
    workload = KilledWorkload(seed)
    workload.run(STEP_COUNT)
    return workload


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("seed", SEEDS)
def test_every_prefix_of_the_calls(seed: int, keep: Keep) -> None:
    done = at_work(seed)
    survey(done.files, done.story, done.files.prefixes(keep), judge_quickly)


@pytest.mark.parametrize("seed", SEEDS)
def test_seeded_states(seed: int) -> None:
    done = at_work(seed)
    survey(done.files, done.story, done.files.crash_states(thinned(range(STATES))), judge_quickly)
    survey(
        done.files, done.story, done.files.crash_states(thinned(range(STATES, STATES + 40))), judge
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(201, 231, 2))
def test_many_more_workloads(seed: int) -> None:
    done = KilledWorkload(seed)
    done.run(120)
    survey(done.files, done.story, done.files.crash_states(range(4_000)), judge)


# ---- one roll, one kill


def partition_at(env: SeededEnv) -> tuple[LogDir, Log]:
    directory = LogDir.open(ROOT, env=env, options=NEVER_WORKING)
    if "t" not in directory.topics():
        directory.create_topic("t")
    return directory, directory.log("t", 0)


def killed(rolls: int) -> SeededEnv:
    """Return a killed process's disk: segments of three records, and rolls that were not synced."""
    env = seeded_env(1)
    directory, log = partition_at(env)
    for part in range(rolls + 1):
        log.append([NewRecord(value=b"%d" % (3 * part + number)) for number in range(3)])
        if part < rolls:
            log.roll()
    directory.abandon()
    return env


def without_power(env: SeededEnv) -> list[bytes | None]:
    """Return the log's values after a power loss that keeps only synced changes."""
    left = replace(env, files=reopen(env.files.crash(Keep.SYNCED), clock=env.clock))
    directory, log = partition_at(left)
    found = [record.value for record in log.records()]
    assert log.log_start_offset == 0
    directory.abandon()
    return found


def flush(_: LogDir, log: Log) -> None:
    log.flush()


def flush_and_checkpoint(directory: LogDir, log: Log) -> None:
    log.flush()
    directory.checkpoint()


def stop(directory: LogDir, _: Log) -> None:
    directory.close()


@pytest.mark.parametrize("rolls", [1, 2])
@pytest.mark.parametrize("end", [flush, flush_and_checkpoint, stop])
def test_records_after_a_roll_and_a_kill_become_durable_with_the_rest(
    end: Callable[[LogDir, Log], None], rolls: int
) -> None:
    env = killed(rolls)
    directory, log = partition_at(env)
    written = [record.value for record in log.records()]
    assert len(written) == 3 * rolls + 3

    end(directory, log)

    assert without_power(env) == written


def test_the_last_segment_is_durable_before_its_note() -> None:
    env = killed(rolls=1)
    directory, log = partition_at(env)
    log.roll()
    log.append([NewRecord(value=b"behind")])
    env.files.sync_dir(log.context.directory)
    for segment in log.segments[2:]:
        _sync(env.files, segment.log_path)
    directory.abandon()

    assert without_power(env) == [*(b"%d" % number for number in range(6)), b"behind"]


def test_a_directory_of_kafkas_is_completed_too() -> None:
    """A flush makes a killed process's bytes durable, even without notes, which Kafka lacks."""
    env = killed(rolls=1)
    names = [entry.name for entry in env.files.list_dir(f"{ROOT}/t-0")]
    kept = (log_files.LOG_SUFFIX, log_files.OFFSET_INDEX_SUFFIX, log_files.TIME_INDEX_SUFFIX)
    for name in names:
        if not name.endswith(kept):
            env.files.remove(f"{ROOT}/t-0/{name}")
    env.files.remove(f"{ROOT}/tidelog-topics.json")
    directory, log = partition_at(env)
    log.flush()
    directory.checkpoint()

    assert without_power(env) == [b"%d" % number for number in range(6)]


def test_a_start_after_a_clean_stop_syncs_no_segment() -> None:
    env = killed(rolls=2)
    directory, _ = partition_at(env)
    directory.close()
    begun = len(env.files.journal)
    directory, log = partition_at(env)
    assert log.log_end_offset == 9
    changed = [str(each) for each in env.files.journal[begun:]]
    assert not [each for each in changed if each.endswith(f"{log_files.LOG_SUFFIX}: sync")]
    directory.close()


def _sync(fs: DamageFileSystem, path: str) -> None:
    file = fs.open(path, write=True)
    file.sync()
    file.close()


# ---- a failed sync, then a start


def with_a_failed_sync(
    end: Callable[[LogDir], None], call: int
) -> tuple[SeededEnv, list[bytes | None]]:
    """Return a directory after a failed sync of the last append, and the values of all appends."""
    env = seeded_env(1)
    directory, log = partition_at(env)
    log.append([NewRecord(value=b"synced")])
    log.flush()
    directory.checkpoint()
    log.append([NewRecord(value=b"written")])
    env.files.writes.fault = Fault(env.files.calls + call, FaultKind.EIO)
    with pytest.raises(StorageFailure):
        log.flush()
    env.files.writes.fault = None
    with suppress(StorageFailure):  # `close` reports the failed sync again
        end(directory)
    return env, [b"synced", b"written"]


@pytest.mark.parametrize("call", range(2))
@pytest.mark.parametrize("end", [LogDir.abandon, LogDir.close], ids=["killed", "stopped"])
def test_a_start_rewrites_segments_after_a_failed_sync(
    end: Callable[[LogDir], None], call: int
) -> None:
    env, written = with_a_failed_sync(end, call)
    directory, log = partition_at(env)
    assert [record.value for record in log.records()] == written
    log.append([NewRecord(value=b"behind")])

    log.flush()
    directory.abandon()

    assert without_power(env) == [*written, b"behind"]


def test_a_segment_with_a_failed_sync_is_rewritten_once() -> None:
    env, _ = with_a_failed_sync(LogDir.abandon, 0)
    directory, log = partition_at(env)
    assert not env.files.exists(f"{log.context.directory}/{UNSYNCED_FILE}")
    directory.abandon()
    begun = len(env.files.journal)
    partition_at(env)[0].abandon()
    changed = [str(each) for each in env.files.journal[begun:]]
    assert not [each for each in changed if f"{log_files.LOG_SUFFIX}{files.TMP_SUFFIX}" in each]


def refuse_copies(env: SeededEnv) -> Callable[[], None]:
    """Refuse to create copies of segments; return a function that allows them again."""
    opening = env.files.open

    def full(path: str, *, write: bool = False, create: bool = False) -> File:
        if create and path.endswith(f"{log_files.LOG_SUFFIX}{files.TMP_SUFFIX}"):
            raise OSError(28, "no space left on device")
        return opening(path, write=write, create=create)

    env.files.open = full  # type: ignore[method-assign] # the simulated disk
    return partial(setattr, env.files, "open", opening)


def test_without_room_for_it_the_partition_can_be_read_and_refuses_appends() -> None:
    env, written = with_a_failed_sync(LogDir.abandon, 1)
    let_again = refuse_copies(env)
    directory, log = partition_at(env)
    assert [record.value for record in log.records()] == written
    with pytest.raises(StorageFailure):
        log.append([NewRecord(value=b"behind")])

    let_again()
    log = directory.reopen("t", 0)
    log.append([NewRecord(value=b"behind")])
    log.flush()
    directory.abandon()

    assert without_power(env) == [*written, b"behind"]


def test_without_room_for_it_no_part_of_the_copy_stays() -> None:
    """A partial copy would use up the space that retention needs before it can free space."""
    env, written = with_a_failed_sync(LogDir.abandon, 1)
    opening, copies = env.files.open, list[str]()

    def full(path: str, *, write: bool = False, create: bool = False) -> File:
        is_copy = create and path.endswith(f"{log_files.LOG_SUFFIX}{files.TMP_SUFFIX}")
        copies.extend([path] if is_copy else [])
        env.files.limit_bytes = 0 if is_copy else None
        return opening(path, write=write, create=create)

    env.files.open = full  # type: ignore[method-assign] # the simulated disk
    _, log = partition_at(env)
    assert [record.value for record in log.records()] == written
    assert copies
    assert not [path for path in copies if env.files.exists(path)]


def test_an_append_without_room_leaves_no_mark() -> None:
    """An append without space leaves no mark, so the next start needs no space for copies."""
    env = seeded_env(1)
    directory, log = partition_at(env)
    log.append([NewRecord(value=b"written")])
    env.files.writes.fault = Fault(env.files.calls, FaultKind.NO_SPACE)
    with pytest.raises(StorageFailure):
        log.append([NewRecord(value=b"lost")])
    env.files.writes.fault = None
    directory.abandon()
    refuse_copies(env)

    log = partition_at(env)[1]
    assert log.append([NewRecord(value=b"behind")]).base_offset == 1


@pytest.mark.parametrize("call", range(8))
def test_a_sync_that_fails_at_the_end_is_known_at_the_next_start(call: int) -> None:
    env = seeded_env(1)
    directory, log = partition_at(env)
    log.append([NewRecord(value=b"synced")])
    log.flush()
    directory.checkpoint()
    log.append([NewRecord(value=b"written")])
    env.files.writes.fault = Fault(env.files.calls + call, FaultKind.EIO)
    with suppress(StorageFailure):
        directory.close()
    env.files.writes.fault = None
    assert_all_is_durable(env, [b"synced", b"written"])


@pytest.mark.parametrize("call", range(20))
def test_a_sync_that_fails_at_a_start_is_known_at_the_next_one(call: int) -> None:
    env = seeded_env(1)
    directory, log = partition_at(env)
    log.append([NewRecord(value=b"synced")])
    log.flush()
    directory.checkpoint()
    log.append([NewRecord(value=b"written")])
    directory.abandon()
    env.files.writes.fault = Fault(env.files.calls + call, FaultKind.EIO)
    with suppress(StorageFailure):
        partition_at(env)[0].abandon()
    env.files.writes.fault = None
    assert_all_is_durable(env, [b"synced", b"written"])


def assert_all_is_durable(env: SeededEnv, written: list[bytes]) -> None:
    """Assert that the written records and a new one survive a flush and a power loss."""
    directory, log = partition_at(env)
    assert [record.value for record in log.records()] == written
    log.append([NewRecord(value=b"behind")])
    log.flush()
    directory.abandon()
    assert without_power(env) == [*written, b"behind"]
