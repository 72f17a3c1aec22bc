"""Reads source segments in pieces of some MB, checks frames, and makes a table of the batches.

If the system can populate a memory map in advance, each piece is a separate memory map. Populating
the map reports a read error before the process touches a page. So a damaged disk causes an
exception, and not a signal that ends the process. On other systems, each piece is a copy. The whole
segment is never mapped, because mapped pages count as the process's memory: maps of all sources
together would need many times the memory limit of a cleaning.

Imports numpy and numba.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.env import Env, File, mappable_file
from tidelog.errors import CorruptBatch, CorruptData, UnsupportedCompression
from tidelog.lazy_dataclass import dataclass
from tidelog.record.buffers import OPENED_BYTES, BodyBuffer
from tidelog.record.columns.batch_table import (
    first_checksum_mismatch,
    is_plain,
    lz4_frames,
    open_body,
)
from tidelog.record.header import (
    CODEC_MASK,
    CONTROL_BIT,
    LENGTH,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_2,
    TIMESTAMP_TYPE_BIT,
)
from tidelog.record.kernels import layout
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.checksums import HAS_INSTRUCTION
from tidelog.record.kernels.layout import REASONS, scan_error
from tidelog.record.legacy import LegacyBatch
from tidelog.record.offset_order import cut_problem, segment_limit
from tidelog.record.record import RECORD_SIZE_MIN, encode_record
from tidelog.storage import files, log_files
from tidelog.storage.compaction.job import CleaningJob, SourceSegment, Throttle
from tidelog.types import NO_TIMESTAMP, Buffer, TimestampType

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs

    Mask = npt.NDArray[np.bool_]


# Bytes to read at a time, so that the fixed cost of a piece (0.3 ms in both passes) is small.
PIECE_BYTES: Final = 16 << 20

# Maximum number of rows in the table of a piece; a segment with more batches has more pieces.
PIECE_BATCHES: Final = 8192


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole batches of a segment.

    Attributes:
        path: The log file.
        position: Position of `data` in the file.
        data: The bytes.
        table: Table of the batches; POSITION is relative to `data`.
        is_checked: Whether all checksums have been verified.
    """

    path: str
    position: int
    data: "Bytes"
    table: "Longs"
    is_checked: bool = True

    @property
    def start(self) -> int:
        """Position in the file of the piece's first batch."""
        return self.position + int(self.table[0, layout.POSITION])

    @property
    def end(self) -> int:
        """Position in the file after the piece's last batch."""
        return self.position + int(self.table[-1, layout.POSITION] + self.table[-1, layout.SIZE])

    @property
    def size_bytes(self) -> int:
        """Size of the piece's batches in bytes."""
        return self.end - self.start

    def part(self, start: int, end: int) -> "Piece":
        """Return a piece with only the batches in the rows [start, end)."""
        return replace(self, table=self.table[start:end])

    @property
    def is_control(self) -> "Mask":
        """Mask of the batches that hold control records."""
        mask: Mask = self.table[:, layout.ATTRIBUTES] & CONTROL_BIT != 0
        return mask

    def corrupt(self, slot: int, reason: str) -> CorruptBatch:
        """Return an error for the batch in row `slot`, with the batch's file and position."""
        position = self.position + int(self.table[slot, layout.POSITION])
        offset = int(self.table[slot, layout.BASE_OFFSET])
        return CorruptBatch(reason, path=self.path, position=position, offset=offset)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Add the file to an error raised in this context; for damage, add the position, too."""
        try:
            yield
        except UnsupportedCompression as error:
            raise UnsupportedCompression(f"{self.path}: {error}") from error
        except CorruptData as error:
            raise error.located(self.path, self.position) from error


class SourceReader:
    """Reads the segments of one job.

    Attributes:
        bytes_read: Bytes read so far.
        arena: Buffer that batches are decompressed into.
    """

    def __init__(self, job: CleaningJob, env: Env, throttle: Throttle | None) -> None:
        self._directory = job.directory
        self._files = env.files
        self._throttle = throttle
        self._table: Longs = np.empty((PIECE_BATCHES, layout.BATCH_FIELDS), np.int64)
        self.bytes_read = 0
        self.arena = BodyBuffer()

    def path(self, source: SourceSegment) -> str:
        """Return the path of a source's log file."""
        return f"{self._directory}/{log_files.log_file_name(source.base_offset)}"

    def pieces(
        self,
        source: SourceSegment,
        start: int = 0,
        end: int | None = None,
        *,
        check: bool,
        sums: bool = True,
    ) -> Iterator[Piece]:
        """Yield all batches between two positions, in pieces and in order.

        A piece is valid until the next piece is requested.

        Args:
            source: The segment.
            start: Position of the first batch to yield.
            end: Position after the last batch to yield; None for the end of the segment.
            check: Whether checksums must be verified; False if they were verified before.
            sums: Whether this method verifies the checksums; if False, the caller verifies each
                piece whose `is_checked` is false.

        Raises:
            CorruptBatch: An invalid frame, a wrong checksum, offsets out of order, or a segment
                that ends in the middle of a batch; the error has the position of the damage.
            OSError: The disk failed.
        """
        path = self.path(source)
        file = self._files.open(path)
        try:
            for piece in self._walk(file, path, source, (start, end)):
                if check and sums:
                    check_sums(piece)
                yield replace(piece, is_checked=sums or not check)
        finally:
            file.close()

    def _walk(
        self,
        file: File,
        path: str,
        source: SourceSegment,
        span: tuple[int, int | None],
    ) -> Iterator[Piece]:
        position = span[0]
        end = source.size_bytes if span[1] is None else span[1]
        next_offset, read_bytes = source.base_offset, PIECE_BYTES
        limit = segment_limit(source.base_offset, source.end_offset)
        while position < end:
            raw = self._read(file, path, min(read_bytes, end - position), position)
            data: Bytes = np.frombuffer(raw, np.uint8)
            at, status = 0, layout.FULL
            while status == layout.FULL:
                table = self._table
                count, after, status = scan_batches(data, at, data.size, table, next_offset, limit)
                error = None
                if status not in (layout.DONE, layout.FULL, layout.PARTIAL):
                    error = scan_error(data, table, count, after, status, next_offset, limit)
                if count:
                    next_offset = int(table[count - 1, layout.LAST_OFFSET]) + 1
                    yield Piece(path, position, data, table[:count])
                if error is not None:
                    raise error.located(path, position)
                at = after
            if at == 0:
                read_bytes = _whole_size(raw, read_bytes)
                if read_bytes > end - position:
                    self._end_in_batch(path, position, end, next_offset, source)
                    return
            else:
                read_bytes = PIECE_BYTES
            position += at

    def _read(self, file: File, path: str, size: int, position: int) -> Buffer:
        if self._throttle is not None:
            self._throttle.take(size)
        local = mappable_file(file)
        mapped = None if local is None else local.map_resident(size, position)
        if mapped is not None:
            self.bytes_read += size
            return mapped
        try:
            data = files.read_exactly(file, size, position)
        except CorruptData as error:
            raise CorruptBatch(error.reason, path=path, position=position) from error
        self.bytes_read += size
        return data

    def _end_in_batch(
        self, path: str, position: int, end: int, next_offset: int, source: SourceSegment
    ) -> None:
        """Raise CorruptBatch if the segment ends in the middle of a batch and offsets are missing.

        If no offset is missing, the bytes are a torn write that was never part of the segment.
        """
        problem = cut_problem(end - position, next_offset, source.end_offset)
        if problem is not None:
            raise CorruptBatch(problem, path=path, position=position, offset=next_offset)


