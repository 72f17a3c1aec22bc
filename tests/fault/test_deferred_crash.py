"""Power is lost while deferred work is pending: syncs, snapshots, maps and removals of files.

Flushed records and records below the recovery point exist after every crash. Of the later records,
whole batches up to some offset exist, as after any crash. test_log_crash.py explains how states are
drawn.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from tests.core import thinned
from tests.fault.harness import survey
from tests.fault.judge import judge, judge_quickly, recover
from tests.fault.promise import LogPromise
from tests.fault.workload import MAIN, ROOT, Workload
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep, reopen
from tests.faults.journal import SyncDir
from tests.faults.later import Later
from tests.worlds.repetition import rarely

from tidelog.errors import StorageFailure
from tidelog.storage.directory.log_dir import LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.storage.text_files import read_offset_checkpoint
from tidelog.types import NewRecord

SEEDS = (1, rarely(3), rarely(5))
STEP_COUNT = 60
STATES = 700


class DeferringWorkload(Workload):
    """A `Workload` whose log defers work to a queue. Additional steps run a part of the queue."""

    def __init__(self, seed: int, files: DamageFileSystem | None = None) -> None:
        super().__init__(seed, files)
        self.laters: list[Later] = []
        self.options = LogDirOptions(create=True, deferrals=self._make)

    def _make(self) -> Later:
        self.laters.append(Later())
        return self.laters[-1]

    def weighted(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the steps of `Workload`, and the steps that do deferred work."""
        return [*super().weighted(), (6, self.work), (4, self.flush_later)]

    def _after_roll(self, promise: LogPromise) -> LogPromise:
        """Return the promise after rolls: only records below the recovery point are durable."""
        durable_end = max(promise.durable_end, min(self.log.recovery_point, promise.end))
        return replace(promise, durable_end=durable_end)

    def work(self) -> None:
        """Run the next one to three jobs of the deferred work."""
        for later in self.laters:
            later.work(self.draw.randrange(1, 4))
        self._tell(self.promise)

    def flush_later(self) -> None:
        """Request a sync; the callback runs only after the sync."""
        ends = list[int]()
        end = self.log.flush_later(lambda failure: ends.append(-1 if failure else end))
        assert end == self.promise.end
        self._tell(self.promise)

    def delete_records(self) -> None:
        """Delete records; promise the new start only after the deferred work is done."""
        stable = self.promise.stable_end(self.promise.end)
        start = self.promise.start
        self.log.delete_records(self.draw.randrange(start, max(start, stable) + 1))
        self._settle_start()

    def apply_retention(self) -> None:
        """Apply retention; promise the new start only after the deferred work is done.

        Deferred work of earlier rolls may still be pending. In half of the cases, a checkpoint is
        written before this work is done.
        """
        self.log.apply_retention()
        if self.draw.random() < 0.5:
            assert self.directory is not None
            self.directory.checkpoint()
        self._settle_start()

    def _settle_start(self) -> None:
        for later in self.laters:
            later.settle()
        self._tell(replace(self.promise, start=self.log.log_start_offset))


@cache
def at_work(seed: int) -> DeferringWorkload:
    workload = DeferringWorkload(seed)
    workload.run(STEP_COUNT)
    return workload


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("seed", SEEDS)
def test_every_prefix_of_the_calls(seed: int, keep: Keep) -> None:
    done = at_work(seed)
    result = survey(done.files, done.story, done.files.prefixes(keep), judge_quickly)
    assert result.drawn == len(done.files.journal) + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_seeded_states(seed: int) -> None:
    done = at_work(seed)
    survey(done.files, done.story, done.files.crash_states(thinned(range(STATES))), judge_quickly)
    survey(
        done.files, done.story, done.files.crash_states(thinned(range(STATES, STATES + 40))), judge
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 131, 2))
def test_many_more_workloads(seed: int) -> None:
    done = DeferringWorkload(seed)
    done.run(120)
    survey(done.files, done.story, done.files.crash_states(range(4_000)), judge)


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
def test_any_call_of_later_work_fails(kind: FaultKind) -> None:
    """The partition goes offline, keeps its records for readers, and skips the remaining work."""
    for call in range(40):
        workload = DeferringWorkload(1)
        workload.take(workload.start)
        workload.take(workload.create_main)
        log = workload.log
        log.append([NewRecord(value=b"%d" % number) for number in range(5)])
        log.roll()
        log.append([NewRecord(value=b"next")])
        told = list[StorageFailure | None]()
        log.flush_later(told.append)
        workload.files.writes.fault = Fault(workload.files.calls + call, kind)
        later = workload.laters[0]
        later.settle()
        if log.failure is None:
            assert told == [None]
            break
        assert told == [log.failure]
        assert log.recovery_point < log.log_end_offset
        assert len(list(log.records())) == 6
        calls = workload.files.calls
        with pytest.raises(StorageFailure):
            log.flush_later(told.append)
        later.settle()
        assert workload.files.calls == calls
    else:
        raise AssertionError("more calls than anybody needs")
    assert call > 5


