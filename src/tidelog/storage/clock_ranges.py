"""The smallest and the largest record time of a partition, and which segments were not asked.

Largest times are in the time indexes. Smallest ones are in zone maps; a small segment without one
is read, a large one is left out, and that is said. Source: docs/retention.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.errors import CorruptData
from tidelog.storage.log_reader import LogReader
from tidelog.storage.reading import records_of, slices
from tidelog.storage.segment import Segment
from tidelog.storage.zones import ZoneMap
from tidelog.types import NO_TIMESTAMP

# A segment of this size is read in well under 100 ms.
READ_LIMIT_BYTES: Final = 128 << 10


@dataclass(slots=True)
class RecordRange:
    """What is known of the record times of a partition, in ms.

    Attributes:
        smallest_ms: Smallest timestamp of the records that were looked at; None where none has one.
        not_looked_at: Ranges [start, end) of offsets without a zone map, too many to read or
            damaged: a smaller one may be there.
    """

    smallest_ms: int | None = None
    not_looked_at: list[tuple[int, int]] = field(default_factory=list)

    def take(self, ms: int) -> None:
        """Count a record's timestamp, or the smallest of some; -1 is none."""
        if ms != NO_TIMESTAMP and (self.smallest_ms is None or ms < self.smallest_ms):
            self.smallest_ms = ms


def record_range(log: LogReader) -> RecordRange:
    """The smallest record time from the log start on.

    Raises:
        StorageFailure: The disk failed.
    """
    found = RecordRange()
    for segment in log.segments:
        start = max(segment.base_offset, log.log_start_offset)
        if not segment.size_bytes or start >= segment.end_offset:
            continue
        try:
            is_seen = _take_segment(found, segment, start)
        except CorruptData:
            is_seen = False
        if not is_seen:
            found.not_looked_at.append((start, segment.end_offset))
    return found


def _take_segment(found: RecordRange, segment: Segment, start: int) -> bool:
    """Count a segment's records from `start` on; False where they are too many to read."""
    zones = segment.zones
    if zones is not None:
        _take_zones(found, segment, zones, start)
        return True
    if segment.size_bytes > READ_LIMIT_BYTES:
        return False
    _take_records(found, segment, start, segment.end_offset)
    return True


def _take_zones(found: RecordRange, segment: Segment, zones: ZoneMap, start: int) -> None:
    if start == segment.base_offset:
        if zones.total.timed_records:
            found.take(zones.total.min_record_ms)
        return
    for zone in zones.zones():
        if zone.first_offset >= start and zone.timed_records:
            found.take(zone.min_record_ms)
        elif zone.first_offset < start <= zone.last_offset:
            _take_records(found, segment, start, zone.last_offset + 1)


def _take_records(found: RecordRange, segment: Segment, start: int, end: int) -> None:
    for ms in _timestamps(segment, start, end):
        found.take(ms)


def _timestamps(segment: Segment, start: int, end: int) -> Iterator[int]:
    for part in slices([segment], start, end):
        for record in records_of(part):
            yield record.timestamp
