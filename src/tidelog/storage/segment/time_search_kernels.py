"""Searches by record time with kernels: one call a segment.

Does what `lookup.search_segment` does, on maps of the closed segments and on a map of what the
active one had when it was made, and on pieces of what has come since; opens compressed batches for
the kernels, and leaves legacy ones to the plain code. The batch of each answer has its checksum
verified before the answer is given. Keeps arrays over maps of at most `ARRAY_LIMIT` segments, no
decoded batch and no answer.

Imports numpy and numba: reached only through `LogReader.use_kernels`.
"""

from collections import OrderedDict
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tidelog.errors import StreamTooLong, TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch, view_batch
from tidelog.record.header import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_MIN,
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH,
    LENGTH_AT,
    LOG_OVERHEAD,
)
from tidelog.record.kernels.layout import FOUND, NEED_PLAIN, NOT_FOUND
from tidelog.record.kernels.time_search import find_time, find_time_in_segment
from tidelog.record.offset_order import ANY_OFFSETS, segment_limit
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index_proof import position_floor, time_floor
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.time_search import (
    LOOP_BYTES,
    LongBatch,
    answer,
    is_on_loop,
    opened,
    search_segment,
)
from tidelog.types import INT64_MAX, Codec, OffsetAndTimestamp

ARRAY_LIMIT: Final = 16_384


# The last segment is read by pieces of this size; a larger batch is left to the plain code.
PIECE_BYTES: Final = 1 << 18


# The first piece nearly always has the answer: two batches of 16 KB, as clients send them unless
# told, and below what is had from the system.
FIRST_PIECE_BYTES: Final = 40 << 10


PROVEN_LIMIT: Final = 16_384


# Searches of an active segment behind what is mapped of it, before more is: a map costs as much as
# two or three of them.
SEARCHES_PER_MAP: Final = 16


Bytes = npt.NDArray[np.uint8]


Longs = npt.NDArray[np.int64]


class SegmentArrays(NamedTuple):
    """A segment's files as arrays, without copying: of the active one as far as it was written.

    Attributes:
        epochs: Of batches whose checksum was verified, by position: the leader epoch, None where a
            batch has none. What was written of a segment stays as it is as long as its arrays.
        between: The base offset, and the offset that no batch reaches.
    """

    log: Bytes
    offset_index: Bytes
    time_index: Bytes
    epochs: dict[int, int | None]
    between: tuple[int, int]


class _ActivePart(NamedTuple):
    """What is mapped of the active segment.

    Attributes:
        segment: The segment.
        arrays: Its batches up to a moment, and the index entries of that moment.
        largest: No record of those batches has a later time, in ms.
    """

    segment: Segment
    arrays: SegmentArrays
    largest: int


# A log file, and the entries of its time index and offset index that a search begins with.
Proven = tuple[str, tuple[int, int], tuple[int, int]]


