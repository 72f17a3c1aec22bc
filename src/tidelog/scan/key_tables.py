"""Tables of one row for each key: what a split's records come to, and how tables are joined.

Rows are those of `record.kernels.digests`. A table is bounded: where it would grow over its limit,
its rows are handed out and it begins anew; rows of one partition that were handed out in the order
of their offsets add up to the same.

Imports numpy, pyarrow and numba. Not for two threads at once.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.record.kernels import digests
from tidelog.record.kernels.digests import Cells, Incoming
from tidelog.record.kernels.layout import FULL
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Ints, Longs

    Column = pa.Array[pa.Scalar[pa.DataType]]

Number = TypeVar("Number", bound=np.generic)

# 144 MB of rows, and 16 MB of index: what a task holds at most.
ROWS_MAX: Final = 1 << 21
_INDEX_MIN: Final = 1 << 12
COLUMNS: Final = ("offset", "createTimestamp", "key", "value")


class KeyTable:
    """Rows of different keys, in the order of their first sight.

    Attributes:
        count: How many there are.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        """An empty table; memory is taken as it fills."""
        self._table: Longs = np.empty((rows_max, digests.FIELDS), np.int64)
        self._index: Ints = np.zeros(_INDEX_MIN, np.int32)
        self._state: Longs = np.zeros(digests.STATE, np.int64)

    @property
    def count(self) -> int:
        """How many keys there are."""
        return int(self._state[digests.USED])

    @property
    def rows(self) -> "Longs":
        """The rows, int64[count, FIELDS]; they change with the table."""
        return self._table[: self.count]

    def add(self, rows: "Longs", *, start: int = 0, across: bool = False) -> int:
        """Add rows from `start` on; returns the row to go on with where the table is full.

        Args:
            rows: int64[n, FIELDS].
            start: The first one.
            across: They are of another partition than what is there; else they lie behind it.
        """
        self._state[digests.NEXT], self._state[digests.END] = start, len(rows)
        while digests.merge(rows, int(across), self._table, self._index, self._state) == FULL:
            if self.count == len(self._table):
                break
            self.reindex(2 * len(self._index))
        return int(self._state[digests.NEXT])

    def reindex(self, size: int = _INDEX_MIN) -> None:
        """Find rows by an index of so many slots, a power of two."""
        self._index = np.zeros(size, np.int32)
        digests.index_rows(self._table, self.count, self._index)

    def find(self, rows: "Longs") -> "Ints":
        """For each row the number of this table's row that has its key, -1 where none has."""
        found: Ints = np.empty(len(rows), np.int32)
        digests.match(rows, self._table, self._index, found)
        return found

    def clear(self) -> None:
        """Forget all rows."""
        self._state[:] = 0
        self._index[:] = 0


def by_hash(rows: "Longs") -> "Longs":
    """The rows in the order of their keys' hashes, as unsigned numbers."""
    order = np.argsort(rows[:, digests.HASH_HIGH].copy().view(np.uint64), kind="stable")
    found: Longs = rows[order]
    return found


