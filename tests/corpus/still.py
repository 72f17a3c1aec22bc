"""Stopped clocks and fixed random numbers of a part: they change only when the part changes them.

This module replaces the clocks and random numbers of Python itself before tidelog is imported. So
it also applies to code without an `Env` argument, such as the command line and defaults, but not to
a `ManualClock`. Tidelog's wall clock and its monotonic clock are both stopped. `time.monotonic`, by
which event loops and libraries wait, keeps running.
"""

import os
import random
import secrets
import time
from random import Random, SystemRandom
from typing import ClassVar, Final

# 2024-05-15T12:00:00Z, a Wednesday.
START_MS: Final = 1_715_774_400_000

_real_gettime_ns = time.clock_gettime_ns
_RUNNING: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _World:
    """The current time, and the sources of random bytes."""

    now_ns = START_MS * 1_000_000
    passed_ns = 1_000_000_000_000
    is_running = False
    name = ""
    sources: ClassVar[dict[int, Random]] = {}


def now_ms() -> int:
    """Return wall time."""
    return _World.now_ns // 1_000_000


def set_time(to_ms: int) -> None:
    """Set wall time. If it increases, monotonic time increases by the same amount."""
    advance(to_ms - now_ms())


def advance(by_ms: int) -> None:
    """Advance wall time and monotonic time; a negative `by_ms` only sets wall time back."""
    _World.now_ns += by_ms * 1_000_000
    _World.passed_ns += max(by_ms, 0) * 1_000_000


def run(*, is_running: bool = True) -> None:
    """Let monotonic time run for code that waits, such as long polls, or stop it again.

    Wall time stays stopped.
    """
    _World.is_running = is_running


def draw_for(name: str) -> None:
    """Restart the random numbers; each call with the same name gives the same numbers.

    Random bytes of each size have their own sequence, so an id does not depend on draws of other
    sizes.
    """
    _World.name = name
    _World.sources.clear()


class _StillRandom(SystemRandom):
    """The random source of `Env`; other code does not use it.

    Libraries keep the real random source, because the number of their draws depends on earlier
    steps of the process: numpy draws at its first import, numba when it saves compiled code. Also,
    temporary files of two processes need different names.
    """

    def getrandbits(self, k: int, /) -> int:
        size = -(-k // 8)
        return int.from_bytes(self.randbytes(size)) >> (size * 8 - k)

    def random(self) -> float:
        return self.getrandbits(53) / (1 << 53)

    def randbytes(self, n: int) -> bytes:
        source = _World.sources.setdefault(n, Random(f"{_World.name} {n}"))
        return source.randbytes(n)


def _gettime_ns(clock: int) -> int:
    if clock == time.CLOCK_REALTIME:
        return _World.now_ns
    if clock != _RUNNING:
        return _real_gettime_ns(clock)
    return _World.passed_ns + (_real_gettime_ns(clock) if _World.is_running else 0)


def _no_sync(descriptor: int) -> None:
    """Skip a sync: the directory is temporary."""


def hold() -> None:
    """Stop the clocks, fix the random numbers of this process, and skip its syncs."""
    os.fsync = _no_sync  # type: ignore[assignment] # a replacement
    os.fdatasync = _no_sync  # type: ignore[assignment] # a replacement
    time.time_ns = lambda: _World.now_ns  # noqa: TID251 - replaced, not called
    time.time = lambda: _World.now_ns / 1_000_000_000  # noqa: TID251 - replaced, not called
    time.clock_gettime_ns = _gettime_ns
    assert secrets.SystemRandom is SystemRandom, "what libraries draw from is not replaced"
    random.SystemRandom = _StillRandom  # type: ignore[misc] # a replacement
