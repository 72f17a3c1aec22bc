"""Append times of a piece as the decoder wants them: where runs start, and their times."""

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tidelog.scan.split import Piece
from tidelog.storage.append_time import AppendTimes

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

_UNKNOWN_MS = -1


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
        # The plan has looked at the end of the file: what is missing there is behind `times_end`.
        times, _ = AppendTimes.decode(data, piece.base_offset, owner, open_end=True)
        end = min(piece.end_offset, piece.times_end)
        runs = times.runs(piece.start_offset, end) if piece.start_offset < end else []
        starts = [start for start, _, _ in runs]
        known = [_UNKNOWN_MS if ms is None else ms for _, _, ms in runs]
        starts.append(max(end, piece.start_offset))
        known.append(_UNKNOWN_MS)
        return cls((np.array(starts, np.int64), np.array(known, np.int64)))
