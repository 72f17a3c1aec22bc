"""Byte ranges of segments that hold a range of offsets.

Owns `LogSlice`, the unit that reads and scans work on: whole batches of one segment, and the
offsets that are wanted of them. Reads no records.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.errors import CorruptData
from tidelog.record.batch_walk import Batch
from tidelog.record.header import MAGIC_2
from tidelog.record.offset_order import segment_limit
from tidelog.record.record import Record
from tidelog.storage.open_files import typed_reads
from tidelog.storage.segment.index_proof import first_offset_at, leads_to, misfit, position_before
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.types import INT64_MAX

# Read this much of a segment at a time where records are handed out one by one.
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Whole batches of one segment that may hold offsets of a range.

    Attributes:
        segment: Where the bytes lie.
        start_position: First byte, the start of a batch.
        end_position: Byte behind the last one, the end of a batch.
        start_offset: First offset wanted, inclusive.
        end_offset: Offset behind the last one wanted.
        limit_offset: Offset that no batch of the bytes reaches; None for that of the segment.
    """

    segment: Segment
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    limit_offset: int | None = None

    @property
    def limit(self) -> int:
        """Offset that no batch of the bytes reaches."""
        segment = self.segment
        end = segment.end_offset if segment.has_known_end else INT64_MAX
        return segment_limit(
            segment.base_offset, end if self.limit_offset is None else self.limit_offset
        )

    @property
    def size_bytes(self) -> int:
        """How many bytes a reader of the slice reads."""
        return self.end_position - self.start_position

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """Batches with at least one offset in the range, with their positions.

        Raises:
            CorruptBatch: A frame that can't be.
            StorageFailure: The disk failed.
        """
        with typed_reads(self.segment.log_path):
            yield from self._batches()

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        for position, batch in iterate_batches(
            self.segment, self.start_position, self.end_position, end_offset=self.limit_offset
        ):
            if batch.last_offset < self.start_offset:
                continue
            # A wrapper is not opened for its first offset: what it holds is filtered anyhow.
            if _starts_behind(batch, self.end_offset):
                return
            yield position, batch
            if batch.last_offset + 1 >= self.end_offset:
                return  # what lies behind, and be it damaged, is not asked for


def _starts_behind(batch: Batch, end: int) -> bool:
    return batch.magic == MAGIC_2 and batch.base_offset >= end


def slice_segment(segment: Segment, start: int, end: int) -> LogSlice | None:
    """The part of a segment that may hold offsets [start, end), None where it can't hold any."""
    if segment.end_offset <= start or segment.base_offset >= end or not segment.size_bytes:
        return None
    # Indexes are looked at only where a segment is cut: a plan of all there is reads none.
    first = 0 if start <= segment.base_offset else position_before(segment, start)
    last, limit = segment.size_bytes, None
    if end < segment.end_offset:
        last, limit = _end_position(segment, end)
    return LogSlice(segment, first, last, start, end, limit)


def _end_position(segment: Segment, end: int) -> tuple[int, int | None]:
    """Start of an indexed batch behind every batch that begins below `end`, and its first offset.

    The segment's size and None where the index names none.

    The entry of the first batch whose last offset is `end` or more may still hold offsets below
    `end`; the batch of the entry behind it can't.
    """
    index = segment.offset_index
    slot = index.slot_at_or_after(end) + 1
    if slot >= index.entry_count:
        return segment.size_bytes, None
    key, position = index.entry(slot)
    if leads_to(segment, key, position, first_at_least=end):
        return position, first_offset_at(segment, position)
    segment.distrust_indexes(misfit(segment.log_path, key, position))
    return _end_position(segment, end)