def joined(tables: Iterable["Longs"], *, across: bool = False) -> "Longs":
    """Rows of several tables, one for each key.

    Args:
        tables: Of one partition, in the order of their offsets; or with `across` of one partition
            each.
        across: See `KeyTable.add`.
    """
    parts = [part for part in tables if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else np.empty((0, digests.FIELDS), np.int64)
    table = KeyTable(sum(map(len, parts)))
    for part in parts:
        table.add(part, across=across)
    return table.rows


class Spans:
    """Records and digests by span of create time; spans are joined where there are too many.

    Attributes:
        span_ms: Length of a span.
        found: Number of the span -> records, and the sum of their digests as a signed word.
    """

    LIMIT: Final = 1 << 16

    def __init__(self, span_ms: int) -> None:
        self.span_ms = span_ms
        self.found: dict[int, tuple[int, int]] = {}

    def add(self, spans: Iterable[tuple[int, int, int]]) -> None:
        """Add spans: number, records, sum."""
        for number, count, total in spans:
            old_count, old_total = self.found.get(number, (0, 0))
            self.found[number] = old_count + count, _wrapped(old_total + total)
        while len(self.found) > self.LIMIT:
            self.widen(2 * self.span_ms)

    def widen(self, span_ms: int) -> None:
        """Join spans to longer ones, a whole multiple of these."""
        factor, before = span_ms // self.span_ms, self.found
        self.span_ms, self.found = span_ms, {}
        self.add(
            (number if number == digests.NO_SPAN else number // factor, count, total)
            for number, (count, total) in before.items()
        )

    def items(self) -> list[tuple[int, int, int]]:
        """All spans, ascending: number, records, sum."""
        return [(number, *self.found[number]) for number in sorted(self.found)]


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class Reducer:
    """Reduces records of one partition, in the order of their offsets.

    Attributes:
        records: How many there were.
        unkeyed: Those without a key.
        unkeyed_sum: Sum of their digests.
        untimed: Records without a create time.
        spans: All of them by span of create time.
        end_offset: The offset behind the last one, 0 where there was none.
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
        """Begin.

        Args:
            seeds: int64[SEEDS].
            partition: Which one.
            span_ms: Length of a span of time.
            hand_out: Takes rows, sorted by hash, each time the table is full, and at the end.
            rows_max: Rows of the table.
        """
        self.records, self.end_offset = 0, 0
        self.spans = Spans(span_ms)
        self._seeds, self._partition, self._hand_out = seeds, partition, hand_out
        self._table = KeyTable(rows_max)
        self._facts: Longs = np.zeros(digests.FACTS, np.int64)
        self._slots: Longs = np.zeros((digests.SPANS, digests.SPAN_FIELDS), np.int64)
        self._span_ms = span_ms
        self._rows: Longs = np.empty((0, digests.FIELDS), np.int64)

    @property
    def unkeyed(self) -> int:
        """Records without a key."""
        return int(self._facts[digests.UNKEYED])

    @property
    def unkeyed_sum(self) -> int:
        """Sum of their digests."""
        return int(self._facts[digests.UNKEYED_SUM])

    @property
    def untimed(self) -> int:
        """Records without a create time."""
        return int(self._facts[digests.UNTIMED])

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
        if len(self._rows) < count:
            self._rows = np.empty((count, digests.FIELDS), np.int64)
            self._rows[:, digests.PARTITION] = self._partition
        self._facts[digests.AT] = self._facts[digests.ROWS] = 0
        while self._summarise(incoming) == FULL:
            self._take_spans()
        self._merge(self._rows[: int(self._facts[digests.ROWS])])
        self.records += count
        self.end_offset = int(incoming.offsets[-1]) + 1

    def _summarise(self, incoming: Incoming) -> int:
        return digests.summarise(
            incoming, self._seeds, self._span_ms, self._rows, self._slots, self._facts
        )

    def _merge(self, rows: "Longs") -> None:
        start = 0
        while (start := self._table.add(rows, start=start)) < len(rows):
            self._flush()

    def _flush(self) -> None:
        if self._table.count:
            self._hand_out(by_hash(self._table.rows))
            self._table.clear()

    def _take_spans(self) -> None:
        used = self._slots[self._slots[:, digests.SPAN_COUNT] > 0]
        factor = self.spans.span_ms // self._span_ms
        self.spans.add(
            (number if number == digests.NO_SPAN else number // factor, count, total)
            for number, count, total in used.tolist()
        )
        self._slots[:] = 0

    def finish(self) -> None:
        """Hand out what is left."""
        self._take_spans()
        self._flush()


def _cells(column: "Column") -> Cells:
    """A binary column as the kernel takes it; nothing is copied where it has no nulls."""
    _, ends, data = column.buffers()
    count = len(column)
    assert ends is not None
    places = np.frombuffer(memoryview(ends), np.int32)
    content = np.frombuffer(b"" if data is None else memoryview(data), np.uint8)
    is_null: Bytes = np.zeros(count, np.uint8)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
    places = places[column.offset : column.offset + count + 1]
    return Cells(_frozen(places), _frozen(content), is_null)


def _longs(column: "Column") -> "Longs":
    return _frozen(np.asarray(column, np.int64))


def _times(column: "Column") -> "Longs":
    known = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return _longs(known.fill_null(NO_TIMESTAMP) if known.null_count else known)


def _frozen(array: "npt.NDArray[Number]") -> "npt.NDArray[Number]":
    """The same, read-only: one type of array for the kernel, whatever Arrow hands out."""
    found = array.view()
    found.flags.writeable = False
    return found
