"""Codecs of record batches, with Kafka's framing and a hard limit on the decompressed size.

`compress` writes the same framing as Kafka's clients, and `decompress` reads all framings that
Kafka's clients read. Lengths in the input are not trusted. The structure of snappy, lz4 and zstd
streams is examined before memory is allocated, so a small stream that declares a large size
allocates little. The limit applies to the result, and to the copy of the result that some libraries
make. Two inputs are errors although Kafka's readers accept them: bytes after the end of a stream,
and more than `GZIP_MEMBER_COUNT_MAX` gzip members.

The framings of snappy, lz4 and zstd have their own modules (`snappy_stream`, `lz4_frame`,
`zstd_frame`). Each of these modules, and its library, is imported when the first batch of its codec
is processed.

Source: docs/format.md#compression; KIP-390 (levels).
"""

import zlib
from typing import Final

from tidelog.errors import CorruptBatch, InvalidRequest, StreamTooLong, UnsupportedCompression
from tidelog.record.buffers import Scratch
from tidelog.types import Buffer, Codec

# Maximum decompressed size of an appended batch in bytes. It is far above Kafka's default limit for
# the compressed size (1 MiB), and low enough that one hostile batch can't exhaust a small machine.
APPEND_DECOMPRESSION_LIMIT: Final = 128 * 1024 * 1024

# Maximum decompressed size of a stored batch in bytes, larger than the limit for an appended batch.
# When a cleaner removes records from a batch, it rewrites the remaining records' timestamps
# relative to a new base timestamp, so these records may grow. Each record has at least 7 bytes, and
# in total grows by at most 10 bytes, even if records are removed several times.
DEFAULT_DECOMPRESSION_LIMIT: Final = APPEND_DECOMPRESSION_LIMIT * (7 + 10) // 7

# Value of zlib's `wbits` for streams with gzip header and trailer.
_GZIP_WINDOW_BITS: Final = 31

# Maximum number of gzip members in a stream. Several members are accepted, because Java reads
# concatenated gzip members; Kafka's clients write only one member.
GZIP_MEMBER_COUNT_MAX: Final = 16

_LEVELS: Final = {
    Codec.GZIP: range(1, 10),
    Codec.LZ4: range(1, 18),
    Codec.ZSTD: range(-131072, 23),
}

_GZIP_DEFAULT_LEVEL: Final = -1


def compress(codec: Codec, data: Buffer, *, level: int | None = None, magic: int = 2) -> bytes:
    """Compress `data` to one stream.

    Args:
        codec: The codec; NONE returns the bytes unchanged.
        data: Records of magic 2, or a message set of magic 0 or 1.
        level: Compression level of gzip (1..9, or -1 for zlib's default), lz4 (1..17) or zstd
            (-131072..22); None for Kafka's default.
        magic: Magic of the records. With magic 0, lz4 frames get the wrong header checksum that old
            clients expect. The codec zstd requires magic 2.

    Raises:
        UnsupportedCompression: The codec is zstd, with magic 0 or 1.
        InvalidRequest: The codec has no levels, or `level` is outside the codec's range.
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
            from tidelog.record import snappy_stream

            return snappy_stream.compress(data)
        case Codec.LZ4:
            from tidelog.record import lz4_frame

            return lz4_frame.compress(data, level=level, broken_checksum=magic == 0)
        case Codec.ZSTD:
            _check_zstd_magic(magic)
            from tidelog.record import zstd_frame

            return zstd_frame.compress(data, level=level)


def decompress(
    codec: Codec, data: Buffer, *, limit: int, magic: int = 2, scratch: Scratch | None = None
) -> bytes | memoryview:
    """Decompress `data` to at most `limit` bytes.

    For the result, the function allocates at most `limit` bytes and a small constant, whatever size
    the input declares. For some codecs it also allocates a copy of the input and a copy of the
    result.

    Args:
        codec: The codec; NONE returns a view of the bytes.
        data: One compressed stream, with nothing after it.
        limit: Maximum number of decompressed bytes, inclusive.
        magic: Magic of the records; with 0, the lz4 header checksum is not checked.
        scratch: Memory for the result, which is reused after the caller has dropped the result;
            None for new memory. Gzip and unusual frames never use it.

    Raises:
        CorruptBatch: The stream is malformed, truncated, or followed by other bytes, or has more
            than `GZIP_MEMBER_COUNT_MAX` members.
        StreamTooLong: The stream decompresses to more than `limit` bytes.
        UnsupportedCompression: The codec is zstd, with magic 0 or 1.
    """
    assert limit >= 0
    match codec:
        case Codec.NONE:
            if len(data) > limit:
                raise StreamTooLong(f"{len(data)} bytes of records; at most {limit} are allowed")
            return memoryview(data)
        case Codec.GZIP:
            return _gunzip(data, limit)
        case Codec.SNAPPY:
            from tidelog.record import snappy_stream

            return snappy_stream.decompress(data, limit, scratch=scratch)
        case Codec.LZ4:
            from tidelog.record import lz4_frame

            return lz4_frame.decompress(data, limit, check_header=magic != 0, scratch=scratch)
        case Codec.ZSTD:
            _check_zstd_magic(magic)
            from tidelog.record import zstd_frame

            return zstd_frame.decompress(data, limit, scratch=scratch)


def _gunzip(data: Buffer, limit: int) -> bytes:
    """Decompress all gzip members of `data`, one after the other."""
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
            raise StreamTooLong(f"gzip: decompresses to more than {limit} bytes")
        if not stream.eof:
            raise CorruptBatch("gzip: the stream is truncated")
        data = stream.unused_data
        if not data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise CorruptBatch(f"gzip: more than {GZIP_MEMBER_COUNT_MAX} members")


def _check_level(codec: Codec, level: int | None) -> None:
    if level is None or (codec is Codec.GZIP and level == _GZIP_DEFAULT_LEVEL):
        return
    allowed = _LEVELS.get(codec)
    if allowed is None:
        raise InvalidRequest(f"{codec.config_name} has no compression levels, got {level}")
    if level not in allowed:
        raise InvalidRequest(
            f"level {level} of {codec.config_name} is outside {allowed[0]}..{allowed[-1]}"
        )


def _check_zstd_magic(magic: int) -> None:
    if magic < 2:
        raise UnsupportedCompression(f"zstd is not allowed in magic {magic}")
