"""After a power loss or failing call during an attach, all staged segments are visible, or none."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.core import one_in, thinned
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep, reopen, seeded_env
from tests.faults.seeded import SeededEnv
from tests.worlds.directories.staged import (
    ROOT,
    T0,
    TOPIC,
    WRITABLE,
    expected,
    make_directory,
    stage,
    staged_names,
    values,
)

from tidelog.errors import StorageFailure
from tidelog.storage.directory.attach import attach
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.staging import StagedSegment


def prepared(env: SeededEnv) -> list[StagedSegment]:
    make_directory(env)
    env.clock.advance(1_000)
    return [*stage(env, 0, "a", 20), *stage(env, 1, "b", 9)]


def judge(files: DamageFileSystem, *, is_done: bool = False) -> bool:
    """Check, before and after recovery, that both partitions have all staged segments, or none.

    Returns whether both partitions have the segments after recovery, as they must if `is_done`.
    """
    env = seeded_env(99, files=files)
    env.clock.set(T0 * 2)
    found = []
    for _ in range(2):  # first a reader before recovery, then one after it
        contents = [values(env, 0), values(env, 1)]
        assert contents in ([[b"0"], [b"1"]], [expected(0, "a", 20), expected(1, "b", 9)])
        found.append(len(contents[0]) > 1)
        with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
            for number in range(2):
                check_log(log_dir, number)
    assert staged_names(env) == [] or not found[1]
    assert found[1] or not is_done
    return found[1]


def check_log(log_dir: LogDir, number: int) -> None:
    """Check that a log has all its offsets, has no append times of other logs, and can roll."""
    log = log_dir.log(TOPIC, number)
    offsets = [record.offset for record in log.records()]
    assert offsets == list(range(log.log_end_offset))
    for offset in offsets[1:]:
        assert log.append_time_of(offset) in (None, ATTACHED_MS)
    assert log.roll() or not log.active.size_bytes


CALLS_MAX = 10_000
ATTACHED_MS = seeded_env(1).clock.now_ms() + 1_000


@pytest.mark.parametrize("keep", list(Keep))
def test_power_loss_at_every_call(keep: Keep) -> None:
    env = seeded_env(1)
    staged = prepared(env)
    env.files.settle()
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        attach(log_dir, staged)
        moment = len(env.files.journal)
    outcomes = [judge(reopen(state)) for state in env.files.prefixes(keep)]
    assert outcomes == sorted(outcomes)  # once segments are visible, they stay visible
    assert not outcomes[0]
    assert all(outcomes[moment:])


def test_power_loss_in_seeded_ways() -> None:
    env = seeded_env(1)
    staged = prepared(env)
    env.files.settle()
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        attach(log_dir, staged)
        moment = len(env.files.journal)
    outcomes = set()
    for state in env.files.crash_states(thinned(range(400))):
        try:
            outcomes.add(judge(reopen(state), is_done=state.prefix >= moment))
        except Exception as error:
            raise AssertionError(f"{error!r}\n{env.files.explain(state)}") from error
    assert outcomes == {True, False}


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
def test_every_call_fails_once(kind: FaultKind) -> None:
    call = 0
    failed = True
    tried_again = list[int]()
    while failed:
        env = seeded_env(1)
        staged = prepared(env)
        image = env.files.crash(Keep.EVERYTHING)
        env = seeded_env(1, files=reopen(image, fault=Fault(call, kind)))
        env.clock.advance(1_000)
        failed = attach_with_fault(env, staged, call, tried_again)
        judge(reopen(env.files.crash(Keep.EVERYTHING)), is_done=not failed)
        judge(reopen(env.files.crash(Keep.SYNCED)), is_done=not failed)
        call += one_in()
        assert call < CALLS_MAX, "every attach fails"
    assert call > 50
    # After a failure before the commit record exists, only this attach fails, and a second one
    # succeeds.
    assert len(tried_again) > 10 // one_in()


def attach_with_fault(
    env: SeededEnv, staged: Sequence[StagedSegment], call: int, tried_again: list[int]
) -> bool:
    """Open the directory and attach the segments; return whether the opening or the attach failed.

    If no partition went offline, attach the same segments again at once.
    """
    log_dir = None
    try:
        log_dir = LogDir.open(ROOT, env=env, options=WRITABLE)
        attach(log_dir, staged)
    except StorageFailure:
        if log_dir is not None and all(log_dir.log(TOPIC, n).failure is None for n in range(2)):
            attach(log_dir, [*stage(env, 0, "a", 20), *stage(env, 1, "b", 9)])
            tried_again.append(call)
        return True
    finally:
        if log_dir is not None:
            with suppress(StorageFailure):
                log_dir.close()
    return False
