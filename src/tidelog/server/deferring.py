"""Work that logs leave for later, done in threads: one log's in its order, many logs' side by side.

Source of the seam: `tidelog.storage.deferral`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import NamedTuple

from tidelog.server.work import Work
from tidelog.storage.deferral import Done
from tidelog.storage.deferral import Work as Job


class _Item(NamedTuple):
    """A job and what follows it."""

    job: Job
    done: Done


def _await(running: "Future[None]") -> None:
    wait([running])


class Beside:
    """One log's `Deferral`: jobs run in the broker's threads. Belongs to the loop's thread.

    Where no loop runs (a directory being opened or closed) a job is done at once.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: deque[_Item] = deque()
        self._running: tuple[_Item, Future[None]] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        return self._running is None and not self._waiting

    def defer(self, work: Job, done: Done) -> None:
        """Do `work` in a thread, then call `done` on the loop."""
        self._waiting.append(_Item(work, done))
        self._go_on()

    def settle(self) -> None:
        """Wait until nothing waits or runs any more."""
        while self._running is not None or self._waiting:
            if self._running is None:
                self._do(self._waiting.popleft())
            else:
                # Nobody tells who waits for a job that was cancelled when the threads were closed.
                if not self._running[1].cancelled():
                    wait([self._running[1]])
                self._end()

    def give_up(self) -> Callable[[], None]:
        """Forget what waits; what waits for that which runs, in any thread."""
        self._waiting.clear()
        running, self._running = self._running, None
        if running is None or running[1].cancel():
            return lambda: None
        return lambda: _await(running[1])

    def _go_on(self) -> None:
        """Begin with the next job, unless one runs."""
        if self._running is not None or not self._waiting:
            return
        try:
            loop = asyncio.get_running_loop()
            future = self._work.submit(self._waiting[0].job)
        except RuntimeError:  # no loop, or the threads were closed
            self.settle()
            return
        self._running = self._waiting.popleft(), future
        future.add_done_callback(lambda ended: self._tell(loop, ended))

    def _tell(self, loop: asyncio.AbstractEventLoop, ended: "Future[None]") -> None:
        """In the job's thread: let the loop know. One that was closed needs to know no more."""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._ended, ended)

    def _ended(self, future: "Future[None]") -> None:
        """A job's thread has ended, unless `settle` or `drop` were here before."""
        if self._running is None or self._running[1] is not future:
            return
        try:
            self._end()
        finally:  # what goes wrong with one must not hold up those behind it
            self._go_on()

    def _end(self) -> None:
        assert self._running is not None
        (item, future), self._running = self._running, None
        try:
            error = future.exception()
        except CancelledError:  # the threads were closed before its turn
            self._do(item)
            return
        assert error is None or isinstance(error, Exception)
        item.done(error)

    @staticmethod
    def _do(item: _Item) -> None:
        try:
            item.job()
        except Exception as error:  # noqa: BLE001 - the log knows what it means
            item.done(error)
        else:
            item.done(None)
