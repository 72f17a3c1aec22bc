"""An event loop that measures its own CPU time, and a broker on it."""

import asyncio
import gc
import selectors
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

import tidelog
from tidelog.server.embedded import Broker
from tidelog.server.runtime import loop

# What one client may hold the loop for. The machine may be slow for a moment: what is measured
# too long is measured once more.
HELD_MAX_S = 0.1


class LoopMeter(selectors.DefaultSelector):
    """Measures the CPU time of the loop's thread between two looks at the sockets.

    That is all that callbacks of one iteration took, so at least what the longest one took.
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
        """The longest iteration in seconds since this was last called."""
        longest, self.longest_ns = self.longest_ns, 0
        return longest / 1e9


class MeteredBroker:
    """A broker in this process, and what its loop was held for."""

    def __init__(self, broker: Broker, meter: LoopMeter) -> None:
        self.broker = broker
        self._meter = meter

    @property
    def port(self) -> int:
        """Where it listens."""
        return next(iter(self.broker.ports.values()))

    def held_s(self) -> float:
        """CPU seconds of the longest iteration since this was last called, the present one too."""
        self.broker.call(lambda _: None)
        self.broker.call(lambda _: None)
        return self._meter.take()


@contextmanager
def metered_broker(
    path: str, patch: pytest.MonkeyPatch, settings: Mapping[str, object]
) -> Iterator[MeteredBroker]:
    """A broker on asyncio's own loop, with a meter."""
    meter = LoopMeter()

    def run(main):  # type: ignore[no-untyped-def]
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(meter)) as runner:
            return runner.run(main)

    patch.setattr(loop, "run", run)
    with tidelog.broker(path, settings=settings) as broker:
        gc.collect()
        gc.freeze()  # what other tests have left is no work of the broker's
        try:
            yield MeteredBroker(broker, meter)
        finally:
            gc.unfreeze()
