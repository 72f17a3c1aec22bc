"""`__share_group_state`: persisted states of all share partitions, in memory and as records.

The key of a record names a share partition, and 0 for a snapshot or 1 for an update. A snapshot has
the complete state; without a value it deletes the state. An update has what changed since. A later
update of an offset replaces an earlier one, and offsets below the start are omitted. After a number
of updates a snapshot is written. The log start moves to the oldest of the last snapshots; a share
partition without a recent one writes a new snapshot.

`coordinator.state_topic` loads, fails and reloads partitions of the topic.

Source: KIP-932; Kafka 4.3's ShareCoordinatorShard, ShareCoordinatorOffsetsManager,
ShareCoordinatorRecordHelpers, ShareGroupOffset, PersisterStateBatchCombiner.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from logging import Logger, getLogger
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, TidelogError, UnsupportedVersion
from tidelog.protocol.messages.state_records import (
    SHARE_SNAPSHOT_KEY,
    SHARE_SNAPSHOT_VALUE,
    SHARE_UPDATE_KEY,
    SHARE_UPDATE_VALUE,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from tidelog.protocol.messages.state_records import StateBatch as WrittenBatch
from tidelog.protocol.wire import Reader
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.record import read_pairs
from tidelog.server.coordinator.log_loader import FindKernels, load_batches
from tidelog.server.coordinator.state_topic import (
    KeyValue,
    PartitionedMap,
    StateTopic,
    TopicSpec,
    is_accepted,
)
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.services import Services
from tidelog.server.runtime.reply import Reply, Watched
from tidelog.server.shares.record_runs import RecordState, StateBatch
from tidelog.storage.files import encode_topic_id
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import SHARE_STATE_TOPIC

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
class PersistedState:
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

    def after(self, update: Update) -> "PersistedState":
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
    merged = list(later)
    at = 0
    for batch in before:
        first = batch.first
        while at < len(later) and later[at].last < first:
            at += 1
        covering = at
        while first <= batch.last:
            over = later[covering] if covering < len(later) else None
            if over is None or over.first > batch.last:
                merged.append(replace(batch, first=first))
                break
            if over.first > first:
                merged.append(replace(batch, first=first, last=over.first - 1))
            first = over.last + 1
            covering += 1
    return sorted(merged, key=lambda each: each.first)


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


def snapshot_record(key: ShareKey, state: PersistedState, now_ms: int) -> KeyValue:
    """All that is kept."""
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start,
        delivery_complete_count=state.complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=now_ms,
        state_batches=_written(state.batches),
    )
    return KeyValue(_snapshot_key(key), SHARE_SNAPSHOT_VALUE.write(_VALUE, value))


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
    return KeyValue(SHARE_UPDATE_KEY.write(UPDATE, named), SHARE_UPDATE_VALUE.write(_VALUE, value))


def forget_record(key: ShareKey) -> KeyValue:
    """Nothing is known any more."""
    return KeyValue(_snapshot_key(key), None)


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


def read_snapshot(value: bytes) -> PersistedState:
    """All that is kept; raises CorruptMessage, UnsupportedVersion."""
    written = SHARE_SNAPSHOT_VALUE.read(value)[1]
    return PersistedState(
        snapshot_epoch=written.snapshot_epoch,
        state_epoch=written.state_epoch,
        leader_epoch=written.leader_epoch,
        start=written.start_offset,
        complete_count=written.delivery_complete_count,
        batches=tuple(_read(written.state_batches)),
        created_ms=written.create_timestamp,
    )


def read_update(value: bytes) -> tuple[int, Update]:
    """The epoch of the snapshot, and what has changed since; raises as `read_snapshot`."""
    written = SHARE_UPDATE_VALUE.read(value)[1]
    update = Update(
        written.start_offset,
        written.delivery_complete_count,
        _read(written.state_batches),
        written.leader_epoch,
    )
    return written.snapshot_epoch, update


def _read(batches: Sequence[WrittenBatch]) -> list[StateBatch]:
    result = [
        StateBatch(each.first_offset, each.last_offset, _state(each), each.delivery_count)
        for each in batches
    ]
    result.sort(key=lambda each: each.first)
    behind = -1
    for each in result:
        if each.first <= behind or each.last < each.first:
            reason = f"offsets {each.first} to {each.last} of a share group behind {behind}"
            raise CorruptMessage(reason, at=0)
        behind = each.last
    return result


def _state(batch: WrittenBatch) -> RecordState:
    state = batch.delivery_state
    if state == RecordState.ACQUIRED or state not in set(RecordState):
        raise CorruptMessage(f"records of a share group in state {state}", at=0)
    return RecordState(state)


class LoadedStates(NamedTuple):
    """What a partition has of each share partition.

    Attributes:
        kept: What is kept of it.
        snapshots: The offset of its last snapshot.
    """

    kept: dict[ShareKey, PersistedState]
    snapshots: dict[ShareKey, int]


class ShareReplay:
    """Collects records in the order of the log."""

    def __init__(self) -> None:
        self._kept: dict[ShareKey, PersistedState] = {}
        self._snapshots: dict[ShareKey, int] = {}

    def take(
        self, slices: Iterable[LogSlice], _find_kernels: FindKernels = lambda: None
    ) -> Iterator[int]:
        """Take all batches of a log plainly: of a key, not only the last record counts.

        Raises:
            CorruptData: A batch is damaged, or a record breaks a rule; names file and position.
        """
        return load_batches(slices, self.add)

    def result(self) -> LoadedStates:
        """What is kept."""
        return LoadedStates(self._kept, self._snapshots)

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
            self._kept.pop(key, None)
            self._snapshots.pop(key, None)
        else:
            self._kept[key] = read_snapshot(value)
            self._snapshots[key] = offset

    def _take_update(self, key: ShareKey, value: bytes) -> None:
        state = self._kept.get(key)
        epoch, update = read_update(value)
        # One whose snapshot was removed since says nothing by itself.
        if state is not None and state.snapshot_epoch == epoch:
            self._kept[key] = state.after(update)


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
    kept: PersistedState
    snapshot: int


class ShareStates(Watched):
    """Belongs to the loop's thread. Who watches is told when something was loaded, or lost.

    Attributes:
        topic: Where they are kept.
    """

    def __init__(self, services: Services, on_lost: Callable[[list[ShareKey]], None]) -> None:
        """Nothing is read yet; `on_lost` is called with what can't be served any more."""
        super().__init__()
        self._clock = services.env.clock
        self._on_lost = on_lost
        config = services.config
        self._updates_max = config.share_coordinator_snapshot_update_records_per_snapshot
        settings = {
            "cleanup.policy": "delete",
            "compression.type": "uncompressed",
            "retention.ms": "-1",
            "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
        }
        spec = TopicSpec(
            SHARE_STATE_TOPIC,
            LOGGER,
            partitions=config.share_coordinator_state_topic_num_partitions,
            settings=settings,
        )
        self.topic: StateTopic[LoadedStates] = StateTopic(services, self, spec)
        self._entries: PartitionedMap[Entry] = PartitionedMap(self.topic.number_of)
        self._known: Mapping[str, Entry] = self._entries.all
        # Each partition's log end when it was looked at last.
        self._looked: dict[int, int] = {}

    # -- questions ---------------------------------------------------------------------------

    def error_for(self, key: ShareKey) -> ErrorCode:
        """Why a share partition can't be served now, `NONE` where it can."""
        return self.topic.error_for(key.text)

    def find(self, key: ShareKey) -> PersistedState | None:
        """What is kept of one; None for nothing. It must be served."""
        entry = self._known.get(key.text)
        return None if entry is None else entry.kept

    def of_group(self, group_id: str) -> list[tuple[ShareKey, PersistedState]]:
        """All that is kept of a group, as far as it is loaded; looks at all groups."""
        entries = self._known.values()
        return [(each.key, each.kept) for each in entries if each.key.group_id == group_id]

    def keys_without(self, has_topic: Callable[[UUID], bool]) -> list[ShareKey]:
        """Those whose topic is not there any more."""
        ids = {each.key.topic_id for each in self._known.values()}
        deleted_ids = {each for each in ids if not has_topic(each)}
        return [each.key for each in self._known.values() if each.key.topic_id in deleted_ids]

    # -- changes -----------------------------------------------------------------------------

    def initialize(self, key: ShareKey, start: int = UNKNOWN_START) -> Reply[ErrorCode]:
        """Begin anew from an offset on, or from where the group's settings say; when it is safe."""
        before = self.find(key)
        now_ms = self._clock.now_ms()
        # Of what begins at a known offset nothing is done with yet.
        count = UNKNOWN_COUNT if start == UNKNOWN_START else 0
        state = PersistedState(start=start, complete_count=count, created_ms=now_ms)
        if before is not None:
            state = replace(
                state,
                snapshot_epoch=before.snapshot_epoch + 1,
                state_epoch=before.state_epoch + 1,
                leader_epoch=before.leader_epoch,
            )
        return self._write_snapshot(key, state)

    def write(self, key: ShareKey, update: Update) -> Reply[ErrorCode]:
        """Keep what has changed; when it is safe, or why it was not written."""
        assert update.start != UNCHANGED
        code = self.error_for(key)
        if code is not ErrorCode.NONE:
            return Reply.of(code)
        entry = self._known.get(key.text)
        if entry is None:
            created = PersistedState(created_ms=self._clock.now_ms()).after(update)
            return self._write_snapshot(key, replace(created, update_count=0))
        after = entry.kept.after(update)
        if after.update_count >= self._updates_max:
            epoch = after.snapshot_epoch + 1
            again = replace(after, snapshot_epoch=epoch, update_count=0)
            return self._write_snapshot(key, again)
        reply = self._append(key, update_record(key, after.snapshot_epoch, update))
        if is_accepted(reply):
            entry.kept = after
            self._look(key)
        return reply

    def forget(self, key: ShareKey) -> Reply[ErrorCode]:
        """Keep nothing of one any more; when that is safe."""
        reply = self._append(key, forget_record(key))
        if is_accepted(reply):
            self._entries.remove(key.text)
            self._look(key)
        return reply

    def _write_snapshot(self, key: ShareKey, state: PersistedState) -> Reply[ErrorCode]:
        reply = self._put_snapshot(key, state)
        if is_accepted(reply):
            self._look(key)
        return reply

    def _put_snapshot(self, key: ShareKey, state: PersistedState) -> Reply[ErrorCode]:
        now_ms = self._clock.now_ms()
        reply = self._append(key, snapshot_record(key, state, now_ms))
        if is_accepted(reply):
            number = self.topic.number_of(key.text)
            self._entries.put(key.text, Entry(key, state, self._end(number) - 1))
        return reply

    def _append(self, key: ShareKey, record: KeyValue) -> Reply[ErrorCode]:
        code = self.error_for(key)
        if code is not ErrorCode.NONE:
            return Reply.of(code)
        return self.topic.append_now(self.topic.number_of(key.text), [record])

    # -- the log's start ---------------------------------------------------------------------

    def _end(self, number: int) -> int:
        partition = self.topic.partition(number)
        assert partition is not None  # it was written to just now
        return partition.log.log_end_offset

    def _look(self, key: ShareKey) -> None:
        """Once in a while: a look goes through all that a partition keeps."""
        number = self.topic.number_of(key.text)
        partition = self.topic.partition(number)
        if partition is None:
            return
        end = partition.log.log_end_offset
        if end - self._looked.get(number, 0) < USELESS_MAX // LOOKS:
            return
        self._looked[number] = end
        if partition.log.log_start_offset < end - USELESS_MAX:
            self._prune(key, partition)

    def _prune(self, key: ShareKey, partition: Partition) -> None:
        """Let the log begin at the oldest snapshot that is needed; write the oldest ones again.

        That is cut once all up to now is safe: what replaces the records before it may not be yet.
        """
        end = partition.log.log_end_offset
        part = self._entries.part(self.topic.number_of(key.text))
        oldest = nsmallest(COLD_MAX, part, key=lambda each: each.snapshot)
        start = oldest[0].snapshot if oldest else end

        def cut(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                _cut(partition, start)

        self.topic.settled(key.text).then(cut)
        for entry in oldest:
            if entry.snapshot < end - USELESS_MAX:
                epoch = entry.kept.snapshot_epoch + 1
                again = replace(entry.kept, snapshot_epoch=epoch, update_count=0)
                self._put_snapshot(entry.key, again)

    # -- partitions come and go --------------------------------------------------------------

    def replay(self) -> ShareReplay:
        """A reader for a partition of the topic."""
        return ShareReplay()

    def install(self, number: int, loaded: LoadedStates) -> None:
        """Serve what a partition says from now on."""
        entries = {
            key.text: Entry(key, state, loaded.snapshots[key]) for key, state in loaded.kept.items()
        }
        self._entries.put_all(number, entries)
        self.notify()

    def unload(self, number: int | None) -> None:
        """What a partition says, or all, can't be served any more."""
        unloaded = self._entries.take_out(number)
        self._looked.clear()
        self._on_lost([entry.key for entry in unloaded])
        self.notify()


def _cut(partition: Partition, start: int) -> None:
    try:
        partition.log.delete_records(start)
    except TidelogError as error:
        LOGGER.warning("%s can't be cut: %s", partition.name, error)
