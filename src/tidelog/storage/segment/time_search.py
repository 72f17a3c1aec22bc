"""Offset for a time on either clock over a list of segments.

Finding offsets by time, on either clock, exact to the record.

A search by record time goes: running maxima over the segments give the first one that can hold a
match (binary search, no walk), its time index the place to start, the batch headers' largest
timestamps skip batches, one batch is opened. The checksum covers the largest timestamp, so batches
that are passed over by it are checked, too, up to `PASSED_BYTES`; a time index entry confirms its
own. Where a segment's matches all lie below the log start the search goes on with the next: Kafka
stops there and answers "not found".

A search by append time needs no records: known append times never fall, so the answer is where a
run begins. Where the append time is unknown, batches that the log's owner stamped (LogAppendTime)
still say it themselves.

Owns no state but the running maxima. Source: KIP-33, KIP-79, KIP-734; docs/differences.md.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, Protocol

from tidelog.record.batch_walk import Batch
from tidelog.record.header import (
    PASSED_BYTES,
)
from tidelog.record.record import Record
from tidelog.storage.segment.gaps import Losses
from tidelog.storage.segment.index_proof import position_before, time_floor
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.storage.segment.slices import checked_records, ensure_sum, ensure_there
from tidelog.types import (
    NO_TIMESTAMP,
    Codec,
    OffsetAndTimestamp,
    TimestampType,
)

# What an event loop checks of one append: some 20 ms of gunzip, a few of everything else.
LOOP_BYTES: Final = 4 << 20


# Records that the loop looks at one by one in Python.
LOOP_RECORDS: Final = 2000


class NotLoaded(Enum):
    """What is said of a time where a search would have to load something first."""

    NOT_LOADED = 0


NOT_LOADED: Final = NotLoaded.NOT_LOADED


NOTHING_BELOW: Final = -(2**63)


HIGHEST: Final = 2**63


class LongBatch(Exception):
    """A search needs a batch that takes too long to open on an event loop."""


class _Here(threading.local):
    is_running: Callable[[], bool] | None = None


_HERE: Final = _Here()


def search_on_loop(is_running: Callable[[], bool]) -> None:
    """Let searches in this thread raise LongBatch while its event loop is running.

    Args:
        is_running: Whether the caller is inside that loop. A thread outlives its loop.
    """
    _HERE.is_running = is_running


def is_on_loop() -> bool:
    """Whether the caller is inside of an event loop that `search_on_loop` was told of."""
    return _HERE.is_running is not None and _HERE.is_running()


def opened(segment: Segment, position: int, batch: Batch) -> Iterator[Record]:
    """The records of a batch on the way of a search.

    Raises:
        CorruptData: As `checked_records`.
        LongBatch: It takes long, on an event loop.
    """
    if is_on_loop():
        count = batch.record_count
        is_short = count is not None and count <= LOOP_RECORDS and batch.size_bytes <= LOOP_BYTES
        if not is_short or batch.codec is not Codec.NONE:
            raise LongBatch
    return checked_records(segment, position, batch)


class BatchSearch(Protocol):
    """Finds the first matching record of one segment; a kernel may take the plain one's place."""

    def __call__(
        self, segment: Segment, target: int, floor_offset: int, /
    ) -> OffsetAndTimestamp | None:
        """The first record with timestamp >= `target` and offset >= `floor_offset`, else None."""
        ...


def search_segment(
    segment: Segment, target: int, floor_offset: int, /
) -> OffsetAndTimestamp | None:
    """The plain search: see `BatchSearch`.

    Raises:
        CorruptData: A batch on the way is damaged; located in the file.
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
        for record in opened(segment, position, batch):
            if record.timestamp >= target and record.offset >= floor_offset:
                return answer(record.offset, record.timestamp, batch)
    return None


def answer(offset: int, timestamp: int, batch: Batch) -> OffsetAndTimestamp:
    """The answer of a search, with the batch's leader epoch where it has one."""
    epoch = batch.leader_epoch if batch.leader_epoch >= 0 else None
    return OffsetAndTimestamp(offset, timestamp, epoch)


