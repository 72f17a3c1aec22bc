"""Ranges of offsets, and their division among tasks. Needs no Spark.

As in Spark's Kafka connector, ranges are split by their numbers of offsets, because the driver does
not know how many records or bytes a range has.

Source: minPartitions and maxRecordsPerPartition in the guide of Spark's Kafka connector.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.types import TopicPartition


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def offsets(self) -> int:
        """Number of offsets, which may be more than the number of records."""
        return self.end - self.start


def split_ranges(
    ranges: Iterable[OffsetRange], *, min_parts: int = 1, max_records: int | None = None
) -> list[OffsetRange]:
    """Split the ranges into parts, one per task, in order. Empty ranges are left out.

    Args:
        ranges: One range for each partition.
        min_parts: Approximate minimum number of parts. If all ranges together have fewer offsets
            than this number, each part has one offset. Large ranges are split into parts in
            proportion to their numbers of offsets.
        max_records: Maximum number of offsets in a part; None for no maximum.
    """
    parts = [one for one in ranges if one.offsets > 0]
    if max_records is not None:
        parts = [part for one in parts for part in _cut(one, -(-one.offsets // max_records))]
    if min_parts <= len(parts):
        return parts
    counts = _shares(parts, min_parts)
    return [part for one, count in zip(parts, counts, strict=True) for part in _cut(one, count)]


def _shares(ranges: list[OffsetRange], count: int) -> list[int]:
    """Return the number of parts for each range, about `count` in total.

    A range that is too small for two parts is one part. The larger ranges are split into the
    remaining parts, in proportion to their numbers of offsets.
    """
    total = sum(one.offsets for one in ranges)
    is_whole = [_share(one.offsets, total, count) == 1 for one in ranges]
    rest = sum(one.offsets for one, whole in zip(ranges, is_whole, strict=True) if not whole)
    remaining = max(count - sum(is_whole), 1)
    return [
        1 if whole else _share(one.offsets, rest, remaining)
        for one, whole in zip(ranges, is_whole, strict=True)
    ]


def _share(span: int, total: int, count: int) -> int:
    """Return `count * span / total`, rounded (halves up), but at least 1."""
    return max((2 * span * count + total) // (2 * total), 1)


def _cut(one: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """Split a range into `count` parts of about equal size. Empty parts are left out."""
    start = one.start
    for number in range(count):
        end = start + (one.end - start) // (count - number)
        if start < end:
            yield OffsetRange(one.partition, start, end)
        start = end
