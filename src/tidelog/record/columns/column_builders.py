"""Columns that are decoded from records: the table of their Arrow types and builders.

| column | type | null where |
|---|---|---|
| offset | int64 | never |
| timestamp | timestamp(ms, UTC) | the record has no time |
| timestampType | int32: 0 CreateTime, 1 LogAppendTime, -1 magic 0 | never |
| createTimestamp | timestamp(ms, UTC) | the producer set no time, or a cleaner overwrote the time |
| appendTimestamp | timestamp(ms, UTC) | the append time is unknown |
| key, value | binary | null in the record |
| headers | list<struct<key: string, value: binary>> | never; empty if the record has no headers |
| producerId, producerEpoch, sequence | int64, int16, int32 | the producer is not idempotent |
| leaderEpoch | int32 | the leader epoch is unknown |

`_COLUMNS` is this table in code. Builders make arrays over the buffers that kernels have filled
(`page_reuse`). A -1 that means "missing" in a fixed-width column becomes null. A column without
nulls has no validity bitmap.

CONTRIBUTING.md ("A column of scans") lists the other places to change for a new column.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.page_reuse import Number, new_array, new_binary
from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels import layout
from tidelog.record.kernels.records import (
    CREATE_NULLS,
    KEY_NULLS,
    TIME_NULLS,
    VALUE_NULLS,
    VIEW_WORDS,
    WITH_HEADERS,
    Binary,
    Columns,
    HeaderColumns,
    count_headers,
    fill_headers,
)
from tidelog.record.kernels.times import fill_append_times
from tidelog.types import INT32_MAX, TimestampType

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Ints, Longs

    Numbers = npt.NDArray[np.signedinteger]
    Column = pa.Array[pa.Scalar[pa.DataType]]


MISSING: Final = -1
NO_TYPE: Final = TimestampType.NO_TIMESTAMP_TYPE.value
TIME: Final = pa.timestamp("ms", "UTC")
_HEADER_KEY: Final = pa.field("key", pa.string(), nullable=False)
_HEADER_VALUE: Final = pa.field("value", pa.binary())
_HEADER: Final = pa.struct([_HEADER_KEY, _HEADER_VALUE])
HEADERS: Final = pa.list_(_HEADER)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Result of one call of the decoding kernel.

    Attributes:
        data: Bytes that contain the records.
        start: Position of the first byte that views may refer to.
        end: Position after the last byte that views may refer to.
        rows: Number of rows, at least 1.
        table: The batches that the rows come from, in order.
        rows_end: Number of rows up to the end of each batch.
        filled: The columns that the kernel has filled.
        progress: The counts that the kernel returned; see `kernels.records.decode_batches`.
        append_times: Two arrays: first offset and append time in ms (-1 if unknown) of each run of
            offsets with equal append time. None if no append times are requested.
    """

    data: "Bytes"
    start: int
    end: int
    rows: int
    table: "Longs"
    rows_end: "Longs"
    filled: Columns
    progress: list[int]
    append_times: tuple["Longs", "Longs"] | None

    def is_uniform(self, field: int) -> bool:
        """Whether all batches have the same value in this field of the table."""
        values = self.table[:, field]
        return bool((values == values[0]).all())

    def repeat(self, values: "npt.NDArray[Number]") -> "npt.NDArray[Number]":
        """Repeat the value of each batch for each row of the batch."""
        return np.repeat(values, np.diff(self.rows_end, prepend=0))


def build(name: str, chunk: Chunk) -> "Column":
    """Return one column of the chunk as an Arrow array of its type in `COLUMN_TYPES`."""
    return _COLUMNS[name][1](chunk)


