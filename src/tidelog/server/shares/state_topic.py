"""`__share_group_state`: persisted state, snapshot and update records, log start.

What is kept of all share partitions, in memory and in `__share_group_state`.

Each share partition has its place by the hash of its name. An update says what has changed; after
so many of them a snapshot says all again. What lies before everybody's last snapshot
is of no use any more: the log's start moves there, and who has said nothing for long says it again.

How a partition of the topic is loaded, lost and loaded again is `internal_topic`'s.

Source: KIP-932; Kafka 4.3's ShareCoordinatorShard and ShareCoordinatorOffsetsManager.

Records of `__share_group_state`: a key names a share partition, 0 for a snapshot, 1 an update.

A snapshot without a value says that nothing is known of it any more.

Source: Kafka 4.3's own records in that topic, ShareCoordinatorRecordHelpers.

What one partition of `__share_group_state` says, read from its first record to its last.

Source: Kafka 4.3's ShareCoordinatorShard.replay.

What is kept of a share partition, and what one write after another makes of it.

A snapshot says all, an update what has changed since. What is said later of an offset replaces what
was said before; offsets below the start are not spoken of.

Source: KIP-932; Kafka 4.3's ShareGroupOffset and PersisterStateBatchCombiner.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from logging import Logger, getLogger
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, TidelogError, UnsupportedVersion
from tidelog.protocol.messages.group_records import (
    SHARE_SNAPSHOT_KEY,
    SHARE_SNAPSHOT_VALUE,
    SHARE_UPDATE_KEY,
    SHARE_UPDATE_VALUE,
)
from tidelog.protocol.messages.state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from tidelog.protocol.messages.state_records import StateBatch as WrittenBatch
from tidelog.protocol.wire import Reader
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.builder import build_batch
from tidelog.record.record import read_pairs
from tidelog.server.coordinator.host import Host
from tidelog.server.coordinator.log_loader import take_batches
from tidelog.server.coordinator.state_topic import ByPartition, InternalTopic
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.reply import Reply, Watched
from tidelog.server.shares.record_runs import RecordState, StateBatch
from tidelog.storage.files import encode_topic_id
from tidelog.storage.log.log import Log
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import SHARE_STATE_TOPIC, NewRecord

# In a write: the start stays where it was.
UNCHANGED: Final = -1


# In what is kept: nobody has read yet.
UNKNOWN_START: Final = -1


UNKNOWN_COUNT: Final = -1


class ShareKey(NamedTuple):
    """One partition in one share group."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """As Kafka names it: its hash says which partition of the topic keeps it."""
        return f"{self.group_id}:{encode_topic_id(self.topic_id)}:{self.partition}"


@dataclass(frozen=True, slots=True)
class Update:
    """What has changed.

    Attributes:
        start: The start offset, `UNCHANGED` for the one before.
        complete_count: Offsets from the start on that are done with, -1 for not known.
        batches: What records are now, by offset.
        leader_epoch: Of who says so.
    """

    start: int
    complete_count: int = UNKNOWN_COUNT
    batches: Sequence[StateBatch] = ()
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """All that is kept of a share partition.

    Attributes:
        snapshot_epoch: Counts up with each snapshot.
        state_epoch: Counts up each time that it is begun anew.
        leader_epoch: The last one that was told.
        start: The start offset, `UNKNOWN_START` before anybody has read.
        complete_count: Offsets from the start on that are done with, -1 for not known.
        batches: What records are, by offset, apart from each other.
        update_count: Updates since the snapshot.
        created_ms: When it was begun, by wall time.
    """

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start: int = UNKNOWN_START
    complete_count: int = UNKNOWN_COUNT
    batches: tuple[StateBatch, ...] = ()
    update_count: int = 0
    created_ms: int = 0

    def after(self, update: Update) -> "KeptState":
        """What is kept once an update is."""
        start = self.start if update.start == UNCHANGED else update.start
        return replace(
            self,
            start=start,
            complete_count=update.complete_count,
            leader_epoch=max(self.leader_epoch, update.leader_epoch),
            batches=tuple(combined(self.batches, update.batches, start)),
            update_count=self.update_count + 1,
        )


def combined(
    before: Sequence[StateBatch], later: Sequence[StateBatch], start: int
) -> Iterator[StateBatch]:
    """What holds after both, from an offset on; neighbours that are alike are one.

    Args:
        before: By offset, apart from each other.
        later: Likewise.
        start: Nothing below it is kept.
    """
    return _joined(_clipped(_laid_over(before, later), start))


def _laid_over(before: Sequence[StateBatch], later: Sequence[StateBatch]) -> list[StateBatch]:
    found = list(later)
    at = 0
    for batch in before:
        first = batch.first
        while at < len(later) and later[at].last < first:
            at += 1
        covering = at
        while first <= batch.last:
            over = later[covering] if covering < len(later) else None
            if over is None or over.first > batch.last:
                found.append(replace(batch, first=first))
                break
            if over.first > first:
                found.append(replace(batch, first=first, last=over.first - 1))
            first = over.last + 1
            covering += 1
    return sorted(found, key=lambda each: each.first)


def _clipped(batches: Iterable[StateBatch], start: int) -> Iterator[StateBatch]:
    for batch in batches:
        if batch.last >= start:
            yield batch if batch.first >= start else replace(batch, first=start)


def _joined(batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
    last: StateBatch | None = None
    for batch in batches:
        if last is None:
            last = batch
        elif last.last + 1 == batch.first and (last.state, last.count) == (
            batch.state,
            batch.count,
        ):
            last = replace(last, last=batch.last)
        else:
            yield last
            last = batch
    if last is not None:
        yield last


SNAPSHOT: Final = 0


UPDATE: Final = 1


_VALUE: Final = 0


KeyValue = tuple[bytes, bytes | None]


def snapshot_record(key: ShareKey, kept: KeptState, now_ms: int) -> KeyValue:
    """All that is kept."""
    value = ShareSnapshotValue(
        snapshot_epoch=kept.snapshot_epoch,
        state_epoch=kept.state_epoch,
        leader_epoch=kept.leader_epoch,
        start_offset=kept.start,
        delivery_complete_count=kept.complete_count,
        create_timestamp=kept.created_ms,
        write_timestamp=now_ms,
        state_batches=_written(kept.batches),
    )
    return _snapshot_key(key), SHARE_SNAPSHOT_VALUE.write(_VALUE, value)


def update_record(key: ShareKey, snapshot_epoch: int, update: Update) -> KeyValue:
    """What has changed since the snapshot of that epoch."""
    named = ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    value = ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=update.leader_epoch,
        start_offset=update.start,
        delivery_complete_count=update.complete_count,
        state_batches=_written(update.batches),
    )
    return SHARE_UPDATE_KEY.write(UPDATE, named), SHARE_UPDATE_VALUE.write(_VALUE, value)


def forget_record(key: ShareKey) -> KeyValue:
    """Nothing is known any more."""
    return _snapshot_key(key), None


def _snapshot_key(key: ShareKey) -> bytes:
    named = ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    return SHARE_SNAPSHOT_KEY.write(SNAPSHOT, named)


def _written(batches: Iterable[StateBatch]) -> list[WrittenBatch]:
    return [
        WrittenBatch(
            first_offset=batch.first,
            last_offset=batch.last,
            delivery_state=batch.state,
            delivery_count=batch.count,
        )
        for batch in batches
    ]


# -- reading -------------------------------------------------------------------------------------


def read_key(key: bytes | None) -> tuple[int, ShareKey] | None:
    """What a record is, and of which share partition; None for a kind that nobody knows.

    Raises:
        CorruptMessage: It breaks a rule.
    """
    if key is None:
        raise CorruptMessage("a record of a share group without a key", at=0)
    kind = Reader(key).int16()
    if kind == SNAPSHOT:
        snapshot = SHARE_SNAPSHOT_KEY.read(key)[1]
        return kind, ShareKey(snapshot.group_id, snapshot.topic_id, snapshot.partition)
    if kind == UPDATE:
        update = SHARE_UPDATE_KEY.read(key)[1]
        return kind, ShareKey(update.group_id, update.topic_id, update.partition)
    return None


def read_snapshot(value: bytes) -> KeptState:
    """All that is kept; raises CorruptMessage, UnsupportedVersion."""
    found = SHARE_SNAPSHOT_VALUE.read(value)[1]
    return KeptState(
        snapshot_epoch=found.snapshot_epoch,
        state_epoch=found.state_epoch,
        leader_epoch=found.leader_epoch,
        start=found.start_offset,
        complete_count=found.delivery_complete_count,
        batches=tuple(_read(found.state_batches)),
        created_ms=found.create_timestamp,
    )


def read_update(value: bytes) -> tuple[int, Update]:
    """The epoch of the snapshot, and what has changed since; raises as `read_snapshot`."""
    found = SHARE_UPDATE_VALUE.read(value)[1]
    update = Update(
        found.start_offset,
        found.delivery_complete_count,
        _read(found.state_batches),
        found.leader_epoch,
    )
    return found.snapshot_epoch, update


def _read(batches: Sequence[WrittenBatch]) -> list[StateBatch]:
    found = [
        StateBatch(each.first_offset, each.last_offset, _state(each), each.delivery_count)
        for each in batches
    ]
    found.sort(key=lambda each: each.first)
    behind = -1
    for each in found:
        if each.first <= behind or each.last < each.first:
            reason = f"offsets {each.first} to {each.last} of a share group behind {behind}"
            raise CorruptMessage(reason, at=0)
        behind = each.last
    return found


def _state(batch: WrittenBatch) -> RecordState:
    state = batch.delivery_state
    if state == RecordState.ACQUIRED or state not in set(RecordState):
        raise CorruptMessage(f"records of a share group in state {state}", at=0)
    return RecordState(state)


class ShareReplay:
    """Collects records in the order of the log.

    Attributes:
        found: What is kept of each share partition.
        snapshots: The offset of each one's last snapshot.
    """

    def __init__(self) -> None:
        self.found: dict[ShareKey, KeptState] = {}
        self.snapshots: dict[ShareKey, int] = {}

    def take(self, slices: Iterable[LogSlice]) -> Iterator[int]:
        """Take all batches of a log; a pause after each piece of it, with its bytes.

        Raises:
            CorruptData: A batch is damaged, or a record breaks a rule; names file and position.
        """
        return take_batches(slices, self.add)

    def add(self, batch: Batch) -> None:
        """Take a batch; raises CorruptData where its records can't be read."""
        if batch.is_control or not isinstance(batch, RecordBatch):
            return  # nobody writes such ones there
        pairs = read_pairs(bytes(batch.body()), batch.record_count)
        for delta, key, value in pairs:
            named = read_key(key)
            if named is not None:
                self._take(*named, value, batch.base_offset + delta)

    def _take(self, kind: int, key: ShareKey, value: bytes | None, offset: int) -> None:
        try:
            if kind == SNAPSHOT:
                self._take_snapshot(key, value, offset)
            elif value is not None:
                self._take_update(key, value)
        except (CorruptMessage, UnsupportedVersion) as error:
            raise CorruptMessage(f"what is kept of {key.text!r}: {error}") from error

    def _take_snapshot(self, key: ShareKey, value: bytes | None, offset: int) -> None:
        if value is None:
            self.found.pop(key, None)
            self.snapshots.pop(key, None)
        else:
            self.found[key] = read_snapshot(value)
            self.snapshots[key] = offset

    def _take_update(self, key: ShareKey, value: bytes) -> None:
        kept = self.found.get(key)
        epoch, update = read_update(value)
        # One whose snapshot was removed since says nothing by itself.
        if kept is not None and kept.snapshot_epoch == epoch:
            self.found[key] = kept.after(update)


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
