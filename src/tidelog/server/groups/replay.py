"""Replay of one partition of `__consumer_offsets`, which restores the partition's groups.

Only the last record of each key matters, so earlier records are not decoded. The replay keeps in
memory one value per key and the commits of open transactions. An offset that is committed in a
transaction takes effect at the transaction's commit marker, unless a newer record of the same key
exists. A group may have thousands of offsets, so the replay runs in a thread.

Source: Kafka 4.3's loader of `__consumer_offsets`; KIP-98 (offsets in transactions).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.group_records import GroupMetadataValue
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.record import ControlType, read_pairs
from tidelog.server.coordinator.log_loader import FindKernels, load_log
from tidelog.server.groups.classic_group import ClassicGroup, GroupState, Member
from tidelog.server.groups.committed_offsets import CommittedOffset, OffsetChange
from tidelog.server.groups.modern_group import ConsumerGroup, ShareGroup
from tidelog.server.groups.records import (
    Change,
    GroupChange,
    read_change,
)
from tidelog.storage.segment.slices import LogSlice

if TYPE_CHECKING:
    from tidelog.record.columns.decode import LatestRecord
    from tidelog.server.groups.modern_records import ModernRecord


AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup
Value = tuple[bytes | None, int]


@dataclass(slots=True)
class LoadedGroup:
    """Records of one group.

    Attributes:
        value: Last metadata of a classic group; None for a group with offsets only.
        changes: Records of a consumer or share group; empty for a classic group.
        offsets: Topic, partition and offset of each committed offset.
    """

    value: GroupMetadataValue | None = None
    changes: "list[ModernRecord]" = field(default_factory=list)
    offsets: list[tuple[str, int, CommittedOffset]] = field(default_factory=list)


class LoadedPending(NamedTuple):
    """Offset committed in an open transaction.

    Attributes:
        producer_id: Producer of the transaction.
        offset: Group, partition and committed offset.
        is_stale: Whether a newer commit for the same partition exists.
    """

    producer_id: int
    offset: OffsetChange
    is_stale: bool


class LoadedShard(NamedTuple):
    """Loaded contents of a partition.

    Attributes:
        groups: Groups by id.
        pending: Offsets committed in open transactions.
        skipped: Offsets and errors of the first 10 skipped records.
    """

    groups: dict[str, AnyGroup]
    pending: Sequence[LoadedPending]
    skipped: Sequence[str]


class Replay:
    """Collects records in the order of the log, then builds the groups. Not thread-safe.

    Attributes:
        skipped: Offsets and errors of the first 10 skipped records.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        """Create a replay that has read no groups yet.

        `now_ms` returns the creation time of groups without stored metadata.
        """
        self._now_ms = now_ms
        self._latest: dict[bytes, Value] = {}
        self._pending: dict[int, list[tuple[bytes, Value]]] = {}
        self._deleted: dict[bytes, int] = {}
        self.skipped: list[str] = []

    def take(
        self, slices: Iterable[LogSlice], find_kernels: FindKernels = lambda: None
    ) -> Iterator[int]:
        """Read all batches of a log in pieces; yield each piece's size in bytes after the piece."""
        return load_log(slices, self, find_kernels)

    def add(self, batch: Batch) -> None:
        """Read a batch.

        Raises:
            CorruptData: The batch's records can't be read.
        """
        producer_id = batch.producer_id
        if batch.is_control:
            if isinstance(batch, RecordBatch):
                self._end_transaction(producer_id, batch.control_type())
            return
        records = _records(batch)
        if batch.is_transactional:
            self._pending.setdefault(producer_id, []).extend(records)
            return
        self._latest.update(records)
        if self._pending:  # a pending commit must not restore a deleted offset
            self._deleted.update((key, at) for key, (value, at) in records if value is None)

    def add_latest(self, latest: "Iterable[LatestRecord]") -> None:
        """Add the last record of each key in batches that are neither control nor transactional."""
        if not self._pending:
            self._latest.update([(key, (value, at)) for key, value, at, _ in latest])
            return
        for key, value, at, dead_at in latest:
            self._latest[key] = value, at
            if dead_at >= 0:
                self._deleted[key] = dead_at

    def _end_transaction(self, producer_id: int, kind: ControlType) -> None:
        if kind not in {ControlType.COMMIT, ControlType.ABORT}:
            return  # compaction has emptied the batch, or it is no transaction marker
        pending = self._pending.pop(producer_id, [])
        if kind is ControlType.ABORT:
            return
        for key, value in pending:
            current = self._latest.get(key)
            if current is None or current[1] < value[1]:
                self._latest[key] = value

    def result(self) -> LoadedShard:
        """Return the restored groups and the pending offsets."""
        loaded, pending = self.groups(), self.pending()
        for each in pending:
            loaded.setdefault(each.offset.group_id, LoadedGroup())
        now_ms = self._now_ms()
        groups = {
            group_id: restore_group(group_id, loaded_group, now_ms)
            for group_id, loaded_group in loaded.items()
        }
        for kind in {type(group) for group in groups.values()} & _MODULES.keys():
            import_module(_MODULES[kind])  # a later import would block the loop
        return LoadedShard(groups, pending, self.skipped)

    def groups(self) -> dict[str, LoadedGroup]:
        """Decode the last record of each key; return the decoded records by group."""
        loaded: dict[str, LoadedGroup] = {}
        for key, (value, offset) in self._latest.items():
            if value is not None:
                self._take(loaded, key, value, offset)
        return loaded

    def pending(self) -> list[LoadedPending]:
        """Return the offsets committed in transactions that are still open, in log order."""
        rows = [
            (offset, producer_id, key, value)
            for producer_id, records in self._pending.items()
            for key, (value, offset) in records
            if value is not None
        ]
        rows.sort()
        loaded = []
        for offset, producer_id, key, value in rows:
            if self._deleted.get(key, -1) > offset:
                continue
            newer = self._latest.get(key)
            is_stale = newer is not None and newer[1] > offset
            change = self._read(key, value, offset)
            if isinstance(change, OffsetChange):
                loaded.append(LoadedPending(producer_id, change, is_stale))
        return loaded

    def _read(self, key: bytes, value: bytes, offset: int) -> "Change | ModernRecord | None":
        try:
            return read_change(key, value, offset)
        except (CorruptMessage, UnsupportedVersion) as error:
            if len(self.skipped) < 10:
                self.skipped.append(f"offset {offset}: {error}")
            return None

    def _take(self, groups: dict[str, LoadedGroup], key: bytes, value: bytes, offset: int) -> None:
        change = self._read(key, value, offset)
        if change is None:
            return
        group = groups.setdefault(change.group_id, LoadedGroup())
        if isinstance(change, GroupChange):
            group.value = change.value
        elif isinstance(change, OffsetChange):
            group.offsets.append((change.topic, change.partition, change.offset))
        else:
            group.changes.append(change)


