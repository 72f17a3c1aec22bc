"""Compaction compared with a dict: any order of appends, transactions, cleanings and crashes.

A plain run has 200 sequences, a sweep 20,000. test_generations_model.py has the same numbers of
sequences for the generational scheduler. Records with versions have 30 sequences in a plain run,
and 5,000 more in a sweep, for each combination of a strategy and a scheduler. See
compaction_life.py for steps and checks.
"""

import random
from collections.abc import Iterable, Mapping

import pytest
from tests.property.compaction_life import VERSION_HEADER, Life
from tests.worlds.directories.plain_cleaner import PlainWorker
from tests.worlds.repetition import rarely

from tidelog.env import Env
from tidelog.storage.compaction.cleaner import Worker
from tidelog.storage.compaction.worker import InProcess

# Number of sequences in a plain run, and of additional sequences in a sweep; a tenth of them uses
# the cleaner in plain Python.
QUICK, SWEPT = 200, 19_800
CHUNKS, SWEPT_CHUNKS = 5, 38
STEPS = 8
TIMES = {"tidelog.compaction.strategy": "timestamp"}
HEADERS = {
    "tidelog.compaction.strategy": "header",
    "tidelog.compaction.strategy.header": VERSION_HEADER,
}
GENERATIONAL = {
    "tidelog.compaction.scheduler": "generational",
    "tidelog.compaction.space.factor": "1.2",
}
VERSIONED = (TIMES, HEADERS, TIMES | GENERATIONAL, HEADERS | GENERATIONAL)
VERSIONED_NAMES = ("timestamp", "header", "timestamp-generational", "header-generational")
# Number of sequences in a plain run, and of additional sequences in a sweep, for each of the four
# combinations.
VERSIONED_QUICK, VERSIONED_SWEPT = 30, 5_000


def real(env: Env, _: random.Random) -> Worker:
    return InProcess(env)


def plain(env: Env, dice: random.Random) -> Worker:
    """Return a plain Python worker; two in three have a small map, and need several passes."""
    return PlainWorker(env, map_keys=dice.choice((1, 3, 1 << 30)))


def live(seeds: Iterable[int], settings: Mapping[str, str]) -> None:
    for seed in seeds:
        make_worker = real if seed % 10 else plain
        try:
            Life(seed, make_worker, settings).run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def live_with_versions(seeds: Iterable[int], settings: Mapping[str, str]) -> None:
    """Run sequences with the real cleaner only, because the plain one doesn't support versions."""
    for seed in seeds:
        try:
            Life(seed, real, settings).run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_last_value_of_each_key_is_always_there(chunk: int) -> None:
    live(range(chunk, QUICK, CHUNKS), {})


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(SWEPT_CHUNKS))
def test_the_same_many_times(chunk: int) -> None:
    live(range(QUICK + chunk, QUICK + SWEPT, SWEPT_CHUNKS), {})


@pytest.mark.parametrize("settings", VERSIONED, ids=VERSIONED_NAMES)
def test_the_highest_version_of_each_key_is_always_there(settings: Mapping[str, str]) -> None:
    live_with_versions(range(VERSIONED_QUICK), settings)


@pytest.mark.parametrize(
    ("seed", "settings"),
    [(2004, TIMES | GENERATIONAL), (3894, HEADERS | GENERATIONAL), (4427, TIMES | GENERATIONAL)],
)
def test_tombstones_that_one_full_pass_had_to_keep_are_removed(
    seed: int, settings: Mapping[str, str]
) -> None:
    """A tombstone stays in the pass that maps the records around it; the next pass removes it."""
    live_with_versions([seed], settings)


@pytest.mark.slow
@pytest.mark.parametrize("settings", VERSIONED, ids=VERSIONED_NAMES)
@pytest.mark.parametrize("chunk", range(SWEPT_CHUNKS))
def test_the_same_with_versions_many_times(chunk: int, settings: Mapping[str, str]) -> None:
    seeds = range(VERSIONED_QUICK + chunk, VERSIONED_QUICK + VERSIONED_SWEPT, SWEPT_CHUNKS)
    live_with_versions(seeds, settings)


@pytest.mark.parametrize("seed", [*range(4), *map(rarely, range(4, 12))])
def test_keys_are_verified_if_the_setting_requires_it(seed: int) -> None:
    live([10 * seed + 1], {"tidelog.cleaner.verify.keys": "true", "tidelog.cleaner.hash": "md5"})


@pytest.mark.parametrize("seed", [*range(3), *map(rarely, range(3, 6))])
def test_records_younger_than_the_minimum_lag_stay(seed: int) -> None:
    """Repeated cleanings remove no record that is younger than the minimum lag."""
    life = Life(seed, real, {"min.compaction.lag.ms": "60000"})
    for _ in range(10):
        life.append()
        life.pass_time()
        life.clean()
        now_ms = life.env.clock.now_ms()
        left = {record.offset for record in life.log.records()}
        young = [e.offset for e in life.model.entries.values() if now_ms - e.timestamp < 60_000]
        assert set(young) <= left
