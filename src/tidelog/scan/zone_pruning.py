"""Selects, by zone map, the byte ranges of a finished segment that a time range needs.

A zone is selected by its smallest and its largest time, so create times can have any order. For
zones that are not read, the zone map has the number of records without a time and, in a plan for
counting, the number of records in the range.

This module itself does no I/O, but the zone map that it uses reads its own file.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from tidelog.lazy_dataclass import dataclass
from tidelog.storage.clocks.zone_map import Question, Zone, ZoneMap
from tidelog.types import INT64_MAX, ClockName

# Maximum size in bytes of a gap between two ranges that are read as one range. Reading the gap,
# too, then costs about as much as two separate reads.
GAP_BYTES: Final = 128 << 10

# If records are only counted, the maximum gap is larger by this factor, because counting records is
# faster than decoding them.
_COUNTED_GAPS: Final = 2

# Number of consecutive blocks (of about 2 MB each) whose zones are examined in vain before blocks
# are read without an examination. At most `_BLOCKS_AT_ONCE` blocks in a row are read in this way.
# An examination is in vain if no zone of the block is excluded.
_VAIN_BLOCKS: Final = 4

_BLOCKS_AT_ONCE: Final = 64


class ZoneRange(NamedTuple):
    """Consecutive whole batches.

    Attributes:
        start_position: First byte.
        end_position: Position after the last byte; equal to `start_position` if nothing is read.
        start_offset: First offset, inclusive.
        end_offset: End of the offsets, exclusive.
        without_time: For a range that is not read: number of records that have no time on the
            clock.
        records: For a range that is not read: number of records in the time range.
        opens_all: For a range that is read: whether it has records without a time.
        floor_offset: No batch of the range begins below this offset.
        limit_offset: All offsets of the range's batches are below this offset.
    """

    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    without_time: int = 0
    records: int = 0
    opens_all: bool = False
    floor_offset: int = 0
    limit_offset: int = INT64_MAX


@dataclass(frozen=True, slots=True)
class ZoneQuestion:
    """Parameters for selecting zones.

    Attributes:
        limits: Clock, times and offsets of the requested range. If `has_times` is false, every data
            record at these offsets is in the range.
        has_times: Whether the times of `limits` apply.
        timestamps: Range of timestamps [a, b) in ms, beside times on the append clock; None for
            all.
        is_committed: Whether records of aborted transactions are left out.
        counts: Whether records are only counted, not read.
    """

    limits: Question
    has_times: bool = True
    timestamps: tuple[int, int] | None = None
    is_committed: bool = False
    counts: bool = False


class Verdict(IntEnum):
    """Result of the examination of a zone or of a block of zones."""

    NOTHING = 0  # no record matches
    COUNTED = 1  # the zone's counts are enough; no read is needed
    READ = 2  # some records may match
    WHOLE = 3  # all records match, except records without a time


# Verdict, number of records without a time, and number of records in the range (0 unless the
# verdict is `COUNTED`). This is a plain tuple, which is fast to create, because each zone of a plan
# needs one.
Judged: TypeAlias = tuple[Verdict, int, int]

_NOTHING: Final[Judged] = (Verdict.NOTHING, 0, 0)


def judge_of(question: ZoneQuestion) -> Callable[[Zone], Judged]:
    """Return a function that examines a zone or a block of zones.

    The result is a single function over plain numbers, because it runs for each zone of a plan.
    """
    clock, start_ms, end_ms, first_offset, end_offset = question.limits
    start_ms, end_ms = _with_last_time(start_ms, end_ms)
    has_times, counts, is_committed = question.has_times, question.counts, question.is_committed
    has_timestamps = question.timestamps is not None
    first_ms, last_ms = _with_last_time(*(question.timestamps or (0, 0)))
    on_record = clock is ClockName.RECORD
    counted, read, whole = Verdict.COUNTED, Verdict.READ, Verdict.WHOLE

    def judge(part: Zone) -> Judged:
        first, last, records = part.first_offset, part.last_offset, part.data_records
        if last < first_offset or first >= end_offset:
            return _NOTHING
        if not has_times:
            timed, low, high = records, start_ms, start_ms
        elif on_record:
            timed, low, high = part.timed_records, part.min_record_ms, part.max_record_ms
        else:
            timed, low, high = part.stamped_records, part.min_append_ms, part.max_append_ms
        is_match = timed and low < end_ms and high >= start_ms
        is_filtered = False
        if has_timestamps and is_match:
            early, late = part.min_record_ms, part.max_record_ms
            is_match = part.timed_records and early < last_ms and late >= first_ms
            is_filtered = early < first_ms or late >= last_ms or part.timed_records < records
        if not is_match and timed == records:
            return _NOTHING
        # A zone's counts apply only to the whole zone, and include aborted records.
        is_cut = first < first_offset or last >= end_offset
        if is_match:
            is_cut = is_cut or low < start_ms or high >= end_ms or is_filtered
            if not counts:
                return (read if is_cut else whole), records - timed, 0
        if is_cut or (is_committed and part.is_transactional):
            return read, records - timed, 0
        return counted, records - timed, (timed if is_match else 0)

    return judge


def _with_last_time(start_ms: int, end_ms: int) -> tuple[int, int]:
    """Return the range; an end of INT64_MAX, which means no end, is raised by 1.

    So the range includes the largest time.
    """
    return start_ms, end_ms + (end_ms == INT64_MAX)


def find_ranges(
    zones: ZoneMap, question: ZoneQuestion, *, gap_bytes: int | None = None
) -> Iterator[ZoneRange]:
    """Yield the ranges of a segment to read and the ranges with known counts, in ascending order.

    Args:
        zones: The segment's zone map.
        question: The parameters.
        gap_bytes: Maximum size in bytes of a gap that is read together with the ranges around it.
            Default: `GAP_BYTES`, or twice this size for counts.
    """
    judge = judge_of(question)
    if gap_bytes is None:
        gap_bytes = GAP_BYTES * (_COUNTED_GAPS if question.counts else 1)
    collector = _Collector(question.limits, gap_bytes)
    patience = None if question.counts else _Patience(collector)

    def is_enough(block: Zone) -> bool:
        if judge(block)[0] is not Verdict.READ:
            return True
        return patience is not None and patience.is_over(block)

    is_whole = judge(zones.total)[0] is not Verdict.READ
    parts = (zones.total,) if is_whole else zones.select(is_enough)
    nothing, counted = Verdict.NOTHING, Verdict.COUNTED
    add_counted, extend = collector.add_counted, collector.extend
    for part in parts:
        judged = judge(part)
        verdict = judged[0]
        if verdict is nothing:
            continue
        if verdict is counted:
            add_counted((part, judged))
        elif not extend(part, judged[1]):
            yield from collector.finish()
            collector.begin(part, judged[1])
    yield from collector.finish()


class _Patience:
    """Decides when to read whole blocks, because examining their zones would exclude nothing.

    If times are in random order, every zone may have a match, and the examination of zones takes
    more time than it saves. So if several blocks in a row had to be read completely, some of the
    next blocks are read without examining their zones. The number of such blocks grows as long as
    no zone is excluded. The number of needlessly read blocks is at most half of the number of
    examined blocks.
    """

    def __init__(self, collector: "_Collector") -> None:
        self._collector = collector
        self._looked_into: Zone | None = None
        self._in_vain = 0
        self._left = 0

    def is_over(self, block: Zone) -> bool:
        """Return whether to read a block without an examination of its zones.

        The caller calls this method for each block that may match, in order.
        """
        if self._left:
            self._left -= 1
            return True
        last, self._looked_into = self._looked_into, block
        if last is None:
            return False  # the first block, or the block after unexamined blocks
        self._in_vain = self._in_vain + 1 if self._collector.reads_all_of(last) else 0
        if self._in_vain < _VAIN_BLOCKS:
            return False
        self._looked_into = None
        self._left = min(self._in_vain // 2, _BLOCKS_AT_ONCE) - 1
        return True


class _Collector:
    """Joins zones into two kinds of ranges: ranges to read, and ranges whose counts are known."""

    def __init__(self, question: Question, gap_bytes: int) -> None:
        self._question = question
        self._gap_bytes = gap_bytes
        self._open: tuple[Zone, Zone] | None = None  # first and last part to read
        self._opens_all = False
        self._counted: list[tuple[Zone, Judged]] = []  # parts after `_open`, not read

    def add_counted(self, part: tuple[Zone, Judged]) -> None:
        """Add the next part, whose counts are known."""
        self._counted.append(part)

    def extend(self, part: Zone, without_time: int) -> bool:
        """Extend the current range to the next part.

        Return False if there is no current range, or the gap before the part is too large.
        """
        last = self._open
        if last is None or part.position - last[1].end_position > self._gap_bytes:
            return False
        if self._counted:
            self._opens_all |= any(counts[1] for _, counts in self._counted)
            self._counted = []
        self._opens_all |= without_time > 0
        self._open = (last[0], part)
        return True

    def begin(self, part: Zone, without_time: int) -> None:
        """Start a range with the next part, after `finish` has yielded the previous range."""
        self._open, self._opens_all = (part, part), without_time > 0

    def reads_all_of(self, block: Zone) -> bool:
        """Return whether the current range covers a block.

        The range may lack parts at the start and end of the block, each at most as long as a gap
        that is read anyway.
        """
        if self._open is None:
            return False
        first, last = self._open
        end = last.end_position + self._gap_bytes
        return first.position <= block.position + self._gap_bytes and end >= block.end_position

    def finish(self) -> Iterator[ZoneRange]:
        """Yield the current range and the known counts after it, and clear both."""
        opened, counted, self._open, self._counted = self._open, self._counted, None, []
        if opened is not None:
            first, last = opened
            span = (first.position, last.end_position, *self._offsets(first, last))
            yield ZoneRange(
                *span,
                opens_all=self._opens_all,
                floor_offset=first.first_offset,
                limit_offset=last.last_offset + 1,
            )
        if counted:
            first, last = counted[0][0], counted[-1][0]
            without_time = sum(judged[1] for _, judged in counted)
            records = sum(judged[2] for _, judged in counted)
            span = (first.position, first.position, *self._offsets(first, last))
            yield ZoneRange(*span, without_time, records)

    def _offsets(self, first: Zone, last: Zone) -> tuple[int, int]:
        question = self._question
        start = max(first.first_offset, question.first_offset)
        return start, min(last.last_offset + 1, question.end_offset)
