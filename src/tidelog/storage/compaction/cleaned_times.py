"""When the records of a cleaned segment were appended: taken over from the files of its sources.

Imports numpy and numba.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidelog.env import Env
from tidelog.errors import CorruptData
from tidelog.record.kernels import rewrite
from tidelog.storage import append_time_columns, files
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.compaction.job import CleaningJob, SourceSegment
from tidelog.types import UNKNOWN_MS, Buffer

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Longs


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches to write, back to back.

    Shape:
        rows: int64[batches, WRITTEN_FIELDS]; WRITTEN_AT counts from the first one.
        crcs: int64[batches], the checksum fields.
        epochs: int64[batches], leader epochs.

    Attributes:
        buffers: Their bytes.
    """

    rows: "Longs"
    crcs: "Longs"
    epochs: "Longs"
    buffers: list[Buffer]

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return int(self.rows[:, rewrite.WRITTEN_SIZE].sum())


class SourceTimes:
    """When the records of a source were appended, as far as its file is believed."""

    def __init__(self, job: CleaningJob, source: SourceSegment, env: Env) -> None:
        self._offsets, known = _read_times(job, source, env)
        self._known: Longs = np.concatenate(([UNKNOWN_MS], known))

    def at(self, offsets: "Longs") -> "Longs":
        """The append time of each offset in ms, -1 for unknown."""
        found: Longs = self._known[np.searchsorted(self._offsets, offsets, side="right")]
        return found


def _read_times(job: CleaningJob, source: SourceSegment, env: Env) -> "tuple[Longs, Longs]":
    """Offsets and times of a source's rows."""
    name = files.file_name(source.base_offset, files.APPEND_TIME_SUFFIX)
    limit = max(source.size_bytes, files.SMALL_FILE_LIMIT_BYTES)
    try:
        data = files.read_file(env.files, f"{job.directory}/{name}", limit=limit)
    except (FileNotFoundError, CorruptData):
        data = b""
    is_whole = source.append_end >= source.end_offset
    if is_whole and (
        found := append_time_columns.sound_rows(data, source.base_offset, job.topic_id)
    ):
        return found
    times, _ = AppendTimes.decode(data, source.base_offset, job.topic_id, open_end=True)
    if not is_whole:
        times.truncate_to(source.append_end)
        times.mark_unknown(source.append_end)
    offsets, known, _ = times.rows().columns
    return np.array(offsets, np.int64), np.array(known, np.int64)


class CleanedTimes:
    """The append times of one cleaned segment: write* -> finish.

    Attributes:
        known: The times so far.
    """

    def __init__(self, job: CleaningJob, base_offset: int) -> None:
        self.known = AppendTimes(base_offset, job.topic_id)
        self._next_offset = base_offset
        self._last_named = 0
        self._last_ms = UNKNOWN_MS

    def write(self, batches: Batches, times: SourceTimes) -> None:
        """Note when batches were appended, as their source knows it; a row where that moves."""
        bases = batches.rows[:, rewrite.WRITTEN_BASE]
        found = times.at(bases)
        before = np.concatenate(([self._last_ms], found[:-1]))
        rows = np.flatnonzero(found != before)
        names = append_time_columns.fingerprints(batches.crcs, batches.epochs, bases)
        last_ms = self.known.last_known_ms
        is_growing = bool((found[rows] > before[rows]).all())
        if is_growing and (last_ms is None or not len(rows) or found[rows[0]] > last_ms):
            append_time_columns.add_known(self.known, bases[rows], found[rows], names[rows])
        else:
            self._note_one_by_one(batches, rows, found, names)
        self._last_ms, self._last_named = int(found[-1]), int(names[-1])
        self._next_offset = int(batches.rows[-1, rewrite.WRITTEN_LAST]) + 1

    def _note_one_by_one(
        self, batches: Batches, rows: "npt.NDArray[np.intp]", found: "Longs", names: "Longs"
    ) -> None:
        """Where some times are not known, or fall from one source to the next."""
        for row in rows.tolist():
            append_ms, last_ms = int(found[row]), self.known.last_known_ms
            if append_ms == UNKNOWN_MS or (last_ms is not None and append_ms < last_ms):
                self._note_unknown(batches, row, names)
            else:
                base = int(batches.rows[row, rewrite.WRITTEN_BASE])
                self.known.note(base, append_ms, int(names[row]))

    def _note_unknown(self, batches: Batches, row: int, names: "Longs") -> None:
        """Nobody knows when that batch was appended."""
        if row == 0:
            self.known.mark_unknown(self._next_offset, self._last_named)
            return
        end = int(batches.rows[row - 1, rewrite.WRITTEN_LAST]) + 1
        self.known.mark_unknown(end, int(names[row - 1]))

    def finish(self) -> bytes:
        """The bytes of the file, none where nothing is known."""
        self.known.close(self._next_offset, self._last_named)
        return append_time_columns.encode(self.known) if self.known.row_count else b""
