"""An event loop that measures its own CPU time, and a broker on it."""

import asyncio
import gc
import selectors
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import pytest

import tidelog
from tidelog.server.embedded import Broker
from tidelog.server.runtime import loop

_Result = TypeVar("_Result")

# Maximum time in seconds for which one client may block the loop. A measurement above the limit is
# repeated, because the machine may be slow for a moment.
HELD_MAX_S = 0.1


class LoopMeter(selectors.DefaultSelector):
    """Selector of an event loop that measures the thread's CPU time between two polls of sockets.

    Each measurement covers all callbacks of one iteration of the loop, so the longest callback took
    at most this time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.longest_ns = 0
        self._began_ns: int | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for sockets."""
        now_ns = time.thread_time_ns()
        if self._began_ns is not None:
            self.longest_ns = max(self.longest_ns, now_ns - self._began_ns)
        found = super().select(timeout)
        self._began_ns = time.thread_time_ns()
        return found

    def take(self) -> float:
        """Return the largest CPU time of an iteration since the last call, in seconds."""
        longest, self.longest_ns = self.longest_ns, 0
        return longest / 1e9


class MeteredBroker:
    """A broker in this process, with a meter of the time for which its loop was blocked."""

    def __init__(self, broker: Broker, meter: LoopMeter) -> None:
        self.broker = broker
        self._meter = meter

    @property
    def port(self) -> int:
        """The port of its listener."""
        return next(iter(self.broker.ports.values()))

    def held_s(self) -> float:
        """Return the CPU seconds of the longest iteration since the last call of this method."""
        self.broker.call(lambda _: None)
        self.broker.call(lambda _: None)
        return self._meter.take()


@contextmanager
def metered_broker(
    path: str, patch: pytest.MonkeyPatch, settings: Mapping[str, object]
) -> Iterator[MeteredBroker]:
    """Run a broker on asyncio's own event loop, with a `LoopMeter`."""
    meter = LoopMeter()

    def run(main: Coroutine[object, object, _Result]) -> _Result:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(meter)) as runner:
            return runner.run(main)

    patch.setattr(loop, "run", run)
    with tidelog.broker(path, settings=settings) as broker:
        gc.collect()
        gc.freeze()  # the time to collect other tests' garbage must not count
        try:
            yield MeteredBroker(broker, meter)
        finally:
            gc.unfreeze()
