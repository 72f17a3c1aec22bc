"""Combined progress of the clients of several histories, and availability of their broker."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.worlds.waiting import PATIENCE_S


class Progress:
    """Counts the clients' steps. The count, not a clock, decides when their broker is killed."""

    def __init__(self) -> None:
        self._more = threading.Condition()
        self._count = 0
        self._is_there = threading.Event()
        self._is_there.set()

    def tell(self) -> None:
        """Count one step or other event, and notify waiting threads."""
        with self._more:
            self._count += 1
            self._more.notify_all()

    def wait(self, more: int, is_over: Callable[[], bool]) -> None:
        """Wait for `more` further steps, or until `is_over` holds."""
        with self._more:
            wanted = self._count + more
            is_enough = self._more.wait_for(lambda: self._count >= wanted or is_over(), PATIENCE_S)
            assert is_enough, f"{self._count} steps, {wanted} wanted"

    @contextmanager
    def without_broker(self) -> Iterator[None]:
        """Mark the broker as unavailable until the block ends."""
        self._is_there.clear()
        try:
            yield
        finally:
            self._is_there.set()

    def await_broker(self) -> None:
        """Wait until the broker is available, so that clients do not retry all the time."""
        assert self._is_there.wait(PATIENCE_S), "no broker"
