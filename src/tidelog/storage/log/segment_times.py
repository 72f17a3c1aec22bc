"""Times of a segment for retention and `tidelog why`; smallest and largest time of a partition.

With the clock `record-capped`, retention counts from the largest min(timestamp, append time) of the
records. Usually the record with the largest timestamp was appended at or after that timestamp.
In this usual case the largest timestamp is the result; one index entry and one
append time suffice to prove this. If the timestamp is ahead of the append time, a zone map gives
the few batches that can contain the result. All records of a batch have one append time, so the
batch's header gives the exact value. Without a zone map, an upper bound is used: the smaller of the
segment's largest timestamp and its largest append time. The upper bound exceeds the exact time by
at most the time that it took to fill the segment.

Largest timestamps are read from time indexes, smallest timestamps from zone maps. A small
segment without a zone map is read; a large segment without a zone map is skipped and reported.

Writes nothing. Source: docs/retention.md.
"""

import heapq
from collections.abc import Iterator
from dataclasses import field
from math import gcd
from typing import TYPE_CHECKING, Final

from tidelog.config import RetentionClock
from tidelog.errors import CorruptData
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.retention import CountedTime, SegmentTimes, TimeBasis
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.storage.segment.slices import records_of, slices
from tidelog.types import INT64_MAX, NO_TIMESTAMP, UNKNOWN_MS, ClockName, TimeSpan

if TYPE_CHECKING:
    from tidelog.record.batch_walk import Batch
    from tidelog.storage.clocks.append_times import AppendTimes
    from tidelog.storage.clocks.zone_map import Zone


def read_times(
    log: "LogView", segment: Segment, *, clock: RetentionClock, seen_ms: int = UNKNOWN_MS
) -> SegmentTimes:
    """Read the times of a segment, as far as a retention policy needs them.

    Args:
        log: The partition.
        segment: One of the partition's segments.
        clock: Clock of the policy. For the clock `record`, append times are not read.
        seen_ms: Time in ms, from the segment's note, by which all records of the segment had
            arrived; -1 if unknown.

    Raises:
        OSError, StorageFailure: The disk failed.
    """
    noted = segment.noted_times(log.context.env.clock.now_ms())
    if noted is not None:
        return noted
    largest, largest_at = segment.largest_record()
    times = SegmentTimes(
        largest_timestamp=largest,
        largest_at=largest_at,
        mtime_ms=segment.mtime_ms(),
        seen_ms=seen_ms,
        now_ms=log.context.env.clock.now_ms(),
    )
    if clock is RetentionClock.RECORD:
        return times
    rows = log.append_times_of(segment)
    arrivals = _Arrivals(rows, times, log.context.config.tidelog_append_time_granularity_ms)
    last_known_ms = UNKNOWN_MS if rows.last_known_ms is None else rows.last_known_ms
    largest_ms = UNKNOWN_MS if rows.last_known_ms is None else arrivals.latest_ms(last_known_ms)
    times = times._replace(
        largest_append_ms=largest_ms,
        append_slack_ms=largest_ms - last_known_ms,
        is_append_known=not rows.unknown_in(segment.base_offset, segment.end_offset),
    )
    if clock is RetentionClock.APPEND or largest < 0:
        return times
    return times._replace(capped=arrivals.largest_capped(segment, times))


def youngest_ms(log: "LogView", segment: Segment) -> int:
    """Return a segment's largest timestamp, capped at the last append time; -1 for no timestamp.

    `min.compaction.lag.ms` begins at this time. Without the cap, a producer with a wrong clock
    could write a timestamp in the future, which would prevent compaction until that time.
    `tidelog.retention.clock=record` uses the timestamp without the cap, as Kafka does.
    """
    largest, _ = segment.largest_record()
    if log.context.config.tidelog_retention_clock is RetentionClock.RECORD:
        return largest
    times = read_times(log, segment, clock=RetentionClock.APPEND, seen_ms=UNKNOWN_MS)
    return min(largest, times.arrival.ms)


# Number of append times to check first. These usually suffice to show that all append times have no
# common divisor above the granularity setting.
_FEW: Final = 16


def _common_step(rows: "AppendTimes", granularity_ms: int) -> int:
    """Return the largest step in ms of which all known append times are multiples.

    The append times may have been rounded to this step. The result is at least the granularity.
    """
    if 0 < gcd(*rows.known_times(_FEW)) <= granularity_ms:
        return granularity_ms
    return max(gcd(*rows.known_times()), granularity_ms)


