"""The bodies of several batches are decompressed into one buffer, one behind the other."""

import pytest

from tidelog.errors import CorruptBatch
from tidelog.record.buffers import BodyBuffer
from tidelog.record.compression import compress, decompress
from tidelog.record.lz4_frame import BLOCK_BYTES, decompress_single
from tidelog.types import Codec

TEXT = b"some text that repeats, " * 40


@pytest.mark.parametrize("codec", list(Codec))
def test_bodies_follow_each_other(codec: Codec) -> None:
    arena = BodyBuffer(1 << 20)
    for text in (TEXT, b"", TEXT[:7]):
        assert arena.put(decompress(codec, compress(codec, text), limit=1 << 20, scratch=arena))
    assert bytes(arena.content) == TEXT + TEXT[:7]
    arena.clear()
    assert arena.used == 0


def test_a_body_decompressed_in_place_is_not_copied() -> None:
    arena = BodyBuffer(1 << 20)
    assert arena.put(b"before")
    body = decompress(Codec.LZ4, compress(Codec.LZ4, TEXT), limit=1 << 20, scratch=arena)
    assert arena.put(body)
    assert bytes(arena.content) == b"before" + TEXT


def test_a_body_without_room_is_refused_and_changes_nothing() -> None:
    arena = BodyBuffer(10)
    assert arena.put(b"12345678")
    body = decompress(Codec.LZ4, compress(Codec.LZ4, TEXT), limit=1 << 20, scratch=arena)
    assert bytes(body) == TEXT
    assert not arena.put(body)
    assert bytes(arena.content) == b"12345678"
    assert arena.put(b"90")


@pytest.mark.parametrize("size", [1, 1000, BLOCK_BYTES])
def test_a_frame_of_one_block_is_read_as_any_other(size: int) -> None:
    text = (TEXT * 100)[:size]
    frame = memoryview(compress(Codec.LZ4, text))
    found = decompress_single(frame, memoryview(bytearray(BLOCK_BYTES)))
    # Data that does not shrink is stored in an uncompressed block. Only the general reader reads
    # such blocks.
    assert found is None or bytes(found) == text
    assert (found is None) == (size == 1)


def test_other_frames_are_left_to_the_general_reader() -> None:
    out = memoryview(bytearray(BLOCK_BYTES))
    several = compress(Codec.LZ4, TEXT * 100)
    assert len(TEXT) * 100 > BLOCK_BYTES
    whole = compress(Codec.LZ4, TEXT)
    damaged = [several, b"", whole[:10], whole[:-1], whole + b"\0", b"\1" + whole[1:]]
    damaged += [
        whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(len(whole))
    ]
    for frame in damaged:
        found = decompress_single(memoryview(frame), out)
        # A damaged frame that can still be read has a wrong content. Only the batch's checksum
        # detects this.
        if found is not None:
            assert decompress(Codec.LZ4, frame, limit=BLOCK_BYTES) == found
    with pytest.raises(CorruptBatch):
        decompress(Codec.LZ4, whole[:-1], limit=BLOCK_BYTES)
