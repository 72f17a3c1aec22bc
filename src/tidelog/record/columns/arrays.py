"""Arrow arrays over the buffers that the kernels have filled, one builder per column.

Where a fixed-width column has -1 for what is missing, Arrow gets null. A column without nulls has
no validity bitmap.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels import layout
from tidelog.record.kernels.decode import Binary, Columns
from tidelog.record.kernels.headers import HeaderColumns, count_headers, fill_headers
from tidelog.record.kernels.times import fill_append_times
from tidelog.types import INT32_MAX

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Ints, Longs

    Numbers = npt.NDArray[np.signedinteger]
    Column = pa.Array[pa.Scalar[pa.DataType]]

MISSING: Final = -1

TIME: Final = pa.timestamp("ms", "UTC")
_HEADER_KEY: Final = pa.field("key", pa.string(), nullable=False)
_HEADER_VALUE: Final = pa.field("value", pa.binary())
_HEADER: Final = pa.struct([_HEADER_KEY, _HEADER_VALUE])
HEADERS: Final = pa.list_(_HEADER)

COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "offset": pa.int64(),
    "timestamp": TIME,
    "timestampType": pa.int32(),
    "createTimestamp": TIME,
    "appendTimestamp": TIME,
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "producerId": pa.int64(),
    "producerEpoch": pa.int16(),
    "sequence": pa.int32(),
    "leaderEpoch": pa.int32(),
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one call of the kernel has decoded.

    Attributes:
        data: The bytes that the records lie in.
        end: Where they end.
        rows: Number of rows, at least 1.
        table: The batches that the rows come from, in order.
        counts: Rows of each of them.
        filled: The kernel's columns.
        append_times: First offset and time in ms of each run, None where nothing is known.
    """

    data: "Bytes"
    end: int
    rows: int
    table: "Longs"
    counts: "Longs"
    filled: Columns
    append_times: tuple["Longs", "Longs"] | None


def new_binary(rows: int, capacity: int) -> Binary:
    """An empty binary column with room for `rows` values of together `capacity` bytes."""
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    return Binary(ends, np.empty(capacity, np.uint8), np.full((rows + 7) >> 3, 0xFF, np.uint8))


def build(name: str, chunk: Chunk) -> "Column":
    """One column of the chunk as an Arrow array of its type in `COLUMN_TYPES`."""
    return _BUILDERS[name](chunk)


def _fixed(kind: pa.DataType, numbers: "Numbers") -> "Column":
    """An array over `numbers`, null where they are -1."""
    missing = numbers == MISSING
    count = int(np.count_nonzero(missing))
    if count == len(numbers):
        return _nulls(kind, len(numbers))
    valid = None if count == 0 else _share(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [valid, _share(numbers)], count)


def _share(numbers: "npt.NDArray[np.generic]") -> pa.Buffer:
    """The array's bytes as an Arrow buffer, not copied."""
    return pa.py_buffer(numbers.data)


def _nulls(kind: pa.DataType, rows: int) -> "Column":
    """An array of nulls, a slice of one that all chunks share."""
    capacity = 1 << max(rows - 1, 1).bit_length()
    return _shared_nulls(kind, capacity).slice(0, rows)


