"""Replies (results that may come later), their stopwatch, responses sent later, and observers.

State machines create replies without an event loop. `start` creates a reply from a coroutine that
has to wait. All replies are read in the same way: by `value` if they are done, by `when_done` and
`map`, or by `await`.

Invariants:
- A reply is completed once, with a value or an error.
- A listener runs inside the call that completes the reply. Work that must not run inside that call,
  such as sending a response, goes through `Arrivals`.

All of this module is used only in the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import CoroutineType, coroutine
from typing import Final, Generic, TypeVar, cast, overload

from tidelog.env import Clock
from tidelog.errors import Closed

T = TypeVar("T")
R = TypeVar("R")


class Stopwatch:
    """Measures the event loop's time for one request, from `began_ns` on."""

    __slots__ = ("_clock", "_since_ns", "used_ns")

    def __init__(self, clock: Clock, began_ns: int) -> None:
        self._clock = clock
        self._since_ns: int | None = began_ns
        self.used_ns = 0

    def resume(self) -> None:
        """Resume measuring when the handler continues."""
        self._since_ns = self._clock.monotonic_ns()

    def pause(self) -> None:
        """Stop measuring when the request waits or is done; no-op if already stopped."""
        if self._since_ns is not None:
            self.used_ns += self._clock.monotonic_ns() - self._since_ns
            self._since_ns = None


class _Job:
    """A task that computes a reply, with its watch."""

    __slots__ = ("task", "watch")

    task: "asyncio.Task[None]"

    def __init__(self) -> None:
        self.watch: Stopwatch | None = None


