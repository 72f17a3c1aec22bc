"""Decides when an append starts a new segment, and detects roll storms. Does no I/O.

If the segment's first batch has a timestamp, the segment's age is the append's largest timestamp
minus the first batch's largest timestamp. Otherwise the age is the wall time since the segment was
created or opened. The age is checked only at an append, so an idle segment is never rolled for its
age. Retention, compaction and requests can also roll idle segments.

In a roll storm, each of many successive appends ends a segment. Possible causes are: a producer
whose clock runs further and further ahead, an import of the records of many weeks, or a small limit
for the size of segments or indexes. Records that alternate between two times don't cause a storm,
but only one roll, because the new segment begins with the later time. A storm is detected by
comparing the last rolls.

Source: Kafka 4.x LogSegment.shouldRoll; KIP-33 (rolling by message time).
"""

import random
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from tidelog.amounts import bytes_text, duration_text
from tidelog.config import TopicConfig
from tidelog.lazy_dataclass import dataclass
from tidelog.types import INT32_MAX


class RollReason(StrEnum):
    """Reason why a segment was finished, as `segment-notes` stores it; no value contains a space.

    The first five values are reasons that `should_roll` returns for an append; the other values
    have other causes. `OPEN` means that the segment still takes appends. `UNKNOWN` means that
    another program has rolled the segment, or that the reason was lost.
    """

    SIZE = "size"
    TIME = "time"
    OFFSET_INDEX_FULL = "offset-index-full"
    TIME_INDEX_FULL = "time-index-full"
    OFFSET_OVERFLOW = "offset-overflow"
    REQUEST = "request"
    RETENTION = "retention"
    ATTACH = "attach"
    COMPACTION_LAG = "compaction-lag"
    OPEN = "open"
    UNKNOWN = "unknown"


class SegmentNote(NamedTuple):
    """Why and when a segment was rolled, as stored in `segment-notes`.

    Attributes:
        base_offset: The segment's base offset.
        end_offset: End of the segment's offsets, exclusive, when the note was written.
        last_fingerprint: Fingerprint of the segment's last batch: CRC-32C of this batch's checksum
            field, leader epoch and last offset; 0 if the segment had no batch.
        reason: Why the segment was rolled; OPEN while it takes appends.
        roll_ms: Wall time in ms when the segment was rolled; -1 if unknown.
        seen_ms: Time in ms by which all records below `end_offset` had arrived.
    """

    base_offset: int
    end_offset: int
    last_fingerprint: int
    reason: RollReason
    roll_ms: int
    seen_ms: int


# The class is not frozen, because an instance is created for each append that calls `should_roll`,
# and creating a frozen instance takes three times as long.
@dataclass(slots=True, kw_only=True, eq=False)
class RollFacts:
    """The active segment and a validated append.

    Attributes:
        base_offset: The active segment's base offset.
        size_bytes: Size of the active segment's log file.
        first_timestamp: Largest timestamp of the segment's FIRST batch in ms; -1 if this batch has
            no timestamp or the segment is empty.
        created_ms: Wall time in ms at which the segment was created or opened.
        jitter_ms: Jitter in ms, drawn once for the segment, see `draw_jitter_ms`.
        offset_index_full: Whether the offset index takes no more entries.
        time_index_full: Whether the time index takes no more entries.
        append_bytes: Size of the append.
        append_last_offset: The append's last offset, inclusive.
        append_max_timestamp: The append's largest timestamp in ms, -1 if no record has one.
        now_ms: Wall time in ms.
    """

    base_offset: int
    size_bytes: int
    first_timestamp: int
    created_ms: int
    jitter_ms: int
    offset_index_full: bool
    time_index_full: bool
    append_bytes: int
    append_last_offset: int
    append_max_timestamp: int
    now_ms: int


def draw_jitter_ms(config: TopicConfig, source: random.Random) -> int:
    """Draw a segment's jitter in ms, in [0, min(`segment.jitter.ms`, `segment.ms`))."""
    limit = min(config.segment_jitter_ms, config.segment_ms)
    return source.randrange(limit) if limit > 0 else 0


def should_roll(facts: RollFacts, config: TopicConfig) -> RollReason | None:
    """Return why an append needs a new segment, None if the active segment takes it."""
    if facts.size_bytes > config.segment_size_limit - facts.append_bytes:
        return RollReason.SIZE
    if facts.size_bytes > 0 and _waited_ms(facts) > config.roll_ms - facts.jitter_ms:
        return RollReason.TIME
    if facts.offset_index_full:
        return RollReason.OFFSET_INDEX_FULL
    if facts.time_index_full:
        return RollReason.TIME_INDEX_FULL
    if not 0 <= facts.append_last_offset - facts.base_offset <= INT32_MAX:
        return RollReason.OFFSET_OVERFLOW
    return None


def _waited_ms(facts: RollFacts) -> int:
    if facts.first_timestamp >= 0:
        return facts.append_max_timestamp - facts.first_timestamp
    return facts.now_ms - facts.created_ms