@lru_cache(maxsize=64)
def _shared_nulls(kind: pa.DataType, capacity: int) -> "Column":
    zeros = _share(np.zeros(capacity * (kind.bit_width // 8), np.uint8))
    return pa.Array.from_buffers(kind, capacity, [zeros, zeros], capacity)


def _binary(kind: pa.DataType, rows: int, column: Binary) -> "Column":
    """An array over the kernel's buffers, which it shares."""
    bitmap = column.valid[: (rows + 7) >> 3]
    valid = None if bitmap.min(initial=0xFF) == 0xFF else _share(bitmap)
    ends = column.ends[: rows + 1]
    data = column.data[: ends[rows]]
    return pa.Array.from_buffers(kind, rows, [valid, _share(ends), _share(data)])


def _offsets(chunk: Chunk) -> "Column":
    return pa.Array.from_buffers(
        pa.int64(), chunk.rows, [None, _share(chunk.filled.offsets[: chunk.rows])]
    )


def _append_times(chunk: Chunk) -> "Column":
    if chunk.append_times is None:
        return _nulls(TIME, chunk.rows)
    times = np.empty(chunk.rows, np.int64)
    fill_append_times(chunk.filled.offsets[: chunk.rows], *chunk.append_times, times)
    return _fixed(TIME, times)


def _per_batch(kind: pa.DataType, values: "Longs", chunk: Chunk) -> "Column":
    """A column that has one value per batch, null where that is -1."""
    first = int(values[0])
    if not (values == first).all():
        return _fixed(kind, np.repeat(values, chunk.counts).astype(kind.to_pandas_dtype()))
    if first == MISSING:
        return _nulls(kind, chunk.rows)
    numbers = np.full(chunk.rows, first, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, chunk.rows, [None, _share(numbers)], 0)


def _timestamp_types(chunk: Chunk) -> "Column":
    """0 CreateTime, 1 LogAppendTime, -1 for magic 0, which has no timestamps; never null."""
    stamped = (chunk.table[:, layout.ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0).astype(np.int32)
    kinds = np.where(chunk.table[:, layout.MAGIC] == 0, np.int32(-1), stamped)
    numbers = np.repeat(kinds, chunk.counts)
    return pa.Array.from_buffers(pa.int32(), chunk.rows, [None, _share(numbers)], 0)


def _sequences(chunk: Chunk) -> "Column":
    """Base sequence + offset delta; after 2147483647 comes 0."""
    bases = chunk.table[:, layout.BASE_SEQUENCE]
    if (bases == MISSING).all():
        return _nulls(pa.int32(), chunk.rows)
    starts = np.repeat(bases - chunk.table[:, layout.BASE_OFFSET], chunk.counts)
    numbers = (chunk.filled.offsets[: chunk.rows] + starts) & INT32_MAX
    if (bases == MISSING).any():
        numbers[np.repeat(bases == MISSING, chunk.counts)] = MISSING
    return _fixed(pa.int32(), numbers.astype(np.int32))


def _headers(chunk: Chunk) -> "Column":
    places = chunk.filled.headers_at[: chunk.rows]
    if places.max() < 0:
        ends = np.zeros(chunk.rows + 1, np.int32)
        return _lists(ends, pa.array([], _HEADER))
    count, key_bytes, value_bytes = count_headers(chunk.data, chunk.end, places)
    ends = np.zeros(chunk.rows + 1, np.int32)
    out = HeaderColumns(ends, new_binary(count, key_bytes), new_binary(count, value_bytes))
    is_ascii = fill_headers(chunk.data, chunk.end, places, out)
    keys = _binary(pa.string(), count, out.key) if is_ascii else _decode_keys(count, out.key)
    values = _binary(pa.binary(), count, out.value)
    pairs = pa.StructArray.from_arrays([keys, values], fields=[_HEADER_KEY, _HEADER_VALUE])
    return _lists(ends, pairs)


def _lists(ends: "Ints", values: "Column") -> "Column":
    """An array of lists; list n is `values[ends[n]:ends[n + 1]]`."""
    return pa.Array.from_buffers(HEADERS, len(ends) - 1, [None, _share(ends)], 0, children=[values])


def _decode_keys(count: int, column: Binary) -> "Column":
    """The keys as text; what is no UTF-8 is replaced, as Kafka and the plain path do."""
    try:
        keys = _binary(pa.string(), count, column)
        keys.validate(full=True)
    except pa.ArrowInvalid:
        ends = column.ends[: count + 1].tolist()
        raw = [column.data[start:end].tobytes() for start, end in pairwise(ends)]
        return pa.array([key.decode("utf-8", "replace") for key in raw], pa.string())
    return keys


_BUILDERS: Final[dict[str, Callable[[Chunk], "Column"]]] = {
    "offset": _offsets,
    "timestamp": lambda chunk: _fixed(TIME, chunk.filled.timestamps[: chunk.rows]),
    "timestampType": _timestamp_types,
    "createTimestamp": lambda chunk: _fixed(TIME, chunk.filled.creates[: chunk.rows]),
    "appendTimestamp": _append_times,
    "key": lambda chunk: _binary(pa.binary(), chunk.rows, chunk.filled.key),
    "value": lambda chunk: _binary(pa.binary(), chunk.rows, chunk.filled.value),
    "headers": _headers,
    "producerId": lambda c: _per_batch(pa.int64(), c.table[:, layout.PRODUCER_ID], c),
    "producerEpoch": lambda c: _per_batch(pa.int16(), c.table[:, layout.PRODUCER_EPOCH], c),
    "sequence": _sequences,
    "leaderEpoch": lambda c: _per_batch(pa.int32(), c.table[:, layout.LEADER_EPOCH], c),
}
assert _BUILDERS.keys() == COLUMN_TYPES.keys()
