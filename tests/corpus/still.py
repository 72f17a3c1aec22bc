"""The still world that a part plays in: time and randomness move only where a part moves them.

This replaces clocks and random numbers of Python itself, before tidelog is imported, so that it
holds for everything that has no `Env` argument: the command line, defaults, `ManualClock` aside.
Wall time and the monotonic clock that tidelog reads stand still together; `time.monotonic`, which
event loops and libraries use for their waiting, runs on.
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
    """Now, and where random bytes come from."""

    now_ns = START_MS * 1_000_000
    passed_ns = 1_000_000_000_000
    is_running = False
    name = ""
    sources: ClassVar[dict[int, Random]] = {}


def now_ms() -> int:
    """Wall time."""
    return _World.now_ns // 1_000_000


def set_time(to_ms: int) -> None:
    """Set wall time. Monotonic time passes by as much, and never runs back."""
    advance(to_ms - now_ms())


def advance(by_ms: int) -> None:
    """Let time pass."""
    _World.now_ns += by_ms * 1_000_000
    _World.passed_ns += max(by_ms, 0) * 1_000_000


def run(*, is_running: bool = True) -> None:
    """Let monotonic time run while wall time stands still: for what waits, such as a long poll."""
    _World.is_running = is_running


def draw_for(name: str) -> None:
    """Draw random numbers anew, the same ones for each use of one name.

    Each size of a draw has numbers of its own, so that ids don't change with draws of other kinds.
    """
    _World.name = name
    _World.sources.clear()


class _StillRandom(SystemRandom):
    """What an `Env` draws from, and nobody else.

    Libraries draw when they are first imported (numpy), or save compiled code (numba): that depends
    on what the process did before, and files of two processes must not get one name.
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
    """Let the system write when it likes: the directory is thrown away."""


def hold() -> None:
    """Stop the clocks and fix the random numbers of this process; its syncs wait for no disk."""
    os.fsync = _no_sync  # type: ignore[assignment]
    os.fdatasync = _no_sync  # type: ignore[assignment]
    time.time_ns = lambda: _World.now_ns  # noqa: TID251 - replaced, not called
    time.time = lambda: _World.now_ns / 1_000_000_000  # noqa: TID251 - replaced, not called
    time.clock_gettime_ns = _gettime_ns
    assert secrets.SystemRandom is SystemRandom, "what libraries draw from is not replaced"
    random.SystemRandom = _StillRandom  # type: ignore[misc]
