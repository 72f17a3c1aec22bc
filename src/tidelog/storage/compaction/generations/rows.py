"""What follows for the row of a segment: what a scheduler is told of it, what a cleaning leaves."""

from collections.abc import Sequence

from tidelog.storage.compaction.generations.estimates import Counted
from tidelog.storage.compaction.generations.facts import SegmentFacts
from tidelog.storage.compaction.generations.statistics import UNKNOWN, SegmentRow
from tidelog.storage.compaction.job import CleanedGroup


def counted_of(row: SegmentRow, keys: int, found_bytes: int) -> Counted:
    """What the sample says of a segment."""
    return Counted(
        size_bytes=row.size_bytes,
        cohort=UNKNOWN if row.cleaned_to == row.base_offset else row.cleaned_to,
        keys=keys,
        found_bytes=found_bytes,
        weight_bytes=row.weight_bytes,
    )


def facts_of(
    row: SegmentRow, keys: int, found_bytes: int, live: float, whole: float, now_ms: int
) -> SegmentFacts:
    """What a scheduler knows of a segment.

    Args:
        row: What is remembered of it.
        keys: Keys whose last record is expected to be in it.
        found_bytes: Bytes of those records.
        live: Bytes of it that are expected to be alive.
        whole: By what factor sums over the whole sample are wrong.
        now_ms: Wall time.
    """
    total = live
    if row.record_bytes > 0:
        total = row.size_bytes * found_bytes * whole / row.record_bytes
    return SegmentFacts(
        base_offset=row.base_offset,
        end_offset=row.end_offset,
        size_bytes=row.size_bytes,
        cleaned_to=row.cleaned_to,
        live_bytes=live,
        sum_bytes=total,
        keys=keys,
        records=None if row.records == UNKNOWN else row.records,
        has_due=row.due_ms != UNKNOWN and row.due_ms <= now_ms,
    )


def bytes_after(before: Sequence[int], group: CleanedGroup) -> int:
    """Bytes of a cleaned segment's records: as much less as its file is smaller."""
    if UNKNOWN in before or not group.bytes_before:
        return UNKNOWN
    return max(sum(before) * group.bytes_after // group.bytes_before, 1)


def due_after(old: Sequence[SegmentRow], group: CleanedGroup, horizon_ms: int) -> int:
    """When the last of a cleaned segment's tombstones may go, -1 where it has none.

    What this cleaning has met for the first time got its horizon now; the others keep theirs.
    Markers go with a cleaning that comes for something else: most of them are needed as long as
    records of their transactions are there, and then no time lets them go.
    """
    if not group.tombstones_after:
        return UNKNOWN
    if any(row.due_ms == UNKNOWN for row in old):
        return horizon_ms
    return max(row.due_ms for row in old)
