"""`__consumer_offsets`: loaded groups by name, writes, transactional writes.

A standby's offsets taken in.

The partitions of `__consumer_offsets` behind the groups: what is read of them, and written.

How a partition is loaded, lost and loaded again is `internal_topic`'s.

Source: Kafka 4.3's coordinator runtime.

Batches of `__consumer_offsets`: what groups write, plain or in a transaction.

What a standby kept of its leader's groups: taken into `__consumer_offsets` when it is served.

A copy of a directory that `tidelog follow` made has the offsets of groups in a file of its own. Who
serves it promotes it, so they go into the topic before any group is answered, and the file goes
when they are durable. A file that can't be read keeps all groups from being served: without it they
would go on somewhere else. What the topic knows already stays; a commit beyond the end of its
partition, which the copy had not reached, becomes the end. Source: docs/follow.md, docs/groups.md.
"""

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError, UnknownTopic
from tidelog.protocol.wire import NO_UUID
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.server.coordinator.host import LOGGER, Host
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.coordinator.log_loader import KernelsOf
from tidelog.server.coordinator.state_topic import RETRY_MS, Gathering, InternalTopic, KeyValue
from tidelog.server.groups.classic_group import ClassicGroup
from tidelog.server.groups.committed_offsets import CommittedOffset
from tidelog.server.groups.records import offset_record
from tidelog.server.groups.replay import (
    AnyGroup,
    LoadedGroup,
    LoadedPending,
    LoadedShard,
    Replay,
    revive_all,
)
from tidelog.server.partitions.partition import (
    Guard,
    TransactionEnd,
    append_in_transaction,
    end_transaction,
)
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.broker_files import GROUPS_FILE, GroupOffset, read_group_offsets
from tidelog.storage.log.append import AppendOrigin
from tidelog.storage.log.log import Log
from tidelog.types import NO_LEADER_EPOCH, NO_SEQUENCE, OFFSETS_TOPIC, Codec, TopicPartition


