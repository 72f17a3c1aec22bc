"""The append clock: append times that never decrease, and a stop when the wall clock is wrong.

`ClockWatch` (one per directory) compares wall time with monotonic time. If the wall clock jumped
ahead and tidelog used its time, every later record would get a wrong time until real time catches
up. `AppendClock` (one per partition) returns max(last, now), also after a restart with a slower
clock. If the wall clock has jumped ahead by more than the limit, or the last append time on disk is
ahead of the wall clock by more than the limit, appends raise `ClockJump` until an operator accepts
the clock. If tidelog guessed which time is right, a wrong guess could freeze the append time for
years. The acceptance covers append times up to the last one at that moment, and the directory
stores it.

Source: KIP-32, first draft (the leader appends max(last append time, now)).
"""

import logging
import threading
from typing import Final

from tidelog.env import Clock
from tidelog.errors import ClockJump
from tidelog.types import INT64_MAX

NEVER: Final = -1

_WAY_OUT: Final = (
    "appends are refused; set the clock right, or accept it with `tidelog accept-clock --data DIR`"
    " (or --accept-clock of serve and produce, or LogDir.accept_clock)"
)

_LOGGER: Final = logging.getLogger(__name__)


class ClockWatch:
    """Wall time, compared with monotonic time since the last call.

    Thread-safe.
    """

    def __init__(
        self, clock: Clock, *, limit_ms: int = 3_600_000, accepted_ms: int = NEVER
    ) -> None:
        """Start watching.

        Args:
            clock: The clock to watch.
            limit_ms: Maximum by which wall time may run ahead of monotonic time.
            accepted_ms: Append times up to this one, inclusive, may lie ahead of the clock.
        """
        self._clock = clock
        self.accepted_ms = accepted_ms
        self._limit_ms = limit_ms
        self._lock = threading.Lock()
        self._wall_ms = clock.now_ms()
        self._monotonic_ms = clock.monotonic_ms()
        self._jump: tuple[int, int] | None = None

    def now_ms(self, limit_ms: int | None = None) -> int:
        """Return wall time in ms.

        Args:
            limit_ms: Maximum by which it may have run ahead; the watch's own limit if None.

        Raises:
            ClockJump: It ran ahead of monotonic time by more than the limit; raised at every call
                until `accept`.
        """
        with self._lock:
            now = self._clock.now_ms()
            monotonic = self._clock.monotonic_ms()
            expected = self._wall_ms + monotonic - self._monotonic_ms
            limit = self._limit_ms if limit_ms is None else limit_ms
            if self._jump is None and now - expected > limit:
                self._jump = (expected, now)
                _LOGGER.warning("%s", _jumped(expected, now))
            if self._jump is not None:
                raise _jumped(*self._jump)
            self._wall_ms, self._monotonic_ms = now, monotonic
            return now

    def accept(self, up_to_ms: int = NEVER) -> None:
        """Accept the wall clock as it is now.

        Args:
            up_to_ms: Append times up to this one, inclusive, may lie ahead of the clock.
        """
        with self._lock:
            self.accepted_ms = max(self.accepted_ms, up_to_ms)
            self._jump = None
            self._wall_ms = self._clock.now_ms()
            self._monotonic_ms = self._clock.monotonic_ms()

    @property
    def problem(self) -> str | None:
        """Text of the clock jump that `now_ms` has detected; None if there is none to accept."""
        return None if self._jump is None else str(_jumped(*self._jump))


def _jumped(expected_ms: int, now_ms: int) -> ClockJump:
    return ClockJump(
        expected_ms,
        now_ms,
        f"the wall clock is at {now_ms} ms: it advanced {now_ms - expected_ms} ms more than the"
        f" monotonic clock since the last check; {_WAY_OUT}",
    )


class TrustedClock(ClockWatch):
    """A clock that is trusted without a check: for logs whose appends must never wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, accepted_ms=INT64_MAX)

    def now_ms(self, limit_ms: int | None = None) -> int:  # noqa: ARG002 - there is no limit
        """Return wall time in ms."""
        return self._clock.now_ms()


class Moment:
    """Time of appends that are made together; the clock is read once for each limit."""

    __slots__ = ("_limit_ms", "_now_ms", "_watch")

    def __init__(self) -> None:
        """Create a moment; the clock has not been read yet."""
        self._watch: ClockWatch | None = None
        self._limit_ms = self._now_ms = NEVER

    def now_ms(self, watch: ClockWatch, limit_ms: int) -> int:
        """Return the first result of `ClockWatch.now_ms`, or raise its ClockJump."""
        if watch is not self._watch or limit_ms != self._limit_ms:
            self._now_ms = watch.now_ms(limit_ms)
            self._watch, self._limit_ms = watch, limit_ms
        return self._now_ms


class AppendClock:
    """Append times of one partition. Concurrent appends are not safe."""

    def __init__(self, watch: ClockWatch, *, last_ms: int, limit_ms: int) -> None:
        self._watch = watch
        self._limit_ms = limit_ms
        self._last_ms = last_ms
        self._checked = last_ms == NEVER

    @property
    def last_ms(self) -> int:
        """Last append time assigned or found on disk, -1 if there is none."""
        return self._last_ms

    def next_ms(self) -> int:
        """Return max(last, now) in ms.

        Raises:
            ClockJump: The wall clock jumped ahead, or the last append time on disk lies more than
                the limit ahead of it.
        """
        return self.next_and_now_ms()[0]

    def next_and_now_ms(self, moment: Moment | None = None) -> tuple[int, int]:
        """Return `next_ms` and the wall time, for appends that are made together."""
        if moment is None:
            now = self._watch.now_ms(self._limit_ms)
        else:
            now = moment.now_ms(self._watch, self._limit_ms)
        if not self._checked:
            self._check_start(now)
        if now > self._last_ms:
            self._last_ms = now
        return self._last_ms, now

    def _check_start(self, now_ms: int) -> None:
        """Raise ClockJump if the last append time is far ahead of the clock: it was or is wrong."""
        ahead = self._last_ms - now_ms
        if ahead > self._limit_ms and self._last_ms > self._watch.accepted_ms:
            error = ClockJump(
                self._last_ms,
                now_ms,
                f"the last append time on disk, {self._last_ms} ms, is {ahead} ms ahead of the"
                f" clock ({now_ms} ms), so every record would get that time until the clock"
                f" reaches it; {_WAY_OUT}",
            )
            _LOGGER.warning("%s", error)
            raise error
        self._checked = True

    def fallback_ms(self, jump: ClockJump) -> int:
        """Return an append time despite a clock jump.

        It is the later of the last append time and the wall time that was expected without the
        jump.

        Args:
            jump: The error of `next_ms`. The next append raises it again.
        """
        self._last_ms = max(self._last_ms, jump.last_ms)
        return self._last_ms

    def observe(self, append_ms: int) -> None:
        """Continue from an append time of the leader's clock: later times are never below it.

        If it is far ahead of our own clock, the next append checks it, as after a start.
        """
        if append_ms > self._last_ms:
            self._last_ms = append_ms
            self._checked = False

    def rewind(self, last_ms: int) -> None:
        """Set the last append time to that of the remaining log, after a truncation."""
        self._last_ms = last_ms
