"""How many bytes of log a range of offsets takes, and where so many bytes of it end: directories.

Ranges are cut behind whole batches, since that is what is read. Only indexes and batch headers are
looked at.
"""

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidelog.spark.stream_limits import share
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir
    from tidelog.storage.log_reader import LogReader
    from tidelog.storage.reading import LogSlice
    from tidelog.storage.segment import Segment


def cut_by_bytes(
    log_dir: "LogDir", ranges: Mapping[TopicPartition, tuple[int, int]], max_bytes: int
) -> dict[TopicPartition, int]:
    """Where each range ends if all together are to take about `max_bytes`.

    Args:
        log_dir: The directory, opened after the ranges were found.
        ranges: Offsets [start, end) of partitions, inside their logs.
        max_bytes: What all may take; shared in proportion to what each has.

    Returns:
        The end offset of each, exclusive: behind the last batch that fits, but behind the first
        one at least, so that every partition goes on.
    """
    readers = {name: log_dir.reader(name.topic, name.partition) for name in ranges}
    sizes = {name: _size(readers[name], *ranges[name]) for name in ranges}
    shares = share(sizes, max_bytes)
    return {
        name: end if shares[name] >= sizes[name] else _cut(readers[name], start, end, shares[name])
        for name, (start, end) in ranges.items()
    }


class _Part(NamedTuple):
    """The whole batches of one segment that hold offsets of a range."""

    segment: "Segment"
    start_position: int
    end_position: int

    @property
    def size_bytes(self) -> int:
        """How much they take."""
        return self.end_position - self.start_position


def _parts(reader: "LogReader", start: int, end: int) -> Iterator[_Part]:
    """The range in order. What has gone since it was found is left out."""
    first, last = max(start, reader.log_start_offset), min(end, reader.log_end_offset)
    for part in reader.slices(first, last) if first < last else ():
        # The index is sparse: batches before the first one wanted and behind the last are in it.
        begin = next((position for position, _ in part.batches()), None)
        if begin is not None:
            yield _Part(part.segment, begin, _end_position(part, begin))


def _end_position(part: "LogSlice", begin: int) -> int:
    """The byte behind the last batch of the slice that holds an offset of the range."""
    from tidelog.storage.proof import position_floor

    segment, end = part.segment, part.end_offset
    if end >= segment.end_offset:
        return part.end_position
    close = dataclasses.replace(
        part, start_position=max(begin, position_floor(segment, end)), start_offset=0
    )
    ends = [position + batch.size_bytes for position, batch in close.batches()]
    return max(ends, default=close.start_position)


def _size(reader: "LogReader", start: int, end: int) -> int:
    return sum(part.size_bytes for part in _parts(reader, start, end))


def _cut(reader: "LogReader", start: int, end: int, max_bytes: int) -> int:
    """The offset behind the last whole batch within `max_bytes`, behind the first at least."""
    left = max_bytes
    reached: int | None = None
    for part in _parts(reader, start, end):
        if part.size_bytes > left:
            found = _last_offset(part, part.start_position + left, is_first=reached is None)
            return end if found is None else min(found + 1, end)
        left -= part.size_bytes
        reached = part.segment.end_offset
    return end


def _last_offset(part: _Part, limit: int, *, is_first: bool) -> int | None:
    """The last offset of the last batch that ends at position `limit` or before.

    Where none does: that of the first batch if it is the first of all, else the one before it.
    """
    from tidelog.storage.segment import iterate_batches

    found: int | None = None
    begin = max(part.start_position, _indexed(part.segment, limit))
    for position, batch in iterate_batches(part.segment, begin, part.end_position):
        fits = position + batch.size_bytes <= limit
        if fits or (found is None and is_first):
            found = batch.last_offset
        elif found is None:
            found = part.segment.base_offset - 1
        if not fits:
            break
    return found


def _indexed(segment: "Segment", position: int) -> int:
    """Position of a batch proven to be there that ends at or before `position`; else 0.

    It is close: the one that the entry before the last one up to there names.
    """
    from tidelog.storage.proof import position_floor

    index = segment.offset_index
    slot = bisect_right(range(index.entry_count), position, key=lambda n: index.entry(n)[1]) - 2
    found = position_floor(segment, index.entry(slot)[0]) if slot >= 0 else 0
    return found if found < position else 0
