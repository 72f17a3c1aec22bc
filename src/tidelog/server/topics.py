"""The broker's topics: by name, by id, created where a client asks for one that is not there."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from tidelog.config import BrokerConfig
from tidelog.server.partitions import Partitions
from tidelog.storage.log_dir import LogDir
from tidelog.storage.topic_info import TopicInfo
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
        # Held while `topic_changes` makes one.
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
        """Delete a topic, but for what is left of it; errors as `LogDir.hide_topics`.

        Returns:
            What `LogDir.remove_set_aside` is to remove, beside the loop.
        """
        info = self._log_dir.topic(name)
        left = self.hide([name])()
        self.tell_deleted(info)
        return left

    def hide(self, names: Sequence[str]) -> Callable[[], list[str]]:
        """Show topics no more, and tell who waits for them; as `LogDir.hide_topics`."""
        delete = self._log_dir.hide_topics(names)
        self._partitions.forget(frozenset(names))
        return delete

    def tell_deleted(self, info: TopicInfo) -> None:
        """A topic is deleted for good."""
        for told in self.on_deleted:
            told(info)

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