def test_a_checkpoint_while_deleted_segments_have_their_names_keeps_the_log_start() -> None:
    """Without the log start in the checkpoint, deleted records would be readable after a kill."""
    workload = DeferringWorkload(1)
    workload.take(workload.start)
    workload.take(workload.create_main)
    log, directory = workload.log, workload.directory
    assert directory is not None
    for number in range(60):
        log.append([NewRecord(value=b"%060d" % number)])
    log.delete_records(3)
    workload.laters[0].settle()
    directory.checkpoint()
    assert log.apply_retention()
    seen = set[int]()
    while not log.guard.is_settled:
        directory.checkpoint()
        seen.add(left_by_a_kill(workload).log_start_offset)
        assert workload.laters[0].work(), "nothing is left to do, and the log is not settled"
    directory.checkpoint()
    assert seen == {3, log.log_start_offset}
    assert left_by_a_kill(workload).log_start_offset == log.log_start_offset
    start = f"{ROOT}/log-start-offset-checkpoint"
    assert not read_offset_checkpoint(workload.files, start), "the first segment tells it by now"


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("is_later", [False, True])
def test_flushed_records_have_their_append_times_after_a_power_loss(
    is_later: bool, rolls: bool
) -> None:
    """The file of append times is created after the sync, so the directory needs another sync."""
    workload = DeferringWorkload(1) if is_later else Workload(1)
    workload.take(workload.start)
    workload.take(workload.create_main)
    log = workload.log
    times = [log.append([NewRecord(value=b"first")]).append_time_ms]
    if rolls:
        log.roll()
        times.append(log.append([NewRecord(value=b"next")]).append_time_ms)
    told = list[StorageFailure | None]()
    log.flush_later(told.append)
    if isinstance(workload, DeferringWorkload):
        workload.laters[0].settle()
    assert told == [None]

    left = recover(reopen(workload.files.crash(Keep.SYNCED))).log(MAIN.topic, MAIN.partition)
    assert [left.append_time_of(offset) for offset in range(left.log_end_offset)] == times


def test_names_are_synced_once_for_a_segment() -> None:
    workload = Workload(1)
    workload.take(workload.start)
    workload.take(workload.create_main)
    log, counts = workload.log, list[int]()
    for number in range(3):
        workload.env.clock.advance(5)  # so that each append adds a row of append times
        begun = len(workload.files.journal)
        log.append([NewRecord(value=b"%d" % number)])
        log.flush()
        made = workload.files.journal[begun:]
        counts.append(sum(isinstance(entry.change, SyncDir) for entry in made))
    # Only the first flush syncs the directory: once for each of two new files (epochs, append
    # times).
    assert counts == [2, 0, 0]


def left_by_a_kill(workload: Workload) -> Log:
    """Return the partition as the next process opens it after a kill."""
    left = reopen(workload.files.crash(Keep.EVERYTHING))
    return recover(left).log(MAIN.topic, MAIN.partition)


def test_a_reopened_partition_has_its_durable_records_and_accepts_others() -> None:
    workload = DeferringWorkload(1)
    workload.take(workload.start)
    workload.take(workload.create_main)
    log = workload.log
    log.append([NewRecord(value=b"kept")])
    log.flush()
    log.append([NewRecord(value=b"not synced")])
    log.flush_later(lambda _: None)
    workload.files.writes.fault = Fault(workload.files.calls, FaultKind.EIO)
    workload.laters[0].settle()
    assert log.failure is not None
    workload.files.writes.fault = None
    assert workload.directory is not None
    again = workload.directory.reopen(MAIN.topic, MAIN.partition)
    assert again.failure is None
    assert [record.value for record in again.records()][:1] == [b"kept"]
    end = again.append([NewRecord(value=b"after")]).base_offset
    again.flush()
    assert again.recovery_point == end + 1
    workload.directory.close()


def test_reopening_fails_without_room_and_leaves_no_files() -> None:
    workload = DeferringWorkload(1)
    workload.take(workload.start)
    workload.take(workload.create_main)
    log = workload.log
    log.append([NewRecord(value=b"kept" * 50)])
    log.flush_later(lambda _: None)
    workload.files.writes.fault = Fault(workload.files.calls, FaultKind.EIO)
    workload.laters[0].settle()
    workload.files.writes.fault = None
    assert workload.directory is not None
    workload.files.limit_bytes = 0
    for _ in range(2):
        with pytest.raises(StorageFailure):
            workload.directory.reopen(MAIN.topic, MAIN.partition)
        names = [entry.name for entry in workload.files.list_dir(log.context.directory)]
        assert not [name for name in names if name.endswith(".tmp")]
        assert len(list(log.records())) == 1
    workload.files.limit_bytes = None
    assert workload.directory.reopen(MAIN.topic, MAIN.partition).log_end_offset == 1
