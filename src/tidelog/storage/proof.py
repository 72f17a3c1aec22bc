"""What the entries of an index promise, held against the batches they name.

An index that keeps its own rules may still be wrong: cut short at a whole entry, another segment's,
a bit flipped. Whoever skips records because of an entry proves that entry first, by the one batch
that it names; so a wrong index costs time and never hides a record.

Old brokers wrote entries that say less (one for an append of several batches, offsets within a
batch). Those that can't be proven are not used: the indexes are then built anew in memory.

What is proven of a whole file when it is loaded stands in `index_proof`.

Source: KIP-33; Kafka 4.x TimeIndex, whose dump tool makes the same comparison.
"""

from tidelog.errors import CorruptData
from tidelog.record.batch import HEADER_SIZE
from tidelog.record.header import LENGTH_AT, LENGTH_MIN, LOG_OVERHEAD
from tidelog.storage.segment import Segment, iterate_batches
from tidelog.types import NO_TIMESTAMP


def time_floor(segment: Segment, timestamp: int) -> tuple[int, int]:
    """The greatest time index entry with a time <= `timestamp` that the log proves.

    Returns:
        As `TimeIndex.lookup`. Where the entry was wrong, that of the indexes built anew.
    """
    entry = segment.time_index.lookup(timestamp)
    if entry[0] != NO_TIMESTAMP and not _holds(segment, entry):
        segment.distrust_indexes(time_misfit(segment.log_path, entry))
        return segment.time_index.lookup(timestamp)
    return entry


def position_floor(segment: Segment, offset: int) -> int:
    """Position of a batch that the log proves to end at or before `offset`, 0 where none does."""
    key, position = segment.offset_index.lookup(offset)
    if position and not leads_to(segment, key, position):
        segment.distrust_indexes(misfit(segment.log_path, key, position))
        return segment.offset_index.lookup(offset)[1]
    return position


def position_before(segment: Segment, offset: int) -> int:
    """Position of a batch that the log proves to end before `offset`, 0 where none does.

    Readers of `offset` begin here: the batch that holds it is then never the first one that they
    meet, and the order of offsets shows whether its base offset is right.
    """
    return position_floor(segment, offset - 1)


def leads_to(segment: Segment, key: int, position: int, *, first_at_least: int = 0) -> bool:
    """Whether a batch lies at `position` that ends at or before offset `key`.

    Before it, because old brokers made one entry for an append of several batches.

    Args:
        segment: Where the entry comes from.
        key: The entry's offset.
        position: Its position.
        first_at_least: Where the batch must begin, as far as its header tells.
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
    """First offset of the batch at a position, as far as its header tells."""
    return int.from_bytes(segment.view(position, position + 8), "big", signed=True)


def _holds(segment: Segment, entry: tuple[int, int]) -> bool:
    """Whether the batch that holds an entry's offset has its timestamp as the largest."""
    timestamp, offset = entry
    start = position_floor(segment, offset)
    try:
        for _, batch in iterate_batches(segment, start, segment.size_bytes):
            if batch.last_offset >= offset:
                return batch.max_timestamp == timestamp
    except CorruptData:
        pass  # the index may be wrong, or the log: building it anew tells
    return False


def time_misfit(log_path: str, entry: tuple[int, int]) -> str:
    """What to report of a time index entry that is not what the batches say."""
    timestamp, offset = entry
    return (
        f"{log_path}: the time index names timestamp {timestamp} at offset {offset}, which is not"
        " what the batches say; rebuilt in memory"
    )


def misfit(log_path: str, last_offset: int, position: int) -> str:
    """What to report of an offset index entry that leads elsewhere."""
    return (
        f"{log_path}: the offset index names offset {last_offset} at position {position}, there is"
        " another batch or none; rebuilt in memory"
    )


def batch_at(header: memoryview) -> int | None:
    """Last offset of the magic-2 batch (or legacy message) whose header this is, else None."""
    if len(header) < 17:
        return None
    offset = int.from_bytes(header[:8], "big", signed=True)
    if header[16] < 2:
        return offset
    if len(header) < HEADER_SIZE:
        return None
    return offset + int.from_bytes(header[23:27], "big", signed=True)
