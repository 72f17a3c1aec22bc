"""Records of a log: their magic-2 coding, control records, and append times.

This module owns the fields and their checks. The module does not know batch headers: `BatchValues`
has the values that a record inherits from its batch. `read_pairs` reads only keys and values.
Because it skips times and headers, it takes a quarter of the time needed to read whole records.

Source: docs/format.md#record; KIP-82 (headers), KIP-98 (control records).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from tidelog.amounts import plural, verb
from tidelog.errors import CorruptRecord, InvalidRecord, InvalidTimestamp
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import encode_varlong, read_varint, read_varlong
from tidelog.record.header import HEADERS_MAX
from tidelog.types import INT32_MAX, NO_SEQUENCE, NO_TIMESTAMP, Buffer, Header, TimestampType

# Minimum size of a record in bytes: one byte for each of these fields: length, attributes,
# timestamp delta, offset delta, the lengths of key and value, header count.
RECORD_SIZE_MIN: Final = 7

# Record attributes have no meaning yet: writers set them to 0 and readers ignore them, as in Kafka.
_NO_ATTRIBUTES: Final = b"\0"

_NO_HEADERS: Final = encode_varlong(0)
_NULL_SIZE: Final = encode_varlong(-1)
_INT64_SPAN: Final = 1 << 64
_INT64_SIGN: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log.

    Attributes:
        offset: Logical offset.
        timestamp: Timestamp that a Kafka consumer sees, in ms; -1 means "has no time".
        timestamp_type: Source of `timestamp`: the producer (CreateTime) or the log (LogAppendTime).
        key: The key; None for a record without a key, b"" for an empty key.
        value: The value; None marks a tombstone in a compacted topic.
        headers: Headers in the producer's order; keys may repeat.
        create_timestamp: The time in ms that the producer gave; None if the producer gave none, or
            if the time is lost. The create time is lost in LogAppendTime messages of magic 1, and
            in LogAppendTime batches whose create times a cleaner may have overwritten.
        sequence: The idempotent producer's sequence number, -1 for none.
        append_timestamp: Append time in ms; None if it is unknown or was not looked up.
    """

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    create_timestamp: int | None = None
    sequence: int = NO_SEQUENCE
    append_timestamp: int | None = field(default=None, compare=False)

    @property
    def has_key(self) -> bool:
        """Whether the record has a key, which can be empty."""
        return self.key is not None

    @property
    def has_value(self) -> bool:
        """Whether the record has a value, which can be empty."""
        return self.value is not None

    @property
    def is_tombstone(self) -> bool:
        """Whether the record deletes its key in a compacted topic: it has a key and no value."""
        return self.key is not None and self.value is None


class RecordLike(Protocol):
    """The fields of a record that builders need; `NewRecord` and `Record` have them."""

    @property
    def key(self) -> bytes | None:
        """Serialized key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Serialized value."""
        ...

    @property
    def timestamp(self) -> int | None:
        """Time in ms; None if the builder chooses the time."""
        ...

    @property
    def headers(self) -> tuple[Header, ...]:
        """Headers in order."""
        ...


class BatchValues(NamedTuple):
    """Values that records inherit from their batch's header.

    Attributes:
        base_offset: Offset to which the records' offset deltas are added.
        last_offset_delta: Largest offset delta that a record may have.
        base_timestamp: Time in ms to which the records' timestamp deltas are added.
        append_timestamp: Time of every record of a LogAppendTime batch, None for CreateTime.
        base_sequence: The producer's sequence number for offset delta 0, -1 for none.
        records_at: Position of the first record in the walked buffer, used only in errors. None if
            the records were compressed.
        batch_at: Position of the batch in the walked buffer, used only in errors.
    """

    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    append_timestamp: int | None
    base_sequence: int
    records_at: int | None
    batch_at: int


def wrap_int64(value: int) -> int:
    """Wrap `value` to a signed 64-bit number, like the arithmetic of Kafka's producers."""
    return (value + _INT64_SIGN) % _INT64_SPAN - _INT64_SIGN


def wrap_sequence(value: int) -> int:
    """Wrap `value` to a producer's sequence number: 0 follows 2147483647."""
    return value & INT32_MAX


