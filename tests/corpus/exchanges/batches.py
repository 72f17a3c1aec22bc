"""Batches of records as bytes, built without a library, and the fields of their headers."""

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aiokafka.record.util import calc_crc32c
from tests.corpus.exchanges.values import Value

# First fields of a batch's header: base offset, length, leader epoch, magic, crc.
_FRONT: Final = struct.Struct(">qiibI")
# Other fields of the header: attributes, last offset delta, first and largest time, producer id and
# epoch, first sequence, record count.
_BACK: Final = struct.Struct(">hiqqqhii")
_AT_LENGTH: Final = 12
_GZIP: Final = 1
TRANSACTIONAL: Final = 0x10


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _sized(given: bytes | None) -> bytes:
    return _varint(-1) if given is None else _varint(len(given)) + given


def record(number: int, key: bytes | None, value: bytes | None, after_ms: int) -> bytes:
    """Return a record of format 2 with one header."""
    head = b"\0" + _varint(after_ms) + _varint(number) + _sized(key) + _sized(value)
    made = head + _varint(1) + _sized(b"h") + _sized(b"1")
    return _varint(len(made)) + made


def batch(
    time_ms: int,
    values: Sequence[bytes | None] = (b"one", b"two"),
    *,
    keys: Sequence[bytes | None] | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
    step_ms: int = 1,
) -> bytes:
    """Return a batch of format 2.

    Args:
        time_ms: Time of the first record; each next record's time is `step_ms` later.
        values: The records' values.
        keys: One per value; `k0`, `k1` and so on if None.
        producer: Producer id, epoch, first sequence.
        attributes: The batch's attribute bits; with codec 1 (gzip) the records are compressed.
        step_ms: Difference between the times of consecutive records.
    """
    keys = [b"k%d" % n for n in range(len(values))] if keys is None else keys
    pairs = enumerate(zip(keys, values, strict=True))
    records = b"".join(record(n, key, value, n * step_ms) for n, (key, value) in pairs)
    if attributes & 7 == _GZIP:
        records = gzip.compress(records, mtime=0)
    last = len(values) - 1
    times = (time_ms, time_ms + last * step_ms)
    body = _BACK.pack(attributes, last, *times, *producer, len(values)) + records
    return _FRONT.pack(0, len(body) + 9, -1, 2, calc_crc32c(body)) + body


def old_set(
    magic: int, messages: Iterable[tuple[bytes | None, bytes | None]], time_ms: int
) -> bytes:
    """Return a message set of format 0 or 1."""
    made = bytearray()
    for number, pair in enumerate(messages):
        head = bytes([magic, 0]) + (struct.pack(">q", time_ms + number) if magic else b"")
        parts = (b"\xff\xff\xff\xff" if p is None else struct.pack(">i", len(p)) + p for p in pair)
        body = head + b"".join(parts)
        whole = struct.pack(">I", zlib.crc32(body)) + body
        made += struct.pack(">qi", number, len(whole)) + whole
    return bytes(made)


def batch_lines(value: Value, path: str = "") -> Iterator[str]:
    """Yield, as text, the header of each batch in a message's fields that are named `records`."""
    if isinstance(value, dict):
        for name, each in value.items():
            inner = f"{path}.{name}" if path else name
            if name == "records" and isinstance(each, bytes):
                yield from _headers(each, inner)
            else:
                yield from batch_lines(each, inner)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from batch_lines(each, f"{path}[{number}]")


def _headers(given: bytes, path: str) -> Iterator[str]:
    position = 0
    while len(given) - position > _AT_LENGTH + 5:
        base, length = struct.unpack_from(">qi", given, position)
        magic = given[position + 16]
        words = f"{path} at {position}: base offset {base}, {length} bytes, magic {magic}"
        if magic == 2 and len(given) - position >= _FRONT.size + _BACK.size:
            crc = _FRONT.unpack_from(given, position)[-1]
            facts = _BACK.unpack_from(given, position + _FRONT.size)
            kinds = ("attributes", "last", "first ms", "largest ms", "producer", "epoch")
            told = zip((*kinds, "sequence", "records"), facts, strict=True)
            words += f", crc {crc:08x}, " + ", ".join(f"{kind} {fact}" for kind, fact in told)
        yield words
        position += _AT_LENGTH + max(length, 5)