class RunningMaxima:
    """For each segment the largest record timestamp up to and including it; computed lazily once.

    Only finished segments take part, all but the last: their largest timestamp does not change.

    Attributes:
        losses: What the segments lack that a search may pass over.
    """

    __slots__ = ("_highest", "_maxima", "losses")

    def __init__(self) -> None:
        self.losses = Losses()
        self._maxima: list[int] = []
        self._highest = NOTHING_BELOW

    def first_reaching(self, segments: Sequence[Segment], target: int) -> int:
        """Number of the first finished segment whose largest timestamp is >= `target`.

        The number of the last segment, which is not finished, where there is none.
        """
        if self._highest < target:
            self._extend(segments, target)
        return bisect_left(self._maxima, target)

    def is_known(self, target: int) -> bool:
        """Whether `first_reaching` looks at no segment that was not looked at before."""
        return self._highest >= target

    @property
    def count(self) -> int:
        """How many segments were looked at."""
        return len(self._maxima)

    def _extend(self, segments: Sequence[Segment], target: int) -> None:
        for number in range(len(self._maxima), len(segments) - 1):
            if self._highest >= target:
                return
            self._highest = max(self._highest, segments[number].largest_timestamp)
            self._maxima.append(self._highest)


def find_by_record_time(
    segments: Sequence[Segment],
    maxima: RunningMaxima,
    target: int,
    floor_offset: int,
    *,
    search: BatchSearch = search_segment,
) -> OffsetAndTimestamp | None:
    """The earliest offset >= `floor_offset` whose record timestamp is >= `target`, else None.

    Raises:
        CorruptData: A batch on the way is damaged.
        OffsetsGone: Offsets before the answer are lost (`storage.segment.gaps`).
    """
    number = maxima.first_reaching(segments, target)
    return find_from(segments, number, target, floor_offset, maxima.losses, search=search)


def find_from(
    segments: Sequence[Segment],
    first: int,
    target: int,
    floor_offset: int,
    losses: Losses,
    *,
    search: BatchSearch = search_segment,
) -> OffsetAndTimestamp | None:
    """The same from a segment on, by its number: the first that can hold a match."""
    for number in range(first, len(segments)):
        segment = segments[number]
        if segment.end_offset <= floor_offset or segment.largest_timestamp < target:
            continue
        losses.ensure_none(segments, number, floor_offset)
        found = search(segment, target, floor_offset)
        if found is not None:
            return found
        ensure_there(segment, segment.end_offset)
    losses.ensure_none(segments, len(segments), floor_offset)
    return None


def find_by_append_time(
    segments: Sequence[Segment], target: int, floor_offset: int, losses: Losses
) -> OffsetAndTimestamp | None:
    """The earliest offset >= `floor_offset` whose append time is known and >= `target`, else None.

    Returns:
        The offset of a record that exists, and its append time.

    Raises:
        CorruptData: A batch on the way is damaged.
        OffsetsGone: Offsets before the answer are lost (`storage.segment.gaps`).
    """
    for number, segment in enumerate(segments):
        start = max(floor_offset, segment.base_offset)
        if segment.end_offset <= start or not segment.may_reach_append_ms(target):
            continue
        losses.ensure_none(segments, number, floor_offset)
        for first, end, append_ms in _candidates(segment, target, start):
            found = _first_record(segment, first, end, target, append_ms)
            if found is not None:
                return found
        ensure_there(segment, segment.end_offset)
    losses.ensure_none(segments, len(segments), floor_offset)
    return None


def count_without_append_time(segments: Sequence[Segment], start: int, end: int) -> int:
    """Number of data records with offsets in [start, end) whose append time is unknown."""
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
    """Number of data records with offsets in [first, end) in batches that bear no append time."""
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


