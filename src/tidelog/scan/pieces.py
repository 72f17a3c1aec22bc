"""Maps offsets of a partition to byte ranges of its log files, pruned by time.

This module reads only indexes, zone maps and append times. Exception: if a zone cache lacks a zone
map, the zone map is built from the log. The offset index is sparse, so a piece may begin and end
with batches outside its offsets; the reader filters by offset.

A batch is pruned only if it is certain that it has no match. These batches are pruned:

- Record clock, with a zone map: zones whose largest time is before the range, or whose smallest
  time is at or after the range's end. A piece without bytes reports how many records of these zones
  have no time.
- Record clock, without a zone map: whole segments whose largest timestamp is before the range; and
  the start of a segment, up to the last time index entry with a time before the range. Records
  without a time in these batches are not counted. A segment in which no record has a time is not
  pruned.
- Append clock: all offsets whose known append time is outside the range. Zones with unknown append
  times are pruned by the zone map.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Final

from tidelog.env import is_remote, prefetch
from tidelog.lazy_dataclass import dataclass
from tidelog.scan.bounds import Bounds
from tidelog.scan.split import Piece
from tidelog.scan.zone_pruning import ZoneQuestion, ZoneRange, find_ranges
from tidelog.storage import log_files
from tidelog.storage.clocks.zone_map import Question, ZoneMap
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.gaps import lost_at_end
from tidelog.storage.segment.index_proof import first_offset_at, time_floor
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.slices import ensure_there, slice_segment
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP, ClockName, IsolationLevel

# Number of segments whose sidecars are prefetched together. The sidecars of this many segments need
# at most about 16 MB.
_FETCHED_AHEAD: Final = 64
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class UncutPiece:
    """A piece that is possibly too large for one split, and its segment."""

    piece: Piece
    segment: Segment


@dataclass(slots=True, kw_only=True)
class PieceFinder:
    """Finds the pieces of one partition for one plan.

    Attributes:
        reader: The partition.
        bounds: Offsets inside the log, and times.
        clock: Clock of the times.
        isolation: Whether records of open and aborted transactions are read.
        with_append_times: Whether the reader needs append times.
        counts: Whether records are only counted. If true, zones that can be counted from the zone
            map are not read.
        zone_cache: Cache for zone maps that the directory doesn't have. Maps that are missing in
            the cache, too, are built and added to the cache.
        strict: Whether batches that may have a record without a time on the clock are always read.
        sidecar_bytes: Bytes read from zone maps.
        has_skipped: True if batches were skipped because their largest time is before the range.
            The skipped batches may have records without a time.
    """

    reader: LogView
    bounds: Bounds
    clock: ClockName
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    with_append_times: bool = False
    counts: bool = False
    zone_cache: zone_map_files.ZoneCache | None = None
    strict: bool = False
    sidecar_bytes: int = field(default=0, init=False)
    has_skipped: bool = field(default=False, init=False)

    def pieces(self) -> Iterator[UncutPiece]:
        """Yield the pieces that must be read for `bounds`, in order.

        Raises:
            FileNotFoundError: A segment was deleted during the call; refresh the reader and try
                again.
            DamagedLog: Offsets that were on disk before are missing from all files.
        """
        segments = [
            segment
            for segment in self.reader.segments
            if max(self.bounds.start, segment.base_offset)
            < min(self.bounds.end, segment.end_offset)
        ]
        for number, segment in enumerate(segments):
            if number % _FETCHED_AHEAD == 0:
                self._fetch_sidecars(segments[number : number + _FETCHED_AHEAD])
            start = max(self.bounds.start, segment.base_offset)
            end = min(self.bounds.end, segment.end_offset)
            for piece in self._pieces(segment, start, end):
                yield UncutPiece(piece, segment)
            ensure_there(segment, end)

    def _fetch_sidecars(self, segments: Sequence[Segment]) -> None:
        """Prefetch sidecars in parallel from an object store, where each read is a request."""
        context = self.reader.context
        if not is_remote(context.env.files, context.directory):
            return
        finished = [segment for segment in segments if not segment.is_active]
        by_time = self.bounds.time_range is not None
        needs_zones = by_time or self.counts
        suffixes = [log_files.ZONES_SUFFIX] if needs_zones else []
        if self.with_append_times or needs_zones:
            suffixes.append(log_files.APPEND_TIME_SUFFIX)
        bases = [segment.base_offset for segment in finished]
        prefetch(context.env.files, [context.path(b, suffix) for b in bases for suffix in suffixes])
        if needs_zones:
            self.reader.trusted_end()  # loads shared state before the threads start
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda segment: segment.zones_on(self.clock), finished))

    def _pieces(self, segment: Segment, start: int, end: int) -> Iterator[Piece]:
        if self.bounds.time_range is None and not self.counts:
            yield from self._by_offsets(segment, start, end)
        elif self.bounds.time_range is not None and self.clock is ClockName.APPEND:
            yield from self._by_append_time(segment, start, end, *self.bounds.time_range)
        else:
            yield from self._by_record_time(segment, start, end)

    def _by_record_time(self, segment: Segment, start: int, end: int) -> Iterator[Piece]:
        start_ms, end_ms = self.bounds.time_range or (INT64_MIN, INT64_MAX)
        if start_ms >= end_ms and end_ms != INT64_MAX:
            return
        with _Zones(self, segment) as zones:
            if zones is not None:
                yield from self._by_zones(segment, zones, start, end)
                return
        if self.bounds.time_range is None:
            yield from self._by_offsets(segment, start, end)
            return
        if self.strict:
            for piece in self._by_offsets(segment, start, end):
                yield dataclasses.replace(piece, opens_all=True)
            return
        self.has_skipped = True  # records without a time may be skipped, too
        first = _first_in_time(segment, start_ms)
        if NO_TIMESTAMP < segment.largest_timestamp < start_ms:
            lost = lost_at_end(segment)
            if lost is None:
                return
            first = lost.start  # lost records can have any time; the reader reports them
        yield from self._by_offsets(segment, max(start, first), end)

    def _by_append_time(
        self, segment: Segment, start: int, end: int, start_ms: int, end_ms: int
    ) -> Iterator[Piece]:
        by_total = self._by_total(segment, start, end, start_ms, end_ms)
        if by_total is not None:
            yield from by_total
            return
        times = self.reader.append_times_of(segment)
        ranges = times.ranges(start_ms, end_ms, start, end)
        unknown = times.unknown_in(start, end)
        if not self.counts and not unknown:
            for first, last in ranges:
                yield from self._by_offsets(segment, first, last)
            return
        with _Zones(self, segment) as zones:
            for first, last, is_unknown in sorted(
                [(*r, False) for r in ranges] + [(*r, True) for r in unknown]
            ):
                if zones is not None and (is_unknown or self.counts):
                    yield from self._by_zones(segment, zones, first, last, is_unknown=is_unknown)
                else:
                    yield from self._by_offsets(segment, first, last, is_unknown=is_unknown)

    def _by_total(
        self, segment: Segment, start: int, end: int, start_ms: int, end_ms: int
    ) -> Iterator[Piece] | None:
        """Return a tiered segment's pieces for a range of append times, from the tier's manifest.

        The manifest is enough if all append times are known, and either all or none of them are
        inside the range. In all other cases the result is None, and the caller needs the segment's
        append time rows.
        """
        zones = segment.zones_on(ClockName.APPEND) if segment.is_tiered else None
        if zones is None or segment.lost_at_end is not None:
            return None
        if zones.total.stamped_records < zones.total.data_records:
            return None
        total = zones.total
        if end_ms == INT64_MAX:
            end_ms += 1  # no end, so the largest possible time is included
        if total.min_append_ms >= end_ms or total.max_append_ms < start_ms:
            return iter(())
        if not start_ms <= total.min_append_ms <= total.max_append_ms < end_ms:
            return None
        if self.counts:
            return self._by_zones(segment, zones, start, end)
        return self._by_offsets(segment, start, end)

    def _by_offsets(
        self, segment: Segment, start: int, end: int, *, is_unknown: bool = False
    ) -> Iterator[Piece]:
        part = slice_segment(segment, start, end) if start < end else None
        if part is not None:
            at = part.start_position
            whole_range = ZoneRange(
                at,
                part.end_position,
                start,
                end,
                # If the range begins in the middle of the file, an index entry proves a lower bound
                # for the offsets in the range's first batch.
                floor_offset=first_offset_at(segment, at) if at else segment.base_offset,
                limit_offset=part.limit,
            )
            yield self._piece(segment, whole_range, is_unknown=is_unknown)
        elif start < end and not segment.is_active:
            yield self._piece(segment, ZoneRange(0, 0, start, end), is_unknown=is_unknown)

    def _by_zones(
        self, segment: Segment, zones: ZoneMap, start: int, end: int, *, is_unknown: bool = False
    ) -> Iterator[Piece]:
        times = self.bounds.time_range
        question = ZoneQuestion(
            Question(self.clock, *(times or (INT64_MIN, INT64_MAX)), start, end),
            has_times=times is not None,
            timestamps=self.bounds.timestamps,
            is_committed=self.isolation is IsolationLevel.READ_COMMITTED,
            counts=self.counts,
        )
        for part in find_ranges(zones, question):
            yield self._piece(segment, part, is_unknown=is_unknown)
        # No zone covers offsets that are lost after the last zone. The piece for them lets the
        # reader report the loss.
        next_offset = zones.total.last_offset + 1
        ends_early = next_offset < min(end, segment.end_offset)
        if ends_early and lost_at_end(segment) is not None:
            yield from self._by_offsets(segment, max(start, next_offset), end)

    def _piece(self, segment: Segment, part: ZoneRange, *, is_unknown: bool) -> Piece:
        piece = Piece(
            path=segment.log_path,
            identity=identity_text(segment.stat().identity),
            is_closed=segment.has_known_end,
            base_offset=segment.base_offset,
            is_unknown=is_unknown,
            **part._asdict(),
        )
        needs_times = self.with_append_times and piece.size_bytes
        return _with_times(self.reader, segment, piece) if needs_times else piece


class _Zones:
    """Context manager that returns a segment's zone map; None if no zone map can be used.

    A plan may have about 100,000 segments, so a map that is loaded here is kept in memory only in
    the `with` block. While the map is loaded, append times need no check row by row.
    """

    def __init__(self, finder: PieceFinder, segment: Segment) -> None:
        self._finder = finder
        self._segment = segment
        self._zones: ZoneMap | None = None
        self._is_lent = False
        self._bytes_before = 0

    def __enter__(self) -> ZoneMap | None:
        finder, segment = self._finder, self._segment
        if segment.is_active:
            return None
        if finder.clock is ClockName.APPEND:
            # This marks unproven times as unknown. A zone map with such times is not used.
            finder.reader.append_times_of(segment)
        before = segment.loaded_zones
        zones = segment.passing_zones_on(finder.clock)
        if zones is None and finder.zone_cache is not None:
            finder.reader.append_times_of(segment)
            zones = zone_map_files.load_or_build(segment, finder.zone_cache)
        self._zones = zones
        if zones is not None and zones is before:
            self._bytes_before = zones.bytes_read
        elif zones is not None and segment.loaded_zones is None:
            segment.use_zones(zones)
            self._is_lent = True
        return zones

    def __exit__(self, *_: object) -> None:
        if self._is_lent:
            self._segment.use_zones(None, loaded=False)
        if self._zones is not None:
            self._finder.sidecar_bytes += self._zones.bytes_read - self._bytes_before


def _first_in_time(segment: Segment, start_ms: int) -> int:
    """Return an offset below which all records of the segment have times before `start_ms`."""
    floor_ms, offset = time_floor(segment, start_ms - 1)
    return segment.base_offset if floor_ms == NO_TIMESTAMP else offset + 1


def identity_text(identity: tuple[int, int]) -> str:
    """Return a file's identity as text, as in `Piece.identity`."""
    return f"{identity[0]}:{identity[1]}"


