"""A topic as a table at a time (the winning record of each key), and the changes between two times.

Records up to and including the time are ranked by the topic's compaction rule: highest offset,
record timestamp, or version in a header. A key whose winner is a tombstone is not in the table;
records without a key are ignored. Keys of different partitions count as different keys. So a key in
two partitions has two rows, as in a compacted topic. Records of aborted and open transactions are
ignored.

The log is usually read twice: the first pass folds records to the winner of each key (`winners`),
and the second pass returns the winners' rows. So all keys are in memory, but only the values of a
few rows at a time. Reading a table writes nothing and takes no lock.

To compute the difference of two tables, one pass folds both tables, and a second pass reads the
rows of the keys whose winners differ. Keys whose values have the same bytes at both times are left
out. The keys of one partition, and the rows of its keys with different winners, are in memory.
Columns:

| column | type | content |
|---|---|---|
| change | string | added, changed or deleted |
| topic, partition, key | string, int32, binary | the key |
| before, after | binary | the key's values; null if the key is not in that table |
| beforeOffset, afterOffset | int64 | the winners' offsets; a deleted key's winner is a tombstone |
| beforeTimestamp, afterTimestamp | timestamp(ms, UTC) | the winning records' times on the clock |

Imports numpy and pyarrow. Source: KIP-280; docs/tables.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.amounts import verb
from tidelog.errors import LostOffsets, OffsetsGone
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.column_builders import TIME
from tidelog.record.columns.decode import ROWS
from tidelog.scan.split import ScanStats
from tidelog.scan.table_rules import MISSING_VERSION, Ranking, Strategy
from tidelog.scan.winners import ALL_KEYS, MEMORY_BYTES, Candidates, LatestByKey, new_secret
from tidelog.types import NO_TIMESTAMP, ClockName

if TYPE_CHECKING:
    import random

    import numpy.typing as npt

    from tidelog.record.kernels.memory import Longs
    from tidelog.scan.source import RecordSource
    from tidelog.scan.split import Split

    Column = pa.Array[pa.Scalar[pa.DataType]]
    Mask = npt.NDArray[np.bool_]


TIME_COLUMNS: Final = {ClockName.RECORD: "timestamp", ClockName.APPEND: "appendTimestamp"}
_VERSION_SIZE: Final = 8


@dataclass(slots=True, kw_only=True)
class TableStats:
    """Statistics of a table; complete after all its rows were returned.

    Attributes:
        scan: Statistics of all reads.
        keys: Keys that have a record.
        deleted: Keys whose winner is a tombstone.
        without_key: Records without a key. These records are in no table.
        without_time: Records without a time on the chosen clock. A table as of a time does not
            contain these records.
        readings: Number of passes over the records to fold keys; more than 1 if the keys exceed the
            memory limit.
    """

    scan: ScanStats = field(default_factory=ScanStats)
    keys: int = 0
    deleted: int = 0
    without_key: int = 0
    without_time: int = 0
    readings: int = 0

    def add(self, other: Self) -> None:
        """Add the statistics of another table."""
        self.scan.add(other.scan)
        self.keys += other.keys
        self.deleted += other.deleted
        self.without_key += other.without_key
        self.without_time += other.without_time
        self.readings += other.readings


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFold:
    """Parameters for folding a partition's keys.

    Attributes:
        ranking: Rule for the winning record of a key.
        clock: Clock of the table's time.
        random: Source of the hash function's secret.
        memory_bytes: Approximate limit for a map of keys.
    """

    ranking: Ranking
    clock: ClockName
    random: "random.Random"
    memory_bytes: int = MEMORY_BYTES

    def columns(self, *, with_times: bool) -> tuple[str, ...]:
        """Return the columns that are needed to rank a record."""
        names = ["key", "value", "offset"]
        if self.ranking.strategy is Strategy.TIMESTAMP:
            names.append("timestamp")
        if self.ranking.strategy is Strategy.HEADER:
            names.append("headers")
        time = TIME_COLUMNS[self.clock]
        if with_times and time not in names:
            names.append(time)
        return tuple(names)


def table_rows(
    source: "RecordSource",
    splits: "Sequence[Split]",
    columns: Sequence[str],
    how: KeyFold,
    stats: TableStats,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition's table; ordered by offset if the keys fit in memory.

    Args:
        source: Reads the splits.
        splits: Splits with all records of the partition up to and including the requested time, and
            with no other records.
        columns: Names from `tidelog.scan.ALL_COLUMNS`.
        how: Parameters of the fold.
        stats: Updated while reading.

    Raises:
        OffsetsGone: Winners were compacted or deleted between the two reads.
        The errors of `tidelog.scan.read`.
    """
    for winners in fold_keys(source, splits, how, stats):
        living = winners.living()
        stats.keys += winners.count
        stats.deleted += winners.count - int(living.sum())
        yield from rows_at(source, splits, np.sort(winners.offsets()[living]), columns, stats)


