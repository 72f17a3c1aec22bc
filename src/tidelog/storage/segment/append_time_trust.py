"""Decides which append times of a partition are proven, by a checkpoint and by fingerprints.

A row of `.appendtime` gives the append time of all batches from the row's offset up to the next
row's offset. Between two runs of tidelog, another program (Apache Kafka) or a person may have
truncated the log and appended other records at the same offsets. A crash may have kept a row and
lost its records, or kept records and lost their row. So a row's offset alone does not prove that
the row is right. Two things can prove a row:

1. `append-time-checkpoint`, written at every clean close, has the log end and the base offset and
   fingerprint of the last batch. If the last batch still exists, the log was never truncated below
   the recorded log end. So every row below the recorded log end is right, even if compaction has
   removed records since that close.
2. Rows after the recorded log end, or all rows if the checkpoint does not match the log, are
   checked by fingerprint. A row is proven if the batch at its offset has the row's fingerprint. A
   log is truncated and appended to only at its end, so a proven row also proves every row before
   it. The last proven row gives the append time of only one batch, the batch at the row's offset.

All other times are unknown. The checkpoint is lowered, durably, before a truncation.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from tidelog.env import FileSystem
from tidelog.errors import CorruptData, CorruptFile
from tidelog.record.batch_walk import Batch
from tidelog.record.coding import crc32c
from tidelog.storage import files, text_files
from tidelog.storage.clocks.append_times import AppendTimeRow, AppendTimes
from tidelog.storage.segment.index_proof import batch_reaching, position_floor
from tidelog.storage.segment.segment import Segment, iterate_batches

NOTHING: Final = 0

# Allowed numbers of fields. Old checkpoints lack the last field, the last append time, which is
# then unknown.
_FIELD_COUNTS: Final = (3, 4)

_NAMED: Final = struct.Struct(">Iiq")


class AppendTimeCheckpoint(NamedTuple):
    """Log end at the last clean close, and the batch that ended there.

    Attributes:
        end_offset: Log end offset, exclusive. Append times below the log end are trusted.
        last_base_offset: Base offset of the last batch; -1 if the checkpoint names no batch.
        last_fingerprint: `fingerprint` of the last batch.
        last_ms: Last append time that was assigned, in ms; -1 if unknown. No later append time may
            be smaller, even if retention has deleted every record with that time.
    """

    end_offset: int
    last_base_offset: int
    last_fingerprint: int
    last_ms: int = -1

    @classmethod
    def read(cls, fs: FileSystem, directory: str) -> Self | None:
        """Read the partition's checkpoint, None if it is missing or unreadable."""
        path = f"{directory}/{files.APPEND_TIME_CHECKPOINT_FILE}"
        try:
            rows = text_files.decode_checkpoint(files.read_file(fs, path), *_FIELD_COUNTS)
            (row,) = rows
            return cls(*(text_files.parse_number(text, "checkpoint field") for text in row))
        except (FileNotFoundError, CorruptFile, ValueError):
            return None

    def write(self, fs: FileSystem, directory: str) -> None:
        """Replace the partition's checkpoint, durably."""
        line = f"{self.end_offset} {self.last_base_offset} {self.last_fingerprint} {self.last_ms}"
        path = f"{directory}/{files.APPEND_TIME_CHECKPOINT_FILE}"
        files.write_atomically(fs, path, text_files.encode_checkpoint([line]))


def fingerprint(batch: Batch) -> int:
    """Return a batch's fingerprint: a hash of its checksum field, leader epoch and offset.

    The checksum field alone would not suffice, because it does not cover the epoch. After a batch
    was lost, its producer may send the same batch to another leader. That leader appends the batch
    at the same offset under another epoch.
    """
    try:
        first = batch.base_offset
    except CorruptData:
        # The base offset can't be read if the batch is an old wrapper that can't be decoded, or if
        # the batch's magic has a flipped bit. The last offset is in the header.
        first = batch.last_offset
    return fingerprint_of(batch.crc, batch.leader_epoch, first)


def fingerprint_of(crc: int, leader_epoch: int, base_offset: int) -> int:
    """Return the fingerprint of a batch with these header fields."""
    return crc32c(_NAMED.pack(crc, leader_epoch, base_offset))


def trusted_end(checkpoint: AppendTimeCheckpoint | None, segments: list[Segment]) -> int:
    """Return the offset below which every append-time row is right; 0 if unknown."""
    if checkpoint is None:
        return NOTHING
    if checkpoint.last_base_offset < 0:
        return checkpoint.end_offset
    for segment in reversed(segments):
        if segment.base_offset <= checkpoint.last_base_offset:
            batch = batch_starting_at(segment, checkpoint.last_base_offset)
            fits = batch is not None and fingerprint(batch) == checkpoint.last_fingerprint
            return checkpoint.end_offset if fits else NOTHING
    return NOTHING


def _batch_reaching(segment: Segment, offset: int, fits: Callable[[Batch], bool]) -> Batch | None:
    """Return the first batch whose last offset is `offset` or more.

    Return None if this batch is missing or damaged, or if `fits` returns False for it.
    """
    try:
        hit = batch_reaching(segment, offset)
        return hit[1] if hit is not None and fits(hit[1]) else None
    except CorruptData:
        return None


def batch_starting_at(segment: Segment, base_offset: int) -> Batch | None:
    """Return the batch with exactly this base offset; None if it is missing or damaged."""
    return _batch_reaching(segment, base_offset, lambda batch: batch.base_offset == base_offset)


def batch_ending_at(segment: Segment, end_offset: int) -> Batch | None:
    """Return the batch whose next offset is `end_offset`; None if it is missing or damaged."""
    return _batch_reaching(segment, end_offset - 1, lambda batch: batch.next_offset == end_offset)


def proven_end(segment: Segment, times: AppendTimes, trusted: int) -> int:
    """Return the offset below which the segment's rows are trusted.

    Args:
        segment: The segment; its log file proves the rows.
        times: The segment's append times as read from the file.
        trusted: Result of `trusted_end` for the whole log.
    """
    if times.is_open and times.rows()[-1].offset < min(trusted, segment.end_offset):
        # The log was cleanly closed at a later offset, so the append-time file must have had an end
        # row. The end row is missing, so the file has lost its last rows.
        trusted = times.rows()[-1].offset
    if segment.end_offset <= trusted:
        return segment.end_offset
    sure = max(trusted, segment.base_offset)
    for row in reversed(times.rows()):
        if row.offset < sure:
            break
        proven = _proven_end(segment, row)
        if proven is not None:
            return max(sure, proven)
    return sure


def _proven_end(segment: Segment, row: AppendTimeRow) -> int | None:
    """Return the end offset of the append times that a row proves; None if it proves none."""
    if row.append_ms >= 0:
        batch = batch_starting_at(segment, row.offset)
        end = None if batch is None else batch.next_offset
    else:
        batch = batch_ending_at(segment, row.offset)
        end = row.offset
    if batch is None or fingerprint(batch) != row.batch_crc or not batch.is_valid():
        return None
    return end


def last_batch(segment: Segment) -> Batch | None:
    """Return a segment's last batch; None if the segment is empty or damaged before the batch."""
    last = None
    start = position_floor(segment, segment.end_offset)
    try:
        for _, batch in iterate_batches(segment, start, segment.size_bytes):
            last = batch
    except CorruptData:
        return None  # readers report the damage; opening and closing continue
    return last
