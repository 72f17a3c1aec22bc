"""Tables with one row for each key. They are filled from records, and can be joined.

This module owns the table by key (`KeyTable`), the reduction of one partition's records
(`Reducer`), and the counts of records and sums of digests for each span of create time
(`TimeSpans`). `record.kernels.key_rows` owns the rows' fields and the kernels.

Memory is limited: if the table of a `Reducer` is full, its rows are passed to a function
(`hand_out`), and the table is emptied. To get one row for each key, the caller joins these rows, in
the order in which they were passed (`joined`). The classes are not thread-safe.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.record.kernels import key_rows
from tidelog.record.kernels.key_rows import Cells, Incoming, fold_columns
from tidelog.record.kernels.layout import FULL
from tidelog.record.key_hash import halves, siphash
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Ints, Longs
    from tidelog.record.kernels.records import Filter

    Column = pa.Array[pa.Scalar[pa.DataType]]


Number = TypeVar("Number", bound=np.generic)

# Maximum number of rows in a task's table. The rows take 128 MiB of memory and the index 16 MiB;
# passing the rows to `hand_out` takes another 144 MiB.
ROWS_MAX: Final = 1 << 21

_INDEX_MIN: Final = 1 << 12
_LINE_BYTES: Final = 64
_COPY_ROWS: Final = 1 << 14

# Value of `SPAN_LAST` while there is no last span: it is below `SPAN_FIRST`.
_NO_SPAN_YET: Final = -1

COLUMNS: Final = ("offset", "createTimestamp", "key", "value")
_SEED: Final = struct.Struct("<qq")
_ADDED_PAIRS: Final = 16


def words_of(seeds: Sequence[int]) -> list[int]:
    """Return the seeds, followed by the words that `kernels.hashes` adds to values."""
    return [*seeds, *_added_words(seeds[2], seeds[3])]


@lru_cache(maxsize=8)
def _added_words(low: int, high: int) -> tuple[int, ...]:
    seed = _SEED.pack(low, high)
    numbers = (number.to_bytes(8, "little") for number in range(_ADDED_PAIRS))
    return tuple(word for number in numbers for word in halves(siphash(seed, number)))


class KeyTable:
    """Table with one row for each key, in the order of the keys' first records.

    Attributes:
        count: Number of rows.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        """Create an empty table.

        Memory for the rows is reserved, but the system allocates a page only when a row is written
        to it.
        """
        self._table: Longs = np.empty((rows_max, key_rows.FIELDS), np.int64)
        self._index: Ints = np.zeros(_INDEX_MIN, np.int32)
        self._state: Longs = np.zeros(key_rows.STATE, np.int64)

    @property
    def count(self) -> int:
        """Number of keys."""
        return int(self._state[key_rows.USED])

    @property
    def rows(self) -> "Longs":
        """The rows as int64[count, FIELDS]: a view, which changes when the table changes."""
        return self._table[: self.count]

    def add(self, rows: "Longs", *, start: int = 0, across: bool = False) -> int:
        """Add rows from `start` on, until the table is full.

        Returns the index of the first row that was not added; the number of rows if all were added.

        Args:
            rows: int64[n, FIELDS].
            start: Index of the first row to add.
            across: Whether the rows and the table's rows are of different partitions. If false, the
                offsets of the rows must be higher than the offsets in the table.
        """
        self._state[key_rows.NEXT], self._state[key_rows.END] = start, len(rows)
        while key_rows.merge(rows, int(across), self._table, self._index, self._state) == FULL:
            if self.count == len(self._table):
                break
            self.reindex(2 * len(self._index))
        return int(self._state[key_rows.NEXT])

    def reindex(self, size: int = _INDEX_MIN) -> None:
        """Rebuild the index with `size` slots, a power of two."""
        self._index = np.zeros(size, np.int32)
        key_rows.index_rows(self._table, self.count, self._index)

    def find(self, rows: "Longs") -> "Ints":
        """Return, for each row, the index of this table's row with the same key, or -1."""
        numbers: Ints = np.empty(len(rows), np.int32)
        key_rows.match(rows, self._table, self._index, numbers)
        return numbers


