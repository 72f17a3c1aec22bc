"""Finished segments in memory, and the expected content of the segments' zone maps."""

from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from hypothesis import strategies as st
from tests.worlds.records.kernel_logs import batches, contents, times
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.record.batch_walk import walk
from tidelog.record.coding import crc32c
from tidelog.record.header import assign_offset
from tidelog.record.record import Record
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.zone_map import Zone
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import (
    INT64_MAX,
    INT64_MIN,
    ClockName,
    Codec,
    NewRecord,
    TimestampType,
)

TOPIC_ID = UUID(int=9)


class MemorySegment(ClosedSegment):
    """A finished segment without files."""

    log_path = "/t-0/log"
    is_mapped = True

    def __init__(
        self, base_offset: int, data: bytes, append_times: AppendTimes, end_offset: int
    ) -> None:
        self.base_offset, self.end_offset = base_offset, end_offset
        self.data = data
        self.set_append_times(append_times)

    def __repr__(self) -> str:
        times = [*self.append_times.rows()]
        return f"MemorySegment({self.base_offset}, {self.data!r}, {times}, {self.end_offset})"

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def view(self, start: int, end: int) -> memoryview:
        return memoryview(self.data)[start:end]

    def whole(self) -> memoryview:
        return memoryview(self.data)


@st.composite
def _legacy(draw: st.DrawFn, base_offset: int) -> bytes:
    records = st.builds(
        NewRecord.of_log, key=contents, value=contents, timestamp=st.integers(-1, 50) | times
    )
    magic = draw(st.sampled_from((0, 1)))
    return bytes(
        build_legacy_set(
            draw(st.lists(records, min_size=1, max_size=4)),
            magic=magic,
            codec=draw(st.sampled_from((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4))),
            base_offset=base_offset,
            append_time_ms=draw(st.none() | st.integers(0, 10**8)) if magic else None,
        )
    )


def _moved(batch: bytes, base_offset: int) -> bytes:
    moved = bytearray(batch)
    assign_offset(moved, 0, base_offset, 3)
    return bytes(moved)


@st.composite
def segments(draw: st.DrawFn, batch_count_max: int = 8) -> MemorySegment:
    """Draw a segment of any formats, codecs and timestamps, with known and unknown append times."""
    base_offset = draw(st.sampled_from((0, 77, 1 << 40)))
    next_offset = base_offset + draw(st.integers(0, 3))
    data = b""
    starts = []
    for _ in range(draw(st.integers(0, batch_count_max))):
        is_2 = draw(st.integers(0, 3)) > 0
        part = _moved(draw(batches()), next_offset) if is_2 else draw(_legacy(next_offset))
        data += part
        starts.append(next_offset)
        next_offset = [*walk(part)][-1].last_offset + 1 + draw(st.integers(0, 2))
    known = draw(append_times(base_offset, starts, next_offset))
    return MemorySegment(base_offset, data, known, next_offset)


@st.composite
def append_times(
    draw: st.DrawFn, base_offset: int, starts: list[int], end_offset: int
) -> AppendTimes:
    """Draw append times: ranges of known times, which begin and end at batches drawn at random."""
    found = AppendTimes(base_offset, TOPIC_ID)
    now = draw(st.integers(0, 10**8) | st.just(INT64_MAX - 10**9))
    for start in starts:
        now += draw(st.sampled_from((0, 1, 500, 3_600_000)))
        choice = draw(st.integers(0, 4))
        if choice == 0:
            found.mark_unknown(start, 5)
        elif choice < 4:
            found.note(start, now, 5)
    if draw(st.booleans()):
        found.close(end_offset, 5)
    return found


@dataclass(frozen=True)
class Fact:
    """A data record as a reader sees it, with the append time in ms, None if unknown."""

    record: Record
    append_ms: int | None

    def time(self, clock: ClockName) -> int | None:
        """Return the record's time on a clock, None if the record has no such time."""
        if clock is ClockName.APPEND:
            return self.append_ms
        return None if self.record.timestamp == -1 else self.record.timestamp

    @property
    def latency(self) -> int | None:
        """Append time minus create time in ms, None if either is unknown."""
        if self.append_ms is None or self.record.create_timestamp is None:
            return None
        return max(-INT64_MAX, min(INT64_MAX, self.append_ms - self.record.create_timestamp))


def facts_of(segment: MemorySegment, start: int = 0, end: int | None = None) -> list[Fact]:
    """Return all data records in bytes [start, end)."""
    end = segment.size_bytes if end is None else end
    return [
        Fact(record, _append_ms(segment, record))
        for batch in walk(segment.data[start:end])
        if not batch.is_control
        for record in batch.records()
    ]


def _append_ms(segment: MemorySegment, record: Record) -> int | None:
    for start, end, ms in segment.append_times.runs(segment.base_offset, segment.end_offset):
        if start <= record.offset < end and ms is not None:
            return ms
    stamped = record.timestamp_type is TimestampType.LOG_APPEND_TIME and record.timestamp != -1
    return record.timestamp if stamped else None


def zone_of(segment: MemorySegment, start: int, end: int) -> Zone:
    """Return the expected zone for whole batches in bytes [start, end)."""
    data = segment.data[start:end]
    found = list(walk(data))
    facts = facts_of(segment, start, end)
    every = [record.offset for batch in found for record in batch.records()]
    return Zone(
        start,
        end - start,
        min([*every, *(batch.base_offset for batch in found)]),
        max([*every, *(batch.last_offset for batch in found)]),
        len(facts),
        sum(len(list(batch.records())) for batch in found if batch.is_control),
        sum(fact.record.value is None for fact in facts),
        any(batch.is_transactional and not batch.is_control for batch in found),
        *_extremes([fact.time(ClockName.RECORD) for fact in facts]),
        *_extremes([fact.time(ClockName.APPEND) for fact in facts]),
        crc32c(data),
    )


def _extremes(times: list[int | None]) -> tuple[int, int, int]:
    known = [time for time in times if time is not None]
    return len(known), min(known, default=INT64_MAX), max(known, default=INT64_MIN)


def zones_of(segment: MemorySegment, zone_bytes: int) -> list[Zone]:
    """Return all expected zones.

    A zone consists of whole batches that together have at most `zone_bytes`, or of one larger
    batch.
    """
    ends, at, start = [0], 0, 0
    for batch in walk(segment.data):
        if at > start and at + batch.size_bytes - start > zone_bytes:
            ends.append(at)
            start = at
        at += batch.size_bytes
    if at > start:
        ends.append(at)
    return [zone_of(segment, *span) for span in pairwise(ends)]


__all__ = ["Fact", "MemorySegment", "facts_of", "segments", "zone_of", "zones_of"]
