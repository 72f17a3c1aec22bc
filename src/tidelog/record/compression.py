"""Codecs of record batches, with Kafka's framing and a hard limit on the decompressed size.

`compress` writes what Kafka's clients write, `decompress` reads what they read. Lengths in the
input are not trusted: frames are walked first, so memory is allocated only for sizes that the input
can really produce, and never beyond the limit. Bytes after the end of a stream are an error;
Kafka's readers drop them silently.

Snappy uses the xerial framing with big-endian integers. A stream without its header is read as one
raw block, as in Kafka:

```
82 'S' 'N' 'A' 'P' 'P' 'Y' 00 | int32 version 1 | int32 compatible from 1
then for each block: int32 size of the compressed bytes | raw snappy block
```

The `zstandard` library ignores `max_output_size` where a frame declares its size. So the blocks of
a frame are walked first (a 3-byte header bounds the output of each), and the library is asked for
at most that size and the limit.

Source: docs/format.md#compression; KIP-110 (zstd), KIP-57 (lz4), KIP-390 (levels); RFC 8878.
"""

import struct
import zlib
from typing import Final

import cramjam
import zstandard

from tidelog.errors import CorruptBatch, InvalidRequest, StreamTooLong, UnsupportedCompression
from tidelog.record import lz4_frame
from tidelog.record.buffers import SCRATCH_BYTES_MAX, Scratch
from tidelog.types import Buffer, Codec

MAGIC: Final = b"\x82SNAPPY\x00"


HEADER: Final = struct.Struct(">8sii")


VERSION: Final = 1


BLOCK_SIZE: Final = 32 * 1024


_SIZE: Final = struct.Struct(">i")


# The longest copy makes 64 bytes of three: no block can grow more than this.
_GROWTH_MAX: Final = 22


assert HEADER.size == 16


def snappy_compress(data: Buffer) -> bytes:
    """`data` in framed blocks of 32 KiB."""
    view = memoryview(data)
    parts = [HEADER.pack(MAGIC, VERSION, VERSION)]
    for at in range(0, len(view), BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + BLOCK_SIZE]))
        parts += (_SIZE.pack(len(block)), block)
    return b"".join(parts)


def snappy_decompress(data: Buffer, limit: int, *, scratch: Scratch | None = None) -> memoryview:
    """What the blocks of `data` hold, at most `limit` bytes.

    Args:
        data: Framed blocks, or one raw block.
        limit: Bytes allowed to come out, inclusive.
        scratch: Where to decompress to; None takes new memory.

    Raises:
        CorruptBatch: A block is malformed or cut, or more than `limit` bytes come out.
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
    """The raw blocks behind the header."""
    if len(view) < HEADER.size:
        raise CorruptBatch("snappy: the header is cut")
    _, _, compatible = HEADER.unpack_from(view)
    if compatible < VERSION:
        raise CorruptBatch(f"snappy: compatible from version {compatible}, not from {VERSION}")
    blocks: list[memoryview] = []
    at = HEADER.size
    while at < len(view):
        if len(view) - at < _SIZE.size:
            raise CorruptBatch("snappy: a block's size is cut")
        (size,) = _SIZE.unpack_from(view, at)
        at += _SIZE.size
        if not 0 < size <= len(view) - at:
            raise CorruptBatch(f"snappy: a block of {size} bytes, {len(view) - at} are left")
        blocks.append(view[at : at + size])
        at += size
    return blocks


def _size_of(block: memoryview, limit: int) -> int:
    """What one raw block declares, compared with the cap and with what it can hold."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    if size > limit:
        raise StreamTooLong(f"snappy: a block of {size} bytes when {limit} more are allowed")
    if size > len(block) * _GROWTH_MAX:
        raise CorruptBatch(f"snappy: {len(block)} bytes can't hold {size}")
    return size


def _decompress_block(block: memoryview, out: memoryview) -> None:
    """One raw block, which must fill `out`."""
    try:
        written = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    assert written == len(out)


DEFAULT_LEVEL: Final = 3


# Kafka's reader takes windows up to this, and its level 22 writes them.
WINDOW_SIZE_MAX: Final = 1 << 27


_BLOCK_OUTPUT_MAX: Final = 128 * 1024


_BLOCK_HEADER_SIZE: Final = 3


_CHECKSUM_SIZE: Final = 4


# Decompressors that no thread uses just now.
_FREE: Final[list[zstandard.ZstdDecompressor]] = []


_FREE_MAX: Final = 16


_RAW, _RUN, _RESERVED = 0, 1, 3


_SKIPPABLE_MAGIC: Final = 0x184D2A50


