"""Checks or updates uncompressed messages of magic 0 or 1, also those of a decompressed wrapper.

The rules are those of `tidelog.storage.log.message_sets`, the plain reference. If a message is
damaged, the kernel returns its position, and the plain code raises the error.

Source: docs/format.md#magic-0-and-1.
"""

from functools import cache
from typing import Final

import numpy as np

from tidelog.record.header import (
    CODEC_MASK,
    KEY_LENGTH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    MESSAGE_LENGTH_MIN,
    MESSAGE_MAGIC_AT,
    MESSAGE_TIMESTAMP_AT,
)
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.layout import BAD_RECORD, DONE
from tidelog.record.kernels.memory import (
    Bytes,
    Longs,
    load_byte,
    load_int32,
    load_int64,
    store_byte,
    store_int32,
    store_int64,
)
from tidelog.types import NO_TIMESTAMP, UINT32_MAX

# Reflected polynomial of CRC-32, as in zlib.
_POLYNOMIAL: Final = 0xEDB88320
_STEP: Final = 8
_KEY_AT_0: Final = KEY_LENGTH_AT[0]
_KEY_AT_1: Final = KEY_LENGTH_AT[1]
_LENGTH_MIN_0: Final = MESSAGE_LENGTH_MIN[0]
_LENGTH_MIN_1: Final = MESSAGE_LENGTH_MIN[1]
_BROKEN: Final = -1
# Indices in `rules` and in `stamp`.
NEEDS_KEY: Final = 0
CHECKS_TIMES: Final = 1
EARLIEST: Final = 2
LATEST: Final = 3
RULES: Final = 4
STAMPS: Final = 0
STAMP_MS: Final = 1
ATTRIBUTES: Final = 2
STAMP_FIELDS: Final = 3
# Columns of `refused`.
REFUSED_INDEX: Final = 0
REFUSED_TIME: Final = 1
REFUSED_HAS_KEY: Final = 2
REFUSED_FIELDS: Final = 3


@cache
def crc32_tables() -> Longs:
    """Return int64[8, 256]: element [n, b] is the effect on the CRC of a byte b.

    n is the number of bytes that follow this byte in the data.
    """
    tables = np.zeros((_STEP, 256), np.int64)
    values = np.arange(256, dtype=np.int64)
    for _ in range(8):
        values = (values >> 1) ^ np.where(values & 1, _POLYNOMIAL, 0)
    tables[0] = values
    for row in range(1, _STEP):
        tables[row] = tables[0][tables[row - 1] & 0xFF] ^ (tables[row - 1] >> 8)
    tables.flags.writeable = False
    return tables


@inlined
def _crc32(data: Bytes, start: int, end: int, tables: Longs) -> int:
    crc, at = UINT32_MAX, start
    while at + _STEP <= end:
        crc ^= (
            load_byte(data, at)
            | load_byte(data, at + 1) << 8
            | load_byte(data, at + 2) << 16
            | load_byte(data, at + 3) << 24
        )
        crc = (
            tables[7, crc & 0xFF]
            ^ tables[6, (crc >> 8) & 0xFF]
            ^ tables[5, (crc >> 16) & 0xFF]
            ^ tables[4, crc >> 24]
            ^ tables[3, load_byte(data, at + 4)]
            ^ tables[2, load_byte(data, at + 5)]
            ^ tables[1, load_byte(data, at + 6)]
            ^ tables[0, load_byte(data, at + 7)]
        )
        at += _STEP
    while at < end:
        crc = tables[0, (crc ^ load_byte(data, at)) & 0xFF] ^ (crc >> 8)
        at += 1
    return int(crc ^ UINT32_MAX)


@inlined
def _frame_end(data: Bytes, at: int, end: int, magic: int) -> int:
    """Return the position after the frame at `at`; _BROKEN if there is no frame of that magic."""
    if end - at < MESSAGE_TIMESTAMP_AT:
        return _BROKEN
    size = load_int32(data, at + LENGTH_AT)
    least = _LENGTH_MIN_1 if magic == 1 else _LENGTH_MIN_0
    if size < least or size > end - at - LOG_OVERHEAD:
        return _BROKEN
    if load_byte(data, at + MESSAGE_MAGIC_AT) != magic:
        return _BROKEN
    if load_byte(data, at + MESSAGE_ATTRIBUTES_AT) & CODEC_MASK != 0:
        return _BROKEN
    return at + LOG_OVERHEAD + size


