"""Counts the records and bytes of each key, and finds records that occur more than once.

Records are grouped by digests of 128 bits (SipHash-2-4 with a secret seed), so the memory depends
neither on the sizes of keys and values nor on the number of records. The digest is that of the key,
or, for repeated records, of key, value and create time. Memory is limited in both cases:

- A table of groups has at most `GROUPS_MAX` rows. If there are more keys, one pass counts only a
  share of the keys, and further passes read the records again, each for another share.
- For repeated records, a first pass stores 8 bytes of each record's digest. If more than
  `DIGESTS_MAX` would be stored, the pass covers only a share of the digests, and later passes cover
  the other shares. After each pass over a share, the records are read again, and only records whose
  8 bytes occurred more than once are grouped.

The keys of the result are read at the end. In counts by key, a key is read from its last record. In
counts of repeated records, the key of a repeated record is read from the record's first occurrence.
Imports numpy, pyarrow and numba. Plain reference: tests/unit/scan/test_key_counts.py.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NotRequired, TypeAlias, TypedDict, cast

import numpy as np
import pyarrow as pa

from tidelog.arguments import KeyOrder
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.column_builders import TIME
from tidelog.record.kernels.hashes import SIPHASH, hash_keys, make_hasher
from tidelog.scan.keyed_table import TableStats, rows_at
from tidelog.scan.split import ScanStats
from tidelog.scan.winners import ALL_KEYS, Share, new_secret
from tidelog.types import NO_TIMESTAMP, TimestampType

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs
    from tidelog.scan.reader import ReadOptions
    from tidelog.scan.source import RecordSource
    from tidelog.scan.split import Split

    Column = pa.Array[pa.Scalar[pa.DataType]]
    Mask = npt.NDArray[np.bool_]

# Maximum number of groups in memory. While records are added, a process needs at most about 700 MB
# more than for reading alone (measured).
GROUPS_MAX: Final = 1 << 20
# Maximum number of digests in memory, 8 bytes each.
DIGESTS_MAX: Final = 1 << 25
# Number of records that are added to the groups at once.
_ADDED_ROWS: Final = 1 << 19
# Number of waiting record batches at which they are merged into one, because even an empty batch
# needs about 4 KB of memory.
_ADDED_BATCHES: Final = 1 << 10
_DIGESTS_FIRST: Final = 1 << 16
# Maximum number of keys of repeated records that are counted exactly.
KEYS_EXACT: Final = 1 << 20
# Value of both halves of the digest of a null key or value. Every other digest has at least one
# half that is not 0.
_NO_KEY: Final = 0

# Columns of a group. `records` is the number of the group's records, `size_bytes` is the sum of the
# sizes of their keys and values. `key` is the lower half of the key's digest. The other columns are
# the positions of the first and of the last record.
_SCHEMA: Final = pa.schema(
    [
        ("low", pa.int64()),
        ("high", pa.int64()),
        ("records", pa.int64()),
        ("size_bytes", pa.int64()),
        ("key", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("last_partition", pa.int32()),
        ("last_offset", pa.int64()),
    ]
)
_DIGEST: Final = ("low", "high")
# Function that combines the rows of a group into one row, by column.
_FOLDS: Final[list[tuple[str, Literal["sum", "first", "last"]]]] = [
    ("records", "sum"),
    ("size_bytes", "sum"),
    ("key", "first"),
    ("partition", "first"),
    ("offset", "first"),
    ("last_partition", "last"),
    ("last_offset", "last"),
]
# Columns with the position of a group's first and of its last record.
_Position: TypeAlias = tuple[
    Literal["partition", "last_partition"], Literal["offset", "last_offset"]
]
_FIRST: Final[_Position] = ("partition", "offset")
_LAST: Final[_Position] = ("last_partition", "last_offset")
# The amount that decides the order, and the amount that decides between equally large groups.
_ORDERS: Final = {
    KeyOrder.BYTES: ("size_bytes", "records"),
    KeyOrder.RECORDS: ("records", "size_bytes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCount:
    """Records of one key.

    Attributes:
        key: The key; None for the records without a key.
        partition: Partition of the records; None if several partitions have records of the key.
        records: Number of records.
        size_bytes: Sum of the sizes of the records' keys and values, uncompressed.
    """

    key: bytes | None
    partition: int | None
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCounts:
    """The keys with most bytes or most records, and totals over all keys.

    Attributes:
        counts: The keys with most bytes or most records, in descending order. If there are records
            without a key, one further item is their count.
        keys: Number of all keys; the records without a key do not count as a key.
        records: Number of all records.
        size_bytes: Sum of the sizes of the keys and values of all records, uncompressed.
        without_key: Number of records without a key.
        without_time: Records without a time on the clock, which are not counted in a time range;
            None if brokers don't report their number.
        is_least: Whether `without_time` may be too small, see `tidelog.scan.count.PartitionCount`.
        without_timestamp: As in `tidelog.scan.count.PartitionCount`.
    """

    counts: tuple[KeyCount, ...]
    keys: int
    records: int
    size_bytes: int
    without_key: int
    without_time: int | None = 0
    is_least: bool = False
    without_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRecord:
    """A record that occurs more than once.

    Attributes:
        key: Its key, None if it has none.
        records: Number of equal records, at least 2.
        size_bytes: Sum of the sizes of the equal records' keys and values, uncompressed.
        partition: Partition of the first of these records.
        offset: Offset of the first of these records.
        last_partition: Partition of the last of these records.
        last_offset: Offset of the last of these records.
        create_ms: Create time in ms of the record at `offset`, None if it is unknown. The other
            records have the same create time, unless create times are not compared.
    """

    key: bytes | None
    records: int
    size_bytes: int
    partition: int
    offset: int
    last_partition: int
    last_offset: int
    create_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRecords:
    """The repeated records with most copies, and totals over all repeated records.

    Attributes:
        counts: The records with most copies, in descending order.
        repeated: Number of records that occur more than once; a record and its copies count as one.
        copies: Number of records that equal an earlier record.
        keys: Number of keys of repeated records; records without a key count as one key.
        records: Number of all records.
        is_estimate: Whether `keys` is an estimate, because there are more than `KEYS_EXACT` keys.
            Its standard error is 0.14 %.
        without_time: As in `KeyCounts`.
        is_least: As in `KeyCounts`.
        without_timestamp: As in `KeyCounts`.
    """

    counts: tuple[RepeatedRecord, ...]
    repeated: int
    copies: int
    keys: int
    records: int
    is_estimate: bool = False
    without_time: int | None = 0
    is_least: bool = False
    without_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records to group.

    Attributes:
        source: Reads the records.
        splits: The records, of one topic.
        options: How to read.
        stats: Statistics of the first read, updated while reading.
    """

    source: "RecordSource"
    splits: "Sequence[Split]"
    options: "ReadOptions"
    stats: ScanStats

    def read(self, columns: Sequence[str], stats: ScanStats) -> Iterator[pa.RecordBatch]:
        """Yield the records; raises the errors of `tidelog.scan.read`."""
        yield from self.source.read(self.splits, columns, stats=stats, options=self.options)


