"""A log directory as seen from another thread: its calls are carried out on the loop.

A `LogDir` and its logs belong to the loop's thread. Long work (an attach, a copy to the tier) runs
in another one, on stand-ins: each call of a method goes to the loop and waits there for its turn;
plain values are read at once. So the loop stops for single calls, never for the work between them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, TypeVar, cast

from tidelog.errors import Closed
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_reader import LogReader

_Result = TypeVar("_Result")
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
