"""A reproducible Env: a `DamageFileSystem`, a clock that the test sets, seeded randomness."""

from dataclasses import dataclass, field
from random import Random

from tests.faults.damage import DamageFileSystem

from tidelog.env import Env, ManualClock

# 8 February 2013, 12:00 in New York: the storm day of the demo.
START_MS = 1_360_342_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededEnv(Env):
    """An `Env` whose parts a test can control."""

    files: DamageFileSystem = field(default_factory=DamageFileSystem)
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    random: Random = field(default_factory=lambda: Random(0))


def seeded_env(
    seed: int, *, files: DamageFileSystem | None = None, now_ms: int = START_MS
) -> SeededEnv:
    """Return an Env on `files` (a new disk if None); the same seed gives the same run."""
    clock = ManualClock(now_ms)
    disk = DamageFileSystem() if files is None else files
    disk.clock = clock
    return SeededEnv(files=disk, clock=clock, random=Random(seed))
