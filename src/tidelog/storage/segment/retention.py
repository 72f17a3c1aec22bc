"""Segments that retention deletes, and the time that counts. Pure.

Three passes, each from the oldest segment that is left, each ending at the first segment that
stays: below the log start, over `retention.bytes`, over `retention.ms`. No segment with offsets at
or beyond the high watermark goes, and the active one only where it is not empty.

By time a segment goes when its newest record is older than `retention.ms`. Which time a record
counts with is `tidelog.retention.clock`:

- `record`: its timestamp, Kafka's rule. One timestamp in the future keeps the segment and, since
  the pass ends there, all that lie behind it.
- `append`: its append time.
- `record-capped`: its timestamp, but at most its append time. Old timestamps act as in Kafka, one
  in the future stops counting when it would have been written honestly.

A record whose append time is not known counts as appended when its segment was first seen, or when
the file was last changed, the earlier of the two: no record came later than that. Where the exact
time is not worth its price a bound stands in for it, never an earlier time: it keeps records.

Source: Kafka 4.x UnifiedLog.deleteOldSegments; KAFKA-10207, KAFKA-18929, KAFKA-19112; facts 5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from tidelog.config import RetentionClock
from tidelog.types import NO_OFFSET, NO_TIMESTAMP, UNKNOWN_MS


class RetentionRule(StrEnum):
    """Which rule deletes a segment."""

    LOG_START = "log start"
    SIZE = "size"
    TIME = "time"


class TimeBasis(StrEnum):
    """What kind of time a segment's age is counted from."""

    TIMESTAMP = "record timestamp"
    APPEND_TIME = "append time"
    FIRST_SEEN = "time first seen"
    FILE_TIME = "file modification time"


class CountedTime(NamedTuple):
    """The time that `retention.ms` counts from.

    Attributes:
        ms: The time in ms.
        basis: What kind of time it is.
        is_exact: Whether it is the policy's time to the ms; else it is not below that.
        offset: A record that it is true of, or the last one of that record's batch; -1 where it
            is no record's.
    """

    ms: int
    basis: TimeBasis
    is_exact: bool = True
    offset: int = NO_OFFSET

    @property
    def leans_on_file_time(self) -> bool:
        """Whether a copy that changes the times of files would change this time."""
        return self.basis is TimeBasis.FILE_TIME


class RetentionConfig(Protocol):
    """The settings that retention depends on; `TopicConfig` has them."""

    @property
    def retention_ms(self) -> int:
        """How long records are kept; -1 for ever."""
        ...

    @property
    def retention_bytes(self) -> int:
        """How much of a partition is kept, in bytes; -1 for all."""
        ...

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """`delete`, `compact`, both or none; without `delete` only the log start counts."""
        ...

    @property
    def tidelog_retention_clock(self) -> RetentionClock:
        """Which time of a record counts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTimes:
    """What is known of the times of a segment's records, all in ms.

    Attributes:
        largest_timestamp: Largest timestamp, -1 where no record has one.
        largest_at: Last offset of the batch that has it, -1 where nobody looked.
        mtime_ms: When the log file was last changed.
        largest_append_ms: Largest append time that is known, -1 where none is.
        append_slack_ms: So much later an append may have been than its time says: that is rounded
            down to `tidelog.append.time.granularity.ms`. `largest_append_ms` is without rounding.
        is_append_known: Whether that of every record is.
        seen_ms: Every record was there by then, as it was noted once; -1 where it was not.
        now_ms: When this was looked at: nothing was appended later.
        capped: The largest of the records' times, each at most its append time, where somebody
            looked closer; else a bound is made of the largest of both.
    """

    largest_timestamp: int
    mtime_ms: int
    largest_at: int = NO_OFFSET
    largest_append_ms: int = UNKNOWN_MS
    append_slack_ms: int = 0
    is_append_known: bool = False
    seen_ms: int = UNKNOWN_MS
    now_ms: int
    capped: CountedTime | None = None

    @property
    def fallback(self) -> CountedTime:
        """What stands in for an append time that is not known."""
        if self.seen_ms != UNKNOWN_MS:
            return CountedTime(self.seen_ms, TimeBasis.FIRST_SEEN)
        # A file from 1970 or before has lost its time in a copy.
        if 0 < self.mtime_ms <= self.now_ms:
            return CountedTime(self.mtime_ms, TimeBasis.FILE_TIME)
        return CountedTime(self.now_ms, TimeBasis.FIRST_SEEN)

    @property
    def arrival(self) -> CountedTime:
        """The largest append time, the fallback counted in where some are not known."""
        is_exact = not self.append_slack_ms
        append_time = CountedTime(self.largest_append_ms, TimeBasis.APPEND_TIME, is_exact)
        if self.is_append_known and self.largest_append_ms != UNKNOWN_MS:
            return append_time
        return max(append_time, self.fallback, key=lambda counted: counted.ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What retention looks at in a segment.

    Attributes:
        base_offset: Its base offset.
        size_bytes: Size of its log file.
        times: Its times; asked only where the pass by time comes to the segment, since they may
            have to be read.
    """

    base_offset: int
    size_bytes: int
    times: Callable[[], SegmentTimes]


