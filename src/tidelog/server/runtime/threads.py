"""Threads of a broker: workers, a log's deferred tasks, and calls from threads to the loop.

- `Work`: blocking calls in a few threads, with a limit on waiting calls.
- `ThreadDeferral`: tasks that one log defers (`Deferral` in `tidelog.storage.log.durability`), in
  order. Tasks of different logs run concurrently.
- `LogDirOnLoop`: proxy through which other threads use the directory. A `LogDir` and its logs are
  used only in the event loop's thread. Long work (an attach, a copy to the tier) runs in another
  thread with proxies: the loop executes each call of a proxy, and the thread reads plain values
  directly. So the loop is busy with single calls only, and not with the work between these calls.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial, wraps
from typing import Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from tidelog.errors import Closed
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.durability import Done
from tidelog.storage.log.durability import Work as Job
from tidelog.storage.log.log import Log, LogAccess
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.segment_swaps import SegmentSwaps

_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_Target_co = TypeVar("_Target_co", covariant=True)
THREADS: Final = 4

# Maximum number of calls that `Work.run` has handed to the threads. Further calls wait in a queue,
# in order, until earlier calls have finished.
CALL_LIMIT: Final = 64

# Maximum number of items that `run_long` processes on the event loop.
FEW: Final = 1000


class Work:
    """Threads for calls that may wait for a disk or a store. Used only in the event loop's thread.

    A broker has several instances, for example one for syncs and one for reads. So slow calls delay
    only calls of the same kind. Calls for clients (`run`) wait until the threads have room.
    Each connection has at most one call of `run` at a time. The callers of `submit` limit the
    number of their calls: one sync for each log, one checkpoint, a few partitions being opened.

    Attributes:
        is_closed: True after `close`, which is called when the broker stops. Later calls of `run`
            and `submit` fail.
    """

    def __init__(self, threads: int = THREADS, *, calls: int = CALL_LIMIT) -> None:
        """Create an instance without threads. A thread starts when a call needs it.

        Args:
            threads: Maximum number of calls that run at a time.
            calls: Maximum number of calls that `run` has handed to the threads, waiting or running.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidelog-work")
        self._room = asyncio.Semaphore(calls)
        self.is_closed = False

    async def run(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function in a thread as soon as fewer than `calls` calls wait or run.

        Returns the function's result, or raises the function's error.
        """
        async with self._room:
            return await asyncio.wrap_future(self.submit(partial(function, *arguments)))

    async def run_long(
        self, count: int, function: Callable[..., _Result], *arguments: object
    ) -> _Result:
        """Call a function that processes `count` items: in a thread if there are more than `FEW`.

        If there are at most `FEW` items, the event loop's thread calls the function. The caller
        must not change the items before this call returns.
        """
        return function(*arguments) if count <= FEW else await self.run(function, *arguments)

    def submit(self, function: Callable[[], _Result]) -> "Future[_Result]":
        """Call a function in a thread. The future gets its result or error."""
        return self._pool.submit(function)

    def close(self) -> None:
        """Drop waiting calls, wait for running calls, and refuse further calls."""
        self.is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Item(NamedTuple):
    """A job and its callback."""

    job: Job
    done: Done


def _await(running: "Future[None]") -> None:
    wait([running])


class ThreadDeferral:
    """Runs the deferred jobs of one log in the broker's threads; implements `Deferral`.

    Used only in the event loop's thread.

    While a directory is opened or closed, no event loop runs, so a job runs at once in the calling
    thread.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: deque[_Item] = deque()
        self._running: tuple[_Item, Future[None]] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no job waits or runs."""
        return self._running is None and not self._waiting

    def defer(self, work: Job, done: Done) -> None:
        """Run `work` in a thread, then call `done` on the event loop."""
        self._waiting.append(_Item(work, done))
        self._start_next()

    def settle(self) -> None:
        """Run waiting jobs and wait for the running job; return when no job waits or runs."""
        while self._running is not None or self._waiting:
            if self._running is None:
                self._do(self._waiting.popleft())
            else:
                # A job that was cancelled when the threads were closed would never end.
                if not self._running[1].cancelled():
                    wait([self._running[1]])
                self._end()

    def detach(self) -> Callable[[], None]:
        """Drop waiting jobs; return a function with which any thread can await the running job."""
        self._waiting.clear()
        running, self._running = self._running, None
        if running is None or running[1].cancel():
            return lambda: None
        return lambda: _await(running[1])

    def _start_next(self) -> None:
        """Start the next job, unless one runs."""
        if self._running is not None or not self._waiting:
            return
        try:
            loop = asyncio.get_running_loop()
            future = self._work.submit(self._waiting[0].job)
        except RuntimeError:  # no event loop is running, or the threads are closed
            self.settle()
            return
        self._running = self._waiting.popleft(), future
        future.add_done_callback(lambda ended: self._notify(loop, ended))

    def _notify(self, loop: asyncio.AbstractEventLoop, ended: "Future[None]") -> None:
        """Notify the loop from the job's thread; no-op if the loop was closed."""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._ended, ended)

    def _ended(self, future: "Future[None]") -> None:
        """Handle the end of a job, unless `settle` or `detach` has already handled it."""
        if self._running is None or self._running[1] is not future:
            return
        try:
            self._end()
        finally:  # one job's failure must not stop the next
            self._start_next()

    def _end(self) -> None:
        assert self._running is not None
        (item, future), self._running = self._running, None
        try:
            error = future.exception()
        except CancelledError:  # the threads were closed before it ran
            self._do(item)
            return
        assert error is None or isinstance(error, Exception)
        item.done(error)

    @staticmethod
    def _do(item: _Item) -> None:
        try:
            item.job()
        except Exception as error:  # noqa: BLE001 - passed to the log
            item.done(error)
        else:
            item.done(None)


class LoopGate:
    """Executes calls of other threads on the event loop. Once it is closed, `run` refuses calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_closed = False

    def run(self, function: Callable[..., _Result], *args: object, **keywords: object) -> _Result:
        """Call a function on the event loop from another thread.

        Returns the function's result, or raises the function's error.

        Raises:
            Closed: The gate is closed.
        """
        if self.is_closed:
            raise Closed("the broker is stopping")

        async def call() -> _Result:
            return function(*args, **keywords)

        return self.wait(call())

    def wait(self, work: Coroutine[object, object, _Result]) -> _Result:
        """Run a coroutine on the event loop, from another thread.

        Returns the coroutine's result, or raises the coroutine's error.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Proxy(Protocol[_Target_co]):
    """Proxy with which another thread uses an object of the event loop's thread."""

    _gate: LoopGate

    @property
    def _target(self) -> _Target_co: ...


def on_loop(
    call: Callable[Concatenate[_Target_co, _P], _Result],
) -> Callable[Concatenate[_Proxy[_Target_co], _P], _Result]:
    """Return a method for proxies that executes the target's method `call` on the event loop."""

    @wraps(call)
    def method(self: _Proxy[_Target_co], /, *args: _P.args, **keywords: _P.kwargs) -> _Result:
        return self._gate.run(call, self._target, *args, **keywords)

    return method


class SwapsOnLoop:
    """Proxy with which another thread uses a log's `SegmentSwaps`; implements `SwapAccess`."""

    def __init__(self, swaps: SegmentSwaps, gate: LoopGate) -> None:
        self._target = swaps
        self._gate = gate

    prepare_adoption = on_loop(SegmentSwaps.prepare_adoption)
    finished_run = on_loop(SegmentSwaps.finished_run)
    cleanable_segments = on_loop(SegmentSwaps.cleanable_segments)
    still_has = on_loop(SegmentSwaps.still_has)
    show = on_loop(SegmentSwaps.show)
    go_offline = on_loop(SegmentSwaps.go_offline)


class LogOnLoop(LogAccess):
    """Proxy with which another thread uses a log of the event loop's thread.

    Calls that change the log or its caches are executed on the loop. Values such as the list of
    segments and the log's start and end are read directly.
    """

    def __init__(self, log: Log, gate: LoopGate) -> None:
        super().__init__(log.segment_list)
        self._target = log
        self._gate = gate
        self._swaps = SwapsOnLoop(log.swaps, gate)

    @property
    def swaps(self) -> SwapsOnLoop:
        """Proxy that adopts or swaps finished segments."""
        return self._swaps

    def producer_states(self) -> ProducerStates:
        """Return producers and open transactions at the log end."""
        return self._target.producer_states()

    @property
    def recovery_point(self) -> int:
        """Offset below which everything is durable."""
        return self._target.recovery_point

    trusted_end = on_loop(Log.trusted_end)
    append_times_of = on_loop(Log.append_times_of)
    append = on_loop(Log.append)
    flush = on_loop(Log.flush)
    roll = on_loop(Log.roll)
    note_of = on_loop(Log.note_of)
    apply_retention = on_loop(Log.apply_retention)
    advance_start = on_loop(Log.advance_start)
    take_tier = on_loop(Log.take_tier)


class LogDirOnLoop:
    """Proxy with which another thread uses the broker's directory; implements `DirectoryAccess`.

    Calls that use logs or topics are executed on the event loop. The other thread itself reads
    values that never change, and makes thread-safe calls. Calls that sync files to the disk are
    thread-safe, so a sync does not block the loop.
    """

    def __init__(self, log_dir: LogDir, gate: LoopGate) -> None:
        self._target = log_dir
        self._gate = gate
        self.path, self.env, self.is_writable = log_dir.path, log_dir.env, log_dir.is_writable
        self.commit_records, self.tier_files = log_dir.commit_records, log_dir.tier_files
        self.cleaner_offset, self.note_cleaned = log_dir.cleaner_offset, log_dir.note_cleaned

    topics = on_loop(LogDir.topics)
    topic = on_loop(LogDir.topic)
    knows_age_limit = on_loop(LogDir.knows_age_limit)
    flush = on_loop(LogDir.flush)
    accept_clock = on_loop(LogDir.accept_clock)

    def reader(self, topic: str, partition: int) -> LogAccess:
        """Return a proxy for the open log, by calling `log`."""
        return self.log(topic, partition)

    def log(self, topic: str, partition: int) -> LogAccess:
        """Return a proxy for the open log."""
        return LogOnLoop(self._gate.run(self._target.log, topic, partition), self._gate)
