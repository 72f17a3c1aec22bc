"""Snappy as Kafka frames it: raw blocks behind a 16-byte header, the xerial way.

```
82 'S' 'N' 'A' 'P' 'P' 'Y' 00 | int32 version 1 | int32 compatible from 1
then for each block: int32 size of the compressed bytes | raw snappy block
```

Integers are big-endian. A stream without the header is read as one raw block, as Kafka does.

Source: docs/format.md#snappy.
"""

import struct
from typing import Final

import cramjam

from tidelog.errors import CorruptBatch
from tidelog.types import Buffer

MAGIC: Final = b"\x82SNAPPY\x00"
HEADER: Final = struct.Struct(">8sii")
VERSION: Final = 1
BLOCK_SIZE: Final = 32 * 1024
_SIZE: Final = struct.Struct(">i")
# The longest copy makes 64 bytes of three: no block can grow more than this.
_GROWTH_MAX: Final = 22
assert HEADER.size == 16


def compress(data: Buffer) -> bytes:
    """`data` in framed blocks of 32 KiB."""
    view = memoryview(data)
    parts = [HEADER.pack(MAGIC, VERSION, VERSION)]
    for at in range(0, len(view), BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + BLOCK_SIZE]))
        parts += (_SIZE.pack(len(block)), block)
    return b"".join(parts)


def decompress(data: Buffer, limit: int) -> bytes:
    """What the blocks of `data` hold, at most `limit` bytes.

    Raises:
        CorruptBatch: A block is malformed or cut, or more than `limit` bytes come out.
    """
    view = memoryview(data)
    if bytes(view[:8]) != MAGIC:
        return _decompress_block(view, limit)
    if len(view) < HEADER.size:
        raise CorruptBatch("snappy: the header is cut")
    _, _, compatible = HEADER.unpack_from(view)
    if compatible < VERSION:
        raise CorruptBatch(f"snappy: compatible from version {compatible}, not from {VERSION}")
    parts: list[bytes] = []
    at = HEADER.size
    while at < len(view):
        if len(view) - at < _SIZE.size:
            raise CorruptBatch("snappy: a block's size is cut")
        (size,) = _SIZE.unpack_from(view, at)
        at += _SIZE.size
        if not 0 < size <= len(view) - at:
            raise CorruptBatch(f"snappy: a block of {size} bytes, {len(view) - at} are left")
        parts.append(_decompress_block(view[at : at + size], limit))
        limit -= len(parts[-1])
        at += size
    return b"".join(parts)


def _decompress_block(block: memoryview, limit: int) -> bytes:
    """One raw block. Its declared size is compared with the cap and with what it can hold."""
    try:
        size = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    if size > limit:
        raise CorruptBatch(f"snappy: a block of {size} bytes when {limit} more are allowed")
    if size > len(block) * _GROWTH_MAX:
        raise CorruptBatch(f"snappy: {len(block)} bytes can't hold {size}")
    out = bytearray(size)
    try:
        written = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    assert written == size
    return bytes(out)