def split_winners(
    source: "RecordSource",
    splits: "Sequence[Split]",
    columns: Sequence[str],
    how: KeyFold,
    stats: TableStats,
) -> Iterator[pa.RecordBatch]:
    """Yield the winning record of each key in some splits, including tombstones.

    The winners of several groups of splits can be combined. Arguments and errors are the same as
    for `table_rows`.

    Returns:
        The columns, followed by `version`, int64. If several groups of splits of a partition have a
        winner for a key, the winner with the highest (version, offset) is the key's winner.
    """
    needed = tuple(dict.fromkeys((*columns, *how.columns(with_times=False))))
    for winners in fold_keys(source, splits, how, stats):
        stats.keys += winners.count
        for batch in rows_at(source, splits, np.sort(winners.offsets()), needed, stats):
            chosen = batch.select(list(columns))
            versions = pa.array(_versions(batch, how.ranking), pa.int64())
            yield chosen.append_column("version", versions)


def fold_keys(
    source: "RecordSource",
    splits: "Sequence[Split]",
    how: KeyFold,
    stats: TableStats,
    *,
    before_ms: int | None = None,
) -> Iterator[LatestByKey]:
    """Yield the winners of all keys, one share of the keys at a time.

    Usually one share contains all keys.

    Args:
        source: Reads the splits.
        splits: The records.
        how: Parameters of the fold.
        stats: Updated while reading.
        before_ms: If given, the winners have two sides: side 0 has only records with a time up to
            `before_ms`, inclusive; side 1 has all records.
    """
    secret = new_secret(how.random)
    columns = how.columns(with_times=before_ms is not None)
    sides = 1 if before_ms is None else 2
    shares = [ALL_KEYS]
    while shares:
        winners = LatestByKey(secret, shares.pop(), sides=sides, memory_bytes=how.memory_bytes)
        is_first = not stats.readings
        without_time = stats.scan.without_time
        stats.readings += 1
        without_key = 0
        for batch in source.read(splits, columns, stats=stats.scan):
            if not batch.num_rows:
                continue
            without_key += batch.column("key").null_count
            if before_ms is not None:
                # The reader counts records without a time only if the time range has an end.
                # Otherwise it returns these records, and they are counted here.
                without_time -= batch.column(TIME_COLUMNS[how.clock]).null_count
            winners.fold(_candidates(batch, how, before_ms))
        if is_first:
            stats.without_key = without_key
            stats.without_time = stats.scan.without_time - without_time
        shares += winners.left
        yield winners


def _candidates(batch: pa.RecordBatch, how: KeyFold, before_ms: int | None) -> Candidates:
    offsets = np.asarray(batch.column("offset"))
    sides = np.ones(len(offsets), np.uint8)
    if before_ms is not None:
        times = _milliseconds(batch.column(TIME_COLUMNS[how.clock]))
        is_before = (times <= before_ms) & (times != NO_TIMESTAMP)
        sides = np.where(is_before, np.uint8(3), np.uint8(2))
    return Candidates(
        keys=batch.column("key"),
        versions=_versions(batch, how.ranking),
        offsets=offsets,
        is_dead=np.asarray(batch.column("value").is_null()),
        sides=sides,
    )


