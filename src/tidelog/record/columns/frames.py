"""Where the lz4 frames of batches lie, by their table, and the fast way into most of them.

What a batch costs as an object is more than decompressing 16 KB of it.
"""

from typing import TYPE_CHECKING

from tidelog.record.arena import Arena
from tidelog.record.batch import RecordBatch
from tidelog.record.header import CODEC_MASK, HEADER_SIZE, MAGIC_2
from tidelog.record.kernels import layout
from tidelog.record.lz4_frame import BLOCK_BYTES, decompress_single
from tidelog.types import Buffer, Codec

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs


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
        found = decompress_single(view[frame], arena.take(BLOCK_BYTES))
        if found is not None:
            return found
    return RecordBatch(view, position).body(scratch=arena)
