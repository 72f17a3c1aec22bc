"""Long work on the loop, a slice at a time: others have their turn every few milliseconds."""

import asyncio
from typing import Final

from tidelog.env import Clock

SLICE_MS: Final = 3


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
