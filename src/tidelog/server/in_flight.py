"""A bound on what all connections together hold: requests on their way, and what they have come to.

Of a request that is being read the bytes that have come are counted, never those that were only
announced; then the whole of it, until its answer is there; and of an answer what the client does
not take. At the bound connections that are reading pause, all but the one that has been at its
request for longest: that one is read to its end, so nobody waits for ever. One read may lead
beyond the bound, for each connection that was not paused yet.

Source: Kafka's `queued.max.request.bytes`, which counts a request when its size is known.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

NO_BOUND: Final = -1
SMALL_PART: Final = 10_000

# A connection that reads: called when it may go on after a pause.
GoOn: TypeAlias = Callable[[], None]


class InFlight:
    """Bytes held by all connections. Belongs to the loop's thread.

    Attributes:
        used_bytes: What is held now.
    """

    def __init__(self, limit_bytes: int) -> None:
        """At most about `limit_bytes`; -1 for no bound."""
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        # In the midst of a request, longest first; of these, who has to wait, in that order.
        self._reading: dict[GoOn, None] = {}
        self._waiting: dict[GoOn, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether somebody has to wait."""
        return bool(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether as much as may be is held, though nobody may wait for it."""
        return not self._has_room

    @property
    def has_plenty(self) -> bool:
        """Whether less than half of what may be is held: one read may bring a large request."""
        return self._limit_bytes == NO_BOUND or 2 * self.used_bytes < self._limit_bytes

    @property
    def small_bytes(self) -> int:
        """What nobody need give back at the bound: it is next to nothing of it."""
        return max(self._limit_bytes, 0) // SMALL_PART

    @property
    def _has_room(self) -> bool:
        return self._limit_bytes == NO_BOUND or self.used_bytes < self._limit_bytes

    def read(self, size_bytes: int, go_on: GoOn) -> bool:
        """Count bytes that have come of a request; False where the rest of it has to wait.

        Args:
            size_bytes: How many have come since the last call.
            go_on: Whose request it is; called once the rest may come, where that had to wait.
        """
        self.used_bytes += size_bytes
        self._reading[go_on] = None  # whoever is in there keeps its place
        if self._has_room or next(iter(self._reading)) == go_on:
            self._waiting.pop(go_on, None)
            return True
        self._waiting[go_on] = None
        return False

    def end_read(self, go_on: GoOn) -> None:
        """The request has come, or its sender has gone; fine where none was begun.

        What was counted stays counted, until it is released.
        """
        if go_on in self._reading:
            del self._reading[go_on]
            self._waiting.pop(go_on, None)
            self._let_in()

    def add(self, size_bytes: int) -> None:
        """Count what is there already."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """It is gone: whoever has waited longest goes on."""
        self.used_bytes -= size_bytes
        self._let_in()

    def _let_in(self) -> None:
        """Let go on who may: the longest at it always, the others while there is room."""
        while self._waiting:
            longest = next(iter(self._reading))
            go_on = longest if longest in self._waiting else next(iter(self._waiting))
            if go_on != longest and not self._has_room:
                return
            del self._waiting[go_on]
            go_on()
