"""Groups of batches for a kernel that takes their records where they lie, and makes no columns.

As in `decoder`, bodies that are compressed or of magic 0 or 1 are put side by side first.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from tidelog.record.columns.arrays import NO_LONGS
from tidelog.record.columns.bodies import is_plain, join_bodies
from tidelog.record.columns.decoder import corrupt, filter_of
from tidelog.record.columns.source import DecodeStats, Group, Selection, bad_sum
from tidelog.record.kernels import decode as progress_at
from tidelog.record.kernels import layout
from tidelog.record.kernels.checksums import shifts
from tidelog.record.kernels.times import mark_lost_creates

if TYPE_CHECKING:
    from tidelog.record.kernels.decode import Filter
    from tidelog.record.kernels.memory import Bytes, Longs


class Fold(Protocol):
    """Who takes records."""

    @property
    def end_offset(self) -> int:
        """The offset behind the last record taken, 0 where there was none."""
        ...

    def fold(
        self, data: "Bytes", table: "Longs", wanted: "Filter", sums: "Longs", progress: "Longs"
    ) -> tuple[int, int]:
        """Take the records of batches until they are through, or one is damaged.

        Arguments and what comes back are those of `kernels.fold.fold_batches`, but never FULL.
        """
        ...


def fold_group(
    log: "Bytes",
    group: Group,
    selection: Selection,
    into: Fold,
    stats: DecodeStats,
    *,
    check_crc: bool,
) -> None:
    """Have the records of a group taken; errors as `Decoder.decode`, all before it is taken."""
    wanted = filter_of(selection)
    if not group.is_checked:
        _fold(log, group.table, wanted, shifts(), into, stats)
    elif is_plain(group.table).all():
        _fold(log, group.table, wanted, NO_LONGS, into, stats)
    else:
        for data, rows in join_bodies(log, group.table, check_crc=check_crc):
            _fold(data, rows, wanted, NO_LONGS, into, stats, is_joined=True)


def _fold(  # noqa: PLR0913 - see `fold_group`
    data: "Bytes",
    table: "Longs",
    wanted: "Filter",
    sums: "Longs",
    into: Fold,
    stats: DecodeStats,
    *,
    is_joined: bool = False,
) -> None:
    mark_lost_creates(data, table)
    progress = np.zeros(progress_at.PROGRESS_FIELDS, np.int64)
    progress[progress_at.AT] = progress_at.UNOPENED
    status, at = into.fold(data, table, wanted, sums, progress)
    assert status != layout.FULL
    stats.rows += int(progress[progress_at.ROWS])
    stats.without_time += int(progress[progress_at.WITHOUT_TIME])
    slot = int(progress[progress_at.BATCH])
    if sums.size:
        stats.add(table[:slot], slot)
    if status == layout.BAD_SUM:
        raise bad_sum(table[slot], at)
    if status != layout.DONE:
        raise corrupt(status, at, table[slot], is_joined=is_joined)
