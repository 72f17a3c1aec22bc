"""Waits for conditions, with a timeout that even a busy machine does not reach."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

PATIENCE_S: Final = 90
# Polling without a pause would take CPU time from the other side.
PAUSE_S: Final = 0.002

T = TypeVar("T")


class Patience:
    """Time for steps that wait by themselves, and its end."""

    def __init__(self) -> None:
        self._end = time.monotonic() + PATIENCE_S

    def check(self, what: object = "what was waited for") -> None:
        """Fail where it has ended; `what` never came, or is what came in its place."""
        assert time.monotonic() < self._end, f"after {PATIENCE_S} s still not: {what}"


def until(ask: Callable[[], T], is_right: Callable[[T], bool]) -> T:
    """The first answer that is right, or after all that time the last one, which is not.

    Asks again and again; what comes of it is for the caller to assert.
    """
    pause = threading.Event()
    end = time.monotonic() + PATIENCE_S
    while not is_right(found := ask()) and time.monotonic() < end:
        pause.wait(PAUSE_S)
    return found


def until_so(is_so: Callable[[], bool], what: str = "what was waited for") -> None:
    """Return when something is so; `what` says in words what never came."""
    assert until(is_so, bool), f"after {PATIENCE_S} s still not: {what}"


async def turn_until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    patience = Patience()
    while not is_so():
        patience.check()
        await asyncio.sleep(0)


def until_equal(expected: object, ask: Callable[[], object]) -> None:
    """Return when the answer is this one."""
    assert until(ask, lambda found: found == expected) == expected


def with_time(
    run: Callable[[int], T], is_enough: Callable[[T], bool], *, least_s: int
) -> tuple[int, T]:
    """Seconds, and what comes of them: as many as a quiet machine needs, else more, then most.

    For what uses up all the time that it is given where nothing comes.
    """
    for seconds in (least_s, 8 * least_s):
        found = run(seconds)
        if is_enough(found):
            return seconds, found
    return PATIENCE_S, run(PATIENCE_S)
