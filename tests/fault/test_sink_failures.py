"""A file-system call fails while a sink commits, that is, attaches staged segments to logs.

In each run, another call of the attach fails.
"""

from contextlib import suppress
from functools import cache

import pytest
from tests.core import thinned
from tests.fault.judge import judge_quickly, recover
from tests.fault.promise import DirPromise, LogPromise
from tests.fault.wide import WideWorkload
from tests.fault.workload import ROOT, WRITABLE
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep, seeded_env

from tidelog.directory import Directory
from tidelog.errors import StorageFailure
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.types import NewRecord, TopicPartition

RUNS = ((15, FaultKind.EIO), (40, FaultKind.NO_SPACE))
STEP_COUNT = 14


@cache
def undisturbed(seed: int) -> tuple[list[DirPromise], list[range]]:
    """Return the promise after each step, and the indexes of the changing calls of each attach."""
    workload = WideWorkload(seed)
    promises = []
    for step in workload.steps(STEP_COUNT):
        workload.take(step)
        promises.append(workload.story.latest)
    return promises, workload.attach_calls


def run_until_failure(seed: int, fault: Fault) -> tuple[WideWorkload, int | None]:
    """Run until a step fails; return the workload, and the index of the failed step or None."""
    workload = WideWorkload(seed, DamageFileSystem(fault=fault))
    for number, step in enumerate(workload.steps(STEP_COUNT)):
        try:
            workload.take(step)
        except StorageFailure:
            return workload, number
    return workload, None


@pytest.mark.parametrize(("seed", "kind"), RUNS)
def test_nth_call_of_an_attach_fails(seed: int, kind: FaultKind) -> None:
    promises, attaches = undisturbed(seed)
    assert sum(map(len, attaches)) > 80
    for call in thinned(call for calls in attaches for call in calls):
        workload, step = run_until_failure(seed, Fault(call, kind))
        assert step is not None, f"nobody was told: {workload.files.writes.failed}"
        try:
            judge_failure(workload, promises[step])
        except Exception as error:
            where = f"seed {seed}, call {call}: {workload.files.writes.failed}"
            raise AssertionError(f"{error!r}: {where}") from error


def judge_failure(workload: WideWorkload, intended: DirPromise) -> None:
    """Assert that each crash keeps the whole commit or nothing of it, and keeps later appends."""
    before, files = workload.story.latest, workload.files
    for keep in Keep:
        judge_quickly(files.crash(keep), before, intended)
    for state in files.crash_states(range(2), prefix=len(files.journal)):
        judge_quickly(state, before, intended)
    directory = workload.directory
    assert directory is not None
    written = {
        name for name in before.logs if goes_on(directory.log(name.topic, name.partition), files)
    }
    for name in before.logs:
        expect_readable(directory, name, before.logs[name], intended.logs[name])
    judge_after_appends(files, before, intended, written)
    with suppress(StorageFailure):
        directory.close()
    judge_after_appends(files, before, intended, written)


def goes_on(log: Log, files: DamageFileSystem) -> bool:
    """Append and flush; return False if the partition is offline.

    An offline partition must refuse the append without calling the disk.
    """
    calls = files.calls
    try:
        log.append([NewRecord(key=b"k", value=b"goes on")])
    except StorageFailure:
        assert log.failure is not None
        assert files.calls == calls, "a call was made after the failure"
        return False
    log.flush()
    return True


def expect_readable(
    directory: LogDir, name: TopicPartition, before: LogPromise, intended: LogPromise
) -> None:
    """Assert that all acknowledged records, and all or none of the commit's, are readable."""
    log = directory.log(name.topic, name.partition)
    found = [record.value for record in log.records() if record.value != b"goes on"]
    assert found in [
        [kept.value for kept in promise.within(promise.start, promise.end)]
        for promise in (before, intended)
    ]


def judge_after_appends(
    files: DamageFileSystem,
    before: DirPromise,
    intended: DirPromise,
    written: set[TopicPartition],
) -> None:
    """Assert that records flushed after the failure exist, and the commit is complete or absent."""
    directory = recover(reopened(files))
    outcomes = set()
    for name, promise in intended.logs.items():
        log = directory.log(name.topic, name.partition)
        values = [record.value for record in log.records()]
        assert (b"goes on" in values) == (name in written), f"{name}: {values}"
        added = [kept.value for kept in promise.within(before.logs[name].end, promise.end)]
        if added:
            there = [value in values for value in added]
            assert all(there) or not any(there), f"{name} has a part of the commit"
            outcomes.add(all(there))
    assert len(outcomes) <= 1, "half of a commit is visible"


def reopened(files: DamageFileSystem) -> DamageFileSystem:
    """Return the disk after a crash that keeps only synced changes."""
    return DamageFileSystem(files.crash(Keep.SYNCED).image)


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
def test_nth_call_of_a_load_fails(kind: FaultKind) -> None:
    """After the failure, the log has all rows or no row, and the error is typed."""
    rows = [NewRecord(key=b"%d" % number, value=bytes(300)) for number in range(12)]
    for call in range(200):
        env = seeded_env(1)
        directory = Directory(LogDir.open(ROOT, env=env, options=WRITABLE))
        directory.create_topic("t", partitions=2)
        directory.append("t", rows[:1])
        env.files.writes.fault = Fault(env.files.calls + call, kind)
        with suppress(StorageFailure):
            directory.load_once("t", rows, source="source")
        is_over = not env.files.writes.failed
        env.files.writes.fault = None
        directory.log_dir.abandon()
        with Directory(LogDir.open(ROOT, env=env, options=WRITABLE)) as again:
            again.load_once("t", rows, source="source")
            assert sum(1 for _ in again.records("t")) == 1 + len(rows)
        if is_over:
            break
    assert 20 < call < 199
