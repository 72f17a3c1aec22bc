"""Append times as a broker of tidelog names them beside the records of a fetch."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from tidelog.types import UNKNOWN_MS


class AppendRuns:
    """Runs of offsets and when they were appended.

    Args:
        rows: Of each run the first offset and its time in ms, -1 for unknown, one behind the
            other. Nothing is believed of rows that are not in order.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        firsts = list(rows[0::2])
        is_good = len(rows) % 2 == 0 and all(one < other for one, other in pairwise(firsts))
        self._firsts = firsts if is_good else []
        self._times = list(rows[1::2])

    def time_of(self, offset: int) -> int:
        """When an offset was appended, in ms; -1 where nobody says."""
        slot = bisect_right(self._firsts, offset) - 1
        return self._times[slot] if slot >= 0 else UNKNOWN_MS
