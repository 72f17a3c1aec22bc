"""Finds the bytes of a log that answer a read, reads them, and returns them in memory or in files.

`find_range` finds whole batches of one segment, as Kafka's fetch does, without decoding records.
The first batch begins where an earlier read ended (`ReadEnds`), or is found by the offset index.
The end is found by the index and by reading the headers of a few batches.

`SegmentBytes` reads bytes and indexes of segments. On the event loop it must not block: a read that
would wait for a disk or a store raises `ColdRead`. After a `ColdRead`, a thread repeats the read
with a source that may block.

A long range is returned as a `FilePiece` (`file_pieces`), whose bytes stay in the file until the
client accepts them.

Invariants: offsets must increase along the log (`record.offset_order`). A read checks only the
batches whose headers it needs anyway: the first batch and its neighbors, the batches at the end of
the range, and, once, the last batches of a finished segment. A batch with wrong offsets in the
middle of the range is sent unchanged. If the first batch begins after the requested offset, the
offset index must have no batch between. If records were lost in a gap after a finished segment
(`storage.segment.gaps`), the read fails instead of skipping the gap.

Source: Kafka 4.x UnifiedLog.read, LogSegment.read.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple
from weakref import ref

from tidelog.env import File, local_file
from tidelog.errors import CorruptBatch, DamagedLog
from tidelog.lazy_dataclass import dataclass
from tidelog.record.header import HEADER_SIZE, LENGTH_MIN, LOG_OVERHEAD, MAGIC_2
from tidelog.record.offset_order import in_order, segment_limit
from tidelog.server.partitions.file_pieces import PIECE_MIN_BYTES, FilePiece
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.open_files import FileHandle, FilePool
from tidelog.storage.segment.closed_segment import ClosedSegment, as_closed
from tidelog.storage.segment.gaps import ensure_reaches, is_settled
from tidelog.storage.segment.index_proof import batch_at, ensure_none_skipped, misfit
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.segment import ColdRead, LastBatches, Segment, open_log
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import INT64_MAX, Buffer


class SegmentBytes:
    """Source of a log's bytes, for one read or for all reads of a partition on the event loop.

    A read continues in the file in which it began, even if the file's segment is deleted meanwhile.
    Reads on the event loop share one open file: the file that was read last, until the pool closes
    it.

    Attributes:
        may_block: Whether reads may wait for a disk or a store. Must be False on the event loop. It
            is set to True when a read continues in a thread.
    """

    __slots__ = ("_is_one_read", "_last_file", "_pool", "may_block")

    def __init__(self, pool: FilePool, *, may_block: bool, is_one_read: bool = False) -> None:
        """Create a source without an open file. `may_block` implies `is_one_read`."""
        self._pool = pool
        self.may_block = may_block
        self._is_one_read = may_block or is_one_read
        self._last_file: tuple[ref[Segment], FileHandle] | None = None

    def read(self, segment: Segment, start: int, end: int) -> Buffer:
        """Return bytes [start, end) of a segment's log file, fewer only at the file's end.

        Raises:
            ColdRead: The bytes are not in memory, and the source must not block.
            OSError: The read failed.
        """
        size_bytes = segment.size_bytes
        if end > size_bytes:
            end = size_bytes
        if end <= start:
            return b""
        if segment.is_tiered:
            self._ensure(is_loaded=False)
            return segment.view(start, end)
        file = self._file_of(segment)
        if self.may_block:
            return file.pread(end - start, start)
        local = local_file(file)
        data = None if local is None else local.read_cached(end - start, start)
        if data is None:
            raise ColdRead
        return data

    def records(self, segment: Segment, start: int, end: int) -> "Buffer | FilePiece":
        """Return bytes [start, end) of a segment's log file for a response.

        A range of `PIECE_MIN_BYTES` or more in a file is returned as a `FilePiece`.

        The caller must have read the header of the first batch.
        """
        if segment.is_tiered or end - start < PIECE_MIN_BYTES:
            return self.read(segment, start, end)
        file = self._file_of(segment)
        return FilePiece(file, segment.log_path, start, end - start, is_begun=True)

    def _file_of(self, segment: Segment) -> File:
        last = self._last_file
        if last is not None and last[0]() is segment:
            handle = last[1]
            file = handle.file  # read once, because a thread may make the pool close it
            if file is not None:
                handle.is_used = True
                return file
        handle, file = open_log(segment, self._pool.hold)
        if self._is_one_read:
            handle = FileHandle(file)  # keeps the file open even if the pool closes it
        self._last_file = ref(segment), handle
        return file

    def offset_index(self, segment: Segment) -> OffsetIndex:
        """Return the segment's offset index.

        Raises ColdRead if the index is not loaded and this source must not block.
        """
        self._ensure(is_loaded=segment.has_indexes)
        return segment.offset_index

    def last_batches(self, segment: ClosedSegment) -> LastBatches:
        """Return the `LastBatches` of a segment.

        Raises ColdRead if they were not read yet and this source must not block.
        """
        self._ensure(is_loaded=segment.loaded_last_batches is not None)
        return segment.last_batches

    def ensure_reaches(self, segment: Segment, offset: int) -> None:
        """Ensure that a finished segment has not lost a batch that ended at or after an offset.

        Raises:
            ColdRead: The check would have to wait for a disk or a store.
            CorruptBatch: See `gaps.ensure_reaches`.
            OSError: A read failed.
        """
        closed = as_closed(segment)
        if closed is not None:
            is_checked = closed.loaded_last_batches is not None and is_settled(closed)
            self._ensure(is_loaded=is_checked and closed.last_batches.next_offset <= offset)
            ensure_reaches(closed, offset)

    def txn_index(self, segment: Segment) -> TxnIndex:
        """Return the segment's aborted transactions.

        Raises ColdRead if they are not loaded and this source must not block.
        """
        self._ensure(is_loaded=segment.has_txn_index)
        return segment.txn_index

    def append_times(self, segment: Segment) -> AppendTimes:
        """Return the append times of a segment's records.

        Raises ColdRead if they are not loaded and this source must not block.
        """
        self._ensure(is_loaded=segment.has_append_times)
        return segment.append_times

    def distrust(self, segment: Segment, problem: str) -> None:
        """Rebuild a segment's indexes from the whole segment, because an index is wrong.

        Raises ColdRead if this source must not block.
        """
        self._ensure(is_loaded=False)
        segment.distrust_indexes(problem)

    def ensure_blocking(self) -> None:
        """Raise ColdRead if the source must not block. Callers use this before slow work."""
        self._ensure(is_loaded=False)

    def _ensure(self, *, is_loaded: bool) -> None:
        if not is_loaded and not self.may_block:
            raise ColdRead


# Number of bytes that one call reads to find batches by their headers: the default distance of
# two index entries, plus one header.
WINDOW_BYTES: Final = 4096 + HEADER_SIZE

# Maximum number of bytes that one read fetches from a store, or rebuilds as new batches. These
# bytes stay in memory until the client has read them. A larger first batch is still read as a
# whole.
TIER_BYTES: Final = 1 << 20

# Maximum number of reads of one partition whose ends are remembered.
READ_ENDS_MAX: Final = 256

_FRAME: Final = Struct(">qiiB")
_FRAME_START: Final = Struct(">qi")
_LAST_DELTA: Final = Struct(">i")
_LAST_DELTA_AT: Final = 23

# Header of format 2: base offset, length, magic, last offset delta.
_HEADER: Final = Struct(">qi4xB6xi")

assert _HEADER.size == _LAST_DELTA_AT + _LAST_DELTA.size


class Frame(NamedTuple):
    """Position and offsets of a batch.

    For a wrapper message, `base_offset` and `last_offset` are both the message's last offset.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    magic: int

    @property
    def end(self) -> int:
        """Position after the last byte of the batch."""
        return self.position + self.size_bytes


