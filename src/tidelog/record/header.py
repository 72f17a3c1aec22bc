"""Header fields of batches and legacy messages: positions, masks, and functions to set them.

The header of a magic-2 batch has 61 bytes. The CRC covers all bytes from the attributes on. Base
offset and leader epoch are before the attributes, so a leader can set both without recomputing the
CRC. In messages of magic 0 and 1, the CRC covers all bytes from the magic on. Offset and length are
before the magic.

Source: docs/format.md#batch, #magic-0-and-1; KIP-31, KIP-32, KIP-98, KIP-534 (delete horizon).
"""

import struct
from typing import Final

from tidelog.record.coding import crc32c
from tidelog.types import TimestampType

BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = BASE_OFFSET_AT + 8
LEADER_EPOCH_AT: Final = LENGTH_AT + 4
MAGIC_AT: Final = LEADER_EPOCH_AT + 4
CRC_AT: Final = MAGIC_AT + 1
ATTRIBUTES_AT: Final = CRC_AT + 4
LAST_OFFSET_DELTA_AT: Final = ATTRIBUTES_AT + 2
BASE_TIMESTAMP_AT: Final = LAST_OFFSET_DELTA_AT + 4
MAX_TIMESTAMP_AT: Final = BASE_TIMESTAMP_AT + 8
PRODUCER_ID_AT: Final = MAX_TIMESTAMP_AT + 8
PRODUCER_EPOCH_AT: Final = PRODUCER_ID_AT + 8
BASE_SEQUENCE_AT: Final = PRODUCER_EPOCH_AT + 2
RECORD_COUNT_AT: Final = BASE_SEQUENCE_AT + 4
HEADER_SIZE: Final = RECORD_COUNT_AT + 4

# Size in bytes of the offset and length fields, which come first in every magic.
LOG_OVERHEAD: Final = LENGTH_AT + 4

# Number of bytes needed to determine a batch's length and magic.
FRAME_PREFIX_SIZE: Final = MAGIC_AT + 1

# Minimum valid values of the length field: for any magic, and for magic 2.
LENGTH_MIN: Final = 14

BATCH_LENGTH_MIN: Final = HEADER_SIZE - LOG_OVERHEAD

# Limit for the total size in bytes of the skipped batches whose checksums one search verifies. A
# search skips a batch whose header shows no match. Damage in the header could hide a match, so the
# search verifies the checksum of a skipped batch. Without the limit, a search might read a whole
# segment.
PASSED_BYTES: Final = 1 << 20

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
LENGTH: Final = struct.Struct(">i")
OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")
_TIMESTAMP: Final = struct.Struct(">q")
_ATTRIBUTES: Final = struct.Struct(">h")
CRC: Final = struct.Struct(">I")

assert HEADER.size == HEADER_SIZE == 61
assert BATCH_LENGTH_MIN == 49

MAGIC_2: Final = 2

# Masks of attribute bits. Bits 7 to 15 are undefined.
CODEC_MASK: Final = 0x07

TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
KNOWN_ATTRIBUTES: Final = 0x7F


def assign_offset(
    buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int
) -> None:
    """Set base offset and leader epoch of the magic-2 batch at `at`, in place.

    The CRC stays right, because it does not cover base offset and leader epoch.

    Args:
        buffer: Writable bytes that hold the whole batch.
        at: Position of the batch in `buffer`.
        base_offset: The batch's new base offset.
        leader_epoch: Epoch of the leader that appends the batch, -1 if unknown.
    """
    OFFSET.pack_into(buffer, at + BASE_OFFSET_AT, base_offset)
    _EPOCH.pack_into(buffer, at + LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, at: int, append_time_ms: int) -> None:
    """Convert the magic-2 batch at `at` to a LogAppendTime batch, in place, with a new CRC.

    Base timestamp and deltas keep the producer's times. Kafka's clients see only the append time.
    Undefined attribute bits are cleared, as in Kafka.

    Args:
        buffer: Writable bytes that hold the whole batch.
        at: Position of the batch in `buffer`.
        append_time_ms: Append time of all the batch's records, in ms since 1970.
    """
    _set_time(buffer, at, TIMESTAMP_TYPE_BIT, append_time_ms)


