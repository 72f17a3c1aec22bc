"""Which bytes of which segment answer a fetch: whole batches, by the offset index and headers.

A fetch is answered from one segment, as Kafka does. No record is touched: the index leads to a
batch near each end, and frames are walked from there.

Source: Kafka 4.x LogSegment.read, FileRecords; KIP-74 (the first batch goes whole).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from tidelog.errors import CorruptBatch
from tidelog.record.batch import HEADER_SIZE, LENGTH_MIN, LOG_OVERHEAD, MAGIC_2
from tidelog.server.segment_bytes import SegmentBytes
from tidelog.storage.proof import batch_at, misfit
from tidelog.storage.segment import Segment

# Between two entries of an index lie 4 KiB and one batch by default.
WINDOW_BYTES: Final = 4096 + HEADER_SIZE
_FRAME: Final = Struct(">qiiB")
_LAST_DELTA: Final = Struct(">i")
_LAST_DELTA_AT: Final = 23


class Frame(NamedTuple):
    """Where a batch lies, and the offsets that its header names; a wrapper names its last alone."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    magic: int

    @property
    def end(self) -> int:
        """Position behind it."""
        return self.position + self.size_bytes


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, end) of a segment's log file.

    Attributes:
        segment: Whose.
        start: Position of the first batch.
        end: Position behind the last one.
        next_offset: Offset behind the last batch; the one asked for where the range holds none.
        first_offset: Of the first batch; of a wrapper its last.
    """

    segment: Segment
    start: int
    end: int
    next_offset: int
    first_offset: int

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a read may go.

    Attributes:
        end_offset: Offset behind the last record that the reader may see.
        max_bytes: How much is wanted at most.
        whole_first: Whether the first batch comes whole though it is larger.
    """

    end_offset: int
    max_bytes: int
    whole_first: bool


def find_range(
    segments: Sequence[Segment], offset: int, limits: Limits, source: SegmentBytes
) -> ByteRange | None:
    """The bytes that answer a read from an offset on; None where there is nothing at or behind it.

    Args:
        segments: Of a log, oldest first.
        offset: First offset wanted; the first batch may begin before it.
        limits: How far it may go.
        source: How bytes of a segment are had.

    Raises:
        ColdRead: It can't be said without waiting for a disk, and the source may not.
        CorruptBatch: A frame that can't be; located.
        OSError: The system failed a read.
    """
    number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
    for segment in segments[number:]:
        if segment.base_offset >= limits.end_offset:
            return None
        first = _first_reaching(segment, offset, source)
        if first is not None:
            return _range_from(segment, first, offset, limits, source)
    return None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _first_reaching(segment: Segment, offset: int, source: SegmentBytes) -> Frame | None:
    """The first batch whose last offset is `offset` or more."""
    if segment.end_offset <= offset:
        return None
    start = 0 if offset <= segment.base_offset else _floor(segment, offset, source)
    for frame in frames(segment, start, segment.size_bytes, source):
        if frame.last_offset >= offset:
            return frame
    return None


def _range_from(
    segment: Segment, first: Frame, offset: int, limits: Limits, source: SegmentBytes
) -> ByteRange:
    """The bytes from a batch on, as many as the limits allow."""
    visible_end = _visible_end(segment, limits.end_offset, source)
    if first.position >= visible_end:
        return ByteRange(segment, first.position, first.position, offset, first.base_offset)
    wanted = max(limits.max_bytes, first.size_bytes if limits.whole_first else 0)
    wanted_end = first.position + wanted
    if wanted_end >= visible_end:
        behind = min(segment.end_offset, limits.end_offset)
        return ByteRange(segment, first.position, visible_end, behind, first.base_offset)
    if wanted < first.size_bytes:
        return ByteRange(segment, first.position, first.position, offset, first.base_offset)
    end, next_offset = _end_within(segment, first, wanted_end, source)
    return ByteRange(segment, first.position, end, next_offset, first.base_offset)


def _visible_end(segment: Segment, end_offset: int, source: SegmentBytes) -> int:
    """Position behind the last batch that ends below `end_offset`."""
    if end_offset >= segment.end_offset:
        return segment.size_bytes
    found = _first_reaching(segment, end_offset, source)
    return segment.size_bytes if found is None else found.position


def _end_within(segment: Segment, first: Frame, end: int, source: SegmentBytes) -> tuple[int, int]:
    """Position behind the last batch that ends at or before `end`, and the offset behind it."""
    behind, next_offset = first.end, first.last_offset + 1
    start = _floor_of_position(segment, first, end, source)
    for frame in frames(segment, start, segment.size_bytes, source):
        if frame.end > end:
            # What the index leads to may be too long itself: the one before it ends where it is.
            return max(behind, frame.position), max(next_offset, frame.base_offset)
        behind, next_offset = frame.end, frame.last_offset + 1
    return behind, next_offset


def _floor(segment: Segment, offset: int, source: SegmentBytes) -> int:
    """Position of a batch that ends at or before an offset, by the index; 0 where it has none."""
    key, position = source.offset_index(segment).lookup(offset)
    if position and not _leads_to(segment, key, position, source):
        source.distrust(segment, misfit(segment.log_path, key, position))
        return segment.offset_index.lookup(offset)[1]
    return position


def _floor_of_position(segment: Segment, first: Frame, end: int, source: SegmentBytes) -> int:
    """Position of a batch at or before `end` that the index names, behind `first` or its own."""
    index = source.offset_index(segment)
    slot = index.slot_at_or_before_position(end)
    key, position = index.entry(slot) if slot >= 0 else (0, 0)
    if position <= first.position:
        return first.position
    if _leads_to(segment, key, position, source):
        return position
    source.distrust(segment, misfit(segment.log_path, key, position))
    return first.position


def _leads_to(segment: Segment, key: int, position: int, source: SegmentBytes) -> bool:
    """Whether a batch lies at `position` that ends at or before offset `key`."""
    last = batch_at(memoryview(source.read(segment, position, position + HEADER_SIZE)))
    return last is not None and segment.base_offset <= last <= key


def frames(segment: Segment, position: int, end: int, source: SegmentBytes) -> Iterator[Frame]:
    """The batches in bytes [position, end), by their frames; one that is not whole ends it.

    Raises:
        ColdRead, OSError: As `find_range`.
        CorruptBatch: A frame that can't be; located.
    """
    window, at = source.read(segment, position, min(position + WINDOW_BYTES, end)), 0
    while position < end:
        if len(window) - at < min(HEADER_SIZE, end - position):
            window, at = source.read(segment, position, min(position + WINDOW_BYTES, end)), 0
        if len(window) - at < _FRAME.size:
            return
        base, length, _, magic = _FRAME.unpack_from(window, at)
        size = length + LOG_OVERHEAD
        if length < LENGTH_MIN or magic > MAGIC_2 or (magic == MAGIC_2 and size < HEADER_SIZE):
            reason = f"a batch of length {length} and magic {magic} can't be"
            raise CorruptBatch(reason, at=0).located(segment.log_path, position)
        if position + size > end:
            return
        delta = _LAST_DELTA.unpack_from(window, at + _LAST_DELTA_AT)[0] if magic == MAGIC_2 else 0
        yield Frame(position, size, base, base + delta, magic)
        position += size
        at += size
