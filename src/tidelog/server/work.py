"""Blocking work beside the event loop: a few threads, with a bound on what waits for them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

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
