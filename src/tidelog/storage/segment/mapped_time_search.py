"""Searches by timestamp inside one segment, with one kernel call for each segment.

This module connects the log's search (`time_search`), which chooses the segment, with the kernel
(`record/kernels/time_search`).

A search first uses the mapped part of a segment. Then it reads the rest of the segment in pieces,
by position. A finished segment is mapped completely. The active segment is mapped up to the size
that it had when it was last mapped. A reader's last segment and a segment in an object store are
not mapped. This module decompresses compressed batches for the kernels. Legacy batches are searched
by plain Python code. The checksum of the result's batch is verified before the result is returned.
The checksum of a batch of a mapped part is verified only once.

`KernelSearch` keeps arrays over the maps of at most `PARTS_MAX` segments, but keeps no decoded
batch. `KernelSearch` returns the same results as `time_search.search_segment`, but is faster.

Imports numpy and numba, so only `LogView.use_kernels` imports it.
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
from tidelog.storage.segment.index_proof import position_floor, time_floor
from tidelog.storage.segment.segment import LOOP_BYTES, ColdRead, Segment
from tidelog.storage.segment.time_search import (
    answer,
    open_batch,
    search_segment,
)
from tidelog.types import INT64_MAX, Codec, OffsetAndTimestamp

PARTS_MAX: Final = 16_384

# Size in bytes of each piece after the first piece. Plain Python code searches a batch that is
# larger than a piece.
PIECE_BYTES: Final = 1 << 18

# Size in bytes of the first piece, which nearly always contains the result. A first piece has room
# for two batches of the producers' default size (16 KB). It is smaller than the operating system's
# read-ahead.
FIRST_PIECE_BYTES: Final = 40 << 10

PROVEN_MAX: Final = 16_384

# After this number of searches beyond the mapped part of an active segment, the segment is mapped
# again. Mapping takes as long as two or three such searches.
SEARCHES_PER_MAP: Final = 16

Bytes = npt.NDArray[np.uint8]

# Status of a search, offset, timestamp in ms, and position of the batch.
KernelResult = tuple[int, int, int, int]


class MappedPart(NamedTuple):
    """Batches from a segment's start on, and the segment's index entries, as arrays over maps.

    Attributes:
        segment: The segment.
        log: The segment's whole batches.
        offset_index: Entries of the offset index.
        time_index: Entries of the time index.
        epochs: Leader epoch of each batch whose checksum was verified, by the batch's position;
            None for a batch without an epoch.
        between: Base offset of the segment, and upper bound (exclusive) of the segment's offsets.
        largest: Upper bound of the timestamps in these batches, in ms.
        is_whole: Whether the part has all batches of the segment.
    """

    segment: Segment
    log: Bytes
    offset_index: Bytes
    time_index: Bytes
    epochs: dict[int, int | None]
    between: tuple[int, int]
    largest: int
    is_whole: bool


# Path of a log file, and the two entries at which a search begins: an entry of the time index, and
# an entry of the offset index.
Proven = tuple[str, tuple[int, int], tuple[int, int]]


def _entries(
    segment: Segment, target: int, floor_offset: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    first = segment.time_index.lookup(target)
    return first, segment.offset_index.lookup(max(first[1], floor_offset))


class KernelSearch:
    """A `time_search.BatchSearch` with kernels. Thread-safe."""

    def __init__(self) -> None:
        self._parts: OrderedDict[str, MappedPart] = OrderedDict()
        self._active: MappedPart | None = None
        self._proven: set[Proven] = set()
        self._unmapped_searches = 0

    def __call__(
        self, segment: Segment, target: int, floor_offset: int, may_block: bool, /
    ) -> OffsetAndTimestamp | None:
        """Return the first record from `floor_offset` on with a time >= `target`, else None."""
        part = self._active
        if part is None or part.segment is not segment or target > part.largest:
            part = self._parts.get(segment.log_path)
            if part is None or part.segment is not segment:
                part = self._map(segment)
                if part is None:
                    return self._search_pieces(segment, target, floor_offset, may_block)
        _, log, offset_index, time_index, epochs, between, _, _ = part
        result = find_time_in_segment(log, offset_index, time_index, between, target, floor_offset)
        status, offset, timestamp, position = result
        if status == FOUND and position in epochs:
            return OffsetAndTimestamp(offset, timestamp, epochs[position])
        return self._resolve(part, result, target, floor_offset, may_block)

    def _resolve(
        self,
        part: MappedPart,
        result: KernelResult,
        target: int,
        floor_offset: int,
        may_block: bool,
    ) -> OffsetAndTimestamp | None:
        """Complete the kernel's search by decompressing and verifying batches.

        If the kernel finds no match in `part`, and the segment has batches after `part`, search the
        segment without a map.
        """
        segment, log = part.segment, part.log
        status, offset, timestamp, position = result
        while status == NEED_PLAIN:
            batch = view_batch(log.data, position)
            match = _search_batch(segment, position, batch, target, floor_offset, may_block)
            if match is not None:
                return match
            behind = position + batch.size_bytes
            rest = batch.last_offset + 1, part.between[1]
            status, offset, timestamp, position = find_time(log, behind, rest, target, floor_offset)
        if status == NOT_FOUND:
            if part.is_whole:
                return None
            return self._search_pieces(segment, target, floor_offset, may_block)
        if status == FOUND:
            batch = view_batch(log.data, position)
            if batch.is_valid():
                if len(part.epochs) >= PROVEN_MAX:
                    part.epochs.clear()
                match = answer(offset, timestamp, batch)
                part.epochs[position] = match.leader_epoch
                return match
        # The kernel's result can't be used, because the part is damaged or an index is wrong. The
        # plain search reports the position of damage, or rebuilds a wrong index.
        self._drop(part)
        return search_segment(segment, target, floor_offset, may_block)

    def clear(self) -> None:
        """Drop the arrays; a map is closed when its last view is dropped."""
        self._parts.clear()
        self._proven.clear()
        self._active = None

    def _drop(self, part: MappedPart) -> None:
        if part is self._active:
            self._active = None
        else:
            self._parts.pop(part.segment.log_path, None)

    def _map(self, segment: Segment) -> MappedPart | None:
        """Return the map of a finished segment, None if the segment has to be read in pieces.

        After a number of searches, an active segment is mapped again, up to its current size. The
        next search uses this map.
        """
        if segment.takes_appends:
            self._unmapped_searches += 1
            if self._unmapped_searches >= SEARCHES_PER_MAP:
                self._unmapped_searches, self._active = 0, None
                largest, size = segment.largest_timestamp, segment.size_bytes
                with suppress(OSError):  # reading in pieces succeeds, or raises the error again
                    log = segment.context.env.files.map(segment.log_path, size)
                    self._active = _part_of(segment, log, largest, is_whole=False)
            return None
        if not segment.is_mapped:
            return None
        view = segment.view(0, segment.size_bytes)
        part = self._parts[segment.log_path] = _part_of(segment, view, INT64_MAX, is_whole=True)
        if len(self._parts) > PARTS_MAX:
            self._parts.popitem(last=False)
        return part

    def _search_pieces(
        self, segment: Segment, target: int, floor_offset: int, may_block: bool
    ) -> OffsetAndTimestamp | None:
        """Search a segment piece by piece, read by position."""
        position = self._start_of(segment, target, floor_offset)
        piece_bytes, between = FIRST_PIECE_BYTES, _between(segment)
        while position < segment.size_bytes:
            end = min(position + piece_bytes, segment.size_bytes)
            piece = np.frombuffer(segment.view(position, end), np.uint8)
            status, match_offset, timestamp, at = find_time(piece, 0, between, target, floor_offset)
            sees_next = end == segment.size_bytes or _sees_behind(piece, at)
            if status in (FOUND, NEED_PLAIN) and sees_next:
                batch = view_batch(piece.data, at)
                if status == FOUND:
                    if batch.is_valid():
                        return answer(match_offset, timestamp, batch)
                    return search_segment(segment, target, floor_offset, may_block)
                at_position = position + at
                match = _search_batch(segment, at_position, batch, target, floor_offset, may_block)
                if match is not None:
                    return match
                position += at + batch.size_bytes
                between = batch.last_offset + 1, between[1]
            elif status in (FOUND, NEED_PLAIN, NOT_FOUND) and at:
                position += at
                between = (between[0] if status == FOUND else match_offset), between[1]
            elif piece_bytes == PIECE_BYTES:
                return search_segment(segment, target, floor_offset, may_block)
            piece_bytes = PIECE_BYTES
        return None

    def _start_of(self, segment: Segment, target: int, floor_offset: int) -> int:
        """Return the position where a search begins in a segment that is not mapped.

        The indexes are in memory and only grow. So each pair of entries is compared with the log
        only once.
        """
        first, second = _entries(segment, target, floor_offset)
        if (segment.log_path, first, second) in self._proven:
            return second[1]
        _, offset = time_floor(segment, target)
        position = position_floor(segment, max(offset, floor_offset))
        if len(self._proven) >= PROVEN_MAX:
            self._proven.clear()
        # The calls above may have rebuilt a wrong index, so the entries are read again.
        self._proven.add((segment.log_path, *_entries(segment, target, floor_offset)))
        return position


def _sees_behind(piece: Bytes, at: int) -> bool:
    """Return whether a piece also has the header that follows the batch at `at`.

    This header may show that an offset of the batch at `at` is wrong.
    """
    size = LOG_OVERHEAD + int.from_bytes(piece[at + LENGTH_AT : at + LOG_OVERHEAD].tobytes())
    return at + size + HEADER_SIZE <= len(piece)


def _between(segment: Segment) -> tuple[int, int]:
    """Return a segment's base offset, and the upper bound (exclusive) of its offsets."""
    end = INT64_MAX if segment.is_active else segment.end_offset
    return segment.base_offset, segment_limit(segment.base_offset, end)