class Reply(Generic[T]):
    """A result that may come later."""

    __slots__ = ("_error", "_job", "_listeners", "_value")

    def __init__(self) -> None:
        self._value: tuple[T] | None = None
        self._error: Exception | None = None
        self._listeners: list[Callable[[Reply[T]], None]] = []
        self._job: _Job | None = None

    @classmethod
    def of(cls, value: T) -> "Reply[T]":
        """Return a completed reply."""
        reply = cls()
        reply.complete(value)
        return reply

    @property
    def is_done(self) -> bool:
        """Whether the reply is complete, with a value or with an error."""
        return self._value is not None or self._error is not None

    @property
    def is_started(self) -> bool:
        """Whether a task, created by `start`, computes the reply.

        If no task computes the reply, other code calls `complete` or `fail`.
        """
        return self._job is not None

    @property
    def value(self) -> T:
        """Value of a completed reply. If the reply completed with an error, raises this error."""
        if self._error is not None:
            raise self._error
        assert self._value is not None, "reply not completed yet"
        return self._value[0]

    def complete(self, value: T) -> None:
        """Complete the reply with a value, once."""
        assert not self.is_done, "reply completed twice"
        self._value = (value,)
        self._notify()

    def try_complete(self, value: T) -> None:
        """Complete the reply with a value, unless it is already done, e.g. after a timeout."""
        if not self.is_done:
            self.complete(value)

    def fail(self, error: Exception) -> None:
        """Complete the reply with an error."""
        assert not self.is_done, "reply completed twice"
        self._error = error
        self._notify()

    def _notify(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)

    def when_done(self, listener: "Callable[[Reply[T]], None]") -> None:
        """Call `listener` with the reply once it is done."""
        if self.is_done:
            listener(self)
        else:
            self._listeners.append(listener)

    def then(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the value once it is known. If the reply fails, do not call it."""
        if self._value is not None:
            listener(self._value[0])
        elif self._error is None:
            self._listeners.append(partial(Reply._pass_value, listener=listener))

    def _pass_value(self, listener: Callable[[T], None]) -> None:
        if self._value is not None:
            listener(self._value[0])

    def derive(self, make: Callable[[T], R]) -> "Reply[R]":
        """Return a reply that completes with `make(value)` once the value is known.

        If this reply fails, the returned reply fails with the same error.
        """
        derived: Reply[R] = Reply()

        def pass_on(done: Reply[T]) -> None:
            if done._error is not None:
                derived.fail(done._error)
            else:
                derived.complete(make(done.value))

        self.when_done(pass_on)
        return derived

    def map(self, make: "Callable[[T], R | Reply[R]]") -> "R | Reply[R]":
        """Return `make(value)` if the reply is done; otherwise a reply that gets this result later.

        `make` may return a reply, too. Before the call of `make`, a cancellation of the mapped
        reply cancels the task of the original reply (`self`). After this call, it cancels the task
        of the reply that `make` returned. The watch of the original reply's task also measures the
        call of `make`.
        """
        if self.is_done:
            return make(self.value)
        mapped: Reply[R] = Reply()
        mapped._job = self._job

        def complete_mapped(done: Reply[T]) -> None:
            watch = None if mapped._job is None else mapped._job.watch
            if watch is not None:
                watch.resume()
            try:
                value = make(done.value)
            except Exception as error:  # noqa: BLE001 - passed to the reader of the mapped reply
                mapped.fail(error)
                return
            finally:
                if watch is not None:
                    watch.pause()
            if isinstance(value, Reply):
                mapped._take_over(value._job)  # noqa: SLF001 - part of Reply
                value.when_done(complete_nested)
            else:
                mapped.complete(value)

        def complete_nested(done: Reply[R]) -> None:
            try:
                value = done.value
            except Exception as error:  # noqa: BLE001 - passed to the reader of the mapped reply
                mapped.fail(error)
            else:
                mapped.complete(value)

        self._listeners.append(complete_mapped)
        return mapped

    def __await__(self) -> Generator[object, None, T]:
        """Wait for the result on the event loop."""
        if not self.is_done:
            done = asyncio.get_running_loop().create_future()
            self._listeners.append(partial(_wake, done))
            try:
                yield from done
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.value

    def cancel(self) -> None:
        """Cancel the task that computes the reply; do nothing if no task computes it."""
        if self._job is not None:
            self._job.task.cancel()

    def measure(self, watch: Stopwatch) -> None:
        """Let `watch` measure the task that computes the reply; do nothing without such a task."""
        if self._job is not None:
            self._job.watch = watch

    def _take_over(self, job: _Job | None) -> None:
        """Replace the task that computes this reply and the replies mapped from it.

        The new task is the task of `job`. The watch that measured the old task then measures the
        new task. If `job` is None, no task computes the reply any more.
        """
        if self._job is None or job is None:
            self._job = job
        else:
            job.watch, self._job.task = self._job.watch, job.task

    def _start(self, work: Coroutine[object, object, T], waits_for: object) -> None:
        self._job = job = _Job()
        job.task = asyncio.ensure_future(self._follow(job, work, waits_for))
        job.task.add_done_callback(lambda _: self._close(work, waits_for))

    async def _follow(
        self, job: _Job, work: Coroutine[object, object, T], waits_for: object
    ) -> None:
        try:
            value = await _rest(job, work, waits_for)
        except asyncio.CancelledError:
            self.fail(Closed(_CANCELLED))
        except Exception as error:  # noqa: BLE001 - passed to the reader of the reply
            self.fail(error)
        else:
            self.complete(value)

    def _close(self, work: Coroutine[object, object, T], waits_for: object) -> None:
        """Close a coroutine whose task was cancelled before its first step, and fail the reply."""
        if not self.is_done:
            if isinstance(waits_for, asyncio.Future):
                waits_for.cancel()
            work.close()
            self.fail(Closed(_CANCELLED))


_CANCELLED: Final = "request was cancelled"


def _wake(future: "asyncio.Future[None]", _done: object) -> None:
    if not future.done():  # a waiter may have been cancelled meanwhile
        future.set_result(None)


@overload
def start(work: Coroutine[object, object, T]) -> T | Reply[T]: ...
@overload
def start(work: Awaitable[T] | T) -> T | Reply[T]: ...
def start(work: Awaitable[T] | T) -> T | Reply[T]:
    """Run a coroutine; return its result, or a reply if the coroutine has to wait.

    If the coroutine has to wait, a task runs the rest of it and completes the reply.

    The first step runs at once, outside of a task, so it must not use the current task, for example
    by `asyncio.timeout`. If `work` is a value or a reply instead of a coroutine, it is returned
    unchanged.

    Raises:
        Closed: The coroutine was cancelled in its first step.
    """
    if type(work) is not CoroutineType:
        return cast("T | Reply[T]", work)
    try:
        waits_for: object = work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    except asyncio.CancelledError:
        raise Closed(_CANCELLED) from None
    reply: Reply[T] = Reply()
    reply._start(work, waits_for)  # noqa: SLF001 - part of Reply
    return reply


async def settled(work: T | Awaitable[T]) -> T:
    """Return a value, which is awaited if necessary."""
    return await work if isinstance(work, Awaitable) else work


@coroutine
def _rest(
    job: _Job, work: Coroutine[object, object, T], waits_for: object
) -> Generator[object, None, T]:
    """Run the remaining steps of a coroutine that already waits for something."""
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - a future may fail with any error
            step: Callable[[], object] = partial(work.throw, error)
        else:
            if job.watch is None:
                return (yield from cast("Generator[object, None, T]", work))
            step = partial(work.send, None)
        if job.watch is not None:
            job.watch.resume()
        try:
            waits_for = step()
        except StopIteration as end:
            return cast("T", end.value)
        finally:
            # `step` may hold an error whose traceback refers to this frame. As the frame refers to
            # `step`, this reference cycle would keep all local variables of the coroutine in
            # memory.
            del step
            if job.watch is not None:
                job.watch.pause()


class Arrivals:
    """Responses that are ready but sent only after the request that completed them has finished.

    A request may complete the response to another request: for example, a member of a group joins,
    and other members wait for it. The other response is sent as soon as the first request is
    finished, before any further request is handled.

    Used only in the event loop's thread.

    Attributes:
        due: Functions that send the waiting responses, in order.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()

    def add(self, send: Callable[[], None]) -> None:
        """Add a function that sends a response. The function must not raise an error."""
        if not self.due:
            # If a timer or a thread completed the response, no request calls `send`, so the event
            # loop calls it.
            asyncio.get_running_loop().call_soon(self.send)
        self.due.append(send)

    def send(self) -> None:
        """Send all responses that are due. Must not be called while a request is being handled."""
        due = self.due
        while due:
            due.popleft()()


Watcher = Callable[[], None]


class Watchable:
    """Base class of objects that notify watchers of changes."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` at every change visible to readers, until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling `watcher`; do nothing if it is not registered."""
        self._watchers.pop(watcher, None)

    def notify(self) -> None:
        """Call all watchers, which may remove themselves."""
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher()