class _Row(TypedDict):
    """The columns of `_SCHEMA` that are needed for the result of a group."""

    records: int
    size_bytes: int
    partition: int
    offset: int
    last_partition: int
    last_offset: int


class _Content(TypedDict):
    """Content of a record; times in ms."""

    offset: int
    key: bytes | None
    createTimestamp: NotRequired[int | None]
    timestamp: NotRequired[int | None]
    timestampType: NotRequired[int]


def time_columns(source: "RecordSource") -> tuple[str, ...]:
    """Return the columns that have the create times of a source's records."""
    return ("createTimestamp",) if source.has_create_times else ("timestamp", "timestampType")


def count_keys(records: Records, *, limit: int, order: KeyOrder) -> KeyCounts:
    """Return the `limit` keys with most bytes or most records (`order`), and totals over all keys.

    The count of the records without a key is not limited.

    Raises:
        OffsetsGone: Records were compacted or deleted meanwhile.
        The errors of `tidelog.scan.read`.
    """
    digests = _Digests(records, ("key",))
    best = keyless = _no_groups()
    keys = total = size_bytes = 0
    shares = [ALL_KEYS]
    while shares:
        groups = _Groups(shares.pop())
        for rows in digests.read():
            groups.add(rows)
        whole = groups.table()
        shares += groups.left
        counts = _longs(whole, "records")
        is_keyless = (_longs(whole, "low") == _NO_KEY) & (_longs(whole, "high") == _NO_KEY)
        total += int(counts.sum())
        size_bytes += int(_longs(whole, "size_bytes").sum())
        keyless = pa.concat_tables([keyless, whole.filter(pa.array(is_keyless))])
        keyed = whole.filter(pa.array(~is_keyless))
        keys += len(keyed)
        best = _largest([best, keyed], order, limit)
    best = _largest([best, keyless], order, limit + 1)
    return KeyCounts(
        counts=tuple(
            KeyCount(
                key=content["key"],
                partition=row["partition"] if row["partition"] == row["last_partition"] else None,
                records=row["records"],
                size_bytes=row["size_bytes"],
            )
            for row, content in _with_content(records, best, ("key",), _LAST)
        ),
        keys=keys,
        records=total,
        size_bytes=size_bytes,
        without_key=int(_longs(keyless, "records").sum()),
    )


