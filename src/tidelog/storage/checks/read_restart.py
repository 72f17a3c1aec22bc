"""Finds the first offset after damage at which a read can start again.

A read that begins before damaged bytes can't get past them if their headers are wrong. A read that
begins at a later index entry doesn't read the damaged bytes. This module uses the same index as a
reader: if the index file is wrong, the index that a reader rebuilds in memory. A rebuilt index ends
at the damage.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from tidelog.env import Env, File
from tidelog.errors import CorruptData
from tidelog.record.batch_walk import Batch
from tidelog.storage.checks.findings import CheckedPartition
from tidelog.storage.open_files import walk_file
from tidelog.storage.segment.active_segment import load_tail
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.log_end import batch_problem
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.types import INT64_MAX


def index_for_reads(partition: CheckedPartition, base_offset: int, end_offset: int) -> OffsetIndex:
    """Return a copy of the offset index that a reader of a segment uses.

    Args:
        partition: The partition.
        base_offset: The segment's base offset.
        end_offset: Base offset of the next segment; INT64_MAX for the last segment.

    Raises:
        OSError: A system call failed.
    """
    with partition.open_context(Env(files=partition.fs)) as context:
        if end_offset == INT64_MAX:
            recorded = replace(context, recorded_end=lambda _fresh: partition.recorded)
            index = load_tail(recorded, base_offset).offset_index
        else:
            index = ClosedSegment(context, base_offset, end_offset).offset_index
        entries = bytes(index.encoded)
    return OffsetIndex(base_offset, data=entries, size_limit=INT64_MAX)


class Hole(NamedTuple):
    """Damaged bytes of a log file, and the first sound batch after them.

    Attributes:
        start: Position of the first damaged byte.
        end: Position of the sound batch.
        next_offset: First offset of the sound batch.
    """

    start: int
    end: int
    next_offset: int


def restart_offset(
    index: OffsetIndex, file: File, path: str, hole: Hole, end_offset: int
) -> int | None:
    """Return the first offset after damage that a read reaches through an index entry.

    A read begins at the batch of the last entry below the read's first offset. This batch may be
    part of the damage if its checksum is right and it ends at or below the entry's offset.

    Args:
        index: Offset index of the segment, as a reader uses it.
        file: The log file.
        path: Path of the log file, for errors.
        hole: The damaged bytes.
        end_offset: Base offset of the next segment; INT64_MAX for the last segment.

    Returns:
        The offset, or None if no entry leads a read to a batch after the damage.
    """
    for slot in range(index.slot_at_or_before_position(hole.start - 1) + 1, index.entry_count):
        key, position = index.entry(slot)
        offset = max(key + 1, hole.next_offset)
        is_last_below = slot + 1 == index.entry_count or index.entry(slot + 1)[0] >= offset
        batches = walk_file(file, path, position, file.size())
        if is_last_below and _leads_to(batches, index.base_offset, key, hole.end, end_offset):
            return offset
    return None


def _leads_to(
    batches: Iterable[tuple[int, Batch]], base_offset: int, key: int, end: int, end_offset: int
) -> bool:
    """Return whether a read that begins at an index entry reaches a batch after the damage.

    Args:
        batches: The batches from the entry's position on.
        base_offset: The segment's base offset.
        key: Offset of the entry; the first batch must not end after this offset.
        end: Position after the damage. If the first batch that ends above the entry's offset begins
            before this position, the result is False.
        end_offset: The batches' offsets must be below this offset.
    """
    next_offset, limit = base_offset, key + 1
    with suppress(CorruptData):
        for position, batch in batches:
            if batch_problem(batch, base_offset, next_offset, limit) is not None:
                return False
            if batch.last_offset > key:
                return position >= end
            next_offset, limit = batch.next_offset, end_offset
    return False
