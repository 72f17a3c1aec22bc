"""Power is lost at each recorded call of a workload, and in 1,500 crashes drawn by seeds.

A sweep draws 3,000 crashes. Each workload runs once; each crash gives a possible state of the disk.
A failure is reproducible: it names the workload's seed, the crash's seed and the fate
of each unsynced change.
"""

from functools import cache
from itertools import chain

import pytest
from tests.core import one_in, thinned
from tests.fault.harness import CrashFound, survey
from tests.fault.judge import judge, judge_quickly, recover
from tests.fault.wide import WideWorkload
from tests.fault.workload import Workload
from tests.faults import CrashState, DamageFileSystem, Keep, reopen
from tests.faults.journal import Change, Sync, SyncDir
from tests.faults.refused import logs_of
from tests.worlds.repetition import rarely

STEP_COUNT = 60
# Seeds of the workloads; only a sweep uses the second seed. Each workload contributes a share of
# the drawn states. The crash after each prefix of the workload's calls is checked, too.
SEEDS = (1, 3)
WIDE_SEEDS = (5, 40)
WIDE_STEP_COUNT = 14
STATES_PER_WORKLOAD = 1_000
STATES_PER_WIDE_WORKLOAD = 500
STATES_IN_FULL = 200


@cache
def at_work(seed: int, step_count: int = STEP_COUNT) -> Workload:
    workload = Workload(seed)
    workload.run(step_count)
    return workload


@cache
def widely_at_work(seed: int) -> WideWorkload:
    workload = WideWorkload(seed)
    workload.run(WIDE_STEP_COUNT)
    return workload


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("seed", [SEEDS[0], rarely(SEEDS[1])])
def test_every_prefix_of_the_calls(seed: int, keep: Keep) -> None:
    done = at_work(seed)
    result = survey(done.files, done.story, thinned(done.files.prefixes(keep)), judge)
    assert result.drawn == len(done.files.journal) // one_in() + 1


@pytest.mark.parametrize("seed", [SEEDS[0], rarely(SEEDS[1])])
def test_seeded_states(seed: int) -> None:
    done = at_work(seed)
    states = done.files.crash_states(range(STATES_PER_WORKLOAD))
    result = survey(done.files, done.story, states, judge_quickly)
    assert result.drawn == STATES_PER_WORKLOAD
    # Many drawn states are equal, because few states are possible at many of the calls.
    assert result.judged > STATES_PER_WORKLOAD // 4


def test_the_number_of_seeded_states_is_1500() -> None:
    assert STATES_PER_WORKLOAD + STATES_PER_WIDE_WORKLOAD == 1_500


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("seed", [WIDE_SEEDS[0], rarely(WIDE_SEEDS[1])])
def test_every_prefix_of_the_calls_of_several_partitions(seed: int, keep: Keep) -> None:
    done = widely_at_work(seed)
    assert len(done.attach_calls) >= 2
    survey(done.files, done.story, thinned(done.files.prefixes(keep)), judge)


@pytest.mark.parametrize("seed", [WIDE_SEEDS[0], rarely(WIDE_SEEDS[1])])
def test_seeded_states_of_several_partitions(seed: int) -> None:
    done = widely_at_work(seed)
    states = done.files.crash_states(range(STATES_PER_WIDE_WORKLOAD))
    result = survey(done.files, done.story, states, judge_quickly)
    assert result.judged > STATES_PER_WIDE_WORKLOAD // 4


@pytest.mark.parametrize("seed", [WIDE_SEEDS[0], rarely(WIDE_SEEDS[1])])
def test_crash_during_recovery_of_several_partitions(seed: int) -> None:
    """Recovery completes commits to several partitions, even after a crash during recovery."""
    done = widely_at_work(seed)
    for state in done.files.crash_states(thinned(range(10_000, 10_004))):
        judge_interrupted(done, state)


@pytest.mark.parametrize("seed", [SEEDS[0], rarely(SEEDS[1])])
def test_seeded_states_in_full(seed: int) -> None:
    """Each state is recovered twice. The second recovery must not change anything."""
    done = at_work(seed)
    states = done.files.crash_states(thinned(range(STATES_IN_FULL)))
    survey(done.files, done.story, states, judge)


