"""How much a micro-batch takes: upper limits by offsets, and when it is worth one at all.

Pure: backlogs go in, shares come out. Meanings as in Spark's Kafka connector.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.env import Clock

MAX_DELAY_MS: Final = 15 * 60 * 1000

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one micro-batch; None where there is none.

    Attributes:
        max_offsets: Offsets, all partitions together.
        max_bytes: Bytes of log, all partitions together.
        min_offsets: Wait until there are so many ...
        max_delay_ms: ... but not longer than this after the batch before.
    """

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_DELAY_MS


def share(backlogs: Mapping[_Key, int], limit: int) -> dict[_Key, int]:
    """How much of `limit` each gets, in proportion to what it has.

    Args:
        backlogs: What each has, 0 or more.
        limit: What all get together, 1 or more.

    Returns:
        All of what each has, where that is within the limit. Else the share, rounded down, but at
        least 1 where there is anything: nobody starves, so that all together may get more than
        the limit by as many as there are.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    return {key: min(size, max(size * limit // total, 1)) for key, size in backlogs.items()}


class Gate:
    """Holds micro-batches back that are too small, but none for too long.

    The first one of a process passes whatever its size: nobody knows how long it has waited. One
    owner, one thread.
    """

    def __init__(self, min_offsets: int | None, max_delay_ms: int, clock: Clock) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._clock = clock
        self._last_ms: int | None = None

    def passes(self, backlog: int) -> bool:
        """Whether a batch of so many offsets is to run now; if so, the next delay begins."""
        if self._min_offsets is None:
            return True
        now_ms = self._clock.monotonic_ms()
        is_due = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if not is_due and backlog < self._min_offsets:
            return False
        self._last_ms = now_ms
        return True