def decode_records(body: bytes, count: int, inherited: BatchValues) -> Iterator[Record]:
    """Iterate over the `count` records in `body`, in order; they must fill `body` exactly.

    Args:
        body: The records section of a batch, decompressed.
        count: Number of records according to the batch's header.
        inherited: Values from the batch's header.

    Raises:
        CorruptRecord: A rule of docs/format.md#record is broken. The records that were yielded
            before are valid.
    """
    end = len(body)
    if count < 0 or count * RECORD_SIZE_MIN > end:
        raise _corrupt(
            f"{plural(count, 'record')} {verb(count, 'is', 'are')} declared in"
            f" {plural(end, 'byte')}",
            0,
            inherited,
        )
    at, last_delta = 0, -1
    try:
        for _ in range(count):
            delta, record, at = _decode_record(body, at, end, inherited)
            if not last_delta < delta <= inherited.last_offset_delta:
                raise CorruptRecord(
                    f"offset delta {delta}, must be above {last_delta} and at most "
                    f"{inherited.last_offset_delta}",
                    at=at,
                )
            last_delta = delta
            yield record
    except CorruptRecord as error:
        raise _corrupt(error.reason, error.at or 0, inherited) from None
    if at != end:
        raise _corrupt(
            f"{plural(end - at, 'byte')} left after {plural(count, 'record')}", at, inherited
        )


def _corrupt(reason: str, at: int, inherited: BatchValues) -> CorruptRecord:
    """Return an error with the position of the damage in the walked buffer.

    For compressed records the error has the batch's position, and its text has the record's
    position in the decompressed bytes.
    """
    offset = inherited.base_offset
    if inherited.records_at is not None:
        return CorruptRecord(reason, at=inherited.records_at + at, offset=offset)
    reason = f"{reason} (byte {at} of the decompressed records)"
    return CorruptRecord(reason, at=inherited.batch_at, offset=offset)


def _decode_record(
    body: bytes, at: int, end: int, inherited: BatchValues
) -> tuple[int, Record, int]:
    """Return the offset delta of the record at `at`, the record, and the position after it."""
    size, at = read_varint(body, at, end)
    if not 0 <= size <= end - at:
        raise CorruptRecord(f"a record of {size} bytes, but only {end - at} are left", at=at)
    record_end = at + size
    if size:
        at += 1  # skips the record's attributes
    time_delta, at = read_varlong(body, at, record_end)
    delta, at = read_varint(body, at, record_end)
    key, at = _read_bytes(body, at, record_end, "key")
    value, at = _read_bytes(body, at, record_end, "value")
    header_count, at = read_varint(body, at, record_end)
    headers, at = _read_headers(body, at, record_end, header_count) if header_count else ((), at)
    if at != record_end:
        raise CorruptRecord(
            f"a record's fields end {record_end - at} bytes before the record's end", at=at
        )
    return delta, _assemble(time_delta, delta, (key, value, headers), inherited), record_end


def _assemble(
    time_delta: int,
    delta: int,
    content: tuple[bytes | None, bytes | None, tuple[Header, ...]],
    inherited: BatchValues,
) -> Record:
    """Return the record with these deltas and this content: key, value and headers."""
    created = inherited.base_timestamp + time_delta
    if not -_INT64_SIGN <= created < _INT64_SIGN:
        created = wrap_int64(created)
    append = inherited.append_timestamp
    base_sequence = inherited.base_sequence
    return Record(
        inherited.base_offset + delta,
        created if append is None else append,
        TimestampType.CREATE_TIME if append is None else TimestampType.LOG_APPEND_TIME,
        *content,
        None if created == NO_TIMESTAMP else created,
        NO_SEQUENCE if base_sequence == NO_SEQUENCE else wrap_sequence(base_sequence + delta),
    )


def _read_bytes(body: bytes, at: int, end: int, what: str) -> tuple[bytes | None, int]:
    """Return the field whose length is stored at `at`, and the position after the field.

    The field is None if the length is -1.
    """
    start = at
    size, at = read_varint(body, at, end)
    if size == -1:
        return None, at
    if not 0 <= size <= end - at:
        raise CorruptRecord(f"a {what} of {size} bytes, but only {end - at} are left", at=start)
    return body[at : at + size], at + size


