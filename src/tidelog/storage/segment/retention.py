"""Decides which segments retention deletes, and from which time their age counts. Does no I/O.

Three passes delete segments: first the segments below the log start, then segments over
`retention.bytes`, then segments over `retention.ms`. Each pass begins at the oldest remaining
segment and ends at the first segment that it keeps. Retention never deletes an empty active segment
or a segment with offsets at or above the high watermark.

The third pass deletes a segment if its newest record is older than `retention.ms`.
`tidelog.retention.clock` selects the time of a record:

- `record`: the record's timestamp, as in Kafka. One timestamp in the future keeps the record's
  segment and all later segments, because the pass ends at the first segment that it keeps.
- `append`: the record's append time.
- `record-capped`: the record's timestamp, but at most its append time. Old timestamps have the same
  effect as in Kafka. If a timestamp is after the append time, the append time is used instead.

If a record's append time is unknown, the time in its segment's note is used: by this time all
records of the segment had arrived. Without a note, the file's modification time is used. If
computing the exact time would cost too much, an upper bound is used. Because of the upper bound, a
record may be kept too long, but is never deleted too early.

Source: Kafka 4.x UnifiedLog.deleteOldSegments; KAFKA-10207, KAFKA-18929, KAFKA-19112.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import floor
from typing import NamedTuple, Protocol

from tidelog.amounts import duration_text
from tidelog.config import CLEANUP_DELETE, RetentionClock
from tidelog.types import NO_OFFSET, NO_TIMESTAMP, UNKNOWN_MS


class RetentionRule(StrEnum):
    """Rule that deletes a segment."""

    LOG_START = "log start"
    SIZE = "size"
    TIME = "time"


class TimeBasis(StrEnum):
    """Kind of time from which a segment's age is counted."""

    TIMESTAMP = "record timestamp"
    APPEND_TIME = "append time"
    FIRST_SEEN = "time first seen"
    FILE_TIME = "file modification time"


class CountedTime(NamedTuple):
    """Time from which `retention.ms` is counted.

    Attributes:
        ms: The time in ms.
        basis: Kind of time.
        is_exact: Whether `ms` is exactly the time that the policy defines; otherwise it is an upper
            bound.
        offset: Offset of a record with this time, or the last offset of this record's batch; -1 if
            no record has this time.
    """

    ms: int
    basis: TimeBasis
    is_exact: bool = True
    offset: int = NO_OFFSET

    @property
    def leans_on_file_time(self) -> bool:
        """Whether the time depends on the file's modification time, which a copy changes."""
        return self.basis is TimeBasis.FILE_TIME


class RetentionConfig(Protocol):
    """Settings that retention depends on; `TopicConfig` has them."""

    @property
    def retention_ms(self) -> int:
        """Retention time of records in ms; -1 without a limit."""
        ...

    @property
    def retention_bytes(self) -> int:
        """Maximum size of a partition in bytes; -1 without a limit."""
        ...

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """`delete`, `compact`, both or none; without `delete`, only the first pass runs."""
        ...

    @property
    def tidelog_retention_clock(self) -> RetentionClock:
        """Clock that selects the time of a record."""
        ...


class SegmentTimes(NamedTuple):
    """Known times of a segment's records, all in ms.

    Attributes:
        largest_timestamp: Largest timestamp, -1 if no record has one.
        mtime_ms: Modification time of the log file.
        now_ms: Time of this check; no record was appended later.
        largest_at: Last offset of the batch with `largest_timestamp`, -1 if it was not looked up.
        largest_append_ms: Upper bound of the arrival time of the record with the largest known
            append time; -1 if no append time is known.
        append_slack_ms: Maximum time by which an append may be later than its stored time. The
            stored time is rounded down to `tidelog.append.time.granularity.ms`. `largest_append_ms`
            already includes this difference.
        is_append_known: Whether the append time of every record is known.
        seen_ms: Time by which every record had arrived, from the segment's note; -1 if unknown.
        capped: Largest min(timestamp, append time) of the records, if it was computed. If this
            value is None, a bound is derived from the largest timestamp and the largest append
            time.
    """

    largest_timestamp: int
    mtime_ms: int
    now_ms: int
    largest_at: int = NO_OFFSET
    largest_append_ms: int = UNKNOWN_MS
    append_slack_ms: int = 0
    is_append_known: bool = False
    seen_ms: int = UNKNOWN_MS
    capped: CountedTime | None = None

    @property
    def fallback(self) -> CountedTime:
        """Time that replaces unknown append times."""
        if self.seen_ms != UNKNOWN_MS:
            return CountedTime(self.seen_ms, TimeBasis.FIRST_SEEN)
        # A modification time of 1970 or before means that the file lost its time when it was
        # copied.
        if 0 < self.mtime_ms <= self.now_ms:
            return CountedTime(self.mtime_ms, TimeBasis.FILE_TIME)
        return CountedTime(self.now_ms, TimeBasis.FIRST_SEEN)

    @property
    def arrival(self) -> CountedTime:
        """Largest append time, including the time that replaces unknown append times."""
        is_exact = not self.append_slack_ms
        append_time = CountedTime(self.largest_append_ms, TimeBasis.APPEND_TIME, is_exact)
        if self.is_append_known and self.largest_append_ms != UNKNOWN_MS:
            return append_time
        return max(append_time, self.fallback, key=lambda counted: counted.ms)


