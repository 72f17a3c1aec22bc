"""Snappy streams: the xerial framing of Java's library, with big-endian integers.

```
82 'S' 'N' 'A' 'P' 'P' 'Y' 00 | int32 version 1 | int32 compatible from 1
then for each block: int32 size of the compressed bytes | raw snappy block
```

A stream without this header is read as one raw block, as in Kafka.

Source: docs/format.md#snappy.
"""

import struct
from typing import Final

import cramjam

from tidelog.errors import CorruptBatch, StreamTooLong
from tidelog.record.buffers import Scratch
from tidelog.types import Buffer

MAGIC: Final = b"\x82SNAPPY\x00"
HEADER: Final = struct.Struct(">8sii")
VERSION: Final = 1
BLOCK_SIZE: Final = 32 * 1024
_SIZE: Final = struct.Struct(">i")

# Maximum ratio of a block's decompressed size to its compressed size: the longest copy element
# encodes 64 bytes in three bytes.
_GROWTH_MAX: Final = 22

assert HEADER.size == 16


def compress(data: Buffer) -> bytes:
    """Compress `data` to framed blocks of 32 KiB."""
    view = memoryview(data)
    parts = [HEADER.pack(MAGIC, VERSION, VERSION)]
    for at in range(0, len(view), BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + BLOCK_SIZE]))
        parts += (_SIZE.pack(len(block)), block)
    return b"".join(parts)


def decompress(data: Buffer, limit: int, *, scratch: Scratch | None = None) -> memoryview:
    """Decompress the blocks of `data` to at most `limit` bytes.

    Args:
        data: Framed blocks, or one raw block.
        limit: Maximum number of decompressed bytes, inclusive.
        scratch: Memory to decompress to; None for new memory.

    Raises:
        CorruptBatch: The header or a block is malformed or truncated, or the blocks decompress to
            more than `limit` bytes.
    """
    view = memoryview(data)
    blocks = _framed(view) if bytes(view[:8]) == MAGIC else [view]
    sizes, room = [], limit
    for block in blocks:
        sizes.append(_size_of(block, room))
        room -= sizes[-1]
    total = limit - room
    out = memoryview(bytearray(total)) if scratch is None else scratch.take(total)
    at = 0
    for block, size in zip(blocks, sizes, strict=True):
        _decompress_block(block, out[at : at + size])
        at += size
    return out


def _framed(view: memoryview) -> list[memoryview]:
    """Return the raw blocks after the header."""
    if len(view) < HEADER.size:
        raise CorruptBatch("snappy: the header is truncated")
    _, _, compatible = HEADER.unpack_from(view)
    if compatible < VERSION:
        raise CorruptBatch(f"snappy: compatible version {compatible}, must be at least {VERSION}")
    blocks: list[memoryview] = []
    at = HEADER.size
    while at < len(view):
        if len(view) - at < _SIZE.size:
            raise CorruptBatch("snappy: the size of a block is truncated")
        (size,) = _SIZE.unpack_from(view, at)
        at += _SIZE.size
        if not 0 < size <= len(view) - at:
            raise CorruptBatch(
                f"snappy: a block of {size} bytes, but only {len(view) - at} are left"
            )
        blocks.append(view[at : at + size])
        at += size
    return blocks


def _size_of(block: memoryview, limit: int) -> int:
    """Check the decompressed size that a raw block declares against the limits, and return it."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    if size > limit:
        raise StreamTooLong(f"snappy: a block of {size} bytes, but only {limit} more are allowed")
    if size > len(block) * _GROWTH_MAX:
        raise CorruptBatch(f"snappy: {len(block)} bytes can't decompress to {size}")
    return size


def _decompress_block(block: memoryview, out: memoryview) -> None:
    """Decompress one raw block, which must fill `out`."""
    try:
        written = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    assert written == len(out)
