"""The fields of a magic 0 or 1 message: places, sizes and structs.

The CRC covers everything from the magic on; offset and length lie before it.

Source: docs/format.md#magic-0-and-1; KIP-31, KIP-32.
"""

import struct
from typing import Final

from tidelog.record.header import LOG_OVERHEAD, MAGIC_AT

MESSAGE_CRC_AT: Final = LOG_OVERHEAD
MESSAGE_MAGIC_AT: Final = MESSAGE_CRC_AT + 4
MESSAGE_ATTRIBUTES_AT: Final = MESSAGE_MAGIC_AT + 1
MESSAGE_TIMESTAMP_AT: Final = MESSAGE_ATTRIBUTES_AT + 1
# Where the key's length begins, and the smallest length field, by magic.
KEY_LENGTH_AT: Final = (MESSAGE_TIMESTAMP_AT, MESSAGE_TIMESTAMP_AT + 8)
MESSAGE_LENGTH_MIN: Final = (14, 22)
assert MESSAGE_MAGIC_AT == MAGIC_AT

FRAME: Final = struct.Struct(">qiIbb")  # offset, length, crc, magic, attributes
FRAME_V1: Final = struct.Struct(">qiIbbq")  # and the timestamp
TIMED: Final = struct.Struct(">bq")  # attributes and timestamp of magic 1
assert FRAME.size == MESSAGE_TIMESTAMP_AT
assert FRAME_V1.size == KEY_LENGTH_AT[1]