# This class and the next class are not frozen, because each partition of a fetch creates an object,
# and creating a frozen object takes longer.
@dataclass(slots=True)
class ByteRange:
    """Bytes [start, end) of a segment's log file.

    Attributes:
        segment: The segment.
        start: Position of the first batch.
        end: Position after the last batch.
        next_offset: Offset after the last batch; the requested offset if the range is empty.
        first_offset: First offset of the first batch. If this batch is of an old format, its first
            offset may be unknown; then the value is the smallest offset, at or after the requested
            offset, that the batch may have.
    """

    segment: Segment
    start: int
    end: int
    next_offset: int
    first_offset: int

    @property
    def size_bytes(self) -> int:
        """Number of bytes in the range."""
        return self.end - self.start


@dataclass(slots=True, eq=False)
class Limits:
    """Limits of a read.

    Attributes:
        end_offset: End of what the reader may see (exclusive).
        max_bytes: Maximum number of bytes.
        whole_first: Whether the first batch is returned even if it is larger than `max_bytes`.
    """

    end_offset: int
    max_bytes: int
    whole_first: bool


class ReadEnds:
    """Ends of reads of a partition, where the next reads usually begin without an index lookup.

    Each entry maps an offset to a position. It is only a hint: the reader checks that a batch with
    this offset begins at this position. Entries of a segment are not used any more after the
    segment was replaced. Safe for several threads.
    """

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions: dict[int, tuple[ref[Segment], int]] = {}

    def position_of(self, segment: Segment, offset: int) -> int | None:
        """Return the position where a batch may begin with `offset`; None if none was noted."""
        entry = self._positions.get(offset)
        return None if entry is None or entry[0]() is not segment else entry[1]

    def note(self, byte_range: "ByteRange") -> None:
        """Remember the end of a read."""
        positions = self._positions
        if len(positions) >= READ_ENDS_MAX:
            positions.clear()
        positions[byte_range.next_offset] = ref(byte_range.segment), byte_range.end


