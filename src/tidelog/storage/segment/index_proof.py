"""Checks that an index entry is right; without such a check, a search must not skip records.

An index can be consistent and still be wrong: it may be truncated after a whole entry, belong to
another segment, or have a flipped bit. `position_floor` and `time_floor` compare the entry with the
batch that it names, so a wrong index makes a search slower but never hides a record. A right entry
also shows that the base offset of its batch is damaged (`ensure_none_skipped`). Some entries
of old brokers can't be proven, for example an entry of the time index for an append of several
batches, or an entry with an offset within a batch. Entries that can't be proven are not used, and
the indexes are rebuilt in memory.

An index file is checked when it is loaded: first the order and bounds of its entries
(`index_loading`), then the checksum that a zone map stores for the file. If there is no such
checksum, the last entry of each index is checked instead. The offset index's last entry must point
to a batch whose last offset is not greater than the entry's offset. No batch after the batch of the
time index's last entry may have a larger timestamp than this entry. These checks detect an index
that was truncated, belongs to an older log, or ends in zeros. A wrong index would hide records from
searches, and retention would delete these records too early. `tidelog doctor` checks every entry.

Holds no state. Source: KIP-33; Kafka 4.x TimeIndex, whose dump tool makes the same comparison;
KAFKA-10207, KAFKA-19200.
"""

from collections.abc import Iterator, Mapping

from tidelog.errors import CorruptBatch, CorruptData
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.coding import crc32c
from tidelog.record.header import HEADER_SIZE, LENGTH_AT, LENGTH_MIN, LOG_OVERHEAD
from tidelog.record.offset_order import first_known_offset
from tidelog.storage import log_files
from tidelog.storage.clocks.zone_map import FileSum
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import NO_TIMESTAMP


def time_floor(segment: Segment, timestamp: int) -> tuple[int, int]:
    """Return the time index's greatest entry with a time <= `timestamp`, after checking this entry.

    Returns:
        The result of `TimeIndex.lookup`. If the entry is wrong, the indexes are rebuilt, and the
        lookup is repeated.
    """
    entry = segment.time_index.lookup(timestamp)
    if entry[0] != NO_TIMESTAMP and not _holds(segment, entry):
        segment.distrust_indexes(time_misfit(segment.log_path, entry))
        return segment.time_index.lookup(timestamp)
    return entry


def position_floor(segment: Segment, offset: int) -> int:
    """Return the position of a batch that is proven to end at or before `offset`, else 0."""
    key, position = segment.offset_index.lookup(offset)
    if position and not leads_to(segment, key, position):
        segment.distrust_indexes(misfit(segment.log_path, key, position))
        return segment.offset_index.lookup(offset)[1]
    return position


def position_before(segment: Segment, offset: int) -> int:
    """Return the position of a batch that is proven to end before `offset`, else 0.

    A reader of `offset` that begins at this position reads at least one batch before the batch with
    `offset`. So the order of offsets shows whether the base offset of the batch with `offset` is
    right.
    """
    return position_floor(segment, offset - 1)


def batch_reaching(segment: Segment, offset: int) -> tuple[int, Batch] | None:
    """Return position and batch of the first batch whose last offset is >= `offset`, or None.

    Raises:
        CorruptData: A batch before the result is damaged, or the search skipped a batch that the
            offset index has. The error has its position.
    """
    start = position_floor(segment, offset)
    for position, batch in iterate_batches(segment, start, segment.size_bytes):
        if batch.last_offset >= offset:
            first = first_known_offset(batch)
            ensure_none_skipped(segment, segment.offset_index, offset, first, position)
            return position, batch
    return None


def ensure_none_skipped(
    segment: Segment, index: OffsetIndex, offset: int, first: int, position: int
) -> None:
    """Ensure that a search for `offset` has not skipped a batch that the offset index has.

    A batch's checksum does not cover its base offset. If a flipped bit makes the base offset
    smaller, the batch seems to end before `offset`, and the search would skip its records. The
    index still has the batch's last offset.

    Args:
        segment: The segment.
        index: The segment's offset index.
        offset: The requested offset.
        first: First offset of the batch that the search has found, or its last offset if only this
            is known.
        position: Position of this batch.

    Raises:
        CorruptBatch: An index entry before this batch has an offset in [`offset`, `first`).
    """
    if first <= offset or not position:
        return
    last, start = index.lookup(first - 1)
    if last >= offset and start < position:
        reason = f"no batch ends at offset {last}, which the offset index has for this position"
        raise CorruptBatch(reason, at=0, offset=last).located(segment.log_path, start)


def first_reaching(segment: Segment, offset: int) -> tuple[int, int]:
    """Return position and base offset of the first batch whose last offset is `offset` or more.

    If the segment has no such batch, returns the segment's size and end offset. If `offset` is at
    or before the segment's base offset, returns 0 and the base offset without reading a batch.
    """
    if offset <= segment.base_offset:
        return 0, segment.base_offset
    hit = batch_reaching(segment, offset)
    return (segment.size_bytes, segment.end_offset) if hit is None else (hit[0], hit[1].base_offset)


def leads_to(segment: Segment, key: int, position: int, *, first_at_least: int = 0) -> bool:
    """Return whether a batch at `position` ends at or before offset `key`.

    "Before" is allowed because old brokers wrote one entry for an append of several batches: the
    last batch's offset, and the first batch's position.

    Args:
        segment: The segment of the index.
        key: Offset, as stated by the index entry.
        position: Position in the log file, as stated by the index entry.
        first_at_least: Lowest base offset that the batch may have. For formats 0 and 1, lowest
            offset that its header may have.
    """
    header = segment.view(position, position + HEADER_SIZE)
    last = batch_at(header)
    if last is None or not segment.base_offset <= last <= key:
        return False
    size = LOG_OVERHEAD + int.from_bytes(header[LENGTH_AT:LOG_OVERHEAD], "big", signed=True)
    if not LOG_OVERHEAD + LENGTH_MIN <= size <= segment.size_bytes - position:
        return False
    first = int.from_bytes(header[:8], "big", signed=True)
    return first_at_least <= first <= last


