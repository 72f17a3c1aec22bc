"""The event loop of a broker: uvloop's where it is installed, asyncio's own elsewhere."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

_Result = TypeVar("_Result")


def run(main: Coroutine[object, object, _Result]) -> _Result:
    """Run a coroutine to its end on a new loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def is_inside(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs in a callback or a task of this loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
