"""Decorators and helpers for tests on an event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path


async def turns(count: int = 10) -> None:
    """Let the loop run `count` times, so that ready tasks proceed."""
    for _ in range(count):
        await asyncio.sleep(0)


def on_a_loop(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """Run a test on its own event loop; the test gets `tmp_path`."""

    def run(tmp_path: Path) -> None:
        async def whole() -> None:
            await test(tmp_path)

        asyncio.run(whole())

    return run
