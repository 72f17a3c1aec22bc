"""How much a client used per second of late, and how long until that is within its quota. Pure.

Time is cut into windows that begin with the first use after the last one ended. What counts are
those of the last `WINDOWS` seconds; where there are fewer, the missing ones count as empty, so that
a client may begin with a burst.

Source: KIP-13, KIP-219; Kafka 4.3's Rate and SampledStat with its defaults of `quota.window.num`
and `quota.window.size.seconds`.
"""

from typing import Final

from tidelog.types import INT32_MAX

WINDOWS: Final = 11
WINDOW_MS: Final = 1000
# Who used nothing for so long is as one who never came.
FORGOTTEN_MS: Final = WINDOWS * WINDOW_MS


class Window:
    """What was used from `start_ms` on."""

    __slots__ = ("last_ms", "start_ms", "used")

    def __init__(self, start_ms: int) -> None:
        self.begin(start_ms)

    def begin(self, start_ms: int) -> None:
        """Be a new one."""
        self.start_ms = start_ms
        self.last_ms = start_ms
        self.used = 0.0


class Rate:
    """One client's use, or that of all clients who share a quota."""

    __slots__ = ("_at", "_windows")

    def __init__(self) -> None:
        self._windows: list[Window] = []
        self._at = 0

    @property
    def last_ms(self) -> int:
        """When it was used last; not to be asked before the first use."""
        return self._windows[self._at].last_ms

    def record(self, used: float, now_ms: int) -> None:
        """Count a use; a negative one takes back what was counted at this very time."""
        window = self._current(now_ms)
        if now_ms - window.start_ms >= WINDOW_MS:
            window = self._next(now_ms)
        window.used += used
        window.last_ms = now_ms

    def _current(self, now_ms: int) -> Window:
        if not self._windows:
            self._windows.append(Window(now_ms))
        return self._windows[self._at]

    def _next(self, now_ms: int) -> Window:
        """A new window; one more than counts is kept, for the oldest reaches out of the time."""
        self._at = (self._at + 1) % (WINDOWS + 1)
        if self._at == len(self._windows):
            self._windows.append(Window(now_ms))
        else:
            self._windows[self._at].begin(now_ms)
        return self._windows[self._at]

    def throttle_ms(self, per_second: float, now_ms: int) -> int:
        """How long to use nothing, so that no more than `per_second` is used; 0 where it is so.

        At most `INT32_MAX`.
        """
        for window in self._windows:
            if now_ms - window.last_ms >= FORGOTTEN_MS:
                window.begin(now_ms)
        used = sum(window.used for window in self._windows)
        elapsed_ms = self._elapsed_ms(now_ms)
        rate = used / (elapsed_ms / 1000)
        if rate <= per_second:
            return 0
        # A quota may be so small that no float holds the time.
        return int(min((rate - per_second) / per_second * elapsed_ms + 0.5, INT32_MAX))

    def _elapsed_ms(self, now_ms: int) -> int:
        elapsed_ms = now_ms - min((window.start_ms for window in self._windows), default=now_ms)
        missing = max(WINDOWS - 1 - elapsed_ms // WINDOW_MS, 0)
        return max(elapsed_ms + missing * WINDOW_MS, 1)
