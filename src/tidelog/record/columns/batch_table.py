"""Batch tables of log bytes: frames, checksums, decompressed bodies, and batches to skip.

A batch is skipped only for values of a header whose CRC is right. In a group that is decoded
completely, the decoder checks each CRC just before it decodes the batch.

Bodies of compressed and of legacy batches are written side by side into one scratch buffer. Their
`BODY_START` and `BODY_END` are positions in that buffer, while `POSITION` stays the batch's
position in the log. Uncompressed lz4 frames are located by a table, because one Python object per
batch costs more than decompressing 16 KB.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.errors import CorruptBatch, TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.record.buffers import Arena
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
from tidelog.record.kernels.checksums import HAS_INSTRUCTION, NONE_BAD, find_bad_sum, shifts
from tidelog.record.kernels.layout import scan_error
from tidelog.record.legacy import LegacyBatch
from tidelog.record.lz4_frame import BLOCK_BYTES, decompress_single
from tidelog.record.offset_order import ANY_OFFSETS
from tidelog.record.record import Record, encode_record
from tidelog.types import INT64_MAX, NO_TIMESTAMP, Buffer, Codec, TimestampType

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs


# Decompressed bytes to put together before they are decoded: bounds memory whatever the batches
# expand to (one alone may still be as large as its own limit allows).
SCRATCH_BYTES: Final = 1 << 20


def is_plain(table: "Longs") -> "npt.NDArray[np.bool_]":
    """Which batches can be decoded where they lie."""
    codec = table[:, layout.ATTRIBUTES] & CODEC_MASK
    plain: npt.NDArray[np.bool_] = (table[:, layout.MAGIC] == MAGIC_2) & (codec == 0)
    return plain


def join_bodies(
    log: "Bytes", table: "Longs", *, check_crc: bool
) -> Iterator[tuple["Bytes", "Longs"]]:
    """Scratch buffers and the tables of what they hold, in order.

    Args:
        log: The bytes that the table was made of.
        table: Batches of any magic and codec.
        check_crc: Whether to check legacy messages; the others were checked before.

    Raises:
        CorruptBatch: A batch does not decompress within its limit, or a message's CRC is wrong.
        CorruptRecord: A legacy message breaks a rule.
        UnsupportedCompression: A codec that nobody defined.
    """
    view = log.data
    parts: list[Buffer] = []
    rows: list[Longs] = []
    used = 0
    for batch in table:
        try:
            for row, body in _open(view, batch, check_crc=check_crc):
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
    """The batch's row and plain body; of a legacy one, a row and a body for each record."""
    at = int(batch[layout.POSITION])
    if batch[layout.MAGIC] == MAGIC_2:
        yield batch, RecordBatch(view, at).body()
        return
    for record in LegacyBatch(view, at).records(check_crc=check_crc):
        body = bytearray()
        encode_record(body, record, timestamp_delta=record.timestamp, offset_delta=0)
        yield _record_row(batch, record), body


def _record_row(batch: "Longs", record: Record) -> "Longs":
    """The row of a magic-2 batch with this record alone, timed from 0."""
    stamped = record.timestamp_type is TimestampType.LOG_APPEND_TIME
    row = batch.copy()
    row[layout.BASE_OFFSET] = row[layout.LAST_OFFSET] = record.offset
    row[layout.RECORD_COUNT] = 1
    row[layout.ATTRIBUTES] = TIMESTAMP_TYPE_BIT if stamped else 0
    row[layout.BASE_TIMESTAMP] = 0
    row[layout.MAX_TIMESTAMP] = record.timestamp
    row[layout.CREATE_STATE] = layout.CREATE_LOST if stamped else layout.CREATE_KNOWN
    return row


if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs

    Mask = npt.NDArray[np.bool_]


# Headers to walk over at a time: many, since their table is small against the bytes that they head.
SCAN_BATCHES: Final = 4096


# Bytes to sum and then decode: what was read for the checksum is still in a cache. Every group
# costs about 0.1 ms in Python, so that small ones are dearer than a cache missed.
GROUP_BYTES: Final = 4 << 20


# Bytes to decode at a time where each batch is summed just before: no cache has a say then.
LEFT_GROUP_BYTES: Final = 8 << 20


# A table is cut where it goes from batches that are opened as they are to others, and back; where
# that changes more often, groups would become small.
_CHANGES_MAX: Final = 8


_SOUND: Final = (layout.DONE, layout.FULL, layout.PARTIAL)


DropBatch = Callable[["Longs"], "Mask"]


