"""Each call that changes the disk fails once: the partition goes offline and stays readable."""

from contextlib import suppress
from functools import cache

import pytest
from tests.core import thinned
from tests.fault.judge import judge_directory, judge_quickly, recover
from tests.fault.promise import DirPromise, LogPromise
from tests.fault.workload import MAIN, ROOT, WRITABLE, Workload
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep, reopen
from tests.faults.refused import logs_of
from tests.worlds.repetition import rarely

from tidelog.errors import Closed, StorageFailure
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.storage.segment.deletion_history import DELETION_HISTORY_FILE
from tidelog.types import NewRecord

SEED = 11
STEP_COUNT = 30
RUNS = (
    (11, FaultKind.EIO),
    rarely(13, FaultKind.EIO),
    (202, FaultKind.NO_SPACE),
)


@cache
def undisturbed(seed: int) -> tuple[list[DirPromise], int]:
    """Return the promise after each step of a run without failures, and the number of calls."""
    workload = Workload(seed)
    promises = []
    for step in workload.steps(STEP_COUNT):
        workload.take(step)
        promises.append(workload.story.latest)
    return promises, workload.files.calls


def run_until_failure(seed: int, fault: Fault) -> tuple[Workload, int | None]:
    """Run until a step fails; return the workload, and the index of the failed step or None."""
    workload = Workload(seed, DamageFileSystem(fault=fault))
    for number, step in enumerate(workload.steps(STEP_COUNT)):
        try:
            workload.take(step)
        except StorageFailure:
            return workload, number
    return workload, None


def main_log(workload: Workload) -> Log | None:
    """Return the main partition's log after the failure; None if it can't be opened."""
    if workload.directory is None or MAIN not in workload.story.latest.logs:
        return None
    try:
        return workload.directory.log(MAIN.topic, 0)
    except Closed:  # the close failed, and the log had never been opened
        return None


def expect_offline(workload: Workload, log: Log) -> None:
    """Assert that the log refuses each change, and makes no call to the disk for it."""
    calls = workload.files.calls
    for change in (
        lambda: log.append([NewRecord(value=b"late")]),
        log.flush,
        log.roll,
        lambda: log.append([NewRecord(value=b"later")]),
    ):
        with pytest.raises(StorageFailure):
            change()
    assert workload.files.calls == calls, "a call was made after the failure"


def expect_readable(workload: Workload, log: Log, intended: LogPromise) -> None:
    """Assert that all acknowledged records are readable.

    If a truncation failed halfway, the records that it had to drop may be gone.
    """
    before = workload.promise
    found = [(record.offset, record.value) for record in log.records()]
    start, end = log.log_start_offset, log.log_end_offset
    assert min(before.end, intended.end) <= end <= before.end, f"{end}, not {before.end}, is shown"
    versions = [before, intended] if intended.end < before.end else [before]
    assert found in [
        [(kept.offset, kept.value) for kept in version.within(start, end)] for version in versions
    ]


def lost_only_history(workload: Workload) -> bool:
    """Whether only writes of `deletion-history` failed, which are logged and harm nothing."""
    return all(DELETION_HISTORY_FILE in path for _, _, path in workload.files.writes.failed)


def check_call(seed: int, call: int, kind: FaultKind) -> None:
    """Let one call fail; assert that the failure is reported, and that the promises hold."""
    promises, _ = undisturbed(seed)
    workload, failed_step = run_until_failure(seed, Fault(call, kind))
    where = f"workload seed {seed}, call {call}: {workload.files.writes.failed}"
    if failed_step is None and lost_only_history(workload):
        return
    assert failed_step is not None, f"nobody was told: {where}"
    try:
        judge_failure(workload, promises[failed_step])
    except Exception as error:
        raise AssertionError(f"{error!r}: {where}, step {failed_step}") from error


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize(("seed", "kind"), RUNS)
def test_nth_call_fails(seed: int, kind: FaultKind, part: int) -> None:
    for call in thinned(range(part, undisturbed(seed)[1], 3)):
        check_call(seed, call, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
@pytest.mark.parametrize("seed", range(200, 220))
def test_nth_call_fails_in_many_workloads(seed: int, kind: FaultKind) -> None:
    for call in range(undisturbed(seed)[1]):
        check_call(seed, call, kind)


def judge_failure(workload: Workload, intended: DirPromise) -> None:
    """Check the promises in the running process, and after a crash of the machine."""
    log = main_log(workload)
    if log is not None and log.failure is not None:
        expect_offline(workload, log)
        expect_readable(workload, log, intended.logs[MAIN])
    before = workload.story.latest
    files = workload.files
    for keep in Keep:
        judge_quickly(files.crash(keep), before, intended)
    for state in files.crash_states(range(3), prefix=len(files.journal)):
        judge_quickly(state, before, intended)


@pytest.mark.parametrize(("seed", "kind"), RUNS)
def test_a_start_on_the_same_machine_trusts_only_the_disk(seed: int, kind: FaultKind) -> None:
    """Records that the next process finds and flushes survive a power loss."""
    promises, calls = undisturbed(seed)
    for call in thinned(range(0, calls, 2)):
        workload, failed_step = run_until_failure(seed, Fault(call, kind))
        if failed_step is None and lost_only_history(workload):
            continue
        assert failed_step is not None
        try:
            judge_restart(workload, promises[failed_step])
        except Exception as error:
            raise AssertionError(f"{error!r}: {workload.files.writes.failed}") from error


def judge_restart(workload: Workload, intended: DirPromise) -> None:
    """Assert that records found at a restart, and then flushed, survive a power loss."""
    before, files = workload.story.latest, workload.files
    if workload.directory is not None:
        workload.directory.abandon()
    directory = recover(files)
    judge_directory(directory, before, intended)
    directory.flush()
    durable = {log.topic_partition: log.log_end_offset for log in logs_of(directory)}
    seeded = files.crash_states(range(3), prefix=len(files.journal))
    for state in (files.crash(Keep.SYNCED), *seeded):
        again = recover(reopen(state))
        judge_directory(again, before, intended)
        assert durable == {log.topic_partition: log.log_end_offset for log in logs_of(again)}


def test_short_writes_are_finished() -> None:
    promises, calls = undisturbed(SEED)
    for call in thinned(range(0, calls, 3)):
        workload, failed_step = run_until_failure(
            SEED, Fault(call, FaultKind.SHORT_WRITE, sticky=True)
        )
        assert failed_step is None
        assert workload.story.latest == promises[-1]
        judge_quickly(workload.files.crash(Keep.SYNCED), promises[-1], promises[-1])


@pytest.mark.parametrize("limit_bytes", [0, 300, 600, 1000, 1500, 2000])
def test_appends_fail_on_a_full_disk_and_continue_with_free_space(limit_bytes: int) -> None:
    files = DamageFileSystem(limit_bytes=limit_bytes)
    workload = Workload(SEED, files)
    promises, _ = undisturbed(SEED)
    failed_step = None
    for number, step in enumerate(workload.steps(STEP_COUNT)):
        try:
            workload.take(step)
        except StorageFailure:
            failed_step = number
            break
    assert failed_step is not None
    judge_failure(workload, promises[failed_step])
    files.limit_bytes = None
    if workload.directory is not None:
        with suppress(StorageFailure):  # `close` reports the failure again, and releases the lock
            workload.directory.close()
    with LogDir.open(ROOT, env=workload.env, options=WRITABLE) as directory:
        directory.create_topic("after", partitions=1, config={})
        log = directory.log("after", 0)
        log.append([NewRecord(value=b"goes on")])
        log.flush()
        assert [record.value for record in log.records()] == [b"goes on"]