def _read_headers(body: bytes, at: int, end: int, count: int) -> tuple[tuple[Header, ...], int]:
    """Return `count` headers, and the position after the last header.

    Each header takes at least two bytes, which limits `count`.
    """
    if not 0 <= count <= (end - at) // 2:
        raise CorruptRecord(f"{count} headers in {end - at} bytes", at=at)
    if count > HEADERS_MAX:
        raise CorruptRecord(f"{count} headers; a record can have at most {HEADERS_MAX}", at=at)
    headers: list[Header] = []
    last = b""
    for _ in range(count):
        # A record with very many headers usually repeats one small header. So before a header is
        # decoded, its bytes are compared with the bytes of the previous header.
        if last and body.startswith(last, at, end):
            headers.append(headers[-1])
            at += len(last)
            continue
        start = at
        key, at = _read_bytes(body, at, end, "header key")
        if key is None:
            raise CorruptRecord("a header without a key", at=start)
        value, at = _read_bytes(body, at, end, "header value")
        # As in Kafka, a record with invalid UTF-8 is not refused: the invalid bytes are replaced.
        headers.append(Header(key.decode("utf-8", "replace"), value))
        last = body[start:at]
    return tuple(headers), at


def encode_record(
    out: bytearray, record: RecordLike, *, timestamp_delta: int, offset_delta: int
) -> None:
    """Append `record` to `out`.

    Args:
        out: The records section of a batch, with the records that precede this record.
        record: The record; its field `timestamp` is ignored.
        timestamp_delta: Time in ms relative to the batch's base timestamp, wrapped to int64 if
            needed.
        offset_delta: The record's offset relative to the batch's base offset.

    Raises:
        InvalidRecord: The record does not fit into 2 GiB, has more than `HEADERS_MAX` headers, or a
            header's key is not valid text. `out` is unchanged.
    """
    key, value, headers = record.key, record.value, record.headers
    fields = (
        _NO_ATTRIBUTES,
        encode_varlong(wrap_int64(timestamp_delta)),
        encode_varlong(offset_delta),
        *_sized(key),
        *_sized(value),
        _encode_headers(headers) if headers else _NO_HEADERS,
    )
    body = b"".join(fields)
    out += _encode_size(body, "record")
    out += body


def _encode_headers(headers: Sequence[Header]) -> bytes:
    if len(headers) > HEADERS_MAX:
        raise InvalidRecord(f"{len(headers)} headers; a record can have at most {HEADERS_MAX}")
    parts = [encode_varlong(len(headers))]
    for each in headers:
        try:
            parts += (*_sized(each.key.encode()), *_sized(each.value))
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"the header key {each.key!r} can't be encoded as UTF-8") from error
    return b"".join(parts)


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (_NULL_SIZE, b"") if data is None else (_encode_size(data), data)


def _encode_size(data: bytes, what: str = "field") -> bytes:
    size = len(data)
    if size > INT32_MAX:
        raise InvalidRecord(f"a {what} of {size} bytes; the maximum is {INT32_MAX}")
    return encode_varlong(size)


def timestamps_of(records: Sequence[RecordLike], default: int) -> list[int]:
    """Return each record's timestamp in ms; `default` for a record without a timestamp.

    Raises:
        InvalidTimestamp: A timestamp does not fit into 64 bits.
    """
    times = [default if r.timestamp is None else r.timestamp for r in records]
    for time in times:
        if not -_INT64_SIGN <= time < _INT64_SIGN:
            raise InvalidTimestamp(f"timestamp {time} does not fit into 64 bits")
    return times