class _Arrivals:
    """Upper bounds of the arrival times of a segment's records, from append times if known."""

    def __init__(self, rows: "AppendTimes", times: SegmentTimes, granularity_ms: int) -> None:
        self._rows = rows
        self._times = times
        self._fallback = times.fallback
        self._granularity_ms = granularity_ms
        self._cached_step_ms: int | None = None

    def latest_ms(self, append_ms: int) -> int:
        """Return the latest possible arrival of a record with this rounded append time.

        The granularity setting may have changed since the append, and rows don't show to which step
        their times were rounded. If all times are multiples of a larger step, that step may have
        been the setting at the time of the append. In this case the result is at most the time in
        the segment's note, because all records had arrived by then.
        """
        rounded_ms, seen_ms = append_ms + self._granularity_ms - 1, self._times.seen_ms
        if seen_ms <= rounded_ms:
            return rounded_ms
        return max(rounded_ms, min(append_ms + self._step_ms - 1, seen_ms))

    @property
    def _step_ms(self) -> int:
        if self._cached_step_ms is None:
            self._cached_step_ms = _common_step(self._rows, self._granularity_ms)
        return self._cached_step_ms

    def at(self, offset: int) -> CountedTime:
        """Return the latest possible arrival time of the record at `offset`."""
        append_ms = self._rows.time_at(offset)
        if append_ms is None:
            return self._fallback._replace(offset=offset)
        latest_ms = self.latest_ms(append_ms)
        return CountedTime(latest_ms, TimeBasis.APPEND_TIME, latest_ms == append_ms, offset)

    def largest_capped(self, segment: Segment, times: SegmentTimes) -> CountedTime | None:
        """Return the largest min(timestamp, append time) of the records; None if unknown.

        The segment must have a record with a timestamp, and `times` must include append times.
        """
        self._times = times
        best = self._capped(times.largest_timestamp, times.largest_at)
        if best.ms in (times.largest_timestamp, times.arrival.ms):
            return best  # no other record can have a larger capped time
        zones = segment.zones
        if zones is None:
            return None
        try:
            return self._search(segment, zones, best)
        except CorruptData:
            return None  # readers report the damage; the caller then uses the upper bound

    def _capped(self, timestamp: int, offset: int) -> CountedTime:
        arrival = self.at(offset)
        if timestamp <= arrival.ms:
            return CountedTime(timestamp, TimeBasis.TIMESTAMP, offset=offset)
        return arrival

    def _search(self, segment: Segment, zones: ZoneMap, best: CountedTime) -> CountedTime:
        """Return the largest capped time of a segment, reading as few zones as possible.

        Zones are read in descending order of their bounds, as long as a zone may exceed the largest
        time so far.
        """

        def may_exceed(zone: "Zone") -> bool:
            return zone.control_records > 0 or zone.max_record_ms > best.ms

        some = filter(may_exceed, zones.select(lambda block: not may_exceed(block)))
        ranked = [(-bound, zone) for zone in some if (bound := self._bound(zone)) > best.ms]
        heapq.heapify(ranked)
        while ranked and -ranked[0][0] > best.ms:
            _, zone = heapq.heappop(ranked)
            end = zone.position + zone.size_bytes
            for _, batch in iterate_batches(segment, zone.position, end):
                if batch.max_timestamp > best.ms:
                    capped = self._capped(batch.max_timestamp, batch.last_offset)
                    best = max(best, capped, key=lambda counted: counted.ms)
        return best

    def _bound(self, zone: "Zone") -> int:
        """Return an upper bound of the capped timestamps in a zone, in ms."""
        arrival_ms = self.at(zone.last_offset).ms
        # If all append times of the segment are known, the zone's append times need no check.
        is_known = self._times.is_append_known
        if not is_known and self._rows.unknown_in(zone.first_offset, zone.last_offset + 1):
            arrival_ms = max(self._times.largest_append_ms, self._fallback.ms)
        # Transaction markers also have timestamps, but a zone's times don't include them.
        return arrival_ms if zone.control_records else min(zone.max_record_ms, arrival_ms)


# Maximum size in bytes of a segment that is read if it has no zone map. The read takes well under
# 100 ms.
READ_LIMIT_BYTES: Final = 128 << 10


@dataclass(slots=True)
class RecordRange:
    """Smallest timestamp of a partition, in ms, and the number of records without a timestamp.

    Attributes:
        smallest_ms: Smallest timestamp of the records that were read; None if no record has a
            timestamp.
        untimed: Number of records without a timestamp among the records that were read.
        skipped_ranges: Ranges [start, end) of offsets that were not read, and whose records may
            have a smaller timestamp. The segment of these records is damaged, or has no zone map
            and is too large to read.
    """

    smallest_ms: int | None = None
    skipped_ranges: list[tuple[int, int]] = field(default_factory=list)
    untimed: int = 0

    def take(self, ms: int) -> None:
        """Include a record's timestamp, or the smallest of several; -1 means no timestamp."""
        if ms != NO_TIMESTAMP and (self.smallest_ms is None or ms < self.smallest_ms):
            self.smallest_ms = ms


