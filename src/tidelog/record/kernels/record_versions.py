"""What ranks a record among those of its key: its time, or a version in a header.

Source: KIP-280.
"""

from typing import Final

from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels.arithmetic import add_wrapping
from tidelog.record.kernels.compiler import inlined
from tidelog.record.kernels.decode import NO_HEADERS
from tidelog.record.kernels.layout import ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP
from tidelog.record.kernels.memory import Bytes, Longs, load_byte, load_int64
from tidelog.record.kernels.varints import read_varint

# Which record of a key wins.
BY_OFFSET: Final = 0
BY_TIMESTAMP: Final = 1
BY_HEADER: Final = 2
# The version of a record without one: below that of all that have one.
NO_VERSION: Final = -(2**63)
_VERSION_SIZE: Final = 8


@inlined
def record_version(
    data: Bytes, batch: Longs, places: tuple[int, int, int], strategy: int, header: Bytes
) -> int:
    """A record's rank.

    Args:
        data: Where the record lies.
        batch: Its batch's row of the table.
        places: The record's timestamp delta, the place of its header count (or `NO_HEADERS`), and
            the place behind it.
        strategy: BY_TIMESTAMP or BY_HEADER.
        header: The version header's name, in UTF-8.
    """
    time_delta, headers_at, end = places
    if strategy == BY_TIMESTAMP:
        if batch[ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0:
            return int(batch[MAX_TIMESTAMP])
        return add_wrapping(batch[BASE_TIMESTAMP], time_delta)
    if headers_at == NO_HEADERS:
        return NO_VERSION
    return _header_version(data, headers_at, end, header)


@inlined
def _header_version(data: Bytes, at: int, end: int, header: Bytes) -> int:
    """The last header of that name, where it holds 8 bytes; `parse_record` has checked them all."""
    version = NO_VERSION
    count, at = read_varint(data, at, end)
    for _ in range(count):
        key_size, key_at = read_varint(data, at, end)
        value_size, value_at = read_varint(data, key_at + key_size, end)
        at = value_at + max(value_size, 0)
        if at > end:
            return version
        if _is_named(data, key_at, key_size, header):
            version = NO_VERSION
            if value_size == _VERSION_SIZE:
                version = max(load_int64(data, value_at), NO_VERSION + 1)
    return version


@inlined
def _is_named(data: Bytes, at: int, size: int, name: Bytes) -> bool:
    same = 0
    while size == name.size and same < size:
        if load_byte(data, at + same) != load_byte(name, same):
            break
        same += 1
    return same == size and size == name.size