def joined(tables: Iterable["Longs"], *, across: bool = False) -> "Longs":
    """Join the rows of several tables, one row for each key.

    Args:
        tables: Tables of the same partition, in the order of their offsets. With `across`, each
            table has the rows of a different partition.
        across: Whether the tables are of different partitions; see `KeyTable.add`.
    """
    parts = [part for part in tables if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else np.empty((0, key_rows.FIELDS), np.int64)
    table = KeyTable(sum(map(len, parts)))
    for part in parts:
        table.add(part, across=across)
    return table.rows


class TimeSpans:
    """Count of records and sum of digests for each span of create time.

    If there are more than `LIMIT` spans, neighboring spans are merged, and `span_ms` is doubled.

    Attributes:
        span_ms: Length of a span in ms.
        totals: Number of records and sum of their digests (a signed 64-bit number), by the span's
            index. The index is the span's start time divided by `span_ms`; for records without a
            create time it is `key_rows.NO_SPAN`.
    """

    LIMIT: Final = 1 << 16

    def __init__(self, span_ms: int) -> None:
        self.span_ms = span_ms
        self.totals: dict[int, tuple[int, int]] = {}

    def add(self, spans: Iterable[tuple[int, int, int]]) -> None:
        """Add spans; each is a tuple of the span's index, number of records and sum of digests."""
        for number, count, total in spans:
            old_count, old_total = self.totals.get(number, (0, 0))
            self.totals[number] = old_count + count, _wrapped(old_total + total)
        while len(self.totals) > self.LIMIT:
            self.widen(2 * self.span_ms)

    def widen(self, span_ms: int) -> None:
        """Merge spans to longer spans; `span_ms` must be a multiple of the current length."""
        factor, before = span_ms // self.span_ms, self.totals
        self.span_ms, self.totals = span_ms, {}
        self.add(
            (number if number == key_rows.NO_SPAN else number // factor, count, total)
            for number, (count, total) in before.items()
        )

    def items(self) -> list[tuple[int, int, int]]:
        """Return index, number of records and sum of digests of each span, in ascending order."""
        return [(number, *self.totals[number]) for number in sorted(self.totals)]


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class Reducer:
    """Reduces the records of one partition to one row for each key; add records in offset order.

    Attributes:
        spans: Counts and digests of all records, by span of create time; complete after `finish`.
    """

    def __init__(
        self,
        seeds: "Longs",
        partition: int,
        span_ms: int,
        hand_out: Callable[["Longs"], None],
        *,
        rows_max: int = ROWS_MAX,
    ) -> None:
        """Create an empty reducer.

        Args:
            seeds: int64[SEEDS].
            partition: Index of the partition.
            span_ms: Length of a span of time in ms.
            hand_out: Function to which rows are passed, sorted by hash. It is called each time the
                table is full, and by `finish`.
            rows_max: Maximum number of rows in the table.
        """
        self.spans = TimeSpans(span_ms)
        self._partition, self._hand_out = partition, hand_out
        state: Longs = np.zeros(key_rows.ROW_STATE, np.int64)
        state[key_rows.SPAN_LAST] = _NO_SPAN_YET
        self._into = key_rows.KeyRows(
            rows=_aligned(rows_max * key_rows.ROW_WORDS),
            slots=np.zeros(_INDEX_MIN, np.int32),
            window=np.zeros(key_rows.WINDOW_ROWS * key_rows.WINDOW_WORDS, np.int64),
            state=state,
            spans=np.zeros((key_rows.SPANS, key_rows.SPAN_FIELDS), np.int64),
            words=np.array(words_of(seeds.tolist()), np.int64),
            span_ms=span_ms,
        )

    @property
    def records(self) -> int:
        """Number of records that were added."""
        return int(self._into.state[key_rows.RECORDS])

    @property
    def unkeyed(self) -> int:
        """Number of records without a key."""
        return int(self._into.state[key_rows.UNKEYED])

    @property
    def unkeyed_sum(self) -> int:
        """Sum of the digests of records without a key."""
        return int(self._into.state[key_rows.UNKEYED_SUM])

    @property
    def untimed(self) -> int:
        """Number of records without a create time."""
        return int(self._into.state[key_rows.UNTIMED])

    @property
    def end_offset(self) -> int:
        """Offset after the last record, 0 if there was no record."""
        return int(self._into.state[key_rows.END_OFFSET])

    def add(self, batch: pa.RecordBatch) -> None:
        """Reduce a record batch that has `COLUMNS`."""
        count = batch.num_rows
        if not count:
            return
        incoming = Incoming(
            keys=_cells(batch.column("key")),
            values=_cells(batch.column("value")),
            offsets=_longs(batch.column("offset")),
            times=_times(batch.column("createTimestamp")),
        )
        at = 0
        while (at := fold_columns(incoming, at, self._into)) < count:
            self._make_room()

    def fold(
        self, data: "Bytes", table: "Longs", rows: "Filter", sums: "Longs", progress: "Longs"
    ) -> tuple[int, int]:
        """Reduce the records of batches without copying them.

        Arguments and result are described in `record.kernels.key_rows`.
        """
        while True:
            status, at = key_rows.fold_batches(data, table, rows, sums, self._into, progress)
            if status != FULL:
                return status, at
            self._make_room()

    def _make_room(self) -> None:
        """Move the kernel's spans to `spans`, and the window's rows to the table."""
        self._take_spans()
        while key_rows.take_window(self._into) == FULL:
            used = int(self._into.state[key_rows.ROW_USED])
            if used * key_rows.ROW_WORDS == len(self._into.rows):
                self._flush()
            else:
                self._reindex(2 * len(self._into.slots))

    def _reindex(self, size: int) -> None:
        self._into = self._into._replace(slots=np.zeros(size, np.int32))
        used = int(self._into.state[key_rows.ROW_USED])
        key_rows.index_fold_rows(self._into.rows, used, self._into.slots)

    def _flush(self) -> None:
        """Pass the table's rows (not the window's) to `hand_out`, and empty the table."""
        used = int(self._into.state[key_rows.ROW_USED])
        if used:
            rows: Longs = np.empty((used, key_rows.FIELDS), np.int64)
            filled = self._into.rows[: used * key_rows.ROW_WORDS].reshape(used, key_rows.ROW_WORDS)
            order = np.argsort(filled[:, key_rows.HASH_HIGH].copy().view(np.uint64), kind="stable")
            for start in range(0, used, _COPY_ROWS):  # copy in parts, to limit memory
                part = slice(start, start + _COPY_ROWS)
                rows[part, : key_rows.PARTITION] = filled[order[part]]
            rows[:, key_rows.PARTITION] = self._partition
            self._hand_out(rows)
        self._into.state[key_rows.ROW_USED] = 0
        self._into.slots[:] = 0

    def _take_spans(self) -> None:
        slots, state = self._into.spans, self._into.state
        used = slots[slots[:, key_rows.SPAN_COUNT] > 0]
        factor = self.spans.span_ms // self._into.span_ms
        self.spans.add(
            (number if number == key_rows.NO_SPAN else number // factor, count, total)
            for number, count, total in used.tolist()
        )
        slots[:] = 0
        state[key_rows.SPAN_FIRST], state[key_rows.SPAN_LAST] = 0, _NO_SPAN_YET

    def finish(self) -> None:
        """Pass the remaining rows to `hand_out`."""
        self._make_room()
        self._flush()


def _aligned(words: int) -> "Longs":
    """Return an uninitialized array that begins at a cache line.

    The system allocates its pages when they are first written.
    """
    line = _LINE_BYTES // 8
    whole: Longs = np.empty(words + line, np.int64)
    start = -(whole.ctypes.data // 8) % line
    return whole[start : start + words]


def _cells(column: "Column") -> Cells:
    """Return a binary column in the form that the kernel reads, without copying its bytes."""
    _, ends, data = column.buffers()
    count = len(column)
    assert ends is not None
    cell_ends = np.frombuffer(memoryview(ends), np.int32)
    content = np.frombuffer(b"" if data is None else memoryview(data), np.uint8)
    is_null: Bytes = np.zeros(count, np.uint8)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
    cell_ends = cell_ends[column.offset : column.offset + count + 1]
    return Cells(_frozen(cell_ends), _frozen(content), is_null)


def _longs(column: "Column") -> "Longs":
    return _frozen(np.asarray(column, np.int64))


def _times(column: "Column") -> "Longs":
    times = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return _longs(times.fill_null(NO_TIMESTAMP) if times.null_count else times)


def _frozen(array: "npt.NDArray[Number]") -> "npt.NDArray[Number]":
    """Return a read-only view, so that the kernel always gets the same array type."""
    view = array.view()
    view.flags.writeable = False
    return view