@pytest.mark.parametrize("seed", [SEEDS[0], rarely(SEEDS[1])])
def test_recovery_can_be_interrupted_and_repeated(seed: int) -> None:
    """Recovery is itself interrupted, at every call and at random, and then run again."""
    done = at_work(seed)
    for state in done.files.crash_states(thinned(range(10_000, 10_012))):
        judge_interrupted(done, state)


def judge_interrupted(done: Workload, state: CrashState) -> None:
    """Recover from a crash, lose power at each call of the recovery, and recover again."""
    before, after = done.story.around(state.prefix)
    files = reopen(state)
    recover(files)
    again = chain(
        files.prefixes(Keep.SYNCED),
        files.prefixes(Keep.EVERYTHING),
        files.crash_states(range(20)),
    )
    for second in again:
        try:
            judge_quickly(second, before, after)
        except Exception as error:
            first = done.files.explain(state)
            raise CrashFound(f"{error!r}\n{first}\nthen:\n{files.explain(second)}") from error


class LyingDisk(DamageFileSystem):
    """Ignores chosen syncs, so that a log on this disk behaves as if it did not request them."""

    forgets: type[Sync | SyncDir] = Sync
    suffix = ""

    def record(self, path: str, change: Change) -> None:
        if not (isinstance(change, self.forgets) and path.endswith(self.suffix)):
            super().record(path, change)


class ForgetsRecords(LyingDisk):
    suffix = ".log"


class ForgetsNames(LyingDisk):
    forgets: type[Sync | SyncDir] = SyncDir


@pytest.mark.parametrize(
    ("disk", "symptom"),
    [
        (LyingDisk, "power lost"),
        (ForgetsRecords, r"was synced|nobody.s|missing between"),
        (ForgetsNames, "needed"),
    ],
)
def test_canary_a_log_that_does_not_sync_is_caught(disk: type[LyingDisk], symptom: str) -> None:
    workload = Workload(1, disk())
    workload.run(STEP_COUNT)
    states = workload.files.crash_states(range(500))
    with pytest.raises(CrashFound, match=symptom):
        survey(workload.files, workload.story, states, judge_quickly)


class ForgetsStaged(LyingDisk):
    suffix = ".staging"


def test_canary_a_commit_of_files_that_are_not_synced_is_caught() -> None:
    workload = WideWorkload(WIDE_SEEDS[0], ForgetsStaged())
    workload.run(WIDE_STEP_COUNT)
    states = workload.files.crash_states(range(600))
    with pytest.raises(CrashFound, match=r"then \d+|half of a commit|has epoch"):
        survey(workload.files, workload.story, states, judge_quickly)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_more_workloads_of_several_partitions(seed: int) -> None:
    done = WideWorkload(seed)
    done.run(40)
    for keep in Keep:
        survey(done.files, done.story, done.files.prefixes(keep), judge)
    survey(done.files, done.story, done.files.crash_states(range(2_000)), judge)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_more_workloads(seed: int) -> None:
    done = Workload(seed)
    done.run(120)
    for keep in Keep:
        survey(done.files, done.story, done.files.prefixes(keep), judge)
    survey(done.files, done.story, done.files.crash_states(range(5_000)), judge)


def test_append_times_are_mostly_known() -> None:
    """All append times are known after a clean stop, and most of them after a kill.

    Without this test, the other tests would pass with a log that knows no append times, because
    none of them would be wrong.
    """
    for done in [*map(at_work, SEEDS), *map(widely_at_work, WIDE_SEEDS)]:
        last = len(done.files.journal)
        assert all(known_times(done, last))
        killed = [known for moment in range(60, last, 60) for known in known_times(done, moment)]
        assert len(killed) > 100
        assert sum(killed) > 0.9 * len(killed)


def known_times(done: Workload, moment: int) -> list[bool]:
    """Return whether each record's append time is known after a kill after `moment` calls."""
    directory = recover(reopen(done.files.crash(Keep.EVERYTHING, moment)))
    return [
        log.append_time_of(record.offset) is not None
        for log in logs_of(directory)
        for record in log.records()
    ]
