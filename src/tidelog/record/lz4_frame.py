"""LZ4 frames as Kafka writes and reads them.

Frames that tidelog writes: version 1, independent blocks of 64 KiB, no content size, and no
checksum except the header checksum. Frames that tidelog reads may also have block checksums, a
content checksum and a content size. Dependent blocks and dictionaries are refused, as in Kafka.

Clients that write magic 0 compute the header checksum wrong: they include the frame's magic number.
So for magic 0 tidelog writes this wrong checksum, and does not check the checksum when it reads
(KIP-57).

Source: docs/format.md#lz4; the LZ4 frame format 1.6.
"""

import struct
from functools import lru_cache
from typing import Final

import cramjam
import lz4.frame

from tidelog.errors import CorruptBatch, StreamTooLong
from tidelog.record.buffers import SCRATCH_BYTES_MAX, Scratch
from tidelog.types import Buffer

MAGIC: Final = bytes.fromhex("04224d18")
# Frame descriptor: version 1 and independent blocks; blocks of at most 64 KiB.
FLAGS: Final = 0x60
BLOCK_DESCRIPTOR: Final = 0x40
HEADER_CHECKSUM: Final = 0x82
BROKEN_HEADER_CHECKSUM: Final = 0x1A
_HEADER_CHECKSUM_AT: Final = 6
_HEADER_SIZE: Final = 7

_VERSION_BITS: Final = 0xC0
_VERSION_1: Final = 0x40
_INDEPENDENT_BIT: Final = 0x20
_BLOCK_CHECKSUM_BIT: Final = 0x10
_CONTENT_SIZE_BIT: Final = 0x08
_CONTENT_CHECKSUM_BIT: Final = 0x04
_RESERVED_BITS: Final = 0x03
_CHECKSUM_SIZE: Final = 4
_CONTENT_SIZE_SIZE: Final = 8
_BLOCK_SIZES: Final = {0x40: 1 << 16, 0x50: 1 << 18, 0x60: 1 << 20, 0x70: 1 << 22}
_STORED_BIT: Final = 0x80000000
_WORD: Final = struct.Struct("<I")
# Header of a frame written by tidelog or Kafka, and the size of its blocks.
_WRITTEN_HEADER: Final = MAGIC + bytes((FLAGS, BLOCK_DESCRIPTOR, HEADER_CHECKSUM))
BLOCK_BYTES: Final = _BLOCK_SIZES[BLOCK_DESCRIPTOR]
# A frame with one block: frame header and block size (`_SINGLE_HEAD`), the block, end mark.
_SINGLE_HEAD: Final = struct.Struct("<7sI")
_SINGLE_OVERHEAD: Final = _SINGLE_HEAD.size + _WORD.size
# One byte of a compressed block decompresses to at most 255 bytes.
_GROWTH_MAX: Final = 255

_DEFAULT_LEVEL: Final = 9
_LIBRARY_LEVEL_MIN: Final = 3
_LIBRARY_LEVEL_MAX: Final = 12


def compress(data: Buffer, *, level: int | None = None, broken_checksum: bool = False) -> bytes:
    """Compress `data` to one frame.

    Args:
        data: The bytes to compress.
        level: Kafka's level, 1..17. 9 and None select the fast compressor, all other levels the
            slow compressor.
        broken_checksum: Whether to write the wrong header checksum that clients of magic 0 write.
    """
    fast = level is None or level == _DEFAULT_LEVEL
    library_level = 0 if fast else max(_LIBRARY_LEVEL_MIN, min(level or 0, _LIBRARY_LEVEL_MAX))
    frame: bytearray = lz4.frame.compress(
        data,
        compression_level=library_level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
        return_bytearray=True,
    )
    assert frame[:_HEADER_SIZE] == _WRITTEN_HEADER
    if broken_checksum:
        frame[_HEADER_CHECKSUM_AT] = BROKEN_HEADER_CHECKSUM
    return bytes(frame)


