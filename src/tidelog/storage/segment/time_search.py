"""Finds the offset for a time in the segments of a log, on either clock, exact to the record.

This module searches the whole log. It also has a search inside one segment, in plain Python;
`mapped_time_search` has a faster one with kernels. The binary search in a segment's time index
is `TimeIndex.lookup` (`time_index`); `index_proof.time_floor` checks the entry that it returns.

A search by timestamp has these steps. First, a bisection over the largest timestamp up to each
segment's end gives the first segment that can have a match. This segment's time index gives the
batch to start at. Batches are skipped as long as the largest timestamp in their headers is too
small. The first batch whose header has a large enough timestamp is opened. A flipped bit in the
header of a skipped batch could hide a match, so the checksums of skipped batches are verified, up
to `PASSED_BYTES` in all. The batch that an entry of the time index names needs no such check,
because its header was compared with the entry. If all matches of a segment are below the log start,
the search continues with the next segment. Kafka returns "not found" in this case.

A search by append time usually opens no batch. Known append times never decrease, so the result is
the start of a run of equal times. A batch is opened only if compaction has removed some of its
records or if the run starts inside the batch. If the append-time file has no time for a batch and
the batch has LogAppendTime, the batch's timestamp is used.

A search that must not block raises `ColdRead` before it would load an index, read a file of the
tier, or open a batch that takes long.

`TimeSearch` keeps the largest timestamp up to each segment's end and the known losses of one log,
but no segment objects. The search inside one segment can be replaced (`BatchSearch`).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from tidelog.record.batch_walk import Batch
from tidelog.record.header import PASSED_BYTES
from tidelog.record.record import Record
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.segment.gaps import NO_LOSSES, Losses
from tidelog.storage.segment.index_proof import position_before, time_floor
from tidelog.storage.segment.segment import (
    LOOP_BYTES,
    LOOP_RECORDS,
    ColdRead,
    Segment,
    iterate_batches,
)
from tidelog.storage.segment.slices import checked_records, ensure_sum, ensure_there
from tidelog.types import (
    NO_TIMESTAMP,
    ClockName,
    Codec,
    OffsetAndTimestamp,
    TimestampType,
)

# Maximum number of append-time rows of a segment that are searched on an event loop.
LOOP_ROWS: Final = 4096

NOTHING_BELOW: Final = -(2**63)

HIGHEST: Final = 2**63


def open_batch(
    segment: Segment, position: int, batch: Batch, *, may_block: bool
) -> Iterator[Record]:
    """Return the records of a batch.

    Raises:
        CorruptData: The batch is damaged; the error has the batch's position.
        ColdRead: Opening the batch takes long, and the search must not block.
    """
    if not may_block:
        count = batch.record_count
        is_short = count is not None and count <= LOOP_RECORDS
        is_short = is_short and batch.size_bytes <= LOOP_BYTES
        if not is_short or batch.codec is not Codec.NONE:
            raise ColdRead
    return checked_records(segment, position, batch)


class BatchSearch(Protocol):
    """Search by timestamp inside one segment."""

    def __call__(
        self, segment: Segment, target: int, floor_offset: int, may_block: bool, /
    ) -> OffsetAndTimestamp | None:
        """Return the first record from `floor_offset` on with a time >= `target`, else None."""
        ...


def search_segment(
    segment: Segment, target: int, floor_offset: int, may_block: bool, /
) -> OffsetAndTimestamp | None:
    """Search a segment in plain Python; see `BatchSearch`.

    Raises:
        CorruptData: A batch that the search reads is damaged; the error has its position.
        ColdRead: A batch takes long to open, and the search must not block.
    """
    confirmed, offset = time_floor(segment, target)
    start = position_before(segment, max(offset, floor_offset))
    unchecked = PASSED_BYTES
    for position, batch in iterate_batches(segment, start, segment.size_bytes):
        if batch.last_offset < floor_offset:
            continue
        if batch.max_timestamp < target:
            is_confirmed = (batch.max_timestamp, batch.last_offset) == (confirmed, offset)
            if unchecked > 0 and not is_confirmed and batch.last_offset >= offset:
                unchecked -= batch.size_bytes
                ensure_sum(segment, position, batch)
            continue
        for record in open_batch(segment, position, batch, may_block=may_block):
            if record.timestamp >= target and record.offset >= floor_offset:
                return answer(record.offset, record.timestamp, batch)
    return None


def answer(offset: int, timestamp: int, batch: Batch) -> OffsetAndTimestamp:
    """Return the result of a search, with the batch's leader epoch if it has one."""
    epoch = batch.leader_epoch if batch.leader_epoch >= 0 else None
    return OffsetAndTimestamp(offset, timestamp, epoch)