def find_range(
    segments: Sequence[Segment],
    offset: int,
    limits: Limits,
    source: SegmentBytes,
    ends: ReadEnds | None = None,
) -> ByteRange | None:
    """Return the bytes for a read from `offset` on; None if no visible batch ends at or after it.

    Args:
        segments: Segments of a log, oldest first.
        offset: First requested offset. The first returned batch may begin before this offset.
        limits: Limits of the read.
        source: Source of the segments' bytes.
        ends: Ends of earlier reads. The function adds the end of this read.

    Raises:
        ColdRead: The search would have to wait for a disk, and the source must not block.
        CorruptBatch: A frame or an offset is impossible, or records were lost in the gap before the
            next segment. The error has the position. If a batch before the damage matches, it is
            returned instead.
        DamagedLog: The offset lies after the sound part of the log.
        OSError: A read failed.
    """
    number = len(segments) - 1
    if number > 0 and segments[number].base_offset > offset:  # true for few reads
        number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
    for segment in segments[number:]:
        if segment.base_offset >= limits.end_offset:
            return None
        if segment.damaged is not None:
            limits = _before_damage(segment.damaged, offset, limits)
        if segment.is_tiered and limits.max_bytes > TIER_BYTES:
            limits = replace(limits, max_bytes=TIER_BYTES)
        first = None if ends is None else _remembered(segment, offset, source, ends)
        if first is None:
            first = _first_reaching(segment, offset, source)
        if first is not None:
            byte_range = _range_from(segment, first, offset, limits, source)
            if ends is not None and byte_range.size_bytes:
                ends.note(byte_range)
            return byte_range
        if offset < segment.end_offset:
            source.ensure_reaches(segment, offset)
    return None


def _before_damage(damaged: DamagedLog, offset: int, limits: Limits) -> Limits:
    """Return limits that end with the sound part of the segment.

    Raises DamagedLog if the offset is not in that part.
    """
    sound_end = damaged.offset
    if sound_end is None or offset >= sound_end:
        raise damaged.again()
    return replace(limits, end_offset=min(limits.end_offset, sound_end))


def _remembered(
    segment: Segment, offset: int, source: SegmentBytes, ends: ReadEnds
) -> Frame | None:
    """Return the batch with base offset `offset`, found where an earlier read ended; else None."""
    position = ends.position_of(segment, offset)
    if position is None:
        return None
    header = source.read(segment, position, position + HEADER_SIZE)
    if len(header) < HEADER_SIZE:
        return None
    base, length, magic, delta = _HEADER.unpack_from(header)
    size = length + LOG_OVERHEAD
    # The hint may be wrong; then these bytes are arbitrary.
    if magic != MAGIC_2 or base != offset or delta < 0:
        return None
    if not HEADER_SIZE <= size <= segment.size_bytes - position:
        return None
    return Frame(position, size, base, base + delta, magic)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _sound_part(segment: Segment, source: SegmentBytes) -> tuple[int, int]:
    """Return the size in bytes of a segment's sound part, and the offset after it.

    In a finished segment the sound part ends before damage in its last batches.
    """
    closed = as_closed(segment)
    if closed is None or closed.is_tiered:
        size_bytes = segment.size_bytes  # read first, because the segment may grow
        lost = segment.lost_at_end
        return size_bytes, segment.end_offset if lost is None else lost.start
    last = closed.loaded_last_batches or source.last_batches(closed)
    return last.position, last.next_offset