def decompress(
    data: Buffer, limit: int, *, check_header: bool = True, scratch: Scratch | None = None
) -> bytes | memoryview:
    """Decompress the frame in `data` to at most `limit` bytes.

    Args:
        data: One frame, with nothing after it.
        limit: Maximum number of decompressed bytes, inclusive.
        check_header: Whether to check the header checksum; False for magic 0.
        scratch: Memory for the output of a frame with the header that Kafka writes; None for new
            memory.

    Raises:
        CorruptBatch: The frame is malformed, truncated, followed by other bytes, or larger than
            `limit` bytes when decompressed.
    """
    view = memoryview(data)
    if scratch is not None and limit >= BLOCK_BYTES:
        single = decompress_single(view, scratch.take(BLOCK_BYTES))  # the usual case
        if single is not None:
            return single
    content_at = _header_size(view)
    bound = _output_bound(view, content_at)
    if scratch is not None and view[4] == FLAGS and bound <= min(limit, SCRATCH_BYTES_MAX):
        if check_header:
            _check_header_sum(view)
        return _decompress_blocks(view, scratch.take(bound))
    frame = bytes(view) if check_header else _with_right_checksum(view, content_at)
    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        out: bytes = stream.decompress(frame, max_length=min(bound, limit) + 1)
    except RuntimeError as error:
        raise CorruptBatch(f"lz4: {error}") from None
    if len(out) > limit:
        raise StreamTooLong(f"lz4: the data decompresses to more than {limit} bytes")
    if not stream.eof:
        raise CorruptBatch("lz4: the frame is truncated")
    return out


def decompress_single(frame: memoryview, out: memoryview) -> memoryview | None:
    """Decompress a frame with Kafka's header and a single block.

    For many small frames this function is faster than `decompress`.

    Args:
        frame: One frame, with nothing after it.
        out: Memory of `BLOCK_BYTES` to decompress to.

    Returns:
        The used part of `out`; None if the caller must use `decompress` for this frame.
    """
    size = len(frame) - _SINGLE_OVERHEAD
    # The size field of an uncompressed block has its highest bit set, so it never equals `size`.
    if not 0 <= size <= BLOCK_BYTES or _SINGLE_HEAD.unpack_from(frame) != (_WRITTEN_HEADER, size):
        return None
    mark_at = _SINGLE_HEAD.size + size
    if _WORD.unpack_from(frame, mark_at)[0]:
        return None
    room = size * _GROWTH_MAX
    if room < BLOCK_BYTES:
        out = out[:room]
    else:
        room = BLOCK_BYTES
    block = frame[_SINGLE_HEAD.size : mark_at]
    try:
        end: int = cramjam.lz4.decompress_block_into(block, out, output_len=room)
    except cramjam.DecompressionError:
        return None
    return out[:end]


def _check_header_sum(view: memoryview) -> None:
    expected = _header_sum(bytes(view[4:_HEADER_CHECKSUM_AT]))
    if view[_HEADER_CHECKSUM_AT] != expected:
        raise CorruptBatch(
            f"lz4: header checksum {view[_HEADER_CHECKSUM_AT]:#04x}, expected {expected:#04x}"
        )


def _decompress_blocks(view: memoryview, out: memoryview) -> memoryview:
    """Decompress a frame that has neither a content size nor checksums of blocks or content.

    The caller must first check the frame with `_output_bound`. This function replaces the lz4
    library's function for frames, which would copy both input and output.

    Args:
        view: The frame.
        out: Memory of at least the size that `_output_bound` returned.
    """
    block_size, at, end = _BLOCK_SIZES[view[5]], _HEADER_SIZE, 0
    while word := _WORD.unpack_from(view, at)[0]:
        at += _WORD.size
        size = word & ~_STORED_BIT
        block = view[at : at + size]
        at += size
        if word & _STORED_BIT:
            out[end : end + size] = block
            end += size
        else:
            room = min(block_size, size * _GROWTH_MAX)
            end += _decompress_block(block, out[end : end + room])
    return out[:end]


