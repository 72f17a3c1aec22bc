"""When an append starts a new segment: a decision without effects.

Time is that of messages where the segment's first batch has a timestamp, else wall time since the
segment was opened. No timer rolls an idle segment: only an append asks.

Source: Kafka 4.x LogSegment.shouldRoll; facts 3.4.
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tidelog.types import INT32_MAX


class RollReason(StrEnum):
    """Why a segment was finished; words without blanks, since `segment-notes` holds them.

    The first five are what `should_roll` says of an append, the others what else ends a segment.
    `OPEN` is one that takes appends still, `UNKNOWN` one that somebody else has rolled.
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


class RollConfig(Protocol):
    """The settings that a roll depends on; `TopicConfig` has them."""

    @property
    def segment_size_limit(self) -> int:
        """Largest size of a segment's log file, in bytes."""
        ...

    @property
    def segment_ms(self) -> int:
        """How long a segment takes appends by `segment.ms`."""
        ...

    @property
    def roll_ms(self) -> int:
        """How long it does, the maximum compaction lag of a compacted topic counted in."""
        ...

    @property
    def segment_jitter_ms(self) -> int:
        """At most how much earlier a segment may roll, so that not all roll at once."""
        ...


# Made for every append, and a frozen one takes three times as long to make.
@dataclass(slots=True, kw_only=True)
class RollFacts:
    """The active segment and an append that was validated.

    Attributes:
        base_offset: The active segment's base offset.
        size_bytes: Size of its log file.
        first_timestamp: Largest timestamp of its FIRST batch in ms; -1 where it has none, or where
            the segment is empty.
        created_ms: Wall time at which the segment was created or opened.
        jitter_ms: Drawn once for the segment, see `draw_jitter_ms`.
        offset_index_full: Whether the offset index takes no more entries.
        time_index_full: Whether the time index takes no more entries.
        append_bytes: Size of the append.
        append_last_offset: The append's last offset, inclusive.
        append_max_timestamp: The append's largest timestamp in ms, -1 for none.
        now_ms: Wall time.
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


def draw_jitter_ms(config: RollConfig, source: random.Random) -> int:
    """A segment's jitter in ms, in [0, min(`segment.jitter.ms`, `segment.ms`))."""
    limit = min(config.segment_jitter_ms, config.segment_ms)
    return source.randrange(limit) if limit > 0 else 0


def should_roll(facts: RollFacts, config: RollConfig) -> RollReason | None:
    """Why the append must go to a new segment, None where the active one takes it."""
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
