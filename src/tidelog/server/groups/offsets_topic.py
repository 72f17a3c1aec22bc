"""`__consumer_offsets`: writes of groups, transactional commits, and the offsets of a standby.

`coordinator.state_topic` loads partitions, and reloads them after a failure. The group coordinator
owns the groups.

A directory copied by `tidelog follow` has the offsets of its leader's groups in a file. When a
broker serves such a directory, it writes each group's offsets to the topic before it serves the
group. It removes the file once the offsets of all groups are durable. While the file can't be read,
no group is served, because groups would otherwise resume at wrong offsets. `Standby.take_in` states
which offsets in the topic stay. If the standby had not copied all records, a committed offset may
be beyond the end of its partition. In this case the broker writes the partition's end instead.

Source: docs/follow.md, docs/groups.md; KIP-98 (offsets in transactions).
"""

import logging
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.config import BrokerConfig
from tidelog.config.group import GroupSettings
from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError, UnknownTopic
from tidelog.protocol.wire import NO_UUID
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.coordinator.state_topic import (
    GATHERED_BYTES_MAX,
    RETRY_MS,
    KeyValue,
    PartitionedMap,
    StateMachine,
    StateTopic,
    TopicSpec,
    is_accepted,
    size_of,
)
from tidelog.server.groups.classic_group import ClassicGroup
from tidelog.server.groups.committed_offsets import CommittedOffset, PendingOffsets
from tidelog.server.groups.records import offset_record
from tidelog.server.groups.replay import AnyGroup, LoadedShard
from tidelog.server.partitions.partition import (
    Guard,
    TransactionEnd,
    append_in_transaction,
    end_transaction,
)
from tidelog.server.partitions.services import Services
from tidelog.server.partitions.topics import Topics
from tidelog.server.runtime.loop import Timer, Timers
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.broker_files import GROUPS_FILE, GroupOffset, read_group_offsets
from tidelog.storage.log.append_types import COORDINATED
from tidelog.types import NO_LEADER_EPOCH, NO_SEQUENCE, OFFSETS_TOPIC, Codec, TopicPartition

LOGGER: Final = logging.getLogger("tidelog.server.groups")
_UUID_BITS: Final = 128

_UNREADABLE: Final = (
    "%s can't be read: %s. No group is served until the file can be read. Rewrite it with `tidelog"
    " follow`, or repair it; if you delete it, groups resume at their offsets in __consumer_offsets"
)

GroupCommit = tuple[AnyGroup, GroupOffset, CommittedOffset]


