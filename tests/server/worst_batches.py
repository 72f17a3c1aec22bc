"""Batches that take long to validate, for a topic that accepts batches of any size."""

import zlib
from collections.abc import Callable
from typing import Final

from tidelog.record.coding import write_varint
from tidelog.record.header import HEADER, HEADER_SIZE, LOG_OVERHEAD, seal
from tidelog.types import Codec

DAY_MS: Final = 86_400_000


def _batch(body: bytes, count: int, codec: Codec, timestamp_ms: int) -> bytes:
    data = bytearray(HEADER_SIZE + len(body))
    size, times = len(data) - LOG_OVERHEAD, (timestamp_ms, timestamp_ms)
    HEADER.pack_into(data, 0, 0, size, -1, 2, 0, codec, count - 1, *times, -1, -1, -1, count)
    data[HEADER_SIZE:] = body
    seal(data, 0)
    return bytes(data)


def _gzip(data: bytes) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    return stream.compress(data) + stream.flush()


def _records(count: int) -> bytes:
    """Return records of the smallest size: no key, an empty value, ascending offset deltas."""
    out = bytearray()
    for index in range(count):
        record = bytearray(b"\0\0")
        write_varint(record, index)
        record += b"\1\0\0"
        write_varint(out, len(record))
        out += record
    return bytes(out)


def equal_deltas(now_ms: int) -> bytes:
    """Return a batch of a million records whose offset deltas are all 0."""
    count = 1_000_000
    return _batch(_gzip(b"\x0c\0\0\0\1\0\0" * count), count, Codec.GZIP, now_ms)


def future(now_ms: int) -> bytes:
    """Return a batch whose records have times 30 days in the future, as from a wrong clock."""
    return _batch(_records(300_000), 300_000, Codec.NONE, now_ms + 30 * DAY_MS)


def no_keys(now_ms: int) -> bytes:
    """Return a batch of records without keys, compressed."""
    return _batch(_gzip(_records(300_000)), 300_000, Codec.GZIP, now_ms)


def too_long(now_ms: int) -> bytes:
    """Return a batch of one record that decompresses to more bytes than the limit."""
    record = bytearray(b"\0\0\0\1")
    size = 200 << 20
    write_varint(record, size)
    body = bytearray()
    write_varint(body, len(record) + size + 1)
    return _batch(_gzip(bytes(body + record) + bytes(size + 1)), 1, Codec.GZIP, now_ms)


def long(now_ms: int) -> bytes:
    """Return a batch with one record of 100 MiB, which compresses to a very small size."""
    record = bytearray(b"\0\0\0\1")
    size = 100 << 20
    write_varint(record, size)
    body = bytearray()
    write_varint(body, len(record) + size + 1)
    return _batch(_gzip(bytes(body + record) + bytes(size + 1)), 1, Codec.GZIP, now_ms)


def large(now_ms: int) -> bytes:
    """Return a batch of 3 million small records, uncompressed."""
    count = 3_000_000
    return _batch(_records(count), count, Codec.NONE, now_ms)


WORST: Final[dict[str, Callable[[int], bytes]]] = {
    made.__name__: made for made in (equal_deltas, future, no_keys, too_long, long, large)
}
