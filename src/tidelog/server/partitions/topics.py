"""Topics of the broker by name and id: lookup, creation, deletion, removal of deleted files.

A deletion is durable once the registry records it and the directories are renamed. Afterwards a
thread removes the files, because there may be very many files. If files are left when the broker
stops, they are removed after its next start.

Source: Kafka 4.3's LogManager (deleted logs are renamed and removed `file.delete.delay.ms` later).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from tidelog.errors import StorageFailure
from tidelog.server.partitions.partitions import Partitions
from tidelog.server.runtime.threads import Work
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.types import INTERNAL_TOPICS

_Result = TypeVar("_Result")


class Topics:
    """The broker's topics. Used only in the event loop's thread.

    Attributes:
        on_deleted: Functions that are called with the last state of each deleted topic.
    """

    def __init__(self, log_dir: LogDir, partitions: Partitions) -> None:
        self._log_dir = log_dir
        self._partitions = partitions
        self._topics: Mapping[str, TopicInfo] = {}
        self._names: dict[UUID, str] = {}
        # Lock that is held while topics or their settings are changed, and while an offline
        # partition is reopened.
        self.changing = asyncio.Lock()
        self.on_deleted: list[Callable[[TopicInfo], None]] = []
        self._running = set[asyncio.Task[object]]()

    def all(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name."""
        return self._log_dir.topics()

    def find(self, name: str) -> TopicInfo | None:
        """Return a topic by name, or None if it does not exist."""
        return self._log_dir.topics().get(name)

    def find_by_id(self, topic_id: UUID) -> TopicInfo | None:
        """Return a topic by id, or None if it does not exist."""
        topics = self._log_dir.topics()
        if topics is not self._topics:  # each change creates a new mapping
            self._topics = topics
            self._names = {info.topic_id: name for name, info in topics.items() if info.topic_id}
        name = self._names.get(topic_id)
        return None if name is None else topics.get(name)

    def hide(self, names: Sequence[str]) -> Callable[[], list[str]]:
        """Hide topics and close their partitions, so that requests that wait for them end.

        Returns the function of `TopicAdmin.hide` that deletes the topics.
        """
        delete = self._log_dir.topic_admin.hide(names)
        self._partitions.forget(frozenset(names))
        return delete

    def notify_deleted(self, info: TopicInfo) -> None:
        """Call the functions of `on_deleted` after a topic was deleted."""
        for listener in self.on_deleted:
            listener(info)

    def begin(self, change: Coroutine[object, object, _Result]) -> "asyncio.Task[_Result]":
        """Start a change that continues even if its caller is cancelled."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[object]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; a waiting caller got the error

    async def settle(self) -> None:
        """Return when the changes that are running now have ended."""
        await asyncio.gather(*self._running, return_exceptions=True)

    @staticmethod
    def is_internal(name: str) -> bool:
        """Whether a topic is internal to the broker."""
        return name in INTERNAL_TOPICS

    def names(self) -> Iterable[str]:
        """Return all topic names."""
        return self._log_dir.topics().keys()


# Number of waiting directories above which deletions wait for removals.
WAITING_LIMIT: Final = 10_000

_LOGGER: Final = logging.getLogger("tidelog.server")


class Removals:
    """Removes directories one after the other in a thread. Used only in the event loop's thread."""

    def __init__(self, work: Work, log_dir: LogDir, limit: int = WAITING_LIMIT) -> None:
        self._work = work
        self._log_dir = log_dir
        self._limit = limit
        self._paths = deque[str]()
        self._running: asyncio.Task[None] | None = None
        self._is_over = False
        self._room = asyncio.Condition()

    def add(self, paths: Iterable[str]) -> None:
        """Add renamed directories of deleted topics.

        Directories that are added after `stop` are not removed before the next start.
        """
        if not self._is_over:
            self._paths.extend(paths)
        if self._paths and self._running is None:
            self._running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            while self._paths:
                await self._remove(self._paths[0])
                if self._paths:  # empty if `stop` has dropped the paths
                    self._paths.popleft()
                async with self._room:
                    self._room.notify_all()
        finally:
            self._running = None

    async def _remove(self, path: str) -> None:
        try:
            await self._work.run(self._log_dir.topic_admin.remove_set_aside, [path])
        except StorageFailure as error:
            _LOGGER.warning(
                "files of deleted topics can't be removed until the next start: %s", error
            )

    async def wait_for_room(self) -> None:
        """Return when the number of waiting directories is within the limit."""
        async with self._room:
            await self._room.wait_for(lambda: len(self._paths) <= self._limit)

    async def settle(self) -> None:
        """Return when no directory waits for removal or is being removed."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Stop removals, and return when none is running.

        Directories that are left are removed after the next start. Pending calls of `wait_for_room`
        return.
        """
        self._is_over = True
        self._paths.clear()
        async with self._room:
            self._room.notify_all()
        await self.settle()
