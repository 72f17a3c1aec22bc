"""Byte ranges of a finished segment that a range of time needs, by its zone map.

Both the smallest and the largest time of a zone count, so create times may have any order. For
skipped zones the number of records without a time is known, and for counts the number of records in
the range.

Pure, except that the zone map reads its file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from tidelog.storage.clocks.zone_map import Question, Zone, ZoneMap
from tidelog.types import INT64_MAX, ClockName

# A gap up to this is read with what lies around it: a range on its own costs as much.
GAP_BYTES: Final = 128 << 10


# For who only counts, a range costs twice as much: what is read is done with so much sooner.
_COUNTED_GAPS: Final = 2


# So many blocks (of about 2 MB) are looked into in vain before any is taken as it is; and no more
# than so many are at once.
_VAIN_BLOCKS: Final = 4


_BLOCKS_AT_ONCE: Final = 64


class ZoneRange(NamedTuple):
    """Whole batches that follow each other.

    Attributes:
        start_position: First byte.
        end_position: Byte behind the last one; the first byte again where nothing is to be read.
        start_offset: First offset, inclusive.
        end_offset: Offset behind the last one.
        without_time: Records of a range that is not read that have no time on the clock.
        records: Records of a range that is not read that lie in the range of time.
        opens_all: Whether records without a time are in a range that is read.
        floor_offset: Offset below which no batch of the range begins.
        limit_offset: Offset that no batch of the range reaches.
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


class Verdict(IntEnum):
    """What has to be done about a part."""

    NOTHING = 0  # nothing in it is asked for
    TOLD = 1  # its own numbers are the answer
    READ = 2  # some of it may be asked for
    WHOLE = 3  # all of it is, but for records without a time


# A verdict, how many records have no time, and, where `TOLD`, how many are in the range: a plain
# tuple, since one is made for each zone of a plan.
Judged: TypeAlias = tuple[Verdict, int, int]


_NOTHING: Final[Judged] = (Verdict.NOTHING, 0, 0)


def judge_of(question: ZoneQuestion) -> Callable[[Zone], Judged]:
    """The judge of zones, and of blocks of them, for one question.

    One function over plain numbers: it is asked for each zone of a plan.
    """
    clock, start_ms, end_ms, first_offset, end_offset = question.wanted
    if end_ms == INT64_MAX:
        end_ms += 1  # no end: the latest time there can be is in the range too
    has_times, counts, is_committed = question.has_times, question.counts, question.is_committed
    on_record = clock is ClockName.RECORD
    told, read, whole = Verdict.TOLD, Verdict.READ, Verdict.WHOLE

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
        if not is_match and timed == records:
            return _NOTHING
        # What is told by number must be told of the whole part, and of nothing aborted.
        is_cut = first < first_offset or last >= end_offset
        if is_match:
            is_cut = is_cut or low < start_ms or high >= end_ms
            if not counts:
                return (read if is_cut else whole), records - timed, 0
        if is_cut or (is_committed and part.is_transactional):
            return read, records - timed, 0
        return told, records - timed, (timed if is_match else 0)

    return judge


def find_ranges(
    zones: ZoneMap, question: ZoneQuestion, *, gap_bytes: int | None = None
) -> Iterator[ZoneRange]:
    """The ranges of a segment to be read, and those that are told by number, ascending.

    Args:
        zones: Of the segment.
        question: What is asked.
        gap_bytes: Gaps up to this are read as well; where None `GAP_BYTES`, twice that to count.
    """
    judge = judge_of(question)
    if gap_bytes is None:
        gap_bytes = GAP_BYTES * (_COUNTED_GAPS if question.counts else 1)
    collector = _Collector(question.wanted, gap_bytes)
    patience = None if question.counts else _Patience(collector)

    def is_enough(block: Zone) -> bool:
        if judge(block)[0] is not Verdict.READ:
            return True
        return patience is not None and patience.is_over(block)

    is_whole = judge(zones.total)[0] is not Verdict.READ
    parts = (zones.total,) if is_whole else zones.select(is_enough)
    nothing, told = Verdict.NOTHING, Verdict.TOLD
    tell, extend = collector.tell, collector.extend
    for part in parts:
        judged = judge(part)
        verdict = judged[0]
        if verdict is nothing:
            continue
        if verdict is told:
            tell((part, judged))
        elif not extend(part, judged[1]):
            yield from collector.finish()
            collector.begin(part, judged[1])
    yield from collector.finish()


