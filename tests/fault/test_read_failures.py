"""If a reading call fails once, the error is typed, a retry succeeds, and no record is lost."""

from dataclasses import dataclass
from functools import cache

import pytest
from tests.core import one_in, thinned
from tests.fault.judge import judge_quickly, recover
from tests.fault.promise import DirPromise
from tests.fault.wide import WideWorkload
from tests.fault.workload import ROOT
from tests.faults import CrashState, DamageFileSystem, Fault, FaultKind, Keep, reopen, seeded_env
from tests.faults.refused import logs_of

from tidelog import scan
from tidelog.errors import StorageFailure
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log_reader import LogView
from tidelog.types import ClockName, IsolationLevel, TopicPartition

SEED = 15
STEP_COUNT = 14


@dataclass(frozen=True, slots=True)
class Rest:
    """A disk without unsynced changes, and the promises before and after its last step."""

    state: CrashState
    before: DirPromise
    after: DirPromise

    def files(self, failing: int | None = None) -> DamageFileSystem:
        """Return the disk; if `failing` is given, the reading call with this index fails."""
        fault = None if failing is None else Fault(failing, FaultKind.EIO)
        return DamageFileSystem(self.state.image, read_fault=fault)


@cache
def at_rest(*, clean: bool) -> Rest:
    """Return the disk after a clean stop if `clean`, otherwise after a kill halfway."""
    workload = WideWorkload(SEED)
    workload.run(STEP_COUNT)
    moment = len(workload.files.journal) * (2 if clean else 1) // 2
    return Rest(workload.files.crash(Keep.EVERYTHING, moment), *workload.story.around(moment))


def open_for_reading(files: DamageFileSystem) -> LogDir:
    return LogDir.open(ROOT, env=seeded_env(1, files=files))


def answers(directory: LogDir) -> list[object]:
    """Return the results of all queries that a reader supports."""
    found: list[object] = []
    for topic in sorted(directory.topics()):
        for name in directory.partitions(topic):
            found += partition_answers(directory.reader(topic, name.partition))
    return found


def partition_answers(reader: LogView) -> list[object]:
    records = list(reader.records())
    return [
        [(record.offset, record.value) for record in records],
        [r.offset for r in reader.records(isolation=IsolationLevel.READ_COMMITTED)],
        [reader.append_time_of(record.offset) for record in records],
        [reader.offset_for_time(r.timestamp, clock=c) for r in records[::3] for c in ClockName]
        if all(record.timestamp >= 0 for record in records[::3])
        else [],
        reader.max_timestamp(),
        reader.last_stable_offset,
        reader.size_bytes(),
    ]


@pytest.mark.parametrize("clean", [True, False])
def test_reader(clean: bool) -> None:
    rest = at_rest(clean=clean)
    files = rest.files()
    wanted = answers(open_for_reading(files))
    failures = 0
    for call in thinned(range(files.reads.calls)):
        files = rest.files(call)
        try:
            directory = open_for_reading(files)
        except StorageFailure:
            failures += 1
            directory = open_for_reading(files)
        try:
            assert answers(directory) == wanted, f"call {call}: {files.reads.failed}"
        except StorageFailure:
            failures += 1
        assert answers(directory) == wanted, f"after call {call}: {files.reads.failed}"
        assert not files.calls, "a reader has changed something"
    assert failures > 100 // one_in()


def scanned(files: DamageFileSystem) -> list[object]:
    """Return the rows of a scan of the whole directory, with append times."""
    env = seeded_env(1, files=files)
    plan = scan.plan(ROOT, env=env)
    options = scan.ReadOptions(env=env)
    return list(
        scan.to_table(plan, ("offset", "value", "appendTimestamp"), options=options).to_pylist()
    )


@pytest.mark.parametrize("clean", [True, False])
def test_scan(clean: bool) -> None:
    rest = at_rest(clean=clean)
    files = rest.files()
    wanted = scanned(files)
    failures = 0
    for call in thinned(range(files.reads.calls)):
        files = rest.files(call)
        try:
            assert scanned(files) == wanted, f"call {call}: {files.reads.failed}"
        except StorageFailure:
            failures += 1
        assert scanned(files) == wanted, f"after call {call}: {files.reads.failed}"
    assert failures > 20 // one_in()


@pytest.mark.parametrize("clean", [True, False])
def test_a_failed_read_of_an_opening_for_writing_cuts_off_no_record(clean: bool) -> None:
    """A read error during recovery is never treated as damage, so nothing is cut."""
    rest = at_rest(clean=clean)
    files = rest.files()
    wanted = ends(files)
    failures = 0
    for call in thinned(range(files.reads.calls)):
        files = rest.files(call)
        try:
            directory = recover(files)
        except StorageFailure:
            failures += 1
        else:
            directory.abandon()
        where = f"call {call}: {files.reads.failed}"
        try:
            judge_quickly(files.crash(Keep.SYNCED), rest.before, rest.after)
        except Exception as error:
            raise AssertionError(f"{error!r}: {where}") from error
        # The disk is intact, so recovery keeps as much as without the failing call.
        assert ends(reopen(files.crash(Keep.EVERYTHING))) == wanted, where
    assert failures > 50


def ends(files: DamageFileSystem) -> dict[TopicPartition, int]:
    """Return each partition's end after recovery."""
    return {log.topic_partition: log.log_end_offset for log in logs_of(recover(files))}


@cache
def undisturbed() -> tuple[list[DirPromise], int]:
    workload = WideWorkload(SEED)
    promises = []
    for step in workload.steps(STEP_COUNT):
        workload.take(step)
        promises.append(workload.story.latest)
    return promises, workload.files.reads.calls


@pytest.mark.parametrize("part", range(2))
def test_a_failed_read_during_a_change_loses_no_record(part: int) -> None:
    """If a read fails during a change, the partition goes offline, or the change is refused."""
    promises, calls = undisturbed()
    for call in thinned(range(part, calls, 4)):
        files = DamageFileSystem(read_fault=Fault(call, FaultKind.EIO))
        workload = WideWorkload(SEED, files)
        step = last_step(workload)
        for keep in Keep:
            try:
                judge_quickly(files.crash(keep), workload.story.latest, promises[step])
            except Exception as error:
                where = f"call {call}, step {step}: {files.reads.failed}"
                raise AssertionError(f"{error!r}: {where}") from error


def last_step(workload: WideWorkload) -> int:
    """Run the workload until a step fails; return the index of that step, or of the last step."""
    steps = workload.steps(STEP_COUNT)
    for number, step in enumerate(steps):
        try:
            workload.take(step)
        except StorageFailure:
            return number
    return len(steps) - 1
