"""Requests of the load generator, encoded by hand and not by the code that the benchmark measures.

Produce v9, Fetch v12, ListOffsets v7 and Metadata v9 are flexible versions that both brokers
support and that identify topics by name. A frame includes its length. Fields of responses are read
at positions that are fixed in these versions. Fields that no measurement needs are not decoded.

Source: KIP-482; the message definitions of Apache Kafka 4.3.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ACKS_ALL: Final = -1
TIMEOUT_MS: Final = 30_000
CLIENT_ID: Final = b"bench"
FETCH_MAX_BYTES: Final = 52_428_800
PARTITION_MAX_BYTES: Final = 1_048_576
VARINT_MAX_BYTES: Final = 5

_HEADER: Final = struct.Struct(">hhih")
_PRODUCED: Final = struct.Struct(">ihqqq")
# Size in bytes of a partition in a Produce response. The fields are index, error, base offset,
# append time and log start, then an empty array of record errors, a null message and no tags.
PRODUCED_SIZE: Final = _PRODUCED.size + 3
_FETCHED: Final = struct.Struct(">ihqqqbi")
FETCHED_SIZE: Final = _FETCHED.size
_LISTED: Final = struct.Struct(">ihqqi")


def uvarint(number: int) -> bytes:
    """Encode a number as unsigned varint: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7


def text(value: str) -> bytes:
    """Encode a compact string."""
    raw = value.encode()
    return uvarint(len(raw) + 1) + raw


def array(rows: Sequence[bytes]) -> bytes:
    """Encode a compact array of encoded rows."""
    return uvarint(len(rows) + 1) + b"".join(rows)


def frame(api: int, version: int, body: bytes) -> bytes:
    """Return a request with its length, a version 2 header and correlation id 1."""
    header = _HEADER.pack(api, version, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce(
    topic: str,
    batches: Sequence[bytes],
    first: int = 0,
    acks: int = ACKS_ALL,
    *,
    version: int = 9,
    transactional_id: str | None = None,
) -> bytes:
    """Encode Produce (any of v9 to v12) with a batch for each partition from `first` on."""
    rows = [
        struct.pack(">i", first + n) + uvarint(len(batch) + 1) + batch + b"\0"
        for n, batch in enumerate(batches)
    ]
    topics = array([text(topic) + array(rows) + b"\0"])
    whose = b"\0" if transactional_id is None else text(transactional_id)
    return frame(0, version, whose + struct.pack(">hi", acks, TIMEOUT_MS) + topics + b"\0")


def fetch(topic: str, offsets: Sequence[int], *, wait_ms: int = 500, min_bytes: int = 1) -> bytes:
    """Encode Fetch for partitions 0, 1, ... of a topic from these offsets on, without a session."""
    rows = [
        struct.pack(">iiqiqi", n, -1, offset, -1, -1, PARTITION_MAX_BYTES) + b"\0"
        for n, offset in enumerate(offsets)
    ]
    head = struct.pack(">iiiibii", -1, wait_ms, min_bytes, FETCH_MAX_BYTES, 0, 0, -1)
    topics = array([text(topic) + array(rows) + b"\0"])
    return frame(1, 12, head + topics + array([]) + text("") + b"\0")


def list_offsets(topic: str, timestamp: int, partition: int = 0) -> bytes:
    """Encode ListOffsets for one partition and a time in ms."""
    row = struct.pack(">iiq", partition, -1, timestamp) + b"\0"
    topics = array([text(topic) + array([row]) + b"\0"])
    return frame(2, 7, struct.pack(">ib", -1, 0) + topics + b"\0")


def metadata() -> bytes:
    """Encode Metadata for all topics."""
    return frame(3, 9, b"\0\0\0\0\0")


def first_partition_at(topic: str, partitions: int, *, before: int) -> int:
    """Return the position of the first partition's row, counted from the correlation id.

    `before` is the number of bytes between the header and the array of topics.
    """
    return 4 + 1 + before + 1 + len(text(topic)) + len(uvarint(partitions + 1))


@dataclass(frozen=True, slots=True)
class Produced:
    """Checks Produce responses for a number of partitions of one topic."""

    topic: str
    partitions: int

    def check(self, answer: bytes | memoryview) -> None:
        """Raise RuntimeError if a partition has an error."""
        at = first_partition_at(self.topic, self.partitions, before=0)
        for _ in range(self.partitions):
            index, error, *_rest = _PRODUCED.unpack_from(answer, at)
            if error:
                raise RuntimeError(f"Produce to {self.topic}-{index} was refused: error {error}")
            at += PRODUCED_SIZE


def fetched_row(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int]:
    """Return a partition's index, the size of its records, and the size of the preceding fields.

    Raises:
        RuntimeError: The partition has an error or aborted transactions.
    """
    index, error, _high, _stable, _start, aborted, _preferred = _FETCHED.unpack_from(data, at)
    if error or aborted > 1:
        transactions = max(aborted - 1, 0)
        raise RuntimeError(
            f"Fetch of partition {index}: error {error}, {transactions} aborted transactions"
        )
    size, end = read_uvarint(data, at + FETCHED_SIZE)
    return index, max(size - 1, 0), end - at


def listed(answer: bytes | memoryview, topic: str) -> tuple[int, int]:
    """Return the error and the offset of a ListOffsets response for one partition."""
    at = first_partition_at(topic, 1, before=4)
    _index, error, _timestamp, offset, _epoch = _LISTED.unpack_from(answer, at)
    return error, offset
