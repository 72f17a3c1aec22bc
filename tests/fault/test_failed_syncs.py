"""After a failed sync, the next start on this machine must not trust the page cache.

After a failed sync the system may treat the unwritten pages as written. So the failure leaves a
mark file, and the next process rewrites the files in doubt. A write that fails for lack of space
leaves no mark: the next start could not rewrite the files, because it would have no space for the
copies.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import pytest
from tests.fault.test_killed_crash import assert_all_is_durable
from tests.fault.workload import ROOT
from tests.faults import Fault, FaultKind, SeededEnv, seeded_env
from tests.faults.later import Later
from tests.worlds.directories.logs import offsets, transact

from tidelog.errors import StorageFailure
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.storage.log.recovery import UNSYNCED_FILE
from tidelog.types import IsolationLevel, NewRecord

MARK = f"{ROOT}/t-0/{UNSYNCED_FILE}"
FIRST, SECOND, THIRD = b"first" * 12, b"second" * 12, b"third" * 12
SMALL = {"internal.segment.bytes": "200"}  # each record rolls a segment
ENDS = pytest.mark.parametrize("end", [LogDir.abandon, LogDir.close], ids=["killed", "stopped"])


def durable_first(
    env: SeededEnv, config: Mapping[str, str] | None = None, later: Later | None = None
) -> tuple[LogDir, Log]:
    """Return a directory with one partition, and this partition's log with a durable record."""
    deferrals = None if later is None else lambda: later
    options = LogDirOptions(create=True, deferrals=deferrals)
    directory = LogDir.open(ROOT, env=env, options=options)
    directory.create_topic("t", config=config or {})
    log = directory.log("t", 0)
    append(log, FIRST)
    log.flush()
    directory.checkpoint()
    return directory, log


def append(log: Log, value: bytes) -> None:
    log.append([NewRecord(value=value)])


def end_transaction(log: Log, *, commit: bool) -> None:
    log.end_transaction(producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=commit)


def cut(log: Log, offset: int) -> None:
    log.truncate_to(offset)


def failing(env: SeededEnv, call: int, do: Callable[[], None], kind: FaultKind) -> str | None:
    """Run `do` with one failing call; return its operation and path, or None if no call failed."""
    env.files.writes.fault = Fault(env.files.calls + call, kind)
    known = len(env.files.writes.failed)
    with suppress(StorageFailure):
        do()
    env.files.writes.fault = None
    return next((f"{op} {path}" for _, op, path in env.files.writes.failed[known:]), None)


def is_of_records(failed: str) -> bool:
    return failed.startswith("sync /") and failed.endswith((".log", ".appendtime"))


# ---- a failed sync within an append


@pytest.mark.parametrize("config", [{"flush.messages": "1"}, {"flush.ms": "0"}, SMALL])
def test_a_sync_within_an_append_leaves_a_mark(config: Mapping[str, str]) -> None:
    seen = 0
    for call in range(40):
        env = seeded_env(1)
        directory, log = durable_first(env, config)
        failed = failing(env, call, partial(append, log, SECOND), FaultKind.EIO)
        if failed is None:
            break
        if is_of_records(failed):
            seen += 1
            assert env.files.exists(MARK), failed
            directory.abandon()
            # With SMALL, the failed sync belongs to a roll, which precedes the write of the second
            # record. With the other settings, the failed sync follows this write.
            assert_all_is_durable(env, [FIRST] if config is SMALL else [FIRST, SECOND])
    assert seen == 2


@pytest.mark.parametrize("config", [{"flush.messages": "1"}, SMALL])
def test_an_append_that_finds_no_room_leaves_none(config: Mapping[str, str]) -> None:
    seen = 0
    for call in range(40):
        env = seeded_env(1)
        _, log = durable_first(env, config)
        failed = failing(env, call, partial(append, log, SECOND), FaultKind.NO_SPACE)
        if failed is None:
            break
        if not failed.startswith("sync"):
            seen += 1
            assert not env.files.exists(MARK), failed
    assert seen


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_stays_open_after_a_failed_append_of_its_marker(*, commit: bool) -> None:
    failures = []
    for call in range(40):
        env = seeded_env(1)
        _, log = durable_first(env, {"flush.messages": "1"})
        transact(log, producer_id=5)
        failed = failing(env, call, partial(end_transaction, log, commit=commit), FaultKind.EIO)
        if failed is None:
            break
        failures.append(failed)
        assert log.last_stable_offset == 1, failed
        assert log.producer_states().open_transactions == {1: 5}, failed
        assert offsets(log.records(isolation=IsolationLevel.READ_COMMITTED)) == [0], failed
    assert any(map(is_of_records, failures))


# ---- a failed sync in deferred work, while the partition is already offline


def offline_by_append(env: SeededEnv, log: Log) -> None:
    """Take the partition offline by an append without space, before any deferred work has run."""
    env.files.limit_bytes = 0
    with pytest.raises(StorageFailure, match="append"):
        append(log, THIRD)
    env.files.limit_bytes = None


