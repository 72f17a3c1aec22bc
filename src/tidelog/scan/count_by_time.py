"""Exact counts of records by hour, day, week or month in a time zone; reads all records' times.

Times are first counted by quarter of an hour. So the required memory depends on the number of
quarters that have records, not on the number of records. Units usually begin at a quarter of an
hour, because UTC offsets of time zones are multiples of 15 minutes. If a unit in the range begins
at another time, InvalidRequest is raised. There are such units in Liberia before 1972, in
Kiritimati before 1979, and in Newfoundland until 2011 (the hours in which clocks changed at 0:01).
"""

from bisect import bisect_right
from collections import Counter
from datetime import tzinfo
from typing import TYPE_CHECKING, Final

from tidelog.amounts import plural
from tidelog.display import LINES_SHOWN, rest_text
from tidelog.errors import InvalidRequest
from tidelog.html_cells import html_table
from tidelog.lazy_dataclass import dataclass
from tidelog.scan.split import RequestedRange
from tidelog.timespec import time_text
from tidelog.timespec.calendar import QUARTER_MS, CalendarUnit, unit_ranges
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

# Maximum number of quarters of an hour with records: 114 years of quarters. Their counts need about
# half a gigabyte of memory.
_QUARTERS_MAX: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class TimeCount:
    """Number of records whose time in ms is in [start, end)."""

    start_ms: int
    end_ms: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CountsByTime:
    """Counts of consecutive ranges of time. A REPL shows them as lines, a notebook as a table.

    Attributes:
        counts: All ranges from the first to the last, including ranges without records. A requested
            start or end cuts the first or last range. Without a start, the counts begin with the
            first range that has records; this range is cut at 1970 if no record has an earlier
            time. Without an end, the counts end with the last range that has records.
        without_time: Records without a time on the clock, which are in no range; None if brokers
            don't report their number.
        is_least: Whether `without_time` may be too small, see `tidelog.scan.count.PartitionCount`.
        without_timestamp: As in `tidelog.scan.count.PartitionCount`.
    """

    counts: tuple[TimeCount, ...]
    without_time: int | None
    is_least: bool = False
    without_timestamp: int = 0

    def __repr__(self) -> str:
        lines = [self._caption()]
        lines += [f"  {start} to {end}  {records:,}" for start, end, records in self._rows()]
        if note := rest_text(len(self.counts)):
            lines.append(f"  {note}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the counts as an HTML table for a notebook."""
        headings = ("start", "end", "records")
        return html_table(self._caption(), headings, self._rows(), rest_text(len(self.counts)))

    def _caption(self) -> str:
        ranges = plural(len(self.counts), "range")
        return f"{plural(self.records, 'record')} in {ranges} of time, times in UTC"

    def _rows(self) -> list[tuple[str, str, int]]:
        return [
            (time_text(one.start_ms), time_text(one.end_ms), one.records)
            for one in self.counts[:LINES_SHOWN]
        ]

    @property
    def records(self) -> int:
        """Records in all ranges."""
        return sum(one.records for one in self.counts)


def by_quarter(batches: "Iterable[pa.RecordBatch]") -> tuple[Counter[int], int]:
    """Count the times in batches that have a single column.

    Returns:
        The number of times by quarter of an hour since the epoch, and the number of rows without a
        time.

    Raises:
        InvalidRequest: Too many quarters of an hour have records to be counted in memory.
    """
    import numpy as np
    import pyarrow as pa

    quarters: Counter[int] = Counter()
    without_time = 0
    for batch in batches:
        column = batch.column(0).drop_null().cast(pa.int64())
        without_time += batch.num_rows - len(column)
        numbers, counts = np.unique(
            column.to_numpy(zero_copy_only=False) // QUARTER_MS, return_counts=True
        )
        quarters.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        if len(quarters) > _QUARTERS_MAX:
            raise InvalidRequest(
                f"the records have times in more than {_QUARTERS_MAX:,} quarters of an hour;"
                " use a shorter range"
            )
    return quarters, without_time


def by_unit(
    quarters: "Mapping[int, int]", unit: CalendarUnit, zone: tzinfo, requested_range: RequestedRange
) -> tuple[TimeCount, ...]:
    """Add up the counts of `by_quarter` by unit, in the requested range of time.

    Raises:
        InvalidRequest: There would be too many ranges, or not all of them would begin at a multiple
            of 15 minutes.
    """
    first_ms = requested_range.start_ms
    last_ms = None if requested_range.end_ms == INT64_MAX else requested_range.end_ms
    if not quarters and (first_ms is None or last_ms is None):
        return ()
    content = (0, 0)
    if quarters:
        content = (min(quarters) * QUARTER_MS, (max(quarters) + 1) * QUARTER_MS)
    ranges = unit_ranges((first_ms, last_ms), content, unit, zone)
    starts = [start for start, _ in ranges]
    records = [0] * len(starts)
    for quarter, count in quarters.items():
        # The quarter of an hour that contains the requested start may begin before it, and is
        # counted in the first range.
        records[max(bisect_right(starts, quarter * QUARTER_MS) - 1, 0)] += count
    return tuple(
        TimeCount(start, end, count) for (start, end), count in zip(ranges, records, strict=True)
    )
