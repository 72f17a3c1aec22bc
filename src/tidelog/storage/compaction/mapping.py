"""The first pass: the keys of a job's dirty offsets go into the map, older records of a key lose.

What the second pass needs of a batch is noted here (size, records, tombstones), so that it reads
only batches with a record that is left, and opens only those that have lost some but not all.

Imports numpy and numba. Source: Kafka 4.x Cleaner.buildOffsetMap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.record.header import CONTROL_BIT, TRANSACTIONAL_BIT
from tidelog.record.kernels import layout
from tidelog.record.kernels.checksums import shifts
from tidelog.record.kernels.key_map import Marks, map_batches
from tidelog.record.kernels.reasons import REASONS
from tidelog.record.kernels.rewrite import count_left
from tidelog.storage.compaction.job import CleaningJob, SourceSegment
from tidelog.storage.compaction.offset_map import OffsetMap
from tidelog.storage.compaction.retaining import Retention
from tidelog.storage.compaction.sources import (
    Opened,
    Piece,
    SourceReader,
    check_counts,
    check_sums,
    lies_plainly,
    opened_groups,
)
from tidelog.storage.compaction.transactions import AbortedSpans

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Ints, Longs
    from tidelog.storage.compaction.sources import Mask

# In place of a number of records: the batch did not go into the map.
LEFT_OUT: Final = -1
# What the notes on a batch take, and those on a run of batches.
_BATCH_NOTE_BYTES: Final = 12
_RUN_NOTE_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class MappedRun:
    """Batches of a segment that follow each other and went through the map together.

    Shape:
        sizes: int32[batches], in bytes.
        counts: int32[batches], records of each; LEFT_OUT for control batches and aborted ones.
        tombstones: int32[batches].

    Attributes:
        start: Position of the first batch.
        first_number: Number of its first record.
        is_special: Whether a batch has to be looked at even where nothing of it is left.
        straddles: Whether the first batch begins below the mapped offsets.
    """

    start: int
    first_number: int
    sizes: "Ints"
    counts: "Ints"
    tombstones: "Ints"
    is_special: bool
    straddles: bool

    @property
    def end(self) -> int:
        """Position behind the last batch."""
        return self.start + int(self.sizes.sum(dtype=np.int64))

    def numbers(self) -> "Longs":
        """The number of each batch's first record, -1 for a batch that was left out."""
        counts = np.maximum(self.counts, 0).astype(np.int64)
        numbers = self.first_number + np.cumsum(counts) - counts
        numbers[self.counts == LEFT_OUT] = -1
        return numbers

    def left(self, offset_map: OffsetMap) -> "Longs":
        """How many records of each batch have not lost; of one left out 0."""
        counts = np.maximum(self.counts, 0).astype(np.int64)
        out: Longs = np.empty(len(counts), np.int64)
        count_left(counts, self.numbers(), offset_map.lost, out)
        return out


def joined(runs: Sequence[MappedRun]) -> list[MappedRun]:
    """The same runs of a segment, those that are looked at alike as one; what one costs is saved.

    A run begins where the one before ends, in bytes and in numbers.
    """
    found: list[list[MappedRun]] = []
    for run in runs:
        is_like = found and found[-1][-1].is_special == run.is_special and not run.straddles
        if is_like:
            found[-1].append(run)
        else:
            found.append([run])
    return [_join(alike) for alike in found]


def _join(runs: Sequence[MappedRun]) -> MappedRun:
    return replace(
        runs[0],
        sizes=np.concatenate([run.sizes for run in runs]),
        counts=np.concatenate([run.counts for run in runs]),
        tombstones=np.concatenate([run.tombstones for run in runs]),
    )


@dataclass(slots=True)
class Mapped:
    """What the first pass leaves.

    Attributes:
        mapped_to: Offset behind the last one that is in the map, exclusive.
        runs: By a segment's base offset, in order of their positions.
    """

    mapped_to: int
    runs: dict[int, list[MappedRun]] = field(default_factory=dict)


