"""Builds messages and message sets of magic 0 and 1, and changes what a log has to set in them.

Source: docs/format.md#magic-0-and-1; KIP-31, KIP-32.
"""

from collections.abc import Sequence

from tidelog.errors import InvalidRecord, InvalidRequest, UnsupportedForMessageFormat
from tidelog.record.coding import crc32
from tidelog.record.compression import compress
from tidelog.record.header import CRC, LENGTH, LOG_OVERHEAD, OFFSET, TIMESTAMP_TYPE_BIT
from tidelog.record.legacy_header import (
    FRAME,
    FRAME_V1,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    MESSAGE_MAGIC_AT,
    TIMED,
)
from tidelog.record.record import RecordLike, timestamps_of
from tidelog.types import INT32_MAX, NO_TIMESTAMP, Codec


def build_legacy_message(
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int,
    offset: int,
    timestamp: int = NO_TIMESTAMP,
    attributes: int = 0,
) -> bytearray:
    """One message with its frame and CRC.

    Args:
        key: None for none; a wrapper has none.
        value: None for none; of a wrapper, the compressed message set.
        magic: 0 or 1.
        offset: For the frame.
        timestamp: In ms; -1, the only one that magic 0 can have, means "has no time".
        attributes: Codec number and, in magic 1, the timestamp type bit.

    Raises:
        UnsupportedForMessageFormat: A timestamp in magic 0.
        InvalidRecord: Larger than the format allows.
    """
    assert magic in (0, 1)
    if magic == 0 and timestamp != NO_TIMESTAMP:
        raise UnsupportedForMessageFormat("magic 0 has no timestamps")
    frame = FRAME if magic == 0 else FRAME_V1
    fields = (timestamp,) if magic == 1 else ()
    length = frame.size - LOG_OVERHEAD + _field_size(key) + _field_size(value)
    if length > INT32_MAX:
        raise InvalidRecord(f"a message of {length} bytes, at most {INT32_MAX} are possible")
    message = bytearray(frame.pack(offset, length, 0, magic, attributes, *fields))
    for field in (key, value):
        message += LENGTH.pack(-1 if field is None else len(field))
        message += field or b""
    CRC.pack_into(message, MESSAGE_CRC_AT, crc32(memoryview(message)[MESSAGE_MAGIC_AT:]))
    return message


def assign_message_offset(buffer: bytearray | memoryview, at: int, offset: int) -> None:
    """Give the message at `at` its offset, which the CRC does not cover."""
    OFFSET.pack_into(buffer, at, offset)


def stamp_message(
    buffer: bytearray | memoryview, at: int, *, timestamp: int, attributes: int
) -> None:
    """Give the message of magic 1 at `at` another time and other attributes, and the CRC of them.

    Args:
        buffer: Holds the whole message.
        at: Its place.
        timestamp: In ms.
        attributes: Codec number and timestamp type bit.
    """
    _, length, _, _, old_attributes, old_timestamp = FRAME_V1.unpack_from(buffer, at)
    if (old_timestamp, old_attributes) == (timestamp, attributes):
        return
    TIMED.pack_into(buffer, at + MESSAGE_ATTRIBUTES_AT, attributes, timestamp)
    end = at + LOG_OVERHEAD + length
    CRC.pack_into(
        buffer, at + MESSAGE_CRC_AT, crc32(memoryview(buffer)[at + MESSAGE_MAGIC_AT : end])
    )


def _field_size(field: bytes | None) -> int:
    return LENGTH.size + (0 if field is None else len(field))


def build_legacy_set(
    records: Sequence[RecordLike],
    *,
    magic: int,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    append_time_ms: int | None = None,
    default_timestamp: int = NO_TIMESTAMP,
) -> bytearray:
    """The records as messages back to back, or as one wrapper where there is a codec.

    Args:
        records: At least one; without headers, and for magic 0 without timestamps that matter:
            they are dropped.
        magic: 0 or 1.
        codec: Any but zstd.
        base_offset: Offset of the first record.
        append_time_ms: Makes it LogAppendTime with that time in ms for all; None is CreateTime.
        default_timestamp: Time in ms of records whose timestamp is None.

    Raises:
        UnsupportedForMessageFormat: A record has headers, or magic 0 shall have an append time.
        UnsupportedCompression: zstd.
        InvalidRequest: No records.
        InvalidRecord: Larger than the format allows.
        InvalidTimestamp: A timestamp does not fit into 64 bits.
    """
    if not records:
        raise InvalidRequest("a message set has one message at least")
    if any(record.headers for record in records):
        raise UnsupportedForMessageFormat(f"magic {magic} has no headers")
    if magic == 0 and append_time_ms is not None:
        raise UnsupportedForMessageFormat("magic 0 has no append time")
    times = _times(records, magic, append_time_ms, default_timestamp)
    type_bit = 0 if append_time_ms is None else TIMESTAMP_TYPE_BIT
    first = 0 if codec is not Codec.NONE and magic == 1 else base_offset
    messages = bytearray()
    for index, (record, time) in enumerate(zip(records, times, strict=True)):
        messages += build_legacy_message(
            record.key,
            record.value,
            magic=magic,
            offset=first + index,
            timestamp=time,
            attributes=type_bit,
        )
    if codec is Codec.NONE:
        return messages
    return build_legacy_message(
        None,
        compress(codec, messages, magic=magic),
        magic=magic,
        offset=base_offset + len(records) - 1,
        timestamp=max(times),
        attributes=type_bit | codec,
    )


def _times(
    records: Sequence[RecordLike], magic: int, append_time_ms: int | None, default: int
) -> list[int]:
    """What each message's timestamp field says in ms."""
    if magic == 0:
        return [NO_TIMESTAMP] * len(records)
    if append_time_ms is not None:
        return [append_time_ms] * len(records)
    return timestamps_of(records, default)
