"""Timers by the injected clock, long work in slices, the end of a loop iteration, and uvloop.

In the broker, the event loop wakes when the next timer is due. A test moves its clock and calls
`run_due` instead. Long work on the loop yields every few milliseconds. Requests that have arrived
by the start of an iteration are processed in this iteration. When a group changes, all members send
requests within milliseconds. Work that is the same for all these requests is done once: by the
first request of an iteration or at the end of the iteration. The loop is uvloop's if uvloop is
installed, else asyncio's.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from typing import Final, Generic, TypeVar

from tidelog.env import Clock

_LOGGER: Final = logging.getLogger("tidelog.server")
SLICE_MS: Final = 3
_Item = TypeVar("_Item")


class Timer:
    """An action that runs once, unless cancelled."""

    __slots__ = ("_action", "due_ms")

    def __init__(self, due_ms: int, action: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self._action: Callable[[], None] | None = action

    @property
    def is_cancelled(self) -> bool:
        """Whether the timer was cancelled or has run."""
        return self._action is None

    def cancel(self) -> None:
        """Cancel the timer; no-op after it has run."""
        self._action = None

    def fire(self) -> None:
        """Run the action now, once."""
        action, self._action = self._action, None
        if action is not None:
            action()


class Timers:
    """All timers of one thread.

    Attributes:
        on_earlier: Called when a new timer is due before all others, so that the loop wakes for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._live_floor = 64
        self.on_earlier: Callable[[], None] = lambda: None

    def after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """Run an action after `delay_ms`, by monotonic time."""
        timer = Timer(self._clock.monotonic_ms() + delay_ms, action)
        is_first = not self._heap or timer.due_ms < self._heap[0][0]
        heapq.heappush(self._heap, (timer.due_ms, next(self._numbers), timer))
        self._discard_cancelled()
        if is_first:
            self.on_earlier()
        return timer

    async def pause(self, delay_ms: int) -> None:
        """Wait for `delay_ms`, by monotonic time."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.after(delay_ms, lambda: over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    def put_off(self, timer: Timer | None, delay_ms: int) -> bool:
        """Postpone a pending timer, so that it is due `delay_ms` from now.

        Postponing repeatedly is cheap, because the heap is updated only at the time for which the
        timer was first set.

        Returns:
            True if the timer was postponed; False if there is no timer, or it has run, was
            cancelled, or is due later than the new time.
        """
        due_ms = self._clock.monotonic_ms() + delay_ms
        if timer is None or timer.is_cancelled or due_ms < timer.due_ms:
            return False
        timer.due_ms = due_ms
        return True

    def _first(self) -> Timer | None:
        """Move the timer that is due first to the front of the heap, and return it.

        Return None if no timer is left.
        """
        while self._heap:
            due_ms, _, timer = self._heap[0]
            if timer.is_cancelled:
                heapq.heappop(self._heap)
            elif timer.due_ms > due_ms:
                heapq.heapreplace(self._heap, (timer.due_ms, next(self._numbers), timer))
            else:
                return timer
        return None

    def _discard_cancelled(self) -> None:
        """Remove cancelled timers, which accumulate because long polls usually end early."""
        if len(self._heap) > 2 * self._live_floor:
            self._heap = [entry for entry in self._heap if not entry[2].is_cancelled]
            heapq.heapify(self._heap)
            self._live_floor = max(64, len(self._heap))

    def next_delay_ms(self) -> int | None:
        """Return the time in ms until the next timer is due: 0 if overdue, None without timers."""
        first = self._first()
        return None if first is None else max(first.due_ms - self._clock.monotonic_ms(), 0)

    def run_due(self) -> int:
        """Run all due timers, log their errors, and return the number of timers that ran."""
        done = 0
        now = self._clock.monotonic_ms()
        while (timer := self._first()) is not None and timer.due_ms <= now:
            heapq.heappop(self._heap)
            try:
                timer.fire()
            except Exception:  # one timer's failure must not affect others
                _LOGGER.exception("a timer's action failed")
            done += 1
        return done

    def sweep(self, items: Iterable[_Item], action: Callable[[_Item], object]) -> None:
        """Call `action` with each item, in slices of a few milliseconds."""
        remaining = iter(items)

        def run_slice() -> None:
            end_ms = self._clock.monotonic_ms() + SLICE_MS
            for item in remaining:
                action(item)
                if self._clock.monotonic_ms() >= end_ms:
                    self.after(1, run_slice)
                    return

        run_slice()


class Slices:
    """Splits the work of one task on the event loop into slices."""

    def __init__(self, clock: Clock) -> None:
        """Begin the first slice now."""
        self._clock = clock
        self._began_ms = clock.monotonic_ms()

    async def rest(self) -> None:
        """Yield the event loop if the slice is over."""
        if self._clock.monotonic_ms() - self._began_ms >= SLICE_MS:
            await asyncio.sleep(0)
            self._began_ms = self._clock.monotonic_ms()


async def in_slices(clock: Clock, items: Iterable[_Item]) -> list[_Item]:
    """Return the items of an iterable as a list, computed in slices.

    The underlying objects may change meanwhile, so `items` should iterate over a copy.
    """
    results, slices = [], Slices(clock)
    for item in items:
        results.append(item)
        await slices.rest()
    return results


_Result = TypeVar("_Result")


def run(main: Coroutine[object, object, _Result]) -> _Result:
    """Run a coroutine to its end on a new event loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


Key = TypeVar("Key")


class LoopTurn(Generic[Key]):
    """Keys seen in the current iteration of the event loop. Used only in the event loop's thread.

    If no event loop is running, each call of `is_first` counts as a separate iteration.
    """

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        """Call `at_end` at the end of each iteration in which `is_first` was called."""
        self._at_end = at_end
        self._keys: set[Key] = set()

    def is_first(self, key: Key) -> bool:
        """Whether this is the first call for the key in this iteration."""
        if key in self._keys:
            return False
        if not self._keys:
            try:
                asyncio.get_running_loop().call_soon(self._end)
            except RuntimeError:  # without a loop, each call is an iteration
                return True
        self._keys.add(key)
        return True

    def _end(self) -> None:
        self._keys.clear()
        self._at_end()
