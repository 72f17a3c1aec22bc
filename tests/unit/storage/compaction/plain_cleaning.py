"""Reference cleaning, record by record, without arrays, maps of fixed size or kernels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.builder import build_batch, build_empty_batch
from tidelog.record.record import ControlType, Record
from tidelog.storage.compaction.job import CleaningJob, Group, SourceSegment
from tidelog.types import NO_TIMESTAMP, TimestampType

OUTSIDE = -1
LOWEST = -(2**63)


@dataclass
class Plain:
    """Runs a cleaning job on the bytes of its sources' log files."""

    job: CleaningJob
    logs: dict[int, bytes]
    mapped_to: int
    winners: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    kept_aborted: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    walked_to: int = 0
    sees_all: bool = False

    def run(self) -> dict[int, list[bytes]]:
        """Return the batches to write for each group, by the group's base offset."""
        for source in self.job.sources:
            for batch in walk(self.logs[source.base_offset]):
                if not self._is_left_out(batch):
                    for record in _records(batch):
                        self._map(record)
        met: set[tuple[int, int]] = set()
        opened: set[int] = set()
        self.walked_to = self.job.log_start_offset
        found = {}
        for group in self.job.groups:
            if group.bases[0] < self.mapped_to:
                self.kept_aborted[group.bases[0]] = []
                drops = group.drop_expired and self._may_drop(group)
                due = replace(group, drop_expired=drops)
                found[group.bases[0]] = list(self._rewrite(due, met, opened))
        return found

    def _may_drop(self, group: Group) -> bool:
        """Return whether the cleaning may remove the group's tombstones.

        If records have versions, tombstones are dropped only by the last pass, and only in groups
        that end before the mapped range.
        """
        job = self.job
        end = next(s.end_offset for s in job.sources if s.base_offset == group.bases[-1])
        is_last = self.mapped_to == job.map_to and end <= job.map_from
        return is_last or not job.rules.has_versions

    def _is_left_out(self, batch: Batch) -> bool:
        return batch.is_control or self._aborted(batch) is not None

    def _aborted(self, batch: Batch) -> tuple[int, int] | None:
        if not batch.is_transactional:
            return None
        for txn in self.job.aborted:
            same = txn.producer_id == batch.producer_id
            if same and txn.first_offset <= batch.base_offset <= txn.last_offset:
                return txn.producer_id, txn.last_offset
        return None

    def _map(self, record: Record) -> None:
        if not self.job.map_from <= record.offset < min(self.job.map_to, self.mapped_to):
            return
        if record.key is None or record.offset < self.job.log_start_offset:
            self.lost.add(record.offset)
            return
        version = self._version(record)
        before = self.winners.get(record.key)
        if before is None or version >= before[0]:
            self.winners[record.key] = (version, record.offset)
            if before is not None:
                self.lost.add(before[1])
        else:
            self.lost.add(record.offset)

    def _version(self, record: Record) -> int:
        match self.job.rules.strategy:
            case "offset":
                return 0
            case "timestamp":
                return record.timestamp
            case _:
                named = [h for h in record.headers if h.key == self.job.rules.header]
                if not named or named[-1].value is None or len(named[-1].value) != 8:
                    return LOWEST
                return max(int.from_bytes(named[-1].value, "big", signed=True), LOWEST + 1)

    def _compare(self, record: Record) -> None:
        """Compare a record below the mapped range with its key's winner; mark the loser as lost."""
        if record.key is None or record.offset < self.job.log_start_offset:
            self.lost.add(record.offset)
            return
        winner = self.winners.get(record.key)
        if winner is None:
            return
        version, is_by_version = self._version(record), self.job.rules.strategy != "offset"
        if is_by_version and (
            version > winner[0] or (version == winner[0] and winner[1] == OUTSIDE)
        ):
            self.winners[record.key] = (version, OUTSIDE)
            if winner[1] != OUTSIDE:
                self.lost.add(winner[1])
        else:
            self.lost.add(record.offset)

    def _rewrite(
        self, group: Group, met: set[tuple[int, int]], opened: set[int]
    ) -> Iterator[bytes]:
        for base in group.bases:
            source = next(s for s in self.job.sources if s.base_offset == base)
            # Whether the cleaning has read every record from the log's start to the start of this
            # source.
            self.sees_all = base <= self.walked_to
            if self.sees_all:
                self.walked_to = max(self.walked_to, source.end_offset)
            for batch in walk(self.logs[base]):
                if not self._is_left_out(batch):
                    for record in _records(batch):
                        if record.offset < self.job.map_from:
                            self._compare(record)
            for batch in walk(self.logs[base]):
                written = self._batch(group, source, batch, met, opened)
                if written is not None:
                    yield written

    def _batch(
        self,
        group: Group,
        source: SourceSegment,
        batch: Batch,
        met: set[tuple[int, int]],
        opened: set[int],
    ) -> bytes | None:
        first = next((r.offset for r in _records(batch)), batch.base_offset)
        is_rest = first >= self.mapped_to and batch.last_offset >= self.mapped_to
        is_rest = is_rest and batch.base_offset >= self.mapped_to
        drops, now = group.drop_expired and not is_rest, self.job.now_ms
        horizon = now + self.job.rules.delete_retention_ms
        has_horizon = batch.delete_horizon_ms is not None
        is_over = has_horizon and (batch.delete_horizon_ms or 0) <= now
        if batch.is_control:
            assert isinstance(batch, RecordBatch)
            concludes = drops and self.sees_all
            may_go = batch.record_count == 0 or self._marker(group, batch, concludes, met, opened)
            return bytes(batch.view) if is_rest else self._control(batch, may_go, is_over, horizon)
        txn = self._aborted(batch)
        if txn is not None:
            met.add(txn)
            return bytes(batch.view) if is_rest else self._empty(batch)
        if batch.is_transactional:
            opened.add(batch.producer_id)
        if is_rest:
            return bytes(batch.view)
        if batch.magic < 2:
            is_over = self._is_legacy_over(source)
        drops = drops and batch.last_offset < self.mapped_to
        return self._data(batch, is_over and drops, horizon)

    def _data(self, batch: Batch, drops_tombstones: bool, horizon: int) -> bytes | None:
        whole = list(_records(batch))
        left = [record for record in whole if record.offset not in self.lost]
        if drops_tombstones:
            left = [record for record in left if record.value is not None]
        if not left:
            return self._empty(batch)
        has_horizon = batch.delete_horizon_ms is not None
        sets = any(record.value is None for record in left) and not has_horizon
        if len(left) == len(whole) and batch.magic == 2 and not sets:
            return bytes(batch.view)
        return _rebuild(batch, left, horizon if sets else batch.delete_horizon_ms)

    def _is_legacy_over(self, source: SourceSegment) -> bool:
        """Return whether the source's tombstones in the old formats have expired."""
        job = self.job
        cleaned = [s.last_modified_ms for s in job.sources if s.base_offset < job.map_from]
        limit = cleaned[-1] - job.rules.delete_retention_ms if cleaned else 0
        return source.last_modified_ms <= limit

    def _control(
        self, batch: RecordBatch, may_go: bool, is_over: bool, horizon: int
    ) -> bytes | None:
        if batch.record_count == 0:
            return self._empty(batch)
        if not may_go:
            return bytes(batch.view)
        if batch.delete_horizon_ms is None:
            return _rebuild(batch, list(_records(batch)), horizon)
        return self._empty(batch) if is_over else bytes(batch.view)

    def _marker(
        self,
        group: Group,
        batch: RecordBatch,
        drops: bool,
        met: set[tuple[int, int]],
        opened: set[int],
    ) -> bool:
        kind, txn = batch.control_type(), (batch.producer_id, batch.last_offset)
        if kind is ControlType.COMMIT:
            is_open = batch.producer_id in opened
            opened.discard(batch.producer_id)
            return drops and not is_open
        if txn not in {(t.producer_id, t.last_offset) for t in self.job.aborted}:
            return drops
        if drops and txn not in met:
            return True
        met.discard(txn)
        self.kept_aborted[group.bases[0]].append(txn)
        return False

    def _empty(self, batch: Batch) -> bytes | None:
        last = self.job.active_producers.get(batch.producer_id)
        is_last = False
        if batch.has_producer_id and last is not None:
            is_last = batch.last_offset == last[0]
            if last[0] < 0:
                is_last = batch.is_control and batch.producer_epoch == last[1]
        if not is_last and batch.next_offset != self.job.upper_bound_offset:
            return None
        stamped = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        largest = max((r.timestamp for r in _records(batch)), default=batch.max_timestamp)
        return bytes(
            build_empty_batch(
                base_offset=batch.base_offset,
                last_offset=batch.last_offset,
                max_timestamp=batch.max_timestamp if batch.magic == 2 else largest,
                timestamp_type=TimestampType(int(stamped)),
                leader_epoch=batch.leader_epoch,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                transactional=batch.is_transactional,
                control=batch.is_control,
            )
        )


def _records(batch: Batch) -> Sequence[Record]:
    return list(batch.records())


def _rebuild(batch: Batch, left: Sequence[Record], horizon_ms: int | None) -> bytes:
    stamped = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    return bytes(
        build_batch(
            [_with_create_time(record) for record in left],
            base_offset=batch.base_offset,
            leader_epoch=batch.leader_epoch,
            codec=batch.codec,
            timestamp_type=TimestampType(int(stamped)),
            append_time_ms=batch.max_timestamp if stamped else None,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            control=batch.is_control,
            delete_horizon_ms=horizon_ms,
            offset_deltas=[record.offset - batch.base_offset for record in left],
            last_offset_delta=batch.last_offset - batch.base_offset,
        )
    )


def _with_create_time(record: Record) -> Record:
    """Return the record with its create time as timestamp, even if readers see the append time."""
    if record.timestamp_type is not TimestampType.LOG_APPEND_TIME:
        return record
    created = record.create_timestamp
    return replace(record, timestamp=NO_TIMESTAMP if created is None else created)
