"""Keeping the loop awake for a client that asks one small thing after the other.

A thread that sleeps until the next request comes has to be woken by the system, which takes longer
than such a request does, and the client waits for that each time. So while one goes on like this
the loop looks for its next request again and again, for a short time, before it sleeps. Where many
ask at once nobody's turn is hastened by that: the loop sleeps as always.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

# A request with its answer: behind larger ones a client has something to do first.
SMALL_BYTES: Final = 4096
# So many have to come close upon each other before the next one is looked for, so that a look in
# vain takes a small part of the time in which there was work.
ROW: Final = 16
# Who is away for so long between two looks has had to make room for other work of the machine, and
# looks for none of the next requests.
CROWDED_NS: Final = 500_000
CROWDED_ROW: Final = 256


class BusyPoll:
    """When to look for the next request. Belongs to the loop's thread.

    Attributes:
        is_looking: Whether the loop stays awake for now.
    """

    __slots__ = (
        "_answered_ns",
        "_asker",
        "_looked_ns",
        "_looks_left",
        "_looks_max",
        "_now_ns",
        "_row",
        "_small_bytes",
        "_window_ns",
        "is_looking",
    )

    def __init__(self, window_us: int, now_ns: Callable[[], int]) -> None:
        """Nothing has come yet.

        Args:
            window_us: How long to look for the next request; 0 for never.
            now_ns: Monotonic time.
        """
        self._window_ns = window_us * 1000
        # No look takes less than a microsecond, but a clock may stand still.
        self._looks_left = self._looks_max = window_us
        self._small_bytes = SMALL_BYTES if window_us else -1
        self._now_ns = now_ns
        self._asker = -1
        self._answered_ns = self._looked_ns = now_ns()
        self._row = 0
        self.is_looking = False

    def answered(self, asker: int, came_ns: int, now_ns: int, size_bytes: int) -> None:
        """A request was answered.

        Args:
            asker: The number of its connection.
            came_ns: When it came.
            now_ns: The time now.
            size_bytes: Of it and its answer together.
        """
        if size_bytes > self._small_bytes:
            return
        if asker != self._asker or came_ns - self._answered_ns > self._window_ns:
            self._asker = asker
            if self._row > 0:
                self._row = 0
        else:
            self._row += 1
            if self._row >= ROW and not self.is_looking:
                self.is_looking = True
                asyncio.get_running_loop().call_soon(self._look)
        self._answered_ns = now_ns
        self._looks_left = self._looks_max

    def _look(self) -> None:
        """Once around the loop, which takes what has come meanwhile."""
        os.sched_yield()
        now_ns = self._now_ns()
        away_ns = now_ns - max(self._looked_ns, self._answered_ns)
        self._looked_ns = now_ns
        self._looks_left -= 1
        if away_ns > CROWDED_NS:
            self._row = -CROWDED_ROW
        elif now_ns - self._answered_ns > self._window_ns or self._looks_left < 0:
            self._row = 0
        if self._row >= ROW:
            asyncio.get_running_loop().call_soon(self._look)
        else:
            self.is_looking = False
