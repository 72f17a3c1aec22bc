"""Power is lost while syncs, snapshots, maps and unlinking of rolls are still to be done.

What was flushed, and what lies below the recovery point, is there after every crash; the rest is
whole up to some batch's end, as after any crash. See test_log_crash.py for how states are drawn.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from tests.fault.harness import survey
from tests.fault.judge import judge, judge_quickly
from tests.fault.promise import LogPromise
from tests.fault.workload import MAIN, Workload
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep
from tests.faults.later import Later

from tidelog.errors import StorageFailure
from tidelog.storage.log_dir import LogDirOptions
from tidelog.types import NewRecord

SEEDS = (1, 3)
STEP_COUNT = 60
STATES = 700


class DeferringWorkload(Workload):
    """As `Workload`, with a log that leaves work for later: steps of their own do some of it."""

    def __init__(self, seed: int, files: DamageFileSystem | None = None) -> None:
        super().__init__(seed, files)
        self.laters: list[Later] = []
        self.options = LogDirOptions(create=True, deferrals=self._make)

    def _make(self) -> Later:
        self.laters.append(Later())
        return self.laters[-1]

    def weighted(self) -> list[tuple[int, Callable[[], None]]]:
        """What every workload does, and what is done later."""
        return [*super().weighted(), (6, self.work), (4, self.flush_later)]

    def _after_roll(self, promise: LogPromise) -> LogPromise:
        """Durable is only what the log itself says: a roll promises nothing."""
        durable_end = max(promise.durable_end, min(self.log.recovery_point, promise.end))
        return replace(promise, durable_end=durable_end)

    def work(self) -> None:
        """Do some of what waits."""
        for later in self.laters:
            later.work(self.draw.randrange(1, 4))
        self._tell(self.promise)

    def flush_later(self) -> None:
        """Ask for a sync; whoever waits for it is told only when it was done."""
        ends = list[int]()
        end = self.log.flush_later(lambda failure: ends.append(-1 if failure else end))
        assert end == self.promise.end
        self._tell(self.promise)

    def delete_records(self) -> None:
        """Its promise holds once the work is done."""
        stable = self.promise.stable_end(self.promise.end)
        start = self.promise.start
        self.log.delete_records(self.draw.randrange(start, max(start, stable) + 1))
        self._settle_start()

    def apply_retention(self) -> None:
        """Likewise; behind rolls that wait still."""
        self.log.apply_retention()
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
    survey(done.files, done.story, done.files.crash_states(range(STATES)), judge_quickly)
    survey(done.files, done.story, done.files.crash_states(range(STATES, STATES + 40)), judge)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 131, 2))
def test_many_more_workloads(seed: int) -> None:
    done = DeferringWorkload(seed)
    done.run(120)
    survey(done.files, done.story, done.files.crash_states(range(4_000)), judge)


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
def test_any_call_of_later_work_fails(kind: FaultKind) -> None:
    """The partition is offline, keeps what it has for readers, and what follows is not tried."""
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


def test_reopened_partition_has_what_was_durable_and_goes_on() -> None:
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


def test_reopening_fails_where_there_is_no_room_and_leaves_nothing_behind() -> None:
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