_SKIPPABLE_HEADER: Final = struct.Struct("<II")


def zstd_compress(data: Buffer, *, level: int | None = None) -> bytes:
    """`data` as one frame that declares its size; `level` as Kafka's, None is 3."""
    return zstandard.ZstdCompressor(DEFAULT_LEVEL if level is None else level).compress(data)


def zstd_decompress(
    data: Buffer, limit: int, *, scratch: Scratch | None = None
) -> bytes | memoryview:
    """What the frames of `data` hold, at most `limit` bytes.

    Args:
        data: Frames, nothing after the last.
        limit: Bytes allowed to come out, inclusive.
        scratch: Where to decompress a single frame to; None takes new memory.

    Raises:
        CorruptBatch: Malformed, cut, a window over 128 MiB, or more than `limit` comes out.
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
    """One whole frame whose blocks make at most `bound` bytes."""
    declared = zstandard.frame_content_size(frame)
    if declared > limit:
        raise StreamTooLong(f"zstd: {declared} bytes are declared when {limit} more are allowed")
    if declared > bound:
        raise CorruptBatch(f"zstd: {declared} bytes are declared, the blocks hold {bound}")
    # 0 would mean "no cap" to the library.
    room = max(1, min(bound, limit))
    try:
        out = _decompress(frame, room)
    except zstandard.ZstdError as error:
        hint = f" (more than {limit} bytes?)" if bound > limit else ""
        raise CorruptBatch(f"zstd: {error}{hint}") from None
    if len(out) > limit:
        raise StreamTooLong(f"zstd: {len(out)} bytes come out when {limit} more are allowed")
    return out


def _decompress_to(frame: memoryview, out: memoryview) -> memoryview:
    """One whole frame into room for a byte more than its blocks can make: its end is read too."""
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
    """One that nobody uses just now: making one costs more than a small frame.

    One serves one thread at a time; `pop` and `append` of a list are atomic.
    """
    try:
        return _FREE.pop()
    except IndexError:
        return zstandard.ZstdDecompressor()


def _keep(decompressor: zstandard.ZstdDecompressor) -> None:
    if len(_FREE) < _FREE_MAX:
        _FREE.append(decompressor)


def _frame_end(view: memoryview, at: int) -> tuple[int, int]:
    """Where the frame at `at` ends, and the most that its blocks can make."""
    try:
        parameters = zstandard.get_frame_parameters(view[at : at + 18])
        start = at + zstandard.frame_header_size(view[at : at + 18])
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None
    if parameters.dict_id:
        raise CorruptBatch(f"zstd: dictionary {parameters.dict_id} is asked for")
    if parameters.window_size > WINDOW_SIZE_MAX:
        raise CorruptBatch(f"zstd: a window of {parameters.window_size} bytes")
    end, bound = _walk_blocks(view, start)
    end += _CHECKSUM_SIZE if parameters.has_checksum else 0
    if end > len(view):
        raise CorruptBatch("zstd: the frame is cut")
    return end, bound


def _walk_blocks(view: memoryview, at: int) -> tuple[int, int]:
    """Where the last block ends, and the most that all can make."""
    bound, last = 0, False
    while not last:
        if len(view) - at < _BLOCK_HEADER_SIZE:
            raise CorruptBatch("zstd: the frame is cut")
        word = view[at] | view[at + 1] << 8 | view[at + 2] << 16
        last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        if kind == _RESERVED or size > _BLOCK_OUTPUT_MAX:
            raise CorruptBatch(f"zstd: a block of kind {kind} and {size} bytes")
        bound += size if kind in (_RAW, _RUN) else _BLOCK_OUTPUT_MAX
        at += _BLOCK_HEADER_SIZE + (1 if kind == _RUN else size)
    return at, bound


def _skippable_end(view: memoryview, at: int) -> int | None:
    """Where the frame at `at` ends if it is one that readers skip, else None."""
    if len(view) - at < _SKIPPABLE_HEADER.size:
        return None
    magic, size = _SKIPPABLE_HEADER.unpack_from(view, at)
    if magic & ~0xF != _SKIPPABLE_MAGIC:
        return None
    end: int = at + _SKIPPABLE_HEADER.size + size
    if end > len(view):
        raise CorruptBatch("zstd: a skippable frame is cut")
    return end


# What a batch that is appended may grow to. Far above any batch that Kafka's limits let in (1 MiB
# by default), low enough that one hostile batch can't take a small machine down.
APPEND_DECOMPRESSION_LIMIT: Final = 128 * 1024 * 1024


# What a batch that lies in a log may grow to. Who takes records out of it writes the times of the
# others against another base: each of them is 10 bytes longer then at most, however often that is
# done, and none has less than 7.
DEFAULT_DECOMPRESSION_LIMIT: Final = APPEND_DECOMPRESSION_LIMIT * (7 + 10) // 7


# zlib's way of saying "with a gzip header and trailer".
_GZIP_WINDOW_BITS: Final = 31


# Java reads concatenated gzip members, so we do; nobody writes more than one.
GZIP_MEMBER_COUNT_MAX: Final = 16


_LEVELS: Final = {
    Codec.GZIP: range(1, 10),
    Codec.LZ4: range(1, 18),
    Codec.ZSTD: range(-131072, 23),
}


_GZIP_DEFAULT_LEVEL: Final = -1


def compress(codec: Codec, data: Buffer, *, level: int | None = None, magic: int = 2) -> bytes:
    """`data` as one compressed stream.

    Args:
        codec: NONE gives the bytes back as they are.
        data: Records of magic 2, or a message set of magic 0 or 1.
        level: Of gzip (1..9, -1 its default), lz4 (1..17) or zstd (-131072..22); None takes
            Kafka's default.
        magic: Of the records; 0 has the wrong lz4 header checksum of old clients, and only 2 has
            zstd.

    Raises:
        UnsupportedCompression: zstd in magic 0 or 1.
        InvalidRequest: The level is outside the codec's range.
    """
    _check_level(codec, level)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            stream = zlib.compressobj(
                _GZIP_DEFAULT_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WINDOW_BITS
            )
            return stream.compress(data) + stream.flush()
        case Codec.SNAPPY:
            return snappy_compress(data)
        case Codec.LZ4:
            return lz4_frame.compress(data, level=level, broken_checksum=magic == 0)
        case Codec.ZSTD:
            _check_zstd_magic(magic)
            return zstd_compress(data, level=level)


def decompress(
    codec: Codec, data: Buffer, *, limit: int, magic: int = 2, scratch: Scratch | None = None
) -> bytes | memoryview:
    """What `data` decompresses to, at most `limit` bytes.

    Memory stays within `limit` and a small constant, whatever the bytes declare.

    Args:
        codec: NONE gives a view of the bytes as they are.
        data: One compressed stream, nothing after it.
        limit: Bytes allowed to come out, inclusive.
        magic: Of the records; in magic 0 the lz4 header checksum is not looked at.
        scratch: Where to decompress to, for who keeps no view of it; None takes new memory.

    Raises:
        CorruptBatch: Malformed, cut, or followed by other bytes.
        StreamTooLong: More than `limit` comes out.
        UnsupportedCompression: zstd in magic 0 or 1.
    """
    assert limit >= 0
    match codec:
        case Codec.NONE:
            if len(data) > limit:
                raise StreamTooLong(f"{len(data)} bytes of records, at most {limit} are taken")
            return memoryview(data)
        case Codec.GZIP:
            return _gunzip(data, limit)
        case Codec.SNAPPY:
            return snappy_decompress(data, limit, scratch=scratch)
        case Codec.LZ4:
            return lz4_frame.decompress(data, limit, check_header=magic != 0, scratch=scratch)
        case Codec.ZSTD:
            _check_zstd_magic(magic)
            return zstd_decompress(data, limit, scratch=scratch)


def _gunzip(data: Buffer, limit: int) -> bytes:
    """All gzip members of `data`, one after the other."""
    parts: list[bytes] = []
    room = limit + 1
    for _ in range(GZIP_MEMBER_COUNT_MAX):
        stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            parts.append(stream.decompress(data, room))
        except zlib.error as error:
            raise CorruptBatch(f"gzip: {error}") from None
        room -= len(parts[-1])
        if room <= 0:
            raise StreamTooLong(f"gzip: more than {limit} bytes come out")
        if not stream.eof:
            raise CorruptBatch("gzip: the stream is cut")
        data = stream.unused_data
        if not data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise CorruptBatch(f"gzip: more than {GZIP_MEMBER_COUNT_MAX} members")


def _check_level(codec: Codec, level: int | None) -> None:
    if level is None or (codec is Codec.GZIP and level == _GZIP_DEFAULT_LEVEL):
        return
    allowed = _LEVELS.get(codec)
    if allowed is None:
        raise InvalidRequest(f"{codec.config_name} has no levels, {level} was given")
    if level not in allowed:
        raise InvalidRequest(
            f"level {level} of {codec.config_name} is outside {allowed[0]}..{allowed[-1]}"
        )


def _check_zstd_magic(magic: int) -> None:
    if magic < 2:
        raise UnsupportedCompression(f"zstd is not allowed in magic {magic}")
