"""The cleanable part of a log, and whether its cleaning is due. Pure.

A log is a cleaned tail followed by a dirty head. The head begins at the cleaner's checkpoint and
ends at the first segment that must not be cleaned: the active segment, a segment with records of an
open transaction, a segment that is not durable yet, or a segment with records younger than
`min.compaction.lag.ms`.

The head makes a cleaning due in three cases: its bytes reach a limit; its share of the cleanable
bytes exceeds a limit; or the age of its records exceeds a limit. The tail makes a cleaning due when
the delete horizon of its tombstones has passed, even if there is no head. So the tombstones of an
idle log are removed, too.

Source: Kafka 4.x LogCleanerManager; KAFKA-8522 for delete horizons.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, Protocol

from tidelog.amounts import share_text
from tidelog.config import TopicConfig
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec import time_text
from tidelog.types import INT64_MAX

NEVER_BYTES: Final = -1
# The cleaning that removes a tombstone is due at most (retention / HORIZON_PART) after the
# tombstone's horizon. So one cleaning can remove all tombstones whose horizons are close together.
HORIZON_PART: Final = 10


class DueReason(StrEnum):
    """Reason to clean a log."""

    RATIO = "dirty ratio"
    BYTES = "dirty bytes"
    LAG = "maximum lag"
    HORIZON = "delete horizon"
    REQUEST = "request"
    SPACE = "space bound"


class WaitingSegment(Protocol):
    """Times from which a segment's age is computed, for `max.compaction.lag.ms`."""

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the segment's first batch in ms; -1 if there is no batch."""
        ...

    @property
    def first_append_ms(self) -> int:
        """First known append time of the segment in ms, -1 if none is known."""
        ...


class CleanableSegment(WaitingSegment, Protocol):
    """Segment with the attributes that the rules use.

    The times are computed only if a setting needs them.
    """

    @property
    def base_offset(self) -> int:
        """Base offset of the segment."""
        ...

    @property
    def end_offset(self) -> int:
        """Offset after the segment's last offset."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of the segment's log file in bytes."""
        ...

    @property
    def youngest_ms(self) -> int:
        """Time in ms at which the segment's minimum compaction lag begins; -1 if unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """State of a log at the time of the check.

    Attributes:
        segments: The finished segments that are inspected, oldest first.
        active_base: Base offset of the segment after `segments`: the active segment, or the first
            local segment if segments of a tier are inspected.
        log_start: Log start offset.
        log_end: Log end offset.
        last_stable_offset: Offset below which no transaction is open.
        durable_end: Offset below which everything is on disk.
        checkpoint: First offset of the head as last stored; None if it was never stored.
        horizons_ms: Delete horizons of the tombstones in the tail, in ms.
    """

    segments: Sequence[CleanableSegment]
    active_base: int
    log_start: int
    log_end: int
    last_stable_offset: int
    durable_end: int
    checkpoint: int | None
    horizons_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningDecision:
    """The cleanable part of a log, and whether a cleaning is due.

    Attributes:
        first_dirty: First offset of the head, inclusive.
        end: End of the cleanable head, exclusive: the base offset of a segment, or `first_dirty` if
            no segment of the head is cleanable.
        clean_bytes: Bytes of the segments that end at or before `first_dirty`.
        dirty_bytes: Bytes of the cleanable segments that end after `first_dirty`.
        due: Reason for a cleaning that is due now; None if no cleaning is due.
        reason: Text for users: the reason for the cleaning, with figures, or the reason why none is
            due.
        is_reset: Whether the checkpoint was outside the log and has to be written again.
    """

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    due: DueReason | None
    reason: str
    is_reset: bool

    @property
    def ratio(self) -> float:
        """Dirty share of the cleanable bytes, 0 to 1; 0 if there are no cleanable bytes."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def judge(
    state: LogState, config: TopicConfig, now_ms: int, *, is_asked: bool = False
) -> CleaningDecision:
    """Decide which part of a log may be cleaned, and whether a cleaning is due.

    Args:
        state: State of the log.
        config: The topic's settings.
        now_ms: Wall time.
        is_asked: Whether a cleaning was requested. A requested cleaning is due if the log has
            cleanable bytes.
    """
    first_dirty, is_reset = _first_dirty(state)
    end, what_ends = _uncleanable(state, config, first_dirty, now_ms)
    head = [each for each in state.segments if first_dirty < each.end_offset <= end]
    dirty_bytes = sum(each.size_bytes for each in head)
    clean_bytes = sum(each.size_bytes for each in state.segments if each.end_offset <= first_dirty)
    decision = CleaningDecision(
        first_dirty=first_dirty,
        end=max(end, first_dirty),
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        due=None,
        reason="",
        is_reset=is_reset,
    )
    due, reason = _due(decision, state, config, now_ms, head)
    if due is None and is_asked and (dirty_bytes or clean_bytes):
        due, reason = DueReason.REQUEST, "it was requested"
    if due is None and not dirty_bytes:
        reason = f"nothing is dirty below offset {end}, where {what_ends}"
    return replace(decision, due=due, reason=reason)


