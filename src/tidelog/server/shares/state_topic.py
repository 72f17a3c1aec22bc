"""`__share_group_state`: persisted states of all share partitions, in memory and as records.

The key of a record has the record's kind (0 for a snapshot, 1 for an update) and names a share
partition. A snapshot has the complete state. A tombstone (a record without a value) under the key
of a snapshot deletes the state. An update has only the changes of one write. A later update of an
offset replaces an earlier update, and offsets below the start are omitted. After a configured
number of updates, a snapshot is written. For each share partition, only its last snapshot and the
records after it are needed. So the log start moves to the oldest of the share partitions' last
snapshots. To let the log start move on, a new snapshot is written for share partitions whose last
snapshot is old.

`coordinator.state_topic` loads partitions of the topic, and reloads them after a failure.

Source: KIP-932; Kafka 4.3's ShareCoordinatorShard, ShareCoordinatorOffsetsManager,
ShareCoordinatorRecordHelpers, ShareGroupOffset, PersisterStateBatchCombiner.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from logging import Logger, getLogger
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, TidelogError, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.state_records import (
    SHARE_SNAPSHOT_VALUE,
    SHARE_STATE_KEY,
    SHARE_UPDATE_VALUE,
    ShareSnapshotValue,
    ShareStateKey,
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
from tidelog.server.runtime.reply import Reply, Watchable
from tidelog.server.shares.record_runs import RecordState, StateBatch
from tidelog.storage.files import encode_topic_id
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import SHARE_STATE_TOPIC

# Start offset in an update that does not change the start offset.
UNCHANGED: Final = -1

# Start offset in a persisted state until a member has read the share partition.
UNKNOWN_START: Final = -1

UNKNOWN_COUNT: Final = -1


class ShareKey(NamedTuple):
    """Partition of a topic in one share group."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """Kafka's name of the share partition; its hash selects a partition of the state topic."""
        return f"{self.group_id}:{encode_topic_id(self.topic_id)}:{self.partition}"


@dataclass(frozen=True, slots=True)
class Update:
    """Change of a share partition's state.

    Attributes:
        start: Start offset; `UNCHANGED` for no change.
        complete_count: Number of finished offsets from the start on, -1 if unknown.
        batches: New states of records, by offset.
        leader_epoch: Leader epoch of the partition.
    """

    start: int
    complete_count: int = UNKNOWN_COUNT
    batches: Sequence[StateBatch] = ()
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedState:
    """Persisted state of a share partition.

    Attributes:
        snapshot_epoch: Number of the snapshot. Each snapshot increments it.
        state_epoch: Number of times that the state was reset.
        leader_epoch: Highest leader epoch of the updates of this state.
        start: Start offset; `UNKNOWN_START` until a member has read the share partition.
        complete_count: Number of finished offsets from the start on, -1 if unknown.
        batches: States of records, by offset, without overlap.
        update_count: Number of updates since the snapshot.
        created_ms: Wall time in ms when the snapshot was created.
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
        """Return the state after an update."""
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
    """Merge two lists of states from an offset on. Equal neighbors are joined.

    Args:
        before: States before the update, by offset, without overlap.
        later: States in the update, by offset, without overlap. For the same offset, a state in
            `later` replaces a state in `before`.
        start: Start offset. States below it are dropped.
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
    """Encode a snapshot of the complete state."""
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
    return KeyValue(_key(SNAPSHOT, key), SHARE_SNAPSHOT_VALUE.write(_VALUE, value))


def update_record(key: ShareKey, snapshot_epoch: int, update: Update) -> KeyValue:
    """Encode an update of the state whose last snapshot has the epoch `snapshot_epoch`."""
    value = ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=update.leader_epoch,
        start_offset=update.start,
        delivery_complete_count=update.complete_count,
        state_batches=_written(update.batches),
    )
    return KeyValue(_key(UPDATE, key), SHARE_UPDATE_VALUE.write(_VALUE, value))


def forget_record(key: ShareKey) -> KeyValue:
    """Encode the tombstone that deletes the state."""
    return KeyValue(_key(SNAPSHOT, key), None)


