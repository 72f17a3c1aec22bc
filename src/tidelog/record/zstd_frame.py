"""Zstandard frames, with a limit on the decompressed size.

The `zstandard` library ignores `max_output_size` if a frame declares its decompressed size. So
before a frame is decompressed, the headers of its blocks are read: each block's 3-byte header
limits the block's output. The library may write at most the sum of the blocks' limits, and at most
the number of bytes that the caller allows.

Source: docs/format.md#zstd; KIP-110; RFC 8878.
"""

import struct
from typing import Final

import zstandard

from tidelog.errors import CorruptBatch, StreamTooLong
from tidelog.record.buffers import SCRATCH_BYTES_MAX, Scratch
from tidelog.types import Buffer

DEFAULT_LEVEL: Final = 3

# Maximum window in bytes that Kafka's reader accepts; level 22 of zstd uses windows of this size.
WINDOW_SIZE_MAX: Final = 1 << 27

_BLOCK_OUTPUT_MAX: Final = 128 * 1024
_BLOCK_HEADER_SIZE: Final = 3
_CHECKSUM_SIZE: Final = 4

# Decompressors that no thread is using.
_FREE: Final[list[zstandard.ZstdDecompressor]] = []

_FREE_MAX: Final = 16
_RAW, _RUN, _RESERVED = 0, 1, 3
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_SKIPPABLE_HEADER: Final = struct.Struct("<II")


def compress(data: Buffer, *, level: int | None = None) -> bytes:
    """Compress `data` to one frame that declares its decompressed size.

    `level` is a value of Kafka's `compression.zstd.level`; None means 3.
    """
    return zstandard.ZstdCompressor(DEFAULT_LEVEL if level is None else level).compress(data)


def decompress(data: Buffer, limit: int, *, scratch: Scratch | None = None) -> bytes | memoryview:
    """Decompress the frames of `data` to at most `limit` bytes.

    Args:
        data: Frames, with nothing after the last frame.
        limit: Maximum number of decompressed bytes, inclusive.
        scratch: Memory for the output if `data` is a single frame; None for new memory.

    Raises:
        CorruptBatch: A frame is malformed or truncated, needs a dictionary or a window over 128
            MiB, or the output exceeds `limit` bytes.
    """
    view = memoryview(data)
    parts: list[bytes] = []
    at = 0
    while True:
        end = _skippable_end(view, at)
        if end is None:
            end, bound = _frame_end(view, at)
            is_alone = at == 0 and end == len(view)
            if scratch is not None and is_alone and bound <= min(limit, SCRATCH_BYTES_MAX):
                return _decompress_to(view, scratch.take(bound + 1))
            parts.append(_decompress_frame(view[at:end], bound, limit))
            limit -= len(parts[-1])
        at = end
        if at == len(view):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_frame(frame: memoryview, bound: int, limit: int) -> bytes:
    """Decompress one whole frame whose blocks produce at most `bound` bytes."""
    declared = zstandard.frame_content_size(frame)
    if declared > limit:
        raise StreamTooLong(
            f"zstd: a frame declares {declared} bytes, but only {limit} more are allowed"
        )
    if declared > bound:
        raise CorruptBatch(
            f"zstd: a frame declares {declared} bytes, but its blocks have at most {bound}"
        )
    # For the library, 0 would mean "no limit".
    room = max(1, min(bound, limit))
    try:
        out = _decompress(frame, room)
    except zstandard.ZstdError as error:
        hint = f" (more than {limit} bytes?)" if bound > limit else ""
        raise CorruptBatch(f"zstd: {error}{hint}") from None
    if len(out) > limit:
        raise StreamTooLong(
            f"zstd: decompresses to {len(out)} bytes, but only {limit} more are allowed"
        )
    return out


def _decompress_to(frame: memoryview, out: memoryview) -> memoryview:
    """Decompress one whole frame to `out`.

    `out` must be at least one byte longer than the output, so that the library reads up to the
    frame's end.
    """
    decompressor, end = _free_decompressor(), 0
    try:
        with decompressor.stream_reader(frame, closefd=False) as reader:
            while count := reader.readinto(out[end:]):
                end += count
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None
    _keep(decompressor)
    return out[:end]


def _decompress(frame: memoryview, room: int) -> bytes:
    decompressor = _free_decompressor()
    out = decompressor.decompress(frame, max_output_size=room)
    _keep(decompressor)
    return out


def _free_decompressor() -> zstandard.ZstdDecompressor:
    """Return an unused decompressor.

    Decompressors are reused, because creating one takes longer than decompressing a small frame.

    Only one thread at a time uses a decompressor, because `pop` and `append` of a list are atomic.
    """
    try:
        return _FREE.pop()
    except IndexError:
        return zstandard.ZstdDecompressor()


def _keep(decompressor: zstandard.ZstdDecompressor) -> None:
    if len(_FREE) < _FREE_MAX:
        _FREE.append(decompressor)


def _frame_end(view: memoryview, at: int) -> tuple[int, int]:
    """Return the end of the frame at `at`, and an upper bound of its decompressed size in bytes."""
    try:
        parameters = zstandard.get_frame_parameters(view[at : at + 18])
        start = at + zstandard.frame_header_size(view[at : at + 18])
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None
    if parameters.dict_id:
        raise CorruptBatch(f"zstd: needs dictionary {parameters.dict_id}; none is supported")
    if parameters.window_size > WINDOW_SIZE_MAX:
        raise CorruptBatch(
            f"zstd: a window of {parameters.window_size} bytes; the maximum is {WINDOW_SIZE_MAX}"
        )
    end, bound = _walk_blocks(view, start)
    end += _CHECKSUM_SIZE if parameters.has_checksum else 0
    if end > len(view):
        raise CorruptBatch("zstd: the frame is truncated")
    return end, bound


def _walk_blocks(view: memoryview, at: int) -> tuple[int, int]:
    """Return the end of the last block, and an upper bound of all blocks' output in bytes."""
    bound, last = 0, False
    while not last:
        if len(view) - at < _BLOCK_HEADER_SIZE:
            raise CorruptBatch("zstd: the frame is truncated")
        word = view[at] | view[at + 1] << 8 | view[at + 2] << 16
        last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        if kind == _RESERVED or size > _BLOCK_OUTPUT_MAX:
            raise CorruptBatch(f"zstd: a block of invalid kind {kind} or size {size}")
        bound += size if kind in (_RAW, _RUN) else _BLOCK_OUTPUT_MAX
        at += _BLOCK_HEADER_SIZE + (1 if kind == _RUN else size)
    return at, bound


def _skippable_end(view: memoryview, at: int) -> int | None:
    """Return the end of the skippable frame at `at`; None if the frame there is not skippable."""
    if len(view) - at < _SKIPPABLE_HEADER.size:
        return None
    magic, size = _SKIPPABLE_HEADER.unpack_from(view, at)
    if magic & ~0xF != _SKIPPABLE_MAGIC:
        return None
    end: int = at + _SKIPPABLE_HEADER.size + size
    if end > len(view):
        raise CorruptBatch("zstd: a skippable frame is truncated")
    return end
