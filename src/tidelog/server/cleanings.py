"""Partitions that a cleaner is at, and what waits until it is through.

A cleaning is made from segments that have to be there when it is swapped in. Were the oldest of
them deleted by retention meanwhile, a log that is so large that this happens each time would never
be compacted. So retention waits for the cleaning of its partition, and comes as soon as that ends.

Source: Kafka 4.x LogCleanerManager, where cleaning and deletion of one log exclude each other.
"""

from collections.abc import Callable

from tidelog.types import TopicPartition


class Cleanings:
    """The partitions. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._names: set[TopicPartition] = set()
        self._waiting: dict[TopicPartition, Callable[[], None]] = {}

    def __contains__(self, name: object) -> bool:
        """Whether a cleaner is at a partition, or it is lent to one."""
        return name in self._names

    def add(self, name: TopicPartition) -> None:
        """A cleaner begins."""
        self._names.add(name)

    def discard(self, name: TopicPartition) -> None:
        """It has ended, however it did; what waited for that is done now."""
        self._names.discard(name)
        action = self._waiting.pop(name, None)
        if action is not None:
            action()

    def when_ended(self, name: TopicPartition, action: Callable[[], None]) -> None:
        """Do something when the cleaner of a partition has ended, in the place of what waits so."""
        assert name in self._names
        self._waiting[name] = action
