"""Whether the index files of a finished segment can be believed, before they lead anybody astray.

Order and bounds are checked when they are loaded (`index_files`), which says nothing of entries
that are in order and wrong, or gone. Where a zone map is there, it knows both files' checksums: a
proof. Else the last entries are held against the log: the offset index must lead to the batch that
it names, and no batch behind the last time entry may be later than that says. So an index that was
cut, is that of an older log, or ends in zeros is found; it would hide records from searches by
time, and give them to retention. A wrong entry in the middle of a foreign segment's index is found
where it is used (`proof`), and by `tidelog doctor`.

Owns no state. Source: KAFKA-10207, KAFKA-19200.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from tidelog.errors import CorruptData
from tidelog.record.batch import HEADER_SIZE
from tidelog.record.coding import crc32c
from tidelog.record.views import Batch, walk
from tidelog.storage import files
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.proof import batch_at, misfit
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.txn_index import TxnIndex
from tidelog.storage.zones import FileSum
from tidelog.types import NO_TIMESTAMP

Indexes = tuple[OffsetIndex, TimeIndex]


class LogBytes(Protocol):
    """What is asked of a segment: its log file's bytes."""

    @property
    def base_offset(self) -> int:
        """First offset that the segment may hold."""
        ...

    @property
    def log_path(self) -> str:
        """Path of the log file."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of the log file."""
        ...

    @property
    def is_mapped(self) -> bool:
        """Whether `view` costs nothing."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the log file."""
        ...

    def walk_file(self, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """The batches in bytes [start, end), read by position and never mapped."""
        ...


def index_problem(
    segment: LogBytes, indexes: Indexes, sums: Mapping[str, FileSum] | None
) -> str | None:
    """Why both indexes of a finished segment must be built anew, None where they need not.

    Args:
        segment: Whose they are.
        indexes: As loaded, in order and without tails.
        sums: What a zone map of this log knows of the files beside it, None without one.
    """
    suffixes = (files.OFFSET_INDEX_SUFFIX, files.TIME_INDEX_SUFFIX)
    if sums is not None and sums.keys() >= set(suffixes):
        for suffix, index, name in zip(suffixes, indexes, ("offset", "time"), strict=True):
            if sums[suffix] != FileSum(index.size_bytes, crc32c(index.encoded)):
                return f"{segment.log_path}: its {name} index is not the one its zone map knows"
        return None
    return _last_offset_problem(segment, indexes[0]) or _last_time_problem(segment, indexes)


def txn_problem(index: TxnIndex, sums: Mapping[str, FileSum]) -> str | None:
    """Why an index of aborted transactions is not the one that a zone map knows, None if it is."""
    known = sums.get(files.TXN_INDEX_SUFFIX, FileSum(0, 0))
    if known == FileSum(index.size_bytes, crc32c(index.encoded)):
        return None
    return (
        f"{index.size_bytes} bytes, its zone map knows {known.size_bytes} or other ones;"
        " `tidelog doctor --repair` builds it anew"
    )


def _last_offset_problem(segment: LogBytes, index: OffsetIndex) -> str | None:
    if not index.entry_count:
        return None
    offset, position = index.entry(index.entry_count - 1)
    # Old brokers made one entry for an append of several batches.
    found = batch_at(segment.view(position, position + HEADER_SIZE))
    if found is not None and segment.base_offset <= found <= offset:
        return None
    return misfit(segment.log_path, offset, position).removesuffix("; rebuilt in memory")


def _batches_from(segment: LogBytes, start: int) -> Iterator[Batch]:
    if segment.is_mapped:
        return walk(segment.view(start, segment.size_bytes))
    return (batch for _, batch in segment.walk_file(start, segment.size_bytes))


def _last_time_problem(segment: LogBytes, indexes: Indexes) -> str | None:
    """Usually the last entry is about one of the last batches: then only these are looked at."""
    timestamp, offset = indexes[1].last_entry
    if timestamp == NO_TIMESTAMP:
        return None
    _, start = indexes[0].lookup(offset)
    said, largest, last_offset = NO_TIMESTAMP, NO_TIMESTAMP, segment.base_offset - 1
    try:
        for batch in _batches_from(segment, start):
            largest = max(largest, batch.max_timestamp)
            last_offset = batch.last_offset
            if last_offset <= offset:
                said = largest
            if largest > timestamp:
                break
    except CorruptData:
        return None  # whoever reads there is told
    if (said, largest) == (timestamp, timestamp) and last_offset >= offset:
        return None
    return (
        f"{segment.log_path}: its time index ends with {timestamp} at offset {offset}, the log says"
        f" {said} up to there and {largest} behind"
    )
