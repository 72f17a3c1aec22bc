"""Long work on the loop, a slice at a time: others have their turn every few milliseconds."""

import asyncio
import gc
from collections.abc import Iterable
from typing import Final, TypeVar

from tidelog.env import Clock

SLICE_MS: Final = 3

_Item = TypeVar("_Item")


class Slices:
    """One piece of work that asks between its steps. For one task on the loop."""

    def __init__(self, clock: Clock) -> None:
        """Begins now."""
        self._clock = clock
        self._began_ms = clock.monotonic_ms()

    async def rest(self) -> None:
        """Let others have the loop, where this work has had it for long enough."""
        if self._clock.monotonic_ms() - self._began_ms >= SLICE_MS:
            await asyncio.sleep(0)
            self._began_ms = self._clock.monotonic_ms()


def take_as_old() -> None:
    """Count all objects as old ones for Python's garbage collector.

    Many new objects that stay make it look through all objects of the process, and everything
    waits for that: a tenth of a second for a million objects.
    """
    gc.freeze()
    gc.unfreeze()


async def in_slices(clock: Clock, items: Iterable[_Item]) -> list[_Item]:
    """Return the items of an iterable; others have the loop between them.

    What the iterable looks at may change meanwhile: iterate over a copy.
    """
    found, slices = [], Slices(clock)
    for item in items:
        found.append(item)
        await slices.rest()
    return found