def find_repeated(records: Records, *, limit: int, with_times: bool) -> RepeatedRecords:
    """Return the `limit` records with most copies, and totals over all repeated records.

    Two records are equal if their keys and values have the same bytes, and, with `with_times`,
    their create times are equal or both unknown. Headers are not compared.

    Raises the errors of `count_keys`.
    """
    times = time_columns(records.source)
    digests = _Digests(records, ("key", "value", *(times if with_times else ())))
    best = _no_groups()
    repeated = copies = total = 0
    keys = _Keys()
    shares = [ALL_KEYS]
    while shares:
        seen = _Seen(shares.pop())
        for rows in digests.read():
            seen.add(_longs(rows, "low"))
        total = seen.records
        shares += seen.left
        often = seen.often()
        for start in range(0, len(often), GROUPS_MAX):
            chosen, groups = often[start : start + GROUPS_MAX], _Groups()
            for rows in digests.read():
                groups.add(_only(rows, _is_in(_longs(rows, "low"), chosen)))
            whole = groups.table()
            # Records with different digests may have the same lower half.
            whole = whole.filter(pa.array(_longs(whole, "records") > 1))
            repeated += len(whole)
            copies += int(_longs(whole, "records").sum()) - len(whole)
            keys.add(_longs(whole, "key"))
            best = _largest([best, whole], KeyOrder.RECORDS, limit)
    return RepeatedRecords(
        counts=tuple(
            RepeatedRecord(key=content["key"], create_ms=_create_ms(content), **row)
            for row, content in _with_content(records, best, ("key", *times), _FIRST)
        ),
        repeated=repeated,
        copies=copies,
        keys=keys.number,
        records=total,
        is_estimate=keys.is_estimate,
    )


class _Digests:
    """Reads the records as rows with `_SCHEMA`, one row for each record."""

    def __init__(self, records: Records, content: Sequence[str]) -> None:
        """Create a reader; `content` are the columns that equal records have in common."""
        self._records, self._stats = records, records.stats
        self._content = content
        self._columns = tuple(dict.fromkeys((*content, "key", "value", "partition", "offset")))
        self._hasher = make_hasher(SIPHASH, new_secret(records.source.env.random))

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read all records; can be called several times."""
        stats, self._stats = self._stats, ScanStats()
        for batch in self._records.read(self._columns, stats):
            if batch.num_rows:
                yield self._rows(batch)

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        keys, key_sizes = self._hashes(batch.column("key"))
        _, _, value_sizes = _cells(batch.column("value"))
        digests = keys
        if "value" in self._content:
            values, _ = self._hashes(batch.column("value"))
            times = np.zeros((count, 1), np.int64)
            if len(self._content) > len(("key", "value")):
                times[:, 0] = _create_times(batch)
            parts = np.concatenate([keys, values, times], axis=1)
            digests = np.empty((count, 2), np.int64)
            ends = np.arange(count + 1, dtype=np.int64) * parts.itemsize * parts.shape[1]
            hash_keys(_frozen(parts.view(np.uint8).reshape(-1)), ends, self._hasher, digests)
        position = [batch.column("partition"), batch.column("offset")]
        return pa.RecordBatch.from_arrays(
            [
                *map(pa.array, (digests[:, 0], digests[:, 1])),
                pa.array(np.ones(count, np.int64)),
                pa.array(key_sizes + value_sizes),
                pa.array(keys[:, 0]),
                *position,
                *position,
            ],
            schema=_SCHEMA,
        )

    def _hashes(self, column: "Column") -> "tuple[Longs, Longs]":
        """Return the digest of each cell, int64[n, 2], and its size; zeros for null."""
        data, ends, sizes = _cells(column)
        digests = np.empty((len(column), 2), np.int64)
        hash_keys(data, ends, self._hasher, digests)
        if column.null_count:
            digests[np.asarray(column.is_null())] = _NO_KEY
        return digests, sizes


class _Groups:
    """Groups of records with equal digests: one row with `_SCHEMA` for each group.

    Attributes:
        left: Shares of the digests that are left for later passes.
    """

    def __init__(self, share: Share | None = None) -> None:
        """Begin a pass over a share. With None, the caller adds only records of few digests."""
        self.left: list[Share] = []
        self._share = share
        self._groups = _no_groups()
        self._new: list[pa.RecordBatch] = []
        self._new_rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add records, in order of partition and offset."""
        share = self._share
        chosen = rows if share is None else _only(rows, _is_of(_longs(rows, "low"), share))
        self._new.append(chosen)
        self._new_rows += chosen.num_rows
        if self._new_rows >= _ADDED_ROWS:
            self._fold()
        elif len(self._new) >= _ADDED_BATCHES:
            self._new = pa.Table.from_batches(self._new).combine_chunks().to_batches()

    def table(self) -> pa.Table:
        """Return the groups."""
        self._fold()
        return self._groups

    def _fold(self) -> None:
        new = pa.Table.from_batches(self._new, _SCHEMA)
        self._new, self._new_rows = [], 0
        # One thread keeps the order of the rows, which `first` and `last` need.
        grouped = pa.concat_tables([self._groups, new]).group_by([*_DIGEST], use_threads=False)
        folded = grouped.aggregate(_FOLDS)
        names = [*_DIGEST, *(f"{name}_{kind}" for name, kind in _FOLDS)]
        self._groups = folded.select(names).rename_columns([*_SCHEMA.names])
        while self._share is not None and len(self._groups) > GROUPS_MAX:
            self._share, later = self._share.halves()
            self.left.append(later)
            is_mine = _is_of(_longs(self._groups, "low"), self._share)
            self._groups = self._groups.filter(pa.array(is_mine))


