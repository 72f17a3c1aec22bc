"""Finding the next sound batch behind damage, so that one bad byte does not hide what follows.

A frame that is wrong says nothing about where the next batch begins. Offsets of a segment share
their upper 32 bits (or have the next value of them), so places where those stand are looked at one
by one: a batch counts whose frame fits, whose offsets go on, and whose checksum is right.
"""

from collections.abc import Iterator
from typing import Final

from tidelog.env import File
from tidelog.errors import CorruptData
from tidelog.record.header import (
    FRAME_PREFIX_SIZE,
    LENGTH,
    LENGTH_AT,
    LENGTH_MIN,
    LOG_OVERHEAD,
    MAGIC_2,
    MAGIC_AT,
)
from tidelog.record.offset_order import order_problem
from tidelog.record.views import Batch, frame_size, view_batch
from tidelog.types import INT32_MAX, INT64_MAX

CHUNK_BYTES: Final = 1 << 20
# Bytes that may look like batches must not make a search take for ever: each costs a checksum.
CANDIDATE_LIMIT: Final = 10_000
_HIGH_SIZE: Final = 4


def next_sound_batch(
    file: File, start: int, size: int, *, base_offset: int, next_offset: int
) -> int | None:
    """Position of the first sound batch at or behind `start`, None where there is none.

    Args:
        file: The log file.
        start: Where to begin.
        size: Where the readable bytes end, exclusive.
        base_offset: The segment's base offset.
        next_offset: The batch's offsets begin here or later.
    """
    for seen, position in enumerate(_candidates(file, start, size, base_offset)):
        if seen >= CANDIDATE_LIMIT:
            return None
        batch = _frame_at(file, position, size)
        if batch is None or batch.last_offset - base_offset > INT32_MAX or not batch.is_valid():
            continue
        try:
            if order_problem(batch, next_offset, INT64_MAX) is None:
                return position
        except CorruptData:
            continue
    return None


def _candidates(file: File, start: int, size: int, base_offset: int) -> Iterator[int]:
    """Places where a frame of the segment may stand, ascending."""
    halves = {offset >> 32 for offset in (base_offset, base_offset + INT32_MAX)}
    wanted = [half.to_bytes(_HIGH_SIZE, "big") for half in halves]
    for chunk_start in range(start, size, CHUNK_BYTES):
        data = file.pread(CHUNK_BYTES + FRAME_PREFIX_SIZE - 1, chunk_start)
        if not data.strip(b"\0"):
            continue  # zeros that were preallocated
        left = size - chunk_start
        places = {at for half in wanted for at in _find_all(data, half)}
        yield from (chunk_start + at for at in sorted(places) if _may_be_frame(data, at, left))


def _find_all(data: bytes, wanted: bytes) -> Iterator[int]:
    end = len(data) - FRAME_PREFIX_SIZE
    at = data.find(wanted)
    while 0 <= at <= end:
        yield at
        at = data.find(wanted, at + 1)


def _may_be_frame(data: bytes, at: int, left: int) -> bool:
    """Whether length and magic can be those of a batch; `left` counts from the data's start."""
    (length,) = LENGTH.unpack_from(data, at + LENGTH_AT)
    return LENGTH_MIN <= length <= left - at - LOG_OVERHEAD and data[at + MAGIC_AT] <= MAGIC_2


def _frame_at(file: File, position: int, size: int) -> Batch | None:
    """The batch whose frame fits at a position, None where there is none."""
    head = file.pread(FRAME_PREFIX_SIZE, position)
    (length,) = LENGTH.unpack_from(head, LENGTH_AT)
    data = file.pread(min(length + LOG_OVERHEAD, size - position), position)
    try:
        return None if frame_size(data, 0, len(data)) is None else view_batch(data)
    except CorruptData:
        return None
