"""Finds the byte ranges of segments that contain a range of offsets.

This module owns `LogSlice`, the unit of reads and scans: whole batches of one segment, and the
requested range of their offsets. `slices` reads only indexes and a few headers; `records_of` reads
the records of a slice.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tidelog.errors import CorruptData
from tidelog.record.batch_walk import Batch
from tidelog.record.header import MAGIC_2
from tidelog.record.offset_order import is_gapless, segment_limit
from tidelog.record.record import Record
from tidelog.storage.open_files import typed_reads
from tidelog.storage.segment.index_proof import first_offset_at, leads_to, misfit, position_before
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.types import INT64_MAX


class LogSlice(NamedTuple):
    """Whole batches of one segment that may have offsets of a requested range.

    Attributes:
        segment: The segment.
        start_position: First byte, the start of a batch.
        end_position: End of the last batch, exclusive.
        start_offset: First requested offset, inclusive.
        end_offset: Offset after the last requested offset.
        limit_offset: Upper bound of the batches' offsets, exclusive; None if the segment's end is
            the bound.
    """

    segment: Segment
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    limit_offset: int | None = None

    @property
    def limit(self) -> int:
        """Upper bound of the batches' offsets, exclusive."""
        segment = self.segment
        end = segment.end_offset if segment.has_known_end else INT64_MAX
        return segment_limit(
            segment.base_offset, end if self.limit_offset is None else self.limit_offset
        )

    @property
    def size_bytes(self) -> int:
        """Number of bytes that a reader of the slice reads."""
        return self.end_position - self.start_position

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """Yield the batches that may have offsets in the range, with their positions.

        Raises:
            CorruptBatch: A frame is invalid. Also raised if a batch before a gap is damaged, and
                may have had records of the range.
            StorageFailure: The disk failed.
        """
        with typed_reads(self.segment.log_path):
            yield from self._batches()

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        # `before` is the last batch before the range. If a gap follows this batch, the batch's
        # checksum is verified, because a flipped bit in its header must not hide records.
        before: tuple[int, Batch] | None = None
        for position, batch in iterate_batches(
            self.segment, self.start_position, self.end_position, end_offset=self.limit_offset
        ):
            if batch.last_offset < self.start_offset:
                before = (position, batch) if batch.magic == MAGIC_2 else None
                continue
            if before is not None and _starts_behind(batch, self.start_offset + 1):
                ensure_sum(self.segment, *before)
            before = None
            # A wrapper is not decompressed to find its first offset, because a later step filters
            # its records by offset anyway.
            if _starts_behind(batch, self.end_offset):
                return
            yield position, batch
            if batch.last_offset + 1 >= self.end_offset:
                return  # later batches, even damaged ones, are outside of the range
        if before is not None:
            ensure_sum(self.segment, *before)


def _starts_behind(batch: Batch, end: int) -> bool:
    return batch.magic == MAGIC_2 and batch.base_offset >= end


def slice_segment(segment: Segment, start: int, end: int) -> LogSlice | None:
    """Return the part of a segment that may have offsets [start, end), None if there is none."""
    if segment.end_offset <= start or segment.base_offset >= end or not segment.size_bytes:
        return None
    # Indexes are read only if `start` or `end` is inside the segment. So planning a scan of whole
    # segments reads no index.
    first = 0 if start <= segment.base_offset else position_before(segment, start)
    last, limit = segment.size_bytes, None
    if end < segment.end_offset:
        last, limit = _end_position(segment, end)
    return LogSlice(segment, first, last, start, end, limit)


def _end_position(segment: Segment, end: int) -> tuple[int, int | None]:
    """Return the position of an indexed batch that begins at or above `end`, and its first offset.

    Every batch that begins below `end` is before that position. If the index has no such batch, the
    result is the segment's size and None.

    The batch of the first entry whose offset is `end` or more may still have offsets below `end`.
    The entry after it is used, because its batch has no offsets below `end`.
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
    """Yield the parts of all segments that may have offsets [start, end), in order.

    Args:
        segments: Segments of the log.
        start: First offset, inclusive.
        end: Offset after the last offset.
        on_empty: Called, in order, for each segment that has no such part. The callback's
            arguments are the segment, and the start and end of the requested offsets that the
            segment should have.

    Raises:
        DamagedLog: Offsets that were on disk are in no file. The error is raised after the last
            part.
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
    """Raise DamagedLog if a segment lacks offsets below `end` that had been on disk."""
    damaged = segment.damaged
    if damaged is None or damaged.offset is None or damaged.position != segment.size_bytes:
        return  # if bytes remain, a read of these bytes raises an error at the damage
    if end > damaged.offset:
        raise damaged.again()


class AbortedFilter:
    """Filter of batches that belong to aborted transactions.

    The filter drops a batch if it lies between the first offset of an aborted transaction of its
    producer and this transaction's abort marker. The filter keeps no state between batches, so the
    splits of a partition can be filtered independently.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for txn in aborted:
            spans = self._spans.setdefault(txn.producer_id, [])
            spans.append((txn.first_offset, txn.last_offset))

    def drops(self, batch: Batch) -> bool:
        """Return whether a read_committed reader must not see the batch's records."""
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
    """Yield the data records of a slice, except records of aborted transactions.

    Returns:
        Missing offsets [start, end) after the last batch of the slice. The range is empty in three
        cases: no offset is missing; the batches have gaps, for example after a compaction; or the
        segment is active.

    Raises:
        CorruptData: A batch has a wrong checksum or damaged records; the error has its position.
    """
    next_offset = max(part.start_offset, part.segment.base_offset)
    first_offset = next_offset
    for position, batch in part.batches():
        next_offset = batch.last_offset + 1
        if is_hidden(part.segment, position, batch, aborted):
            continue
        for record in checked_records(part.segment, position, batch):
            if part.start_offset <= record.offset < part.end_offset:
                yield record
    end = min(part.limit, part.end_offset)
    if next_offset >= end or part.segment.is_active or _has_gaps(part, first_offset):
        return end, end
    return next_offset, end


def is_hidden(segment: Segment, position: int, batch: Batch, aborted: AbortedFilter) -> bool:
    """Return whether readers must not see a batch's records.

    The checksum of a batch that readers must not see is verified, so that a flipped bit in its
    header can't hide records.

    Raises:
        CorruptData: The batch would be hidden, but its checksum is wrong; the error has the
            position.
    """
    if not (batch.is_control or aborted.drops(batch)):
        return False
    ensure_sum(segment, position, batch)
    return True


def ensure_sum(segment: Segment, position: int, batch: Batch) -> None:
    """Raise CorruptData with the position if a batch's checksum is wrong."""
    try:
        batch.ensure_valid()
    except CorruptData as error:
        raise error.located(segment.log_path, position - batch.at) from error


def _has_gaps(part: LogSlice, next_offset: int) -> bool:
    """Return whether offsets from `next_offset` on are missing before or inside a slice's batches.

    The caller has checked that the batches are sound.
    """
    for _, batch in part.batches():
        if not is_gapless(batch, next_offset):
            return True
        next_offset = batch.last_offset + 1
    return False


def checked_records(segment: Segment, position: int, batch: Batch) -> Iterator[Record]:
    """Yield a batch's records after verifying its checksum; errors have the batch's position."""
    try:
        batch.ensure_valid()
        yield from batch.records()
    except CorruptData as error:
        # The second argument is the position in the file of the buffer's first byte; the batch can
        # be anywhere in the buffer.
        raise error.located(segment.log_path, position - batch.at) from error