def _first_dirty(state: LogState) -> tuple[int, bool]:
    """Return the first offset of the head, and whether the checkpoint is outside the log."""
    checkpoint = state.checkpoint
    if checkpoint is None:
        return state.log_start, False
    if not state.log_start <= checkpoint <= state.log_end:
        return state.log_start, True
    return checkpoint, False


def _uncleanable(
    state: LogState, config: TopicConfig, first_dirty: int, now_ms: int
) -> tuple[int, str]:
    """Return the first offset that must not be cleaned (a segment's base), and the reason."""
    bounds = [
        (state.active_base, "the active segment begins"),
        (state.last_stable_offset, "a transaction is open"),
        (state.durable_end, "records are not synced yet"),
    ]
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        for segment in state.segments:
            is_dirty = segment.end_offset > first_dirty
            if is_dirty and segment.youngest_ms > youngest_ms:
                bounds.append((segment.base_offset, "records are younger than the minimum lag"))
                break
    offset, what = min(bounds, key=lambda bound: bound[0])
    ends = (each.end_offset for each in state.segments if each.end_offset <= offset)
    first = state.segments[0].base_offset if state.segments else state.active_base
    return max(ends, default=min(first, offset)), what


def _due(
    decision: CleaningDecision,
    state: LogState,
    config: TopicConfig,
    now_ms: int,
    head: Sequence[CleanableSegment],
) -> tuple[DueReason | None, str]:
    dirty, ratio = decision.dirty_bytes, decision.ratio
    share = f"{dirty:,} of {dirty + decision.clean_bytes:,} bytes are dirty ({share_text(ratio)})"
    limit = config.tidelog_compaction_min_dirty_bytes
    if dirty and ratio > config.min_cleanable_dirty_ratio:
        return DueReason.RATIO, share
    if dirty and limit != NEVER_BYTES and dirty >= limit:
        return DueReason.BYTES, f"{dirty:,} bytes are dirty, compaction begins at {limit:,}"
    waits = (waits_since_ms(each, config, now_ms) for each in head)
    oldest_ms = min((ms for ms in waits if ms is not None), default=None)
    if oldest_ms is not None:
        return DueReason.LAG, f"a record has been waiting since {time_text(oldest_ms)} UTC"
    passed = [time for time in state.horizons_ms if time <= now_ms]
    if passed and decision.clean_bytes:
        return DueReason.HORIZON, f"tombstones are removable since {time_text(passed[0])} UTC"
    return None, share


def waits_since_ms(segment: WaitingSegment, config: TopicConfig, now_ms: int) -> int | None:
    """Return the time in ms since which an overdue segment has been waiting; None if not overdue.

    The wait begins at the later of the first batch's timestamp and the first append time. If the
    wait began at the timestamp, a backfill of old records would be overdue from its first record
    on, and would be cleaned at every check. An overdue active segment is rolled even if nothing is
    appended. Kafka rolls such a segment only on an append (KAFKA-20664), so Kafka never cleans an
    idle head.
    """
    if config.max_compaction_lag_ms == INT64_MAX:
        return None
    latest_ms = now_ms - config.max_compaction_lag_ms
    timestamp_ms = segment.first_timestamp
    if not 0 < timestamp_ms < latest_ms:
        return None
    since_ms = max(timestamp_ms, segment.first_append_ms)
    return since_ms if since_ms < latest_ms else None


def horizon_of(now_ms: int, delete_retention_ms: int) -> int:
    """Return the time in ms when a cleaning is due for tombstones first cleaned at `now_ms`.

    That cleaning removes the tombstones. The time is at most a tenth of the retention after the
    tombstones' delete horizon. So one cleaning can remove the tombstones of several cleanings that
    followed one another quickly.
    """
    step = max(delete_retention_ms // HORIZON_PART, 1)
    return min(-(-(now_ms + delete_retention_ms) // step) * step, INT64_MAX)