def _key(kind: int, key: ShareKey) -> bytes:
    named = ShareStateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    return SHARE_STATE_KEY.write(kind, named)


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
    """Return the kind of a record and its share partition; None for an unknown kind.

    Raises:
        CorruptMessage: The key is missing or invalid.
    """
    if key is None:
        raise CorruptMessage(
            "a record without a key; every record of a share group's state has a key", at=0
        )
    if Reader(key).int16() not in {SNAPSHOT, UPDATE}:
        return None
    kind, named = SHARE_STATE_KEY.read(key)
    return kind, ShareKey(named.group_id, named.topic_id, named.partition)


def read_snapshot(value: bytes) -> PersistedState:
    """Decode a snapshot; raises CorruptMessage, UnsupportedVersion."""
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
    """Decode an update with its snapshot's epoch; raises CorruptMessage, UnsupportedVersion."""
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
            reason = (
                f"stored state of a share group: offsets {each.first} to {each.last}, expected a"
                f" range that begins after offset {behind}"
            )
            raise CorruptMessage(reason, at=0)
        behind = each.last
    return result


def _state(batch: WrittenBatch) -> RecordState:
    state = batch.delivery_state
    if state == RecordState.ACQUIRED or state not in set(RecordState):
        raise CorruptMessage(f"records of a share group in state {state}", at=0)
    return RecordState(state)


class LoadedStates(NamedTuple):
    """Loaded states of a partition of the topic.

    Attributes:
        states: State of each share partition.
        snapshots: Offset of the last snapshot of each share partition.
    """

    states: dict[ShareKey, PersistedState]
    snapshots: dict[ShareKey, int]


class ShareReplay:
    """Collects the states in records, in the order of the log."""

    def __init__(self) -> None:
        self._states: dict[ShareKey, PersistedState] = {}
        self._snapshots: dict[ShareKey, int] = {}

    def take(
        self, slices: Iterable[LogSlice], _find_kernels: FindKernels = lambda: None
    ) -> Iterator[int]:
        """Read all batches of a log, without kernels.

        All records of a key are needed, but kernels return only the last record of each key.

        Raises:
            CorruptData: A batch is damaged or a record is invalid. The error's message has the file
                and the position.
        """
        return load_batches(slices, self.add)

    def result(self) -> LoadedStates:
        """Return the loaded states."""
        return LoadedStates(self._states, self._snapshots)

    def add(self, batch: Batch) -> None:
        """Add a batch; raises CorruptData if its records can't be read."""
        if batch.is_control or not isinstance(batch, RecordBatch):
            return  # such batches are never written to this topic
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
            raise CorruptMessage(f"stored state of {key.text!r}: {error}") from error

    def _take_snapshot(self, key: ShareKey, value: bytes | None, offset: int) -> None:
        if value is None:
            self._states.pop(key, None)
            self._snapshots.pop(key, None)
        else:
            self._states[key] = read_snapshot(value)
            self._snapshots[key] = offset

    def _take_update(self, key: ShareKey, value: bytes) -> None:
        state = self._states.get(key)
        epoch, update = read_update(value)
        # An update whose snapshot was deleted or replaced has no effect.
        if state is not None and state.snapshot_epoch == epoch:
            self._states[key] = state.after(update)


LOGGER: Final[Logger] = getLogger("tidelog.server.shares")

# If a partition's log has more offsets than this number, the log start is moved to the oldest
# snapshot in use.
USELESS_MAX: Final = 10_000

# A partition's log start is checked this many times while `USELESS_MAX` records are written.
CHECKS: Final = 10

# Maximum number of old snapshots that are rewritten at a time.
COLD_MAX: Final = 100


@dataclass(slots=True)
class Entry:
    """State of one share partition.

    Attributes:
        key: Key of the share partition.
        state: State after the last write, even if that write is not yet durable.
        snapshot: Offset of its last snapshot.
    """

    key: ShareKey
    state: PersistedState
    snapshot: int