class ControlType(IntEnum):
    """Type of a control record. The values are part of the format and must not change."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


CONTROL_KEY: Final = struct.Struct(">hh")  # pair of version and type
END_MARKER_VALUE: Final = struct.Struct(">hi")  # pair of version and coordinator epoch

assert CONTROL_KEY.size == 4
assert END_MARKER_VALUE.size == 6

# The whole record of a transaction marker, with timestamp delta 0 and offset delta 0. All brokers
# write transaction markers in this form. The record's parts are the fields up to the key's length,
# the key, the value's length, the value, and the number of headers (0).
_PLAIN_MARKER: Final = struct.Struct(">5shhBhiB")

_MARKER_HEAD: Final = b"\x20\0\0\0\x08"
_MARKER_VALUE_LENGTH: Final = 12
_MARKER_KINDS: Final = {int(kind): kind for kind in (ControlType.ABORT, ControlType.COMMIT)}


class EndMarker(NamedTuple):
    """End of a transaction: `kind` is COMMIT or ABORT."""

    kind: ControlType
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        """Whether the transaction was committed."""
        return self.kind is ControlType.COMMIT


def read_control_type(key: bytes | None, *, at: int | None = None) -> ControlType:
    """Return the type of the control record with this key; UNKNOWN for unknown types.

    Raises:
        CorruptRecord: The key is missing or too short, or its version is negative.
    """
    if key is None or len(key) < CONTROL_KEY.size:
        raise CorruptRecord("a control record whose key has fewer than 4 bytes", at=at)
    version, kind = CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecord(f"a control record of negative version {version}", at=at)
    return ControlType(kind) if 0 <= kind <= ControlType.KRAFT_VOTERS else ControlType.UNKNOWN


def pack_end_marker(kind: ControlType, coordinator_epoch: int) -> bytes:
    """Return the encoded record of a transaction marker.

    The marker must be the only record of its batch, and its time must be the batch's base
    timestamp.
    """
    epoch, length = coordinator_epoch, _MARKER_VALUE_LENGTH
    return _PLAIN_MARKER.pack(_MARKER_HEAD, 0, kind, length, 0, epoch, 0)


def unpack_end_marker(body: Buffer) -> EndMarker | None:
    """Return the marker in a batch's body; None for a body that `pack_end_marker` never writes."""
    if len(body) != _PLAIN_MARKER.size:
        return None
    head, key_version, kind, length, version, epoch, headers = _PLAIN_MARKER.unpack(body)
    is_plain = head == _MARKER_HEAD and length == _MARKER_VALUE_LENGTH
    if not is_plain or key_version or version or headers or kind not in _MARKER_KINDS:
        return None
    return EndMarker(_MARKER_KINDS[kind], epoch)


def read_end_marker(record: Record) -> EndMarker:
    """Return the transaction marker in `record`.

    A marker of a later version is read like version 0.

    Raises:
        CorruptRecord: The record is not a commit or abort marker, is too short, or has a negative
            version.
    """
    kind = read_control_type(record.key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptRecord(
            f"a control record of type {kind.name}, expected COMMIT or ABORT", offset=record.offset
        )
    if record.value is None or len(record.value) < END_MARKER_VALUE.size:
        raise CorruptRecord("a transaction marker of fewer than 6 bytes", offset=record.offset)
    version, epoch = END_MARKER_VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptRecord(
            f"a transaction marker of negative version {version}", offset=record.offset
        )
    return EndMarker(kind, epoch)


Pair: TypeAlias = tuple[int, bytes | None, bytes | None]


def read_pairs(body: bytes, count: int) -> list[Pair]:
    """Return a tuple of offset delta, key and value for each of `count` records.

    Args:
        body: The records, uncompressed.
        count: Number of records according to the batch's header.

    Raises:
        CorruptRecord: A length or another integer is invalid, or bytes follow the last record.
    """
    pairs: list[Pair] = []
    at, end = 0, len(body)
    try:
        for _ in range(count):
            start = at
            size, at = read_varint(body, at, end)
            stop = at + size
            if not 0 <= size <= end - at:
                raise CorruptRecord(
                    f"a record of {size} bytes, but only {end - at} are left", at=start
                )
            at += 1  # skips the attributes
            while body[at] >= 0x80:  # skips the timestamp delta
                at += 1
            delta, at = read_varint(body, at + 1, stop)
            key, at = _field(body, at, stop)
            value, at = _field(body, at, stop)
            pairs.append((delta, key, value))
            at = stop
    except IndexError:
        raise CorruptRecord("a record extends past the end of its batch", at=at) from None
    if at != end:
        raise CorruptRecord(f"{end - at} bytes after the last record", at=at)
    return pairs


def _field(body: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Return a key or a value, and the position after it.

    The key or value is None if its length is negative.
    """
    if at < end and (byte := body[at]) < 0x80:
        size, at = (byte >> 1) ^ -(byte & 1), at + 1
    else:
        size, at = read_varint(body, at, end)
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise CorruptRecord(f"a field of {size} bytes, but only {end - at} are left", at=at)
    return body[at:stop], stop


def stamp_of(record: Record) -> int | None:
    """Return the append time in ms of a LogAppendTime record, None for CreateTime."""
    is_stamped = record.timestamp_type is TimestampType.LOG_APPEND_TIME
    return record.timestamp if is_stamped else None


def with_append_time(record: Record, append_ms: int | None) -> Record:
    """Return the record with `append_ms` as its `append_timestamp`.

    If `append_ms` is None, a LogAppendTime record gets its timestamp as `append_timestamp`, and a
    CreateTime record is returned unchanged.
    """
    append_time = stamp_of(record) if append_ms is None else append_ms
    return record if append_time is None else replace(record, append_timestamp=append_time)
