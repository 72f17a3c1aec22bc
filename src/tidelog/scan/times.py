"""Append times of a piece as the decoder wants them: where runs start, and their times."""

import uuid
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tidelog.record.kernels.sums import count_chained, sum_tables
from tidelog.scan.split import Piece
from tidelog.storage.append_time import HEADER_SIZE, ROW_SIZE, AppendTimes, encode_header

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

_UNKNOWN_MS: Final = -1
# As `AppendTimes` says.
_ROW: Final = np.dtype([("ms", ">i8"), ("relative", ">i4"), ("batch_crc", ">u4"), ("crc", ">u4")])


@dataclass(frozen=True, slots=True)
class AppendRuns:
    """Runs of offsets with one append time each.

    Attributes:
        arrays: First offset of each run, and its time in ms or -1.
    """

    arrays: "tuple[Longs, Longs]"

    @classmethod
    def decode(cls, data: bytes, piece: Piece, topic_id: str) -> Self:
        """What the file says of the piece's offsets, as far as the plan believed it."""
        owner = uuid.UUID(hex=topic_id) if topic_id else uuid.UUID(int=0)
        found = _sound_rows(data, piece.base_offset, owner)
        if found is None:
            # The plan has looked at the file's end: what is missing there is behind `times_end`.
            times, _ = AppendTimes.decode(data, piece.base_offset, owner, open_end=True)
            offsets, times_ms, _ = times.rows().columns
            found = np.array(offsets, np.int64), np.array(times_ms, np.int64)
        end = max(min(piece.end_offset, piece.times_end), piece.start_offset)
        first = max(int(np.searchsorted(found[0], piece.start_offset, side="right")) - 1, 0)
        last = max(int(np.searchsorted(found[0], end)), first)
        starts, known = (column[first:last] for column in found)
        return cls((np.append(starts, end), np.append(known, _UNKNOWN_MS)))


def _sound_rows(data: bytes, base_offset: int, owner: uuid.UUID) -> "tuple[Longs, Longs] | None":
    """Offsets and times of a file that breaks no rule of `AppendTimes`; else None."""
    header, body = encode_header(base_offset, owner), np.frombuffer(data, np.uint8)[HEADER_SIZE:]
    if data[:HEADER_SIZE] != header or not body.size or body.size % ROW_SIZE:
        return None
    body.flags.writeable = False
    rows = body.view(_ROW)
    if count_chained(body, ROW_SIZE, int.from_bytes(header[-4:], "big"), _table()) != len(rows):
        return None
    times, offsets = rows["ms"].astype(np.int64), rows["relative"].astype(np.int64)
    is_known = times != _UNKNOWN_MS
    known = times[is_known]
    is_alternating = bool(is_known[0] and (is_known[1:] | is_known[:-1]).all())
    is_growing = offsets[0] >= 0 and bool((np.diff(offsets) >= is_known[:-1]).all())
    if not (is_alternating and is_growing and known[0] >= 0 and (np.diff(known) >= 0).all()):
        return None
    return offsets + base_offset, times


@cache
def _table() -> "Longs":
    return sum_tables()[1]
