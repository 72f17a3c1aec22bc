"""What a cleaning adds to a partition's history: since when tables of the past are exact.

A record goes only for a later one of its key below the run's `mapped_to`. So a table as of T is
exact where T is at or above the times of all records below it: whatever went, what it went for is
in the table or was itself followed by something that is. That bound holds for tombstones that go
later, too. It is a little late, never too early.

Where nothing was ever taken every T is exact. That is proven once, by the offsets: each one from
the log start on has its record. Where records are missing that we did not take (another cleaner
was here), only the append clock can be bound: append times never run back, so what is gone went for
something that was appended by now. What timestamps it had nobody knows.

The file and what readers ask of it: `storage.compaction_history`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.env import FileSystem
from tidelog.record.batch import RecordBatch
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.compaction.eligibility import horizon_of
from tidelog.storage.compaction.job import CleanedGroup
from tidelog.storage.compaction_history import (
    ALWAYS_MS,
    HISTORY_FILE,
    CompactionHistory,
    read_history,
    write_history,
)
from tidelog.storage.segment import Segment, iterate_batches
from tidelog.storage.trust import last_batch
from tidelog.types import UNKNOWN_MS

__all__ = [
    "ALWAYS_MS",
    "HISTORY_FILE",
    "UNKNOWN_MS",
    "CompactionHistory",
    "Run",
    "bounds_before",
    "is_whole",
    "next_history",
    "read_history",
    "write_history",
]

_UNKNOWN: Final = (UNKNOWN_MS, UNKNOWN_MS)


def is_whole(segments: Iterable[Segment], log_start: int) -> bool:
    """Whether every offset from the log start on still has its record: nothing was compacted.

    Zone maps tell it of finished segments; of others the headers of all batches are read. Batches
    of formats 0 and 1 count as not whole there, since a wrapper does not say what it holds.

    Args:
        segments: Oldest first, without gaps between them.
        log_start: Log start offset; what lies below it need not be there.

    Raises:
        CorruptData: A damaged batch lies on the way.
        OSError: The disk failed.
    """
    wanted = log_start
    for segment in segments:
        if segment.end_offset <= log_start:
            continue
        mapped = _records_in(segment) if segment.base_offset >= log_start else None
        if mapped is not None:
            if mapped != segment.end_offset - segment.base_offset:
                return False
            wanted = segment.end_offset
            continue
        for _, batch in iterate_batches(segment, 0, segment.size_bytes):
            if batch.last_offset < wanted:
                continue
            if not isinstance(batch, RecordBatch) or batch.base_offset > wanted:
                return False
            if batch.record_count != batch.last_offset_delta + 1:
                return False
            wanted = batch.next_offset
        if wanted < segment.end_offset:
            return False
    return True


def _records_in(segment: Segment) -> int | None:
    """How many records a finished segment has, markers included; None where no zone map says."""
    found = None if segment.is_active else segment.zones
    if found is None:
        return None
    return sum(block.data_records + block.control_records for block in found.blocks())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A cleaning that is about to be swapped in.

    Attributes:
        groups: What was cleaned.
        mapped: The segments up to `mapped_to`, whose records others may have gone for.
        mapped_to: How far keys were mapped, exclusive.
        known: Base offset and size of every finished segment, before and after the swap.
        now_ms: The job's wall time.
        delete_retention_ms: The job's.
    """

    groups: Sequence[CleanedGroup]
    mapped: Sequence[ClosedSegment]
    mapped_to: int
    known: frozenset[tuple[int, int]]
    now_ms: int
    delete_retention_ms: int


def bounds_before(
    fs: FileSystem, directory: str, segments: Sequence[ClosedSegment], log_start: int
) -> tuple[CompactionHistory | None, tuple[int, int]]:
    """What is known before a run: the history, and since when both clocks are exact.

    Without a history the whole log is looked at, once.

    Returns:
        None where there is no history to go by; then record and append clock, 0 for always, -1
        where records were taken and nobody knows for which.

    Raises:
        CorruptData, OSError: As `is_whole`.
    """
    found = read_history(fs, directory)
    if found is not None:
        return found, (found.record_exact_ms, found.append_exact_ms)
    if not fs.exists(f"{directory}/{HISTORY_FILE}") and is_whole(segments, log_start):
        return None, (ALWAYS_MS, ALWAYS_MS)
    return None, _UNKNOWN


def next_history(
    before: CompactionHistory | None, bounds: tuple[int, int], run: Run
) -> CompactionHistory:
    """The history as it is to be before the first file of a run gets its name."""
    record_ms, append_ms = bounds
    has_taken = any(each.records_after < each.records_before for each in run.groups)
    if has_taken and record_ms != UNKNOWN_MS:
        record_ms = max(record_ms, *(each.largest_timestamp for each in run.mapped), ALWAYS_MS)
    if append_ms == UNKNOWN_MS:
        append_ms = _append_bound(run.now_ms, run)
    elif has_taken:
        append_ms = _append_bound(append_ms, run)
    end = max(run.mapped_to, 0 if before is None else before.end_offset)
    return CompactionHistory(
        end_offset=end,
        record_exact_ms=record_ms,
        append_exact_ms=append_ms,
        run_ms=run.now_ms,
        horizons_ms=_horizons(before, run),
        segments=frozenset(each for each in run.known if each[0] < end),
    )


def _append_bound(before_ms: int, run: Run) -> int:
    """The latest append time below `mapped_to`; the run's own time where some are not known."""
    known = [each.append_times.last_known_ms for each in run.mapped if _is_timed(each)]
    latest = [ms for ms in known if ms is not None]
    is_known = len(latest) == sum(each.size_bytes > 0 for each in run.mapped)
    return max(before_ms, ALWAYS_MS, max(latest, default=0) if is_known else run.now_ms)


def _is_timed(segment: ClosedSegment) -> bool:
    """Whether it has records, and the append time of each is known."""
    last = last_batch(segment)
    if last is None:
        return False
    return not segment.append_times.unknown_in(segment.base_offset, last.next_offset)


def _horizons(before: CompactionHistory | None, run: Run) -> tuple[int, ...]:
    kept = () if before is None else before.horizons_ms
    left = {time for time in kept if time > run.now_ms}
    # Markers go with a run that comes for something else: most of them are needed as long as
    # records of their transactions are there, and no time lets those go.
    if any(each.tombstones_after for each in run.groups):
        left.add(horizon_of(run.now_ms, run.delete_retention_ms))
    return tuple(sorted(left))
