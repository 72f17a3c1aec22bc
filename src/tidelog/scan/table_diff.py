"""What changed in a topic's table between two times: keys added, changed and deleted.

Both tables are folded in one reading (`tables.fold_keys` with two sides); the rows of the keys that
differ are read then. A key is changed where its value has other bytes; one that was written again
with the same value is not. Memory holds a partition's keys, and the rows that differ.

Columns:

| column | type | what |
|---|---|---|
| change | string | added, changed or deleted |
| topic, partition, key | string, int32, binary | which key |
| before, after | binary | its values; null where it was not in the table |
| beforeOffset, afterOffset | int64 | of the records that won; of a deletion the tombstone's |
| beforeTimestamp, afterTimestamp | timestamp(ms, UTC) | their times on the asked clock |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.record.columns import ROWS, TIME
from tidelog.scan.tables import (
    TIME_COLUMNS,
    KeyFold,
    RowSource,
    TableStats,
    fold_keys,
    rows_at,
)
from tidelog.scan.winners import Winners
from tidelog.types import ClockName

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Longs
    from tidelog.scan.split import Split

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
    """Keys whose winners differ.

    Attributes:
        before: Offsets of the first table's records, -1 where the key was not in it.
        after: Offsets of what won last; of a deletion the tombstone's.
        is_deleted: Whether that is a tombstone.
    """

    before: "Longs"
    after: "Longs"
    is_deleted: "npt.NDArray[np.bool_]"


def diff_rows(
    source: RowSource,
    splits: "Sequence[Split]",
    how: KeyFold,
    before_ms: int,
    stats: TableStats,
) -> Iterator[pa.RecordBatch]:
    """The keys of one partition that differ, by the offset of what changed them.

    Args:
        source: Reads the splits.
        splits: All records of the partition up to the later time.
        how: The rule.
        before_ms: The earlier time, inclusive.
        stats: Counted up on the way.

    Raises:
        As `tables.table_rows`.
    """
    for winners in fold_keys(source, splits, how, stats, before_ms=before_ms):
        stats.keys += winners.count
        stats.deleted += winners.count - int(winners.living(1).sum())
        differing = _differing(winners)
        offsets = np.unique(np.concatenate([differing.before, differing.after]))
        rows = _rows(source, splits, offsets[offsets >= 0], how.clock, stats)
        if len(differing.after):
            found = _joined(splits[0], rows, differing)
            yield from found.to_batches(max_chunksize=ROWS)


def _differing(winners: Winners) -> _Differing:
    lived, lives = winners.living(0), winners.living(1)
    before, after = winners.offsets(0), winners.offsets(1)
    is_wanted = (lived != lives) | (lived & (before != after))
    at = np.flatnonzero(is_wanted)
    at = at[np.argsort(after[at])]
    return _Differing(np.where(lived[at], before[at], -1), after[at], ~lives[at])


def _rows(
    source: RowSource,
    splits: "Sequence[Split]",
    offsets: "Longs",
    clock: ClockName,
    stats: TableStats,
) -> pa.Table:
    """The rows of these offsets, in their order."""
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


def _joined(split: "Split", rows: pa.Table, found: _Differing) -> pa.Table:
    offsets = np.asarray(rows["offset"])
    before = _taken(rows, offsets, found.before)
    after = _taken(rows, offsets, found.after)
    had = found.before >= 0
    names = np.where(found.is_deleted, DELETED, np.where(had, CHANGED, ADDED))
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


def _taken(rows: pa.Table, offsets: "Longs", wanted: "Longs") -> pa.Table:
    """The rows of the offsets wanted; nulls for -1."""
    at = np.searchsorted(offsets, wanted)
    return rows.take(pa.array(at, pa.int64(), mask=wanted < 0))
