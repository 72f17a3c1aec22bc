"""Each codec: Kafka's and other framing, the size limit, truncated and extended streams."""

import contextlib
import struct
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from tidelog.errors import CorruptBatch, InvalidRequest, UnsupportedCompression
from tidelog.record.buffers import SCRATCH_BYTES_MAX, Scratch
from tidelog.record.compression import (
    DEFAULT_DECOMPRESSION_LIMIT,
    GZIP_MEMBER_COUNT_MAX,
    compress,
    decompress,
)
from tidelog.types import Codec

LIMIT = 1 << 20
SCRATCH = Scratch()
MIB = 1 << 20
TEXT = b"the quick brown fox jumps over the lazy dog, " * 4000
REAL_CODECS = [codec for codec in Codec if codec is not Codec.NONE]
# Deterministic bytes that no codec can compress.
NOISE = b"".join(zlib.crc32(bytes([i & 255, i >> 8])).to_bytes(4, "big") for i in range(20_000))


def decompressed(codec: Codec, data: bytes, limit: int = LIMIT, magic: int = 2) -> bytes:
    """Decompress into new and into reused memory; check that the results or error types agree."""
    try:
        found = bytes(decompress(codec, data, limit=limit, magic=magic))
    except (CorruptBatch, UnsupportedCompression) as error:
        with pytest.raises(type(error)):
            decompress(codec, data, limit=limit, magic=magic, scratch=SCRATCH)
        raise
    assert decompress(codec, data, limit=limit, magic=magic, scratch=SCRATCH) == found
    return found


@pytest.mark.parametrize("data", [b"", b"a", TEXT, NOISE], ids=["empty", "one", "text", "noise"])
@pytest.mark.parametrize("codec", Codec)
def test_compressed_data_is_decompressed(codec: Codec, data: bytes) -> None:
    assert decompressed(codec, compress(codec, data)) == data
    assert decompressed(codec, compress(codec, bytearray(data))) == data
    assert decompressed(codec, compress(codec, memoryview(data))) == data


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_inclusive(codec: Codec) -> None:
    data = compress(codec, TEXT)
    assert decompressed(codec, data, limit=len(TEXT)) == TEXT
    with pytest.raises(CorruptBatch):
        decompressed(codec, data, limit=len(TEXT) - 1)
    with pytest.raises(CorruptBatch):
        decompressed(codec, data, limit=0)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_every_cut_is_noticed(codec: Codec) -> None:
    data = compress(codec, TEXT[:300] + NOISE[:300])
    for size in range(len(data)):
        with pytest.raises(CorruptBatch):
            decompressed(codec, data[:size])


def test_every_cut_of_snappy_inside_a_block_is_noticed() -> None:
    data = compress(Codec.SNAPPY, TEXT[:300] + NOISE[:300])
    # Xerial framing has no end mark, so a cut between blocks is only found by the batch's CRC.
    for size in set(range(len(data))) - {16}:
        with pytest.raises(CorruptBatch):
            decompressed(Codec.SNAPPY, data[:size])


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_bytes_after_the_end_are_refused(codec: Codec) -> None:
    for junk in (b"\0", b"junk and more of it"):
        with pytest.raises(CorruptBatch):
            decompressed(codec, compress(codec, TEXT) + junk)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_flipped_byte_gives_another_text_or_a_typed_error(codec: Codec) -> None:
    data = bytearray(compress(codec, TEXT[:200]))
    for at in range(len(data)):
        data[at] ^= 0x55
        with contextlib.suppress(CorruptBatch):
            decompressed(codec, bytes(data))
        data[at] ^= 0x55


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_memory_is_reused_once_it_has_no_view(codec: Codec) -> None:
    scratch = Scratch()
    data, other = compress(codec, TEXT), compress(codec, TEXT[::-1])
    first = decompress(codec, data, limit=LIMIT, scratch=scratch)
    second = decompress(codec, other, limit=LIMIT, scratch=scratch)
    assert (bytes(first), bytes(second)) == (TEXT, TEXT[::-1])
    assert isinstance(second, memoryview)
    buffer = second.obj
    del second
    third = decompress(codec, data, limit=LIMIT, scratch=scratch)
    assert isinstance(third, memoryview)
    assert third.obj is buffer
    assert (bytes(first), bytes(third)) == (TEXT, TEXT)


