"""Bytes of a log that answer a read: which they are, how they are had, and in what form they leave.

`find_range` gives whole batches of one segment, as Kafka's fetch does, and opens no record. The
first batch lies where an earlier read ended (`ReadEnds`) or is found by the offset index; the end
is found by the index and a walk over a few frames.

`SegmentBytes` reads for one request. On the event loop it may not block: what would wait for a disk
or a store raises `ColdRead`, and the request is read again in a thread by one that may.

`FilePiece` is a part of a response that still lies in a file. It is read, or sent by the kernel, as
the client takes it, so a response of any size takes next to no memory. It holds its file open: the
bytes stay what they were when the segment is rolled, deleted or replaced meanwhile.

Invariants: offsets are checked against the order of the log (`record.offset_order`) wherever
headers are read anyway: at the first batch and those around it, where the bytes end, and once at
the end of a finished segment. Batches between are not looked at; a header there with wrong offsets
goes out as it is. A gap behind a finished segment that is a loss (`storage.segment.gaps`) is an
error, not stepped over.

Source: Kafka 4.x UnifiedLog.read, LogSegment.read, FileRecords.writeTo.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple, final
from weakref import ref

from tidelog.env import File, local_file
from tidelog.errors import CorruptBatch, DamagedLog, StorageFailure
from tidelog.record.header import HEADER_SIZE, LENGTH_MIN, LOG_OVERHEAD, MAGIC_2
from tidelog.record.offset_order import in_order, segment_limit
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.open_files import FilePool, Held
from tidelog.storage.segment.gaps import ensure_reaches, is_settled
from tidelog.storage.segment.index import OffsetIndex
from tidelog.storage.segment.index_proof import batch_at, misfit
from tidelog.storage.segment.segment import ColdRead, LastBatches, Segment, open_log
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import INT64_MAX, Buffer

# How often pages are looked for before they are sent. Where some were missing a moment ago, as
# often as the kernel reads ahead; else where a part that is sent in one go begins and ends.
PROBE_BYTES: Final = 256 << 10


PROBE_RARELY_BYTES: Final = 1 << 20


_NEVER_SEEN: Final = -1


# Smaller ones are read at once; they must not be less than what writers join.
PIECE_MIN_BYTES: Final = 16 << 10


@final
class FilePiece:
    """Bytes [position, position + size) of a file; a read may be asked of any part of it."""

    __slots__ = ("_cached_end", "_local", "file", "path", "position", "size_bytes")

    def __init__(
        self, file: File, path: str, position: int, size: int, *, is_begun: bool = False
    ) -> None:
        """Such a piece of an open file, whose path is for errors.

        `is_begun`: its first bytes were seen in memory a moment ago.
        """
        self.file = file
        self.path = path
        self.position = position
        self.size_bytes = size
        self._local = local_file(file)
        # Up to here it was seen in memory.
        self._cached_end = position + 1 if is_begun else _NEVER_SEEN

    def __len__(self) -> int:
        return self.size_bytes

    def skip(self, size: int) -> None:
        """The first `size` bytes were taken: it is what follows them."""
        self.position += size
        self.size_bytes -= size

    def is_cached(self, size: int, probe_bytes: int = PROBE_BYTES) -> bool:
        """Whether the first `size` bytes can be had without waiting for a disk.

        What was seen in memory once is not asked for again: it was a moment ago. Nor is each page
        that was not: one in `probe_bytes` is, the first and the last.
        """
        local = self._local
        if local is None:
            return False
        end = self.position + size
        if self._cached_end < end:
            if not local.is_cached(self._looks(end, probe_bytes)):
                return False
            self._cached_end = end
        return True

    def _looks(self, end: int, probe_bytes: int) -> list[int]:
        """Where to look for what was not seen yet below `end`."""
        start = max(self._cached_end, self.position)
        looks = [*range(start + probe_bytes - 1, end - 1, probe_bytes), end - 1]
        if self._cached_end == _NEVER_SEEN:  # else the first one lies beside what was
            looks.insert(0, start)
        return looks

    def send(self, socket: int, size: int) -> int:
        """Let the kernel send of the first `size` bytes what a socket takes; how many.

        Raises:
            BlockingIOError: The socket takes nothing now.
            OSError: The connection or the disk failed.
            StorageFailure: The file is shorter than it was.
        """
        assert self._local is not None
        sent = self._local.send(socket, size, self.position)
        if not sent:
            raise StorageFailure(self.path, "read", f"it ends before byte {self.position + size}")
        return sent

    def read(self, size: int) -> bytes:
        """The first `size` bytes.

        Raises:
            OSError: The disk failed.
            StorageFailure: The file is shorter than it was.
        """
        data = self.file.pread(size, self.position)
        if len(data) < size:
            raise StorageFailure(self.path, "read", f"it ends before byte {self.position + size}")
        return data


class SegmentBytes:
    """A way to read a log's segments, for one read or for all reads of a partition on the loop.

    One read goes on in the file that it began in, be its segment deleted meanwhile. Reads on the
    loop share the file that was read last, until the pool lets go of it.
    """

    __slots__ = ("_is_one_read", "_kept", "_may_block", "_pool")

    def __init__(self, pool: FilePool, *, may_block: bool, is_one_read: bool = False) -> None:
        """One that may block is for one read in a thread."""
        self._pool = pool
        self._may_block = may_block
        self._is_one_read = may_block or is_one_read
        self._kept: tuple[ref[Segment], Held] | None = None

    def let_block(self) -> None:
        """Let the rest of one read wait for the disk: it runs in a thread."""
        assert self._is_one_read
        self._may_block = True

    def read(self, segment: Segment, start: int, end: int) -> Buffer:
        """Bytes [start, end) of a segment's log file, fewer only where it ends.

        Raises:
            ColdRead: They are not in memory.
            OSError: The system failed the read.
        """
        size_bytes = segment.size_bytes
        if end > size_bytes:
            end = size_bytes
        if end <= start:
            return b""
        if segment.is_tiered:
            self._ensure(known=False)
            return segment.view(start, end)
        file = self._file_of(segment)
        if self._may_block:
            return file.pread(end - start, start)
        local = local_file(file)
        data = None if local is None else local.read_cached(end - start, start)
        if data is None:
            raise ColdRead
        return data

    def records(self, segment: Segment, start: int, end: int) -> "Buffer | FilePiece":
        """The same, for an answer: where they are many and in a file, they are read when sent.

        Their first batch is one whose header was read before.
        """
        if segment.is_tiered or end - start < PIECE_MIN_BYTES:
            return self.read(segment, start, end)
        file = self._file_of(segment)
        return FilePiece(file, segment.log_path, start, end - start, is_begun=True)

    def _file_of(self, segment: Segment) -> File:
        last = self._kept
        if last is not None and last[0]() is segment:
            held = last[1]
            file = held.file  # a thread may make the pool let go of it
            if file is not None:
                held.is_used = True
                return file
        held, file = open_log(segment, self._pool.hold)
        if self._is_one_read:
            held = Held(file)  # to the end of this read, whatever the pool lets go of
        self._kept = ref(segment), held
        return file

    def offset_index(self, segment: Segment) -> OffsetIndex:
        """The segment's index; raises ColdRead where it was not loaded yet."""
        self._ensure(known=segment.has_indexes)
        return segment.offset_index

    def last_batches(self, segment: Segment) -> LastBatches:
        """What its last batches say; raises ColdRead where they were not looked at yet."""
        self._ensure(known=segment.seen_last_batches is not None)
        return segment.last_batches

    def ensure_reaches(self, segment: Segment, offset: int) -> None:
        """Raise where a finished segment should have a batch that reaches an offset.

        Raises:
            ColdRead: It can't be said without waiting.
            CorruptBatch: As `gaps.ensure_reaches`.
            OSError: The system failed a read.
        """
        if not segment.is_active:
            is_seen = segment.seen_last_batches is not None and is_settled(segment)
            self._ensure(known=is_seen and segment.last_batches.next_offset <= offset)
            ensure_reaches(segment, offset)

    def txn_index(self, segment: Segment) -> TxnIndex:
        """Its aborted transactions; raises ColdRead where they were not loaded yet."""
        self._ensure(known=segment.has_txn_index)
        return segment.txn_index

    def append_times(self, segment: Segment) -> AppendTimes:
        """When its records were appended; raises ColdRead where that was not loaded yet."""
        self._ensure(known=segment.has_append_times)
        return segment.append_times

    def distrust(self, segment: Segment, problem: str) -> None:
        """Build a segment's indexes anew, which reads all of it; raises ColdRead."""
        self._ensure(known=False)
        segment.distrust_indexes(problem)

    def ensure_blocking(self) -> None:
        """Raise ColdRead unless it may block: what follows takes its time."""
        self._ensure(known=False)

    def _ensure(self, *, known: bool) -> None:
        if not known and not self._may_block:
            raise ColdRead


