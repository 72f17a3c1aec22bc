"""Clocks for tests, in addition to `ManualClock`: ahead of real time, or advanced by each call."""

from tidelog.env import Clock, ManualClock, SystemClock, os_env


class BusyClock(ManualClock):
    """A manual clock that each call of `monotonic_ms` advances by `step_ms`."""

    def __init__(self, now_ms: int, step_ms: int = 1) -> None:
        super().__init__(now_ms)
        self.step_ms = step_ms

    def monotonic_ms(self) -> int:
        self.advance(self.step_ms)
        return super().monotonic_ms()


class AheadClock:
    """The machine's clock, moved ahead by `ahead_ms`."""

    def __init__(self) -> None:
        self._clock: Clock = os_env().clock
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms() + self.ahead_ms

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns() + self.ahead_ms * 1_000_000


class StandingClock(AheadClock):
    """Clock that stands still at the time of its creation plus `ahead_ms`."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = ManualClock(self._clock.now_ms())


class WallAheadClock(SystemClock):
    """The machine's clock with the wall time moved ahead; the monotonic time is unchanged."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """Return the moved wall time in ms."""
        return super().now_ms() + self.ahead_ms
