"""Which local segments may go because the tier has them: decisions without effects.

`local.retention.ms` and `local.retention.bytes` count as `retention.*` do; -2 means those. A local
segment goes only where the tier's row is about exactly its records, and the newest finished one
stays while the active one is empty: opening the log must not need the store.

Source: KIP-405; Kafka 4.x UnifiedLog (localRetentionMs, localRetentionSize).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.config import CLEANUP_DELETE, RetentionClock, TopicConfig
from tidelog.storage.segment.retention import SegmentFacts, plan_retention
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_notes import last_fingerprint
from tidelog.storage.tier.manifest import Manifest, TierSegment
from tidelog.types import INT64_MAX

AS_TOTAL: Final = -2


@dataclass(frozen=True, slots=True)
class LocalRetention:
    """The settings of the local part, in the form that `plan_retention` takes."""

    retention_ms: int
    retention_bytes: int
    tidelog_retention_clock: RetentionClock
    cleanup_policy: tuple[str, ...] = (CLEANUP_DELETE,)

    @classmethod
    def of(cls, config: TopicConfig) -> "LocalRetention":
        """Those of a topic."""
        ms, size = config.local_retention_ms, config.local_retention_bytes
        return cls(
            config.retention_ms if ms == AS_TOTAL else ms,
            config.retention_bytes if size == AS_TOTAL else size,
            config.tidelog_retention_clock,
        )


def is_copied(segment: Segment, row: TierSegment) -> bool:
    """Whether a row is about exactly the records of a local segment, as far as ends tell."""
    return row.end_offset == segment.end_offset and _has_bytes_of(segment, row)


def is_followed_by_hole(segment: Segment, row: TierSegment, manifest: Manifest) -> bool:
    """Whether the file behind a copied local segment is gone, and the tier has its offsets.

    A finished segment ends where the next file begins, so it seems to span those offsets.
    """
    if segment.is_active or row.end_offset >= segment.end_offset:
        return False
    later = (each.base_offset for each in manifest.segments if each.base_offset >= row.end_offset)
    return next(later, segment.end_offset) < segment.end_offset and _has_bytes_of(segment, row)


def _has_bytes_of(segment: Segment, row: TierSegment) -> bool:
    """Whether a log file is a row's, as far as its length and its last batch tell."""
    same = (row.base_offset, row.log_bytes) == (segment.base_offset, segment.size_bytes)
    return same and row.last_fingerprint == last_fingerprint(segment)


def copies_of(local: Sequence[Segment], rows: Sequence[TierSegment]) -> int:
    """How many of the oldest local segments the tier has, without a gap."""
    by_base = {row.base_offset: row for row in rows}
    count = 0
    for segment in local:
        row = by_base.get(segment.base_offset)
        if segment.is_active or row is None or not is_copied(segment, row):
            break
        count += 1
    return count


def plan_release(local: Sequence[SegmentFacts], *, config: TopicConfig, now_ms: int) -> int:
    """How many of the oldest local segments may go, if the tier has them.

    Args:
        local: All local segments, the active one last.
        config: The topic's.
        now_ms: Wall time.
    """
    limit = len(local) - 1
    if local and not local[-1].size_bytes:
        limit -= 1
    if limit <= 0:
        return 0
    plan = plan_retention(
        local,
        config=LocalRetention.of(config),
        log_start=local[0].base_offset,
        log_end=INT64_MAX,
        high_watermark=INT64_MAX,
        now_ms=now_ms,
    )
    return min(limit, len(plan))
