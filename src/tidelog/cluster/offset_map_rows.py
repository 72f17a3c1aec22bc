"""The rows of an offset map: ranges of source offsets, and where their records went; and merging.

Rows that are merged stay true of all their records (`offset_map` says what a row promises): they
span more, and a dense run that continues another one stays dense.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.types import NO_TIMESTAMP

DENSE: Final = 1


class MapRow(NamedTuple):
    """One range of source offsets, and where its records went in one partition of the target.

    Attributes:
        source: Number in `OffsetMap.sources`.
        source_partition: Partition there.
        target_partition: Partition of the source's target topic.
        flags: DENSE or 0.
        source_start: First offset covered.
        source_end: Offset behind the last one covered.
        target_start: First offset that a record went to.
        target_end: Offset behind the last one that a record went to.
        create_ms_min: Earliest create time, -1 where no record has one.
        create_ms_max: Latest create time, -1 where any record has none.
        arrival_ms: By then all were at the target.
    """

    source: int
    source_partition: int
    target_partition: int
    flags: int
    source_start: int
    source_end: int
    target_start: int
    target_end: int
    create_ms_min: int
    create_ms_max: int
    arrival_ms: int

    @property
    def group(self) -> tuple[int, int, int]:
        """The partitions concerned; rows are only merged where these are the same."""
        return self.source, self.source_partition, self.target_partition

    @property
    def is_dense(self) -> bool:
        """Whether every source offset has its record, all at the same distance."""
        return bool(self.flags & DENSE)


def append_rows(rows: Iterable[MapRow], more: Iterable[MapRow]) -> tuple[MapRow, ...]:
    """Rows with more behind them; dense ones of one arrival that continue each other become one.

    Of different arrivals they stay apart as long as there is room: searches by time need them.
    """
    result = list(rows)
    last = {row.group: at for at, row in enumerate(result)}
    for row in more:
        at = last.get(row.group)
        if at is not None and _is_one_run(result[at], row):
            result[at] = merge(result[at], row)
        else:
            last[row.group] = len(result)
            result.append(row)
    return tuple(result)


def continues(first: MapRow, second: MapRow) -> bool:
    """Whether two dense rows are one run at the same distance."""
    return (
        first.is_dense
        and second.is_dense
        and first.source_end == second.source_start
        and first.target_end == second.target_start
    )


def _is_one_run(first: MapRow, second: MapRow) -> bool:
    return first.arrival_ms == second.arrival_ms and continues(first, second)


def merge(first: MapRow, second: MapRow) -> MapRow:
    """One row that is true of both."""
    known = [row.create_ms_min for row in (first, second) if row.create_ms_min != NO_TIMESTAMP]
    lacks = NO_TIMESTAMP in (first.create_ms_max, second.create_ms_max)
    return MapRow(
        *first.group,
        flags=DENSE if continues(first, second) else 0,
        source_start=min(first.source_start, second.source_start),
        source_end=max(first.source_end, second.source_end),
        target_start=min(first.target_start, second.target_start),
        target_end=max(first.target_end, second.target_end),
        create_ms_min=min(known, default=NO_TIMESTAMP),
        create_ms_max=NO_TIMESTAMP if lacks else max(first.create_ms_max, second.create_ms_max),
        arrival_ms=max(first.arrival_ms, second.arrival_ms),
    )


def thin(rows: tuple[MapRow, ...], rows_max: int) -> tuple[MapRow, ...]:
    """Merge neighbours among the older rows until there are few enough, or no neighbours left."""
    while len(rows) > rows_max:
        half = len(rows) // 2
        merged = _merge_pairs(rows[:half])
        if len(merged) == half:
            # The older half has one row of each group: pair up with the younger.
            merged, half = _merge_pairs(rows), len(rows)
            if len(merged) == half:
                return rows
        rows = (*merged, *rows[half:])
    return rows


def _merge_pairs(rows: tuple[MapRow, ...]) -> tuple[MapRow, ...]:
    """Every second row of a group goes into the one before it."""
    result: list[MapRow] = []
    open_at: dict[tuple[int, int, int], int] = {}
    for row in rows:
        at = open_at.pop(row.group, None)
        if at is None:
            open_at[row.group] = len(result)
            result.append(row)
        else:
            result[at] = merge(result[at], row)
    return tuple(result)


__all__ = ["DENSE", "MapRow", "append_rows", "continues", "merge", "thin"]
