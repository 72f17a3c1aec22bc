"""Finds batches of a split that need no decoding: aborted, or outside the range of append times.

The module also finds the extent of fetched batches, and the aborted transactions among fetched
batches. It works on batch tables (`tidelog.record.kernels.layout`), and reads only the headers of
batches; control batches are read as a whole.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.record.batch import RecordBatch
from tidelog.record.columns.batch_table import is_frame
from tidelog.record.header import CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT
from tidelog.record.kernels import layout
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.offset_order import ANY_OFFSETS, Reach
from tidelog.record.record import ControlType
from tidelog.scan.split import AbortedSpan, Piece, Split
from tidelog.types import INT64_MAX, Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tidelog.record.columns.batch_table import DropBatch
    from tidelog.record.kernels.memory import Longs

    Mask = npt.NDArray[np.bool_]


_DATA_BITS: Final = TRANSACTIONAL_BIT | CONTROL_BIT


class AbortedBatches:
    """Filter for the batches of aborted transactions."""

    def __init__(self, spans: "Sequence[AbortedSpan]") -> None:
        # One producer's transactions don't overlap, so binary search finds the span of an offset.
        self._spans: dict[int, tuple[list[int], list[int]]] = {}
        for span in sorted(spans, key=lambda span: span.first_offset):
            firsts, lasts = self._spans.setdefault(span.producer_id, ([], []))
            firsts.append(span.first_offset)
            lasts.append(span.last_offset)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def mask(self, table: "Longs") -> "Mask":
        """Return a mask of the table's batches that belong to aborted transactions."""
        is_data = table[:, layout.ATTRIBUTES] & _DATA_BITS == TRANSACTIONAL_BIT
        is_aborted = np.zeros(len(table), np.bool_)
        for slot in np.flatnonzero(is_data):
            producer_id = int(table[slot, layout.PRODUCER_ID])
            is_aborted[slot] = self._is_aborted(producer_id, int(table[slot, layout.BASE_OFFSET]))
        return is_aborted

    def _is_aborted(self, producer_id: int, offset: int) -> bool:
        firsts, lasts = self._spans.get(producer_id, ([], []))
        slot = bisect_right(firsts, offset) - 1
        return slot >= 0 and offset <= lasts[slot]


class UnstampedBatches:
    """Filter for a piece without stored append times: only LogAppendTime batches have append times.

    Attributes:
        without_time: Number of records with an offset in the piece and an unknown append time. The
            number is an estimate: it may be too large if the piece begins or ends inside a batch
            that has gaps.
    """

    def __init__(self, piece: Piece, time_range: tuple[int, int]) -> None:
        self._piece = piece
        self._start_ms, self._end_ms = time_range
        self.without_time = 0

    def mask(self, table: "Longs") -> "Mask":
        """Return a mask of the batches that can't match the time range.

        A legacy message whose records are not read yet may match.
        """
        is_read = ~is_frame(table)
        is_stamped = table[:, layout.ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
        stamp = table[:, layout.MAX_TIMESTAMP]
        in_range = (stamp >= self._start_ms) & (stamp < self._end_ms)
        self.without_time += self._count(table[is_read & ~is_stamped])
        cannot: Mask = is_read & ~(is_stamped & in_range)
        return cannot

    def _count(self, table: "Longs") -> int:
        """Return the number of the table's data records whose offsets are in the piece.

        The number may be too large if the piece begins or ends inside a batch that has gaps.
        """
        table = table[table[:, layout.ATTRIBUTES] & CONTROL_BIT == 0]
        start = np.maximum(table[:, layout.BASE_OFFSET], self._piece.start_offset)
        end = np.minimum(table[:, layout.LAST_OFFSET] + 1, self._piece.end_offset)
        span = np.maximum(end - start, 0)
        return int(np.minimum(span, np.maximum(table[:, layout.RECORD_COUNT], 0)).sum())


def piece_filter(
    split: Split, piece: Piece, aborted: AbortedBatches
) -> "tuple[DropBatch | None, UnstampedBatches | None]":
    """Return the filter for a piece's batches, and the counter of records without an append time.

    The filter or the counter is None if the piece doesn't need it.
    """
    unstamped = None
    if piece.is_unknown and split.time_range is not None:
        unstamped = UnstampedBatches(piece, split.time_range)
    if not aborted:
        return (unstamped.mask if unstamped else None), unstamped
    if unstamped is None:
        return aborted.mask, None
    both = unstamped

    def drop(table: "Longs") -> "Mask":
        is_dropped = aborted.mask(table)
        rest = np.flatnonzero(~is_dropped)
        is_dropped[rest] = both.mask(table[rest])
        return is_dropped

    return drop, unstamped


_BATCHES: Final = 4096


def reach(data: Buffer) -> Reach | None:
    """Compute the result of `offset_order.reach_of` by a kernel: the extent of the batches."""
    end: Reach | None = None
    for table in _tables(data):
        before = None if end is None else end.next_offset
        if len(table) > 1:
            before = int(table[-2, layout.LAST_OFFSET]) + 1
        last = table[-1].tolist()
        end = Reach(last[layout.LAST_OFFSET] + 1, last[layout.POSITION], before)
    return end


def aborted_spans(
    data: Buffer, aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yield producer id, first and last offset of each aborted transaction.

    A broker returns only the first offset of an aborted transaction. The last offset is that of the
    transaction's marker. If the marker is not in `data`, the last offset is INT64_MAX.

    Args:
        data: Whole batches; the last batch may be truncated.
        aborted: Producer id and first offset of each transaction.

    Raises:
        CorruptData: A marker can't be read.
    """
    markers = list(_abort_markers(data))
    for producer_id, first in aborted:
        ends = (offset for owner, offset in markers if owner == producer_id and offset >= first)
        yield producer_id, first, next(ends, INT64_MAX)


def _abort_markers(data: Buffer) -> Iterator[tuple[int, int]]:
    """Yield producer id and offset of each abort marker, in order."""
    for table in _tables(data):
        for row in table[table[:, layout.ATTRIBUTES] & CONTROL_BIT != 0]:
            batch = RecordBatch(data, int(row[layout.POSITION]))
            if batch.control_type() is ControlType.ABORT:
                yield int(row[layout.PRODUCER_ID]), int(row[layout.LAST_OFFSET])


def _tables(data: Buffer) -> "Iterator[Longs]":
    """Yield tables of the batches before the first batch with an invalid frame or wrong offsets."""
    log = np.frombuffer(data, np.uint8)
    log.flags.writeable = False
    at, status, between = 0, layout.FULL, ANY_OFFSETS
    while status == layout.FULL:
        table = np.empty((_BATCHES, layout.BATCH_FIELDS), np.int64)
        count, at, status = scan_batches(log, at, log.size, table, *between)
        if count:
            between = int(table[count - 1, layout.LAST_OFFSET]) + 1, INT64_MAX
            yield table[:count]
