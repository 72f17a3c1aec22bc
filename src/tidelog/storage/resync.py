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
CANDIDATE_LIMIT: Final = 20_000
# Of a check or a repair that somebody waits for: some seconds.
PATIENT_LIMIT: Final = 1_000_000
CHECKED_LIMIT_BYTES: Final = 1 << 32
_HIGH_SIZE: Final = 4
_LEGACY_HEADS: Final = (18, 26)  # size up to and without a key's length, by magic
_KEY_LENGTH: Final = 4


class TooManyPlaces(Exception):
    """So many places look like batches that the search has not come to its end."""


def next_sound_batch(
    file: File, start: int, size: int, *, base_offset: int, next_offset: int
) -> int | None:
    """`find_sound_batch` with patience, None where that has not come to its end, too."""
    try:
        return find_sound_batch(
            file,
            start,
            size,
            base_offset=base_offset,
            next_offset=next_offset,
            candidate_limit=PATIENT_LIMIT,
        )
    except TooManyPlaces:
        return None


def find_sound_batch(
    file: File,
    start: int,
    size: int,
    *,
    base_offset: int,
    next_offset: int,
    candidate_limit: int = CANDIDATE_LIMIT,
) -> int | None:
    """Position of the first sound batch at or behind `start`, None where there is none.

    Args:
        file: The log file.
        start: Where to begin.
        size: Where the readable bytes end, exclusive.
        base_offset: The segment's base offset.
        next_offset: The batch's offsets begin here or later.
        candidate_limit: How many places are looked at.

    Raises:
        TooManyPlaces: The search ended before its end.
    """
    seen = checked = 0
    for position in _candidates(file, start, size, base_offset):
        batch = _frame_at(file, position, size)
        if batch is None:
            continue
        seen, checked = seen + 1, checked + batch.size_bytes
        if seen > candidate_limit or checked > CHECKED_LIMIT_BYTES + size:
            raise TooManyPlaces
        if batch.last_offset - base_offset > INT32_MAX or not batch.is_valid():
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
    if head[MAGIC_AT] < MAGIC_2 and not _is_legacy(file, position, head[MAGIC_AT], length):
        return None
    data = file.pread(min(length + LOG_OVERHEAD, size - position), position)
    try:
        return None if frame_size(data, 0, len(data)) is None else view_batch(data)
    except CorruptData:
        return None


def _is_legacy(file: File, position: int, magic: int, length: int) -> bool:
    """Whether key and value of a legacy message fill its length; numbers often look like one."""
    at, end = position + _LEGACY_HEADS[magic], position + LOG_OVERHEAD + length
    for _ in ("key", "value"):
        size = int.from_bytes(file.pread(_KEY_LENGTH, at), "big", signed=True)
        at += _KEY_LENGTH + max(size, 0)
        if size < -1 or at > end:
            return False
    return at == end
