"""What the validator must know of a batch's records, found in one pass over their bytes.

The plain pass here is the reference; a kernel may take its place (`BodyCheck`), so that storage
needs no numba. A pass checks the structure of every record and copies no key and no value.

Source: docs/format.md#record; Kafka 4.x LogValidator.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from tidelog.errors import CorruptRecord
from tidelog.record.coding import read_varint, read_varlong, write_varint
from tidelog.record.header import HEADERS_MAX
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP, Buffer


class BodyFacts(NamedTuple):
    """What one pass finds.

    Attributes:
        max_timestamp: Largest timestamp in ms, -1 where none is larger.
        min_timestamp: Smallest timestamp in ms other than -1; 2^63-1 where there is none.
        has_null_key: Whether any record has no key.
        deltas_in_order: Whether the offset deltas are 0, 1, 2, ...
    """

    max_timestamp: int
    min_timestamp: int
    has_null_key: bool
    deltas_in_order: bool


class BodyCheck(Protocol):
    """One pass over an uncompressed records section of magic 2."""

    def __call__(
        self, body: Buffer, record_count: int, base_timestamp: int, /
    ) -> tuple[int, int, bool, bool]:
        """The facts of `record_count` records that fill `body` exactly, as `BodyFacts` orders them.

        Timestamps are base + delta, wrapped to 64 bits. (A plain tuple will do, so that a kernel
        below storage can answer.)

        Raises:
            CorruptRecord: A record breaks its format; `at` counts from the body's first byte.
        """
        ...


class RecordFrame(NamedTuple):
    """Where one record's parts lie in a body, and its deltas; `end` is exclusive."""

    attributes_at: int
    offset_delta_at: int
    key_at: int
    end: int
    timestamp_delta: int
    offset_delta: int
    has_key: bool


def check_body(body: Buffer, record_count: int, base_timestamp: int, /) -> BodyFacts:
    """The plain pass: see `BodyCheck`."""
    largest, smallest = NO_TIMESTAMP, INT64_MAX
    has_null_key, in_order = False, True
    for index, frame in enumerate(walk_body(body, record_count)):
        timestamp = wrapped_sum(base_timestamp, frame.timestamp_delta)
        largest = max(largest, timestamp)
        if timestamp != NO_TIMESTAMP:
            smallest = min(smallest, timestamp)
        has_null_key |= not frame.has_key
        in_order &= frame.offset_delta == index
    return BodyFacts(largest, smallest, has_null_key, in_order)


def wrapped_sum(base_timestamp: int, delta: int) -> int:
    """The sum as an int64, as every other reader computes it."""
    total = base_timestamp + delta
    return total if INT64_MIN <= total <= INT64_MAX else (total + 2**63) % 2**64 - 2**63


def walk_body(body: Buffer, record_count: int) -> Iterator[RecordFrame]:
    """The frames of `record_count` records that fill `body` exactly.

    Raises:
        CorruptRecord: As `BodyCheck`; what was yielded before was right.
    """
    end = len(body)
    if record_count < 0 or record_count * RECORD_SIZE_MIN > end:
        raise CorruptRecord(f"{record_count} records are declared in {end} bytes", at=0)
    at = 0
    for _ in range(record_count):
        frame = _read_frame(body, at, end)
        yield frame
        at = frame.end
    if at != end:
        raise CorruptRecord(f"{end - at} bytes are left after {record_count} records", at=at)


def _read_frame(body: Buffer, start: int, limit: int) -> RecordFrame:
    size, attributes_at = read_varint(body, start, limit)
    end = attributes_at + size
    if size < 1 or end > limit:
        raise CorruptRecord(f"a record of {size} bytes, {limit - attributes_at} left", at=start)
    timestamp_delta, offset_delta_at = read_varlong(body, attributes_at + 1, end)
    offset_delta, key_at = read_varint(body, offset_delta_at, end)
    has_key, at = _skip_bytes(body, key_at, end, is_nullable=True)
    _, at = _skip_bytes(body, at, end, is_nullable=True)
    at = _skip_headers(body, at, end)
    if at != end:
        raise CorruptRecord(f"a record ends {end - at} bytes before its length says", at=start)
    return RecordFrame(
        attributes_at, offset_delta_at, key_at, end, timestamp_delta, offset_delta, has_key
    )


def _skip_bytes(body: Buffer, at: int, end: int, *, is_nullable: bool) -> tuple[bool, int]:
    """Whether the field is there (not null), and the place behind it."""
    size, after = read_varint(body, at, end)
    if size == -1 and is_nullable:
        return False, after
    if not 0 <= size <= end - after:
        raise CorruptRecord(f"a field of {size} bytes, {end - after} left in its record", at=at)
    return True, after + size


def _skip_headers(body: Buffer, at: int, end: int) -> int:
    count, after = read_varint(body, at, end)
    # A header takes two bytes at least, so the loop is bounded by what is there.
    if not 0 <= count <= (end - after) // 2:
        raise CorruptRecord(f"{count} headers, {end - after} bytes left in their record", at=at)
    if count > HEADERS_MAX:
        raise CorruptRecord(f"{count} headers, a record has at most {HEADERS_MAX}", at=at)
    for _ in range(count):
        _, after = _skip_bytes(body, after, end, is_nullable=False)
        _, after = _skip_bytes(body, after, end, is_nullable=True)
    return after


def renumber_body(body: Buffer, record_count: int) -> bytearray:
    """The same records with offset deltas 0, 1, 2, ...; everything else byte for byte.

    Raises:
        CorruptRecord: As `BodyCheck`.
    """
    out = bytearray()
    for index, frame in enumerate(walk_body(body, record_count)):
        record = bytearray(body[frame.attributes_at : frame.offset_delta_at])
        write_varint(record, index)
        record += body[frame.key_at : frame.end]
        write_varint(out, len(record))
        out += record
    return out