def first_offset_at(segment: Segment, position: int) -> int:
    """Return the offset in the header of the batch at a position."""
    return int.from_bytes(segment.view(position, position + 8), "big", signed=True)


def _holds(segment: Segment, entry: tuple[int, int]) -> bool:
    """Return whether an entry has the largest timestamp of the batch that contains its offset."""
    timestamp, offset = entry
    try:
        hit = batch_reaching(segment, offset)
    except CorruptData:
        return False  # the index or the log is damaged; rebuilding the index shows which
    return hit is not None and hit[1].max_timestamp == timestamp


def time_misfit(log_path: str, entry: tuple[int, int]) -> str:
    """Return the message about an entry of the time index that differs from the batches."""
    timestamp, offset = entry
    return (
        f"{log_path}: the time index has timestamp {timestamp} at offset {offset}, unlike the"
        " batches; rebuilt in memory"
    )


def misfit(log_path: str, last_offset: int, position: int) -> str:
    """Return the message about an entry of the offset index that does not point to its batch."""
    return (
        f"{log_path}: the offset index has offset {last_offset} at position {position}, where the"
        " log has another batch or none; rebuilt in memory"
    )


def batch_at(header: memoryview) -> int | None:
    """Return the last offset of the batch (or legacy message) with this header; None if invalid."""
    if len(header) < 17:
        return None
    offset = int.from_bytes(header[:8], "big", signed=True)
    if header[16] < 2:
        return offset
    if len(header) < HEADER_SIZE:
        return None
    return offset + int.from_bytes(header[23:27], "big", signed=True)


Indexes = tuple[OffsetIndex, TimeIndex]


def index_problem(
    segment: Segment, indexes: Indexes, sums: Mapping[str, FileSum] | None
) -> str | None:
    """Return why both indexes of a finished segment must be rebuilt, None if they are right.

    Args:
        segment: The segment.
        indexes: The loaded indexes. The caller has checked that the entries of both indexes are in
            order, without a tail of zeros.
        sums: Checksums of the files beside the log, from the log's zone map; None if there is no
            zone map.
    """
    suffixes = (log_files.OFFSET_INDEX_SUFFIX, log_files.TIME_INDEX_SUFFIX)
    if sums is not None and sums.keys() >= set(suffixes):
        for suffix, index, name in zip(suffixes, indexes, ("offset", "time"), strict=True):
            if sums[suffix] != FileSum(index.size_bytes, crc32c(index.encoded)):
                return (
                    f"{segment.log_path}: its {name} index differs from the checksum"
                    " in its zone map"
                )
        return None
    return _last_offset_problem(segment, indexes[0]) or _last_time_problem(segment, indexes)


def txn_problem(index: TxnIndex, sums: Mapping[str, FileSum]) -> str | None:
    """Return how an index of aborted transactions differs from its checksum in the zone map.

    Return None if it does not differ.
    """
    expected = sums.get(log_files.TXN_INDEX_SUFFIX, FileSum(0, 0))
    if expected == FileSum(index.size_bytes, crc32c(index.encoded)):
        return None
    return (
        f"its {index.size_bytes} bytes differ from the {expected.size_bytes} bytes whose checksum"
        " is in the zone map; `tidelog doctor --repair` rebuilds it"
    )


def _last_offset_problem(segment: Segment, index: OffsetIndex) -> str | None:
    if not index.entry_count:
        return None
    offset, position = index.entry(index.entry_count - 1)
    # Old brokers wrote one entry for an append of several batches: the last batch's offset, and the
    # first batch's position.
    batch_last_offset = batch_at(segment.view(position, position + HEADER_SIZE))
    if batch_last_offset is not None and segment.base_offset <= batch_last_offset <= offset:
        return None
    return misfit(segment.log_path, offset, position).removesuffix("; rebuilt in memory")


def _batches_from(segment: Segment, start: int) -> Iterator[Batch]:
    if segment.is_mapped:
        return walk(segment.view(start, segment.size_bytes))
    return (batch for _, batch in segment.walk_file(start, segment.size_bytes))


def _last_time_problem(segment: Segment, indexes: Indexes) -> str | None:
    """Return how the time index's last entry differs from the last batches, None if it fits.

    The function reads only the batches from about the entry's offset on, usually the last few
    batches.
    """
    timestamp, offset = indexes[1].last_entry
    if timestamp == NO_TIMESTAMP:
        return None
    _, start = indexes[0].lookup(offset)
    largest_indexed, largest, last_offset = NO_TIMESTAMP, NO_TIMESTAMP, segment.base_offset - 1
    try:
        for batch in _batches_from(segment, start):
            largest = max(largest, batch.max_timestamp)
            last_offset = batch.last_offset
            if last_offset <= offset:
                largest_indexed = largest
            if largest > timestamp:
                break
    except CorruptData:
        return None  # readers report the damage
    if (largest_indexed, largest) == (timestamp, timestamp) and last_offset >= offset:
        return None
    return (
        f"{segment.log_path}: its time index ends with timestamp {timestamp} at offset {offset},"
        f" but the largest timestamp in the log is {largest_indexed} up to that offset and"
        f" {largest} up to offset {last_offset}"
    )
