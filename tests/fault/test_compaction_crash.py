"""At each call that compaction makes to the disk, the call fails or power is lost."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
from tests.core import one_in, thinned
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep, SeededEnv, reopen, seeded_env
from tests.worlds.directories.plain_cleaner import PlainWorker

from tidelog.env import Env
from tidelog.errors import StorageFailure, TidelogError
from tidelog.record.builder import build_batch
from tidelog.storage import commits
from tidelog.storage.commits import Commit
from tidelog.storage.compaction.cleaner import Worker, clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.attach import ensure_finished
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.log.segment_swaps import SegmentSwaps, Swap
from tidelog.types import IsolationLevel, NewRecord, TopicPartition

ROOT = "/data"
NAME = TopicPartition("t", 0)
DIRECTORY = f"{ROOT}/t-0"
COMMITTED = IsolationLevel.READ_COMMITTED
ASKED = CleanerOptions(is_asked=True)
MakeWorker = Callable[[Env], Worker]
# The real cleaner, and a short cleaner in plain Python.
WORKERS = [
    pytest.param(InProcess, id="real"),
    pytest.param(PlainWorker, id="plain", marks=pytest.mark.slow),
]
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "300",
    "index.interval.bytes": "0",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0",
}


def make(env: SeededEnv) -> None:
    """Create nine segments, with an aborted transaction; a cleaning merges eight into two."""
    dice = random.Random(3)
    with LogDir.open(ROOT, env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic("t", config=CONFIG)
        log = log_dir.log("t", 0)
        for number in range(30):
            env.clock.advance(10)
            key, value = b"k%d" % dice.randrange(4), b"%d" % number
            record = NewRecord(key=key, value=value if number % 5 else None, timestamp=number)
            log.append([record])
            if number == 4:
                data = build_batch(
                    [NewRecord(key=b"k0", value=b"aborted", timestamp=1)],
                    producer_id=9,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
                log.append_batches(data, AppendTerms(owned=True))
                log.end_transaction(
                    producer_id=9, producer_epoch=0, coordinator_epoch=0, commit=False
                )
        log_dir.alter_config("t", {"internal.segment.bytes": "1300"})


@dataclass(frozen=True)
class Seen:
    """Records that a reader of committed records sees, and the resulting table."""

    records: tuple[tuple[int, bytes | None, bytes | None], ...]

    @property
    def table(self) -> dict[bytes | None, bytes]:
        found = {key: value for _, key, value in self.records}
        return {key: value for key, value in found.items() if value is not None}


def seen(env: SeededEnv) -> Seen:
    with LogDir.open(ROOT, env=env) as log_dir:
        log = log_dir.reader("t", 0)
        return Seen(tuple((r.offset, r.key, r.value) for r in log.records(isolation=COMMITTED)))


@contextmanager
def writable_dir(env: SeededEnv) -> Iterator[LogDir]:
    log_dir = LogDir.open(ROOT, env=env, options=LogDirOptions(writable=True))
    try:
        yield log_dir
    finally:
        log_dir.close()


def clean(env: SeededEnv, log_dir: LogDir, make_worker: MakeWorker = PlainWorker) -> None:
    clean_partition(log_dir, NAME, make_worker(env), ASKED)


def judge(files: DamageFileSystem, env: SeededEnv, before: Seen, *, goes_on: bool) -> int:
    """Assert that no record is lost; with `goes_on`, also append a record and clean the log.

    Returns the number of records after recovery.
    """
    again = seeded_env(99, files=files)
    again.clock.set(env.clock.now_ms())
    check(seen(again), before)  # read without a lock, before any repair
    with writable_dir(again) as log_dir:
        log = log_dir.log("t", 0)
        assert log.log_end_offset == 32
        found = seen(again)
        check(found, before)
        left = len(found.records)
        names = [entry.name for entry in again.files.list_dir(DIRECTORY)]
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        if not goes_on:
            return left
        log.append([NewRecord(key=b"new", value=b"new", timestamp=99)])
        log.flush()
        clean(again, log_dir)
        after = seen(again)
        assert after.table == {**before.table, b"new": b"new"}
        keys = [key for offset, key, _ in after.records if offset < log.active.base_offset]
        assert len(keys) == len(set(keys))
    return left


def check(found: Seen, before: Seen) -> None:
    assert set(found.records) <= set(before.records)
    assert list(found.records) == sorted(found.records)
    assert found.table == before.table


def done_once(make_worker: MakeWorker = PlainWorker) -> tuple[SeededEnv, Seen]:
    """Clean a log; return the disk (its journal has the cleaning's calls) and the old content."""
    env = seeded_env(1)
    make(env)
    before = seen(env)
    with writable_dir(env) as log_dir:
        log_dir.log("t", 0).flush()
        env.files.settle()
        clean(env, log_dir, make_worker)
        log_dir.abandon()
    return env, before


@pytest.mark.parametrize("make_worker", WORKERS)
@pytest.mark.parametrize("keep", list(Keep))
def test_power_loss_at_every_call(keep: Keep, make_worker: MakeWorker) -> None:
    """The calls are all writes, renames and syncs of the cleaning, the swap and the checkpoint."""
    env, before = done_once(make_worker)
    left = [
        judge(reopen(state), env, before, goes_on=not number % 8)
        for number, state in enumerate(env.files.prefixes(keep))
    ]
    assert left == sorted(left, reverse=True)
    assert left[0] == len(before.records)
    assert left[-1] < left[0] // 2


@pytest.mark.parametrize("make_worker", WORKERS)
def test_power_loss_in_seeded_ways(make_worker: MakeWorker) -> None:
    env, before = done_once(make_worker)
    states = env.files.crash_states(range(60))
    left = {judge(reopen(state), env, before, goes_on=False) for state in states}
    assert len(left) >= 3  # after the swap of no group, of one group, of both


class PowerLoss(BaseException):
    """Stops the run at a power loss: no cleanup code may run after it."""


def test_a_reopened_partition_has_no_old_swap_that_a_later_start_would_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk fails after a swap is published. Later, power is lost before the next swap."""
    env = seeded_env(1)
    make(env)
    before = seen(env)

    def fail(swaps: SegmentSwaps, swap: Swap, _: Commit, operation: str) -> None:
        reason = f"no disk for {len(swap.old)} segments"
        swaps.go_offline(operation, reason)
        raise StorageFailure(DIRECTORY, operation, reason)

    def lose_power(*_: object) -> None:
        raise PowerLoss

    with writable_dir(env) as log_dir:
        log_dir.log("t", 0).flush()
        with monkeypatch.context() as patched:
            patched.setattr(SegmentSwaps, "show", fail)
            with pytest.raises(StorageFailure, match="no disk"):
                clean(env, log_dir)
        with pytest.raises(StorageFailure, match="unfinished; reopen"):
            ensure_finished(log_dir)
        log_dir.reopen("t", 0)
        ensure_finished(log_dir)
        check(seen(env), before)
        with monkeypatch.context() as patched:
            patched.setattr(commits, "publish", lose_power)
            with pytest.raises(PowerLoss):
                clean(env, log_dir)
        state = env.files.crash(Keep.EVERYTHING)
        log_dir.abandon()
    judge(reopen(state), env, before, goes_on=True)


@pytest.mark.parametrize("make_worker", WORKERS)
@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_call_fails_once(step: int, kind: FaultKind, make_worker: MakeWorker) -> None:
    """The failure is reported, no record is lost, and a log that stays online can be cleaned."""
    env = seeded_env(1)
    make(env)
    before = seen(env)
    env.files.settle()
    whole = env.files.crash(Keep.SYNCED)
    told = went_on = 0
    for call in thinned(range(40, 320, step)):
        again = seeded_env(1, files=reopen(whole, fault=Fault(call, kind)))
        again.clock.set(env.clock.now_ms())
        with suppress(TidelogError), writable_dir(again) as log_dir:
            log = log_dir.log("t", 0)
            try:
                clean(again, log_dir, make_worker)
            except StorageFailure:
                told += 1
                if log.failure is None:
                    went_on += 1
                    names = [entry.name for entry in again.files.list_dir(DIRECTORY)]
                    assert not [n for n in names if n.endswith((".cleaned", ".swap"))], call
                    clean(again, log_dir, make_worker)
                    check(seen(again), before)
        judge(reopen(again.files.crash(Keep.EVERYTHING)), env, before, goes_on=not call % 3)
    assert told > 20 // one_in()
    assert went_on > 6 // one_in()
