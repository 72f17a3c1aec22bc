"""The partitions of `__consumer_offsets` behind the groups: what is read of them, and written.

How a partition is loaded, lost and loaded again is `internal_topic`'s.

Source: Kafka 4.3's coordinator runtime.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.host import LOGGER, Host
from tidelog.server.groups.internal_topic import InternalTopic
from tidelog.server.groups.journal import OffsetsLog
from tidelog.server.groups.log_pieces import KernelsOf
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.replay import (
    LoadedGroup,
    LoadedPending,
    LoadedShard,
    Replay,
    revive_all,
)
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.standby import Standby
from tidelog.server.open_transactions import Guard, TransactionEnd
from tidelog.server.topics import OFFSETS_TOPIC
from tidelog.storage.log import Log
from tidelog.types import NO_SEQUENCE, TopicPartition

if TYPE_CHECKING:
    from tidelog.server.groups.table import AnyGroup


class Asked(NamedTuple):
    """What the coordinator of transactions is to be asked, and what is held meanwhile.

    Attributes:
        place: The partition that a transaction has to be open in.
        guard: None where it is open already.
    """

    place: TopicPartition
    guard: Guard | None


class Shards:
    """All partitions of the topic. Belongs to the loop's thread.

    Attributes:
        on_loaded: Called with the number of a partition that was loaded, and its groups by name.
        on_pending: Called with the number of a partition that was loaded, and what transactions
            that are open have committed in it; before `on_loaded`.
        on_ended: Called where a marker was written, with the partition's number.
    """

    def __init__(self, host: Host, on_lost: Callable[[int | None], None]) -> None:
        """Nothing is loaded yet.

        Args:
            host: The broker.
            on_lost: Called with the number of a partition that can't be served any more, None for
                all.
        """
        self._host = host
        config = host.config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        self._topic: InternalTopic[LoadedShard] = InternalTopic(
            host,
            OFFSETS_TOPIC,
            LOGGER,
            partitions=config.offsets_topic_num_partitions,
            settings=settings,
        )
        self._topic.read, self._topic.completes = self._read, self._complete
        self._topic.take, self._topic.on_lost = self._take, on_lost
        self._log = OffsetsLog(host, self._topic)
        self._standby = Standby(host, self._topic, self._log)
        self._topic.after_load = self._finish_promotion
        self.on_loaded: Callable[[int, Mapping[str, AnyGroup]], None] = lambda _number, _all: None
        self.on_pending: Callable[[int, Sequence[LoadedPending]], None] = lambda _number, _all: None
        self.on_ended: Callable[[int, TransactionEnd], None] = lambda _number, _end: None

    def resume(self) -> None:
        """Begin to read what the topic has; fine where that was begun, or there is nothing."""
        topic = self._topic
        if topic.is_there or topic.is_loading:
            return
        if not self._standby.is_there:
            topic.resume()
        elif self._standby.may_read:
            topic.begin(self._promote())

    async def _promote(self) -> None:
        """Serve a standby's groups: its offsets go into the topic while that is loaded."""
        if not await self._standby.read():
            return
        await self._topic.load()

    async def _finish_promotion(self) -> None:
        """The file goes once all partitions are served, at the start or when they could be read."""
        if self._standby.is_read and self._topic.is_served:
            await self._standby.finish(self._topic.count)

    # -- questions ---------------------------------------------------------------------------

    def number_of(self, group_id: str) -> int:
        """A group's partition; there must be some."""
        return self._topic.number_of(group_id)

    def code_for(self, group_id: str) -> ErrorCode:
        """Why a group can't be served now, `NONE` where it can."""
        return self._topic.code_for(group_id)

    @property
    def is_loading(self) -> bool:
        """Whether some partition waits to be loaded."""
        return self._topic.is_loading

    async def loaded(self, group_id: str | None, *, wait_s: float) -> None:
        """Return when a group (all where None) is loaded, well or not, or after some seconds."""
        await self._topic.loaded(group_id, wait_s=wait_s)

    @property
    def has_topic(self) -> bool:
        """Whether the topic is there."""
        return self._topic.is_there

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic where it is not there; why that can't be, `NONE` where it is."""
        self.resume()
        topic = self._topic
        if not topic.is_there and (topic.is_loading or self._standby.is_there):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # what a standby knew comes first
        return await self._topic.ensure()

    def forget_topic(self) -> None:
        """The topic was deleted: there are no groups any more."""
        self._topic.forget()

    # -- writing -----------------------------------------------------------------------------

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> Reply[ErrorCode]:
        """Write a group's records; when they are safe, or why they were not written."""
        return self._log.append(self.number_of(group_id), records)

    def guard(self, group_id: str, producer: tuple[int, int], *, raises_epochs: bool) -> Asked:
        """What a producer holds while the coordinator of transactions is asked for a group's."""
        number = self.number_of(group_id)
        place = TopicPartition(OFFSETS_TOPIC, number)
        partition = self._topic.partition(number)
        if partition is None:
            return Asked(place, None)
        guard = partition.transactions.guard(
            partition.log.producer_states(),
            producer,
            NO_SEQUENCE,
            raises_epochs=raises_epochs,
            now_ms=self._host.env.clock.now_ms(),
        )
        return Asked(place, guard)

    def append_pending(
        self,
        group_id: str,
        records: Sequence[GroupRecord],
        producer: tuple[int, int],
        guard: Guard | None,
    ) -> Reply[ErrorCode]:
        """Write a group's records as part of a transaction; as `append`."""
        return self._log.append_pending(self.number_of(group_id), records, producer, guard)

    def end_transaction(self, number: int, end: TransactionEnd) -> Reply[ErrorCode]:
        """Write the marker that ends a producer's transaction; what it has committed counts then.

        A partition that is not served now answers with a code after which it is tried again.
        """
        if not self._topic.is_active(number):
            return Reply.of(self._topic.code_of(number))
        written = self._log.end_transaction(number, end)
        if not written.is_done or written.value is ErrorCode.NONE:
            self.on_ended(number, end)
        return written

    def settled(self, group_id: str) -> Reply[ErrorCode]:
        """When all that was written of a group's partition is safe."""
        return self._log.settled(self.number_of(group_id))

    # -- loading -----------------------------------------------------------------------------

    async def _read(self, log: Log) -> LoadedShard:
        """What a partition's records say."""
        replay, work = Replay(), self._host.work
        if log.log_end_offset > log.log_start_offset:
            pieces = replay.take(log.slices(), KernelsOf(self._host))
            while await work.run(next, pieces, None) is not None:
                pass
        loaded = await work.run(replay.groups)
        pending = await work.run(replay.pending)
        for each in pending:
            loaded.setdefault(each.found.group_id, LoadedGroup())
        for line in replay.skipped:
            LOGGER.warning("%s: left out: %s", log.topic_partition, line)
        groups = await work.run(revive_all, loaded, self._host.env.clock.now_ms())
        return LoadedShard(groups, pending)

    def _complete(self, number: int, found: LoadedShard) -> bool:
        return self._standby.take_in(number, self._topic.count, found.groups)

    def _take(self, number: int, found: LoadedShard) -> None:
        self.on_pending(number, found.pending)
        self.on_loaded(number, found.groups)
