"""What is to be done with each batch of a piece: dropped, copied, filtered, kept as an empty one.

Owns Kafka's rules for tombstones, markers and aborted data; which records lost to later ones is
known before. Imports numpy. Source: Kafka 4.x Cleaner, MemoryRecords.filterTo; KIP-534.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tidelog.record.batch import RecordBatch
from tidelog.record.header import DELETE_HORIZON_BIT, MAGIC_2
from tidelog.record.kernels import layout, rewrite
from tidelog.storage.compaction.job import CleaningJob, Group, SourceSegment
from tidelog.storage.compaction.mapping import is_transactional
from tidelog.storage.compaction.retaining import Retention
from tidelog.storage.compaction.sources import Piece
from tidelog.storage.compaction.transactions import TransactionWalk
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Longs

_NO_BITS: Final = 8


@dataclass(slots=True)
class Judged:
    """What is known of the batches of a piece before it is planned.

    Shape:
        numbers: int64[batches], the first record's number in `lost`, -1: none has lost.
        counts: int64[batches], records; anything for control batches and aborted ones.
        left: int64[batches], records that have not lost.
        tombstones: int64[batches], how many there are before anything goes.
        lost: One bit for each record.
    """

    numbers: "Longs"
    counts: "Longs"
    left: "Longs"
    tombstones: "Longs"
    lost: "Bytes"

    def part(self, start: int, end: int) -> "Judged":
        """Some of the batches, by their rows."""
        rows = slice(start, end)
        return Judged(
            self.numbers[rows],
            self.counts[rows],
            self.left[rows],
            self.tombstones[rows],
            self.lost,
        )


def keep_all(piece: Piece) -> Judged:
    """What is known of batches behind the map: nothing of them has lost."""
    counts = piece.table[:, layout.RECORD_COUNT]
    none: Longs = np.zeros(len(counts), np.int64)
    return Judged(none - 1, counts, counts, none, np.zeros(_NO_BITS, np.uint8))


class Seen(NamedTuple):
    """What of the log has been seen when a source is planned.

    Attributes:
        mapped_to: Offset behind the last one that is in the map, exclusive.
        is_all: Whether the walk has met every batch of the log before the source: only then does it
            follow from what it has not met that nothing needs a marker any more.
    """

    mapped_to: int
    is_all: bool


class Planner:
    """Plans the batches of one source, in their order."""

    def __init__(
        self,
        job: CleaningJob,
        group: Group,
        source: SourceSegment,
        retention: Retention,
        walk: TransactionWalk,
        seen: Seen,
    ) -> None:
        """The planner of one source.

        Args:
            job: The cleaning.
            group: What the source belongs to.
            source: The segment.
            retention: Which batches stay at least as empty ones.
            walk: Has met the batches of the sources before it.
            seen: What of the log map and walk have seen.
        """
        self._now_ms = job.now_ms
        # Whoever sets a horizon far enough away means "never".
        self._new_horizon_ms = min(job.now_ms + job.rules.delete_retention_ms, INT64_MAX)
        self._drops_expired = group.drop_expired
        self._mapped_to = seen.mapped_to
        self._sees_all = group.drop_expired and seen.is_all
        self._keeps_legacy = source.last_modified_ms > legacy_horizon_ms(job)
        self._retention = retention
        self._walk = walk

    def plan(self, piece: Piece, table: "Longs", judged: Judged) -> "Longs":
        """The plan of mapped batches, or of those held against the map; see `kernels.rewrite`.

        Args:
            piece: The batches.
            table: Their table, legacy ones completed where they were opened.
            judged: What is known of them.
        """
        plan = _empty_plan(len(table))
        kept = self._retention.kept_if_empty(piece)
        is_whole = (judged.left == judged.counts) & (table[:, layout.MAGIC] == MAGIC_2)
        of_none = np.where(kept, rewrite.EMPTY, rewrite.DROP)
        of_some = np.where(is_whole, rewrite.COPY, rewrite.FILTER)
        plan[:, rewrite.ACTION] = np.where(judged.left == 0, of_none, of_some)
        plan[:, rewrite.NUMBER] = judged.numbers
        plan[:, rewrite.KEEPS_EMPTY] = kept
        self._plan_tombstones(table, judged, plan)
        for slot in np.flatnonzero(is_transactional(piece)).tolist():
            self._plan_transactional(piece, slot, plan[slot])
        return plan

    def _plan_tombstones(self, table: "Longs", judged: Judged, plan: "Longs") -> None:
        slots = np.flatnonzero((judged.tombstones > 0) & (judged.left > 0))
        if not len(slots):
            return
        rows = table[slots]
        has_horizon = rows[:, layout.ATTRIBUTES] & DELETE_HORIZON_BIT != 0
        is_over = has_horizon & (rows[:, layout.BASE_TIMESTAMP] <= self._now_ms)
        is_legacy = rows[:, layout.MAGIC] != MAGIC_2
        goes = self._drops_expired & np.where(is_legacy, not self._keeps_legacy, is_over)
        # A tombstone behind the map's end has not taken what it covers with it yet.
        goes &= rows[:, layout.LAST_OFFSET] < self._mapped_to
        plan[slots, rewrite.DROPS_TOMBSTONES] = goes
        plan[slots, rewrite.HORIZON] = np.where(has_horizon, -1, self._new_horizon_ms)
        plan[slots[goes | ~has_horizon], rewrite.ACTION] = rewrite.FILTER

    def _plan_transactional(self, piece: Piece, slot: int, row: "Longs") -> None:
        """A marker or data of a transaction, which the walk has to see in its place."""
        if piece.is_control[slot]:
            self._plan_control(piece, slot, row)
            return
        table = piece.table[slot]
        if self._walk.on_data(int(table[layout.PRODUCER_ID]), int(table[layout.BASE_OFFSET])):
            is_kept = row[rewrite.KEEPS_EMPTY] == 1
            row[rewrite.ACTION] = rewrite.EMPTY if is_kept else rewrite.DROP

    def _plan_control(self, piece: Piece, slot: int, row: "Longs") -> None:
        table, is_kept = piece.table[slot], row[rewrite.KEEPS_EMPTY] == 1
        row[rewrite.NUMBER] = -1
        if table[layout.RECORD_COUNT] == 0:
            row[rewrite.ACTION] = rewrite.EMPTY if is_kept else rewrite.DROP
            return
        row[rewrite.ACTION] = rewrite.COPY
        if not self._show_marker(piece, slot, sees_all=self._sees_all):
            return
        if table[layout.ATTRIBUTES] & DELETE_HORIZON_BIT == 0:
            row[rewrite.ACTION] = rewrite.FILTER
            row[rewrite.HORIZON] = self._new_horizon_ms
            row[rewrite.FORCES_HORIZON] = 1
        elif table[layout.BASE_TIMESTAMP] <= self._now_ms:
            row[rewrite.ACTION] = rewrite.EMPTY if is_kept else rewrite.DROP

    def _show_marker(self, piece: Piece, slot: int, *, sees_all: bool) -> bool:
        """Let the walk see a marker; whether nothing needs it any more."""
        table = piece.table[slot]
        with piece.located():
            batch = RecordBatch(piece.data.data, int(table[layout.POSITION]))
            kind = batch.control_type()
        return self._walk.on_marker(kind, batch.producer_id, batch.base_offset, sees_all=sees_all)

    def plan_rest(self, piece: Piece) -> "Longs":
        """The plan of batches behind the map: all are copied, aborted ones too."""
        plan = _empty_plan(len(piece.table))
        plan[:, rewrite.ACTION] = rewrite.COPY
        for slot in np.flatnonzero(is_transactional(piece)).tolist():
            table = piece.table[slot]
            if not piece.is_control[slot]:
                self._walk.on_data(int(table[layout.PRODUCER_ID]), int(table[layout.BASE_OFFSET]))
            elif table[layout.RECORD_COUNT] > 0:
                self._show_marker(piece, slot, sees_all=False)
        return plan


def _empty_plan(count: int) -> "Longs":
    plan: Longs = np.zeros((count, rewrite.PLAN_FIELDS), np.int64)
    plan[:, rewrite.NUMBER] = plan[:, rewrite.HORIZON] = -1
    return plan


def legacy_horizon_ms(job: CleaningJob) -> int:
    """Tombstones of old formats stay where their segment was modified after this.

    That of the last segment that was cleaned before, as there is no horizon in a batch.
    """
    cleaned = [s.last_modified_ms for s in job.sources if s.base_offset < job.map_from]
    return cleaned[-1] - job.rules.delete_retention_ms if cleaned else 0