class ShareStates(Watchable):
    """Persisted states of share partitions. Used only in the event loop's thread.

    Watchers are notified when states are loaded or unloaded.

    Attributes:
        topic: Topic in which the states are stored.
    """

    def __init__(self, services: Services, on_lost: Callable[[list[ShareKey]], None]) -> None:
        """Create an instance that has loaded nothing yet.

        `on_lost` is called with the keys of unloaded states.
        """
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
        # Log end offset of each partition when `_check_log_start` last checked the partition.
        self._checked_ends: dict[int, int] = {}

    # -- queries -----------------------------------------------------------------------------

    def error_for(self, key: ShareKey) -> ErrorCode:
        """Return the error code if a share partition can't be served now, otherwise `NONE`."""
        return self.topic.error_for(key.text)

    def find(self, key: ShareKey) -> PersistedState | None:
        """Return the state of a share partition that is served; None if it has no state."""
        entry = self._entries.get(key.text)
        return None if entry is None else entry.state

    def keys_without(self, has_topic: Callable[[UUID], bool]) -> list[ShareKey]:
        """Return the share partitions whose topic no longer exists."""
        keys = [entry.key for entry in self._entries.all.values()]
        deleted_ids = {each for each in {key.topic_id for key in keys} if not has_topic(each)}
        return [key for key in keys if key.topic_id in deleted_ids]

    # -- changes -----------------------------------------------------------------------------

    def initialize(self, key: ShareKey, start: int = UNKNOWN_START) -> Reply[ErrorCode]:
        """Reset a state to a start offset.

        If no offset is given, the group's settings define the start offset.

        The reply completes with NONE when the state is durable, or with an error code.
        """
        before = self.find(key)
        now_ms = self._clock.now_ms()
        # After a reset to a known offset, no record at or after this offset is finished, so the
        # number of finished offsets is 0.
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
        """Write an update; the reply completes once the update is durable, or with an error."""
        assert update.start != UNCHANGED
        code = self.error_for(key)
        if code is not ErrorCode.NONE:
            return Reply.of(code)
        entry = self._entries.get(key.text)
        if entry is None:
            created = PersistedState(created_ms=self._clock.now_ms()).after(update)
            return self._write_snapshot(key, replace(created, update_count=0))
        after = entry.state.after(update)
        if after.update_count >= self._updates_max:
            epoch = after.snapshot_epoch + 1
            again = replace(after, snapshot_epoch=epoch, update_count=0)
            return self._write_snapshot(key, again)
        reply = self._append(key, update_record(key, after.snapshot_epoch, update))
        if is_accepted(reply):
            entry.state = after
            self._check_log_start(key)
        return reply

    def forget(self, key: ShareKey) -> Reply[ErrorCode]:
        """Delete a state. The reply completes when the deletion is durable."""
        reply = self._append(key, forget_record(key))
        if is_accepted(reply):
            self._entries.remove(key.text)
            self._check_log_start(key)
        return reply

    def _write_snapshot(self, key: ShareKey, state: PersistedState) -> Reply[ErrorCode]:
        reply = self._put_snapshot(key, state)
        if is_accepted(reply):
            self._check_log_start(key)
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
        assert partition is not None  # a record was just written to the partition, so it exists
        return partition.log.log_end_offset

    def _check_log_start(self, key: ShareKey) -> None:
        """Check the log start, but not often, because a check visits all states of a partition."""
        number = self.topic.number_of(key.text)
        partition = self.topic.partition(number)
        if partition is None:
            return
        end = partition.log.log_end_offset
        if end - self._checked_ends.get(number, 0) < USELESS_MAX // CHECKS:
            return
        self._checked_ends[number] = end
        if partition.log.log_start_offset < end - USELESS_MAX:
            self._prune(key, partition)

    def _prune(self, key: ShareKey, partition: Partition) -> None:
        """Move the log start to the oldest snapshot in use; rewrite the oldest snapshots.

        Before records are deleted, all earlier writes must be durable, because some of these writes
        replace the deleted records.
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
                epoch = entry.state.snapshot_epoch + 1
                again = replace(entry.state, snapshot_epoch=epoch, update_count=0)
                self._put_snapshot(entry.key, again)

    # -- loading and unloading ---------------------------------------------------------------

    def replay(self) -> ShareReplay:
        """Create a reader for one partition of the topic."""
        return ShareReplay()

    def install(self, number: int, loaded: LoadedStates) -> None:
        """Serve the states of a loaded partition from now on."""
        entries = {
            key.text: Entry(key, state, loaded.snapshots[key])
            for key, state in loaded.states.items()
        }
        self._entries.put_all(number, entries)
        self.notify()

    def unload(self, number: int | None) -> None:
        """Unload the states of partition `number`, or all states if `number` is None."""
        unloaded = self._entries.take_out(number)
        self._checked_ends.clear()
        self._on_lost([entry.key for entry in unloaded])
        self.notify()


def _cut(partition: Partition, start: int) -> None:
    try:
        partition.log.delete_records(start)
    except TidelogError as error:
        LOGGER.warning("can't delete obsolete records of %s: %s", partition.name, error)
