"""Writing to `__consumer_offsets`, and waiting until what was written is safe.

Safe is what readers may see: with `tidelog.durability=fsync` that is what was synced.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tidelog.errors import MessageTooLarge, RecordListTooLarge, TidelogError
from tidelog.record.builder import build_batch
from tidelog.server.groups.codes import Code
from tidelog.server.groups.host import LOGGER, Host
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.reply import Reply
from tidelog.server.partitions import Partition
from tidelog.server.topics import OFFSETS_TOPIC
from tidelog.storage.appends import AppendOrigin
from tidelog.types import Codec, NewRecord


class OffsetsLog:
    """The topic's partitions, to be written to. Belongs to the loop's thread.

    Attributes:
        on_lost: Called with the number of a partition that failed.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._codec = Codec(host.config.offsets_topic_compression_codec)
        self._awaited: dict[int, Awaited] = {}
        self.on_lost: Callable[[int], None] = lambda _number: None

    def partition(self, number: int) -> Partition | None:
        """A partition, None where it can't be opened."""
        try:
            return self._host.partitions.get(OFFSETS_TOPIC, number)
        except TidelogError as error:
            LOGGER.warning("%s-%d can't be opened: %s", OFFSETS_TOPIC, number, error)
            return None

    def append(self, number: int, records: Sequence[GroupRecord]) -> Reply[Code]:
        """Write records in one batch; when they are safe, or why they were not written."""
        partition = self.partition(number)
        if partition is None:
            return Reply.of(Code.NOT_COORDINATOR)
        now_ms = self._host.env.clock.now_ms()
        made = build_batch(
            [NewRecord(key=record.key, value=record.value, timestamp=now_ms) for record in records],
            codec=self._codec,
        )
        try:
            result = partition.append(made, origin=AppendOrigin.COORDINATOR, owned=True)
        except (MessageTooLarge, RecordListTooLarge):
            return Reply.of(Code.UNKNOWN_SERVER_ERROR)
        except TidelogError as error:
            LOGGER.warning("%s: %s", partition.name, error)
            self.on_lost(number)
            return Reply.of(Code.NOT_COORDINATOR)
        return self._await(number, partition, result.last_offset)

    def _await(self, number: int, partition: Partition, last_offset: int) -> Reply[Code]:
        if partition.high_watermark > last_offset:
            return Reply.of(Code.NONE)
        awaited = self._awaited.get(number)
        if awaited is None or awaited.partition is not partition:
            awaited = self._awaited[number] = Awaited(partition, lambda: self.on_lost(number))
        return awaited.add(last_offset)

    def settled(self, number: int) -> Reply[Code]:
        """When all that was written to a partition is safe."""
        awaited = self._awaited.get(number)
        return Reply.of(Code.NONE) if awaited is None else awaited.settled()


class Awaited:
    """Writes to one partition that are not safe yet, in order. Belongs to the loop's thread."""

    def __init__(self, partition: Partition, on_failure: Callable[[], None]) -> None:
        self.partition = partition
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, Reply[Code]]] = deque()

    def add(self, last_offset: int) -> Reply[Code]:
        """When records up to this offset, inclusive, are safe."""
        reply = Reply[Code]()
        if not self._waiting:
            self.partition.watch(self._look)
        self._waiting.append((last_offset, reply))
        return reply

    def settled(self) -> Reply[Code]:
        """When all of them are."""
        return self.add(self._waiting[-1][0]) if self._waiting else Reply.of(Code.NONE)

    def _look(self) -> None:
        if self.partition.failure is not None or self.partition.is_gone:
            self._fail()
            return
        end = self.partition.high_watermark
        while self._waiting and self._waiting[0][0] < end:
            self._waiting.popleft()[1].complete(Code.NONE)
        if not self._waiting:
            self.partition.unwatch(self._look)

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self.partition.unwatch(self._look)
        for _, reply in waiting:
            reply.complete(Code.NOT_COORDINATOR)
        self._on_failure()