@inlined
def _is_sound(data: Bytes, at: int, after: int, magic: int, tables: Longs) -> bool:
    """Whether a message's checksum is right, and its key and value fill the frame exactly."""
    crc = _crc32(data, at + MESSAGE_MAGIC_AT, after, tables)
    if crc != load_int32(data, at + MESSAGE_CRC_AT) & UINT32_MAX:
        return False
    key_at = at + (_KEY_AT_1 if magic == 1 else _KEY_AT_0)
    key_size = load_int32(data, key_at)
    value_at = key_at + 4 + max(key_size, 0)
    if key_size < -1 or value_at + 4 > after:
        return False
    value_size = load_int32(data, value_at)
    return value_size >= -1 and value_at + 4 + max(value_size, 0) == after


@kernel
def check_messages(
    data: Bytes, magic: int, rules: Longs, tables: Longs, refused: Longs
) -> tuple[int, int, int, int, int, int, bool, bool]:
    """Check that `data` consists of valid uncompressed messages of the given magic.

    Shape:
        rules: int64[RULES]: whether a key is required, whether times are checked, the earliest and
            the latest time in ms, inclusive; a time of -1 is always allowed.
        tables: Result of `crc32_tables`.
        refused: int64[n, REFUSED_FIELDS]; receives the first n refused messages: index of the
            message, time in ms, 1 if it has a key.

    Returns:
        - status: DONE or BAD_RECORD.
        - position of the bad message, with BAD_RECORD. All further values are valid only with DONE.
        - number of messages.
        - offset of the last message, or -1 if there is none.
        - largest timestamp in ms, or -1 if there is none.
        - number of refused messages.
        - whether a message was refused only because of its time.
        - whether the offsets are 0, 1, 2, ...
    """
    at, end, count, refused_count = 0, data.size, 0, 0
    last, largest, counts_from_0, has_time_error = -1, NO_TIMESTAMP, True, False
    key_at = _KEY_AT_1 if magic == 1 else _KEY_AT_0
    while at < end:
        after = _frame_end(data, at, end, magic)
        if after == _BROKEN or not _is_sound(data, at, after, magic, tables):
            break
        last = load_int64(data, at)
        counts_from_0 &= last == count
        timestamp = load_int64(data, at + MESSAGE_TIMESTAMP_AT) if magic == 1 else NO_TIMESTAMP
        largest = max(largest, timestamp)
        has_key = load_int32(data, at + key_at) != -1
        lacks_key = rules[NEEDS_KEY] != 0 and not has_key
        is_refused = lacks_key
        if rules[CHECKS_TIMES] != 0 and timestamp != NO_TIMESTAMP:
            is_refused |= timestamp < rules[EARLIEST] or timestamp > rules[LATEST]
        if is_refused:
            has_time_error |= not lacks_key
            if refused_count < refused.shape[0]:
                refused[refused_count, REFUSED_INDEX] = count
                refused[refused_count, REFUSED_TIME] = timestamp
                refused[refused_count, REFUSED_HAS_KEY] = 1 if has_key else 0
            refused_count += 1
        count += 1
        at = after
    status = DONE if at >= end else BAD_RECORD
    return status, at, count, last, largest, refused_count, has_time_error, counts_from_0


@kernel
def assign_messages(data: Bytes, magic: int, first_offset: int, stamp: Longs, tables: Longs) -> int:
    """Set offsets and times of messages that `check_messages` has accepted, in place.

    Checksums are updated.

    Shape:
        stamp: int64[STAMP_FIELDS]: whether to set the time of all messages (1 or 0); this time in
            ms; the new attributes of all messages. With magic 0, `stamp` is ignored.

    Returns:
        The number of updated messages.
    """
    at, offset = 0, first_offset
    while at < data.size:
        store_int64(data, at, offset)
        after = at + LOG_OVERHEAD + load_int32(data, at + LENGTH_AT)
        if magic == 1:
            before = load_int64(data, at + MESSAGE_TIMESTAMP_AT)
            timestamp = int(stamp[STAMP_MS]) if stamp[STAMPS] != 0 else before
            attributes = load_byte(data, at + MESSAGE_ATTRIBUTES_AT)
            if timestamp != before or attributes != stamp[ATTRIBUTES]:
                store_byte(data, at + MESSAGE_ATTRIBUTES_AT, int(stamp[ATTRIBUTES]))
                store_int64(data, at + MESSAGE_TIMESTAMP_AT, timestamp)
                crc = _crc32(data, at + MESSAGE_MAGIC_AT, after, tables)
                store_int32(data, at + MESSAGE_CRC_AT, crc)
        offset += 1
        at = after
    return offset - first_offset
