"""How far the clients of some histories are, all together, and whether their broker is there."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.worlds.waiting import PATIENCE_S


class Progress:
    """Counts steps of clients: by that count, not by a clock, their broker is killed."""

    def __init__(self) -> None:
        self._more = threading.Condition()
        self._count = 0
        self._is_there = threading.Event()
        self._is_there.set()

    def tell(self) -> None:
        """One step more, or something else that somebody waits for."""
        with self._more:
            self._count += 1
            self._more.notify_all()

    def wait(self, more: int, is_over: Callable[[], bool]) -> None:
        """Until so many more steps were made, or there are no more."""
        with self._more:
            wanted = self._count + more
            is_enough = self._more.wait_for(lambda: self._count >= wanted or is_over(), PATIENCE_S)
            assert is_enough, f"{self._count} steps, {wanted} wanted"

    @contextmanager
    def without_broker(self) -> Iterator[None]:
        """While it is killed and started again."""
        self._is_there.clear()
        try:
            yield
        finally:
            self._is_there.set()

    def await_broker(self) -> None:
        """Return when it is there: who begins without one would try all the time."""
        assert self._is_there.wait(PATIENCE_S), "no broker"
