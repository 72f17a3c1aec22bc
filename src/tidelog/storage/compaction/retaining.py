"""Which batches stay even where none of their records does, as empty ones.

The last data batch of a producer that is alive, since it holds his last sequence number (or his
last marker, since it holds his epoch), and the batch that ends where the round does, so that the
log's offsets are not lost.

Imports numpy. Source: KAFKA-5490; Kafka 4.x Cleaner.
"""

from typing import TYPE_CHECKING

import numpy as np

from tidelog.record.kernels import layout
from tidelog.storage.compaction.job import CleaningJob
from tidelog.storage.compaction.sources import Piece

if TYPE_CHECKING:
    from tidelog.storage.compaction.sources import Mask


class Retention:
    """What of a job's batches is kept at least as an empty batch."""

    def __init__(self, job: CleaningJob) -> None:
        self._last_offset = job.upper_bound_offset - 1
        self._producers = dict(job.active_producers)
        self._producer_ids = np.array(list(self._producers), np.int64)

    def kept_if_empty(self, piece: Piece) -> "Mask":
        """Which batches of a piece those are."""
        table = piece.table
        found: Mask = table[:, layout.LAST_OFFSET] == self._last_offset
        if len(self._producer_ids):
            candidates = np.isin(table[:, layout.PRODUCER_ID], self._producer_ids)
            for slot in np.flatnonzero(candidates & ~found).tolist():
                found[slot] = self._is_last(piece, slot)
        return found

    def _is_last(self, piece: Piece, slot: int) -> bool:
        row = piece.table[slot]
        last_offset, epoch = self._producers[int(row[layout.PRODUCER_ID])]
        if last_offset >= 0:
            return bool(row[layout.LAST_OFFSET] == last_offset)
        return bool(piece.is_control[slot] and row[layout.PRODUCER_EPOCH] == epoch)