@dataclass(slots=True, kw_only=True)
class DecodeStats:
    """What a decode has met so far; complete when its iterator is through.

    Attributes:
        batches: Batches walked over.
        batches_opened: Those whose records were looked at.
        rows: Rows handed out.
        without_time: Records inside the offset range that have no time, met under a time range.
            Batches in which nothing can match are not opened: their records don't count.
        end_at: Place behind the last batch walked over. Short of the buffer's end where that cuts
            a batch.
        next_offset: Offset behind that batch; -1 where none was walked over.
        first_offset: Base offset of the first batch walked over, -1 where none was.
        records: How many records those batches declare, as far as their magic tells.
    """

    batches: int = 0
    batches_opened: int = 0
    rows: int = 0
    without_time: int = 0
    end_at: int = 0
    next_offset: int = -1
    first_offset: int = -1
    records: int = 0

    def add(self, walked: "Longs", opened: int) -> None:
        """Count batches that are next to each other and right, and how many of them are opened."""
        self.batches += len(walked)
        self.batches_opened += opened
        if len(walked):
            self.end_at = int(walked[-1, layout.POSITION] + walked[-1, layout.SIZE])
            self.next_offset = int(walked[-1, layout.LAST_OFFSET]) + 1
            self.records += int(walked[:, layout.RECORD_COUNT].sum())
            if self.first_offset < 0:
                self.first_offset = int(walked[0, layout.BASE_OFFSET])


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which records to take; see `decode`."""

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
        """Offset below which no batch that ends there is opened."""
        return self.offset_start if self.opens_from is None else self.opens_from


@dataclass(frozen=True, slots=True)
class Group:
    """Batches to open, in order.

    Attributes:
        table: See `kernels.layout` for its columns.
        is_checked: Whether their checksums are known to be right. Where not, the decoder checks
            and counts them.
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
    """The batches to open, group by group.

    A group comes from about `GROUP_BYTES` and no more than `rows` records, but at least one batch.
    With `leaves_sums` the checksums of groups that are opened whole are left to the caller.

    Raises:
        CorruptBatch: A frame, a checksum or an offset is wrong; the batches before it were handed
            out.
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
    """Parts of a table, in order, and whether all of a part is opened where it lies."""
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
    """What is to be opened of batches, once their checksums were found right."""
    error = first_bad_sum(log, group) if check_crc else None
    sound = group if error is None else group[group[:, layout.POSITION] < (error.at or 0)]
    mask = _select(sound, selection)
    rows = sound if mask.all() else sound[mask]
    stats.add(sound, len(rows))
    if len(rows):
        yield Group(rows, is_checked=True)
    if error is not None:
        raise error


def _cut(table: "Longs", rows: int, size_max: int) -> Iterator[tuple[int, int]]:
    """First and last row, exclusive, of groups; a batch larger than a group is one of its own."""
    sizes = np.cumsum(table[:, layout.SIZE])
    counts = np.cumsum(np.maximum(table[:, layout.RECORD_COUNT], 1))
    start = size = count = 0
    while start < len(table):
        by_size = np.searchsorted(sizes, size + size_max, side="right")
        by_count = np.searchsorted(counts, count + rows, side="right")
        end = max(int(min(by_size, by_count)), start + 1)
        yield start, end
        start, size, count = end, sizes[end - 1], counts[end - 1]


def first_bad_sum(log: "Bytes", table: "Longs") -> CorruptBatch | None:
    """The first magic-2 batch whose CRC is wrong; legacy ones check theirs when they are opened."""
    if HAS_INSTRUCTION:
        slot, crc = find_bad_sum(log, table, shifts())
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
    """The error for a batch whose bytes have another checksum than its header says."""
    reason = f"CRC-32C is {crc:#010x}, the header says {int(batch[layout.CRC]):#010x}"
    return CorruptBatch(
        reason, at=int(batch[layout.POSITION]), offset=int(batch[layout.BASE_OFFSET])
    )


def _select(table: "Longs", selection: Selection) -> "Mask":
    """Which batches may hold rows that were asked for; of a legacy one only the frame is known."""
    is_wanted = table[:, layout.LAST_OFFSET] >= selection.first_opened
    is_wanted &= table[:, layout.BASE_OFFSET] < selection.offset_end
    if not selection.include_control:
        is_wanted &= table[:, layout.ATTRIBUTES] & CONTROL_BIT == 0
    if selection.record_time is not None and not selection.opens_all:
        is_wanted &= _may_match(table, *selection.record_time)
    if selection.drop_batch is not None:
        is_wanted &= ~selection.drop_batch(table)
    return is_wanted


def _may_match(table: "Longs", start_ms: int, end_ms: int) -> "Mask":
    """Whether a batch can hold a time in [start_ms, end_ms), or may hold records without one."""
    largest = table[:, layout.MAX_TIMESTAMP]
    is_stamped = table[:, layout.ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    is_open = end_ms == INT64_MAX
    in_range = (largest >= start_ms) & (~is_stamped | (largest < end_ms) | is_open)
    may_match: Mask = in_range | (largest == NO_TIMESTAMP)
    return may_match


def lz4_frames(table: "Longs") -> list[slice | None]:
    """Where the frame of each batch lies that is compressed by lz4; None for the others."""
    codec = table[:, layout.ATTRIBUTES] & CODEC_MASK
    is_lz4 = (table[:, layout.MAGIC] == MAGIC_2) & (codec == int(Codec.LZ4))
    starts = (table[:, layout.POSITION] + HEADER_SIZE).tolist()
    ends = (table[:, layout.POSITION] + table[:, layout.SIZE]).tolist()
    rows = zip(is_lz4.tolist(), starts, ends, strict=True)
    return [slice(start, end) if is_found else None for is_found, start, end in rows]


def open_body(view: memoryview, position: int, frame: slice | None, arena: Arena) -> Buffer:
    """The plain body of a batch of magic 2, good until the arena is cleared or has it.

    Args:
        view: The log.
        position: Where the batch lies in it.
        frame: Where its lz4 frame lies, as `lz4_frames` says.
        arena: Where to decompress to; the body is not yet put into it.

    Raises:
        CorruptBatch: It does not decompress within its limit.
        UnsupportedCompression: The codec is unknown.
    """
    if frame is not None:
        body = decompress_single(view[frame], arena.take(BLOCK_BYTES))
        if body is not None:
            return body
    return RecordBatch(view, position).body(scratch=arena)