def slices(
    segments: Sequence[Segment],
    start: int,
    end: int,
    on_empty: Callable[[Segment, int, int], None] | None = None,
) -> Iterator[LogSlice]:
    """The parts of all segments that may hold offsets [start, end), in order.

    Args:
        segments: Those of the log.
        start: First offset.
        end: Offset behind the last one.
        on_empty: Told, in turn, which of these offsets a segment without a byte should hold.

    Raises:
        DamagedLog: Behind the last part, where offsets that were on disk are in no file.
    """
    for segment in segments:
        if segment.base_offset >= end:
            return
        with typed_reads(segment.log_path):
            part = slice_segment(segment, start, end)
        if part is not None:
            yield part
        elif on_empty is not None:
            on_empty(segment, max(start, segment.base_offset), min(end, segment.end_offset))
        ensure_there(segment, end)


def ensure_there(segment: Segment, end: int) -> None:
    """Raise DamagedLog where a segment lacks offsets below `end` that were on disk."""
    damaged = segment.damaged
    if damaged is None or damaged.offset is None or damaged.position != segment.size_bytes:
        return  # where bytes are left, a walk comes upon the damage
    if end > damaged.offset:
        raise damaged.again()


class AbortedFilter:
    """Which batches belong to aborted transactions.

    A batch of a producer whose transaction began at or before it, and was aborted by a marker
    behind it, is dropped; no state is kept, so splits of a partition can filter on their own.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for txn in aborted:
            spans = self._spans.setdefault(txn.producer_id, [])
            spans.append((txn.first_offset, txn.last_offset))

    def drops(self, batch: Batch) -> bool:
        """Whether a read_committed reader must not see the batch's records."""
        if not batch.is_transactional or batch.is_control:
            return False
        spans = self._spans.get(batch.producer_id, ())
        return any(first <= batch.base_offset <= last for first, last in spans)

    def __bool__(self) -> bool:
        return bool(self._spans)


NO_ABORTED: Final = AbortedFilter(())


def records_of(
    part: LogSlice, aborted: AbortedFilter = NO_ABORTED
) -> Generator[Record, None, tuple[int, int]]:
    """The data records of a slice, one by one; control batches and aborted ones are left out.

    Returns:
        Offsets [start, end) behind the last batch that the slice should have and has not. None are
        missing where its batches have gaps, as compaction leaves them.

    Raises:
        CorruptData: A batch whose checksum or records are wrong; located in the file.
    """
    next_offset = max(part.start_offset, part.segment.base_offset)
    is_dense = not part.segment.is_active
    for position, batch in part.batches():
        is_dense = is_dense and _follows(batch, next_offset)
        next_offset = batch.last_offset + 1
        if is_hidden(part.segment, position, batch, aborted):
            continue
        for record in checked_records(part.segment, position, batch):
            if part.start_offset <= record.offset < part.end_offset:
                yield record
    end = min(part.limit, part.end_offset)
    return (next_offset, end) if is_dense and next_offset < end else (end, end)


def is_hidden(segment: Segment, position: int, batch: Batch, aborted: AbortedFilter) -> bool:
    """Whether readers must not see a batch's records; an undamaged header says so, no flipped bit.

    Raises:
        CorruptData: It would be hidden, and its checksum is wrong; located in the file.
    """
    if not (batch.is_control or aborted.drops(batch)):
        return False
    ensure_sum(segment, position, batch)
    return True


def ensure_sum(segment: Segment, position: int, batch: Batch) -> None:
    """Raise CorruptData, located in the file, where a batch's checksum is wrong."""
    try:
        batch.ensure_valid()
    except CorruptData as error:
        raise error.located(segment.log_path, position - batch.at) from error


def _follows(batch: Batch, next_offset: int) -> bool:
    """Whether a batch leaves no gap before it, nor between its records."""
    if batch.magic != MAGIC_2 or batch.base_offset > next_offset:
        return False
    return batch.record_count == batch.last_offset - batch.base_offset + 1


def checked_records(segment: Segment, position: int, batch: Batch) -> Iterator[Record]:
    """A batch's records after its checksum was verified; errors are located in the file."""
    try:
        batch.ensure_valid()
        yield from batch.records()
    except CorruptData as error:
        # The batch lies somewhere in a buffer, whose first byte has this position.
        raise error.located(segment.log_path, position - batch.at) from error
