"""What deleted topics have left on the disk goes behind the answer, beside the loop.

A deletion is decided, and durable, when the registry says it and directories have other names: no
answer waits for their files, of which there may be very many. What has not gone when the broker
ends goes after its next start.

Source: Kafka 4.3's LogManager (deleted logs are renamed, and go `file.delete.delay.ms` later).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

from tidelog.errors import StorageFailure
from tidelog.server.work import Work
from tidelog.storage.log_dir import LogDir

# Directories that wait; with more, whoever deletes waits for theirs, too.
WAITING_LIMIT: Final = 10_000
_LOGGER: Final = logging.getLogger("tidelog.server")


class Removals:
    """Directories that go one after the other, in one thread at a time. The loop's own."""

    def __init__(self, work: Work, log_dir: LogDir, limit: int = WAITING_LIMIT) -> None:
        self._work = work
        self._log_dir = log_dir
        self._limit = limit
        self._paths = deque[str]()
        self._running: asyncio.Task[None] | None = None
        self._is_over = False
        self._gone = asyncio.Condition()

    @property
    def waiting(self) -> int:
        """How many have not gone, the one that is going included."""
        return len(self._paths)

    def add(self, paths: Iterable[str]) -> None:
        """Let directories go that have been set aside; after a stop they stay."""
        if not self._is_over:
            self._paths.extend(paths)
        if self._paths and self._running is None:
            self._running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            while self._paths:
                await self._remove(self._paths[0])
                if self._paths:  # else a stop has given them up
                    self._paths.popleft()
                async with self._gone:
                    self._gone.notify_all()
        finally:
            self._running = None

    async def _remove(self, path: str) -> None:
        try:
            await self._work.run(self._log_dir.remove_set_aside, [path])
        except StorageFailure as error:
            _LOGGER.warning("files of deleted topics stay until the next start: %s", error)

    async def wait_for_room(self) -> None:
        """Return when not too many wait."""
        async with self._gone:
            await self._gone.wait_for(lambda: len(self._paths) <= self._limit)

    async def settle(self) -> None:
        """Return when all have gone."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Return when none goes any more; those that are left go after the next start.

        Nobody waits for room any more.
        """
        self._is_over = True
        self._paths.clear()
        async with self._gone:
            self._gone.notify_all()
        await self.settle()
