"""Builds tables of batches: checks frames and CRCs, decompresses bodies, selects batches to skip.

A batch is skipped only because of values in its header, and only if its CRC is right. If all
batches of a group are decoded and the CPU has an instruction for CRC-32C, the decoder itself can
check the CRC of each batch, just before it decodes the batch.

Bodies of compressed and of legacy batches are written one after the other into one scratch buffer.
Their `BODY_START` and `BODY_END` are positions in that buffer, but `POSITION` is still the batch's
position in the log. The positions of lz4 frames are computed from the table's columns, without a
Python object for each batch: creating this object would cost more than decompressing 16 KB.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.errors import CorruptBatch, TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.buffers import BodyBuffer
from tidelog.record.coding import crc32c_spans
from tidelog.record.header import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    MAGIC_2,
    TIMESTAMP_TYPE_BIT,
)
from tidelog.record.kernels import layout
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.checksums import (
    HAS_INSTRUCTION,
    NONE_BAD,
    find_checksum_mismatch,
    shifts,
)
from tidelog.record.kernels.layout import scan_error
from tidelog.record.legacy import LegacyBatch
from tidelog.record.lz4_frame import BLOCK_BYTES, decompress_single
from tidelog.record.offset_order import ANY_OFFSETS
from tidelog.record.record import Record, encode_record
from tidelog.types import INT64_MAX, NO_TIMESTAMP, Buffer, Codec, TimestampType

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs

    Mask = npt.NDArray[np.bool_]


# Number of bytes of decompressed bodies that are decoded together. Bodies are joined until they
# have at least this number of bytes, so a group exceeds it by at most the decompression limit of
# one batch.
SCRATCH_BYTES: Final = 1 << 20


def is_plain(table: "Longs") -> "npt.NDArray[np.bool_]":
    """Return a mask of the batches that can be decoded in place: uncompressed, of magic 2."""
    codec = table[:, layout.ATTRIBUTES] & CODEC_MASK
    plain: npt.NDArray[np.bool_] = (table[:, layout.MAGIC] == MAGIC_2) & (codec == 0)
    return plain


def is_frame(table: "Longs") -> "Mask":
    """Return a mask of the legacy messages whose records are not read yet.

    Their rows have no attributes and no timestamps. A message that is a wrapper has several
    records.
    """
    frames: Mask = (table[:, layout.MAGIC] < MAGIC_2) & (table[:, layout.RECORD_COUNT] < 0)
    return frames


def join_bodies(
    log: "Bytes", table: "Longs", *, check_crc: bool, drop_batch: "DropBatch | None" = None
) -> Iterator[tuple["Bytes", "Longs"]]:
    """Yield scratch buffers of decompressed bodies, each with the table of its batches, in order.

    Args:
        log: The bytes that the table describes.
        table: Batches of any magic and codec.
        check_crc: Whether to check the CRCs of legacy messages. The caller has already checked the
            CRCs of magic-2 batches.
        drop_batch: See `Selection`. Legacy messages are already split into records here, so the
            function gets one row for each record of a legacy message.

    Raises:
        CorruptBatch: A batch does not decompress within its limit, or a message's CRC is wrong.
        CorruptRecord: A legacy message breaks a rule of the format.
        UnsupportedCompression: The codec is undefined.
    """
    view = log.data
    parts: list[Buffer] = []
    rows: list[Longs] = []
    used = 0
    for batch in table:
        try:
            for row, body in _open(view, batch, check_crc=check_crc):
                is_legacy = row[layout.MAGIC] < MAGIC_2
                if is_legacy and drop_batch is not None and drop_batch(row[np.newaxis])[0]:
                    continue
                row[layout.BODY_START], row[layout.BODY_END] = used, used + len(body)
                used += len(body)
                rows.append(row)
                parts.append(body)
        except TidelogError:
            if rows:
                yield _joined(parts, rows)
            raise
        if used >= SCRATCH_BYTES:
            yield _joined(parts, rows)
            parts, rows, used = [], [], 0
    if rows:
        yield _joined(parts, rows)


def _joined(parts: list[Buffer], rows: list["Longs"]) -> tuple["Bytes", "Longs"]:
    return np.frombuffer(b"".join(parts), np.uint8), np.stack(rows)


def _open(view: memoryview, batch: "Longs", *, check_crc: bool) -> Iterator[tuple["Longs", Buffer]]:
    """Yield the table's row and the uncompressed body of a batch.

    For a legacy batch, yield a row and a body for each record, as if each record were a magic-2
    batch.
    """
    at = int(batch[layout.POSITION])
    if batch[layout.MAGIC] == MAGIC_2:
        yield batch, RecordBatch(view, at).body()
        return
    for record in LegacyBatch(view, at).records(check_crc=check_crc):
        body = bytearray()
        encode_record(body, record, timestamp_delta=record.timestamp, offset_delta=0)
        yield _record_row(batch, record), body


def _record_row(batch: "Longs", record: Record) -> "Longs":
    """Return the table's row for a magic-2 batch with this one record and base timestamp 0."""
    stamped = record.timestamp_type is TimestampType.LOG_APPEND_TIME
    row = batch.copy()
    row[layout.BASE_OFFSET] = row[layout.LAST_OFFSET] = record.offset
    row[layout.RECORD_COUNT] = 1
    row[layout.ATTRIBUTES] = TIMESTAMP_TYPE_BIT if stamped else 0
    row[layout.BASE_TIMESTAMP] = 0
    row[layout.MAX_TIMESTAMP] = record.timestamp
    row[layout.CREATE_STATE] = layout.CREATE_LOST if stamped else layout.CREATE_KNOWN
    return row


