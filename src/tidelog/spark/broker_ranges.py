"""Offset ranges to tasks, as Spark's Kafka connector cuts them: by spans of offsets.

How many records or bytes lie in a span only the broker knows. Pure.
Source: the guide's minPartitions and maxRecordsPerPartition.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.types import (
    TopicPartition,
)


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition."""

    name: TopicPartition
    start: int
    end: int

    @property
    def span(self) -> int:
        """How many offsets; not how many records."""
        return self.end - self.start


def split_ranges(
    ranges: Iterable[OffsetRange], *, min_partitions: int = 1, max_records: int | None = None
) -> list[OffsetRange]:
    """The ranges in the parts that tasks read, in order; empty ones are left out.

    Args:
        ranges: One for each partition.
        min_partitions: About so many parts at least, if there are as many offsets; larger ranges
            are cut in proportion to their spans.
        max_records: No part has more offsets.
    """
    parts = [one for one in ranges if one.span > 0]
    if max_records is not None:
        parts = [part for one in parts for part in _cut(one, -(-one.span // max_records))]
    if min_partitions <= len(parts):
        return parts
    counts = _shares(parts, min_partitions)
    return [part for one, count in zip(parts, counts, strict=True) for part in _cut(one, count)]


def _shares(ranges: list[OffsetRange], count: int) -> list[int]:
    """In how many parts each range is cut, so that there are about `count`.

    Ranges too small for two parts keep one each; the others share what is left.
    """
    total = sum(one.span for one in ranges)
    is_whole = [_share(one.span, total, count) == 1 for one in ranges]
    rest = sum(one.span for one, whole in zip(ranges, is_whole, strict=True) if not whole)
    remaining = max(count - sum(is_whole), 1)
    return [
        1 if whole else _share(one.span, rest, remaining)
        for one, whole in zip(ranges, is_whole, strict=True)
    ]


def _share(span: int, total: int, count: int) -> int:
    """`span / total` of `count`, halves rounded up, at least 1."""
    return max((2 * span * count + total) // (2 * total), 1)


def _cut(one: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """The range in `count` parts, the first ones smaller by one where it can't be even."""
    start = one.start
    for number in range(count):
        end = start + (one.end - start) // (count - number)
        if start < end:
            yield OffsetRange(one.name, start, end)
        start = end
