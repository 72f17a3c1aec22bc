"""Scans batch headers into the batch table, one row for each batch, without decoding records.

The scan reads magic-2 headers completely. For a legacy message (magic 0 and 1) the scan reads only
the frame, and plain Python code reads the other fields. The scan checks the frame and the order of
offsets (`record.offset_order`), not the CRC.

Source: docs/format.md; Kafka's ByteBufferLogInputStream for the rules of the frame.
"""

from typing import Final

from tidelog.record.header import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_LENGTH_MIN,
    CODEC_MASK,
    CRC_AT,
    FRAME_PREFIX_SIZE,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LENGTH_MIN,
    LOG_OVERHEAD,
    MAGIC_2,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
)
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.layout import (
    ATTRIBUTES,
    BAD_MAGIC,
    BAD_OFFSETS,
    BAD_ORDER,
    BAD_SIZE,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BODY_END,
    BODY_START,
    CRC,
    CREATE_KNOWN,
    CREATE_STATE,
    DONE,
    FULL,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    MAX_TIMESTAMP,
    PARTIAL,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
)
from tidelog.record.kernels.memory import (
    Bytes,
    Longs,
    load_byte,
    load_int16,
    load_int32,
    load_int64,
)
from tidelog.types import INT64_MAX

# Size in bytes of a message's timestamp, which exists in magic 1 but not in magic 0.
_TIMESTAMP_SIZE: Final = 8

_UINT32_MASK: Final = 2**32 - 1


