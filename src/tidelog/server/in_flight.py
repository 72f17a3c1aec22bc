"""A bound on what all connections together hold: requests on their way, and what they have come to.

A request counts from the moment its length is known until its answer is there; an answer that the
client does not take counts until it does. At the bound no further request is read: its connection
waits in line. One that is being read is always read to its end, and where nothing else is held any
request is, so nobody waits for ever.

Source: Kafka's `queued.max.request.bytes`.
"""

from collections.abc import Callable
from typing import Final

NO_BOUND: Final = -1


class InFlight:
    """Bytes held by all connections. Belongs to the loop's thread.

    Attributes:
        used_bytes: What is held now; one request may lead beyond the bound.
    """

    def __init__(self, limit_bytes: int) -> None:
        """At most about `limit_bytes`; -1 for no bound."""
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: dict[Callable[[], None], int] = {}

    @property
    def is_full(self) -> bool:
        """Whether somebody has to wait."""
        return bool(self._waiting)

    @property
    def _has_room(self) -> bool:
        return self._limit_bytes == NO_BOUND or self.used_bytes < self._limit_bytes

    def admit(self, size_bytes: int, admitted: Callable[[], None]) -> bool:
        """Count a request that is to be read; False where that has to wait.

        Args:
            size_bytes: Its size.
            admitted: Called, once it is counted, where it had to wait.
        """
        if self._waiting or not self._has_room:
            self._waiting[admitted] = size_bytes
            return False
        self.used_bytes += size_bytes
        return True

    def forget(self, admitted: Callable[[], None]) -> None:
        """Wait no more; fine where nothing waits."""
        self._waiting.pop(admitted, None)

    def add(self, size_bytes: int) -> None:
        """Count what is there already."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """It is gone: whoever has waited longest is let in."""
        self.used_bytes -= size_bytes
        while self._waiting and self._has_room:
            admitted = next(iter(self._waiting))
            self.used_bytes += self._waiting.pop(admitted)
            admitted()
