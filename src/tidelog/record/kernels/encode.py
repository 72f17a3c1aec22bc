"""Encodes columns as magic-2 batches, as many as fit into the output, without batch headers.

Each batch is preceded by `HEADER_SIZE` free bytes for its header. The caller writes the header
after compressing the records. The size of a record is computed before the record is written, so
that no record is written beyond the output's end.

Source: docs/format.md#record.
"""

from typing import Final, NamedTuple

from tidelog.record.header import HEADER_SIZE
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.integers import subtract_wrapping, varlong_size, write_varlong
from tidelog.record.kernels.layout import BAD_COLUMN, DONE, FULL, TOO_LARGE
from tidelog.record.kernels.memory import Bytes, Ints, Longs, copy_bytes, load_byte, store_byte
from tidelog.types import INT32_MAX

_NULL: Final = -1
_BAD: Final = -2
# Size of a bad field: so far below 0 that the sum with the sizes of the other fields is negative.
_BAD_FIELD: Final = -(1 << 60)

# Columns of the table of written batches.
WRITTEN_POSITION: Final = 0
WRITTEN_SIZE: Final = 1
WRITTEN_COUNT: Final = 2
WRITTEN_BASE_TIMESTAMP: Final = 3
WRITTEN_MAX_TIMESTAMP: Final = 4
WRITTEN_FIELDS: Final = 5


class BinarySource(NamedTuple):
    """An Arrow binary column to read.

    Shape:
        ends: int32[rows + 1]; value n is `data[ends[n]:ends[n + 1]]`. If `ends` is empty, all
            values are null.
        data: uint8[...].
        valid: uint8[...], one bit per value; empty if no value is null.
        valid_at: Index of the bit of value 0 in `valid`.
    """

    ends: Ints
    data: Bytes
    valid: Bytes
    valid_at: int


class RecordSource(NamedTuple):
    """Columns of the records to write.

    Shape:
        timestamps: int64[rows], in ms.
        header_ends: int32[rows + 1]; the headers of record n are those from `header_ends[n]` to
            `header_ends[n + 1]` (exclusive). Empty if no record has headers.
    """

    timestamps: Longs
    key: BinarySource
    value: BinarySource
    header_ends: Ints
    header_key: BinarySource
    header_value: BinarySource


@kernel
def encode_batches(
    source: RecordSource, start_row: int, batch_bytes: int, out: Bytes, table: Longs
) -> tuple[int, int, int, int]:
    """Write records from `start_row` on, in batches of at most `batch_bytes` each.

    The size of a batch includes its header. A record that needs a larger batch gets a batch of its
    own.

    Shape:
        out: uint8[capacity].
        table: int64[batches, WRITTEN_FIELDS]; its length limits the number of batches.

    Returns:
        - Status: DONE; FULL if `out` or `table` is full; TOO_LARGE for a record that the format
          can't hold; BAD_COLUMN for a column whose offsets exceed its data.
        - Number of written batches.
        - First row that was not written; with an error status, the row with the error.
        - If `out` is full, the size in bytes of the next batch up to the first record that did not
          fit, inclusive; otherwise without meaning.
    """
    row, used, batches = start_row, 0, 0
    while row < source.timestamps.size and batches < table.shape[0]:
        status, end_row, end, largest = _encode_batch(source, row, batch_bytes, out, used)
        if status != DONE:
            return status, batches, row if status == FULL else end_row, end - used
        table[batches, WRITTEN_POSITION] = used
        table[batches, WRITTEN_SIZE] = end - used
        table[batches, WRITTEN_COUNT] = end_row - row
        table[batches, WRITTEN_BASE_TIMESTAMP] = source.timestamps[row]
        table[batches, WRITTEN_MAX_TIMESTAMP] = largest
        row, used = end_row, end
        batches += 1
    return DONE if row == source.timestamps.size else FULL, batches, row, 0


@inlined
def _encode_batch(
    source: RecordSource, start_row: int, batch_bytes: int, out: Bytes, start: int
) -> tuple[int, int, int, int]:
    """Write one batch.

    Returns a status, the next row, a position in `out`, and the largest timestamp. The position is
    the end of the written batch. With FULL, it is the position after the first record that did not
    fit.
    """
    at, row = start + HEADER_SIZE, start_row
    base_timestamp = largest = source.timestamps[start_row]
    while row < source.timestamps.size:
        timestamp = source.timestamps[row]
        time_delta = subtract_wrapping(timestamp, base_timestamp)
        size = _record_size(source, row, time_delta, row - start_row)
        if size < 0 or size > INT32_MAX:
            return BAD_COLUMN if size < 0 else TOO_LARGE, row, at, 0
        end = at + varlong_size(size) + size
        if row > start_row and end - start > batch_bytes:
            break
        if end > out.size:
            return FULL, row, end, 0
        at = write_varlong(out, at, size)
        at = _write_record(source, row, time_delta, row - start_row, out, at)
        largest = max(largest, timestamp)
        row += 1
    return DONE, row, at, largest


@inlined
def _value_size(column: BinarySource, row: int) -> int:
    """Return the size of a value, -1 for null, -2 if the column's offsets exceed its data."""
    if column.ends.size == 0:
        return _NULL
    if column.valid.size > 0:
        bit = column.valid_at + row
        if (load_byte(column.valid, bit >> 3) >> (bit & 7)) & 1 == 0:
            return _NULL
    start, end = int(column.ends[row]), int(column.ends[row + 1])
    if start < 0 or end < start or end > column.data.size:
        return _BAD
    return end - start


@inlined
def _field_size(column: BinarySource, row: int) -> int:
    """Return the encoded size of a value with its length field; `_BAD_FIELD` for a bad column."""
    size = _value_size(column, row)
    if size == _BAD:
        return _BAD_FIELD
    return varlong_size(size) + max(size, 0)


@inlined
def _record_size(source: RecordSource, row: int, time_delta: int, offset_delta: int) -> int:
    """Return the encoded size of a record without its length field; negative for a bad column."""
    size = 1 + varlong_size(time_delta) + varlong_size(offset_delta)
    size += _field_size(source.key, row) + _field_size(source.value, row)
    if source.header_ends.size == 0:
        return size + 1
    start, end = source.header_ends[row], source.header_ends[row + 1]
    if start < 0 or end < start or end >= source.header_key.ends.size:
        return _BAD_FIELD
    size += varlong_size(end - start)
    for header in range(start, end):
        size += _field_size(source.header_key, header) + _field_size(source.header_value, header)
    return size


@inlined
def _write_field(column: BinarySource, row: int, out: Bytes, at: int) -> int:
    size = _value_size(column, row)
    at = write_varlong(out, at, size)
    if size > 0:
        copy_bytes(out, at, column.data, column.ends[row], size)
        at += size
    return at


@inlined
def _write_record(
    source: RecordSource, row: int, time_delta: int, offset_delta: int, out: Bytes, at: int
) -> int:
    """Write a record without its length field; return the position after the record."""
    store_byte(out, at, 0)
    at = write_varlong(out, at + 1, time_delta)
    at = write_varlong(out, at, offset_delta)
    at = _write_field(source.key, row, out, at)
    at = _write_field(source.value, row, out, at)
    if source.header_ends.size == 0:
        store_byte(out, at, 0)
        return at + 1
    start, end = source.header_ends[row], source.header_ends[row + 1]
    at = write_varlong(out, at, end - start)
    for header in range(start, end):
        at = _write_field(source.header_key, header, out, at)
        at = _write_field(source.header_value, header, out, at)
    return at
