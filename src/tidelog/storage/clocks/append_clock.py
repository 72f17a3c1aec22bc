"""The append clock: append times never decrease, and appends fail if the wall clock jumps ahead.

`ClockWatch` (one per directory) compares wall time with monotonic time. If tidelog used the time of
a wall clock that has jumped ahead, every later record would get a wrong time until real time
catches up. `AppendClock` (one per partition) returns the later of the last append time and the wall
time, even if the wall clock is behind after a restart. Appends raise `ClockJump` in two cases: the
wall clock has jumped ahead by more than the limit, or the last append time on disk is ahead of the
wall clock by more than the limit. Appends fail until an operator accepts the clock. tidelog does
not guess which time is right, because a wrong guess could freeze the append time for years. The
acceptance covers append times up to the last append time at the moment of acceptance, inclusive.
The directory stores this last append time.

Source: KIP-32, first draft (the leader appends max(last append time, now)).
"""

import logging
import threading
from typing import Final

from tidelog.amounts import duration_text
from tidelog.env import Clock
from tidelog.errors import ClockJump
from tidelog.types import INT64_MAX

NEVER: Final = -1

_ACCEPT: Final = (
    "accept it with `tidelog accept-clock --data DIR` (or --accept-clock of serve and produce, or"
    " LogDir.accept_clock)"
)

_LOGGER: Final = logging.getLogger(__name__)


class ClockWatch:
    """Wall clock that detects jumps.

    Each reading compares how far wall time and monotonic time have advanced. Thread-safe.
    """

    def __init__(
        self, clock: Clock, *, limit_ms: int = 3_600_000, accepted_ms: int = NEVER
    ) -> None:
        """Start watching.

        Args:
            clock: The clock to watch.
            limit_ms: Maximum number of ms by which wall time may advance more than monotonic time
                between two calls of `now_ms`.
            accepted_ms: Append times up to this time, inclusive, may be ahead of the clock by
                more than the limit.
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
            limit_ms: Maximum number of ms by which wall time may have advanced more than monotonic
                time since the last call; None for the limit that was passed to the constructor.

        Raises:
            ClockJump: Wall time advanced more than the limit allows. After the first error, every
                call raises it again until `accept` is called.
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
            up_to_ms: Append times up to this time, inclusive, may be ahead of the clock by more
                than the limit.
        """
        with self._lock:
            self.accepted_ms = max(self.accepted_ms, up_to_ms)
            self._jump = None
            self._wall_ms = self._clock.now_ms()
            self._monotonic_ms = self._clock.monotonic_ms()


def _jumped(expected_ms: int, now_ms: int) -> ClockJump:
    from tidelog.timespec import zoned_text  # imported only for errors

    return ClockJump(
        expected_ms,
        now_ms,
        f"the wall clock is at {zoned_text(now_ms)}: it advanced"
        f" {duration_text((now_ms - expected_ms) / 1000)} more than the monotonic clock since the"
        " last check; appends are refused until the clock is accepted. If"
        f" it is wrong, set it right first, then {_ACCEPT}",
    )


class TrustedClock(ClockWatch):
    """A clock that is never checked, for logs whose appends must not fail on a clock jump."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, accepted_ms=INT64_MAX)

    def now_ms(self, _limit_ms: int | None = None) -> int:
        """Return wall time in ms."""
        return self._clock.now_ms()


class Moment:
    """One reading of the clock, shared by appends with the same `ClockWatch` and limit."""

    __slots__ = ("_limit_ms", "_now_ms", "_watch")

    def __init__(self) -> None:
        """Create a moment without reading the clock."""
        self._watch: ClockWatch | None = None
        self._limit_ms = self._now_ms = NEVER

    def now_ms(self, watch: ClockWatch, limit_ms: int) -> int:
        """Return `watch.now_ms(limit_ms)`, or the last result if the arguments are unchanged."""
        if watch is not self._watch or limit_ms != self._limit_ms:
            self._now_ms = watch.now_ms(limit_ms)
            self._watch, self._limit_ms = watch, limit_ms
        return self._now_ms


class AppendClock:
    """Assigns the append times of one partition. Concurrent appends are not safe."""

    def __init__(self, watch: ClockWatch, *, last_ms: int, limit_ms: int) -> None:
        self._watch = watch
        self._limit_ms = limit_ms
        self._last_ms = last_ms
        self._checked = last_ms == NEVER

    @property
    def last_ms(self) -> int:
        """Last append time in ms (assigned, observed or found on disk), -1 if there is none."""
        return self._last_ms

    def next_ms(self) -> int:
        """Return the next append time in ms: the later of the last append time and wall time.

        Raises:
            ClockJump: The wall clock jumped ahead by more than the limit. Also raised if the last
                append time on disk is ahead of the wall clock by more than the limit, and was not
                accepted.
        """
        return self.next_and_now_ms()[0]

    def next_and_now_ms(self, moment: Moment | None = None) -> tuple[int, int]:
        """Return the next append time and the wall time, in ms; raises ClockJump like `next_ms`."""
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
        """Raise ClockJump if the last append time is too far ahead and was not accepted."""
        ahead = self._last_ms - now_ms
        if ahead > self._limit_ms and self._last_ms > self._watch.accepted_ms:
            from tidelog.timespec import zoned_text  # imported only for errors

            error = ClockJump(
                self._last_ms,
                now_ms,
                f"the last append time on disk, {zoned_text(self._last_ms)}, is"
                f" {duration_text(ahead / 1000)} ahead of the clock ({zoned_text(now_ms)}), so"
                " every record would get that time until the clock reaches it; appends are refused;"
                f" set the clock right, or {_ACCEPT}",
            )
            _LOGGER.warning("%s", error)
            raise error
        self._checked = True

    def fallback_ms(self, jump: ClockJump) -> int:
        """Return an append time in ms despite a clock jump.

        The result is the later of two times: the last append time, and the wall time that was
        expected without the jump.

        Args:
            jump: The error that `next_ms` raised. This method does not accept the jump: `next_ms`
                can raise it again.
        """
        self._last_ms = max(self._last_ms, jump.last_ms)
        return self._last_ms

    def observe(self, append_ms: int) -> None:
        """Continue from an append time of the leader's clock; later append times are never smaller.

        The next append raises ClockJump if `append_ms` is ahead of the local clock by more than the
        limit.
        """
        if append_ms > self._last_ms:
            self._last_ms = append_ms
            self._checked = False

    def rewind(self, last_ms: int) -> None:
        """After a truncation, set the last append time to that of the remaining log."""
        self._last_ms = last_ms