# Number of batch headers to read at a time. The number is large, because the table of headers is
# small compared to the batches.
SCAN_BATCHES: Final = 4096

# Number of bytes to checksum and then decode in one group. The number is small enough that the
# bytes are still in a CPU cache when they are decoded. Each group takes about 0.1 ms in Python, so
# smaller groups would cost more time than they would save by fewer cache misses.
GROUP_BYTES: Final = 4 << 20

# Number of bytes in one group if the decoder checks the checksum of each batch just before it
# decodes the batch. Such a group need not fit into a CPU cache, so the number is larger than
# `GROUP_BYTES`.
LEFT_GROUP_BYTES: Final = 8 << 20

# A table is split between batches that are selected and can be decoded in place, and all other
# batches. If a table would be split at more than this number of places, it is not split, because
# the groups would be too small.
_CHANGES_MAX: Final = 8

_SOUND: Final = (layout.DONE, layout.FULL, layout.PARTIAL)
DropBatch = Callable[["Longs"], "Mask"]


@dataclass(slots=True, kw_only=True)
class DecodeStats:
    """Statistics of decoding so far; complete when the iterator of `decode` is exhausted.

    Attributes:
        batches: Number of batches whose headers were read.
        batches_opened: Number of batches that were opened to examine their records.
        rows: Number of rows returned.
        without_time: Number of records in the offset range that have no time; counted only for a
            selection with a time range. Records of unopened batches are not counted. With
            `Selection.opens_all`, batches are also opened if their times can't match.
        end_at: Position after the last batch whose header was read. If the buffer ends inside a
            batch, this position is before the buffer's end.
        next_offset: Offset after the last batch whose header was read; -1 if no header was read.
        first_offset: Base offset of the first batch whose header was read, -1 if no header was
            read.
        records: Sum of the record counts in all headers that were read; a legacy message counts as
            -1, because its header has no record count.
        has_legacy: Whether the header of at least one legacy message was read.
    """

    batches: int = 0
    batches_opened: int = 0
    rows: int = 0
    without_time: int = 0
    end_at: int = 0
    next_offset: int = -1
    first_offset: int = -1
    records: int = 0
    has_legacy: bool = False

    def add(self, walked: "Longs", opened: int) -> None:
        """Count consecutive sound batches, of which `opened` batches are opened."""
        self.batches += len(walked)
        self.batches_opened += opened
        if len(walked):
            self.end_at = int(walked[-1, layout.POSITION] + walked[-1, layout.SIZE])
            self.next_offset = int(walked[-1, layout.LAST_OFFSET]) + 1
            self.records += int(walked[:, layout.RECORD_COUNT].sum())
            self.has_legacy |= bool((walked[:, layout.MAGIC] < MAGIC_2).any())
            if self.first_offset < 0:
                self.first_offset = int(walked[0, layout.BASE_OFFSET])


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of records by offset, time and batch.

    Attributes:
        offset_start: First offset of the selected records, inclusive.
        offset_end: End of the selected records' offsets, exclusive.
        record_time: Select only records whose timestamp in ms is in [a, b); b = INT64_MAX means no
            end. Records without a time are in no range and are counted in the statistics.
        opens_all: Whether to also open batches whose header shows that no time can match. Without
            these batches, `DecodeStats.without_time` is incomplete.
        include_control: Whether to include the records of control batches.
        drop_batch: Function that gets a table of batches (`kernels.layout`), and returns a mask of
            the batches to leave out. None if there is no such function. The function gets a legacy
            message twice: first as one row (see `is_frame`), later as one row for each record.
        opens_from: Batches whose last offset is below this offset are not opened; None stands for
            `offset_start`.
        between: Limits that the log's batches must keep: the smallest offset that the first batch
            may have, and the exclusive upper limit of all offsets.
    """

    offset_start: int = 0
    offset_end: int = INT64_MAX
    record_time: tuple[int, int] | None = None
    opens_all: bool = False
    include_control: bool = False
    drop_batch: DropBatch | None = None
    opens_from: int | None = None
    between: tuple[int, int] = ANY_OFFSETS

    @property
    def first_opened(self) -> int:
        """Batches whose last offset is below this offset are not opened."""
        return self.offset_start if self.opens_from is None else self.opens_from


EVERYTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class Group:
    """Batches to open, in order.

    Attributes:
        table: The batches; `kernels.layout` describes the columns.
        is_checked: False if the decoder must still check the checksums and count the batches. True
            if the batches are already counted, and their checksums are either already checked or
            not to be checked.
    """

    table: "Longs"
    is_checked: bool


def groups(
    log: "Bytes",
    selection: Selection,
    stats: DecodeStats,
    *,
    check_crc: bool,
    rows: int,
    leaves_sums: bool = False,
) -> Iterator[Group]:
    """Yield the batches to open, in groups.

    A group has at most `rows` records and `GROUP_BYTES` bytes (`LEFT_GROUP_BYTES` if its checksums
    are not checked yet); a larger batch forms a group of its own. With `leaves_sums`, the caller
    must check the checksums of groups whose `is_checked` is False.

    Raises:
        CorruptBatch: A frame, a checksum or an offset is wrong; earlier batches were yielded.
    """
    at, end, status = 0, log.size, layout.FULL
    next_offset, end_offset = selection.between
    leaves_sums &= check_crc and HAS_INSTRUCTION and selection.drop_batch is None
    while status == layout.FULL:
        table = np.empty((SCAN_BATCHES, layout.BATCH_FIELDS), np.int64)
        count, at, status = scan_batches(log, at, end, table, next_offset, end_offset)
        error = None
        if status not in _SOUND:
            error = scan_error(log, table, count, at, status, next_offset, end_offset)
        table = table[:count]
        if count:
            next_offset = int(table[-1, layout.LAST_OFFSET]) + 1
        for part, is_left in _parted(table, selection) if leaves_sums else ((table, False),):
            for start, stop in _cut(part, rows, LEFT_GROUP_BYTES if is_left else GROUP_BYTES):
                group = part[start:stop]
                if is_left:
                    yield Group(group, is_checked=False)
                else:
                    yield from _checked(log, group, selection, stats, check_crc=check_crc)
        if error is not None:
            raise error


def _parted(table: "Longs", selection: Selection) -> Iterator[tuple["Longs", bool]]:
    """Yield the parts of a table in order, each with a flag.

    The flag is True if all batches of the part are selected and can be decoded in place.
    """
    is_left = is_plain(table) & _select(table, selection)
    changes = np.flatnonzero(is_left[1:] != is_left[:-1]) + 1
    if len(changes) > _CHANGES_MAX:
        yield table, False
        return
    for part, marks in zip(np.split(table, changes), np.split(is_left, changes), strict=True):
        yield part, bool(marks.all())


def _checked(
    log: "Bytes", group: "Longs", selection: Selection, stats: DecodeStats, *, check_crc: bool
) -> Iterator[Group]:
    """Check the checksums of a group, and yield the batches to open as a `Group`."""
    error = first_checksum_mismatch(log, group) if check_crc else None
    sound = group if error is None else group[group[:, layout.POSITION] < (error.at or 0)]
    mask = _select(sound, selection)
    rows = sound if mask.all() else sound[mask]
    stats.add(sound, len(rows))
    if len(rows):
        yield Group(rows, is_checked=True)
    if error is not None:
        raise error


def _cut(table: "Longs", rows: int, size_max: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end row (exclusive) of each group of a table.

    A batch that exceeds `rows` or `size_max` forms a group of its own.
    """
    sizes = np.cumsum(table[:, layout.SIZE])
    counts = np.cumsum(np.maximum(table[:, layout.RECORD_COUNT], 1))
    start = size = count = 0
    while start < len(table):
        by_size = np.searchsorted(sizes, size + size_max, side="right")
        by_count = np.searchsorted(counts, count + rows, side="right")
        end = max(int(min(by_size, by_count)), start + 1)
        yield start, end
        start, size, count = end, sizes[end - 1], counts[end - 1]