def _part_of(segment: Segment, log: memoryview, largest: int, *, is_whole: bool) -> MappedPart:
    return MappedPart(
        segment,
        np.frombuffer(log, np.uint8),
        np.frombuffer(segment.offset_index.encoded, np.uint8),
        np.frombuffer(segment.time_index.encoded, np.uint8),
        {},
        _between(segment),
        largest,
        is_whole,
    )


def _search_batch(
    segment: Segment,
    position: int,
    batch: Batch,
    target: int,
    floor_offset: int,
    may_block: bool,
) -> OffsetAndTimestamp | None:
    """Find the first match inside one batch; search a compressed batch with a kernel."""
    if isinstance(batch, RecordBatch):
        status, offset, timestamp = _search_compressed(batch, target, floor_offset, may_block)
        if status == FOUND:
            return answer(offset, timestamp, batch)
        if status == NOT_FOUND:
            return None
    for record in open_batch(segment, position, batch, may_block=may_block):
        if record.timestamp >= target and record.offset >= floor_offset:
            return answer(record.offset, record.timestamp, batch)
    return None


def _search_compressed(
    batch: RecordBatch, target: int, floor_offset: int, may_block: bool
) -> tuple[int, int, int]:
    """Search a compressed batch; return the status, offset and timestamp of the match.

    Offset and timestamp are valid only for the status FOUND.

    The status is NEED_PLAIN if the batch is not compressed or is damaged; plain Python code then
    searches it and reports damage.

    Raises:
        ColdRead: The batch decompresses to many bytes, and `may_block` is false.
    """
    try:
        if batch.codec is Codec.NONE or not batch.is_valid():
            return NEED_PLAIN, -1, -1
        body = batch.body() if may_block else batch.body(LOOP_BYTES)
    except TidelogError as error:
        if isinstance(error, StreamTooLong) and not may_block:
            raise ColdRead from None
        return NEED_PLAIN, -1, -1
    # The kernel searches the records as an uncompressed batch. This batch's header differs from the
    # original header only in length and codec.
    image = bytearray(batch.view[:HEADER_SIZE])
    LENGTH.pack_into(image, LENGTH_AT, BATCH_LENGTH_MIN + len(body))
    image[ATTRIBUTES_AT + 1] &= ~CODEC_MASK
    image += body
    # Read-only, like all arrays that kernels search.
    log = np.frombuffer(memoryview(image).toreadonly(), np.uint8)
    status, offset, timestamp, _ = find_time(log, 0, ANY_OFFSETS, target, floor_offset)
    return (status if status in (FOUND, NOT_FOUND) else NEED_PLAIN), offset, timestamp
