"""Searches one segment by timestamp, with time index, offset index, batch headers and records.

The kernel reads the bytes of the segment's three files and keeps no state;
`storage/segment/mapped_time_search` calls the kernel. For a compressed or legacy batch the kernel
returns the position, and the caller decompresses the batch. A search skips a batch if the largest
timestamp in the batch's header is too small. The search checks the CRCs of the first `PASSED_BYTES`
of skipped batches. If the search uses a time index entry, it does not check the CRCs of the
batches up to and including the entry's batch. Instead, it checks that the largest timestamp in the
header of the entry's batch equals the entry's timestamp. The caller checks the CRC of the batch
that contains the result.

Index entries are big-endian and sorted. Offset index: int32 relative offset, int32 position. Time
index: int64 timestamp, int32 relative offset. A floor search returns the last entry whose key is
not above the target; `SortedIndex._floor` (`storage/segment/sorted_index`) is the plain floor
search.

Source: docs/format.md#offset-index, #time-index; KIP-33.
"""

from typing import Final

from tidelog.record.header import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    MAGIC_2,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    MESSAGE_TIMESTAMP_AT,
    PASSED_BYTES,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
)
from tidelog.record.kernels.batch_scan import frame_status, shows_jump
from tidelog.record.kernels.checksums import has_right_sum
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.integers import INVALID, add_wrapping, read_varint, read_varlong
from tidelog.record.kernels.layout import (
    BAD_INDEX,
    BAD_OFFSETS,
    BAD_ORDER,
    BAD_RECORD,
    DONE,
    FOUND,
    NEED_PLAIN,
    NOT_FOUND,
)
from tidelog.record.kernels.memory import Bytes, load_byte, load_int32, load_int64
from tidelog.types import INT64_MAX

OFFSET_ENTRY_SIZE: Final = 8
TIME_ENTRY_SIZE: Final = 12
_POSITION_IN_ENTRY: Final = 4
_OFFSET_IN_ENTRY: Final = 8
NOTHING: Final = -1


@kernel
def find_time_in_segment(
    log: Bytes,
    index: Bytes,
    time_index: Bytes,
    between: tuple[int, int],
    target: int,
    floor_offset: int,
) -> tuple[int, int, int, int]:
    """Find the first record of a segment with timestamp >= `target` and offset >= `floor_offset`.

    Args:
        log: All whole batches of the log file.
        index: Exactly the entries of the offset index.
        time_index: Exactly the entries of the time index.
        between: The segment's base offset, and the exclusive upper limit of its offsets.
        target: Time in ms.
        floor_offset: First offset, inclusive.

    Returns:
        A status, an offset, a timestamp in ms, and the position of a batch. With FOUND, offset and
        timestamp are those of the record. With any other status, the timestamp is -1, and the
        offset is the smallest offset that the batch at the position may have (-1 if unknown). The
        other statuses:

        - NOT_FOUND: the position is the end of the log.
        - NEED_PLAIN: plain code must read the batch at the position and, if the batch has no match,
          continue after the batch with `find_time`.
        - BAD_INDEX: an index entry contradicts its batch.
        - BAD_ORDER: the offsets of the batch at the position, or of the batch after it, are out of
          order.
        - BAD_RECORD: a record is damaged, or the checksum of a batch to skip is wrong.
        - PARTIAL or another BAD_ status: the batch at the position has this fault (see `layout`).
    """
    return _search_segment(log, index, time_index, between, target, floor_offset)


@kernel
def find_time(
    log: Bytes, position: int, between: tuple[int, int], target: int, floor_offset: int
) -> tuple[int, int, int, int]:
    """Search from the batch at `position` on, without indexes; see `find_time_in_segment`.

    Args:
        log: Bytes.
        position: Position of the first batch to search.
        between: Smallest offset that this batch may have, and the exclusive upper limit of all
            offsets.
        target: Time in ms.
        floor_offset: First offset, inclusive.
    """
    return _search_batches(log, position, between, target, floor_offset, NOTHING)


@inlined
def _floor_time_entry(time_index: Bytes, base_offset: int, target: int) -> tuple[int, int]:
    """Return timestamp and offset of the last time index entry with timestamp <= `target`.

    Return (-1, base_offset) if there is no such entry.
    """
    low, high = 0, time_index.size // TIME_ENTRY_SIZE
    while low < high:
        middle = (low + high) >> 1
        if load_int64(time_index, middle * TIME_ENTRY_SIZE) <= target:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return NOTHING, base_offset
    at = (low - 1) * TIME_ENTRY_SIZE
    return load_int64(time_index, at), base_offset + load_int32(time_index, at + _OFFSET_IN_ENTRY)