def _records(batch: Batch) -> list[tuple[bytes, Value]]:
    """Return the key, value and offset of each record with a key."""
    if not isinstance(batch, RecordBatch):  # written by Kafka before 0.11
        return [(r.key, (r.value, r.offset)) for r in batch.records() if r.key is not None]
    base = batch.base_offset
    pairs = read_pairs(bytes(batch.body()), batch.record_count)
    return [(key, (value, base + delta)) for delta, key, value in pairs if key is not None]


# Modules that are needed only if groups of these types exist.
_MODULES: Final[Mapping[type[AnyGroup], str]] = {
    ConsumerGroup: "tidelog.server.groups.consumer_heartbeat",
    ShareGroup: "tidelog.server.groups.share_heartbeat",
}


def restore_group(group_id: str, loaded: LoadedGroup, now_ms: int) -> AnyGroup:
    """Build a group from its records. If no record names members, the group is empty."""
    group: AnyGroup
    if loaded.value is not None or not loaded.changes:
        group = ClassicGroup(group_id, now_ms)
        if loaded.value is not None:
            _rejoin(group, loaded.value)
    elif all(each.is_share for each in loaded.changes):
        return _apply(ShareGroup(group_id), loaded.changes)
    else:
        changes = [each for each in loaded.changes if not each.is_share]
        group = _apply(ConsumerGroup(group_id), changes)
    for topic, partition, offset in loaded.offsets:
        current = group.offsets.get(topic, partition)
        # Keys of offsets exist in two versions, which count as different keys, so a partition may
        # occur twice.
        if current is None or current.record_offset < offset.record_offset:
            group.offsets.put(topic, partition, offset)
    return group


def _apply(
    group: ConsumerGroup | ShareGroup, changes: "Iterable[ModernRecord]"
) -> ConsumerGroup | ShareGroup:
    for each in sorted(changes, key=lambda each: each.kind):
        each.apply(group)
    return group


def _rejoin(group: ClassicGroup, value: GroupMetadataValue) -> None:
    """Restore members and generation."""
    for member in _members(value):
        group.add(member, value.protocol_type)
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    group.state_ms = value.current_state_timestamp
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.generation = value.generation
    group.leader = value.leader
    if group.leader is not None and group.leader not in group.members:
        group.leader = next(iter(group.members), None)
    group.subscribed = group.find_subscribed()


def _members(value: GroupMetadataValue) -> Iterator[Member]:
    for member in value.members:
        yield Member(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            protocols=((value.protocol or "", bytes(member.subscription)),),
            session_timeout_ms=member.session_timeout,
            rebalance_timeout_ms=(
                member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout
            ),
            assignment=bytes(member.assignment),
        )