def test_large_memory_is_not_kept() -> None:
    scratch = Scratch()
    large = scratch.take(SCRATCH_BYTES_MAX + 1)
    assert len(large) == SCRATCH_BYTES_MAX + 1
    kept = large.obj
    del large
    assert scratch.take(SCRATCH_BYTES_MAX + 1).obj is not kept


def bomb(codec: Codec) -> bytes:
    return compress(codec, bytes(64 * MIB))


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_bomb_costs_no_more_than_its_cap(codec: Codec) -> None:
    data = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(codec, data, limit=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The bound allows a copy of the compressed bytes (lz4), and a buffer that grows by doubling
    # (gzip).
    assert peak <= 2 * MIB + len(data) + 64 * 1024


def test_a_bomb_of_undeclared_size_costs_no_more_than_its_cap() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    data = stream.compress(bytes(64 * MIB)) + stream.flush()
    assert zstandard.frame_content_size(data) == -1
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(Codec.ZSTD, data, limit=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 2 * MIB


def test_declared_sizes_are_bounded_by_the_compressed_size() -> None:
    empty_frame = zstandard.ZstdCompressor().compress(b"x" * 100)
    claims = bytes.fromhex("28b52ffd") + b"\xa0" + struct.pack("<I", 2**27 - 1) + empty_frame[6:]
    snappy_claims = bytes.fromhex("ffffff3f") + b"\x00a"
    for codec, data in ((Codec.ZSTD, claims), (Codec.SNAPPY, snappy_claims)):
        tracemalloc.start()
        try:
            with pytest.raises(CorruptBatch, match=r"its blocks have|can't decompress to"):
                decompress(codec, data, limit=DEFAULT_DECOMPRESSION_LIMIT)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 64 * 1024


class TestLevels:
    @pytest.mark.parametrize(
        ("codec", "level"),
        [
            (Codec.GZIP, -1),
            (Codec.GZIP, 1),
            (Codec.GZIP, 9),
            (Codec.LZ4, 1),
            (Codec.LZ4, 17),
            (Codec.ZSTD, -131072),
            (Codec.ZSTD, 22),
        ],
    )
    def test_levels_of_kafka_are_taken(self, codec: Codec, level: int) -> None:
        assert decompressed(codec, compress(codec, TEXT, level=level)) == TEXT

    @pytest.mark.parametrize(
        ("codec", "level"),
        [
            (Codec.GZIP, 0),
            (Codec.GZIP, 10),
            (Codec.LZ4, 0),
            (Codec.LZ4, 18),
            (Codec.ZSTD, 23),
            (Codec.SNAPPY, 1),
            (Codec.NONE, 1),
        ],
    )
    def test_other_levels_are_refused(self, codec: Codec, level: int) -> None:
        with pytest.raises(InvalidRequest):
            compress(codec, TEXT, level=level)

    def test_lz4_level_9_is_the_fast_compressor(self) -> None:
        assert compress(Codec.LZ4, TEXT, level=9) == compress(Codec.LZ4, TEXT)
        assert len(compress(Codec.LZ4, TEXT, level=12)) < len(compress(Codec.LZ4, TEXT))


class TestGzip:
    def test_members_one_after_the_other_are_joined(self) -> None:
        member = compress(Codec.GZIP, b"tide")
        assert decompressed(Codec.GZIP, member * 3) == b"tide" * 3

    def test_the_number_of_members_is_limited(self) -> None:
        member = compress(Codec.GZIP, b"")
        assert decompressed(Codec.GZIP, member * GZIP_MEMBER_COUNT_MAX) == b""
        with pytest.raises(CorruptBatch, match="members"):
            decompressed(Codec.GZIP, member * (GZIP_MEMBER_COUNT_MAX + 1))

    def test_compression_gives_the_same_bytes_at_any_time(self) -> None:
        assert compress(Codec.GZIP, TEXT)[4:8] == bytes(4)

    def test_raw_deflate_is_refused(self) -> None:
        with pytest.raises(CorruptBatch):
            decompressed(Codec.GZIP, zlib.compress(TEXT))


class TestSnappy:
    def test_the_header_is_xerials(self) -> None:
        data = compress(Codec.SNAPPY, b"tide")
        assert data[:16].hex() == "82534e41505059000000000100000001"
        (size,) = struct.unpack_from(">i", data, 16)
        assert size == len(data) - 20
        assert bytes(cramjam.snappy.decompress_raw(data[20:])) == b"tide"

    def test_blocks_have_32_kib(self) -> None:
        data = compress(Codec.SNAPPY, bytes(80 * 1024))
        sizes = []
        at = 16
        while at < len(data):
            (size,) = struct.unpack_from(">i", data, at)
            sizes.append(cramjam.snappy.decompress_raw_len(data[at + 4 : at + 4 + size]))
            at += 4 + size
        assert sizes == [32 * 1024, 32 * 1024, 16 * 1024]

    def test_an_unframed_block_is_read(self) -> None:
        assert decompressed(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT

    def test_a_later_version_that_old_readers_can_read_is_read(self) -> None:
        data = bytearray(compress(Codec.SNAPPY, TEXT))
        data[8:12] = struct.pack(">i", 2)
        assert decompressed(Codec.SNAPPY, bytes(data)) == TEXT

    @pytest.mark.parametrize("size", [-1, 0, 2**31 - 1])
    def test_a_wrong_block_size_is_refused(self, size: int) -> None:
        data = bytearray(compress(Codec.SNAPPY, TEXT))
        data[16:20] = struct.pack(">i", size)
        with pytest.raises(CorruptBatch, match="snappy: a block of"):
            decompressed(Codec.SNAPPY, bytes(data))

    @pytest.mark.parametrize(
        ("rest", "problem"),
        [
            (b"\0\0\0", "the size of a block is truncated"),
            (b"\0\0\0\5", "a block of 5 bytes, but only 0 are left"),
        ],
    )
    def test_a_block_that_is_truncated_is_refused(self, rest: bytes, problem: str) -> None:
        with pytest.raises(CorruptBatch, match=f"snappy: {problem}"):
            decompressed(Codec.SNAPPY, compress(Codec.SNAPPY, TEXT) + rest)

    def test_compatible_from_version_0_is_refused(self) -> None:
        data = bytearray(compress(Codec.SNAPPY, TEXT))
        data[12:16] = struct.pack(">i", 0)
        with pytest.raises(CorruptBatch, match="version"):
            decompressed(Codec.SNAPPY, bytes(data))


def lz4_frame(data: bytes, **options: object) -> bytes:
    frame: bytes = lz4.frame.compress(data, **{"block_linked": False, **options})
    return frame


class TestLz4:
    def test_the_header_is_kafkas(self) -> None:
        assert compress(Codec.LZ4, TEXT)[:7].hex() == "04224d18604082"
        assert compress(Codec.LZ4, TEXT, magic=1)[:7].hex() == "04224d18604082"
        assert compress(Codec.LZ4, TEXT)[-4:] == bytes(4)

    def test_magic_0_has_the_wrong_header_checksum(self) -> None:
        data = compress(Codec.LZ4, TEXT, magic=0)
        assert data[:7].hex() == "04224d1860401a"
        assert data[7:] == compress(Codec.LZ4, TEXT)[7:]
        assert decompressed(Codec.LZ4, data, magic=0) == TEXT

    def test_only_magic_0_is_read_with_a_wrong_header_checksum(self) -> None:
        wrong = compress(Codec.LZ4, TEXT, magic=0)
        for magic in (1, 2):
            with pytest.raises(CorruptBatch):
                decompressed(Codec.LZ4, wrong, magic=magic)
        assert decompressed(Codec.LZ4, compress(Codec.LZ4, TEXT), magic=0) == TEXT

    @pytest.mark.parametrize("block_size", [4, 5, 6, 7])
    @pytest.mark.parametrize("store_size", [False, True])
    @pytest.mark.parametrize("checksums", [False, True])
    @pytest.mark.parametrize("magic", [0, 2])
    def test_frames_of_other_writers_are_read(
        self, block_size: int, store_size: bool, checksums: bool, magic: int
    ) -> None:
        frame = bytearray(
            lz4_frame(
                TEXT,
                block_size=block_size,
                store_size=store_size,
                content_checksum=checksums,
                block_checksum=checksums,
            )
        )
        if magic == 0:
            frame[14 if store_size else 6] ^= 0xFF
        assert decompressed(Codec.LZ4, bytes(frame), magic=magic) == TEXT

    def test_dependent_blocks_are_refused_as_kafka_does(self) -> None:
        with pytest.raises(CorruptBatch, match="depend"):
            decompressed(Codec.LZ4, lz4_frame(TEXT, block_linked=True))

    def test_a_wrong_block_checksum_is_refused(self) -> None:
        frame = bytearray(lz4_frame(b"tide", block_checksum=True, store_size=False))
        frame[-5] ^= 1
        with pytest.raises(CorruptBatch):
            decompressed(Codec.LZ4, bytes(frame))

    @pytest.mark.parametrize(("at", "value"), [(0, 5), (4, 0x20), (4, 0x61), (4, 0x62), (5, 0x30)])
    def test_other_descriptors_are_refused(self, at: int, value: int) -> None:
        frame = bytearray(compress(Codec.LZ4, TEXT))
        frame[at] = value
        with pytest.raises(CorruptBatch, match="lz4"):
            decompressed(Codec.LZ4, bytes(frame))

    def test_a_block_above_its_maximum_is_refused(self) -> None:
        frame = bytearray(compress(Codec.LZ4, TEXT))
        frame[7:11] = struct.pack("<I", 65537)
        with pytest.raises(CorruptBatch, match="65537"):
            decompressed(Codec.LZ4, bytes(frame))

    def test_two_frames_are_refused(self) -> None:
        with pytest.raises(CorruptBatch):
            decompressed(Codec.LZ4, compress(Codec.LZ4, TEXT) * 2)


class TestZstd:
    def test_magic_0_and_1_have_no_zstd(self) -> None:
        for magic in (0, 1):
            with pytest.raises(UnsupportedCompression):
                compress(Codec.ZSTD, TEXT, magic=magic)
            with pytest.raises(UnsupportedCompression):
                decompressed(Codec.ZSTD, compress(Codec.ZSTD, TEXT), magic=magic)

    def test_a_frame_that_does_not_declare_its_size_is_read(self) -> None:
        for text in (b"", TEXT, NOISE):
            stream = zstandard.ZstdCompressor(level=5).compressobj()
            data = stream.compress(text) + stream.flush()
            assert decompressed(Codec.ZSTD, data) == text
            assert decompressed(Codec.ZSTD, data, limit=len(text)) == text

    def test_a_single_byte_exceeds_a_limit_of_0(self) -> None:
        stream = zstandard.ZstdCompressor().compressobj()
        data = stream.compress(b"a") + stream.flush()
        with pytest.raises(CorruptBatch, match="but only 0 more are allowed"):
            decompressed(Codec.ZSTD, data, limit=0)

    def test_frames_with_a_checksum_are_read_and_checked(self) -> None:
        data = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(TEXT))
        assert decompressed(Codec.ZSTD, bytes(data)) == TEXT
        data[-1] ^= 1
        with pytest.raises(CorruptBatch):
            decompressed(Codec.ZSTD, bytes(data))

    def test_frames_one_after_the_other_are_joined_and_skippable_ones_skipped(self) -> None:
        frame = compress(Codec.ZSTD, b"tide")
        skip = struct.pack("<II", 0x184D2A57, 3) + b"abc"
        assert decompressed(Codec.ZSTD, skip + frame + skip + frame) == b"tidetide"
        with pytest.raises(CorruptBatch, match="skippable"):
            decompressed(Codec.ZSTD, frame + skip[:-1])

    def test_the_limit_counts_over_frames(self) -> None:
        frame = compress(Codec.ZSTD, b"tide")
        assert decompressed(Codec.ZSTD, frame * 2, limit=8) == b"tidetide"
        with pytest.raises(CorruptBatch):
            decompressed(Codec.ZSTD, frame * 2, limit=7)

    def test_the_window_of_kafkas_highest_level_is_read_and_no_larger_one(self) -> None:
        for window_log, fits in ((27, True), (28, False)):
            parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
            stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
            data = stream.compress(b"tide" * 100) + stream.flush()
            if fits:
                assert decompressed(Codec.ZSTD, data) == b"tide" * 100
            else:
                with pytest.raises(CorruptBatch, match="window"):
                    decompressed(Codec.ZSTD, data)

    def test_a_dictionary_is_refused(self) -> None:
        samples: list[bytes | bytearray | memoryview] = [
            b"flight %d of the morning to JFK" % i for i in range(2000)
        ]
        dictionary = zstandard.train_dictionary(2048, samples)
        data = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT)
        with pytest.raises(CorruptBatch, match="dictionary"):
            decompressed(Codec.ZSTD, data)