def _first_reaching(segment: Segment, offset: int, source: SegmentBytes) -> Frame | None:
    """Return the first batch that ends at or after `offset`, or None.

    The batch's offsets must be in order with the offsets of its neighbors. If it begins after
    `offset`, the offset index must have no batch between, and must not contradict its last offset.
    """
    if segment.end_offset <= offset:
        return None
    next_offset, size_bytes = segment.base_offset, segment.size_bytes
    end = segment.end_offset if segment.has_known_end else INT64_MAX
    limit, match = segment_limit(next_offset, end), None
    for frame in _frames_to(segment, offset, source):
        if not next_offset <= frame.base_offset <= frame.last_offset < limit:
            return _in_order_reaching(segment, offset, limit, source)
        if match is not None:
            break
        if frame.last_offset >= offset:
            match = frame
        next_offset = frame.last_offset + 1
    if match is None:
        if segment.is_active:  # of a finished segment, `ensure_reaches` checks the last batches
            index = source.offset_index(segment)
            ensure_none_skipped(segment, index, offset, limit, size_bytes)
    elif match.base_offset > offset and match.position:
        _ensure_indexed(segment, offset, match, source)
    return match


def _ensure_indexed(segment: Segment, offset: int, match: Frame, source: SegmentBytes) -> None:
    """Ensure that the offset index fits the gap from `offset` to the next batch, and this batch.

    Raises CorruptBatch if the index shows that the base offset of a batch is too small.
    """
    index = source.offset_index(segment)
    ensure_none_skipped(segment, index, offset, match.base_offset, match.position)
    slot = index.slot_at_or_before_position(match.position)
    key, position = index.entry(slot) if slot >= 0 else (0, 0)
    if position == match.position and key > match.last_offset:
        _first_reaching(segment, key, source)  # some batch must end at `key`


def _in_order_reaching(
    segment: Segment, offset: int, limit: int, source: SegmentBytes
) -> Frame | None:
    """Return the first batch that ends at or after `offset`, or None.

    Called if some batch of the segment is out of order. A batch before that batch may still match.

    Raises:
        CorruptBatch: Offsets are out of order, and it is unclear which batch has the requested
            offset.
    """
    walked = _frames_to(segment, offset, source)
    first = next(walked)
    positions = ((frame.position, frame) for frame in chain((first,), walked))
    base, path, knows_next = segment.base_offset, segment.log_path, first.position == 0
    for _, frame in in_order(positions, base, limit, path, knows_next=knows_next):
        if frame.last_offset >= offset:
            return frame
    return None


def _frames_to(segment: Segment, offset: int, source: SegmentBytes) -> Iterator[Frame]:
    """Iterate over batches, from the last batch in the index that ends at or before an offset."""
    start, window = 0, None
    if offset > segment.base_offset:
        start, window = _floor(segment, offset, source)
    return frames(segment, start, segment.size_bytes, source, window)


def _range_from(
    segment: Segment, first: Frame, offset: int, limits: Limits, source: SegmentBytes
) -> ByteRange:
    """Return the bytes from a batch on, as many as the limits allow."""
    # The size and the offset are read once, before the comparison, because the segment may grow
    # while this thread runs.
    part = _sound_part(segment, source) if segment.damaged is None else None
    if part is None or part[1] > limits.end_offset:
        part = _visible_end(segment, limits.end_offset, source)
    visible_end, behind = part
    start, size_bytes, base_offset, _, magic = first
    if magic != MAGIC_2:  # a wrapper's frame has only its last offset
        base_offset = min(base_offset, max(offset, segment.base_offset))
    max_bytes = limits.max_bytes
    if max_bytes < size_bytes and limits.whole_first:
        max_bytes = size_bytes
    if start >= visible_end or (max_bytes < size_bytes and start + max_bytes < visible_end):
        return ByteRange(segment, start, start, offset, base_offset)
    if start + max_bytes >= visible_end:
        return ByteRange(segment, start, visible_end, behind, base_offset)
    end, next_offset = _end_within(segment, first, start + max_bytes, source)
    return ByteRange(segment, start, end, next_offset, base_offset)


def _visible_end(segment: Segment, end_offset: int, source: SegmentBytes) -> tuple[int, int]:
    """Return position and offset after the last batch that ends below `end_offset`."""
    damaged = segment.damaged
    if damaged is not None and damaged.offset == end_offset and damaged.position is not None:
        return damaged.position, end_offset
    size_bytes, behind = _sound_part(segment, source)
    if end_offset < segment.end_offset:
        for frame in _frames_to(segment, end_offset, source):
            if frame.last_offset >= end_offset:
                return min(frame.position, size_bytes), min(end_offset, behind)
    return size_bytes, min(end_offset, behind)