def first_checksum_mismatch(log: "Bytes", table: "Longs") -> CorruptBatch | None:
    """Return the error of the first magic-2 batch with a wrong CRC; None if all CRCs are right.

    Legacy messages are skipped; their CRCs are checked when their records are read.
    """
    if HAS_INSTRUCTION:
        slot, crc = find_checksum_mismatch(log, table, shifts())
        return None if slot == NONE_BAD else bad_sum(table[slot], crc)
    is_current = table[:, layout.MAGIC] == MAGIC_2
    rows = table if is_current.all() else table[is_current]
    starts = (rows[:, layout.POSITION] + ATTRIBUTES_AT).tolist()
    ends = rows[:, layout.BODY_END].tolist()
    sums = crc32c_spans(log.data, starts, ends)
    expected = rows[:, layout.CRC].tolist()
    if sums == expected:
        return None
    slot = next(at for at, computed in enumerate(sums) if computed != expected[at])
    return bad_sum(rows[slot], sums[slot])


def bad_sum(batch: "Longs", crc: int) -> CorruptBatch:
    """Return the error for a batch whose checksum `crc` differs from the checksum in its header."""
    reason = f"CRC-32C is {crc:#010x}, the header has {int(batch[layout.CRC]):#010x}"
    return CorruptBatch(
        reason, at=int(batch[layout.POSITION]), offset=int(batch[layout.BASE_OFFSET])
    )


