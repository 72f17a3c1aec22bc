"""Records of a topic's partitions in order of time, in bounded memory.

Times can be in any order inside a partition, so the first records by time can be at any offsets. A
page of the result is found in two steps. First, windows of offsets are read from one end of the
partitions until the windows have as many records as the page needs. These records, in order of
time, are a first version of the page, and the time of its last record is a bound. Second, the rest
of each partition is searched for records whose time is not beyond this bound. Most other records
are excluded without a read, by zone maps, time indexes or brokers. So at most about two pages are
in memory, even if the times are in any order.

This module does no I/O: the caller passes a function that reads a range.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Final, NamedTuple, TypeAlias

from tidelog.lazy_dataclass import dataclass
from tidelog.record.record import Record
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.types import INT64_MAX, NO_TIMESTAMP, ClockName, TopicPartition

# A record and its append time in ms, None if unknown.
Timed: TypeAlias = tuple[Record, int | None]

# Reads the records of a partition in a range, in order of offsets.
Read: TypeAlias = Callable[[TopicPartition, RequestedRange, ScanStats], Iterable[Timed]]

# Returns the offset of a partition's first record at a time or later; None if there is no such
# record.
FirstAt: TypeAlias = Callable[[TopicPartition, int], int | None]

# Number of records in a page if all records are requested.
PAGE_RECORDS: Final = 20_000
# Minimum size of the first window, in offsets: about one batch.
WINDOW_LEAST: Final = 64


class OrderedRecord(NamedTuple):
    """A record with its sort key: time in ms, partition, offset."""

    ms: int
    partition: int
    offset: int
    record: Record
    append_ms: int | None

    @property
    def order_key(self) -> tuple[int, int, int]:
        """Time, partition and offset, by which records are ordered."""
        return self[:3]


class _Best:
    """The earliest `count` of the added records, in order of time; the latest if `backward`."""

    def __init__(self, count: int, after: tuple[int, int, int] | None, *, backward: bool) -> None:
        self._count = count
        self._after = after
        self._backward = backward
        self._records: list[OrderedRecord] = []
        self._spare = max(count, 1_000)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: OrderedRecord) -> None:
        """Add a record, unless it is in an earlier page."""
        after, order_key = self._after, record.order_key
        if after is not None and (order_key >= after if self._backward else order_key <= after):
            return
        self._records.append(record)
        if len(self._records) >= self._count + self._spare:
            self._cut()

    def _cut(self) -> None:
        self._records.sort(key=lambda one: one.order_key, reverse=self._backward)
        del self._records[self._count :]

    def ordered(self) -> list[OrderedRecord]:
        """Return the records in order, at most `count` records."""
        self._cut()
        return self._records


@dataclass(slots=True, kw_only=True)
class TimeOrder:
    """Order of a topic's records by time on one clock, then by partition and offset.

    Records without a time on that clock are left out.

    Attributes:
        read: Reads a range of a partition.
        first_at: Looks up the offset of the first record at a time or later.
        ranges: Range of each partition, with known start and end offset.
        clock: The clock.
        window: Size of the first window of each partition in offsets, at least `WINDOW_LEAST`.
        stats: Statistics of the windows that were read for the first page. `without_time` has the
            number of their records without a time on the clock.
        has_more: Whether more records follow the last page in order; None if this is unknown,
            because some offsets were not read.
        is_tied: Whether a record after the last page has the same time as the page's last record.
    """

    read: Read
    first_at: FirstAt
    ranges: Mapping[TopicPartition, RequestedRange]
    clock: ClockName
    window: int = WINDOW_LEAST
    stats: ScanStats = field(default_factory=ScanStats)
    has_more: bool | None = None
    is_tied: bool = False

    def first(
        self, limit: int | None = None, *, page: int = PAGE_RECORDS
    ) -> Iterator[OrderedRecord]:
        """Yield at most `limit` records in order. Pages of `page` records limit the memory.

        No record is read only to set `has_more`, because such a read could fail.
        """
        after: OrderedRecord | None = None
        while limit is None or limit > 0:
            count = page if limit is None else min(page, limit)
            records = self._page(count, after, backward=False)
            yield from records
            if len(records) < count:
                return
            after = records[-1]
            limit = None if limit is None else limit - count

    def last(self, count: int) -> list[OrderedRecord]:
        """Return the last `count` records in order; all these records are in memory at once."""
        return self._page(count, None, backward=True)[::-1] if count else []

    def _page(
        self, count: int, after: OrderedRecord | None, *, backward: bool
    ) -> list[OrderedRecord]:
        order_key = None if after is None else after.order_key
        best = _Best(count + 1, order_key, backward=backward)  # one more, for `has_more`
        rest = {name: self._start(name, one, after) for name, one in self.ranges.items()}
        rest = {name: one for name, one in rest.items() if _has_offsets(one)}
        size = max(count // max(len(rest), 1), self.window)
        while rest and len(best) < count:
            for name, whole in list(rest.items()):
                window, left = _cut(whole, size, backward=backward)
                self._add(best, name, window, is_first=after is None)
                rest[name] = left
                if not _has_offsets(left):
                    del rest[name]
            size *= 2
        if rest:
            bound_ms = best.ordered()[count - 1].ms
            for name, left in rest.items():
                self._add(best, name, _bounded(left, bound_ms, backward=backward))
        records = best.ordered()
        is_longer = len(records) > count
        self.has_more = True if is_longer else None if rest else False
        self.is_tied = is_longer and records[count].ms == records[count - 1].ms
        return records[:count]

    def _start(
        self, name: TopicPartition, whole: RequestedRange, after: OrderedRecord | None
    ) -> RequestedRange:
        """Return a range that contains all records that follow the previous page in order."""
        if after is None:
            return whole
        offset = self.first_at(name, after.ms)
        start = whole.end_offset if offset is None else max(offset, whole.start_offset or 0)
        start_ms = after.ms if whole.start_ms is None else max(after.ms, whole.start_ms)
        return replace(whole, start_offset=start, start_ms=start_ms)

    def _add(
        self, best: _Best, name: TopicPartition, part: RequestedRange, *, is_first: bool = False
    ) -> None:
        by_record = self.clock is ClockName.RECORD
        stats = self.stats if is_first else ScanStats()
        for record, append_ms in self.read(name, part, stats):
            ms = record.timestamp if by_record else append_ms
            if ms is None or ms == NO_TIMESTAMP:
                stats.without_time += 1
            else:
                best.add(OrderedRecord(ms, name.partition, record.offset, record, append_ms))


def _has_offsets(part: RequestedRange) -> bool:
    assert part.start_offset is not None
    assert part.end_offset is not None
    return part.start_offset < part.end_offset


def _cut(
    whole: RequestedRange, size: int, *, backward: bool
) -> tuple[RequestedRange, RequestedRange]:
    """Cut `size` offsets off one end of a range; return the part that was cut off, and the rest."""
    start, end = whole.start_offset, whole.end_offset
    assert start is not None
    assert end is not None
    if backward:
        at = max(end - size, start)
        return replace(whole, start_offset=at), replace(whole, end_offset=at)
    at = min(start + size, end)
    return replace(whole, end_offset=at), replace(whole, start_offset=at)


def _bounded(part: RequestedRange, ms: int, *, backward: bool) -> RequestedRange:
    """Return the range limited to times at or before `ms`; if `backward`, at or after `ms`."""
    if backward:
        return replace(part, start_ms=max(ms, part.start_ms or 0))
    # Stored append times are rounded down, so `ms` can be before the start of the range. The range
    # must not end before it starts.
    end_ms = max(min(ms, INT64_MAX - 1) + 1, part.start_ms or 0)
    return replace(part, end_ms=end_ms if part.end_ms is None else min(end_ms, part.end_ms))


def offset_from_end(read: Read, name: TopicPartition, offsets: tuple[int, int], count: int) -> int:
    """Return the offset of the `count`-th record from the end; the start if there are fewer.

    Args:
        read: Reads a range of a partition.
        name: The partition.
        offsets: The partition's first offset, and the offset after its last visible record.
        count: Number of records to count from the end, at least 1.
    """
    left = RequestedRange(start_offset=offsets[0], end_offset=offsets[1])
    size = max(count, WINDOW_LEAST)
    while _has_offsets(left):
        window, left = _cut(left, size, backward=True)
        window_offsets = [record.offset for record, _ in read(name, window, ScanStats())]
        if len(window_offsets) >= count:
            return window_offsets[-count]
        count -= len(window_offsets)
        size *= 2
    return offsets[0]


def clipped(
    ranges: Mapping[TopicPartition, RequestedRange],
    bounds: Mapping[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, RequestedRange]:
    """Return ranges for `TimeOrder.ranges`: limited to the partitions' offsets [start, end)."""
    inside = {}
    for name, one in ranges.items():
        first, last = bounds[name]
        end = last if one.end_offset is None else min(one.end_offset, last)
        inside[name] = replace(one, start_offset=max(one.start_offset or 0, first), end_offset=end)
    return inside
