"""Topics of the broker by name and id: created, grown, altered, deleted, or created on demand.

A deletion is decided and durable once the registry says so and the directories have other names.
The files, of which there may be very many, are removed afterwards in a thread; what is left when
the broker stops is removed after its next start.

Source: Kafka 4.3's LogManager (deleted logs are renamed and removed `file.delete.delay.ms` later).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from tidelog.config import BrokerConfig
from tidelog.errors import StorageFailure
from tidelog.server.partitions.partitions import Partitions
from tidelog.server.runtime.threads import Work
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.types import INTERNAL_TOPICS, OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

__all__ = ["INTERNAL_TOPICS", "OFFSETS_TOPIC", "SHARE_STATE_TOPIC", "TRANSACTIONS_TOPIC", "Topics"]


_Told = TypeVar("_Told")


class Topics:
    """What topics there are. Belongs to the loop's thread.

    Attributes:
        on_deleted: Called with each topic that was deleted, as it was.
    """

    def __init__(self, log_dir: LogDir, partitions: Partitions, config: BrokerConfig) -> None:
        self._log_dir = log_dir
        self._partitions = partitions
        self._config = config
        self._seen: Mapping[str, TopicInfo] = {}
        self._names: dict[UUID, str] = {}
        # Held while `api.topic_changes` makes one.
        self.changing = asyncio.Lock()
        self.on_deleted: list[Callable[[TopicInfo], None]] = []
        self._running = set[asyncio.Task[object]]()

    def all(self) -> Mapping[str, TopicInfo]:
        """All topics by name."""
        return self._log_dir.topics()

    def find(self, name: str) -> TopicInfo | None:
        """A topic by name, None where there is none."""
        return self._log_dir.topics().get(name)

    def find_by_id(self, topic_id: UUID) -> TopicInfo | None:
        """A topic by id, None where there is none."""
        topics = self._log_dir.topics()
        if topics is not self._seen:  # the registry makes a new mapping at each change
            self._seen = topics
            self._names = {info.topic_id: name for name, info in topics.items() if info.topic_id}
        name = self._names.get(topic_id)
        return None if name is None else topics.get(name)

    def create(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Create a topic; errors as `LogDir.create_topic`.

        Args:
            name: Its name.
            partitions: How many, `num.partitions` where None.
            config: Its settings.
        """
        count = self._config.num_partitions if partitions is None else partitions
        return self._log_dir.create_topic(name, partitions=count, config=config)[0]

    def delete(self, name: str) -> list[str]:
        """Delete a topic, but for what is left of it; errors as `TopicAdmin.hide`.

        Returns:
            What `TopicAdmin.remove_set_aside` is to remove, beside the loop.
        """
        info = self._log_dir.topic(name)
        directories = self.hide([name])()
        self.tell_deleted(info)
        return directories

    def hide(self, names: Sequence[str]) -> Callable[[], list[str]]:
        """Show topics no more, and tell who waits for them; as `TopicAdmin.hide`."""
        delete = self._log_dir.topic_admin.hide(names)
        self._partitions.forget(frozenset(names))
        return delete

    def tell_deleted(self, info: TopicInfo) -> None:
        """A topic is deleted for good."""
        for listener in self.on_deleted:
            listener(info)

    def begin(self, change: Coroutine[object, object, _Told]) -> "asyncio.Task[_Told]":
        """Carry out a change that goes on where whoever waits for it goes away."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[object]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever has waited; nobody else wants to know

    async def settle(self) -> None:
        """Return when no such change goes on."""
        await asyncio.gather(*self._running, return_exceptions=True)

    @staticmethod
    def is_internal(name: str) -> bool:
        """Whether a topic is the broker's own."""
        return name in INTERNAL_TOPICS

    def names(self) -> Iterable[str]:
        """All names."""
        return self._log_dir.topics().keys()


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
            await self._work.run(self._log_dir.topic_admin.remove_set_aside, [path])
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
