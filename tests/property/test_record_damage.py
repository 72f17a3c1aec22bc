"""Damaged and synthetic bytes give typed errors or fewer batches, but never a wrong record."""

import contextlib
import struct
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st
from tests.worlds.records.strategies import LEGACY_CODECS, Built, Expected, logs

from tidelog.errors import TidelogError
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32
from tidelog.record.compression import compress, decompress
from tidelog.record.header import HEADER_SIZE, LENGTH_AT, MAGIC_AT, seal
from tidelog.record.legacy import build_legacy_message
from tidelog.record.serde import SERDE_NAMES, deserializer
from tidelog.types import Codec, NewRecord

SMALL_LIMIT = 1 << 20


def read_until_error(data: bytes) -> list[Expected]:
    """Return the records before the first typed error, or all records if there is no error."""
    found: list[Expected] = []
    with contextlib.suppress(TidelogError):
        for batch in walk(data):
            found.extend(
                Expected(r.offset, r.timestamp, r.create_timestamp, r.key, r.value, r.headers)
                for r in batch.records()
            )
    return found


def touch_everything(batch: Batch) -> None:
    """Call every method of a batch; only typed errors may be raised."""
    with contextlib.suppress(TidelogError):
        list(batch.records(limit=SMALL_LIMIT))
    with contextlib.suppress(TidelogError):
        list(batch.records(check_crc=False, limit=SMALL_LIMIT))
    with contextlib.suppress(TidelogError):
        assert batch.base_offset <= batch.last_offset or batch.last_offset_delta < 0
    with contextlib.suppress(TidelogError):
        _ = batch.codec
    with contextlib.suppress(TidelogError):
        batch.ensure_valid()
    assert repr(batch)
    _ = (batch.is_valid(), batch.last_sequence, batch.timestamp_type, batch.next_offset)


@given(logs(), st.data())
def test_a_flipped_bit_that_a_checksum_covers_never_gives_a_wrong_record(
    built: Built, data: st.DataObject
) -> None:
    batches = list(walk(built.data))
    batch = data.draw(st.sampled_from(batches))
    first_covered = batch.at + (17 if batch.magic == 2 else 12)
    at = data.draw(st.integers(first_covered, batch.at + batch.size_bytes - 1))
    damaged = bytearray(built.data)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    found = read_until_error(bytes(damaged))
    untouched = [e for e in built.expected if e.offset < batch.base_offset]
    assert found == untouched


@given(logs(), st.data())
def test_a_cut_gives_the_whole_batches_before_it(built: Built, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(built.data)))
    whole = [b for b in walk(built.data) if b.at + b.size_bytes <= size]
    end = whole[-1].next_offset if whole else 0
    expected = [e for e in built.expected if e.offset < end]
    found = [
        Expected(r.offset, r.timestamp, r.create_timestamp, r.key, r.value, r.headers)
        for batch in walk(built.data[:size])
        for r in batch.records()
    ]
    assert found == expected


@given(logs(), st.data())
def test_a_hole_never_gives_a_wrong_record(built: Built, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(built.data) - 1))
    end = data.draw(st.integers(start + 1, len(built.data)))
    zeroed = built.data[:start] + bytes(end - start) + built.data[end:]
    # Offsets are not compared, because no checksum covers them; all other fields must be right.
    contents = [replace(e, offset=0) for e in built.expected]
    assert all(replace(found, offset=0) in contents for found in read_until_error(zeroed))


@given(st.binary(max_size=300))
@example(bytes(300))
@example(b"\xff" * 300)
def test_arbitrary_bytes(data: bytes) -> None:
    with contextlib.suppress(TidelogError):
        for batch in walk(data):
            touch_everything(batch)


def _frame(magic: int, length: int, rest: bytes) -> bytes:
    return struct.pack(">qi", 5, length) + rest[:4].ljust(4, b"\0") + bytes((magic,)) + rest[4:]


@given(st.sampled_from([0, 1, 2]), st.integers(14, 250), st.binary(min_size=4, max_size=300))
def test_arbitrary_bytes_in_a_right_frame(magic: int, length: int, rest: bytes) -> None:
    with contextlib.suppress(TidelogError):
        for batch in walk(_frame(magic, length, rest)):
            touch_everything(batch)


# Bytes that resemble records: mostly small lengths and deltas.
recordish = st.lists(
    st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 14, 0x80, 0xFF]) | st.integers(0, 255), max_size=60
).map(bytes)


@given(
    st.binary(max_size=60) | recordish,
    st.sampled_from(range(8)),
    st.binary(min_size=40, max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_arbitrary_records_with_a_valid_checksum_are_safe(
    body: bytes, codec: int, header: bytes, random_header: bool, compressed: bool
) -> None:
    known = codec <= Codec.ZSTD
    data = build_batch([NewRecord()] * 3, codec=Codec(codec) if known else Codec.NONE)[:HEADER_SIZE]
    if random_header:
        data[21:HEADER_SIZE] = header
    data[22] = data[22] & ~7 | codec
    data += compress(Codec(codec), body) if known and compressed else body
    data[LENGTH_AT : LENGTH_AT + 4] = struct.pack(">i", len(data) - 12)
    seal(data, 0)
    for batch in walk(data):
        assert batch.is_valid()
        touch_everything(batch)


@given(
    st.binary(max_size=80) | recordish,
    st.sampled_from(range(8)),
    st.sampled_from([0, 1]),
    st.booleans(),
)
def test_arbitrary_messages_with_a_valid_checksum_are_safe(
    body: bytes, codec: int, magic: int, compressed: bool
) -> None:
    wrap = compressed and codec in [*LEGACY_CODECS]
    value = compress(Codec(codec), body, magic=magic) if wrap else body
    data = build_legacy_message(None, value, magic=magic, offset=9, attributes=codec)
    # Also one batch whose fields are arbitrary.
    loose = bytearray(_frame(magic, 200, bytes(4) + bytes((codec,)) + (body * 200)[:195]))
    loose = loose if len(loose) == 212 else data[:]
    loose[12:16] = struct.pack(">I", crc32(loose[MAGIC_AT:]))
    for batch in (*walk(data), *walk(loose)):
        assert batch.is_valid()
        touch_everything(batch)


@given(st.binary(max_size=200), st.sampled_from(Codec), st.sampled_from([0, 1, 2]))
def test_arbitrary_bytes_to_codecs(data: bytes, codec: Codec, magic: int) -> None:
    with contextlib.suppress(TidelogError):
        out = decompress(codec, data, limit=SMALL_LIMIT, magic=magic)
        assert len(out) <= SMALL_LIMIT


@given(
    st.binary(min_size=1, max_size=200),
    st.sampled_from([Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]),
    st.data(),
)
def test_damaged_streams_stay_within_the_limit(
    data: bytes, codec: Codec, drawn: st.DataObject
) -> None:
    stream = bytearray(compress(codec, data * 10))
    for _ in range(drawn.draw(st.integers(1, 4))):
        at = drawn.draw(st.integers(0, len(stream) - 1))
        stream[at] = drawn.draw(st.integers(0, 255))
    with contextlib.suppress(TidelogError):
        assert len(decompress(codec, stream, limit=len(data) * 10)) <= len(data) * 10


@given(st.binary(max_size=60), st.sampled_from(SERDE_NAMES))
def test_arbitrary_bytes_to_deserializers(data: bytes, name: str) -> None:
    with contextlib.suppress(TidelogError):
        deserializer(name)(data)
