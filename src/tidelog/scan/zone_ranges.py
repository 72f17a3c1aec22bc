"""Which bytes of a finished segment a range of time needs, by the segment's zone map.

Both the smallest and the largest time of a zone count, so create times may be in any order. What
is not read is known all the same: zones say how many of their records have no time on the clock,
and, for who only counts, how many lie in the range.

Pure but for the zone map, which reads what it needs of its file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidelog.storage.zones import Question, Zone, ZoneMap

# A gap up to this is read with what lies around it: a range on its own costs as much.
GAP_BYTES: Final = 128 << 10


@dataclass(frozen=True, slots=True)
class ZoneRange:
    """Whole batches that follow each other.

    Attributes:
        start_position: First byte.
        end_position: Byte behind the last one; the first byte again where nothing is to be read.
        start_offset: First offset, inclusive.
        end_offset: Offset behind the last one.
        without_time: Records of a range that is not read that have no time on the clock.
        records: Records of a range that is not read that lie in the range of time.
    """

    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    without_time: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class ZoneQuestion:
    """What is asked of zones.

    Attributes:
        wanted: Clock, times and offsets; without times every data record is in the range.
        has_times: Whether the times of `wanted` are meant.
        is_committed: Whether records of aborted transactions don't count.
        counts: Whether records are counted only; else they are wanted themselves.
    """

    wanted: Question
    has_times: bool = True
    is_committed: bool = False
    counts: bool = False

    def is_beside(self, part: Zone) -> bool:
        """Whether none of the offsets is wanted."""
        wanted = self.wanted
        return part.last_offset < wanted.first_offset or part.first_offset >= wanted.end_offset

    def without_time(self, part: Zone) -> int:
        """Data records that have no time on the clock."""
        return part.data_records - part.times(self.wanted.clock)[0] if self.has_times else 0

    def records(self, part: Zone) -> int:
        """Data records of a part inside."""
        return part.times(self.wanted.clock)[0] if self.has_times else part.data_records

    def is_inside(self, part: Zone) -> bool:
        """Whether every data record of the part that has a time is in the range."""
        wanted = self.wanted
        if self.has_times:
            return part.lies_in(wanted)
        return part.first_offset >= wanted.first_offset and part.last_offset < wanted.end_offset

    def must_read(self, part: Zone) -> bool:
        """Whether what is asked can't be answered without reading the part."""
        if self.is_beside(part):
            return False
        may_match = part.may_hold(self.wanted) if self.has_times else part.data_records > 0
        if may_match and not self.counts:
            return True
        if not may_match and not self.without_time(part):
            return False
        # What is told by number must be told of the whole part, and of nothing aborted.
        is_cut = self._is_cut(part) if not may_match else not self.is_inside(part)
        return is_cut or (self.is_committed and part.is_transactional)

    def _is_cut(self, part: Zone) -> bool:
        wanted = self.wanted
        return part.first_offset < wanted.first_offset or part.last_offset >= wanted.end_offset


class _Collector:
    """Puts parts together to ranges: those to be read, and those that are told by number."""

    def __init__(self, question: ZoneQuestion, gap_bytes: int) -> None:
        self._question = question
        self._gap_bytes = gap_bytes
        self._open: list[Zone] = []  # first and last part of the range to be read
        self._told: list[Zone] = []  # parts behind it that need not be read

    def add(self, part: Zone) -> Iterator[ZoneRange]:
        """Take the next part; the ranges that are complete by it."""
        if self._question.is_beside(part):
            return
        if not self._question.must_read(part):
            self._told.append(part)
            return
        if self._open and part.position - self._open[-1].end_position <= self._gap_bytes:
            self._told = []
            self._open = [self._open[0], part]
        else:
            yield from self.finish()
            self._open = [part, part]

    def finish(self) -> Iterator[ZoneRange]:
        """What was taken and not handed out yet."""
        if self._open:
            first, last = self._open
            yield self._range(first, last, first.position, last.end_position)
        told, self._open, self._told = self._told, [], []
        if told:
            yield from self._tell(told)

    def _tell(self, told: list[Zone]) -> Iterator[ZoneRange]:
        question = self._question
        without_time = sum(map(question.without_time, told))
        records = 0
        if question.counts:
            records = sum(question.records(part) for part in told if question.is_inside(part))
        if without_time or records:
            at = told[0].position
            yield self._range(told[0], told[-1], at, at, without_time, records)

    def _range(
        self, first: Zone, last: Zone, start: int, end: int, without_time: int = 0, records: int = 0
    ) -> ZoneRange:
        wanted = self._question.wanted
        first_offset = max(first.first_offset, wanted.first_offset)
        end_offset = min(last.last_offset + 1, wanted.end_offset)
        return ZoneRange(start, end, first_offset, end_offset, without_time, records)


def find_ranges(
    zones: ZoneMap, question: ZoneQuestion, *, gap_bytes: int | None = None
) -> Iterator[ZoneRange]:
    """The ranges of a segment to be read, and those that are told by number, ascending.

    Args:
        zones: Of the segment.
        question: What is asked.
        gap_bytes: Gaps up to this are read as well; `GAP_BYTES` where None.
    """
    collector = _Collector(question, GAP_BYTES if gap_bytes is None else gap_bytes)

    def is_enough(block: Zone) -> bool:
        if not question.must_read(block):
            return True
        # Who counts reads the zones of transactions alone.
        return not question.counts and question.is_inside(block)

    parts = (zones.total,) if is_enough(zones.total) else zones.select(is_enough)
    for part in parts:
        yield from collector.add(part)
    yield from collector.finish()