def _milliseconds(times: "Column") -> "Longs":
    """Return times in ms, -1 for null."""
    numbers: Longs = np.asarray(times.cast(pa.int64()).fill_null(NO_TIMESTAMP))
    return numbers


def _versions(batch: pa.RecordBatch, ranking: Ranking) -> "Longs":
    if ranking.strategy is Strategy.TIMESTAMP:
        return _milliseconds(batch.column("timestamp"))
    if ranking.strategy is Strategy.HEADER:
        return header_versions(batch.column("headers"), ranking.header)
    return np.zeros(batch.num_rows, np.int64)


def header_versions(headers: "Column", name: str) -> "Longs":
    """Return each record's version from its last header `name`; `MISSING_VERSION` if it has none.

    A version must have 8 bytes, a big-endian int64; other values count as missing. Source: KIP-280.
    """
    assert isinstance(headers, pa.ListArray)
    versions = np.full(len(headers), MISSING_VERSION, np.int64)
    pairs = headers.flatten()
    assert isinstance(pairs, pa.StructArray)
    is_named = pc.equal(pairs.field("key"), pa.scalar(name, pa.string()))
    at = np.flatnonzero(np.asarray(is_named))
    if not len(at):
        return versions
    records = np.repeat(np.arange(len(headers)), np.diff(np.asarray(headers.offsets)))[at]
    is_last = np.append(records[1:] != records[:-1], True)
    at, records = at[is_last], records[is_last]
    values: list[bytes | None] = [cell.as_py() for cell in pairs.field("value").take(pa.array(at))]
    is_version = np.array([value is not None and len(value) == _VERSION_SIZE for value in values])
    whole = [value for value in values if value is not None and len(value) == _VERSION_SIZE]
    own_versions = np.frombuffer(b"".join(whole), ">i8")
    # As in compaction, even the smallest version ranks above a missing version.
    versions[records[is_version]] = np.maximum(own_versions, MISSING_VERSION + 1)
    return versions