class Standby:
    """Offsets file of a standby, until it has been imported. Used only in the event loop's thread.

    Attributes:
        is_read: Whether the file has been read and still exists.
    """

    def __init__(self, services: Services, topic: "OffsetsTopic") -> None:
        self._services = services
        self._topic = topic
        self._path = posixpath.join(services.log_dir.path, GROUPS_FILE)
        self._groups: dict[str, list[GroupOffset]] = {}
        self._fetched_ms, self._topic_copied = 0, False
        self._failed_ms: int | None = None
        self.is_read = False

    @property
    def is_there(self) -> bool:
        """Whether the file exists."""
        return self._services.env.files.exists(self._path)

    @property
    def may_read(self) -> bool:
        """Whether to read the file now: False for `RETRY_MS` after a failed attempt."""
        if self._failed_ms is None:
            return True
        return self._services.env.clock.monotonic_ms() - self._failed_ms >= RETRY_MS

    async def read(self) -> bool:
        """Read the file.

        If the file can't be read, log the error and return False. In this case no group is served.
        """
        try:
            group_offsets = await self._services.work.run(
                read_group_offsets, self._services.env.files, self._services.log_dir.path
            )
        except (TidelogError, OSError) as error:
            self._failed_ms = self._services.env.clock.monotonic_ms()
            LOGGER.error(_UNREADABLE, self._path, error)
            return False
        self._failed_ms, self.is_read = None, True
        self._groups = {}
        if group_offsets is not None:
            self._fetched_ms = group_offsets.fetched_ms
            self._topic_copied = group_offsets.topic_copied
            self._groups = {name: list(each) for name, each in group_offsets.groups.items()}
        await self._services.partitions.ensure_open(
            {(each.topic, each.partition) for all_ in self._groups.values() for each in all_}
        )
        return True

    def take_in(self, number: int, count: int, groups: dict[str, AnyGroup]) -> bool:
        """Write the standby's offsets to a partition of the topic, except for older ones.

        An offset is older if its group has committed in this directory since the file was written.
        Other commits in this directory are from before it followed its leader. If the standby also
        copied the topic, all commits in the topic stay, because they are the leader's own, and may
        be newer than the file. Return False if a write fails.

        Args:
            number: Number of the partition of `__consumer_offsets`.
            count: Number of partitions of `__consumer_offsets`.
            groups: Groups of the partition by id. Imported groups are added.

        Raises:
            StorageFailure: A partition with a committed offset can't be opened.
        """
        for commits, records in _batches(list(self._missing(number, count, groups))):
            written = self._topic.append_now(number, records)
            if not is_accepted(written):
                return False
            for group, commit, offset in commits:
                group.offsets.put(commit.topic, commit.partition, offset)
                groups[group.group_id] = group
        return True

    def _missing(
        self, number: int, count: int, groups: dict[str, AnyGroup]
    ) -> Iterator[GroupCommit]:
        now_ms = self._services.env.clock.now_ms()
        for group_id, commits in self._groups.items():
            if partition_for(group_id, count) != number:
                continue
            group = groups.get(group_id) or ClassicGroup(group_id, now_ms)
            for commit in commits:
                offset = self._offset(commit, now_ms)
                here = group.offsets.get(commit.topic, commit.partition)
                if offset is not None and (here is None or self._is_stale(here)):
                    yield group, commit, offset

    def _is_stale(self, here: CommittedOffset) -> bool:
        return not self._topic_copied and here.commit_ms < self._fetched_ms

    def _offset(self, commit: GroupOffset, now_ms: int) -> CommittedOffset | None:
        """Return the committed offset to import; None if the partition doesn't exist.

        An offset above the partition's log end is replaced by the log end.

        Raises:
            StorageFailure: The partition can't be opened now.
        """
        info = self._services.topics.find(commit.topic)
        try:
            log = self._services.partitions.get(commit.topic, commit.partition).log
        except UnknownTopic:
            return None
        return CommittedOffset(
            min(commit.offset, log.log_end_offset),
            NO_LEADER_EPOCH if commit.leader_epoch is None else commit.leader_epoch,
            commit.metadata,
            now_ms,
            topic_id=NO_UUID if info is None or info.topic_id is None else info.topic_id,
        )

    async def finish(self, count: int) -> None:
        """Remove the file once all of its offsets are durable in the topic."""
        try:
            for number in range(count):
                await self._sync(number)
            if not self._topic.is_served:
                return  # a partition failed; `finish` is called again after its reload
            self._groups = {}
            await self._services.work.run(self._remove)
            self.is_read = False
        except (TidelogError, OSError) as error:
            LOGGER.error("imported all offsets of %s, but can't remove it: %s", self._path, error)

    async def _sync(self, number: int) -> None:
        partition = self._topic.partition(number)
        if partition is None or partition.log.recovery_point >= partition.log.log_end_offset:
            return
        await partition.flushed()

    def _remove(self) -> None:
        self._services.env.files.remove(self._path)
        self._services.env.files.sync_dir(self._services.log_dir.path)


def _batches(
    missing: Iterable[GroupCommit],
) -> Iterator[tuple[list[GroupCommit], list[KeyValue]]]:
    """Divide commits into batches of at most `GATHERED_BYTES_MAX` bytes; yield commits and records.

    A commit that is larger than this maximum becomes a batch of its own.
    """
    commits: list[GroupCommit] = []
    records: list[KeyValue] = []
    size_bytes = 0
    for group, commit, offset in missing:
        record = offset_record(group.group_id, commit.topic, commit.partition, offset)
        record_bytes = size_of([record])
        if records and size_bytes + record_bytes > GATHERED_BYTES_MAX:
            yield commits, records
            commits, records, size_bytes = [], [], 0
        commits.append((group, commit, offset))
        records.append(record)
        size_bytes += record_bytes
    if records:
        yield commits, records


class GuardedPartition(NamedTuple):
    """A partition, and its guard while the transaction coordinator verifies a transaction.

    Attributes:
        partition: The partition in which the transaction has to be open.
        guard: None if the transaction is already open, or the partition can't be opened.
    """

    partition: TopicPartition
    guard: Guard | None


