"""Timers by the injected clock, long work in slices, the end of a loop iteration, and uvloop.

A real event loop wakes for the next timer; a test moves its clock and calls `run_due`. Long work on
the loop yields every few milliseconds. Requests that have arrived by the start of an iteration are
processed in it. When a group changes, all members send requests within milliseconds; work that is
needed once for all of them is done by the first request of an iteration or at its end. The loop is
uvloop's if installed, else asyncio's.
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
    """Something to be done once; `cancel` makes that never."""

    __slots__ = ("_action", "due_ms")

    def __init__(self, due_ms: int, action: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self._action: Callable[[], None] | None = action

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, or has been done."""
        return self._action is None

    def cancel(self) -> None:
        """Don't do it; fine where it was done."""
        self._action = None

    def fire(self) -> None:
        """Do it now, once."""
        action, self._action = self._action, None
        if action is not None:
            action()


class Timers:
    """All that waits for its time, on one thread.

    Attributes:
        on_earlier: Called when something is due earlier than all else: the loop wakes up for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._live_floor = 64
        self.on_earlier: Callable[[], None] = lambda: None

    def after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """Do something `delay_ms` from now, by monotonic time."""
        timer = Timer(self._clock.monotonic_ms() + delay_ms, action)
        is_first = not self._heap or timer.due_ms < self._heap[0][0]
        heapq.heappush(self._heap, (timer.due_ms, next(self._numbers), timer))
        self._discard_cancelled()
        if is_first:
            self.on_earlier()
        return timer

    def put_off(self, timer: Timer | None, delay_ms: int) -> bool:
        """Do what still waits `delay_ms` from now in place of earlier.

        What is put off again and again costs no more than being told so: it is looked at when its
        first time has come.

        Returns:
            False where it was done or cancelled, or would have to be done earlier than it is due.
        """
        due_ms = self._clock.monotonic_ms() + delay_ms
        if timer is None or timer.is_cancelled or due_ms < timer.due_ms:
            return False
        timer.due_ms = due_ms
        return True

    def _first(self) -> Timer | None:
        """What is due first, which then stands at the front of the heap; None for nothing."""
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
        """Long polls mostly end before their time: cancelled ones must not pile up."""
        if len(self._heap) > 2 * self._live_floor:
            self._heap = [entry for entry in self._heap if not entry[2].is_cancelled]
            heapq.heapify(self._heap)
            self._live_floor = max(64, len(self._heap))

    @property
    def size(self) -> int:
        """How many are kept, cancelled ones that were not swept out yet included."""
        return len(self._heap)

    def next_delay_ms(self) -> int | None:
        """How long until the next one is due, 0 where it is; None where nothing waits."""
        first = self._first()
        return None if first is None else max(first.due_ms - self._clock.monotonic_ms(), 0)

    def run_due(self) -> int:
        """Do all whose time has come; how many there were. One that fails is logged."""
        done = 0
        now = self._clock.monotonic_ms()
        while (timer := self._first()) is not None and timer.due_ms <= now:
            heapq.heappop(self._heap)
            try:
                timer.fire()
            except Exception:  # one thing's trouble is not the others'
                _LOGGER.exception("what was due has failed")
            done += 1
        return done

    def sweep(self, items: Iterable[_Item], action: Callable[[_Item], object]) -> None:
        """Call `action` with each item, a few milliseconds at a time."""
        remaining = iter(items)

        def go_on() -> None:
            end_ms = self._clock.monotonic_ms() + SLICE_MS
            for item in remaining:
                action(item)
                if self._clock.monotonic_ms() >= end_ms:
                    self.after(1, go_on)
                    return

        go_on()


class Slices:
    """One piece of work that asks between its steps. For one task on the loop."""

    def __init__(self, clock: Clock) -> None:
        """Begins now."""
        self._clock = clock
        self._began_ms = clock.monotonic_ms()

    async def rest(self) -> None:
        """Let others have the loop, where this work has had it for long enough."""
        if self._clock.monotonic_ms() - self._began_ms >= SLICE_MS:
            await asyncio.sleep(0)
            self._began_ms = self._clock.monotonic_ms()


async def in_slices(clock: Clock, items: Iterable[_Item]) -> list[_Item]:
    """Return the items of an iterable; others have the loop between them.

    What the iterable looks at may change meanwhile: iterate over a copy.
    """
    results, slices = [], Slices(clock)
    for item in items:
        results.append(item)
        await slices.rest()
    return results


_Result = TypeVar("_Result")


def run(main: Coroutine[object, object, _Result]) -> _Result:
    """Run a coroutine to its end on a new loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


Key = TypeVar("Key")


class LoopTurn(Generic[Key]):
    """Who came first in the turn that runs. Belongs to the loop's thread.

    Where no loop runs whoever asks is a turn of its own.
    """

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        """`at_end` is called when a turn is over in which somebody asked."""
        self._at_end = at_end
        self._seen: set[Key] = set()

    def is_first(self, key: Key) -> bool:
        """Whether nobody has asked about this in the turn; who asks next is not the first."""
        if key in self._seen:
            return False
        if not self._seen:
            try:
                asyncio.get_running_loop().call_soon(self._end)
            except RuntimeError:  # no loop: nobody would end the turn
                return True
        self._seen.add(key)
        return True

    def _end(self) -> None:
        self._seen.clear()
        self._at_end()
