"""Reads a finished segment once: counts its records, and keeps the records of sampled keys.

A damaged segment does not count as sampled; the cleaning that reads it reports the damage. The
sample never decides which record a cleaning drops. Records of aborted transactions count as
committed, so the sample counts a few live records as garbage.

Imports numpy and numba. Writes no file. Needs memory for one chunk, and for the part of the chunk
that is decompressed at a time. Plain reference: `tests/worlds/records/plain_sampling.py`.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.env import File
from tidelog.errors import CorruptData, CorruptRecord
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.batch_table import SCAN_BATCHES, is_plain, join_bodies
from tidelog.record.header import CONTROL_BIT, DELETE_HORIZON_BIT, MAGIC_2
from tidelog.record.kernels import key_map as samples_at
from tidelog.record.kernels import layout
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.hashes import SIPHASH, make_hasher
from tidelog.record.kernels.key_map import sample_keys
from tidelog.record.kernels.layout import REASONS, scan_error
from tidelog.record.offset_order import ANY_OFFSETS
from tidelog.storage.compaction.generations.estimates import KeySamples
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Longs


# Bytes to read at a time.
CHUNK_BYTES: Final = 4 << 20

NO_HORIZON: Final = -1


@dataclass(slots=True, kw_only=True)
class SegmentSample:
    """Result of one pass over a segment.

    Attributes:
        records: Number of records, not counting control records.
        record_bytes: Size of these records in bytes, uncompressed.
        due_ms: Latest delete horizon of the segment's batches; -1 if no batch has one.
    """

    records: int = 0
    record_bytes: int = 0
    due_ms: int = NO_HORIZON


def sample_segment(file: File, path: str, seed: bytes, samples: KeySamples) -> SegmentSample:
    """Read a log file: count its records, and add the records of sampled keys to `samples`.

    Args:
        file: A finished log file.
        path: Name of the file, for errors.
        seed: The secret that seeds the hash by which keys are sampled.
        samples: Receives the records of sampled keys.

    Raises:
        CorruptData: A batch or a record is damaged; the error has the position of the damage.
        UnsupportedCompression: The codec number is undefined.
        OSError: The disk failed.
    """
    work = _Pass(seed, samples)
    position, end, read_bytes = 0, file.size(), CHUNK_BYTES
    while position < end:
        chunk = file.pread(min(read_bytes, end - position), position)
        try:
            used = work.take(chunk)
        except CorruptData as error:
            raise error.located(path, position) from error
        if not used and len(chunk) >= end - position:
            break  # an incomplete batch at the end
        position += used
        read_bytes = CHUNK_BYTES if used else read_bytes * 2
    return work.segment_sample


class _Pass:
    """One pass over one segment."""

    def __init__(self, seed: bytes, samples: KeySamples) -> None:
        self.segment_sample = SegmentSample()
        self._samples = samples
        self._between = ANY_OFFSETS
        self._hasher = make_hasher(SIPHASH, seed)

    def take(self, chunk: bytes) -> int:
        """Process the complete batches of a chunk; return the size of these batches in bytes."""
        log: Bytes = np.frombuffer(chunk, np.uint8)
        at, used, status = 0, 0, layout.FULL
        table: Longs = np.empty((SCAN_BATCHES, layout.BATCH_FIELDS), np.int64)
        while status == layout.FULL:
            count, at, status = scan_batches(log, at, log.size, table, *self._between)
            error = None
            if status not in (layout.DONE, layout.FULL, layout.PARTIAL):
                error = scan_error(log, table, count, at, status, *self._between)
            if count:
                self._take_table(log, table[:count])
                last = table[count - 1]
                used = int(last[layout.POSITION] + last[layout.SIZE])
                self._between = int(last[layout.LAST_OFFSET]) + 1, INT64_MAX
            if error is not None:
                raise error
        return used

    def _take_table(self, log: "Bytes", table: "Longs") -> None:
        is_2 = table[:, layout.MAGIC] == MAGIC_2
        marked = is_2 & (table[:, layout.ATTRIBUTES] & DELETE_HORIZON_BIT != 0)
        if marked.any():
            latest = int(table[marked, layout.BASE_TIMESTAMP].max())
            self.segment_sample.due_ms = max(self.segment_sample.due_ms, latest)
        data = table[~is_2 | (table[:, layout.ATTRIBUTES] & CONTROL_BIT == 0)]
        if not len(data):
            return
        if is_plain(data).all():
            self._sample(log, data)
            return
        for body, rows in join_bodies(log, data, check_crc=False):
            self._sample(body, rows)

    def _sample(self, data: "Bytes", table: "Longs") -> None:
        # A record has at least 7 bytes; the kernel refuses a record count for which the batch is
        # too short.
        room = np.minimum(
            np.maximum(table[:, layout.RECORD_COUNT], 0),
            (table[:, layout.BODY_END] - table[:, layout.BODY_START]) // 7 + 1,
        )
        out: Longs = np.empty((int(room.sum()), samples_at.SAMPLE_FIELDS), np.int64)
        totals: Longs = np.zeros(samples_at.TOTALS, np.int64)
        mask = (1 << self._samples.shift) - 1
        status, at = sample_keys(data, table, self._hasher, mask, out, totals)
        if status != layout.DONE:
            raise CorruptRecord(REASONS[status], at=at)
        self.segment_sample.records += int(totals[samples_at.RECORDS])
        self.segment_sample.record_bytes += int(totals[samples_at.RECORD_BYTES])
        sampled: list[tuple[int, int, int]] = out[: totals[samples_at.SAMPLED]].tolist()
        self._samples.add(sampled)