# Number of most recent rolls that are examined. These rolls are a storm if they meet three
# conditions: they happened within the window, most of them have the same reason, and the rolled
# segments are on average filled to less than 1 / SMALL_PART.
STORM_ROLLS: Final = 10

STORM_WINDOW_MS: Final = 3_600_000
SIZE_STORM_WINDOW_MS: Final = 60_000
SMALL_PART: Final = 10

# Rolls by size are a storm only if the segments' mean size in bytes is below this value.
TINY_BYTES: Final = 4 << 20

_BY_APPEND: Final = (
    RollReason.SIZE,
    RollReason.TIME,
    RollReason.OFFSET_INDEX_FULL,
    RollReason.TIME_INDEX_FULL,
    RollReason.OFFSET_OVERFLOW,
)

_SETTINGS: Final = {
    RollReason.SIZE: ("segment.bytes",),
    RollReason.TIME: ("segment.ms", "message.timestamp.before.max.ms"),
    RollReason.OFFSET_INDEX_FULL: ("segment.index.bytes", "index.interval.bytes"),
    RollReason.TIME_INDEX_FULL: ("segment.index.bytes", "index.interval.bytes"),
    RollReason.OFFSET_OVERFLOW: (),
    RollReason.UNKNOWN: (
        "segment.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "segment.bytes",
        "segment.index.bytes",
    ),
}


class Roll(NamedTuple):
    """A segment that was rolled.

    Attributes:
        reason: Why the segment was rolled.
        roll_ms: Wall time in ms when the segment was rolled; -1 if unknown.
        size_bytes: Size of the segment's log file.
        largest_timestamp: Largest record timestamp of the segment in ms, -1 if no record has one.
    """

    reason: RollReason
    roll_ms: int
    size_bytes: int
    largest_timestamp: int


class RollStorm(NamedTuple):
    """Many rolls of almost empty segments in a short time.

    Attributes:
        reason: Most frequent reason of the rolls.
        rolls: Number of rolls.
        span_ms: Time in ms from the first of these rolls to the last; -1 if unknown.
        mean_bytes: Mean size of the segments in bytes.
        is_ahead: Whether any of these segments has a timestamp that was ahead of the wall clock
            when that segment was rolled.
        settings: Settings to change, the most likely first.
    """

    reason: RollReason
    rolls: int
    span_ms: int
    mean_bytes: int
    is_ahead: bool
    settings: tuple[str, ...]

    def __str__(self) -> str:
        when = f" within {duration_text(self.span_ms / 1000)}" if self.span_ms >= 0 else ""
        ahead = " (some have timestamps ahead of the clock)" if self.is_ahead else ""
        limits = f"; settings to check: {', '.join(self.settings)}" if self.settings else ""
        return (
            f"many small segments: the last {self.rolls} segments were finished{when}, most because"
            f" of {self.reason}{ahead}; their mean size is {bytes_text(self.mean_bytes)}{limits}"
        )


def find_storm(rolls: Sequence[Roll], *, segment_bytes: int) -> RollStorm | None:
    """Return the roll storm of the last rolls, None if they are not a storm.

    Args:
        rolls: Finished segments, oldest first; only the last `STORM_ROLLS` are used.
        segment_bytes: Size at which a segment is full.
    """
    last = rolls[-STORM_ROLLS:]
    reason, count = Counter(roll.reason for roll in last).most_common(1)[0] if last else (None, 0)
    if reason not in _SETTINGS or count <= STORM_ROLLS // 2:
        return None
    span_ms = _span_ms(last)
    mean_bytes = sum(roll.size_bytes for roll in last) // len(last)
    is_small = mean_bytes * SMALL_PART < segment_bytes
    if reason is RollReason.SIZE:
        is_storm = mean_bytes < TINY_BYTES and 0 <= span_ms <= SIZE_STORM_WINDOW_MS
    else:
        is_storm = is_small and span_ms <= STORM_WINDOW_MS
    if not is_storm:
        return None
    is_ahead = any(0 <= roll.roll_ms < roll.largest_timestamp for roll in last)
    return RollStorm(reason, len(last), span_ms, mean_bytes, is_ahead, _limits(reason, is_ahead))


def is_by_append(reason: RollReason) -> bool:
    """Return whether a roll's reason means that an append ended the segment."""
    return reason in _BY_APPEND


def _span_ms(rolls: Sequence[Roll]) -> int:
    """Return the time in ms from the first roll to the last; -1 if any roll's time is unknown."""
    times = [roll.roll_ms for roll in rolls]
    return -1 if min(times) < 0 else max(times) - min(times)


def _limits(reason: RollReason, is_ahead: bool) -> tuple[str, ...]:
    first = ("message.timestamp.after.max.ms",) if is_ahead else ()
    return tuple(dict.fromkeys((*first, *_SETTINGS[reason])))