@ENDS
@pytest.mark.parametrize("call", range(2))
@pytest.mark.parametrize("config", [{}, SMALL], ids=["flush", "roll"])
def test_a_sync_may_fail_after_an_append_found_no_room(
    config: Mapping[str, str], call: int, end: Callable[[LogDir], None]
) -> None:
    env, later = seeded_env(1), Later()
    directory, log = durable_first(env, config, later)
    append(log, SECOND)
    if config:
        log.roll()
    else:
        log.flush_later(lambda _: None)
    offline_by_append(env, log)

    failed = failing(env, call, later.settle, FaultKind.EIO)
    assert failed is not None
    assert is_of_records(failed)
    assert env.files.exists(MARK)
    assert log.failure is not None
    assert log.failure.operation == "append"

    with suppress(StorageFailure):
        end(directory)
    assert_all_is_durable(env, [FIRST, SECOND])


def test_a_full_disk_after_such_an_append_leaves_no_mark() -> None:
    seen = 0
    for call in range(40):
        env, later = seeded_env(1), Later()
        _, log = durable_first(env, SMALL, later)
        append(log, SECOND)
        log.roll()
        log.delete_records(1)
        offline_by_append(env, log)
        failed = failing(env, call, later.settle, FaultKind.NO_SPACE)
        if failed is None:
            break
        if not failed.startswith("sync"):
            seen += 1
            assert not env.files.exists(MARK), failed
    assert seen


def test_a_failed_sync_without_a_callback_leaves_a_mark() -> None:
    """The log is abandoned, which drops the sync's callback. Then the sync fails."""
    env, later = seeded_env(1), Later()
    _, log = durable_first(env, later=later)
    append(log, SECOND)
    log.flush_later(lambda _: None)
    jobs = [job for job, _ in later.waiting]
    offline_by_append(env, log)
    log.abandon()
    failing(env, 0, jobs[0], FaultKind.EIO)
    assert env.files.exists(MARK)


# ---- a mark that can't be written


def test_a_mark_that_the_disk_did_not_take_is_made_at_the_close() -> None:
    env = seeded_env(1)
    directory, log = durable_first(env)
    append(log, SECOND)
    env.files.writes.fault = Fault(env.files.calls, FaultKind.EIO, sticky=True)
    with pytest.raises(StorageFailure):
        log.flush()
    env.files.writes.fault = None
    assert not env.files.exists(MARK)
    with pytest.raises(StorageFailure):
        directory.close()
    assert env.files.exists(MARK)
    assert_all_is_durable(env, [FIRST, SECOND])


# ---- a failed sync at a start


def test_a_failed_sync_of_a_log_truncated_at_the_start_leaves_a_mark() -> None:
    """A start cuts off a killed process's partial append; the remaining bytes are unsynced."""
    for call in range(40):
        env = seeded_env(1)
        directory, log = durable_first(env)
        append(log, SECOND)
        directory.abandon()
        file = env.files.open(log.segments[-1].log_path, write=True)
        file.pwrite(bytes(40), file.size())
        file.close()
        failed = failing(env, call, partial(start, env), FaultKind.EIO)
        if failed is None:
            break
        assert_all_is_durable(env, [FIRST, SECOND])
    assert call > 3


def start(env: SeededEnv) -> None:
    directory = LogDir.open(ROOT, env=env, options=LogDirOptions(create=True))
    try:
        directory.log("t", 0)
    finally:
        directory.abandon()


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
@pytest.mark.parametrize("is_reopened", [False, True], ids=["opened", "reopened"])
def test_a_log_that_has_lost_its_only_segment_is_opened_again(
    kind: FaultKind, is_reopened: bool
) -> None:
    """A log that restarts at another offset removes its old segment before creating the new one."""
    for call in range(40):
        env = seeded_env(1)
        directory, log = durable_first(env)
        log.truncate_to(0)
        failed = failing(env, call, partial(log.truncator.begin_at, 100), kind)
        if not is_reopened:
            directory.abandon()
            directory = LogDir.open(ROOT, env=env, options=LogDirOptions(writable=True))
        log = directory.reopen("t", 0)
        assert log.log_end_offset in (0, 100)
        append(log, SECOND)
        directory.close()
        assert not env.files.exists(MARK)
        if failed is None:
            break
    assert 5 < call < 39


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
def test_a_truncation_after_a_failed_one_is_refused_like_any_change(kind: FaultKind) -> None:
    """The next truncation is refused even if the failed truncation has removed every segment."""
    for call in range(40):
        env = seeded_env(1)
        directory, log = durable_first(env)
        log.truncate_to(0)
        log.truncator.begin_at(100)
        append(log, SECOND)
        failed = failing(env, call, partial(cut, log, 50), kind)
        if failed is None:
            break
        for _ in range(2):
            with pytest.raises(StorageFailure, match="is offline"):
                log.truncate_to(50)
        directory.abandon()
    assert 5 < call < 39
