"""Reads an internal log in pieces by kernels, mostly without the GIL.

If a piece has several consecutive batches that kernels can read, the collector gets only the last
record of each key in these batches. Kernels don't read control batches, or batches that are
transactional, compressed, damaged or in an old format. Plain Python reads batches of these kinds
one by one, in the order of the log.

This module imports numpy and numba, so it is imported only after kernels were loaded.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from tidelog.errors import CorruptBatch, CorruptData
from tidelog.record.batch_walk import Batch, view_batch
from tidelog.record.columns.decode import LatestFinder, LatestRecord
from tidelog.record.header import (
    CODEC_MASK,
    CONTROL_BIT,
    MAGIC_2,
    TRANSACTIONAL_BIT,
)
from tidelog.record.kernels import layout
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.layout import scan_error
from tidelog.record.offset_order import cut_problem, segment_limit
from tidelog.storage.open_files import incomplete_batch_size, typed_reads
from tidelog.storage.segment.segment import holds_to
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs


# Number of bytes read at a time. This number is large, because a key that occurs in several pieces
# is passed to the collector once for each of these pieces.
KERNEL_PIECE_BYTES: Final = 16 << 20

# Maximum number of batches that are scanned together.
TABLE_BATCHES: Final = 1 << 15

_NOT_PLAIN: Final = CODEC_MASK | CONTROL_BIT | TRANSACTIONAL_BIT


class RecordCollector(Protocol):
    """Collects the last record of each key."""

    def add(self, batch: Batch) -> None:
        """Add a batch; raises CorruptData if its records can't be read."""
        ...

    def add_latest(self, latest: Iterable[LatestRecord]) -> None:
        """Add the last record of each key in batches that are neither control nor transactional."""
        ...


class KernelPieces:
    """Reads slices of logs by kernels. Not thread-safe."""

    def __init__(self, secret: bytes, *, piece_bytes: int = KERNEL_PIECE_BYTES) -> None:
        """Use 16 secret bytes to hash keys, so that writers of records can't cause collisions."""
        self._finder = LatestFinder(secret)
        self._piece_bytes = piece_bytes
        self._table: Longs = np.empty((TABLE_BATCHES, layout.BATCH_FIELDS), np.int64)

    def take(self, part: LogSlice, taker: RecordCollector) -> Iterator[int]:
        """Read a slice in pieces; after each piece, yield the piece's size in bytes.

        Raises:
            CorruptData: A batch is damaged. The message has the file and position.
            StorageFailure: The disk failed.
        """
        with typed_reads(part.segment.log_path):
            file, end = part.segment.open_file(), part.end_position
            position, size = part.start_position, self._piece_bytes
            run = _Run(self._finder, part, taker)
            while position < end:
                data = file.pread(min(size, end - position), position)
                used = self._take_piece(run, data, position)
                if used:
                    position, size = position + used, self._piece_bytes
                    yield used
                    continue
                size = incomplete_batch_size(data)
                if size <= len(data) or position + size > end:
                    run.end_in_batch(position, end)
                    return

    def _take_piece(self, run: "_Run", data: bytes, position: int) -> int:
        """Read the complete batches at the start of `data`; return their total size in bytes."""
        array, at, status = np.frombuffer(data, np.uint8), 0, layout.FULL
        while status == layout.FULL:
            table, between = self._table, run.between
            count, behind, status = scan_batches(array, at, array.size, table, *between)
            error = None
            if status not in (layout.DONE, layout.FULL, layout.PARTIAL):
                error = scan_error(array, table, count, behind, status, *between)
            run.take(data, position, table[:count])
            if error is not None:
                raise error.located(run.path, position)
            at = behind
        return at


class _Run:
    """Progress of the read of one slice."""

    def __init__(self, finder: LatestFinder, part: LogSlice, taker: RecordCollector) -> None:
        self._finder = finder
        self._part = part
        self._taker = taker
        self.path = part.segment.log_path
        self._next_offset = part.segment.base_offset
        segment = part.segment
        end = segment.end_offset if segment.has_known_end else INT64_MAX
        self._limit = segment_limit(segment.base_offset, end)

    @property
    def between(self) -> tuple[int, int]:
        """Lowest offset allowed for the next batch, and the exclusive upper limit of offsets."""
        return self._next_offset, self._limit

    def take(self, data: bytes, position: int, table: "Longs") -> None:
        """Read the batches in `table` from `data`, which starts at `position` of the file."""
        if not len(table):
            return
        self._next_offset = int(table[-1, layout.LAST_OFFSET]) + 1
        table = self._rows_in_slice(table)
        is_plain = (table[:, layout.MAGIC] == MAGIC_2) & (
            table[:, layout.ATTRIBUTES] & _NOT_PLAIN == 0
        )
        edges = (np.flatnonzero(is_plain[1:] != is_plain[:-1]) + 1).tolist()
        for start, end in pairwise([0, *edges, len(table)]):
            rows = table[start:end]
            latest = self._finder.find(data, rows) if len(rows) and is_plain[start] else None
            if latest is None:
                self._take_singly(data, position, rows)
            else:
                self._taker.add_latest(latest)

    def _rows_in_slice(self, table: "Longs") -> "Longs":
        """Return the rows of batches that contain an offset of the slice."""
        last = table[:, layout.LAST_OFFSET]
        first = int(np.searchsorted(last, self._part.start_offset))
        behind = int(np.searchsorted(last, self._part.end_offset - 1)) + 1
        table = table[first:behind]
        is_behind = len(table) and table[-1, layout.BASE_OFFSET] >= self._part.end_offset
        return table[:-1] if is_behind else table

    def _take_singly(self, data: bytes, position: int, rows: "Longs") -> None:
        try:
            for at in rows[:, layout.POSITION].tolist():
                batch = view_batch(data, at)
                batch.ensure_valid()
                self._taker.add(batch)
        except CorruptData as error:
            raise error.located(self.path, position) from error

    def end_in_batch(self, position: int, end: int) -> None:
        """Raise CorruptBatch for an incomplete batch that may contain offsets of the slice.

        If the complete batches reach the end of the slice, the incomplete batch is only a partly
        written end of the log, which is no error.
        """
        segment = self._part.segment
        if not holds_to(segment, end):
            return
        end_offset = min(self._limit, segment.end_offset)
        problem = cut_problem(end - position, self._next_offset, end_offset)
        if problem is not None:
            error = CorruptBatch(problem, at=0, offset=self._next_offset)
            raise error.located(self.path, position)