def _fixed(kind: pa.DataType, numbers: "Numbers", null_count: int) -> "Column":
    """Return an array over `numbers`.

    -1 becomes null. `null_count` must be the number of elements that are -1.
    """
    if null_count == len(numbers):
        return _nulls(kind, null_count)
    valid = None
    if null_count:
        valid = _share(np.packbits(numbers != MISSING, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [valid, _share(numbers)], null_count)


def _count_missing(numbers: "Numbers") -> int:
    return int(np.count_nonzero(numbers == MISSING))


def _share(numbers: "npt.NDArray[np.generic]") -> pa.Buffer:
    """Return the array's bytes as an Arrow buffer, without a copy."""
    return pa.py_buffer(numbers.data)


def _nulls(kind: pa.DataType, rows: int) -> "Column":
    """Return an array of nulls; it is a slice of an array that all chunks share."""
    return _shared_nulls(kind, _round_up(rows)).slice(0, rows)


def _round_up(rows: int) -> int:
    """Round up a number of rows, so that shared arrays have few different lengths."""
    return 1 << max(rows, 1024).bit_length()


@lru_cache(maxsize=32)
def _shared_nulls(kind: pa.DataType, capacity: int) -> "Column":
    zeros = _share(np.zeros(capacity * (kind.bit_width // 8), np.uint8))
    return pa.Array.from_buffers(kind, capacity, [zeros, zeros], capacity)


def _constant(kind: pa.DataType, value: int, rows: int) -> "Column":
    """Return an array that repeats a value; it is a slice of a longer array that chunks share."""
    return _shared_constant(kind, value, _round_up(rows)).slice(0, rows)


@lru_cache(maxsize=32)
def _shared_constant(kind: pa.DataType, value: int, capacity: int) -> "Column":
    numbers = np.full(capacity, value, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, capacity, [None, _share(numbers)], 0)


@lru_cache(maxsize=4)
def _shared_empty_lists(capacity: int) -> "Column":
    return _lists(np.zeros(capacity + 1, np.int32), pa.array([], _HEADER))


def _binary(kind: pa.DataType, rows: int, column: Binary, null_count: int) -> "Column":
    """Return an array over the buffers that the kernel has filled, without a copy."""
    valid = _share(column.valid[: (rows + 7) >> 3]) if null_count else None
    ends = column.ends[: rows + 1]
    data = column.data[: ends[rows]]
    return pa.Array.from_buffers(kind, rows, [valid, _share(ends), _share(data)], null_count)


def _bytes(chunk: Chunk, column: Binary, null_count: int) -> "Column":
    """Return the keys or values of a chunk: copies, or views of the log's bytes."""
    if not column.views.size:
        return _binary(pa.binary(), chunk.rows, column, null_count)
    valid = _share(column.valid[: (chunk.rows + 7) >> 3]) if null_count else None
    views = _share(column.views[: VIEW_WORDS * chunk.rows])
    data = _share(chunk.data[chunk.start : chunk.end])
    return pa.Array.from_buffers(pa.binary_view(), chunk.rows, [valid, views, data], null_count)


def _offsets(chunk: Chunk) -> "Column":
    return pa.Array.from_buffers(
        pa.int64(), chunk.rows, [None, _share(chunk.filled.offsets[: chunk.rows])]
    )


def _append_times(chunk: Chunk) -> "Column":
    if chunk.append_times is None:
        return _nulls(TIME, chunk.rows)
    times = new_array(np.int64, chunk.rows)
    offsets = chunk.filled.offsets[: chunk.rows]
    return _fixed(TIME, times, fill_append_times(offsets, *chunk.append_times, times))


def _per_batch(kind: pa.DataType, field: int, chunk: Chunk) -> "Column":
    """Return a field of the table as a column: each row has its batch's value, null for -1."""
    values = chunk.table[:, field]
    first = int(values[0])
    if not chunk.is_uniform(field):
        numbers = chunk.repeat(values).astype(kind.to_pandas_dtype())
        return _fixed(kind, numbers, _count_missing(numbers))
    return _nulls(kind, chunk.rows) if first == MISSING else _constant(kind, first, chunk.rows)


def _timestamp_types(chunk: Chunk) -> "Column":
    """Return the column of timestamp types, without nulls.

    0 is CreateTime, and 1 is LogAppendTime. -1 stands for records of magic 0, which have no
    timestamps.
    """
    table = chunk.table
    if chunk.is_uniform(layout.ATTRIBUTES) and chunk.is_uniform(layout.MAGIC):
        is_stamped = int(table[0, layout.ATTRIBUTES]) & TIMESTAMP_TYPE_BIT != 0
        kind = NO_TYPE if table[0, layout.MAGIC] == 0 else int(is_stamped)
        return _constant(pa.int32(), kind, chunk.rows)
    stamped = (table[:, layout.ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0).astype(np.int32)
    kinds = np.where(table[:, layout.MAGIC] == 0, np.int32(NO_TYPE), stamped)
    return pa.Array.from_buffers(pa.int32(), chunk.rows, [None, _share(chunk.repeat(kinds))], 0)


def _sequences(chunk: Chunk) -> "Column":
    """Return the sequence number of each row: base sequence + offset delta.

    The number is null if the batch has no base sequence. After 2147483647 the numbers continue with
    0.
    """
    bases = chunk.table[:, layout.BASE_SEQUENCE]
    if bases[0] == MISSING and chunk.is_uniform(layout.BASE_SEQUENCE):
        return _nulls(pa.int32(), chunk.rows)
    starts = chunk.repeat(bases - chunk.table[:, layout.BASE_OFFSET])
    numbers = (chunk.filled.offsets[: chunk.rows] + starts) & INT32_MAX
    if (bases == MISSING).any():
        numbers[chunk.repeat(bases == MISSING)] = MISSING
    return _fixed(pa.int32(), numbers.astype(np.int32), _count_missing(numbers))


def _headers(chunk: Chunk) -> "Column":
    if not chunk.progress[WITH_HEADERS]:
        return _shared_empty_lists(_round_up(chunk.rows)).slice(0, chunk.rows)
    positions = chunk.filled.headers_at[: chunk.rows]
    count, key_bytes, value_bytes = count_headers(chunk.data, chunk.end, positions)
    ends = np.zeros(chunk.rows + 1, np.int32)
    out = HeaderColumns(ends, new_binary(count, key_bytes), new_binary(count, value_bytes))
    is_ascii = fill_headers(chunk.data, chunk.end, positions, out)
    keys = _binary(pa.string(), count, out.key, 0) if is_ascii else _decode_keys(count, out.key)
    values = _binary(pa.binary(), count, out.value, -1)
    pairs = pa.StructArray.from_arrays([keys, values], fields=[_HEADER_KEY, _HEADER_VALUE])
    return _lists(ends, pairs)


def _lists(ends: "Ints", values: "Column") -> "Column":
    """Return an array of lists; list n is `values[ends[n]:ends[n + 1]]`."""
    return pa.Array.from_buffers(HEADERS, len(ends) - 1, [None, _share(ends)], 0, children=[values])


def _decode_keys(count: int, column: Binary) -> "Column":
    """Return header keys as text; invalid UTF-8 is replaced, as in Kafka and in `record`."""
    try:
        keys = _binary(pa.string(), count, column, 0)
        keys.validate(full=True)
    except pa.ArrowInvalid:
        ends = column.ends[: count + 1].tolist()
        raw = [column.data[start:end].tobytes() for start, end in pairwise(ends)]
        return pa.array([key.decode("utf-8", "replace") for key in raw], pa.string())
    return keys


# The columns that can be decoded: the Arrow type of each, and the function that builds it.
_COLUMNS: Final[dict[str, tuple[pa.DataType, Callable[[Chunk], "Column"]]]] = {
    "offset": (pa.int64(), _offsets),
    "timestamp": (
        TIME,
        lambda c: _fixed(TIME, c.filled.timestamps[: c.rows], c.progress[TIME_NULLS]),
    ),
    "timestampType": (pa.int32(), _timestamp_types),
    "createTimestamp": (
        TIME,
        lambda c: _fixed(TIME, c.filled.creates[: c.rows], c.progress[CREATE_NULLS]),
    ),
    "appendTimestamp": (TIME, _append_times),
    "key": (pa.binary(), lambda c: _bytes(c, c.filled.key, c.progress[KEY_NULLS])),
    "value": (pa.binary(), lambda c: _bytes(c, c.filled.value, c.progress[VALUE_NULLS])),
    "headers": (HEADERS, _headers),
    "producerId": (pa.int64(), lambda c: _per_batch(pa.int64(), layout.PRODUCER_ID, c)),
    "producerEpoch": (pa.int16(), lambda c: _per_batch(pa.int16(), layout.PRODUCER_EPOCH, c)),
    "sequence": (pa.int32(), _sequences),
    "leaderEpoch": (pa.int32(), lambda c: _per_batch(pa.int32(), layout.LEADER_EPOCH, c)),
}

COLUMN_TYPES: Final = {name: kind for name, (kind, _) in _COLUMNS.items()}