class OffsetsLog:
    """The topic's partitions, to be written to. Belongs to the loop's thread."""

    def __init__(self, host: Host, topic: InternalTopic[LoadedShard]) -> None:
        self._clock = host.env.clock
        self._codec = Codec(host.config.offsets_topic_compression_codec)
        self._topic = topic
        self._gathering = Gathering(topic, self._write)
        host.closers.append(self._gathering.flush_all)

    def append(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records, those of a turn of the loop together; when they are safe, or why not.

        A failure that is known at once is answered at once: then nothing was written.
        """
        return self._gathering.append(number, records)

    def append_now(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records in a batch of their own; as `append`."""
        self._gathering.flush(number)
        return self._write(number, records)

    def settled(self, number: int) -> Reply[ErrorCode]:
        """When all that was written to a partition is safe."""
        return self._gathering.pending(number) or self._topic.settled(number)

    def _write(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        made = build_batch(records, codec=self._codec, default_timestamp=self._clock.now_ms())
        return self._topic.append(number, made)

    def append_pending(
        self,
        number: int,
        records: Sequence[KeyValue],
        producer: tuple[int, int],
        guard: Guard | None,
    ) -> Reply[ErrorCode]:
        """Write records that count once a producer's transaction is committed.

        Args:
            number: The partition.
            records: In one batch.
            producer: Id and epoch.
            guard: What the partition gave before the coordinator of transactions was asked.
        """
        self._gathering.flush(number)
        made = build_batch(
            records,
            codec=self._codec,
            default_timestamp=self._clock.now_ms(),
            producer_id=producer[0],
            producer_epoch=producer[1],
            transactional=True,
        )
        batch, origin = RecordBatch(made, 0), AppendOrigin.COORDINATOR
        return self._topic.write(
            number,
            lambda partition: append_in_transaction(partition, made, batch, guard, origin=origin),
        )

    def end_transaction(self, number: int, end: TransactionEnd) -> Reply[ErrorCode]:
        """Write the marker that ends a producer's transaction."""
        self._gathering.flush(number)
        return self._topic.write(number, lambda partition: end_transaction(partition, end))


# Far below what a batch may hold.
RECORDS_PER_BATCH: Final = 500


_UNREADABLE: Final = (
    "%s can't be read, and no group is served before it can be: %s. Let `tidelog follow` write it"
    " anew, or mend it; without the file groups go on with what __consumer_offsets has of them"
)


Taken = tuple[AnyGroup, GroupOffset, CommittedOffset]


class Standby:
    """The file, until it has been taken in. Belongs to the loop's thread.

    Attributes:
        is_read: Whether it was read, and still is there.
    """

    def __init__(self, host: Host, topic: InternalTopic[LoadedShard], log: OffsetsLog) -> None:
        self._host = host
        self._topic = topic
        self._log = log
        self._path = posixpath.join(host.log_dir.path, GROUPS_FILE)
        self._groups: dict[str, list[GroupOffset]] = {}
        self._failed_ms: int | None = None
        self.is_read = False

    @property
    def is_there(self) -> bool:
        """Whether there is such a file."""
        return self._host.env.files.exists(self._path)

    @property
    def may_read(self) -> bool:
        """Whether it is time to read the file: not just after that has failed."""
        if self._failed_ms is None:
            return True
        return self._host.env.clock.monotonic_ms() - self._failed_ms >= RETRY_MS

    async def read(self) -> bool:
        """Read the file; False where it can't be read, which is logged: then no group is served."""
        try:
            found = await self._host.work.run(
                read_group_offsets, self._host.env.files, self._host.log_dir.path
            )
        except (TidelogError, OSError) as error:
            self._failed_ms = self._host.env.clock.monotonic_ms()
            LOGGER.error(_UNREADABLE, self._path, error)
            return False
        self._failed_ms, self.is_read = None, True
        self._groups = {} if found is None else {n: list(c) for n, c in found.groups.items()}
        partitions = self._host.partitions
        places = {(each.topic, each.partition) for all_ in self._groups.values() for each in all_}
        await partitions.open_beside(partitions.unopened(places), self._host.work)
        return True

    def take_in(self, number: int, count: int, groups: dict[str, AnyGroup]) -> bool:
        """Add what a partition of the topic, of so many, lacks; whether all could be written.

        Raises:
            StorageFailure: A partition that groups have committed for can't be opened.
        """
        taken = list(self._missing(number, count, groups))
        for at in range(0, len(taken), RECORDS_PER_BATCH):
            part = taken[at : at + RECORDS_PER_BATCH]
            records = [
                offset_record(group.group_id, place.topic, place.partition, offset)
                for group, place, offset in part
            ]
            written = self._log.append_now(number, records)
            if written.is_done and written.value is not ErrorCode.NONE:
                return False
            for group, place, offset in part:
                group.offsets.put(place.topic, place.partition, offset)
                groups[group.group_id] = group
        return True

    def _missing(self, number: int, count: int, groups: dict[str, AnyGroup]) -> Iterator[Taken]:
        now_ms = self._host.env.clock.now_ms()
        for group_id, places in self._groups.items():
            if partition_for(group_id, count) != number:
                continue
            group = groups.get(group_id) or ClassicGroup(group_id, now_ms)
            for place in places:
                offset = self._offset(place, now_ms)
                if offset is not None and group.offsets.get(place.topic, place.partition) is None:
                    yield group, place, offset

    def _offset(self, place: GroupOffset, now_ms: int) -> CommittedOffset | None:
        """The commit, at most the end of its partition; None where there is no such partition.

        Raises:
            StorageFailure: That can't be told now.
        """
        info = self._host.topics.find(place.topic)
        try:
            log = self._host.partitions.get(place.topic, place.partition).log
        except UnknownTopic:
            return None
        return CommittedOffset(
            min(place.offset, log.log_end_offset),
            NO_LEADER_EPOCH if place.leader_epoch is None else place.leader_epoch,
            place.metadata,
            now_ms,
            topic_id=NO_UUID if info is None or info.topic_id is None else info.topic_id,
        )

    async def finish(self, count: int) -> None:
        """All is in the topic: remove the file once that is durable."""
        try:
            for number in range(count):
                await self._sync(number)
            if not self._topic.is_served:
                return  # one was lost meanwhile, and takes it in again before this is tried again
            self._groups = {}
            await self._host.work.run(self._remove)
            self.is_read = False
        except (TidelogError, OSError) as error:
            LOGGER.error("%s stays for now, all of it was taken in: %s", self._path, error)

    async def _sync(self, number: int) -> None:
        partition = self._topic.partition(number)
        if partition is None or partition.log.recovery_point >= partition.log.log_end_offset:
            return
        await partition.flushed()

    def _remove(self) -> None:
        self._host.env.files.remove(self._path)
        self._host.env.files.sync_dir(self._host.log_dir.path)


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

    def append(self, group_id: str, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
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
        records: Sequence[KeyValue],
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