@inlined
def floor_position_for(index: Bytes, base_offset: int, offset: int) -> tuple[int, int]:
    """Return offset and position of the last offset index entry with offset <= `offset`.

    Return (base_offset, 0) if there is no such entry.
    """
    low, high = 0, index.size // OFFSET_ENTRY_SIZE
    relative = offset - base_offset
    while low < high:
        middle = (low + high) >> 1
        if load_int32(index, middle * OFFSET_ENTRY_SIZE) <= relative:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return base_offset, 0
    at = (low - 1) * OFFSET_ENTRY_SIZE
    return base_offset + load_int32(index, at), load_int32(index, at + _POSITION_IN_ENTRY)


@inlined
def _search_segment(
    log: Bytes,
    index: Bytes,
    time_index: Bytes,
    between: tuple[int, int],
    target: int,
    floor_offset: int,
) -> tuple[int, int, int, int]:
    base_offset = between[0]
    indexed, indexed_offset = _floor_time_entry(time_index, base_offset, target)
    first = max(indexed_offset, floor_offset)
    offset, position = floor_position_for(index, base_offset, first)
    if position != 0 and not _leads_to_batch(log, position, offset):
        return BAD_INDEX, NOTHING, NOTHING, position
    if position != 0 and not _ends_at(log, position, offset):
        # For an append of several batches, old brokers wrote one entry with the position of the
        # first batch and the last offset of all these batches. Such an entry does not confirm the
        # offsets of the batch at its position. So the search begins at the previous entry.
        offset, position = floor_position_for(index, base_offset, min(offset, first) - 1)
        if position != 0 and not _leads_to_batch(log, position, offset):
            return BAD_INDEX, NOTHING, NOTHING, position
    # A time index entry lets the search skip records. The entry is wrong if its timestamp differs
    # from the largest timestamp of its batch.
    is_used = indexed != NOTHING and indexed_offset >= floor_offset
    if is_used and not _has_largest(log, position, indexed_offset, indexed):
        return BAD_INDEX, NOTHING, NOTHING, position
    confirmed = indexed_offset if is_used else NOTHING
    return _search_batches(log, position, between, target, floor_offset, confirmed)


@inlined
def _ends_at(log: Bytes, position: int, offset: int) -> bool:
    """Whether the batch at a position has this last offset."""
    if position < 0 or position >= log.size or frame_status(log, position, log.size)[0] != DONE:
        return False
    base = load_int64(log, position)
    if load_byte(log, position + MAGIC_AT) < MAGIC_2:
        return base == offset
    delta = load_int32(log, position + LAST_OFFSET_DELTA_AT)
    return base >= 0 and delta >= 0 and base == offset - delta


@inlined
def _leads_to_batch(log: Bytes, position: int, offset: int) -> bool:
    """Whether the batch at an offset index entry's position ends at or before the entry's offset.

    The batch may end before that offset, because old brokers wrote one entry for an append of
    several batches.
    """
    if position < 0 or position >= log.size:
        return False
    status, _ = frame_status(log, position, log.size)
    if status != DONE:
        return False
    base = load_int64(log, position)
    if load_byte(log, position + MAGIC_AT) < MAGIC_2:
        return True
    return 0 <= base <= offset - load_int32(log, position + LAST_OFFSET_DELTA_AT)


@inlined
def _has_largest(log: Bytes, position: int, offset: int, timestamp: int) -> bool:
    """Whether the batch that contains `offset` has this maximum timestamp.

    This batch is the first batch from `position` on that does not end before `offset`.
    """
    at = position
    while at < log.size:
        status, size = frame_status(log, at, log.size)
        if status != DONE:
            return False
        last = load_int64(log, at)
        magic = load_byte(log, at + MAGIC_AT)
        if magic >= MAGIC_2:
            delta = load_int32(log, at + LAST_OFFSET_DELTA_AT)
            if delta < 0 or last > INT64_MAX - delta:
                return False
            last += delta
        if last >= offset:
            if magic >= MAGIC_2:
                return load_int64(log, at + MAX_TIMESTAMP_AT) == timestamp
            return magic == 1 and load_int64(log, at + MESSAGE_TIMESTAMP_AT) == timestamp
        at += size
    return False