def record_range(log: LogView) -> RecordRange:
    """Return the smallest timestamp from the log start on, and the ranges that were not read.

    Raises:
        StorageFailure: The disk failed.
    """
    record_times = RecordRange()
    for segment in log.segments:
        start = max(segment.base_offset, log.log_start_offset)
        if not segment.size_bytes or start >= segment.end_offset:
            continue
        try:
            is_read = _take_segment(record_times, segment, start)
        except CorruptData:
            is_read = False
        if not is_read:
            record_times.skipped_ranges.append((start, segment.end_offset))
    return record_times


def _take_segment(record_times: RecordRange, segment: Segment, start: int) -> bool:
    """Include a segment's records from `start` on.

    Return False if the segment has no zone map and is too large to read.
    """
    zones = segment.zones
    if zones is not None:
        _take_zones(record_times, segment, zones, start)
        return True
    if segment.size_bytes > READ_LIMIT_BYTES:
        return False
    _take_records(record_times, segment, start, segment.end_offset)
    return True


def _take_zones(record_times: RecordRange, segment: Segment, zones: ZoneMap, start: int) -> None:
    if start == segment.base_offset:
        _take_zone(record_times, zones.total)
        return
    for zone in zones.zones():
        if zone.first_offset >= start:
            _take_zone(record_times, zone)
        elif start <= zone.last_offset:
            _take_records(record_times, segment, start, zone.last_offset + 1)


def _take_zone(record_times: RecordRange, zone: "Zone") -> None:
    record_times.untimed += zone.data_records - zone.timed_records
    if zone.timed_records:
        record_times.take(zone.min_record_ms)


def _take_records(record_times: RecordRange, segment: Segment, start: int, end: int) -> None:
    for ms in _timestamps(segment, start, end):
        record_times.untimed += ms == NO_TIMESTAMP
        record_times.take(ms)


def _timestamps(segment: Segment, start: int, end: int) -> Iterator[int]:
    for part in slices([segment], start, end):
        for record in records_of(part):
            yield record.timestamp


@dataclass(slots=True)
class AppendRange:
    """Append times of a partition, in ms.

    Attributes:
        first_ms: Earliest known append time; None if no append time is known.
        last_ms: Latest known append time.
        unknown: Ranges [start, end) of offsets whose append time is unknown; see `unknown_appends`.
    """

    first_ms: int | None = None
    last_ms: int | None = None
    unknown: list[tuple[int, int]] = field(default_factory=list)

    def take(self, first_ms: int, last_ms: int) -> None:
        """Add the first and last append time of offsets that follow all offsets added so far."""
        self.first_ms = first_ms if self.first_ms is None else self.first_ms
        self.last_ms = last_ms

    def miss(self, start: int, end: int) -> None:
        """Add the range [start, end) of offsets whose append time is unknown."""
        if self.unknown and self.unknown[-1][1] == start:
            start = self.unknown.pop()[0]
        self.unknown.append((start, end))


def append_range(log: LogView, start_offset: int = 0, end_offset: int = INT64_MAX) -> AppendRange:
    """Return the first and last known append time and the unknown ranges; decodes no records.

    Args:
        log: The partition.
        start_offset: First offset to include; offsets below the log start are left out.
        end_offset: Offset after the last offset to include.
    """
    times = AppendRange()
    for segment in log.segments:
        start = max(segment.base_offset, log.log_start_offset, start_offset)
        end = min(segment.end_offset, end_offset)
        if start >= end:
            continue
        is_whole = (start, end) == (segment.base_offset, segment.end_offset)
        span = segment.append_span if is_whole else None
        if span is not None:  # from the tier's manifest, so the store gets no request
            times.take(*span)
            continue
        rows = log.append_times_of(segment)
        span = rows.span(start, end)
        if span is not None:
            times.take(*span)
        for first, last in unknown_appends(log, segment, start, end):
            times.miss(first, last)
    return times


def unknown_appends(log: LogView, segment: Segment, start: int, end: int) -> list[tuple[int, int]]:
    """Return ranges of a segment's offsets in [start, end) whose append time is unknown.

    If the segment has a zone map and the map shows missing records, each range begins and ends at a
    batch. In this case, ranges without a batch are left out, because compaction removed their
    records. Otherwise, ranges may contain offsets without a record.
    """
    spans = log.append_times_of(segment).unknown_in(start, end)
    zones = segment.zones if spans else None
    if zones is None:
        return spans
    total = zones.total
    if total.data_records + total.control_records == segment.end_offset - segment.base_offset:
        return spans
    held = (_between_batches(segment, zones, span) for span in spans)
    return [span for span in held if span is not None]