class _Seen:
    """Lower halves of the digests of all records.

    Attributes:
        records: Number of records.
        left: Shares of the digests that are left for later passes.
    """

    def __init__(self, share: Share) -> None:
        self.records = 0
        self.left: list[Share] = []
        self._share = share
        self._digests: Longs = np.empty(_DIGESTS_FIRST, np.int64)
        self._count = 0

    def add(self, digests: "Longs") -> None:
        """Add digests."""
        self.records += len(digests)
        count = DIGESTS_MAX // 4
        for start in range(0, len(digests), count):
            self._add(digests[start : start + count])

    def _add(self, digests: "Longs") -> None:
        """Add digests, at most a quarter of `DIGESTS_MAX`."""
        mine = digests[_is_of(digests, self._share)]
        while self._count + len(mine) > len(self._digests) < DIGESTS_MAX:
            self._digests = np.resize(self._digests, 2 * len(self._digests))
        if self._count + len(mine) > DIGESTS_MAX:
            self._keep_two()
            # Half of the memory is made free, so that digests are not sorted too often.
            while self._count > DIGESTS_MAX // 2:
                self._share, later = self._share.halves()
                self.left.append(later)
                self._keep(_is_of(self._digests[: self._count], self._share))
            mine = mine[_is_of(mine, self._share)]
        self._digests[self._count : self._count + len(mine)] = mine
        self._count += len(mine)

    def _keep_two(self) -> None:
        """Sort the digests, and keep at most two copies of each digest."""
        stored = self._digests[: self._count]
        stored.sort()
        self._keep(np.append([True, True], stored[2:] != stored[:-2])[: self._count])

    def _keep(self, is_kept: "Mask") -> None:
        kept = self._digests[: self._count][is_kept]
        self._count = len(kept)
        self._digests[: self._count] = kept

    def often(self) -> "Longs":
        """Return the digests that were added more than once, in ascending order."""
        self._keep_two()
        stored = self._digests[: self._count]
        often: Longs = stored[1:][stored[1:] == stored[:-1]]
        return often


class _Keys:
    """Number of distinct keys, given 8 bytes of the digest of each key.

    If there are more than `KEYS_EXACT` keys, only a share of the digests is counted.
    """

    def __init__(self) -> None:
        self._share = ALL_KEYS
        self._digests: Longs = np.empty(0, np.int64)

    def add(self, digests: "Longs") -> None:
        """Add digests of keys, also of keys that were added before."""
        mine = digests[_is_of(digests, self._share)]
        self._digests = np.union1d(self._digests, mine)
        while len(self._digests) > KEYS_EXACT:
            self._share, _ = self._share.halves()
            self._digests = self._digests[_is_of(self._digests, self._share)]

    @property
    def is_estimate(self) -> bool:
        """Whether only a share of the keys was counted."""
        return self._share != ALL_KEYS

    @property
    def number(self) -> int:
        """Number of keys."""
        return len(self._digests) * (self._share.mask + 1)


