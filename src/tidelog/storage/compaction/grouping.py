"""Which segments become one: runs that fit a segment's limits together. A decision, no effects.

Source: Kafka 4.x Cleaner.groupSegmentsBySize; KAFKA-6264 (offsets must fit 32 bits).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.types import INT32_MAX

# Segments that become one have no more bytes together, whatever `segment.bytes` allows: what is
# written may be longer than what was read, and what does not fit could never be cleaned.
GROUP_BYTES_MAX: Final = INT32_MAX // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSize:
    """What grouping looks at in a finished segment.

    Attributes:
        base_offset: Its base offset.
        end_offset: Offset behind it, exclusive.
        log_bytes: Size of its log file.
        index_bytes: Size of its offset index.
        time_index_bytes: Size of its time index.
    """

    base_offset: int
    end_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What one segment may hold: bytes of its log, and of each of its two indexes."""

    log_bytes: int
    index_bytes: int


def group_segments(segments: Iterable[SegmentSize], limits: GroupLimits) -> list[tuple[int, ...]]:
    """Base offsets of segments that become one, in order; each segment is in one group.

    A segment that is over a limit by itself has a group of its own.
    """
    groups: list[list[SegmentSize]] = []
    for segment in segments:
        if groups and _fits(groups[-1], segment, limits):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [tuple(segment.base_offset for segment in group) for group in groups]


def _fits(group: list[SegmentSize], segment: SegmentSize, limits: GroupLimits) -> bool:
    together = [*group, segment]
    return (
        sum(each.log_bytes for each in together) <= min(limits.log_bytes, GROUP_BYTES_MAX)
        and sum(each.index_bytes for each in together) <= limits.index_bytes
        and sum(each.time_index_bytes for each in together) <= limits.index_bytes
        and segment.end_offset - 1 - group[0].base_offset <= INT32_MAX
    )
