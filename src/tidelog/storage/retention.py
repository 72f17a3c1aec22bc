"""Which segments retention deletes: a decision without effects.

Three passes, each from the oldest segment that is left, each ending at the first segment that
stays: below the log start, over `retention.bytes`, over `retention.ms`. So one segment with a
timestamp in the future keeps all that lie behind it. No segment with offsets at or beyond the high
watermark goes, and the active one only where it is not empty.

Source: Kafka 4.x UnifiedLog.deleteOldSegments; KAFKA-10207, KAFKA-18929, KAFKA-19112; facts 5.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class RetentionRule(StrEnum):
    """Which rule deletes a segment."""

    LOG_START = "log start"
    SIZE = "size"
    TIME = "time"


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
    def cleanup_policy(self) -> AbstractSet[str]:
        """`delete`, `compact`, both or none; without `delete` only the log start counts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What retention looks at in a segment.

    Attributes:
        base_offset: Its base offset.
        size_bytes: Size of its log file.
        largest_timestamp: Largest timestamp in ms, -1 where no record has one.
        mtime_ms: When the log file was last changed; counts where there is no timestamp.
    """

    base_offset: int
    size_bytes: int
    largest_timestamp: int
    mtime_ms: int


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
    by_time = _over_time(config.retention_ms, now_ms)
    plan += _run_pass(segments, len(plan), RetentionRule.TIME, by_time, bounds)
    return plan


def deletes_all(segments: Sequence[SegmentFacts], plan: Sequence[Deletion]) -> bool:
    """Whether a plan takes the active segment too, so that a new one must be rolled first."""
    return bool(segments) and len(plan) == len(segments)


def largest_time_ms(segment: SegmentFacts) -> int:
    """The time that `retention.ms` counts from: largest timestamp, else modification time, ms."""
    return segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.mtime_ms


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


def _over_time(retention_ms: int, now_ms: int) -> _Pass:
    def reason_for(segment: SegmentFacts, _upper: int) -> str | None:
        age_ms = now_ms - largest_time_ms(segment)
        if retention_ms < 0 or age_ms <= retention_ms:
            return None
        clock = "timestamp" if segment.largest_timestamp >= 0 else "modification time"
        return f"largest {clock} is {age_ms} ms old, over retention.ms={retention_ms}"

    return reason_for