def _between_batches(
    segment: Segment, zones: ZoneMap, span: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the part of a range from its first to its last batch; None if it has no batch."""
    start, end = span
    knows_append = segment.zones_on(ClockName.APPEND) is not None

    def parts(zone: "Zone") -> list[tuple[int, int]]:
        return [
            (max(start, batch.base_offset), min(end, batch.last_offset + 1))
            for _, batch in iterate_batches(segment, zone.position, zone.end_position)
            if batch.base_offset < end and batch.last_offset >= start
        ]

    some = [
        zone
        for zone in zones.zones()
        if zone.first_offset < end
        and zone.last_offset >= start
        and not (knows_append and zone.stamped_records == zone.data_records + zone.control_records)
    ]
    try:
        first = next((part for zone in some for part in parts(zone)), None)
        if first is None:
            return None
        last = next(part for zone in reversed(some) for part in reversed(parts(zone)))
    except CorruptData:
        return span  # the batches are unknown; readers report the damage
    return first[0], last[1]


# -- spans of data records -------------------------------------------------------------------------


def record_span(log: LogView) -> TimeSpan:
    """Return the smallest and the largest timestamp; None for an unknown time.

    Markers of transactions are ignored.
    """
    smallest = record_range(log)
    try:
        largest_ms = _largest_record_ms(log)
    except CorruptData:
        largest_ms = None
    return TimeSpan(None if smallest.skipped_ranges else smallest.smallest_ms, largest_ms)


def append_span(log: LogView) -> TimeSpan:
    """Return the first and last known append time of the data records.

    If the time of the first or last data record is unknown, but its batch has LogAppendTime, the
    batch gives the time.

    Markers of transactions are ignored.
    """
    start = _first_data_offset(log)
    end = None if start is None else _end_of_data(log)
    if start is None or end is None:
        return TimeSpan(None, None)
    times = append_range(log, start, end)
    first_ms, last_ms = _append_ms(log, start), _append_ms(log, end - 1)
    return TimeSpan(
        times.first_ms if first_ms is None else first_ms,
        times.last_ms if last_ms is None else last_ms,
    )


def _append_ms(log: LogView, offset: int) -> int | None:
    """Return an offset's append time; None if it is unknown or if only a damaged batch has it."""
    try:
        return log.append_time_of(offset)
    except CorruptData:
        return None


def _data_batches(log: LogView, start: int, end: int) -> "Iterator[Batch]":
    """Yield the batches with offsets in [start, end), except transaction markers."""
    for part in slices(log.segments, start, end):
        for _, batch in part.batches():
            if not batch.is_control:
                yield batch


def _first_data_offset(log: LogView) -> int | None:
    """Return the first data record's offset, None if there are no data records.

    If the search for this record meets a damaged batch, return the log start.
    """
    start = log.log_start_offset
    try:
        batch = next(_data_batches(log, start, log.log_end_offset), None)
    except CorruptData:
        return start
    return None if batch is None else max(batch.base_offset, start)


def _end_of_data(log: LogView) -> int | None:
    """Return the offset after the last data record, None if there are no data records.

    Return the log end if a batch that has to be read is damaged.
    """
    first, end = log.log_start_offset, log.log_end_offset
    step = 1
    while first < end:
        start = max(end - step, first)
        try:
            ends = [batch.last_offset + 1 for batch in _data_batches(log, start, end)]
        except CorruptData:
            return end
        if ends:
            return min(ends[-1], end)
        if start == first:
            break
        step *= 4
    return None


def _largest_record_ms(log: LogView) -> int | None:
    largest = log.max_timestamp(steps_over_losses=True)
    if largest is None:
        return None
    if next(_data_batches(log, largest.offset, largest.offset + 1), None) is not None:
        return largest.timestamp
    best = NO_TIMESTAMP
    for segment in log.segments:
        start = max(segment.base_offset, log.log_start_offset)
        if start < segment.end_offset and segment.largest_timestamp > best:
            best = max(best, _largest_data_ms(log, segment, start))
    return None if best == NO_TIMESTAMP else best


def _largest_data_ms(log: LogView, segment: Segment, start: int) -> int:
    """Return the largest timestamp of a segment's data records from `start` on, or -1."""
    zones = segment.zones
    if zones is not None and start == segment.base_offset:
        return zones.total.max_record_ms if zones.total.timed_records else NO_TIMESTAMP
    best = NO_TIMESTAMP
    for batch in _data_batches(log, start, segment.end_offset):
        if batch.base_offset >= start:
            best = max(best, batch.max_timestamp)
        else:
            own = _timestamps(segment, start, batch.last_offset + 1)
            best = max(best, max(own, default=NO_TIMESTAMP))
    return best