def _select(table: "Longs", selection: Selection) -> "Mask":
    """Return a mask of the batches that may contain selected records.

    For a legacy batch only the fields of its outer header are used, because it isn't decompressed.
    """
    is_selected = table[:, layout.LAST_OFFSET] >= selection.first_opened
    is_selected &= table[:, layout.BASE_OFFSET] < selection.offset_end
    if not selection.include_control:
        is_selected &= table[:, layout.ATTRIBUTES] & CONTROL_BIT == 0
    if selection.record_time is not None and not selection.opens_all:
        is_selected &= _may_match(table, *selection.record_time)
    if selection.drop_batch is not None:
        is_selected &= ~selection.drop_batch(table)
    return is_selected


def _may_match(table: "Longs", start_ms: int, end_ms: int) -> "Mask":
    """Return a mask of the batches that have no time, or may have a time in [start_ms, end_ms)."""
    largest = table[:, layout.MAX_TIMESTAMP]
    is_stamped = table[:, layout.ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    is_open = end_ms == INT64_MAX
    in_range = (largest >= start_ms) & (~is_stamped | (largest < end_ms) | is_open)
    may_match: Mask = in_range | (largest == NO_TIMESTAMP)
    return may_match


def lz4_frames(table: "Longs") -> list[slice | None]:
    """Return the position of the lz4 frame of each batch as a slice; None for other codecs."""
    codec = table[:, layout.ATTRIBUTES] & CODEC_MASK
    is_lz4 = (table[:, layout.MAGIC] == MAGIC_2) & (codec == int(Codec.LZ4))
    starts = (table[:, layout.POSITION] + HEADER_SIZE).tolist()
    ends = (table[:, layout.POSITION] + table[:, layout.SIZE]).tolist()
    rows = zip(is_lz4.tolist(), starts, ends, strict=True)
    return [slice(start, end) if has_frame else None for has_frame, start, end in rows]


def open_body(view: memoryview, position: int, frame: slice | None, arena: BodyBuffer) -> Buffer:
    """Return the uncompressed body of a magic-2 batch.

    The body is valid until the arena changes or is cleared.

    Args:
        view: The log.
        position: Position of the batch in the log.
        frame: Position of the batch's lz4 frame, from `lz4_frames`; None for other codecs.
        arena: Memory to decompress to. The caller adds the body to it.

    Raises:
        CorruptBatch: The body does not decompress within its limit.
        UnsupportedCompression: The codec is unknown.
    """
    if frame is not None:
        body = decompress_single(view[frame], arena.take(BLOCK_BYTES))
        if body is not None:
            return body
    return RecordBatch(view, position).body(scratch=arena)