def rows_at(
    source: "RecordSource",
    splits: "Sequence[Split]",
    offsets: "Longs",
    columns: Sequence[str],
    stats: TableStats,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows at these offsets, in ascending order.

    Raises:
        OffsetsGone: Some of the records were compacted or deleted meanwhile; the rows of all other
            offsets were yielded.
    """
    if not len(offsets):
        return
    needed = tuple(columns) if "offset" in columns else (*columns, "offset")
    starts = np.searchsorted(offsets, [split.start_offset for split in splits])
    ends = np.searchsorted(offsets, [split.end_offset for split in splits])
    # Each split is limited to the needed offsets. This saves reading, above all from a broker.
    needed_splits = [
        replace(
            split,
            start_offset=max(split.start_offset, int(offsets[few])),
            end_offset=min(split.end_offset, int(offsets[many - 1]) + 1),
        )
        for split, few, many in zip(splits, starts, ends, strict=True)
        if few < many
    ]
    is_present = np.zeros(len(offsets), np.bool_)
    for batch in source.read(needed_splits, needed, stats=stats.scan):
        rows = np.asarray(batch.column("offset"))
        at = np.minimum(np.searchsorted(offsets, rows), len(offsets) - 1)
        is_match = offsets[at] == rows
        is_present[at[is_match]] = True
        if is_match.any():
            chosen = batch if is_match.all() else batch.filter(pa.array(is_match))
            yield chosen.select(list(columns))
    if not is_present.all():
        _raise_missing(splits[0], offsets[~is_present])


def _raise_missing(split: "Split", missing: "Longs") -> None:
    records = f"{len(missing):,} of these records {verb(len(missing), 'was', 'were')}"
    reason = f"{records} compacted or deleted while they were read; read again"
    first, end = int(missing[0]), int(missing[-1]) + 1
    raise OffsetsGone((LostOffsets(split.topic, split.partition, first, end, reason),))


ADDED: Final = "added"
CHANGED: Final = "changed"
DELETED: Final = "deleted"

_KINDS: Final[dict[str, pa.DataType]] = {
    "change": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "key": pa.binary(),
    "before": pa.binary(),
    "after": pa.binary(),
    "beforeOffset": pa.int64(),
    "afterOffset": pa.int64(),
    "beforeTimestamp": TIME,
    "afterTimestamp": TIME,
}

DIFF_SCHEMA: Final = pa.schema(_KINDS)


@dataclass(frozen=True, slots=True)
class _Differing:
    """Keys whose winners differ between two times.

    Attributes:
        before: Offset of the key's record in the first table, -1 if the key was not in that table.
        after: Offset of the second table's winner, which can be a tombstone.
        is_deleted: Whether the second table's winner is a tombstone.
    """

    before: "Longs"
    after: "Longs"
    is_deleted: "npt.NDArray[np.bool_]"


def diff_rows(
    source: "RecordSource",
    splits: "Sequence[Split]",
    how: KeyFold,
    before_ms: int,
    stats: TableStats,
) -> Iterator[pa.RecordBatch]:
    """Yield a partition's changed keys; ordered by `afterOffset` if the keys fit in memory.

    Args:
        source: Reads the splits.
        splits: Splits with all records of the partition up to and including the later time.
        how: Parameters of the fold.
        before_ms: The earlier time, inclusive.
        stats: Updated while reading.

    Raises:
        The errors of `table_rows`.
    """
    for winners in fold_keys(source, splits, how, stats, before_ms=before_ms):
        stats.keys += winners.count
        stats.deleted += winners.count - int(winners.living(1).sum())
        differing = _differing(winners)
        offsets = np.unique(np.concatenate([differing.before, differing.after]))
        rows = _rows(source, splits, offsets[offsets >= 0], how.clock, stats)
        if len(differing.after):
            joined = _joined(splits[0], rows, differing)
            yield from joined.to_batches(max_chunksize=ROWS)


def _differing(winners: LatestByKey) -> _Differing:
    lived, lives = winners.living(0), winners.living(1)
    before, after = winners.offsets(0), winners.offsets(1)
    is_changed = (lived != lives) | (lived & (before != after))
    at = np.flatnonzero(is_changed)
    at = at[np.argsort(after[at])]
    return _Differing(np.where(lived[at], before[at], -1), after[at], ~lives[at])


def _rows(
    source: "RecordSource",
    splits: "Sequence[Split]",
    offsets: "Longs",
    clock: ClockName,
    stats: TableStats,
) -> pa.Table:
    """Return the rows of these offsets, in order of offsets."""
    columns = ("offset", "key", "value", TIME_COLUMNS[clock])
    batches = list(rows_at(source, splits, offsets, columns, stats))
    if not batches:
        return pa.table({name: pa.array([], kind) for name, kind in _EMPTY.items()})
    return pa.Table.from_batches(batches).rename_columns(list(_EMPTY))


_EMPTY: Final[dict[str, pa.DataType]] = {
    "offset": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "time": TIME,
}


def _joined(split: "Split", rows: pa.Table, differing: _Differing) -> pa.Table:
    offsets = np.asarray(rows["offset"])
    before = _select_rows(rows, offsets, differing.before)
    after = _select_rows(rows, offsets, differing.after)
    had = differing.before >= 0
    names = np.where(differing.is_deleted, DELETED, np.where(had, CHANGED, ADDED))
    table = pa.table(
        [
            pa.array(names, pa.string()),
            pa.repeat(pa.scalar(split.topic, pa.string()), len(names)),
            pa.repeat(pa.scalar(split.partition, pa.int32()), len(names)),
            after["key"],
            before["value"],
            after["value"],
            before["offset"],
            after["offset"],
            before["time"],
            after["time"],
        ],
        schema=DIFF_SCHEMA,
    )
    is_same = np.asarray(pc.equal(table["before"], table["after"]).fill_null(False))
    return table.filter(pa.array(~is_same))


def _select_rows(rows: pa.Table, offsets: "Longs", row_offsets: "Longs") -> pa.Table:
    """Return the rows of the given offsets, with nulls for -1."""
    at = np.searchsorted(offsets, row_offsets)
    return rows.take(pa.array(at, pa.int64(), mask=row_offsets < 0))