class OffsetsTopic(StateTopic[LoadedShard]):
    """All partitions of `__consumer_offsets`. Used only in the event loop's thread."""

    def __init__(self, services: Services, machine: StateMachine[LoadedShard]) -> None:
        """Create an instance that has loaded nothing yet. `machine` receives the loaded groups."""
        config = services.config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        spec = TopicSpec(
            OFFSETS_TOPIC,
            LOGGER,
            partitions=config.offsets_topic_num_partitions,
            settings=settings,
            codec=Codec(config.offsets_topic_compression_codec),
        )
        super().__init__(services, machine, spec)
        self._standby = Standby(services, self)

    # -- a standby's offsets -----------------------------------------------------------------

    def resume(self) -> None:
        """Start loading the topic and a standby's offsets; no-op if already started."""
        if self.has_topic or self.is_loading:
            return
        if not self._standby.is_there:
            super().resume()
        elif self._standby.may_read:
            self.begin(self._promote())

    async def _promote(self) -> None:
        """Load the topic and import the standby's offsets while it loads."""
        if await self._standby.read():
            await self.load()

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic if it is missing; return `NONE`, or the error code of the failure."""
        self.resume()
        if not self.has_topic and (self.is_loading or self._standby.is_there):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # the standby's offsets are imported first
        return await super().ensure_topic()

    def complete(self, number: int, loaded: LoadedShard) -> bool:
        """Import a standby's offsets into a loaded partition; return False if a write fails."""
        return self._standby.take_in(number, self.count, loaded.groups)

    async def all_loaded(self) -> None:
        """Remove the standby's file if all partitions are served."""
        if self._standby.is_read and self.is_served:
            await self._standby.finish(self.count)

    def error_for_member(self, group_id: str) -> ErrorCode:
        """Return the error code of a group's partition; an empty group id gets INVALID_GROUP_ID."""
        return self.error_for(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    # -- transactions ------------------------------------------------------------------------

    def guard(
        self, group_id: str, producer: tuple[int, int], *, raises_epochs: bool
    ) -> GuardedPartition:
        """Return the group's partition, and its guard while the transaction is verified."""
        number = self.number_of(group_id)
        name = TopicPartition(OFFSETS_TOPIC, number)
        partition = self.partition(number)
        if partition is None:
            return GuardedPartition(name, None)
        guard = partition.transactions.guard(
            partition.log.producer_states(),
            producer,
            NO_SEQUENCE,
            raises_epochs=raises_epochs,
            now_ms=self._clock.now_ms(),
        )
        return GuardedPartition(name, guard)

    def append_pending(
        self,
        group_id: str,
        records: Sequence[KeyValue],
        producer: tuple[int, int],
        guard: Guard | None,
    ) -> Reply[ErrorCode]:
        """Write a group's records, which take effect when the producer's transaction commits.

        Args:
            group_id: Id of the group.
            records: Records, written in one batch.
            producer: Producer id and epoch.
            guard: Guard taken before the transaction was verified.
        """
        data = build_batch(
            records,
            codec=self._spec.codec,
            default_timestamp=self._clock.now_ms(),
            producer_id=producer[0],
            producer_epoch=producer[1],
            transactional=True,
        )
        batch = RecordBatch(data)
        return self.write(
            self.number_of(group_id),
            lambda partition: append_in_transaction(partition, data, batch, guard, COORDINATED),
        )

    def end_transaction(self, number: int, end: TransactionEnd) -> Reply[ErrorCode]:
        """Write the marker that ends a producer's transaction.

        If the partition is not served now, the result is a retriable error code.
        """
        if not self.is_active(number):
            return Reply.of(self.error_of(number))
        return self.write(number, lambda partition: end_transaction(partition, end))


class GroupContext(NamedTuple):
    """Dependencies of the rules of all groups. Used only in the event loop's thread.

    Attributes:
        table: Loaded groups.
        topic: Log of the groups' records.
        pending: Offsets committed in open transactions.
        topics: Topics of the broker.
        timers: Timers of the broker.
        clock: Wall and monotonic time.
        random: Source of member ids.
        config: Settings of the broker.
        settings: Settings of single groups.
    """

    table: PartitionedMap[AnyGroup]
    topic: OffsetsTopic
    pending: PendingOffsets
    topics: Topics
    timers: Timers
    clock: Clock
    random: Random
    config: BrokerConfig
    settings: GroupSettings

    def new_classic_group(self, group_id: str) -> ClassicGroup:
        """Return a new classic group without members, which is not in the table of groups yet."""
        return ClassicGroup(group_id, self.clock.now_ms())

    def get_or_create(self, group_id: str) -> AnyGroup:
        """Return a group. A missing group is created as a classic group without members."""
        group = self.table.get(group_id)
        if group is None:
            group = self.new_classic_group(group_id)
            self.table.put(group_id, group)
        return group

    def after(self, group: AnyGroup, delay_ms: int, action: Callable[[], object]) -> Timer:
        """Call `action` after a delay, unless the group has been unloaded by then."""

        def act() -> None:
            if self.table.get(group.group_id) is group:
                action()

        return self.timers.after(delay_ms, act)

    def new_uuid(self) -> UUID:
        """Return a random UUID for a new member's id."""
        return UUID(int=self.random.getrandbits(_UUID_BITS), version=4)