def _whole_size(raw: Buffer, read_bytes: int) -> int:
    """Return how many bytes have to be read for the first batch; always more than `raw` has."""
    if len(raw) < LOG_OVERHEAD:
        return max(read_bytes, PIECE_BYTES) + 1
    (length,) = LENGTH.unpack_from(raw, LENGTH_AT)
    return max(int(length) + LOG_OVERHEAD, len(raw) + 1)


def check_sums(piece: Piece) -> None:
    """Raise CorruptBatch for the first batch whose checksum is wrong."""
    is_2 = piece.table[:, layout.MAGIC] == MAGIC_2
    for slot in np.flatnonzero(~is_2).tolist():
        with piece.located():
            LegacyBatch(piece.data.data, int(piece.table[slot, layout.POSITION])).ensure_valid()
    error = first_checksum_mismatch(piece.data, piece.table)
    if error is not None:
        raise error.located(piece.path, piece.position)


def lies_plainly(piece: Piece) -> bool:
    """Return whether kernels can read and check all batches in place, without decompression."""
    return HAS_INSTRUCTION and bool(is_plain(piece.table).all())


@dataclass(frozen=True, slots=True)
class OpenedBatches:
    """Batches with uncompressed bodies in `bodies`; legacy batches are converted to magic 2.

    Attributes:
        bodies: Buffer that BODY_START and BODY_END of the requested batches point into.
        table: Consecutive batches of a piece. For opened legacy batches, base offset, times and
            number of records are corrected; MAGIC is unchanged.
    """

    bodies: "Bytes"
    table: "Longs"


