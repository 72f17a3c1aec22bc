"""Iterates over the batches of a buffer, whatever their magic, without copying.

The walk checks only the length and the magic of each batch. The walk stops at an incomplete batch,
because a growing log may end with an incomplete batch. The caller checks CRCs and decodes records.

Source: docs/format.md#frame; Kafka 4.x ByteBufferLogInputStream.
"""

from collections.abc import Iterator
from typing import TypeAlias

from tidelog.errors import CorruptBatch
from tidelog.record.batch import RecordBatch
from tidelog.record.header import (
    BATCH_LENGTH_MIN,
    FRAME_PREFIX_SIZE,
    HEADER_SIZE,
    LENGTH,
    LENGTH_AT,
    LENGTH_MIN,
    LOG_OVERHEAD,
    MAGIC_2,
    MAGIC_AT,
    MESSAGE_LENGTH_MIN,
)
from tidelog.record.legacy import LegacyBatch
from tidelog.types import Buffer

Batch: TypeAlias = RecordBatch | LegacyBatch
_MAGIC_LENGTH_MIN = (*MESSAGE_LENGTH_MIN, BATCH_LENGTH_MIN)


def frame_size(buffer: Buffer, at: int, end: int) -> int | None:
    """Return the size in bytes of the batch at `at`; None if the batch extends beyond `end`.

    Args:
        buffer: Bytes to examine.
        at: Position of the batch in the buffer.
        end: Position after the last readable byte.

    Raises:
        CorruptBatch: The length is too small, or the magic is not 0, 1 or 2.
    """
    remaining = end - at
    if remaining < LOG_OVERHEAD:
        return None
    (length,) = LENGTH.unpack_from(buffer, at + LENGTH_AT)
    if length < LENGTH_MIN:
        raise CorruptBatch(f"batch length {length}, must be at least {LENGTH_MIN}", at=at)
    if remaining < FRAME_PREFIX_SIZE:
        return None
    magic = buffer[at + MAGIC_AT]
    if magic > MAGIC_2:
        raise CorruptBatch(f"magic {magic} is unknown", at=at)
    if length < _MAGIC_LENGTH_MIN[magic]:
        reason = f"length {length} with magic {magic}, must be at least {_MAGIC_LENGTH_MIN[magic]}"
        raise CorruptBatch(reason, at=at)
    size: int = length + LOG_OVERHEAD
    return size if size <= remaining else None


def is_cut(data: Buffer) -> bool:
    """Whether the first batch of `data` is incomplete; True if `data` is empty."""
    if len(data) < LOG_OVERHEAD:
        return True
    length = int.from_bytes(data[LENGTH_AT:LOG_OVERHEAD], "big", signed=True)
    return len(data) < LOG_OVERHEAD + length


def view_batch(buffer: Buffer, at: int = 0) -> Batch:
    """Return a view of the batch at `at`.

    Call this function only if `frame_size` returned a size for this batch.
    """
    return RecordBatch(buffer, at) if buffer[at + MAGIC_AT] == MAGIC_2 else LegacyBatch(buffer, at)


def walk(buffer: Buffer, at: int = 0, end: int | None = None) -> Iterator[Batch]:
    """Iterate over the consecutive batches from `at` to `end`; stop at an incomplete batch.

    Args:
        buffer: Bytes that begin with a batch at `at`.
        at: Position of the first batch in the buffer.
        end: Position after the last readable byte; None for the buffer's end.

    Raises:
        CorruptBatch: The length or the magic of a batch is invalid; the error's `at` is the
            position of this batch. Earlier batches were yielded.
    """
    view = memoryview(buffer)
    end = len(view) if end is None else end
    assert 0 <= at <= end <= len(view)
    while True:
        # The common case is tested first, because every append runs this loop.
        if end - at >= HEADER_SIZE and view[at + MAGIC_AT] == MAGIC_2:
            batch = RecordBatch(view, at)
            if HEADER_SIZE <= batch.size_bytes <= end - at:
                yield batch
                at += batch.size_bytes
                continue
        size = frame_size(view, at, end)
        if size is None:
            return
        yield view_batch(view, at)
        at += size
