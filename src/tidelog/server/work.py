"""Blocking work beside the event loop: a few threads, with a bound on what waits for them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

_Result = TypeVar("_Result")

THREADS: Final = 4


class Work:
    """Threads for syncs, unlinks, maps and cold reads. Belongs to the loop's thread."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidelog-work")

    async def run(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function in a thread; what it raises is raised here."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def submit(self, function: Callable[[], _Result]) -> "Future[_Result]":
        """Call a function in a thread; whoever asks the future gets what it returns or raises."""
        return self._pool.submit(function)

    def close(self) -> None:
        """Wait for what runs; what has not begun is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
