"""Expressions are looked up in a thread: many topics must not hold the loop up."""

import asyncio
from collections.abc import Callable, Iterable

from tidelog.server.groups.consumer_regexes import LookUp, Meanings, find_meanings
from tidelog.server.groups.host import LOGGER
from tidelog.server.work import Work


def look_up_beside(work: Work) -> LookUp:
    """A look-up that goes on beside the loop, and tells on it."""
    running = set[asyncio.Task[None]]()

    async def run(
        regexes: Iterable[str], names: Iterable[str], told: Callable[[Meanings], None]
    ) -> None:
        try:
            found = await work.run(find_meanings, regexes, names)
        except Exception:  # noqa: BLE001 - one group's trouble is not the others'
            LOGGER.exception("expressions can't be looked up")
            found = {}
        told(found)

    def look_up(
        regexes: Iterable[str], names: Iterable[str], told: Callable[[Meanings], None]
    ) -> None:
        task = asyncio.get_running_loop().create_task(run(regexes, names, told))
        running.add(task)
        task.add_done_callback(running.discard)

    return look_up