def _end_within(segment: Segment, first: Frame, end: int, source: SegmentBytes) -> tuple[int, int]:
    """Return position and offset after the last batch that ends at or before position `end`."""
    behind, next_offset = first.position + first.size_bytes, first.last_offset + 1
    index = source.offset_index(segment)
    slot = index.slot_at_or_before_position(end)
    key, start = index.entry(slot) if slot >= 0 else (0, 0)
    window = None
    if start <= first.position:
        start = first.position
    else:
        # If the first batch is longer than the window, the next batches are probably long, too.
        # Then one header is enough to find the end.
        is_long = first.size_bytes > WINDOW_BYTES
        window = source.read(segment, start, start + (HEADER_SIZE if is_long else WINDOW_BYTES))
        if _is_proven(segment, key, window):
            base, length = _FRAME_START.unpack_from(window)
            size = length + LOG_OVERHEAD
            if start > behind:
                behind = start
            if base > next_offset:
                next_offset = base
            # If batches are longer than the distance of two index entries, which is usual, the
            # batch at this index entry contains `end`.
            if size >= HEADER_SIZE and end < start + size <= segment.size_bytes:
                return behind, next_offset
        else:
            source.distrust(segment, misfit(segment.log_path, key, start))
            start, window = first.position, None
    walked = frames(segment, start, segment.size_bytes, source, window)
    return _walk_within(first, walked, end, (behind, next_offset))


def _walk_within(
    first: Frame, walked: Iterable[Frame], end: int, sound_end: tuple[int, int]
) -> tuple[int, int]:
    """Return position and offset after the last batch of `walked` that ends at `end` or before it.

    The argument `sound_end` is the position and offset after the batches that are known to be
    sound. The result is never before `sound_end`.
    """
    behind, next_offset = sound_end
    previous, before = first, first.base_offset
    with suppress(CorruptBatch):  # the next read reports the damage
        for frame in walked:
            if frame.position == first.position:
                continue
            if frame.base_offset < next_offset:
                has_jumped = previous.base_offset != before <= frame.base_offset
                return (previous.position, before) if has_jumped else (behind, next_offset)
            if frame.end > end:
                break
            previous, before = frame, next_offset
            behind, next_offset = frame.end, frame.last_offset + 1
    return behind, next_offset


def _floor(segment: Segment, offset: int, source: SegmentBytes) -> tuple[int, Buffer | None]:
    """Look up in the index the position of a batch that ends at or before `offset`.

    The position is 0 if the index has no such batch.

    The second value has the segment's bytes from this position on; it is None if they were not
    read.
    """
    key, position = source.offset_index(segment).lookup(offset)
    if not position:
        return 0, None
    window = source.read(segment, position, min(position + WINDOW_BYTES, segment.size_bytes))
    if _is_proven(segment, key, window):
        return position, window
    source.distrust(segment, misfit(segment.log_path, key, position))
    return segment.offset_index.lookup(offset)[1], None


def _is_proven(segment: Segment, key: int, window: Buffer) -> bool:
    """Whether bytes begin with a batch that ends at or before offset `key`."""
    if len(window) >= HEADER_SIZE:
        base, _, magic, delta = _HEADER.unpack_from(window)
        if magic == MAGIC_2:
            last: int = base + delta
            return segment.base_offset <= last <= key
    old_last = batch_at(memoryview(window)[:HEADER_SIZE])
    return old_last is not None and segment.base_offset <= old_last <= key


def frames(
    segment: Segment,
    position: int,
    end: int,
    source: SegmentBytes,
    window: Buffer | None = None,
) -> Iterator[Frame]:
    """Iterate over the batches in bytes [position, end), by their frames.

    The iteration stops at an incomplete batch.

    Args:
        segment: The segment.
        position: Position of the first batch.
        end: Position after the last byte to read.
        source: Source of the segment's bytes.
        window: Bytes from `position` on, if they were read already.

    Raises:
        ColdRead: A read would have to wait for a disk, and the source must not block.
        OSError: A read failed.
        CorruptBatch: A frame is impossible. The error has the position.
    """
    at = 0
    if window is None:
        window = source.read(segment, position, min(position + WINDOW_BYTES, end))
    while position < end:
        if len(window) - at < min(HEADER_SIZE, end - position):
            window, at = source.read(segment, position, min(position + WINDOW_BYTES, end)), 0
        if len(window) - at < _FRAME.size:
            return
        base, length, _, magic = _FRAME.unpack_from(window, at)
        size = length + LOG_OVERHEAD
        if length < LENGTH_MIN or magic > MAGIC_2 or (magic == MAGIC_2 and size < HEADER_SIZE):
            reason = f"invalid batch: length {length}, magic {magic}"
            raise CorruptBatch(reason, at=0).located(segment.log_path, position)
        if position + size > end:
            return
        delta = _LAST_DELTA.unpack_from(window, at + _LAST_DELTA_AT)[0] if magic == MAGIC_2 else 0
        yield Frame(position, size, base, base + delta, magic)
        position += size
        at += size
