"""Selected records of a partition: the options of `tidelog read`, and the reading.

For as many records as people look at, one by one and without Arrow; `tidelog.scan` does the same at
scale.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import click

from tidelog.arguments import Inexact
from tidelog.cli.options import (
    Encoding,
    ReadFormat,
    clock_option,
    given,
    headers_as_option,
    inexact_option,
    isolation_option,
    key_as_option,
    one_of,
    option,
    topic_argument,
    value_as_option,
    zone_option,
)
from tidelog.cli.places import Place, place_options
from tidelog.record.record import Record, stamp_of
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.index_proof import time_floor
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.slices import (
    AbortedFilter,
    LogSlice,
    checked_records,
    is_hidden,
    slice_segment,
)
from tidelog.timespec import OPEN_END, OPEN_START, TIME_HELP
from tidelog.types import NO_TIMESTAMP, ClockName, IsolationLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of `tidelog read`."""

    topic: str = given(topic_argument)
    place: Place = given(place_options)
    start: str | None = option(
        "--from", metavar="TIME", help=f"First time, or a range A..B. {TIME_HELP}."
    )
    end: str | None = option("--to", metavar="TIME", help="Up to and without this time.")
    clock: ClockName = given(clock_option)
    offset: str | None = option(
        "--offset", metavar="A..B", help="Offsets from A up to and without B."
    )
    partition: int | None = option(
        "--partition", type=int, metavar="N", help="This partition alone."
    )
    isolation: IsolationLevel = given(isolation_option)
    follow: bool = option(
        "--follow", is_flag=True, help="Go on with what is appended; Ctrl-C ends it."
    )
    limit: int | None = option(
        "--limit", "-n", type=click.IntRange(min=0), metavar="N", help="So many records."
    )
    kind: ReadFormat = given(
        one_of(
            "--format",
            "-o",
            "kind",
            kind=ReadFormat,
            default=ReadFormat.TABLE,
            text="How records are written.",
        )
    )
    key_as: Encoding = given(key_as_option)
    value_as: Encoding = given(value_as_option)
    headers_as: Encoding = given(headers_as_option)
    is_table: bool = option("--table", is_flag=True, help="The last record of each key alone.")
    at: str | None = option(
        "--at", metavar="TIME", help=f"With --table: as of this time. {TIME_HELP}."
    )
    inexact: Inexact = given(inexact_option)
    wide: bool = option("--wide", is_flag=True, help="Tables with whole values.")
    zone: str | None = given(zone_option)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is wanted of each partition.

    Attributes:
        start_ms: First time wanted in ms, inclusive; `OPEN_START` for no bound.
        end_ms: Time behind the last one wanted; `OPEN_END` for no bound.
        clock: Which of a record's two times both are about.
        start_offset: First offset wanted; the log start where None.
        end_offset: Offset behind the last one wanted; the log end where None.
        isolation: Whether records of open and aborted transactions are seen.
    """

    start_ms: int = OPEN_START
    end_ms: int = OPEN_END
    clock: ClockName = ClockName.RECORD
    start_offset: int | None = None
    end_offset: int | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED

    @property
    def has_times(self) -> bool:
        """Whether a side of the range in time is bounded."""
        return (self.start_ms, self.end_ms) != (OPEN_START, OPEN_END)

    def holds(self, ms: int | None) -> bool:
        """Whether a time lies in the range; a record without one lies in none."""
        return ms is not None and ms != NO_TIMESTAMP and self.start_ms <= ms < self.end_ms


@dataclass(slots=True)
class Untimed:
    """How many records were met that have no time on the clock that was asked."""

    count: int = 0


def select(
    log: LogView, wanted: Selection, untimed: Untimed
) -> Iterator[tuple[Record, int | None]]:
    """The records wanted, in the order of their offsets, with append times where known (ms).

    What is passed over because no match can be in it is not opened, and nothing in it is counted.

    Raises:
        CorruptData: A damaged batch.
    """
    if wanted.clock is ClockName.APPEND and wanted.start_ms != OPEN_START:
        # Append times are rounded down: what is said to be earlier may have come then.
        start_ms = max(wanted.start_ms - log.append_slack_ms, 0)
        wanted = dataclasses.replace(wanted, start_ms=start_ms)
    visible = log.end_offset(wanted.isolation)
    start = max(wanted.start_offset or 0, log.log_start_offset)
    end = visible if wanted.end_offset is None else min(wanted.end_offset, visible)
    aborted = log.aborted_filter(wanted.isolation, start, end)
    for segment in log.segments:
        for first, last in _ranges(log, segment, start, end, wanted):
            part = slice_segment(segment, first, last)
            if part is not None:
                yield from _matches(log, part, aborted, wanted, untimed)


def _ranges(
    log: LogView, segment: Segment, start: int, end: int, wanted: Selection
) -> list[tuple[int, int]]:
    """Ranges of a segment's offsets that may hold matches or records without a time."""
    first, last = max(start, segment.base_offset), min(end, segment.end_offset)
    if first >= last:
        return []
    if not wanted.has_times:
        return [(first, last)]
    if wanted.clock is ClockName.APPEND:
        times = log.append_times_of(segment)
        known = times.ranges(wanted.start_ms, wanted.end_ms, first, last)
        return sorted(known + times.unknown_in(first, last))
    if NO_TIMESTAMP < segment.largest_timestamp < wanted.start_ms:
        return []
    # Up to an entry's offset no timestamp is larger than the entry's.
    found_ms, offset = time_floor(segment, wanted.start_ms - 1)
    first = first if found_ms == NO_TIMESTAMP else max(first, offset + 1)
    return [(first, last)] if first < last else []


def _matches(
    log: LogView, part: LogSlice, aborted: AbortedFilter, wanted: Selection, untimed: Untimed
) -> Iterator[tuple[Record, int | None]]:
    for record, append_ms in _timed_records(log, part, aborted):
        if not wanted.has_times:
            yield record, append_ms
            continue
        ms = record.timestamp if wanted.clock is ClockName.RECORD else append_ms
        if wanted.holds(ms):
            yield record, append_ms
        elif ms is None or ms == NO_TIMESTAMP:
            untimed.count += 1


def _timed_records(
    log: LogView, part: LogSlice, aborted: AbortedFilter
) -> Iterator[tuple[Record, int | None]]:
    """The data records of a slice with their append times."""
    times = log.append_times_of(part.segment)
    for position, batch in part.batches():
        if is_hidden(part.segment, position, batch, aborted):
            continue
        for record in checked_records(part.segment, position, batch):
            if part.start_offset <= record.offset < part.end_offset:
                known = times.time_at(record.offset)
                yield record, stamp_of(record) if known is None else known
