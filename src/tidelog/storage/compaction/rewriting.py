"""The second pass of a cleaning: writes the remaining records to `.cleaned` segments.

A source has up to three ranges, in order of their offsets:

- The part that an earlier cleaning has cleaned: its keys are hashed and looked up in the map.
- The mapped part: one bit for each record shows whether the record is superseded.
- The part after the mapped offsets: no record is dropped.

A batch of format 2 that loses no record and needs no delete horizon is copied byte for byte. If
such a batch is in the mapped part, it is not decompressed either. In the mapped part, a batch that
loses all its records is usually not even read, unless producers or transactions depend on it.

This module owns Kafka's rules for tombstones, markers and aborted data, and the decision for each
batch: dropped, copied, filtered, or kept as an empty one. Other modules decide which records are
superseded (`key_mapping`) and write the bytes of the new files (`cleaned_files`).

Imports numpy and numba. Source: Kafka 4.x Cleaner.cleanInto, MemoryRecords.filterTo; KIP-534.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.header import DELETE_HORIZON_BIT, MAGIC_2
from tidelog.record.kernels import layout, rewrite
from tidelog.record.kernels.key_map import Marks, map_batches
from tidelog.record.kernels.layout import REASONS
from tidelog.storage.compaction.cleaned_files import CleanedFiles, SourceTimes, write_group
from tidelog.storage.compaction.job import CleanedSource, CleaningJob, Group, SourceSegment
from tidelog.storage.compaction.key_mapping import (
    AbortedSpans,
    MappedRun,
    MappingResult,
    OffsetMap,
    Retention,
    TransactionWalk,
    aborted_batches,
    is_transactional,
    joined,
    records_in,
)
from tidelog.storage.compaction.source_reader import (
    OpenedBatches,
    Piece,
    SourceReader,
    check_counts,
    opened_groups,
)

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Ints, Longs
    from tidelog.storage.compaction.source_reader import Mask


_NO_BITS: Final = 8


@dataclass(slots=True)
class PieceFacts:
    """Facts about the batches of a piece, from which the batches are planned.

    Shape:
        numbers: int64[batches], index in `lost` of the bit of the batch's first record; -1 for a
            batch whose records have no bits in `lost`.
        counts: int64[batches], number of records; undefined for control batches and batches of
            aborted transactions.
        left: int64[batches], number of records that are not superseded.
        tombstones: int64[batches], number of tombstones before anything is dropped.
        lost: One bit for each record; the bit is set if the record is superseded.
    """

    numbers: "Longs"
    counts: "Longs"
    left: "Longs"
    tombstones: "Longs"
    lost: "Bytes"

    def part(self, start: int, end: int) -> "PieceFacts":
        """Return the facts about the batches in the rows [start, end)."""
        rows = slice(start, end)
        return PieceFacts(
            self.numbers[rows],
            self.counts[rows],
            self.left[rows],
            self.tombstones[rows],
            self.lost,
        )


def keep_all(piece: Piece) -> PieceFacts:
    """Return the facts about batches after the mapped offsets, where no record is superseded."""
    counts = piece.table[:, layout.RECORD_COUNT]
    none: Longs = np.zeros(len(counts), np.int64)
    return PieceFacts(none - 1, counts, counts, none, np.zeros(_NO_BITS, np.uint8))


@dataclass(frozen=True, slots=True)
class Cleaning:
    """State of a cleaning that the second pass uses.

    Attributes:
        job: The job.
        reader: Reads the sources.
        offset_map: Map that decides which records are superseded.
        mapped: Result of the first pass: the mapped batches.
        retention: Decides which batches are kept, at least as empty batches.
        spans: Aborted transactions.
        walk: Visits the batches of all sources, in order.
    """

    job: CleaningJob
    reader: SourceReader
    offset_map: OffsetMap
    mapped: MappingResult
    retention: Retention
    spans: AbortedSpans
    walk: TransactionWalk


class Planner:
    """Decides for each batch of one source, in order: drop, copy, filter, or keep it as empty."""

    def __init__(self, cleaning: Cleaning, group: Group, source: SourceSegment) -> None:
        """Create the planner of a source; the planners of all earlier sources must be done."""
        job, self._walk = cleaning.job, cleaning.walk
        self._now_ms = job.now_ms
        self._new_horizon_ms = job.delete_horizon_ms
        self._drops_expired = group.drop_expired
        self._mapped_to = cleaning.mapped.mapped_to
        # If `_sees_all` is false, `_walk` can't prove that a marker is no longer needed.
        self._sees_all = self._walk.begin(source) and group.drop_expired
        self._keeps_legacy = source.last_modified_ms > legacy_horizon_ms(job)
        self._retention = cleaning.retention

    def plan(self, piece: Piece, table: "Longs", judged: PieceFacts) -> "Longs":
        """Return the plan of batches that were mapped or looked up; see `kernels.rewrite`.

        Args:
            piece: The batches.
            table: Table of the batches, with corrected rows for opened legacy batches.
            judged: Facts about the batches.
        """
        plan = _empty_plan(len(table))
        is_kept = self._retention.retained_if_empty(piece)
        is_whole = (judged.left == judged.counts) & (table[:, layout.MAGIC] == MAGIC_2)
        of_none = np.where(is_kept, rewrite.EMPTY, rewrite.DROP)
        of_some = np.where(is_whole, rewrite.COPY, rewrite.FILTER)
        plan[:, rewrite.ACTION] = np.where(judged.left == 0, of_none, of_some)
        plan[:, rewrite.NUMBER] = judged.numbers
        plan[:, rewrite.KEEPS_EMPTY] = is_kept
        self._plan_tombstones(table, judged, plan)
        for slot in np.flatnonzero(is_transactional(piece)).tolist():
            self._plan_transactional(piece, slot, plan[slot])
        return plan

    def _plan_tombstones(self, table: "Longs", judged: PieceFacts, plan: "Longs") -> None:
        slots = np.flatnonzero((judged.tombstones > 0) & (judged.left > 0))
        if not len(slots):
            return
        rows = table[slots]
        has_horizon = rows[:, layout.ATTRIBUTES] & DELETE_HORIZON_BIT != 0
        is_over = has_horizon & (rows[:, layout.BASE_TIMESTAMP] <= self._now_ms)
        is_legacy = rows[:, layout.MAGIC] != MAGIC_2
        goes = self._drops_expired & np.where(is_legacy, not self._keeps_legacy, is_over)
        # A tombstone at or after the map's end stays. The map does not contain this tombstone, so
        # the cleaning keeps the records that the tombstone deletes.
        goes &= rows[:, layout.LAST_OFFSET] < self._mapped_to
        plan[slots, rewrite.DROPS_TOMBSTONES] = goes
        plan[slots, rewrite.HORIZON] = np.where(has_horizon, -1, self._new_horizon_ms)
        plan[slots[goes | ~has_horizon], rewrite.ACTION] = rewrite.FILTER

    def _plan_transactional(self, piece: Piece, slot: int, row: "Longs") -> None:
        """Plan a marker or a transactional data batch, and pass it to the `TransactionWalk`."""
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
        """Pass a marker to the `TransactionWalk`; return whether the marker is no longer needed."""
        table = piece.table[slot]
        with piece.located():
            batch = RecordBatch(piece.data.data, int(table[layout.POSITION]))
            kind = batch.control_type()
        return self._walk.on_marker(kind, batch.producer_id, batch.base_offset, sees_all=sees_all)

    def plan_rest(self, piece: Piece) -> "Longs":
        """Return the plan of batches after the mapped offsets: copy all, even aborted batches."""
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
    """Return a file time in ms: segments modified after this time keep tombstones of old formats.

    The result is the modification time of the last segment that an earlier cleaning has cleaned,
    minus the retention; 0 if there is no such segment. This time is used instead of the delete
    horizon, which batches of formats 0 and 1 don't have.
    """
    cleaned = [s.last_modified_ms for s in job.sources if s.base_offset < job.map_from]
    return cleaned[-1] - job.rules.delete_retention_ms if cleaned else 0


# If the dropped batches between two other batches have at most this number of bytes, all of these
# batches are read at once. Reading the dropped bytes takes less time than starting another read
# after them (0.3 ms).
GAP_BYTES: Final = 1 << 20


class SourcePass:
    """The second pass over one source."""

    def __init__(
        self,
        cleaning: Cleaning,
        group: Group,
        source: SourceSegment,
        out: CleanedFiles,
        times: SourceTimes,
    ) -> None:
        self._cleaning = cleaning
        self._source = source
        self._planner = Planner(cleaning, group, source)
        self._out = out
        self._times = times
        self._counts = CleanedSource(base_offset=source.base_offset, bytes_before=source.size_bytes)

    def run(self) -> CleanedSource:
        """Write the remaining records, and return the counts for the source.

        Raises:
            CorruptData, UnsupportedCompression: The source is damaged, or a codec is undefined; the
                error has the file and, for damage, the position.
            OffsetOverflow: The remaining batches don't fit into the cleaned segment after the data
                already written.
            OSError: The disk failed.
        """
        runs = joined(self._cleaning.mapped.runs.get(self._source.base_offset, []))
        if runs:
            start, end = runs[0].start, runs[-1].end
        else:
            start = end = self._end_of_cleaned()
        self._write_cleaned(start)
        for run in runs:
            self._write_run(run)
        self._write_rest(end)
        return self._counts

    def _end_of_cleaned(self) -> int:
        """Return the end of the source's part that an earlier cleaning has cleaned.

        The source must not have a mapped run.
        """
        source, map_from = self._source, self._cleaning.job.map_from
        if source.end_offset <= map_from:
            return source.size_bytes
        if source.base_offset >= map_from:
            return 0
        for piece in self._cleaning.reader.pieces(source, check=True):
            slot = int(np.searchsorted(piece.table[:, layout.LAST_OFFSET], map_from))
            if slot < len(piece.table):
                return piece.part(slot, slot + 1).start
        return source.size_bytes

    def _write_cleaned(self, end: int) -> None:
        """Look up the keys of the part that an earlier cleaning has cleaned; write the rest."""
        reader = self._cleaning.reader
        for whole in reader.pieces(self._source, 0, end, check=True):
            # Markers are opened too, because they may get a delete horizon.
            is_opened = ~aborted_batches(whole, self._cleaning.spans)
            for start, stop, opened in opened_groups(whole, is_opened, reader.arena):
                piece = whole.part(start, stop)
                check_counts(piece, opened, is_opened[start:stop])
                judged = self._look_up(piece, opened, is_opened[start:stop] & ~piece.is_control)
                self._counts.records_before += records_in(opened.table)
                self._write(piece, opened, self._planner.plan(piece, opened.table, judged), judged)

    def _look_up(self, piece: Piece, opened: OpenedBatches, is_judged: "Mask") -> PieceFacts:
        """Look up records that precede the mapped offsets; return facts about the batches."""
        counts = np.where(is_judged, opened.table[:, layout.RECORD_COUNT], 0)
        numbers = np.where(is_judged, np.cumsum(counts) - counts, -1)
        lost_bits: Bytes = np.zeros(int(counts.sum()) // 8 + 1, np.uint8)
        tombstones: Ints = np.zeros(len(counts), np.int32)
        self._hold(
            piece, opened, numbers, Marks(self._cleaning.offset_map.lost, lost_bits, tombstones)
        )
        left_counts: Longs = np.empty(len(counts), np.int64)
        rewrite.count_remaining(counts, numbers, lost_bits, left_counts)
        return PieceFacts(numbers, counts, left_counts, tombstones.astype(np.int64), lost_bits)

    def _hold(self, piece: Piece, opened: OpenedBatches, numbers: "Longs", marks: Marks) -> None:
        """Look up records that precede the mapped offsets; mark the superseded records."""
        job, offset_map = self._cleaning.job, self._cleaning.offset_map
        rules = offset_map.key_rules(0, job.map_from, job.log_start_offset, is_look_up=True)
        status = map_batches(opened.bodies, opened.table, numbers, rules, offset_map.keys, marks)
        if status != layout.DONE:
            raise piece.corrupt(offset_map.bad_slot, REASONS[status])

    def _write_run(self, run: MappedRun) -> None:
        """Write a mapped run, reading little more than the batches with remaining records."""
        if run.straddles:
            self._hold_first(run)
        left_counts = run.left(self._cleaning.offset_map)
        counts = run.counts.astype(np.int64)
        judged = PieceFacts(
            run.numbers(),
            np.maximum(counts, 0),
            left_counts,
            run.tombstones.astype(np.int64),
            self._cleaning.offset_map.lost,
        )
        if not run.is_special:
            self._counts.records_before += int(counts.sum())
        ends = np.cumsum(run.sizes, dtype=np.int64)
        for first, behind in self._spans_to_read(run, left_counts, ends):
            start, end = int(ends[first]) - int(run.sizes[first]), int(ends[behind - 1])
            self._write_span(run, judged, first, (run.start + start, run.start + end))

    def _spans_to_read(
        self, run: MappedRun, left_counts: "Longs", ends: "Longs"
    ) -> Iterator[tuple[int, int]]:
        """Yield the rows [first, end) of batches that are read together, including small gaps."""
        if run.is_special:
            yield 0, len(left_counts)
            return
        slots = np.flatnonzero(left_counts > 0)
        if not len(slots):
            return
        gaps = ends[slots[1:] - 1] - ends[slots[:-1]]
        cuts = np.flatnonzero(gaps > GAP_BYTES)
        firsts = np.concatenate((slots[:1], slots[cuts + 1])).tolist()
        lasts = np.concatenate((slots[cuts], slots[-1:])).tolist()
        for first, last in zip(firsts, lasts, strict=True):
            yield first, last + 1

    def _write_span(
        self, run: MappedRun, judged: PieceFacts, first: int, span: tuple[int, int]
    ) -> None:
        """Write the remaining records of a range of positions that begins at batch `first`."""
        for piece in self._cleaning.reader.pieces(self._source, *span, check=False):
            part = judged.part(first, first + len(piece.table))
            first += len(piece.table)
            plan = self._planner.plan(piece, piece.table, part)
            if run.is_special:
                is_2 = piece.table[:, layout.MAGIC] == MAGIC_2
                record_counts = np.where(is_2, piece.table[:, layout.RECORD_COUNT], part.counts)
                self._counts.records_before += int(record_counts.sum())
            self._open_and_write(piece, plan, part)

    def _hold_first(self, run: MappedRun) -> None:
        """Look up the records of the first batch that precede the mapped offsets."""
        end = run.start + int(run.sizes[0])
        for whole in self._cleaning.reader.pieces(self._source, run.start, end, check=False):
            is_opened = np.array([run.counts[0] >= 0])
            for _, _, opened in opened_groups(whole, is_opened, self._cleaning.reader.arena):
                lost_bits = self._cleaning.offset_map.lost
                marks = Marks(lost_bits, lost_bits, np.zeros(1, np.int32))
                self._hold(whole, opened, run.numbers()[:1], marks)

    def _write_rest(self, start: int) -> None:
        """Copy the part after the mapped offsets."""
        reader = self._cleaning.reader
        for piece in reader.pieces(self._source, start, check=True):
            judged = keep_all(piece)
            self._open_and_write(piece, self._planner.plan_rest(piece), judged, is_rest=True)

    def _open_and_write(
        self, piece: Piece, plan: "Longs", judged: PieceFacts, *, is_rest: bool = False
    ) -> None:
        """Open the batches that have to be decompressed or converted, and write all batches."""
        action, magic = plan[:, rewrite.ACTION], piece.table[:, layout.MAGIC]
        # A legacy batch gets a new header, which has to be computed.
        is_opened = (action == rewrite.FILTER) | ((magic != MAGIC_2) & (action != rewrite.DROP))
        for start, end, opened in opened_groups(piece, is_opened, self._cleaning.reader.arena):
            part = piece.part(start, end)
            check_counts(part, opened, is_opened[start:end])
            if is_rest:
                self._counts.records_before += records_in(opened.table)
            self._write(part, opened, plan[start:end], judged.part(start, end))

    def _write(
        self, piece: Piece, opened: OpenedBatches, plan: "Longs", judged: PieceFacts
    ) -> None:
        batches = write_group(piece, opened, plan, judged.lost)
        if not self._out.has_room(batches.size_bytes, self._source, piece.end):
            # In a batch with a delete horizon, timestamps are relative to the horizon, so each
            # timestamp may need more bytes. If the cleaned segment has no room for these bytes, no
            # horizon is set now. A later cleaning with more room sets the horizon.
            plan = plan.copy()
            plan[:, rewrite.HORIZON] = -1
            batches = write_group(piece, opened, plan, judged.lost)
        self._out.write(batches, self._times)
        rows, counts = batches.rows, self._counts
        slots = rows[:, rewrite.WRITTEN_SLOT]
        is_control = piece.is_control[slots]
        is_copy = (rows[:, rewrite.IS_NEW] == 0) & (plan[slots, rewrite.ACTION] == rewrite.COPY)
        tombstones = np.where(
            is_copy, judged.tombstones[slots], rows[:, rewrite.WRITTEN_TOMBSTONES]
        )
        counts.bytes_after += batches.size_bytes
        counts.records_after += int(rows[:, rewrite.WRITTEN_RECORDS].sum())
        counts.tombstones_after += int(tombstones[~is_control].sum())
        counts.markers_after += int(rows[is_control, rewrite.WRITTEN_RECORDS].sum())
