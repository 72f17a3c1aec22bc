"""Arrow arrays over the buffers that kernels fill, and the reuse of their memory.

A -1 that means "missing" in a fixed-width column becomes null. A column without nulls has no
validity bitmap.

Fresh pages are expensive, because the system takes as long to zero a page as a kernel takes to fill
it. Arrow's memory pool often needs fresh pages, because the pool returns memory to the system if
one thread allocates the memory and another thread frees it, as most readers do. So this module
keeps freed pages. The most recently freed page is used first, because it is still in a CPU cache.
At most about `FREE_BYTES_MAX` bytes are kept; further pages are returned to Arrow's pool. A page is
freed, by any thread, when the last array or buffer over it is deleted.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.lazy_dataclass import dataclass
from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels import layout
from tidelog.record.kernels.memory import Bytes, Ints, Longs
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

# Limit in bytes for the total size of the unused pages that are kept for reuse: enough for the
# columns of several Arrow record batches.
FREE_BYTES_MAX: Final = 64 << 20

# Minimum size of a page in bytes; for smaller memory, an allocation is cheaper than reuse.
PAGE_BYTES_MIN: Final = 32 << 10

# Number of page sizes from one power of two to the next. Few sizes make reuse likely; with four
# sizes, a page exceeds the requested size by less than a quarter.
_STEPS: Final = 4


class FreeMemory:
    """Unused pages by size; thread-safe, because each step is atomic in Python."""

    def __init__(self, bytes_max: int = FREE_BYTES_MAX) -> None:
        self._by_size: dict[int, list[memoryview]] = {}
        self._bytes_max = bytes_max

    @property
    def size_bytes(self) -> int:
        """Total size of the unused pages in bytes."""
        return sum(size * len(memories) for size, memories in list(self._by_size.items()))

    def take(self, size: int) -> memoryview:
        """Return memory of this size: the last freed page of this size, or a new page."""
        try:
            return self._by_size[size].pop()
        except LookupError:
            return _allocate(size)

    def give(self, memory: memoryview) -> None:
        """Keep a page for reuse, or release it if the unused pages would exceed `FREE_BYTES_MAX`.

        If several threads call this method at the same time, each of them may exceed the limit by
        one page.
        """
        size = memory.nbytes
        if 0 < size <= self._bytes_max - self.size_bytes:
            self._by_size.setdefault(size, []).append(memory)


FREE: Final = FreeMemory()


class _Page(ctypes.Array[ctypes.c_ubyte]):
    """A page in use. When this object is deleted, the page's memory is kept for reuse."""

    _type_ = ctypes.c_ubyte
    _length_ = 0
    memory = memoryview(b"")

    # `give` is a default argument, because at interpreter exit module globals are deleted before
    # the last arrays are deleted.
    def __del__(self, give: Callable[[memoryview], None] = FREE.give) -> None:
        give(self.memory)


@lru_cache(maxsize=256)  # `new_page` uses at most `_STEPS` sizes for each power of two
def _page_type(size: int) -> type[_Page]:
    return type("_Page", (_Page,), {"_length_": size})


def new_page(size: int) -> memoryview:
    """Return at least `size` bytes of uninitialized memory.

    Memory of `PAGE_BYTES_MIN` or more is a page. After its release, the page is reused.
    """
    if size < PAGE_BYTES_MIN:
        return _allocate(size)
    step = (1 << (size - 1).bit_length()) // (2 * _STEPS)
    memory = FREE.take(-(-size // step) * step)
    page = _page_type(memory.nbytes).from_buffer(memory)
    page.memory = memory
    return memoryview(page)


def _allocate(size: int) -> memoryview:
    return memoryview(pa.allocate_buffer(size))


if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.signedinteger]
    Column = pa.Array[pa.Scalar[pa.DataType]]


Number = TypeVar("Number", bound=np.generic)
MISSING: Final = -1
NO_TYPE: Final = TimestampType.NO_TIMESTAMP_TYPE.value
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


def new_array(kind: type[Number], size: int) -> "npt.NDArray[Number]":
    """Return an array of `size` numbers, not initialized; see `new_page`."""
    return np.frombuffer(new_page(size * np.dtype(kind).itemsize), kind, size)


def new_binary(rows: int, capacity: int) -> Binary:
    """Return an empty binary column with room for `rows` values of `capacity` bytes in total."""
    ends = new_array(np.int32, rows + 1)
    ends[0] = 0
    return Binary(ends, new_array(np.uint8, capacity), _all_valid(rows), NO_INTS)


def new_views(rows: int) -> Binary:
    """Return an empty column for `rows` values that are views of the log's bytes, not copies."""
    return Binary(NO_INTS, _NO_BYTES, _all_valid(rows), new_array(np.int32, VIEW_WORDS * rows))


def _all_valid(rows: int) -> "Bytes":
    return np.full((rows + 7) >> 3, 0xFF, np.uint8)


# Placeholders for columns that aren't requested.
NO_LONGS: Final[Longs] = np.empty(0, np.int64)

NO_INTS: Final[Ints] = np.empty(0, np.int32)
_NO_BYTES: Final[Bytes] = np.empty(0, np.uint8)
NO_BINARY: Final = Binary(NO_INTS, _NO_BYTES, _NO_BYTES, NO_INTS)


def build(name: str, chunk: Chunk) -> "Column":
    """Return one column of the chunk as an Arrow array of its type in `COLUMN_TYPES`."""
    return _BUILDERS[name](chunk)


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


_BUILDERS: Final[dict[str, Callable[[Chunk], "Column"]]] = {
    "offset": _offsets,
    "timestamp": lambda c: _fixed(TIME, c.filled.timestamps[: c.rows], c.progress[TIME_NULLS]),
    "timestampType": _timestamp_types,
    "createTimestamp": lambda c: _fixed(TIME, c.filled.creates[: c.rows], c.progress[CREATE_NULLS]),
    "appendTimestamp": _append_times,
    "key": lambda c: _bytes(c, c.filled.key, c.progress[KEY_NULLS]),
    "value": lambda c: _bytes(c, c.filled.value, c.progress[VALUE_NULLS]),
    "headers": _headers,
    "producerId": lambda c: _per_batch(pa.int64(), layout.PRODUCER_ID, c),
    "producerEpoch": lambda c: _per_batch(pa.int16(), layout.PRODUCER_EPOCH, c),
    "sequence": _sequences,
    "leaderEpoch": lambda c: _per_batch(pa.int32(), layout.LEADER_EPOCH, c),
}

assert _BUILDERS.keys() == COLUMN_TYPES.keys()