def _decompress_block(block: memoryview, room: memoryview) -> int:
    """Decompress a block to `room`; return the number of decompressed bytes."""
    try:
        size: int = cramjam.lz4.decompress_block_into(block, room, output_len=len(room))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"lz4: {error}") from None
    return size


def _header_size(view: memoryview) -> int:
    """Check the frame's descriptor, and return the number of bytes before the first block."""
    if len(view) < _HEADER_SIZE or view[:4] != MAGIC:
        raise CorruptBatch("lz4: no frame header")
    flags, descriptor = view[4], view[5]
    if flags & _VERSION_BITS != _VERSION_1 or flags & _RESERVED_BITS:
        raise CorruptBatch(f"lz4: frame flags {flags:#04x}: unknown version or reserved bits")
    if not flags & _INDEPENDENT_BIT:
        raise CorruptBatch("lz4: blocks that depend on each other are not supported")
    if descriptor not in _BLOCK_SIZES:
        raise CorruptBatch(f"lz4: block descriptor {descriptor:#04x} is unknown")
    return _HEADER_SIZE + (_CONTENT_SIZE_SIZE if flags & _CONTENT_SIZE_BIT else 0)


def _output_bound(view: memoryview, at: int) -> int:
    """Walk the blocks from `at` on, and return an upper bound of their total decompressed size."""
    flags, block_size = view[4], _BLOCK_SIZES[view[5]]
    block_trailer = _CHECKSUM_SIZE if flags & _BLOCK_CHECKSUM_BIT else 0
    frame_trailer = _CHECKSUM_SIZE if flags & _CONTENT_CHECKSUM_BIT else 0
    bound = 0
    while at + _WORD.size <= len(view):
        (word,) = _WORD.unpack_from(view, at)
        at += _WORD.size
        if word == 0:
            if at + frame_trailer != len(view):
                raise CorruptBatch("lz4: the frame does not end at the end of the data")
            return bound
        size = word & ~_STORED_BIT
        if size > block_size:
            raise CorruptBatch(
                f"lz4: a block of {size} bytes, but at most {block_size} are allowed"
            )
        bound += size if word & _STORED_BIT else min(block_size, size * _GROWTH_MAX)
        at += size + block_trailer
    raise CorruptBatch("lz4: the frame is truncated")


def _with_right_checksum(view: memoryview, header_size: int) -> bytes:
    """Return a copy of the frame with the right header checksum."""
    frame = bytearray(view)
    checksum_at = header_size - 1
    frame[checksum_at] = _header_sum(bytes(view[4:checksum_at]))
    return bytes(frame)


@lru_cache(maxsize=64)
def _header_sum(descriptor: bytes) -> int:
    """Return the checksum byte of a frame descriptor."""
    return _xxh32_short(descriptor) >> 8 & 0xFF


def _xxh32_short(data: bytes) -> int:
    """Return the XXH32 hash, with seed 0, of less than 16 bytes, such as a frame descriptor."""
    assert len(data) < 16
    mask, prime_1, prime_2, prime_3 = 0xFFFFFFFF, 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
    prime_4, prime_5 = 0x27D4EB2F, 0x165667B1
    word_end = len(data) & ~3
    value = prime_5 + len(data)
    for (word,) in _WORD.iter_unpack(data[:word_end]):
        value = (value + word * prime_3) & mask
        value = (value << 17 | value >> 15) * prime_4 & mask
    for byte in data[word_end:]:
        value = (value + byte * prime_5) & mask
        value = (value << 11 | value >> 21) * prime_1 & mask
    value = (value ^ value >> 15) * prime_2 & mask
    value = (value ^ value >> 13) * prime_3 & mask
    return value ^ value >> 16