class SegmentFacts(NamedTuple):
    """Properties of a segment that retention needs.

    Attributes:
        base_offset: The segment's base offset.
        size_bytes: Size of the segment's log file.
        times: Returns the segment's times. This function may have to read files, so it is called
            only if the third pass reaches the segment.
    """

    base_offset: int
    size_bytes: int
    times: Callable[[], SegmentTimes]


def counted_time(times: SegmentTimes, clock: RetentionClock) -> CountedTime:
    """Return the time from which `retention.ms` is counted, according to a retention clock."""
    largest = times.largest_timestamp
    if clock is RetentionClock.RECORD:
        if largest < 0:
            return CountedTime(times.mtime_ms, TimeBasis.FILE_TIME)
        return CountedTime(largest, TimeBasis.TIMESTAMP, offset=times.largest_at)
    arrival = times.arrival
    if clock is RetentionClock.APPEND or largest <= NO_TIMESTAMP:
        return arrival
    if times.capped is not None:
        return times.capped
    if largest <= arrival.ms:
        return CountedTime(largest, TimeBasis.TIMESTAMP, False, times.largest_at)
    return arrival._replace(is_exact=False, offset=times.largest_at)


class Deletion(NamedTuple):
    """A segment to delete.

    Attributes:
        base_offset: The segment's base offset.
        rule: The rule that deletes the segment.
        reason: The rule with its numbers, for the log message.
    """

    base_offset: int
    rule: RetentionRule
    reason: str


# A retention pass. Its arguments are a segment and the segment's end offset. It returns the reason
# for deleting the segment, or None to keep the segment.
_Pass = Callable[[SegmentFacts, int], str | None]


class _Bounds(NamedTuple):
    """Start, end and high watermark of a log."""

    log_start: int
    log_end: int
    high_watermark: int


def plan_retention(
    segments: Sequence[SegmentFacts],
    *,
    config: RetentionConfig,
    log_start: int,
    log_end: int,
    high_watermark: int,
    now_ms: int,
) -> list[Deletion]:
    """Return the segments to delete, oldest first; these are always the log's oldest segments.

    After the deletion, the log start is the base offset of the first segment that is kept. If all
    segments are deleted (see `deletes_all`), the caller first rolls a new empty active segment at
    the log end.

    Args:
        segments: All segments, oldest first, the active one last.
        config: The topic's settings.
        log_start: Log start offset, inclusive.
        log_end: Log end offset, exclusive.
        high_watermark: Offset below which records are committed.
        now_ms: Wall time in ms.
    """
    bounds = _Bounds(log_start=log_start, log_end=log_end, high_watermark=high_watermark)
    plan = _run_pass(segments, 0, RetentionRule.LOG_START, _below_start(segments, bounds), bounds)
    if CLEANUP_DELETE not in config.cleanup_policy:
        return plan
    by_size = _over_size(segments[len(plan) :], config.retention_bytes)
    plan += _run_pass(segments, len(plan), RetentionRule.SIZE, by_size, bounds)
    by_time = _over_time(config, now_ms)
    plan += _run_pass(segments, len(plan), RetentionRule.TIME, by_time, bounds)
    return plan


def deletes_all(segments: Sequence[SegmentFacts], plan: Sequence[Deletion]) -> bool:
    """Return whether a plan includes the active segment, so that a roll must come first."""
    return bool(segments) and len(plan) == len(segments)


def _run_pass(
    segments: Sequence[SegmentFacts],
    first: int,
    rule: RetentionRule,
    reason_for: _Pass,
    bounds: _Bounds,
) -> list[Deletion]:
    """Return deletions from segment `first` on, up to the first segment that is kept."""
    plan = []
    for slot in range(first, len(segments)):
        segment = segments[slot]
        is_last = slot + 1 == len(segments)
        upper = bounds.log_end if is_last else segments[slot + 1].base_offset
        if bounds.high_watermark < upper or (is_last and segment.size_bytes == 0):
            break
        reason = reason_for(segment, upper)
        if reason is None:
            break
        plan.append(Deletion(segment.base_offset, rule, reason))
    return plan


def _below_start(segments: Sequence[SegmentFacts], bounds: _Bounds) -> _Pass:
    active_base = segments[-1].base_offset if segments else 0

    def reason_for(segment: SegmentFacts, upper: int) -> str | None:
        if segment.base_offset == active_base or upper > bounds.log_start:
            return None
        return f"ends at offset {upper}, the log starts at offset {bounds.log_start}"

    return reason_for


def _over_size(segments: Sequence[SegmentFacts], limit_bytes: int) -> _Pass:
    """Create the pass that applies `retention.bytes`; it must see each segment once, in order."""
    total = sum(segment.size_bytes for segment in segments)
    over = total - limit_bytes

    def reason_for(segment: SegmentFacts, _upper: int) -> str | None:
        nonlocal over
        if limit_bytes < 0 or over < segment.size_bytes:
            return None
        over -= segment.size_bytes
        return (
            f"after its deletion, {limit_bytes + over} of {total} bytes remain, at least"
            f" retention.bytes={limit_bytes}"
        )

    return reason_for


def _over_time(config: RetentionConfig, now_ms: int) -> _Pass:
    def reason_for(segment: SegmentFacts, _upper: int) -> str | None:
        if config.retention_ms < 0:
            return None
        counted = counted_time(segment.times(), config.tidelog_retention_clock)
        age_ms = now_ms - counted.ms
        if age_ms <= config.retention_ms:
            return None
        return (
            f"largest {counted.basis} is {duration_text(age_ms / 1000, rounded=floor)} old, over"
            f" retention.ms={config.retention_ms}"
        )

    return reason_for