def set_create_time_max(buffer: bytearray | memoryview, at: int, max_timestamp: int) -> None:
    """Convert the magic-2 batch at `at` to CreateTime with this maximum timestamp, in place.

    A batch that already has CreateTime and this maximum is left unchanged, even if it has undefined
    attribute bits. Any other batch gets a new CRC.

    Args:
        buffer: Writable bytes that hold the whole batch.
        at: Position of the batch in `buffer`.
        max_timestamp: Largest timestamp of the batch's records in ms, -1 if no record has a time.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, at + ATTRIBUTES_AT)
    (current,) = _TIMESTAMP.unpack_from(buffer, at + MAX_TIMESTAMP_AT)
    if attributes & TIMESTAMP_TYPE_BIT or current != max_timestamp:
        _set_time(buffer, at, 0, max_timestamp)


def _set_time(buffer: bytearray | memoryview, at: int, type_bit: int, max_timestamp: int) -> None:
    assert buffer[at + MAGIC_AT] == MAGIC_2
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, at + ATTRIBUTES_AT)
    attributes = attributes & KNOWN_ATTRIBUTES & ~TIMESTAMP_TYPE_BIT | type_bit
    _ATTRIBUTES.pack_into(buffer, at + ATTRIBUTES_AT, attributes)
    _TIMESTAMP.pack_into(buffer, at + MAX_TIMESTAMP_AT, max_timestamp)
    seal(buffer, at)


def seal(buffer: bytearray | memoryview, at: int) -> None:
    """Compute and write the CRC of the magic-2 batch at `at`."""
    (length,) = LENGTH.unpack_from(buffer, at + LENGTH_AT)
    end = at + LOG_OVERHEAD + length
    assert at + HEADER_SIZE <= end <= len(buffer)
    crc = crc32c(memoryview(buffer)[at + ATTRIBUTES_AT : end])
    CRC.pack_into(buffer, at + CRC_AT, crc)


def timestamp_type_of(attributes: int) -> TimestampType:
    """Return the timestamp type from bit 3 of the attributes.

    The attributes must be those of a magic-1 message or a magic-2 batch.
    """
    if attributes & TIMESTAMP_TYPE_BIT:
        return TimestampType.LOG_APPEND_TIME
    return TimestampType.CREATE_TIME


# Maximum number of headers of a record. Kafka limits this number only by the record's size.
# tidelog's limit is the number of 8-byte headers in the largest record that Kafka accepts by
# default (1 MiB). Without a limit, a thousand compressed bytes could create millions of objects.
HEADERS_MAX: Final = 131_072

MESSAGE_CRC_AT: Final = LOG_OVERHEAD
MESSAGE_MAGIC_AT: Final = MESSAGE_CRC_AT + 4
MESSAGE_ATTRIBUTES_AT: Final = MESSAGE_MAGIC_AT + 1
MESSAGE_TIMESTAMP_AT: Final = MESSAGE_ATTRIBUTES_AT + 1

# Position of the key's length, and minimum valid value of the message's length: each as a pair of
# values, for magic 0 and for magic 1.
KEY_LENGTH_AT: Final = (MESSAGE_TIMESTAMP_AT, MESSAGE_TIMESTAMP_AT + 8)

MESSAGE_LENGTH_MIN: Final = (14, 22)

assert MESSAGE_MAGIC_AT == MAGIC_AT

FRAME: Final = struct.Struct(">qiIbb")  # offset, length, crc, magic, attributes
FRAME_V1: Final = struct.Struct(">qiIbbq")  # offset, length, crc, magic, attributes, timestamp
TIMED: Final = struct.Struct(">bq")  # attributes and timestamp of magic 1

assert FRAME.size == MESSAGE_TIMESTAMP_AT
assert FRAME_V1.size == KEY_LENGTH_AT[1]
