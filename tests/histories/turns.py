"""Simulated threads: their work runs between two iterations of the event loop."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Given = ParamSpec("Given")


class Turns(ThreadPoolExecutor):
    """Runs queued functions in calls of `turn`; a seed decides which call runs which functions."""

    def __init__(self, random: Random) -> None:
        super().__init__(1)  # the executor never starts its thread
        self._random = random
        self._left: list[Callable[[], None]] = []
        self._futures: list[Future[object]] = []

    def submit(
        self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> "Future[Result]":
        """Queue a function; one of the next calls of `turn` runs the function."""
        future: Future[Result] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                future.set_exception(error)

        self._left.append(work)
        self._futures.append(future)  # type: ignore[arg-type] # only cancelled
        return future

    def turn(self) -> None:
        """Run a random number of the queued functions, in order."""
        while self._left and self._random.random() < 0.8:
            self._futures.pop(0)
            self._left.pop(0)()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the queued work."""
        for future in self._futures:
            future.cancel()
        self._left.clear()
        self._futures.clear()


class AtOnce(ThreadPoolExecutor):
    """Runs each call at once: callers wait for the result without running the event loop."""

    def submit(
        self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> "Future[Result]":
        """Run the call now."""
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            future.set_exception(error)
        return future