def _no_groups() -> pa.Table:
    return _SCHEMA.empty_table()


def _largest(tables: Sequence[pa.Table], order: KeyOrder, limit: int) -> pa.Table:
    """Return the `limit` largest groups in descending order.

    Equally large groups are ordered by the second amount in `_ORDERS`, descending. If this amount
    is equal too, they are ordered by partition and offset, ascending.
    """
    table = pa.concat_tables(tables)
    amount, second = _ORDERS[order]
    amounts = _longs(table, amount)
    if len(table) > limit:  # only few rows need to be sorted
        least = np.partition(amounts, -limit)[-limit]
        table = table.filter(pa.array(amounts >= least))
    return table.sort_by(
        [
            (amount, "descending"),
            (second, "descending"),
            ("partition", "ascending"),
            ("offset", "ascending"),
        ]
    ).slice(0, min(limit, len(table)))


def _with_content(
    records: Records, groups: pa.Table, columns: Sequence[str], position: _Position
) -> Iterator[tuple[_Row, _Content]]:
    """Yield each group with the content of its first or last record, the record at `position`.

    Raises OffsetsGone if the record was compacted or deleted meanwhile.
    """
    in_partition, at_offset = position
    names = ("records", "size_bytes", "partition", "offset", "last_partition", "last_offset")
    rows = cast("list[_Row]", groups.select(names).to_pylist())
    contents: dict[tuple[int, int], _Content] = {}
    for number in {row[in_partition] for row in rows}:
        offsets = sorted(row[at_offset] for row in rows if row[in_partition] == number)
        splits = [split for split in records.splits if split.partition == number]
        found = rows_at(
            records.source, splits, np.array(offsets), (*columns, "offset"), TableStats()
        )
        for batch in found:
            times = [
                column.cast(pa.int64()) if column.type == TIME else column
                for column in batch.columns
            ]
            plain = pa.RecordBatch.from_arrays(times, names=batch.schema.names).to_pylist()
            for content in cast("list[_Content]", plain):
                contents[number, content["offset"]] = content
    for row in rows:
        yield row, contents[row[in_partition], row[at_offset]]


def _create_ms(content: _Content) -> int | None:
    if "createTimestamp" in content:
        return content["createTimestamp"]
    is_created = content["timestampType"] == TimestampType.CREATE_TIME
    return content["timestamp"] if is_created else None


def _create_times(batch: pa.RecordBatch) -> "Longs":
    """Return the create times in ms; `NO_TIMESTAMP` if they are unknown."""
    if "createTimestamp" in batch.schema.names:
        times = batch.column("createTimestamp").cast(pa.int64()).fill_null(NO_TIMESTAMP)
        return np.asarray(times)
    times = batch.column("timestamp").cast(pa.int64()).fill_null(NO_TIMESTAMP)
    is_created = np.asarray(batch.column("timestampType")) == TimestampType.CREATE_TIME
    return np.where(is_created, np.asarray(times), NO_TIMESTAMP)


def _cells(column: "Column") -> "tuple[Bytes, Longs, Longs]":
    """Return the bytes of n cells, the n + 1 positions where they start and end, and n sizes."""
    _, ends_buffer, data_buffer = column.buffers()
    assert ends_buffer is not None
    data = np.frombuffer(memoryview(data_buffer or b""), np.uint8)
    ends = np.frombuffer(memoryview(ends_buffer), np.int32)[column.offset :][: len(column) + 1]
    wide: Longs = ends.astype(np.int64)
    return _frozen(data), wide, np.diff(wide)


def _frozen(data: "Bytes") -> "Bytes":
    """Return a read-only view, so that the kernel always gets the same array type."""
    view = data.view()
    view.flags.writeable = False
    return view


def _longs(rows: pa.RecordBatch | pa.Table, name: str) -> "Longs":
    numbers: Longs = np.asarray(rows.column(name))
    return numbers


def _only(rows: pa.RecordBatch, is_chosen: "Mask") -> pa.RecordBatch:
    return rows if is_chosen.all() else rows.filter(pa.array(is_chosen))


def _is_of(digests: "Longs", share: Share) -> "Mask":
    is_mine: Mask = digests & share.mask == share.bits
    return is_mine


def _is_in(digests: "Longs", chosen: "Longs") -> "Mask":
    """Return whether each digest is one of `chosen`, which is not empty and in ascending order."""
    at = np.minimum(np.searchsorted(chosen, digests), len(chosen) - 1)
    is_chosen: Mask = chosen[at] == digests
    return is_chosen