class TimeSearch:
    """Searches by time over the segments of one log, oldest first. Not thread-safe.

    The object caches the largest record timestamp up to and including each finished segment,
    because this value does not change. Code that removes or replaces segments must call `forget`.

    Attributes:
        batch_search: Search by timestamp inside one segment.
    """

    __slots__ = ("_highest", "_losses", "_maxima", "batch_search")

    def __init__(self, batch_search: BatchSearch = search_segment) -> None:
        self.batch_search = batch_search
        self.forget()

    def forget(self) -> None:
        """Clear all cached values of the segments."""
        self._losses = Losses()
        self._maxima: list[int] = []
        self._highest = NOTHING_BELOW

    def find(
        self,
        segments: Sequence[Segment],
        target: int,
        floor_offset: int,
        clock: ClockName,
        may_block: bool,
        steps_over_losses: bool,
        /,
    ) -> OffsetAndTimestamp | None:
        """Return the earliest offset >= `floor_offset` with a known time >= `target`, else None.

        Args:
            segments: All segments of the log.
            target: Time in ms.
            floor_offset: First offset to search.
            clock: Clock of the times.
            may_block: Whether the search may wait for a disk or take long.
            steps_over_losses: Whether lost offsets are skipped instead of raising OffsetsGone.

        Raises:
            CorruptData: A batch that the search reads is damaged.
            OffsetsGone: Offsets before the result are lost (`storage.segment.gaps`).
            ColdRead: The search would block, and `may_block` is false.
        """
        losses = NO_LOSSES if steps_over_losses else self._losses
        if clock is ClockName.APPEND:
            return self._find_appended(segments, target, floor_offset, losses, may_block)
        if self._highest < target:
            self._extend_maxima(segments, target, may_block)
        for number in range(bisect_left(self._maxima, target), len(segments)):
            segment = segments[number]
            if segment.end_offset <= floor_offset:
                continue
            if not (may_block or segment.has_indexes):
                raise ColdRead
            if segment.largest_timestamp < target:
                continue
            if not may_block and segment.is_tiered:
                raise ColdRead
            if number > losses.checked or losses.lost:
                losses.ensure_none(segments, number, floor_offset, may_block=may_block)
            match = self.batch_search(segment, target, floor_offset, may_block)
            if match is not None:
                return match
            ensure_there(segment, segment.end_offset)
        losses.ensure_none(segments, len(segments), floor_offset, may_block=may_block)
        return None

    def _extend_maxima(self, segments: Sequence[Segment], target: int, may_block: bool) -> None:
        for number in range(len(self._maxima), len(segments) - 1):
            segment = segments[number]
            if not (may_block or segment.has_indexes):
                raise ColdRead
            self._highest = max(self._highest, segment.largest_timestamp)
            self._maxima.append(self._highest)
            if self._highest >= target:
                return

    def _find_appended(
        self,
        segments: Sequence[Segment],
        target: int,
        floor_offset: int,
        losses: Losses,
        may_block: bool,
    ) -> OffsetAndTimestamp | None:
        for number, segment in enumerate(segments):
            start = max(floor_offset, segment.base_offset)
            if segment.end_offset <= start or not segment.may_reach_append_ms(target):
                continue
            losses.ensure_none(segments, number, floor_offset, may_block=may_block)
            times = _append_times_of(segment, may_block=may_block)
            for first, end, append_ms in times.runs(start, segment.end_offset):
                if append_ms is None or append_ms >= target:
                    match = _first_record(segment, first, end, target, append_ms, may_block)
                    if match is not None:
                        return match
            ensure_there(segment, segment.end_offset)
        losses.ensure_none(segments, len(segments), floor_offset, may_block=may_block)
        return None

    def find_latest(
        self,
        segments: Sequence[Segment],
        floor_offset: int,
        clock: ClockName,
        may_block: bool,
        steps_over_losses: bool,
        /,
    ) -> OffsetAndTimestamp | None:
        """Return the first record with the largest known time, from `floor_offset` on.

        Return None if no record from `floor_offset` on has a known time. Kafka may return a deleted
        record below the log start (KIP-734); this search never does. `find` describes the arguments
        and the errors. On the record clock, any lost offset in the range raises OffsetsGone,
        because the result may be at this offset.
        """
        losses = NO_LOSSES if steps_over_losses else self._losses
        if clock is ClockName.APPEND:
            for segment in reversed(segments):  # the last known append time is the largest
                last_ms = _append_times_of(segment, may_block=may_block).last_known_ms
                if last_ms is not None:
                    return self._find_appended(segments, last_ms, floor_offset, losses, may_block)
            return None
        losses.ensure_none(segments, len(segments), floor_offset, may_block=may_block)
        best, best_segment = _largest_of(segments, floor_offset, may_block)
        if best_segment is None:
            return None
        match = self.batch_search(best_segment, best, floor_offset, may_block)
        return match or _scan_for_max(segments, floor_offset, may_block)