def _entries(
    segment: Segment, target: int, floor_offset: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    first = segment.time_index.lookup(target)
    return first, segment.offset_index.lookup(max(first[1], floor_offset))


class KernelSearch:
    """A `lookup.BatchSearch` by kernels. Safe for several threads."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[str, SegmentArrays] = OrderedDict()
        self._proven: set[Proven] = set()
        self._active: _ActivePart | None = None
        self._unmapped_searches = 0

    def __call__(
        self, segment: Segment, target: int, floor_offset: int, /
    ) -> OffsetAndTimestamp | None:
        """The first record with timestamp >= `target` and offset >= `floor_offset`, else None."""
        if not isinstance(segment, ClosedSegment):
            return self._search_open(segment, target, floor_offset)
        arrays = self._arrays.get(segment.log_path)
        if arrays is None:
            if not segment.is_mapped:
                return self._search_last(segment, target, floor_offset)
            arrays = self.arrays_of(segment)
        log, offset_index, time_index, epochs, between = arrays
        found = find_time_in_segment(log, offset_index, time_index, between, target, floor_offset)
        status, offset, timestamp, position = found
        if status == FOUND and position in epochs:
            return OffsetAndTimestamp(offset, timestamp, epochs[position])
        return self._keep(arrays, found, self.resolve(segment, log, found, target, floor_offset))

    def _keep(
        self,
        arrays: SegmentArrays,
        found: tuple[int, int, int, int],
        resolved: OffsetAndTimestamp | None,
    ) -> OffsetAndTimestamp | None:
        """Note the batch that an answer was found in, if the kernel's answer holds."""
        status, offset, _, position = found
        if status == FOUND and resolved is not None and resolved.offset == offset:
            if len(arrays.epochs) >= PROVEN_LIMIT:
                arrays.epochs.clear()
            arrays.epochs[position] = resolved.leader_epoch
        return resolved

    def clear(self) -> None:
        """Drop the arrays; the maps below them go with the last view."""
        self._arrays.clear()
        self._proven.clear()
        self._active = None

    def arrays_of(self, segment: ClosedSegment) -> SegmentArrays:
        """The segment's files as arrays, kept for the next search."""
        found = self._arrays.get(segment.log_path)
        if found is None:
            found = SegmentArrays(
                np.frombuffer(segment.view(0, segment.size_bytes), np.uint8),
                np.frombuffer(segment.offset_index.encoded, np.uint8),
                np.frombuffer(segment.time_index.encoded, np.uint8),
                {},
                _between(segment),
            )
            self._arrays[segment.log_path] = found
            if len(self._arrays) > ARRAY_LIMIT:
                self._arrays.popitem(last=False)
        return found

    def resolve(
        self,
        segment: Segment,
        log: Bytes,
        found: tuple[int, int, int, int],
        target: int,
        floor_offset: int,
    ) -> OffsetAndTimestamp | None:
        """What a kernel's answer means; batches that it can't open are opened here."""
        status, offset, timestamp, position = found
        while status == NEED_PLAIN:
            batch = view_batch(log.data, position)
            hit = _search_batch(segment, position, batch, target, floor_offset)
            if hit is not None:
                return hit
            behind = position + batch.size_bytes
            between = batch.last_offset + 1, _between(segment)[1]
            found = find_time(log, behind, between, target, floor_offset)
            status, offset, timestamp, position = found
        if status == NOT_FOUND:
            return None
        if status == FOUND:
            batch = view_batch(log.data, position)
            if batch.is_valid():
                return answer(offset, timestamp, batch)
        # Damage: the plain search finds its place, or that only an index was wrong, and mends it.
        self._arrays.pop(segment.log_path, None)
        return search_segment(segment, target, floor_offset)

    def _search_open(
        self, segment: Segment, target: int, floor_offset: int
    ) -> OffsetAndTimestamp | None:
        """A segment that is not closed: of the active one what is mapped, else by pieces."""
        part = self._active
        if part is None or part.segment is not segment or target > part.largest:
            if isinstance(segment, ActiveSegment):
                self._count_unmapped(segment)
            return self._search_last(segment, target, floor_offset)
        log, offset_index, time_index, epochs, between = part.arrays
        found = find_time_in_segment(log, offset_index, time_index, between, target, floor_offset)
        status, offset, timestamp, position = found
        if status == FOUND:
            if position in epochs:
                return OffsetAndTimestamp(offset, timestamp, epochs[position])
            batch = view_batch(log.data, position)
            if batch.is_valid():
                return self._keep(part.arrays, found, answer(offset, timestamp, batch))
        elif status == NEED_PLAIN:
            hit = self.resolve(segment, log, found, target, floor_offset)
            if hit is not None:
                return hit
        elif status != NOT_FOUND:
            self._active = None  # an index that was wrong is another one by and by
        return self._search_last(segment, target, floor_offset)

    def _count_unmapped(self, segment: ActiveSegment) -> None:
        """Map what an active segment has, where many searches would have been served by that."""
        self._unmapped_searches += 1
        if self._unmapped_searches < SEARCHES_PER_MAP:
            return
        self._unmapped_searches, self._active = 0, None
        largest, size = segment.largest_timestamp, segment.size_bytes
        indexes = segment.offset_index.encoded, segment.time_index.encoded
        with suppress(OSError):  # reading by pieces tells of it, or does without
            log = segment.context.env.files.map(segment.log_path, size)
            arrays = SegmentArrays(
                np.frombuffer(log, np.uint8),
                np.frombuffer(indexes[0], np.uint8),
                np.frombuffer(indexes[1], np.uint8),
                {},
                _between(segment),
            )
            self._active = _ActivePart(segment, arrays, largest)

    def _search_last(
        self, segment: Segment, target: int, floor_offset: int
    ) -> OffsetAndTimestamp | None:
        """A segment that is not mapped, such as the last one, piece by piece, by position."""
        position = self._place(segment, target, floor_offset)
        piece_bytes, between = FIRST_PIECE_BYTES, _between(segment)
        while position < segment.size_bytes:
            end = min(position + piece_bytes, segment.size_bytes)
            piece = np.frombuffer(segment.view(position, end), np.uint8)
            status, found, timestamp, at = find_time(piece, 0, between, target, floor_offset)
            is_seen = end == segment.size_bytes or _sees_behind(piece, at)
            if status in (FOUND, NEED_PLAIN) and is_seen:
                batch = view_batch(piece.data, at)
                if status == FOUND:
                    if batch.is_valid():
                        return answer(found, timestamp, batch)
                    return search_segment(segment, target, floor_offset)
                hit = _search_batch(segment, position + at, batch, target, floor_offset)
                if hit is not None:
                    return hit
                position += at + batch.size_bytes
                between = batch.last_offset + 1, between[1]
            elif status in (FOUND, NEED_PLAIN, NOT_FOUND) and at:
                position += at
                between = (between[0] if status == FOUND else found), between[1]
            elif piece_bytes == PIECE_BYTES:
                return search_segment(segment, target, floor_offset)
            piece_bytes = PIECE_BYTES
        return None

    def _place(self, segment: Segment, target: int, floor_offset: int) -> int:
        """Where a search in a segment that is not mapped begins.

        Its indexes are in memory and only grow: what the log has proven of a pair of entries once
        is not read again.
        """
        first, second = _entries(segment, target, floor_offset)
        if (segment.log_path, first, second) in self._proven:
            return second[1]
        _, offset = time_floor(segment, target)
        position = position_floor(segment, max(offset, floor_offset))
        if len(self._proven) >= PROVEN_LIMIT:
            self._proven.clear()
        # Indexes that were wrong are others by now, and have to be asked again.
        self._proven.add((segment.log_path, *_entries(segment, target, floor_offset)))
        return position


def _sees_behind(piece: Bytes, at: int) -> bool:
    """Whether the header of the batch behind one is in a piece: it may show a wrong offset."""
    size = LOG_OVERHEAD + int.from_bytes(piece[at + LENGTH_AT : at + LOG_OVERHEAD].tobytes())
    return at + size + HEADER_SIZE <= len(piece)


def _between(segment: Segment) -> tuple[int, int]:
    """The base offset, and the offset that no batch reaches."""
    end = INT64_MAX if segment.is_active else segment.end_offset
    return segment.base_offset, segment_limit(segment.base_offset, end)


def _search_batch(
    segment: Segment, position: int, batch: Batch, target: int, floor_offset: int
) -> OffsetAndTimestamp | None:
    """The first match inside one batch, by a kernel where it is compressed, else by plain code."""
    if isinstance(batch, RecordBatch):
        status, offset, timestamp = _search_compressed(batch, target, floor_offset)
        if status == FOUND:
            return answer(offset, timestamp, batch)
        if status == NOT_FOUND:
            return None
    for record in opened(segment, position, batch):
        if record.timestamp >= target and record.offset >= floor_offset:
            return answer(record.offset, record.timestamp, batch)
    return None


def _search_compressed(batch: RecordBatch, target: int, floor_offset: int) -> tuple[int, int, int]:
    """A kernel's status, offset and timestamp of the first match in a compressed batch.

    Its records are searched as those of a plain batch with the same header are. NEED_PLAIN for a
    batch that is not compressed, and where anything is wrong: the plain code says what.
    """
    try:
        if batch.codec is Codec.NONE or not batch.is_valid():
            return NEED_PLAIN, -1, -1
        body = batch.body(LOOP_BYTES) if is_on_loop() else batch.body()
    except TidelogError as error:
        if is_on_loop() and isinstance(error, StreamTooLong):
            raise LongBatch from None
        return NEED_PLAIN, -1, -1
    image = bytearray(batch.view[:HEADER_SIZE])
    LENGTH.pack_into(image, LENGTH_AT, BATCH_LENGTH_MIN + len(body))
    image[ATTRIBUTES_AT + 1] &= ~CODEC_MASK
    image += body
    # As a view that nobody writes to, like all that kernels search.
    log = np.frombuffer(memoryview(image).toreadonly(), np.uint8)
    status, offset, timestamp, _ = find_time(log, 0, ANY_OFFSETS, target, floor_offset)
    return (status if status in (FOUND, NOT_FOUND) else NEED_PLAIN), offset, timestamp