@inlined
def _search_batches(
    log: Bytes,
    position: int,
    between: tuple[int, int],
    target: int,
    floor_offset: int,
    confirmed: int,
) -> tuple[int, int, int, int]:
    """Search from the batch at `position` on. Returns: see `find_time_in_segment`.

    The checksum of a skipped batch is not checked if the batch's last offset is <= `confirmed`.
    """
    if position < 0:
        return BAD_INDEX, NOTHING, NOTHING, position
    at, last, (next_offset, end_offset) = position, NOTHING, between
    unchecked = PASSED_BYTES
    while at < log.size:
        status, size = frame_status(log, at, log.size)
        if status != DONE:
            return status, next_offset, NOTHING, at
        status = _judge(log, at, target, floor_offset)
        if status != BAD_OFFSETS:
            status, last = _check_order(log, at, size, status, next_offset, end_offset)
        if status == FOUND:
            status, offset, timestamp = _search_records(log, at, size, target, floor_offset)
            if status == FOUND:
                return FOUND, offset, timestamp, at
            if status == NOT_FOUND and load_int64(log, at) >= floor_offset:
                # The header's largest timestamp shows a match, but no record matches: the records
                # are damaged, or a cleaner removed the matching records.
                status = NEED_PLAIN
        elif status == NOT_FOUND and last >= floor_offset and last > confirmed and unchecked > 0:
            # The batch is skipped because of its largest timestamp, which the checksum covers.
            unchecked -= size
            status = NOT_FOUND if has_right_sum(log, at, size) else BAD_RECORD
        if status != NOT_FOUND:
            return status, next_offset, NOTHING, at
        at += size
        next_offset = last + 1
    return NOT_FOUND, next_offset, NOTHING, at


@inlined
def _check_order(
    log: Bytes, at: int, size: int, status: int, next_offset: int, end_offset: int
) -> tuple[int, int]:
    """Return `status` or BAD_ORDER, and the batch's last offset.

    If the batch may contain the result, also check the offsets of the next batch.
    """
    first = last = load_int64(log, at)
    if load_byte(log, at + MAGIC_AT) >= MAGIC_2:
        last += load_int32(log, at + LAST_OFFSET_DELTA_AT)
    if first < next_offset or last >= end_offset:
        return BAD_ORDER, last
    if status != NOT_FOUND and shows_jump(
        log, at + size, log.size, first, last, next_offset, end_offset
    ):
        return BAD_ORDER, last
    return status, last


@inlined
def _judge(log: Bytes, at: int, target: int, floor_offset: int) -> int:
    """Return the status that a batch's header implies, without reading the batch's records.

    FOUND: an uncompressed magic-2 batch may have a match. NEED_PLAIN: a compressed or legacy batch
    may have a match. NOT_FOUND: the batch has no match. BAD_OFFSETS: the batch's offsets are
    impossible.
    """
    offset = load_int64(log, at)
    if load_byte(log, at + MAGIC_AT) < MAGIC_2:
        # The offset of a legacy message or wrapper is the offset of its last record.
        return NOT_FOUND if offset < floor_offset else NEED_PLAIN
    last_delta = load_int32(log, at + LAST_OFFSET_DELTA_AT)
    if offset < 0 or last_delta < 0 or offset > INT64_MAX - last_delta:
        return BAD_OFFSETS
    if offset + last_delta < floor_offset or load_int64(log, at + MAX_TIMESTAMP_AT) < target:
        return NOT_FOUND
    return FOUND if load_byte(log, at + ATTRIBUTES_AT + 1) & CODEC_MASK == 0 else NEED_PLAIN


@inlined
def _search_records(
    log: Bytes, at: int, size: int, target: int, floor_offset: int
) -> tuple[int, int, int]:
    """Find the first match in an uncompressed magic-2 batch.

    No record after the match is read.
    """
    base_offset = load_int64(log, at)
    base_timestamp = load_int64(log, at + BASE_TIMESTAMP_AT)
    delta_max = load_int32(log, at + LAST_OFFSET_DELTA_AT)
    append_time = load_int64(log, at + MAX_TIMESTAMP_AT)
    is_append_time = load_byte(log, at + ATTRIBUTES_AT + 1) & TIMESTAMP_TYPE_BIT != 0
    position, end, last_delta = at + HEADER_SIZE, at + size, -1
    for _ in range(load_int32(log, at + RECORD_COUNT_AT)):
        position, time_delta, delta = _read_deltas(log, position, end)
        if position == INVALID or delta <= last_delta or delta > delta_max:
            return BAD_RECORD, NOTHING, NOTHING
        last_delta = delta
        created = add_wrapping(base_timestamp, time_delta)
        timestamp = append_time if is_append_time else created
        if timestamp >= target and base_offset + delta >= floor_offset:
            return FOUND, base_offset + delta, timestamp
    return NOT_FOUND, NOTHING, NOTHING


@inlined
def _read_deltas(log: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return the position after a record, its time delta and its offset delta.

    The position is `INVALID` if the record is damaged.
    """
    size, at = read_varint(log, at, end)
    if size < 0 or size > end - at:
        return INVALID, 0, 0
    record_end = at + size
    time_delta, at = read_varlong(log, at + 1, record_end)
    delta, at = read_varint(log, at, record_end)
    return (record_end if at <= record_end else INVALID), time_delta, delta