def _candidates(segment: Segment, target: int, start: int) -> Iterator[tuple[int, int, int | None]]:
    """Runs of offsets that may hold a match, in order: (start, end, append time or unknown)."""
    for first, end, append_ms in segment.append_times.runs(start, segment.end_offset):
        if append_ms is None or append_ms >= target:
            yield first, end, append_ms


def _first_record(
    segment: Segment, first: int, end: int, target: int, append_ms: int | None
) -> OffsetAndTimestamp | None:
    """The first match with an offset in [first, end); compaction may have left none."""
    position = position_before(segment, first)
    unchecked = PASSED_BYTES
    for at, batch in iterate_batches(segment, position, segment.size_bytes):
        if batch.last_offset < first:
            continue
        if batch.base_offset >= end:
            return None
        known_ms = append_ms if append_ms is not None else stamped_ms(batch)
        if append_ms is None and (unchecked > 0 or (known_ms is not None and known_ms >= target)):
            unchecked -= batch.size_bytes  # its header says which time it has, or that it has none
            ensure_sum(segment, at, batch)
        if known_ms is None or known_ms < target:
            continue
        if batch.base_offset >= first and batch.record_count == batch.last_offset_delta + 1:
            return answer(batch.base_offset, known_ms, batch)
        for record in opened(segment, at, batch):
            if first <= record.offset < end:
                return answer(record.offset, known_ms, batch)
    return None


def stamped_ms(batch: Batch) -> int | None:
    """The append time that a batch carries itself, None where its producer set the timestamps."""
    if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return batch.max_timestamp
    return None


def find_max_timestamp(
    segments: Sequence[Segment],
    floor_offset: int,
    losses: Losses,
    *,
    search: BatchSearch = search_segment,
) -> OffsetAndTimestamp | None:
    """The first record with the largest timestamp at or above `floor_offset`, else None.

    Kafka's answer may name a deleted record below the log start (KIP-734); this one can't.

    Raises:
        CorruptData: A batch on the way is damaged.
        OffsetsGone: Offsets are lost (`storage.segment.gaps`), and one of them may be the answer.
    """
    losses.ensure_none(segments, len(segments), floor_offset)
    best, best_segment = NO_TIMESTAMP, None
    for segment in segments:
        if segment.end_offset <= floor_offset:
            continue
        largest = segment.largest_timestamp
        if segment.base_offset < floor_offset:
            largest = _largest_from(segment, floor_offset)
        if largest > best:
            best, best_segment = largest, segment
    if best_segment is None:
        return None
    return search(best_segment, best, floor_offset) or _scan_for_max(segments, floor_offset)


def _scan_for_max(segments: Sequence[Segment], floor_offset: int) -> OffsetAndTimestamp | None:
    """As `find_max_timestamp`, by the records themselves.

    What a batch or an index says may be about records that are gone: a cleaner keeps the headers
    of batches that it emptied.
    """
    best: OffsetAndTimestamp | None = None
    for segment in segments:
        start = position_before(segment, floor_offset)
        for position, batch in iterate_batches(segment, start, segment.size_bytes):
            largest = NO_TIMESTAMP if best is None else best.timestamp
            if batch.last_offset < floor_offset or batch.max_timestamp <= largest:
                continue
            for record in opened(segment, position, batch):
                if record.offset >= floor_offset and record.timestamp > largest:
                    best = answer(record.offset, record.timestamp, batch)
                    largest = record.timestamp
        ensure_there(segment, segment.end_offset)
    return best


def _largest_from(segment: Segment, floor_offset: int) -> int:
    """Largest timestamp of a segment's records at or above an offset, -1 where there is none."""
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
            for record in opened(segment, position, batch)
            if record.offset >= floor_offset
        )
        largest = max(largest, max(times, default=NO_TIMESTAMP))
    return largest
