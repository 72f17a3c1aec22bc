"""Append times of a piece as the decoder wants them: where runs start, and their times."""

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tidelog.scan.split import Piece
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.append_time_columns import sound_rows
from tidelog.types import UNKNOWN_MS

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs


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
        found = sound_rows(data, piece.base_offset, owner)
        if found is None:
            # The plan has looked at the file's end: what is missing there is behind `times_end`.
            times, _ = AppendTimes.decode(data, piece.base_offset, owner, open_end=True)
            offsets, times_ms, _ = times.rows().columns
            found = np.array(offsets, np.int64), np.array(times_ms, np.int64)
        end = max(min(piece.end_offset, piece.times_end), piece.start_offset)
        first = max(int(np.searchsorted(found[0], piece.start_offset, side="right")) - 1, 0)
        last = max(int(np.searchsorted(found[0], end)), first)
        starts, known = (column[first:last] for column in found)
        return cls((np.append(starts, end), np.append(known, UNKNOWN_MS)))
