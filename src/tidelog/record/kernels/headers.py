"""Record headers to the four arrays of an Arrow list of structs: a counting pass and a filling one.

Runs over records that `decode_batches` has taken, so every header is known to be whole; `end` still
bounds each read, so that bytes which change meanwhile (a file that is cut under a map) can't lead
out of the arrays.
"""

from typing import NamedTuple

from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.decode import NO_HEADERS, Binary, append_binary
from tidelog.record.kernels.memory import Bytes, Ints, Longs, load_byte
from tidelog.record.kernels.varints import read_varint


class HeaderColumns(NamedTuple):
    """What `fill_headers` fills; the caller allocates from `count_headers`.

    Shape:
        ends: int32[rows + 1], number of headers up to each row.
        key: `Binary` of all keys; its bitmap is not used, keys are never null.
        value: `Binary` of all values.
    """

    ends: Ints
    key: Binary
    value: Binary


@kernel
def count_headers(data: Bytes, end: int, headers_at: Longs) -> tuple[int, int, int]:
    """The number of headers of all rows, and the bytes of their keys and of their values."""
    headers, key_bytes, value_bytes = 0, 0, 0
    for row in range(headers_at.size):
        if headers_at[row] == NO_HEADERS:
            continue
        count, at = read_varint(data, headers_at[row], end)
        for _ in range(count):
            _, key_size, value_at, value_size = _read_header(data, at, end)
            headers += 1
            key_bytes += key_size
            value_bytes += max(value_size, 0)
            at = value_at + max(value_size, 0)
    return headers, key_bytes, value_bytes


@kernel
def fill_headers(data: Bytes, end: int, headers_at: Longs, out: HeaderColumns) -> bool:
    """Fill the columns; whether all keys are ASCII, so that nobody has to check them for UTF-8."""
    slot, key_used, value_used, seen = 0, 0, 0, 0
    for row in range(headers_at.size):
        if headers_at[row] != NO_HEADERS:
            count, at = read_varint(data, headers_at[row], end)
            for _ in range(count):
                key_at, key_size, value_at, value_size = _read_header(data, at, end)
                at = value_at + max(value_size, 0)
                if not _fits(out, slot, key_used + key_size, value_used + value_size):
                    break
                seen |= _join_bits(data, key_at, key_size)
                key_used = append_binary(out.key, slot, key_used, data, key_at, key_size)
                value_used = append_binary(out.value, slot, value_used, data, value_at, value_size)
                slot += 1
        out.ends[row + 1] = slot
    return seen < 0x80


@inlined
def _fits(out: HeaderColumns, slot: int, key_end: int, value_end: int) -> bool:
    has_slot = slot + 1 < out.key.ends.size
    return has_slot and key_end <= out.key.data.size and value_end <= out.value.data.size


@inlined
def _join_bits(data: Bytes, at: int, size: int) -> int:
    """All bits that are set in any of the bytes."""
    seen = 0
    for place in range(at, at + size):
        seen |= load_byte(data, place)
    return seen


@inlined
def _read_header(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Place and size of key and value; sizes 0 where they would lead over `end`."""
    key_size, key_at = read_varint(data, at, end)
    if key_size < 0 or key_size > end - key_at:
        return at, 0, end, 0
    value_size, value_at = read_varint(data, key_at + key_size, end)
    if value_size > end - value_at:
        return at, 0, end, 0
    return key_at, key_size, value_at, value_size
