"""What is kept of all share partitions, in memory and in `__share_group_state`.

Each share partition has its place by the hash of its name. An update says what has changed; after
so many of them a snapshot says all again. What lies before everybody's last snapshot
is of no use any more: the log's start moves there, and who has said nothing for long says it again.

How a partition of the topic is loaded, lost and loaded again is `internal_topic`'s.

Source: KIP-932; Kafka 4.3's ShareCoordinatorShard and ShareCoordinatorOffsetsManager.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from logging import Logger, getLogger
from typing import Final
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.record.builder import build_batch
from tidelog.server.groups.by_partition import ByPartition
from tidelog.server.groups.host import Host
from tidelog.server.groups.internal_topic import InternalTopic
from tidelog.server.groups.reply import Reply
from tidelog.server.partitions import Partition
from tidelog.server.shares.kept import (
    UNCHANGED,
    UNKNOWN_COUNT,
    UNKNOWN_START,
    KeptState,
    ShareKey,
    Update,
)
from tidelog.server.shares.records import (
    KeyValue,
    forget_record,
    snapshot_record,
    update_record,
)
from tidelog.server.shares.replay import ShareReplay
from tidelog.server.topics import SHARE_STATE_TOPIC
from tidelog.server.watched import Watched
from tidelog.storage.log import Log
from tidelog.types import NewRecord

LOGGER: Final[Logger] = getLogger("tidelog.server.shares")
# Where so many records are of no use the log's start moves up.
USELESS_MAX: Final = 10_000
# So often it is looked whether so many are, while as many are written.
LOOKS: Final = 10
# So many that have said nothing for long are written again at a time.
COLD_MAX: Final = 100


@dataclass(slots=True)
class Entry:
    """One share partition.

    Attributes:
        key: Its name.
        kept: What was written of it, safe or on its way.
        snapshot: Offset of its last snapshot.
    """

    key: ShareKey
    kept: KeptState
    snapshot: int


class ShareStates(Watched):
    """Belongs to the loop's thread. Who watches is told when something was loaded, or lost.

    Attributes:
        on_lost: Called with what can't be served any more.
    """

    def __init__(self, host: Host) -> None:
        """Nothing is read yet."""
        super().__init__()
        self._host = host
        config = host.config
        self._updates_max = config.share_coordinator_snapshot_update_records_per_snapshot
        settings = {
            "cleanup.policy": "delete",
            "compression.type": "uncompressed",
            "retention.ms": "-1",
            "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
        }
        self._topic: InternalTopic[ShareReplay] = InternalTopic(
            host,
            SHARE_STATE_TOPIC,
            LOGGER,
            partitions=config.share_coordinator_state_topic_num_partitions,
            settings=settings,
        )
        self._topic.read, self._topic.take = self._read, self._take
        self._topic.on_lost = self._lose
        self._entries: ByPartition[Entry] = ByPartition(self._topic.number_of)
        self._known: Mapping[str, Entry] = self._entries.all
        # Each partition's log end when it was looked at last.
        self._looked: dict[int, int] = {}
        self.on_lost: Callable[[list[ShareKey]], None] = lambda _keys: None

    def resume(self) -> None:
        """Begin to read what the topic has; fine where that was begun, or there is nothing."""
        self._topic.resume()

    @property
    def is_loading(self) -> bool:
        """Whether some partition of the topic waits to be loaded."""
        return self._topic.is_loading

    async def loaded(self, key: str | None, *, wait_s: float) -> None:
        """Return when a share partition (all where None) is loaded, or after some seconds."""
        await self._topic.loaded(key, wait_s=wait_s)

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic where it is not there; why that can't be, `NONE` where it is."""
        return await self._topic.ensure()

    def forget_topic(self) -> None:
        """The topic was deleted: nothing is kept any more."""
        self._topic.forget()

    # -- questions ---------------------------------------------------------------------------

    def code_for(self, key: ShareKey) -> ErrorCode:
        """Why a share partition can't be served now, `NONE` where it can."""
        return self._topic.code_for(key.text)

    def find(self, key: ShareKey) -> KeptState | None:
        """What is kept of one; None for nothing. It must be served."""
        found = self._known.get(key.text)
        return None if found is None else found.kept

    def of_group(self, group_id: str) -> list[tuple[ShareKey, KeptState]]:
        """All that is kept of a group, as far as it is loaded; looks at all groups."""
        entries = self._known.values()
        return [(each.key, each.kept) for each in entries if each.key.group_id == group_id]

    def keys_without(self, has_topic: Callable[[UUID], bool]) -> list[ShareKey]:
        """Those whose topic is not there any more."""
        ids = {each.key.topic_id for each in self._known.values()}
        gone = {each for each in ids if not has_topic(each)}
        return [each.key for each in self._known.values() if each.key.topic_id in gone]

    # -- changes -----------------------------------------------------------------------------

    def initialize(self, key: ShareKey, start: int = UNKNOWN_START) -> Reply[ErrorCode]:
        """Begin anew from an offset on, or from where the group's settings say; when it is safe."""
        before = self.find(key)
        now_ms = self._host.env.clock.now_ms()
        # Of what begins at a known offset nothing is done with yet.
        count = UNKNOWN_COUNT if start == UNKNOWN_START else 0
        kept = KeptState(start=start, complete_count=count, created_ms=now_ms)
        if before is not None:
            kept = replace(
                kept,
                snapshot_epoch=before.snapshot_epoch + 1,
                state_epoch=before.state_epoch + 1,
                leader_epoch=before.leader_epoch,
            )
        return self._write_snapshot(key, kept)

    def write(self, key: ShareKey, update: Update) -> Reply[ErrorCode]:
        """Keep what has changed; when it is safe, or why it was not written."""
        assert update.start != UNCHANGED
        code = self.code_for(key)
        if code is not ErrorCode.NONE:
            return Reply.of(code)
        entry = self._known.get(key.text)
        if entry is None:
            created = KeptState(created_ms=self._host.env.clock.now_ms()).after(update)
            return self._write_snapshot(key, replace(created, update_count=0))
        after = entry.kept.after(update)
        if after.update_count >= self._updates_max:
            epoch = after.snapshot_epoch + 1
            again = replace(after, snapshot_epoch=epoch, update_count=0)
            return self._write_snapshot(key, again)
        said = self._append(key, update_record(key, after.snapshot_epoch, update))
        if _is_written(said):
            entry.kept = after
            self._look(key)
        return said

    def forget(self, key: ShareKey) -> Reply[ErrorCode]:
        """Keep nothing of one any more; when that is safe."""
        said = self._append(key, forget_record(key))
        if _is_written(said):
            self._entries.remove(key.text)
            self._look(key)
        return said

    def _write_snapshot(self, key: ShareKey, kept: KeptState) -> Reply[ErrorCode]:
        said = self._put_snapshot(key, kept)
        if _is_written(said):
            self._look(key)
        return said

    def _put_snapshot(self, key: ShareKey, kept: KeptState) -> Reply[ErrorCode]:
        now_ms = self._host.env.clock.now_ms()
        said = self._append(key, snapshot_record(key, kept, now_ms))
        if _is_written(said):
            number = self._topic.number_of(key.text)
            self._entries.put(key.text, Entry(key, kept, self._end(number) - 1))
        return said

    def _append(self, key: ShareKey, record: KeyValue) -> Reply[ErrorCode]:
        code = self.code_for(key)
        if code is not ErrorCode.NONE:
            return Reply.of(code)
        now_ms = self._host.env.clock.now_ms()
        named, value = record
        made = build_batch([NewRecord(key=named, value=value, timestamp=now_ms)])
        return self._topic.append(self._topic.number_of(key.text), made)

    # -- the log's start ---------------------------------------------------------------------

    def _end(self, number: int) -> int:
        partition = self._topic.partition(number)
        assert partition is not None  # it was written to just now
        return partition.log.log_end_offset

    def _look(self, key: ShareKey) -> None:
        """Once in a while: a look goes through all that a partition keeps."""
        number = self._topic.number_of(key.text)
        partition = self._topic.partition(number)
        if partition is None:
            return
        end = partition.log.log_end_offset
        if end - self._looked.get(number, 0) < USELESS_MAX // LOOKS:
            return
        self._looked[number] = end
        if partition.log.log_start_offset < end - USELESS_MAX:
            self._prune(number, partition)

    def _prune(self, number: int, partition: Partition) -> None:
        """Let the log begin at the oldest snapshot that is needed; write the oldest ones again.

        That is cut once all up to now is safe: what replaces the records before it may not be yet.
        """
        end = partition.log.log_end_offset
        oldest = nsmallest(COLD_MAX, self._entries.part(number), key=lambda each: each.snapshot)
        start = oldest[0].snapshot if oldest else end

        def cut(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                _cut(partition, start)

        self._topic.settled(number).then(cut)
        for entry in oldest:
            if entry.snapshot < end - USELESS_MAX:
                epoch = entry.kept.snapshot_epoch + 1
                again = replace(entry.kept, snapshot_epoch=epoch, update_count=0)
                self._put_snapshot(entry.key, again)

    # -- partitions come and go --------------------------------------------------------------

    async def _read(self, log: Log) -> ShareReplay:
        replay, work = ShareReplay(), self._host.work
        if log.log_end_offset > log.log_start_offset:
            pieces = replay.take(log.slices())
            while await work.run(next, pieces, None) is not None:
                pass
        return replay

    def _take(self, number: int, found: ShareReplay) -> None:
        entries = {
            key.text: Entry(key, kept, found.snapshots[key]) for key, kept in found.found.items()
        }
        self._entries.put_all(number, entries)
        self.notify()

    def _lose(self, number: int | None) -> None:
        gone = self._entries.take_out(number)
        self._looked.clear()
        self.on_lost([entry.key for entry in gone])
        self.notify()


def _cut(partition: Partition, start: int) -> None:
    try:
        partition.log.delete_records(start)
    except TidelogError as error:
        LOGGER.warning("%s can't be cut: %s", partition.name, error)


def _is_written(said: Reply[ErrorCode]) -> bool:
    """Whether it lies in the log; what is not safe yet, and then fails, takes all with it."""
    return not said.is_done or said.value is ErrorCode.NONE
