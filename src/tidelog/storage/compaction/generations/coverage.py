"""What is proven of which segment: how far it was cleaned, and what follows from that.

Everything that keeps a deleted key from coming back is decided here, from offsets alone.

The one fact is a segment's `cleaned_to` C: none of its records is superseded by a record with an
offset below C. A segment that was never cleaned has C = its base offset, since what supersedes a
record comes after it. A cleaning that maps the keys of offsets [from, to) drops whatever a record
of that range supersedes; so it raises C to `to` where C >= from, and proves nothing where a hole
between C and `from` remains.

From it follow, for an offset P:

- the part below P is clean, as Kafka's cleaner understands it (no two records below P with the
  same key), if every segment that begins below P has C >= P;
- a tombstone at an offset below P covers nothing any more if every segment before it, and its own,
  has C >= P.

Source: Kafka 4.x LogCleanerManager (the checkpoint); docs/generations.md#what-is-proven.
"""

from collections.abc import Iterable, Iterator, Sequence

from tidelog.storage.compaction.generations.facts import SegmentFacts
from tidelog.storage.compaction.job import Group


def after_cleaning(cleaned_to: int, map_from: int, mapped_to: int) -> int:
    """How far a segment is cleaned once it was rewritten by a map of [map_from, mapped_to)."""
    return max(cleaned_to, mapped_to) if cleaned_to >= map_from else cleaned_to


def after_merging(cleaned_to: Iterable[int]) -> int:
    """How far a segment is cleaned that several were merged into, at least one."""
    return min(cleaned_to)


def clean_end(segments: Sequence[SegmentFacts], log_start_offset: int) -> int:
    """The largest offset below which no older version of any key remains.

    Args:
        segments: All finished segments from the log's start on, in order.
        log_start_offset: The answer where there is none.
    """
    end = segments[-1].end_offset if segments else log_start_offset
    for segment in segments:
        if segment.base_offset >= end:
            break
        end = min(end, segment.cleaned_to)
    return end


def with_drops(
    segments: Sequence[SegmentFacts],
    groups: Iterable[tuple[int, ...]],
    map_from: int,
    map_to: int,
) -> Iterator[Group]:
    """Groups, and whether their tombstones and markers that are past their horizon may go.

    They may where every segment up to the group's last one is cleaned to the group's end by the
    time at which the group is in its place: by this cleaning, if it is rewritten before or with
    it, or by earlier ones.

    Args:
        segments: All finished segments of the partition, in order; nothing older lies elsewhere.
        groups: Base offsets of what becomes one segment each, in order; they are put in their
            places in this order.
        map_from: First offset whose key is mapped, inclusive.
        map_to: Offset behind the last one, exclusive.
    """
    proven = {each.base_offset: each.cleaned_to for each in segments}
    for bases in groups:
        for base in bases:
            proven[base] = after_cleaning(proven[base], map_from, map_to)
        upto = [each for each in segments if each.base_offset <= bases[-1]]
        end = upto[-1].end_offset
        drop = all(proven[each.base_offset] >= end for each in upto)
        yield Group(bases=bases, drop_expired=drop)