def opened_groups(
    piece: Piece, is_requested: "Mask", arena: BodyBuffer
) -> Iterator[tuple[int, int, OpenedBatches]]:
    """Yield all batches of a piece in groups, each with the bodies of the requested batches.

    A group has about `OPENED_BYTES` of bodies, or one larger body. The bodies may be in `arena`, so
    a group is valid until the next group is yielded.

    Returns:
        First row of the group, the row after its last row, and the group.

    Raises:
        CorruptBatch, CorruptRecord: A batch can't be decompressed, or a message is damaged; the
            error has the position of the damage.
        UnsupportedCompression: The codec number is undefined.
    """
    codec = piece.table[:, layout.ATTRIBUTES] & CODEC_MASK
    is_packed = is_requested & ((piece.table[:, layout.MAGIC] != MAGIC_2) | (codec != 0))
    if not is_packed.any():
        yield 0, len(piece.table), OpenedBatches(piece.data, piece.table)
        return
    start = 0
    while start < len(piece.table):
        arena.clear()
        end, opened = _open_some(piece, is_requested, start, arena)
        yield start, end, opened
        start = end


def _open_some(
    piece: Piece, is_requested: "Mask", start: int, arena: BodyBuffer
) -> tuple[int, OpenedBatches]:
    """Open the group of batches from row `start` on; return the row after it, and the group."""
    table = piece.table[start:].copy()
    slots = np.flatnonzero(is_requested[start:])
    spans, behind = list[tuple[int, int]](), len(table)
    frames = lz4_frames(table[slots])
    with piece.located():
        for slot, frame in zip(slots.tolist(), frames, strict=True):
            if arena.used >= OPENED_BYTES:
                behind = slot
                break
            at, body = arena.used, _open(piece, table[slot], frame, arena)
            if not arena.put(body):
                if not at:
                    return start + slot + 1, _alone(body, table[: slot + 1])
                behind = slot  # too large for a group with other batches
                break
            spans.append((at, arena.used))
    if spans:
        opened = slots[: len(spans)]
        table[opened, layout.BODY_START], table[opened, layout.BODY_END] = np.array(spans).T
    return start + behind, OpenedBatches(np.frombuffer(arena.content, np.uint8), table[:behind])


def _alone(body: Buffer, table: "Longs") -> OpenedBatches:
    """Return a group with only one opened batch, which is the last row of `table`."""
    table[-1, layout.BODY_START], table[-1, layout.BODY_END] = 0, len(body)
    return OpenedBatches(np.frombuffer(body, np.uint8), table)


def _open(piece: Piece, row: "Longs", frame: slice | None, arena: BodyBuffer) -> Buffer:
    """Return a batch's records as a body of magic 2; fill in the row of a legacy batch."""
    view, position = piece.data.data, int(row[layout.POSITION])
    if frame is None and row[layout.MAGIC] != MAGIC_2:
        return _open_legacy(view, position, row)
    return open_body(view, position, frame, arena)


def _open_legacy(view: memoryview, position: int, row: "Longs") -> bytearray:
    """Return the records of a message or wrapper as a body of magic 2; correct the table row."""
    batch = LegacyBatch(view, position)
    records = list(batch.records(check_crc=False))
    stamped = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    # A LogAppendTime message has no create time. In a batch of magic 2, -1 stands for a missing
    # create time.
    creates = [NO_TIMESTAMP if stamped else record.timestamp for record in records]
    base, timestamp = records[0].offset, creates[0]
    body = bytearray()
    for record, created in zip(records, creates, strict=True):
        encode_record(
            body,
            record,
            timestamp_delta=created - timestamp,
            offset_delta=record.offset - base,
        )
    row[layout.BASE_OFFSET] = base
    row[layout.RECORD_COUNT] = len(records)
    row[layout.ATTRIBUTES] = int(batch.codec) | (TIMESTAMP_TYPE_BIT if stamped else 0)
    row[layout.BASE_TIMESTAMP] = timestamp
    row[layout.MAX_TIMESTAMP] = max(record.timestamp for record in records)
    return body


def check_counts(piece: Piece, opened: OpenedBatches, is_opened: "Mask") -> None:
    """Raise CorruptBatch if an opened batch is too small for its record count."""
    counts = opened.table[:, layout.RECORD_COUNT]
    room = opened.table[:, layout.BODY_END] - opened.table[:, layout.BODY_START]
    is_bad = is_opened & ((counts < 0) | (counts * RECORD_SIZE_MIN > room))
    if is_bad.any():
        raise piece.corrupt(int(np.flatnonzero(is_bad)[0]), REASONS[layout.BAD_COUNT])
