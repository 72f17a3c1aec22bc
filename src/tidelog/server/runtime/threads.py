"""Blocking work beside the event loop: a few threads, with a bound on what waits for them.

Parts: worker threads, a log's deferred tasks, calls from threads to the loop.

Work that logs leave for later, done in threads: one log's in its order, many logs' side by side.

Source of the seam: `tidelog.storage.log.durability`.

A log directory as seen from another thread: its calls are carried out on the loop.

A `LogDir` and its logs belong to the loop's thread. Long work (an attach, a copy to the tier) runs
in another one, on stand-ins: each call of a method goes to the loop and waits there for its turn;
plain values are read at once. So the loop stops for single calls, never for the work between them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast

from tidelog.errors import Closed
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.durability import Done
from tidelog.storage.log.durability import Work as Job
from tidelog.storage.log.log_reader import LogReader

_Result = TypeVar("_Result")


THREADS: Final = 4


# Calls that are handed to the threads at a time; whoever comes then waits for room, in order.
CALL_LIMIT: Final = 64


# A function that looks at so many things runs where it is called.
FEW: Final = 1000


class Work:
    """Threads for syncs, unlinks, maps and cold reads. Belongs to the loop's thread.

    A broker has several, so that what may take long (reads of a disk or a store) holds up only its
    like. Calls of clients wait for room outside, at most one for each connection; what is submitted
    is bounded by whoever submits it: one sync for each log, one checkpoint, a few openings.

    Attributes:
        is_closed: Whether nothing is taken any more, since the broker stops.
    """

    def __init__(self, threads: int = THREADS, *, calls: int = CALL_LIMIT) -> None:
        """Threads that begin when they are needed.

        Args:
            threads: How many calls run at a time.
            calls: How many `run` hands to them at a time, those that run included.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidelog-work")
        self._room = asyncio.Semaphore(calls)
        self.is_closed = False

    async def run(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function in a thread, once there is room; what it raises is raised here."""
        async with self._room:
            return await asyncio.wrap_future(self.submit(partial(function, *arguments)))

    async def run_long(
        self, count: int, function: Callable[..., _Result], *arguments: object
    ) -> _Result:
        """Call a function that looks at `count` things: in a thread, or at once if they are few.

        The things must not change meanwhile.
        """
        return function(*arguments) if count <= FEW else await self.run(function, *arguments)

    def submit(self, function: Callable[[], _Result]) -> "Future[_Result]":
        """Call a function in a thread; whoever asks the future gets what it returns or raises."""
        return self._pool.submit(function)

    def close(self) -> None:
        """Wait for what runs; what has not begun is dropped, and nothing more is taken."""
        self.is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)


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


# Methods that any thread may call, and that sync: the loop need not stop for them.
_ANY_THREAD: Final = frozenset({"cleaner_offset", "note_cleaned"})


class LoopGate:
    """The way to the loop, which can be closed: calls that come later are refused."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_closed = False

    def run(self, function: Callable[..., _Result], *args: object, **keywords: object) -> _Result:
        """Call a function on the loop, from another thread; raises what it raises, and Closed."""
        if self.is_closed:
            raise Closed("the broker is stopping")

        async def call() -> _Result:
            return function(*args, **keywords)

        return self.wait(call())

    def wait(self, work: Coroutine[object, object, _Result]) -> _Result:
        """Wait for a coroutine on the loop, from another thread; raises what it raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class OnLoop:
    """Stands for an object of the loop's thread."""

    def __init__(self, target: object, gate: LoopGate) -> None:
        self._target = target
        self._gate = gate

    def __getattr__(self, name: str) -> object:
        """A plain value, or a method that is carried out on the loop."""
        found: object = getattr(self._target, name)
        return partial(self._call, found) if callable(found) and name not in _ANY_THREAD else found

    def _call(self, function: Callable[..., object], *args: object, **keywords: object) -> object:
        found = self._gate.run(function, *args, **keywords)
        # Logs belong to the loop as their directory does.
        return OnLoop(found, self._gate) if isinstance(found, LogReader) else found


def log_dir_on_loop(log_dir: LogDir, gate: LoopGate) -> LogDir:
    """A stand-in for a directory, for use in another thread alone."""
    return cast("LogDir", OnLoop(log_dir, gate))