class Mapper:
    """One first pass."""

    def __init__(
        self,
        job: CleaningJob,
        reader: SourceReader,
        offset_map: OffsetMap,
        retention: Retention,
        spans: AbortedSpans,
    ) -> None:
        self._job = job
        self._reader = reader
        self._map = offset_map
        self._retention = retention
        self._spans = spans
        self._next_number = 0
        self._mapped = Mapped(job.map_to)

    def run(self) -> Mapped:
        """Map all dirty sources, or as much as fits.

        Raises:
            CorruptData: A batch or a record is damaged; located.
            UnsupportedCompression: A codec that nobody defined.
            CleaningFailed: A key has no room where keys are kept.
            OSError: The disk failed.
        """
        start, end = self._job.map_from, self._job.map_to
        for source in self._job.sources:
            if source.end_offset > start and source.base_offset < end and not self._run(source):
                break
        return self._mapped

    def _run(self, source: SourceSegment) -> bool:
        """Map one segment; False where the map is full."""
        runs = self._mapped.runs.setdefault(source.base_offset, [])
        # What is left out of the map on either side is checked when it is written.
        for piece in self._reader.pieces(source, check=True, sums=False):
            last = piece.table[:, layout.LAST_OFFSET]
            start = int(np.searchsorted(last, self._job.map_from))
            # The batch that begins below the end and reaches it counts.
            before = np.concatenate(([-1], last[:-1]))
            end = int(np.searchsorted(before, self._job.map_to - 1))
            if start < end and not self._take(piece.part(start, end), runs):
                return False
            if end < len(piece.table):
                return True
        return True

    def _take(self, piece: Piece, runs: list[MappedRun]) -> bool:
        wanted = ~piece.is_control & ~aborted_batches(piece, self._spans)
        special = self._retention.kept_if_empty(piece) | is_transactional(piece)
        if not lies_plainly(piece):
            check_sums(piece)
            piece = replace(piece, is_checked=True)
        for start, end, opened in opened_groups(piece, wanted, self._reader.arena):
            part = piece.part(start, end)
            if not self._map_group(part, opened, wanted[start:end], special[start:end], runs):
                return False
        return True

    def _map_group(
        self, piece: Piece, opened: Opened, wanted: "Mask", special: "Mask", runs: list[MappedRun]
    ) -> bool:
        """Put a group's records into the map and note its batches; False where it is full."""
        table = opened.table
        check_counts(piece, opened, wanted)  # before room is made for so many
        counts = np.where(wanted, table[:, layout.RECORD_COUNT], LEFT_OUT)
        run = MappedRun(
            start=piece.start,
            first_number=self._next_number,
            sizes=table[:, layout.SIZE].astype(np.int32),
            counts=counts.astype(np.int32),
            tombstones=np.zeros(len(table), np.int32),
            is_special=bool(special.any()),
            straddles=bool(table[0, layout.BASE_OFFSET] < self._job.map_from),
        )
        next_number = self._next_number + int(np.maximum(counts, 0).sum())
        notes_bytes = _RUN_NOTE_BYTES + _BATCH_NOTE_BYTES * len(table)
        if not self._map.make_room(next_number, notes_bytes):
            self._mapped.mapped_to = max(int(table[0, layout.BASE_OFFSET]), self._job.map_from)
            return False
        marks = Marks(self._map.lost, self._map.lost, run.tombstones)
        rules = self._map.key_rules(
            self._job.map_from, self._job.map_to, self._job.log_start_offset, is_look_up=False
        )
        numbers = run.numbers()
        if not piece.is_checked:
            rules = rules._replace(shifts=shifts())
        status = map_batches(opened.bodies, table, numbers, rules, self._map.keys, marks)
        if status == layout.BAD_SUM:
            check_sums(piece)
        if status not in (layout.DONE, layout.FULL):
            raise piece.corrupt(self._map.bad_slot, REASONS[status])
        self._map.check_keys()
        self._next_number = next_number
        if status == layout.DONE:
            runs.append(run)
            return True
        self._mapped.mapped_to = self._map.stop_offset
        rows = int(np.searchsorted(table[:, layout.LAST_OFFSET], self._map.stop_offset)) + 1
        runs.append(
            replace(
                run,
                sizes=run.sizes[:rows],
                counts=run.counts[:rows],
                tombstones=run.tombstones[:rows],
            )
        )
        return False


def records_in(table: "Longs") -> int:
    """Records of all batches of a table, as far as their headers tell."""
    return int(np.maximum(table[:, layout.RECORD_COUNT], 0).sum())


def is_transactional(piece: Piece) -> "Mask":
    """Which batches belong to transactions or are markers."""
    bits = TRANSACTIONAL_BIT | CONTROL_BIT
    found: Mask = piece.table[:, layout.ATTRIBUTES] & bits != 0
    return found


def aborted_batches(piece: Piece, spans: AbortedSpans) -> "Mask":
    """Which data batches belong to aborted transactions."""
    attributes = piece.table[:, layout.ATTRIBUTES]
    is_data = attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT
    found: Mask = is_data & np.isin(piece.table[:, layout.PRODUCER_ID], spans.producer_ids)
    for slot in np.flatnonzero(found).tolist():
        producer_id = int(piece.table[slot, layout.PRODUCER_ID])
        offset = int(piece.table[slot, layout.BASE_OFFSET])
        found[slot] = spans.holding(producer_id, offset) is not None
    return found
