"""Planned batches to the bytes of a cleaned log: by kernel, then checksums and compression.

Imports numpy and numba.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.record.coding import crc32c, crc32c_spans
from tidelog.record.compression import DEFAULT_DECOMPRESSION_LIMIT, compress
from tidelog.record.header import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC,
    CRC_AT,
    HEADER_SIZE,
    LENGTH,
    LENGTH_AT,
    LOG_OVERHEAD,
)
from tidelog.record.kernels import layout, rewrite
from tidelog.record.kernels.reasons import REASONS
from tidelog.storage.compaction.cleaned_times import Batches
from tidelog.storage.compaction.sources import Opened, Piece
from tidelog.types import Buffer, Codec

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs
    from tidelog.storage.compaction.sources import Mask

_CRC_SIZE: Final = 4


def write_group(piece: Piece, opened: Opened, plan: "Longs", lost: "Bytes") -> Batches:
    """The batches that a plan leaves.

    Args:
        piece: Where copies come from.
        opened: The same batches, those to filter opened.
        plan: As `kernels.rewrite`.
        lost: One bit for each record.

    Raises:
        CorruptBatch: A batch's records are not what they were when they were looked at; located.
    """
    table = opened.table
    if (plan[:, rewrite.ACTION] == rewrite.COPY).all():
        return _copy_all(piece, table)
    out: Bytes = np.empty(_capacity(table, plan), np.uint8)
    written: Longs = np.empty((len(table), rewrite.WRITTEN_FIELDS), np.int64)
    facts: Longs = np.empty(rewrite.FACT_FIELDS, np.int64)
    sources = rewrite.Sources(piece.data, opened.bodies, table, plan, lost)
    status, number = rewrite.write_batches(sources, out, written, facts)
    if status == layout.BAD_RECORD:
        raise piece.corrupt(number, REASONS[status])
    assert status == layout.DONE
    rows = written[:number]
    slots = rows[:, rewrite.WRITTEN_SLOT]
    crcs = table[slots, layout.CRC]
    codecs = table[slots, layout.ATTRIBUTES] & CODEC_MASK
    is_new = rows[:, rewrite.IS_NEW] == 1
    is_packed = is_new & (codecs != 0) & (rows[:, rewrite.WRITTEN_RECORDS] > 0)
    is_packed &= ~_leave_plain(out, rows, is_packed)
    _seal(out, rows, np.flatnonzero(is_new & ~is_packed), crcs)
    buffers = _buffers(out, rows, crcs, codecs, np.flatnonzero(is_packed))
    return Batches(rows, crcs, table[slots, layout.LEADER_EPOCH], buffers)


def _capacity(table: "Longs", plan: "Longs") -> int:
    """Room for all that the kernel may write."""
    action, size = plan[:, rewrite.ACTION], table[:, layout.SIZE]
    body = table[:, layout.BODY_END] - table[:, layout.BODY_START]
    filtered = HEADER_SIZE + body + rewrite.GROWTH_MAX * table[:, layout.RECORD_COUNT]
    room = np.where(action == rewrite.FILTER, np.maximum(size, filtered), HEADER_SIZE)
    room = np.where(action == rewrite.COPY, size, room)
    return int(np.where(action == rewrite.DROP, 0, room).sum())


def _copy_all(piece: Piece, table: "Longs") -> Batches:
    """All batches as they lie, which is back to back."""
    rows: Longs = np.zeros((len(table), rewrite.WRITTEN_FIELDS), np.int64)
    start = int(table[0, layout.POSITION])
    rows[:, rewrite.WRITTEN_AT] = table[:, layout.POSITION] - start
    rows[:, rewrite.WRITTEN_SIZE] = table[:, layout.SIZE]
    rows[:, rewrite.WRITTEN_BASE] = table[:, layout.BASE_OFFSET]
    rows[:, rewrite.WRITTEN_LAST] = table[:, layout.LAST_OFFSET]
    rows[:, rewrite.WRITTEN_MAX_TIMESTAMP] = table[:, layout.MAX_TIMESTAMP]
    rows[:, rewrite.WRITTEN_SLOT] = np.arange(len(table))
    rows[:, rewrite.WRITTEN_RECORDS] = table[:, layout.RECORD_COUNT]
    data = piece.data.data[start : start + int(table[:, layout.SIZE].sum())]
    return Batches(rows, table[:, layout.CRC].copy(), table[:, layout.LEADER_EPOCH].copy(), [data])


def _leave_plain(out: "Bytes", rows: "Longs", is_packed: "Mask") -> "Mask":
    """Which of the batches to compress nobody could open again; they say that they are plain.

    Only others than we take bodies so long into a log that they can grow beyond a reader's limit.
    """
    sizes = rows[:, rewrite.WRITTEN_SIZE] - HEADER_SIZE
    found: Mask = is_packed & (sizes > DEFAULT_DECOMPRESSION_LIMIT)
    out[rows[found, rewrite.WRITTEN_AT] + ATTRIBUTES_AT + 1] &= 0xFF & ~CODEC_MASK
    return found


def _seal(out: "Bytes", rows: "Longs", slots: "npt.NDArray[np.intp]", crcs: "Longs") -> None:
    """Write the checksums of new batches that are not to be compressed."""
    if not len(slots):
        return
    starts = rows[slots, rewrite.WRITTEN_AT]
    ends = starts + rows[slots, rewrite.WRITTEN_SIZE]
    found = crc32c_spans(out.data, (starts + ATTRIBUTES_AT).tolist(), ends.tolist())
    crcs[slots] = found
    for byte in range(_CRC_SIZE):
        out[starts + CRC_AT + byte] = crcs[slots] >> (8 * (_CRC_SIZE - 1 - byte)) & 0xFF


def _buffers(
    out: "Bytes",
    rows: "Longs",
    crcs: "Longs",
    codecs: "Longs",
    packed: "npt.NDArray[np.intp]",
) -> list[Buffer]:
    """The bytes to write, the batches in `packed` compressed; sizes and places are put right."""
    if not len(rows):
        return []
    buffers: list[Buffer] = []
    done = 0
    for slot in packed.tolist():
        at, size = int(rows[slot, rewrite.WRITTEN_AT]), int(rows[slot, rewrite.WRITTEN_SIZE])
        batch = _compress(out[at : at + size].data, Codec(int(codecs[slot])))
        (crcs[slot],) = CRC.unpack_from(batch, CRC_AT)
        rows[slot, rewrite.WRITTEN_SIZE] = len(batch)
        if done < at:
            buffers.append(out[done:at].tobytes())
        buffers.append(batch)
        done = at + size
    end = int(rows[-1, rewrite.WRITTEN_AT] + rows[-1, rewrite.WRITTEN_SIZE])
    if not len(packed):
        # What is mostly empty would keep much memory until it is written.
        buffers.append(out[:end].data if 2 * end >= out.size else out[:end].tobytes())
        return buffers
    if packed[-1] != len(rows) - 1:
        buffers.append(out[done:end].tobytes())
    sizes = rows[:, rewrite.WRITTEN_SIZE]
    rows[:, rewrite.WRITTEN_AT] = np.cumsum(sizes) - sizes
    return buffers


def _compress(batch: memoryview, codec: Codec) -> bytearray:
    """A batch that lies plainly, compressed and sealed."""
    packed = bytearray(batch[:HEADER_SIZE])
    packed += compress(codec, batch[HEADER_SIZE:])
    LENGTH.pack_into(packed, LENGTH_AT, len(packed) - LOG_OVERHEAD)
    crc = crc32c(memoryview(packed)[ATTRIBUTES_AT:])
    packed[CRC_AT : CRC_AT + _CRC_SIZE] = crc.to_bytes(_CRC_SIZE, "big")
    return packed