@inlined
def frame_status(log: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return a status and the size in bytes of the batch or message at `at`.

    Returns:
        A status and a size. The status is DONE, BAD_SIZE, BAD_MAGIC or (if the batch extends beyond
        `end`) PARTIAL. The size is the whole size with DONE, and 0 with any other status.
    """
    remaining = end - at
    length = load_int32(log, at + LENGTH_AT) if remaining >= LOG_OVERHEAD else LENGTH_MIN
    if length < LENGTH_MIN:
        return BAD_SIZE, 0
    if remaining < FRAME_PREFIX_SIZE:
        return PARTIAL, 0
    magic = load_byte(log, at + MAGIC_AT)
    if magic > MAGIC_2:
        return BAD_MAGIC, 0
    if length < _length_min(magic):
        return BAD_SIZE, 0
    size = length + LOG_OVERHEAD
    return (DONE, size) if size <= remaining else (PARTIAL, 0)


@inlined
def _length_min(magic: int) -> int:
    if magic == MAGIC_2:
        return BATCH_LENGTH_MIN
    return LENGTH_MIN if magic == 0 else LENGTH_MIN + _TIMESTAMP_SIZE


@kernel
def scan_batches(
    log: Bytes,
    start: int,
    end: int,
    out: Longs,
    next_offset: int,
    end_offset: int,
) -> tuple[int, int, int]:
    """Fill the table with the batches of `log[start:end]`, up to the first invalid batch.

    Args:
        log: Bytes.
        start: Position of the first batch.
        end: End of the readable bytes, exclusive.
        out: The table.
        next_offset: Smallest offset that the first batch may have.
        end_offset: Exclusive upper limit of all offsets.

    Shape:
        log: uint8[>= end].
        out: int64[capacity, BATCH_FIELDS], allocated by the caller; rows after the returned number
            of batches are undefined, except the row of the bad batch with BAD_ORDER.

    Returns:
        The number of batches, the position after the last batch, and a status that says why the
        scan stopped there: DONE at `end`, FULL if the table is full, PARTIAL at an incomplete
        batch, or a BAD_ status. For BAD_ORDER the row of the bad batch is also filled. The bad
        batch is the batch whose offsets are out of order. Exception: if this batch proves that the
        offsets of the batch before it are too large (`shows_jump`), the bad batch is the batch
        before it.
    """
    at, count = start, 0
    first, last, before = next_offset, next_offset - 1, next_offset
    while at < end:
        status, size = FULL, 0
        if count < out.shape[0]:
            status, size = frame_status(log, at, end)
        if status == DONE:
            status = _take_header(log, at, size, out, count, last + 1, end_offset)
        if status != DONE:
            if count > 0 and shows_jump(log, at, end, first, last, before, end_offset):
                return count - 1, out[count - 1, POSITION], BAD_ORDER
            return count, at, status
        before, last = last + 1, out[count, LAST_OFFSET]
        first = last if out[count, MAGIC] < MAGIC_2 else out[count, BASE_OFFSET]
        at += size
        count += 1
    return count, at, DONE


@inlined
def _take_header(  # noqa: PLR0913 - as `read_header`, and the allowed offsets
    log: Bytes, at: int, size: int, out: Longs, slot: int, next_offset: int, end_offset: int
) -> int:
    """Fill row `slot` of the table; return DONE, BAD_OFFSETS or BAD_ORDER."""
    if not read_header(log, at, size, out, slot):
        return BAD_OFFSETS
    last = out[slot, LAST_OFFSET]
    # The first offset of a legacy wrapper is known only after decompression.
    first = last if out[slot, MAGIC] < MAGIC_2 else out[slot, BASE_OFFSET]
    return DONE if next_offset <= first and last < end_offset else BAD_ORDER


@inlined
def shows_jump(  # noqa: PLR0913 - the bytes, and the offsets of the batch before
    log: Bytes, at: int, end: int, first: int, last: int, before: int, end_offset: int
) -> bool:
    """Whether the batch at `at` proves that the offsets of the previous batch are too large.

    The previous batch has the offsets `first` to `last` (inclusive); it was expected to begin at
    `before`. The result is True if three conditions hold: the previous batch does not begin at
    `before`; the batch at `at` begins in [`before`, `last`]; and it ends below `end_offset`. Then
    the batch at `at` would be in order if the previous batch did not exist. Only the header of the
    batch at `at` is read.
    """
    remaining = end - at
    if first == before or remaining < FRAME_PREFIX_SIZE:
        return False
    offset = load_int64(log, at)
    end_of_batch = offset
    if load_byte(log, at + MAGIC_AT) >= MAGIC_2:
        if remaining < HEADER_SIZE:
            return False
        delta = load_int32(log, at + LAST_OFFSET_DELTA_AT)
        if delta < 0 or offset > INT64_MAX - delta:
            return False
        end_of_batch += delta
    return before <= offset <= last and end_of_batch < end_offset


@inlined
def read_header(log: Bytes, at: int, size: int, out: Longs, slot: int) -> bool:
    """Fill row `slot` of the table; return False if the offsets exceed int64."""
    base_offset = load_int64(log, at)
    magic = load_byte(log, at + MAGIC_AT)
    out[slot, POSITION] = at
    out[slot, SIZE] = size
    out[slot, MAGIC] = magic
    out[slot, BASE_OFFSET] = base_offset
    out[slot, CREATE_STATE] = CREATE_KNOWN
    if magic < MAGIC_2:
        _read_message(log, at, out, slot)
        return base_offset >= 0
    last_delta = load_int32(log, at + LAST_OFFSET_DELTA_AT)
    if base_offset < 0 or last_delta < 0 or base_offset > INT64_MAX - last_delta:
        return False
    out[slot, LAST_OFFSET] = base_offset + last_delta
    _read_fixed_fields(log, at, out, slot)
    out[slot, BODY_START] = at + HEADER_SIZE
    out[slot, BODY_END] = at + size
    return True


@inlined
def _read_message(log: Bytes, at: int, out: Longs, slot: int) -> None:
    """Read the fields in the frame of a legacy message.

    The attributes are set to 0. Columns for fields that only magic 2 has are set to -1.

    The message's offset is the offset of its last record. The base offset of a wrapper is known
    only after decompression, so the base offset is set to 0, which is always a valid lower bound.
    """
    for field in range(RECORD_COUNT, MAGIC):
        out[slot, field] = -1
    out[slot, ATTRIBUTES] = 0
    out[slot, LAST_OFFSET] = out[slot, BASE_OFFSET]
    if load_byte(log, at + MESSAGE_ATTRIBUTES_AT) & CODEC_MASK != 0:
        out[slot, BASE_OFFSET] = 0
    out[slot, CRC] = load_int32(log, at + MESSAGE_CRC_AT) & _UINT32_MASK
    out[slot, BODY_START] = at
    out[slot, BODY_END] = at + out[slot, SIZE]


@inlined
def _read_fixed_fields(log: Bytes, at: int, out: Longs, slot: int) -> None:
    out[slot, LEADER_EPOCH] = load_int32(log, at + LEADER_EPOCH_AT)
    out[slot, CRC] = load_int32(log, at + CRC_AT) & _UINT32_MASK
    # As in Kafka, only the low byte of the attributes is used.
    out[slot, ATTRIBUTES] = load_byte(log, at + ATTRIBUTES_AT + 1)
    out[slot, BASE_TIMESTAMP] = load_int64(log, at + BASE_TIMESTAMP_AT)
    out[slot, MAX_TIMESTAMP] = load_int64(log, at + MAX_TIMESTAMP_AT)
    out[slot, PRODUCER_ID] = load_int64(log, at + PRODUCER_ID_AT)
    out[slot, PRODUCER_EPOCH] = load_int16(log, at + PRODUCER_EPOCH_AT)
    out[slot, BASE_SEQUENCE] = load_int32(log, at + BASE_SEQUENCE_AT)
    out[slot, RECORD_COUNT] = load_int32(log, at + RECORD_COUNT_AT)