# Between two entries of an index lie 4 KiB and one batch by default.
WINDOW_BYTES: Final = 4096 + HEADER_SIZE


# What is read of a store, or made anew, at once: it lies in memory until the client takes it.
TIER_BYTES: Final = 1 << 20


# Reads of one partition whose ends are remembered.
READ_ENDS_MAX: Final = 256


_FRAME: Final = Struct(">qiiB")


_FRAME_START: Final = Struct(">qi")


_LAST_DELTA: Final = Struct(">i")


_LAST_DELTA_AT: Final = 23


# Of format 2: base offset, length, magic, last offset delta.
_HEADER: Final = Struct(">qi4xB6xi")


assert _HEADER.size == _LAST_DELTA_AT + _LAST_DELTA.size


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


# Not frozen, here and below: one is made for each partition of a fetch.
@dataclass(slots=True)
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


@dataclass(slots=True)
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


class ReadEnds:
    """Where reads of a partition ended: the next one mostly goes on there, without an index.

    What is said here is only a guess: who goes by it looks whether a batch of that offset is there.
    A segment that was replaced is another one. Safe for several threads.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[int, tuple[ref[Segment], int]] = {}

    def place_of(self, segment: Segment, offset: int) -> int | None:
        """Position in the segment where a batch may begin that begins with the offset."""
        found = self._places.get(offset)
        return None if found is None or found[0]() is not segment else found[1]

    def note(self, byte_range: "ByteRange") -> None:
        """A read has found these bytes."""
        places = self._places
        if len(places) >= READ_ENDS_MAX:
            places.clear()
        places[byte_range.next_offset] = ref(byte_range.segment), byte_range.end


def find_range(
    segments: Sequence[Segment],
    offset: int,
    limits: Limits,
    source: SegmentBytes,
    ends: ReadEnds | None = None,
) -> ByteRange | None:
    """The bytes that answer a read from an offset on; None where there is nothing at or behind it.

    Args:
        segments: Of a log, oldest first.
        offset: First offset wanted; the first batch may begin before it.
        limits: How far it may go.
        source: How bytes of a segment are had.
        ends: Where earlier reads ended; this one's end is noted.

    Raises:
        ColdRead: It can't be said without waiting for a disk, and the source may not.
        CorruptBatch: A frame that can't be, offsets that can't be there, or a gap before the next
            segment that is a loss; located. Sound batches before it are found.
        DamagedLog: The offset lies behind the sound part of the log.
        OSError: The system failed a read.
    """
    number = len(segments) - 1
    if number > 0 and segments[number].base_offset > offset:  # most read the newest one
        number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
    for segment in segments[number:]:
        if segment.base_offset >= limits.end_offset:
            return None
        if segment.damaged is not None:
            limits = _before_damage(segment.damaged, offset, limits)
        if segment.is_tiered and limits.max_bytes > TIER_BYTES:
            end, whole = limits.end_offset, limits.whole_first
            limits = Limits(end_offset=end, max_bytes=TIER_BYTES, whole_first=whole)
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
    """Limits that end where the sound part of the segment ends; raises where that is behind."""
    sound_end = damaged.offset
    if sound_end is None or offset >= sound_end:
        raise damaged.again()
    end = min(limits.end_offset, sound_end)
    return Limits(end_offset=end, max_bytes=limits.max_bytes, whole_first=limits.whole_first)


def _remembered(
    segment: Segment, offset: int, source: SegmentBytes, ends: ReadEnds
) -> Frame | None:
    """The batch that begins with `offset`, where an earlier read ended; None for none."""
    position = ends.place_of(segment, offset)
    if position is None:
        return None
    header = source.read(segment, position, position + HEADER_SIZE)
    if len(header) < HEADER_SIZE:
        return None
    base, length, magic, delta = _HEADER.unpack_from(header)
    size = length + LOG_OVERHEAD
    # The guess may be wrong, and these bytes anything.
    if magic != MAGIC_2 or base != offset or delta < 0:
        return None
    if not HEADER_SIZE <= size <= segment.size_bytes - position:
        return None
    return Frame(position, size, base, base + delta, magic)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _sound_part(segment: Segment, source: SegmentBytes) -> tuple[int, int]:
    """How many bytes of a segment count, and the offset behind them.

    Those of a finished one end before damage in its last batches.
    """
    if segment.is_active or segment.is_tiered:
        size_bytes = segment.size_bytes  # first: a segment grows beside a thread
        return size_bytes, segment.end_offset
    last = segment.seen_last_batches or source.last_batches(segment)
    return last.position, last.next_offset


def _first_reaching(segment: Segment, offset: int, source: SegmentBytes) -> Frame | None:
    """The first batch whose last offset is `offset` or more, in order with those around it."""
    if segment.end_offset <= offset:
        return None
    next_offset = segment.base_offset
    end = segment.end_offset if segment.has_known_end else INT64_MAX
    limit, frame_found = segment_limit(next_offset, end), None
    for frame in _frames_to(segment, offset, source):
        if not next_offset <= frame.base_offset <= frame.last_offset < limit:
            return _in_order_reaching(segment, offset, limit, source)
        if frame_found is not None:
            break
        if frame.last_offset >= offset:
            frame_found = frame
        next_offset = frame.last_offset + 1
    return frame_found


def _in_order_reaching(
    segment: Segment, offset: int, limit: int, source: SegmentBytes
) -> Frame | None:
    """The same where batches are out of order; raises where the wrong one may be what is asked."""
    walked = _frames_to(segment, offset, source)
    first = next(walked)
    positions = ((frame.position, frame) for frame in chain((first,), walked))
    base, path, knows_next = segment.base_offset, segment.log_path, first.position == 0
    for _, frame in in_order(positions, base, limit, path, knows_next=knows_next):
        if frame.last_offset >= offset:
            return frame
    return None


def _frames_to(segment: Segment, offset: int, source: SegmentBytes) -> Iterator[Frame]:
    """The batches from the last one on that the index has below an offset."""
    start, window = 0, None
    if offset > segment.base_offset:
        start, window = _floor(segment, offset, source)
    return frames(segment, start, segment.size_bytes, source, window)


def _range_from(
    segment: Segment, first: Frame, offset: int, limits: Limits, source: SegmentBytes
) -> ByteRange:
    """The bytes from a batch on, as many as the limits allow."""
    # What there is, before it is compared: a segment may grow beside this thread.
    part = _sound_part(segment, source) if segment.damaged is None else None
    if part is None or part[1] > limits.end_offset:
        part = _visible_end(segment, limits.end_offset, source)
    visible_end, behind = part
    start, size_bytes, base_offset, _, _ = first
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
    """Position behind the last batch that ends below `end_offset`, and the offset behind it."""
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
    """Position behind the last batch that ends at or before `end`, and the offset behind it."""
    behind, next_offset = first.position + first.size_bytes, first.last_offset + 1
    index = source.offset_index(segment)
    slot = index.slot_at_or_before_position(end)
    key, start = index.entry(slot) if slot >= 0 else (0, 0)
    window = None
    if start <= first.position:
        start = first.position
    else:
        # Of batches that are longer than what lies between two entries the header is enough.
        is_long = first.size_bytes > WINDOW_BYTES
        window = source.read(segment, start, start + (HEADER_SIZE if is_long else WINDOW_BYTES))
        if _is_proven(segment, key, window):
            base, length = _FRAME_START.unpack_from(window)
            size = length + LOG_OVERHEAD
            if start > behind:
                behind = start
            if base > next_offset:
                next_offset = base
            # Mostly a batch is longer than what lies between two entries: this one holds `end`.
            if size >= HEADER_SIZE and end < start + size <= segment.size_bytes:
                return behind, next_offset
        else:
            source.distrust(segment, misfit(segment.log_path, key, start))
            start, window = first.position, None
    walked = frames(segment, start, segment.size_bytes, source, window)
    return _walk_within(first, walked, end, (behind, next_offset))


def _walk_within(
    first: Frame, walked: Iterable[Frame], end: int, known: tuple[int, int]
) -> tuple[int, int]:
    """`_end_within` by a walk over batches, of which those up to the `known` end are right."""
    behind, next_offset = known
    held, before = first, first.base_offset
    with suppress(CorruptBatch):  # what lies before it is sound; the next read says what it is
        for frame in walked:
            if frame.position == first.position:
                continue
            if frame.base_offset < next_offset:
                has_jumped = held.base_offset != before <= frame.base_offset
                return (held.position, before) if has_jumped else (behind, next_offset)
            if frame.end > end:
                break
            held, before = frame, next_offset
            behind, next_offset = frame.end, frame.last_offset + 1
    return behind, next_offset


def _floor(segment: Segment, offset: int, source: SegmentBytes) -> tuple[int, Buffer | None]:
    """Position of a batch that ends at or before an offset, by the index; 0 where it has none.

    With it come bytes from there on, where they were read.
    """
    key, position = source.offset_index(segment).lookup(offset)
    if not position:
        return 0, None
    window = _window(segment, position, source)
    if _is_proven(segment, key, window):
        return position, window
    source.distrust(segment, misfit(segment.log_path, key, position))
    return segment.offset_index.lookup(offset)[1], None


def _window(segment: Segment, position: int, source: SegmentBytes) -> Buffer:
    return source.read(segment, position, min(position + WINDOW_BYTES, segment.size_bytes))


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
    """The batches in bytes [position, end), by their frames; one that is not whole ends it.

    Args:
        segment: Whose.
        position: Where the first batch begins.
        end: Position behind the last byte to look at.
        source: How bytes of a segment are had.
        window: Bytes from `position` on, where they were read already.

    Raises:
        ColdRead, OSError: As `find_range`.
        CorruptBatch: A frame that can't be; located.
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
            reason = f"a batch of length {length} and magic {magic} can't be"
            raise CorruptBatch(reason, at=0).located(segment.log_path, position)
        if position + size > end:
            return
        delta = _LAST_DELTA.unpack_from(window, at + _LAST_DELTA_AT)[0] if magic == MAGIC_2 else 0
        yield Frame(position, size, base, base + delta, magic)
        position += size
        at += size