class _Patience:
    """Which blocks of zones are read whole, since looking into those before them saved nothing.

    Where times lie anywhere, each zone may hold a match: to judge them takes longer than it saves.
    So when some blocks in a row were read to the last byte all the same, the next few are not
    looked into; the longer it goes on, the more. What is read needlessly is half of that at most.
    """

    def __init__(self, collector: "_Collector") -> None:
        self._collector = collector
        self._looked_into: Zone | None = None
        self._in_vain = 0
        self._left = 0

    def is_over(self, block: Zone) -> bool:
        """Whether to take a block that may hold matches as it is; asked for each in order."""
        if self._left:
            self._left -= 1
            return True
        last, self._looked_into = self._looked_into, block
        if last is None:
            return False  # the first one, or the first behind some that were taken as they were
        self._in_vain = self._in_vain + 1 if self._collector.reads_all_of(last) else 0
        if self._in_vain < _VAIN_BLOCKS:
            return False
        self._looked_into = None
        self._left = min(self._in_vain // 2, _BLOCKS_AT_ONCE) - 1
        return True


class _Collector:
    """Puts parts together to ranges: those to be read, and those that are told by number."""

    def __init__(self, question: Question, gap_bytes: int) -> None:
        self._wanted = question
        self._gap_bytes = gap_bytes
        self._open: tuple[Zone, Zone] | None = None  # first and last part of what is to be read
        self._opens_all = False
        self._told: list[tuple[Zone, Judged]] = []  # what lies behind it and need not be

    def tell(self, part: tuple[Zone, Judged]) -> None:
        """Take the next part where its numbers are the answer."""
        self._told.append(part)

    def extend(self, part: Zone, without_time: int) -> bool:
        """Read the next part with what is open, if it lies near; whether it does."""
        last = self._open
        if last is None or part.position - last[1].end_position > self._gap_bytes:
            return False
        if self._told:
            self._opens_all |= any(told[1] for _, told in self._told)
            self._told = []
        self._opens_all |= without_time > 0
        self._open = (last[0], part)
        return True

    def begin(self, part: Zone, without_time: int) -> None:
        """Read the next part; what was taken before it is handed out."""
        self._open, self._opens_all = (part, part), without_time > 0

    def reads_all_of(self, block: Zone) -> bool:
        """Whether all of a block is in what is to be read, but for gaps that are read over."""
        if self._open is None:
            return False
        first, last = self._open
        end = last.end_position + self._gap_bytes
        return first.position <= block.position + self._gap_bytes and end >= block.end_position

    def finish(self) -> Iterator[ZoneRange]:
        """What was taken and not handed out yet."""
        opened, told, self._open, self._told = self._open, self._told, None, []
        if opened is not None:
            first, last = opened
            places = (first.position, last.end_position, *self._offsets(first, last))
            yield ZoneRange(
                *places,
                opens_all=self._opens_all,
                floor_offset=first.first_offset,
                limit_offset=last.last_offset + 1,
            )
        if told:
            first, last = told[0][0], told[-1][0]
            without_time = sum(judged[1] for _, judged in told)
            records = sum(judged[2] for _, judged in told)
            places = (first.position, first.position, *self._offsets(first, last))
            yield ZoneRange(*places, without_time, records)

    def _offsets(self, first: Zone, last: Zone) -> tuple[int, int]:
        question = self._wanted
        start = max(first.first_offset, question.first_offset)
        return start, min(last.last_offset + 1, question.end_offset)
