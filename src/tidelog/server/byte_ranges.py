"""Which bytes of which segment answer a fetch: whole batches, by the offset index and headers.

A fetch is answered from one segment, as Kafka does. No record is touched: the index leads to a
batch near each end, and frames are walked from there.

Source: Kafka 4.x LogSegment.read, FileRecords; KIP-74 (the first batch goes whole).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from tidelog.errors import CorruptBatch
from tidelog.record.batch import HEADER_SIZE, LENGTH_MIN, LOG_OVERHEAD, MAGIC_2
from tidelog.storage.proof import leads_to, misfit, position_floor
from tidelog.storage.segment import Segment
from tidelog.types import Buffer

# Between two entries of an index lie 4 KiB and one batch by default.
WINDOW_BYTES: Final = 4096 + HEADER_SIZE
_FRAME: Final = Struct(">qiiB")
_LAST_DELTA: Final = Struct(">i")
_LAST_DELTA_AT: Final = 23

Read: TypeAlias = Callable[[Segment, int, int], Buffer]


class Frame(NamedTuple):
    """Where a batch lies, and the offset of its last record."""

    position: int
    size_bytes: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, end) of a segment's log file.

    Attributes:
        segment: Whose.
        start: Position of the first batch.
        end: Position behind the last one.
        next_offset: Offset behind the last batch; the one asked for where the range holds none.
    """

    segment: Segment
    start: int
    end: int
    next_offset: int

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
        may_cut: Whether a first batch that is too large comes in part, as before KIP-74.
    """

    end_offset: int
    max_bytes: int
    whole_first: bool
    may_cut: bool = False


def read_segment(segment: Segment, start: int, end: int) -> Buffer:
    """Bytes [start, end) of a segment, whatever it takes."""
    return segment.view(start, end)


def find_range(
    segments: Sequence[Segment], offset: int, limits: Limits, read: Read = read_segment
) -> ByteRange | None:
    """The bytes that answer a read from an offset on; None where there is nothing at or behind it.

    Args:
        segments: Of a log, oldest first.
        offset: First offset wanted; the first batch may begin before it.
        limits: How far it may go.
        read: How bytes of a segment are had.

    Raises:
        CorruptBatch: A frame that can't be; located.
        OSError: The system failed a read.
    """
    number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
    for segment in segments[number:]:
        if segment.base_offset >= limits.end_offset:
            return None
        first = _first_reaching(segment, offset, read)
        if first is not None:
            return range_from(segment, first, offset, limits, read)
    return None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _first_reaching(segment: Segment, offset: int, read: Read) -> Frame | None:
    """The first batch whose last offset is `offset` or more."""
    if segment.end_offset <= offset:
        return None
    start = 0 if offset <= segment.base_offset else position_floor(segment, offset)
    for frame in frames(segment, start, segment.size_bytes, read):
        if frame.last_offset >= offset:
            return frame
    return None


def range_from(
    segment: Segment, first: Frame, offset: int, limits: Limits, read: Read = read_segment
) -> ByteRange:
    """The bytes from a batch on, as many as the limits allow."""
    visible_end = _visible_end(segment, limits.end_offset, read)
    if first.position >= visible_end:
        return ByteRange(segment, first.position, first.position, offset)
    wanted = max(limits.max_bytes, first.size_bytes if limits.whole_first else 0)
    wanted_end = first.position + wanted
    if wanted_end >= visible_end:
        behind = min(segment.end_offset, limits.end_offset)
        return ByteRange(segment, first.position, visible_end, behind)
    if wanted < first.size_bytes:
        end = wanted_end if limits.may_cut else first.position
        return ByteRange(segment, first.position, end, offset)
    last = _last_within(segment, first, wanted_end, read)
    end = last.position + last.size_bytes
    return ByteRange(segment, first.position, end, last.last_offset + 1)


def _visible_end(segment: Segment, end_offset: int, read: Read) -> int:
    """Position behind the last batch that ends below `end_offset`."""
    if end_offset >= segment.end_offset:
        return segment.size_bytes
    found = _first_reaching(segment, end_offset, read)
    return segment.size_bytes if found is None else found.position


def _last_within(segment: Segment, first: Frame, end: int, read: Read) -> Frame:
    """The last batch that ends at or before a position, which `first` does."""
    last = first
    for frame in frames(segment, _indexed_floor(segment, first, end), segment.size_bytes, read):
        if frame.position + frame.size_bytes > end:
            break
        last = frame
    return last


def _indexed_floor(segment: Segment, first: Frame, end: int) -> int:
    """Position of a batch before `end` that the index names and the log proves."""
    index = segment.offset_index
    slot = index.slot_at_or_before_position(end)
    if slot < 0:
        return first.position
    key, position = index.entry(slot)
    if position <= first.position:
        return first.position
    if leads_to(segment, key, position):
        return position
    segment.distrust_indexes(misfit(segment.log_path, key, position))
    return first.position


def frames(segment: Segment, position: int, end: int, read: Read = read_segment) -> Iterator[Frame]:
    """The batches in bytes [position, end), by their frames; one that is not whole ends it.

    Raises:
        CorruptBatch: A frame that can't be; located.
    """
    window, at = read(segment, position, min(position + WINDOW_BYTES, end)), 0
    while position < end:
        if len(window) - at < min(HEADER_SIZE, end - position):
            window, at = read(segment, position, min(position + WINDOW_BYTES, end)), 0
        if len(window) - at < _FRAME.size:
            return
        base, length, _, magic = _FRAME.unpack_from(window, at)
        size = length + LOG_OVERHEAD
        if length < LENGTH_MIN or magic > MAGIC_2:
            reason = f"a batch of length {length} and magic {magic} can't be"
            raise CorruptBatch(reason, at=0).located(segment.log_path, position)
        if position + size > end:
            return
        delta = _LAST_DELTA.unpack_from(window, at + _LAST_DELTA_AT)[0] if magic == MAGIC_2 else 0
        yield Frame(position, size, base + delta)
        position += size
        at += size
