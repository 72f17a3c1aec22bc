"""A rate limit: so many records or bytes a second, counted from the start.

Before each chunk the pacer waits until all that was written so far is within the rate, so that at
any moment no more is written than the rate allows plus one chunk. It asks a clock and is handed the
way to wait, so a test needs no time.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from tidelog.env import Clock
from tidelog.errors import InvalidRequest

_TEXT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)\s*/\s*s")
_UNITS: Final = {
    "B": 1,
    "kB": 1_000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_RECORDS: Final = ("", "records", "record")


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit.

    Attributes:
        per_second: How much, over 0.
        is_bytes: Of bytes (keys and values); else of records.
    """

    per_second: float
    is_bytes: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """`50000/s`, `50000 records/s` or `10 MB/s`; raises InvalidRequest for anything else."""
        found = _TEXT.fullmatch(text.strip())
        unit = found[2] if found else ""
        if found is None or (unit not in _UNITS and unit not in _RECORDS) or not float(found[1]):
            units = ", ".join(f"{name}/s" for name in _UNITS)
            raise InvalidRequest(f"rate {text!r}: write records as 50000/s, or bytes in {units}")
        return cls(float(found[1]) * _UNITS.get(unit, 1), is_bytes=unit in _UNITS)

    def __str__(self) -> str:
        return f"{self.per_second:,.0f} {'bytes' if self.is_bytes else 'records'}/s"


def wait_seconds(seconds: float) -> None:
    """Wait without work; a signal ends it."""
    threading.Event().wait(seconds)


class Pacer:
    """Holds a job to a rate. For one thread."""

    def __init__(
        self, rate: Rate | None, clock: Clock, wait: Callable[[float], None] = wait_seconds
    ) -> None:
        """Begin; the first chunk needs no waiting.

        Args:
            rate: The limit, None for no such.
            clock: Its monotonic time counts.
            wait: Called with a number of seconds.
        """
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._start_ms = clock.monotonic_ms()
        self._used = 0

    def note(self, records: int, size_bytes: int) -> None:
        """Count what was written."""
        if self._rate is not None:
            self._used += size_bytes if self._rate.is_bytes else records

    def hold(self) -> float:
        """Wait until what was written is within the rate; the seconds that were due."""
        if self._rate is None:
            return 0.0
        due_ms = self._start_ms + 1000 * self._used / self._rate.per_second
        seconds = max((due_ms - self._clock.monotonic_ms()) / 1000, 0.0)
        if seconds:
            self._wait(seconds)
        return seconds