def counted_time(times: SegmentTimes, clock: RetentionClock) -> CountedTime:
    """The time that `retention.ms` counts from under a policy."""
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


@dataclass(frozen=True, slots=True)
class Deletion:
    """A segment that goes.

    Attributes:
        base_offset: Its base offset.
        rule: The rule that deletes it.
        reason: The rule with its figures, for the log.
    """

    base_offset: int
    rule: RetentionRule
    reason: str


# A pass: the segment and its upper bound in, the reason for its deletion or None out.
_Pass = Callable[[SegmentFacts, int], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """Where the log starts, ends and is committed."""

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
    """The segments to delete, oldest first; always the oldest ones of the log.

    The log start then moves to the first segment that stays. Where all go (see `deletes_all`), a
    new empty active segment is rolled at the log end first.

    Args:
        segments: All segments, oldest first, the active one last.
        config: The topic's settings.
        log_start: Log start offset, inclusive.
        log_end: Log end offset, exclusive.
        high_watermark: Offsets below it are committed.
        now_ms: Wall time.
    """
    bounds = _Bounds(log_start=log_start, log_end=log_end, high_watermark=high_watermark)
    plan = _run_pass(segments, 0, RetentionRule.LOG_START, _below_start(segments, bounds), bounds)
    if "delete" not in config.cleanup_policy:
        return plan
    by_size = _over_size(segments[len(plan) :], config.retention_bytes)
    plan += _run_pass(segments, len(plan), RetentionRule.SIZE, by_size, bounds)
    by_time = _over_time(config, now_ms)
    plan += _run_pass(segments, len(plan), RetentionRule.TIME, by_time, bounds)
    return plan


def deletes_all(segments: Sequence[SegmentFacts], plan: Sequence[Deletion]) -> bool:
    """Whether a plan takes the active segment too, so that a new one must be rolled first."""
    return bool(segments) and len(plan) == len(segments)


def _run_pass(
    segments: Sequence[SegmentFacts],
    first: int,
    rule: RetentionRule,
    reason_for: _Pass,
    bounds: _Bounds,
) -> list[Deletion]:
    """Deletions from segment `first` on, up to the first that stays."""
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
        return f"ends at {upper}, the log starts at {bounds.log_start}"

    return reason_for


def _over_size(segments: Sequence[SegmentFacts], limit_bytes: int) -> _Pass:
    """A pass that remembers how much is over the limit: call it once for each segment in order."""
    total = sum(segment.size_bytes for segment in segments)
    over = total - limit_bytes

    def reason_for(segment: SegmentFacts, _upper: int) -> str | None:
        nonlocal over
        if limit_bytes < 0 or over < segment.size_bytes:
            return None
        over -= segment.size_bytes
        return f"the log of {total} bytes stays at or above retention.bytes={limit_bytes} without"

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
            f"largest {counted.basis} is {age_ms} ms old, over retention.ms={config.retention_ms}"
        )

    return reason_for
