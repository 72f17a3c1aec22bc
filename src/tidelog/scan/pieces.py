"""From offsets of a partition to pieces of its log files: pruned by time, cut at index entries.

Only indexes and append times are read. A piece may begin with a few batches that belong to the one
before it, and end with some of the next: the offset index is sparse, and the offsets decide.

What is pruned on the record clock is proven to hold no match: whole segments by their largest
timestamp, and what lies before the time index's entry. Records without a time in there are not
counted by anybody; a segment where no record has a time is kept, so that they are.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.scan.bounds import Bounds
from tidelog.scan.split import Piece
from tidelog.storage import files
from tidelog.storage.log_reader import LogReader
from tidelog.storage.reading import slice_segment
from tidelog.storage.segment import Segment
from tidelog.types import NO_TIMESTAMP, ClockName


@dataclass(frozen=True, slots=True)
class UncutPiece:
    """A piece and the segment that it is of."""

    piece: Piece
    segment: Segment


def find_pieces(
    reader: LogReader, bounds: Bounds, clock: ClockName, *, with_append_times: bool
) -> Iterator[UncutPiece]:
    """What has to be read for the offsets and times of `bounds`, in order.

    Args:
        reader: The partition.
        bounds: Offsets inside the log, and times.
        clock: Which time the times are about.
        with_append_times: Whether the reader will want append times.

    Raises:
        FileNotFoundError: A segment was deleted meanwhile; refresh the reader and ask again.
    """
    for segment in reader.segments:
        start = max(bounds.start, segment.base_offset)
        end = min(bounds.end, segment.end_offset)
        if start >= end:
            continue
        for first, last, is_unknown in _ranges(reader, segment, (start, end), bounds, clock):
            piece = _piece(segment, first, last)
            if piece is not None:
                if with_append_times:
                    piece = _with_times(reader, segment, piece)
                if is_unknown:
                    piece = dataclasses.replace(piece, is_unknown=True)
                yield UncutPiece(piece, segment)


def _ranges(
    reader: LogReader,
    segment: Segment,
    offsets: tuple[int, int],
    bounds: Bounds,
    clock: ClockName,
) -> list[tuple[int, int, bool]]:
    """Offset ranges of a segment that may hold the times wanted; whether their time is unknown."""
    if bounds.time_range is None:
        return [(*offsets, False)]
    start_ms, end_ms = bounds.time_range
    if clock is ClockName.APPEND:
        times = reader.append_times_of(segment)
        known = times.ranges(start_ms, end_ms, *offsets)
        unknown = times.unknown_in(*offsets)
        return sorted([(*r, False) for r in known] + [(*r, True) for r in unknown])
    largest = segment.largest_timestamp
    if start_ms >= end_ms or NO_TIMESTAMP < largest < start_ms:
        return []
    start = max(offsets[0], _first_in_time(segment, start_ms))
    return [(start, offsets[1], False)] if start < offsets[1] else []


def _first_in_time(segment: Segment, start_ms: int) -> int:
    """Offset before which every record of the segment is earlier than `start_ms`."""
    found_ms, offset = segment.time_index.lookup(start_ms - 1)
    return segment.base_offset if found_ms == NO_TIMESTAMP else offset + 1


def _piece(segment: Segment, start: int, end: int) -> Piece | None:
    part = slice_segment(segment, start, end)
    if part is None:
        return None
    return Piece(
        path=segment.log_path,
        identity=identity_text(segment.stat().identity),
        is_closed=not segment.is_active,
        base_offset=segment.base_offset,
        start_position=part.start_position,
        end_position=part.end_position,
        start_offset=start,
        end_offset=end,
    )


def identity_text(identity: tuple[int, int]) -> str:
    """A local file's identity as a piece names it."""
    return f"{identity[0]}:{identity[1]}"


def _with_times(reader: LogReader, segment: Segment, piece: Piece) -> Piece:
    """The piece with the place of its append times, and how far they are to be believed."""
    times = reader.append_times_of(segment)
    if not times.row_count:
        return piece
    unknown = times.unknown_in(segment.base_offset, segment.end_offset)
    is_cut = bool(unknown) and unknown[-1][1] == segment.end_offset
    return dataclasses.replace(
        piece,
        times_path=reader.context.path(segment.base_offset, files.APPEND_TIME_SUFFIX),
        times_end=unknown[-1][0] if is_cut else segment.end_offset,
    )


def cut(uncut: UncutPiece, split_bytes: int) -> Iterator[Piece]:
    """The piece in parts of about `split_bytes`, cut behind batches that the index names."""
    piece, segment = uncut.piece, uncut.segment
    count = -(-piece.size_bytes // split_bytes)
    if count <= 1:
        yield piece
        return
    start = piece.start_offset
    for number in range(1, count):
        position = piece.start_position + number * piece.size_bytes // count
        end = _offset_behind(segment, position)
        if end is not None and start < end < piece.end_offset:
            yield _part(segment, piece, start, end)
            start = end
    yield _part(segment, piece, start, piece.end_offset)


def _offset_behind(segment: Segment, position: int) -> int | None:
    """The offset behind the first indexed batch at or after a position, None where there is none.

    An index entry names the last offset of the batch at its position, so offsets from the next one
    on lie behind that batch, and all others before.
    """
    index = segment.offset_index
    slots = range(index.entry_count)
    slot = bisect_left(slots, position, key=lambda number: index.entry(number)[1])
    return index.entry(slot)[0] + 1 if slot < index.entry_count else None


def _part(segment: Segment, piece: Piece, start: int, end: int) -> Piece:
    part = slice_segment(segment, start, end)
    assert part is not None
    return dataclasses.replace(
        piece,
        start_offset=start,
        end_offset=end,
        start_position=max(part.start_position, piece.start_position),
        end_position=min(part.end_position, piece.end_position),
    )
