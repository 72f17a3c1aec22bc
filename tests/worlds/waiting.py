"""Waits for conditions, with a timeout that even a busy machine does not reach."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

PATIENCE_S: Final = 90
# Timeout of loading kernels; if no cache exists, loading compiles all kernels.
KERNELS_S: Final = 300
# Pause between two polls in s, which leaves CPU time for the process that the test waits for.
PAUSE_S: Final = 0.002

T = TypeVar("T")


class Patience:
    """Time limit for loops that poll by themselves instead of calling `until`."""

    def __init__(self) -> None:
        self._end = time.monotonic() + PATIENCE_S

    def check(self, what: object = "what was waited for") -> None:
        """Fail if the time limit has passed; `what` describes the missing or wrong result."""
        assert time.monotonic() < self._end, f"after {PATIENCE_S} s still not: {what}"


def until(ask: Callable[[], T], is_right: Callable[[T], bool]) -> T:
    """Call `ask` until `is_right` accepts the result; return the last result.

    When the time limit has passed, the last result may be wrong, so the caller has to check it.
    """
    pause = threading.Event()
    end = time.monotonic() + PATIENCE_S
    while not is_right(found := ask()) and time.monotonic() < end:
        pause.wait(PAUSE_S)
    return found


def until_so(is_so: Callable[[], bool], what: str = "what was waited for") -> None:
    """Wait until a condition holds; `what` describes the condition in the message of a failure."""
    assert until(is_so, bool), f"after {PATIENCE_S} s still not: {what}"


def until_kernels_loaded() -> None:
    """Wait for the threads in which brokers of this process load and perhaps compile kernels."""
    for thread in threading.enumerate():
        if thread.name == "tidelog-kernels":
            thread.join(KERNELS_S)


async def turn_until(is_so: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds."""
    patience = Patience()
    while not is_so():
        patience.check()
        await asyncio.sleep(0)


def until_equal(expected: object, ask: Callable[[], object]) -> None:
    """Call `ask` until the result equals `expected`."""
    assert until(ask, lambda found: found == expected) == expected


def with_time(
    run: Callable[[int], T], is_enough: Callable[[T], bool], *, least_s: int
) -> tuple[int, T]:
    """Call `run` with as few seconds as a quiet machine needs, then with more, up to `PATIENCE_S`.

    This is for a `run` that takes the whole time if it finds nothing. Returns the seconds and the
    result of the last run; `is_enough` may still reject this result.
    """
    for seconds in (least_s, 8 * least_s):
        found = run(seconds)
        if is_enough(found):
            return seconds, found
    return PATIENCE_S, run(PATIENCE_S)
