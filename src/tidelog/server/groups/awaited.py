"""Writes that wait until they are safe, without an event loop.

Safe is what readers may see: with `tidelog.durability=fsync` that is what was synced.
"""

from collections import deque
from collections.abc import Callable

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.reply import Reply
from tidelog.server.partitions import Partition


class Awaited:
    """Writes to one partition that are not safe yet, in order. Belongs to the loop's thread."""

    def __init__(self, partition: Partition, on_failure: Callable[[], None]) -> None:
        self.partition = partition
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, Reply[ErrorCode]]] = deque()

    def add(self, last_offset: int) -> Reply[ErrorCode]:
        """When records up to this offset, inclusive, are safe."""
        reply: Reply[ErrorCode] = Reply()
        if not self._waiting:
            self.partition.watch(self._look)
        self._waiting.append((last_offset, reply))
        return reply

    def settled(self) -> Reply[ErrorCode]:
        """When all of them are."""
        return self.add(self._waiting[-1][0]) if self._waiting else Reply.of(ErrorCode.NONE)

    def _look(self) -> None:
        if self.partition.failure is not None or self.partition.is_gone:
            self._fail()
            return
        end = self.partition.high_watermark
        while self._waiting and self._waiting[0][0] < end:
            self._waiting.popleft()[1].complete(ErrorCode.NONE)
        if not self._waiting:
            self.partition.unwatch(self._look)

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self.partition.unwatch(self._look)
        for _, reply in waiting:
            reply.complete(ErrorCode.NOT_COORDINATOR)
        self._on_failure()
