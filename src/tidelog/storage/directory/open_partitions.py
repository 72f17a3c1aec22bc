"""Logs that are being opened beside their directory's thread, until that thread takes them in.

Opening reads, may recover and syncs: for a server that is too long. What a thread opens touches
nothing but the partition's own files and what all logs may use from any thread; it counts as open
only when the directory's thread has taken it in, which waits where that is asked too early. So no
partition is ever opened twice.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tidelog.storage.log.log import Log
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future


# Begins a call in another thread.
Submit: TypeAlias = "Callable[[Callable[[], Log]], Future[Log]]"


class LogOpenings:
    """Belongs to the directory's thread. begin -> take, once for each partition."""

    def __init__(self) -> None:
        self._begun: dict[TopicPartition, Future[Log]] = {}

    def begin(
        self, name: TopicPartition, open_log: Callable[[], Log], submit: Submit
    ) -> "Future[Log]":
        """Open a partition in a thread; the one that is under way where there is one."""
        found = self._begun.get(name)
        if found is None:
            found = self._begun[name] = submit(open_log)
        return found

    def is_over(self, name: TopicPartition) -> bool:
        """Whether an opening has ended, well or not, and was not taken in yet."""
        found = self._begun.get(name)
        return found is not None and found.done()

    def take(self, name: TopicPartition) -> Log | None:
        """The log, once it is open; None where its opening never began, or never will.

        Raises:
            TidelogError: Why it could not be opened; that is said once.
        """
        found = self._begun.pop(name, None)
        return None if found is None or found.cancel() or found.cancelled() else found.result()

    def leave(self, name: TopicPartition) -> Callable[[], Log | None]:
        """Never take it in; what returns the log once it is open, None where it never will be.

        For any thread.
        """
        found = self._begun.pop(name)

        def end() -> Log | None:
            gone = found.cancel() or found.cancelled() or found.exception() is not None
            return None if gone else found.result()

        return end

    def names(self, topic: str | None = None) -> list[TopicPartition]:
        """What was begun and not taken in, of one topic where one is named."""
        return [name for name in self._begun if topic is None or name.topic == topic]