def _with_times(reader: LogView, segment: Segment, piece: Piece) -> Piece:
    """Return the piece with the path and the trusted end of its append times."""
    if segment.knows_all_append_times:
        path = segment.context.path(segment.base_offset, log_files.APPEND_TIME_SUFFIX)
        return dataclasses.replace(piece, times_path=path, times_end=segment.end_offset)
    times = reader.append_times_of(segment)
    if not times.row_count:
        return piece
    unknown = times.unknown_in(segment.base_offset, segment.end_offset)
    is_cut = bool(unknown) and unknown[-1][1] == segment.end_offset
    return dataclasses.replace(
        piece,
        times_path=_times_path(reader, segment),
        times_end=unknown[-1][0] if is_cut else segment.end_offset,
    )


def _times_path(reader: LogView, segment: Segment) -> str:
    context = segment.context if segment.is_tiered else reader.context
    return context.path(segment.base_offset, log_files.APPEND_TIME_SUFFIX)


def cut(uncut: UncutPiece, split_bytes: int) -> Iterator[Piece]:
    """Cut a piece into parts of about `split_bytes`; each cut is after an indexed batch."""
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


def cut_offsets(uncut: UncutPiece, piece: Piece, max_offsets: int) -> Iterator[Piece]:
    """Cut a piece into parts of about equal size, of at most `max_offsets` offsets each."""
    span = piece.end_offset - piece.start_offset
    count = -(-span // max_offsets)
    if count <= 1 or not piece.size_bytes:
        yield piece
        return
    start = piece.start_offset
    for number in range(1, count + 1):
        end = piece.start_offset + number * span // count
        yield _part(uncut.segment, piece, start, end)
        start = end


def _offset_behind(segment: Segment, position: int) -> int | None:
    """Return the offset after the first indexed batch at or after a position; None if none exists.

    An index entry has the position of a batch and the batch's last offset. So the offset after the
    batch is the entry's offset + 1.
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
        limit_offset=min(part.limit, piece.limit_offset),
    )