def _largest_of(
    segments: Sequence[Segment], floor_offset: int, may_block: bool
) -> tuple[int, Segment | None]:
    """Return the largest timestamp from `floor_offset` on, and the first segment that has it."""
    best, best_segment = NO_TIMESTAMP, None
    for segment in segments:
        if not (may_block or (segment.has_indexes and not segment.is_tiered)):
            raise ColdRead
        if segment.end_offset <= floor_offset:
            continue
        largest = segment.largest_timestamp
        if segment.base_offset < floor_offset:
            largest = _largest_from(segment, floor_offset, may_block)
        if largest > best:
            best, best_segment = largest, segment
    return best, best_segment


def _append_times_of(segment: Segment, *, may_block: bool) -> AppendTimes:
    """Return a segment's append times; raises ColdRead if loading or searching them takes long."""
    if may_block:
        return segment.append_times
    if segment.is_tiered or not segment.has_append_times:
        raise ColdRead
    times = segment.append_times
    if times.row_count > LOOP_ROWS:
        raise ColdRead
    return times


def count_without_append_time(segments: Sequence[Segment], start: int, end: int) -> int:
    """Count data records with offsets in [start, end) whose append time is unknown."""
    spans = [
        (segment, max(start, segment.base_offset), min(end, segment.end_offset))
        for segment in segments
    ]
    return sum(
        _count_unstamped(segment, *span)
        for segment, first, behind in spans
        if first < behind and segment.may_reach_append_ms(HIGHEST)
        for span in segment.append_times.unknown_in(first, behind)
    )


def _count_unstamped(segment: Segment, first: int, end: int) -> int:
    """Count data records with offsets in [first, end) in batches without LogAppendTime."""
    count = 0
    position = position_before(segment, first)
    for at, batch in iterate_batches(segment, position, segment.size_bytes):
        if batch.base_offset >= end:
            break
        if batch.last_offset < first or batch.is_control or stamped_ms(batch) is not None:
            continue
        number = batch.record_count
        if number is not None and first <= batch.base_offset and batch.last_offset < end:
            count += number
        else:
            records = checked_records(segment, at, batch)
            count += sum(first <= record.offset < end for record in records)
    return count


def _first_record(
    segment: Segment, first: int, end: int, target: int, append_ms: int | None, may_block: bool
) -> OffsetAndTimestamp | None:
    """Return the first record in [first, end) that was appended at `target` or later, else None."""
    position = position_before(segment, first)
    unchecked = PASSED_BYTES
    for at, batch in iterate_batches(segment, position, segment.size_bytes):
        if batch.last_offset < first:
            continue
        if batch.base_offset >= end:
            return None
        batch_ms = append_ms if append_ms is not None else stamped_ms(batch)
        if append_ms is None and (unchecked > 0 or (batch_ms is not None and batch_ms >= target)):
            unchecked -= batch.size_bytes
            # The header decides whether the batch is skipped, so its checksum is verified first.
            ensure_sum(segment, at, batch)
        if batch_ms is None or batch_ms < target:
            continue
        if batch.base_offset >= first and batch.record_count == batch.last_offset_delta + 1:
            return answer(batch.base_offset, batch_ms, batch)
        for record in open_batch(segment, at, batch, may_block=may_block):
            if first <= record.offset < end:
                return answer(record.offset, batch_ms, batch)
    return None


def stamped_ms(batch: Batch) -> int | None:
    """Return the append time of a LogAppendTime batch; None if its producer set the timestamps."""
    if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return batch.max_timestamp
    return None


def _scan_for_max(
    segments: Sequence[Segment], floor_offset: int, may_block: bool
) -> OffsetAndTimestamp | None:
    """Return the first record with the largest timestamp; read the records to find it.

    Headers and index entries are not enough. They may describe a record that no longer exists,
    because a cleaner keeps the headers of batches that it has emptied.
    """
    best: OffsetAndTimestamp | None = None
    for segment in segments:
        start = position_before(segment, floor_offset)
        for position, batch in iterate_batches(segment, start, segment.size_bytes):
            largest = NO_TIMESTAMP if best is None else best.timestamp
            if batch.last_offset < floor_offset or batch.max_timestamp <= largest:
                continue
            for record in open_batch(segment, position, batch, may_block=may_block):
                if record.offset >= floor_offset and record.timestamp > largest:
                    best = answer(record.offset, record.timestamp, batch)
                    largest = record.timestamp
        ensure_there(segment, segment.end_offset)
    return best


def _largest_from(segment: Segment, floor_offset: int, may_block: bool) -> int:
    """Return the largest timestamp of a segment's records from `floor_offset` on, or -1."""
    start = position_before(segment, floor_offset)
    largest = NO_TIMESTAMP
    for position, batch in iterate_batches(segment, start, segment.size_bytes):
        if batch.last_offset < floor_offset or batch.max_timestamp <= largest:
            continue
        if batch.base_offset >= floor_offset:
            largest = batch.max_timestamp
            continue
        times = (
            record.timestamp
            for record in open_batch(segment, position, batch, may_block=may_block)
            if record.offset >= floor_offset
        )
        largest = max(largest, max(times, default=NO_TIMESTAMP))
    return largest
