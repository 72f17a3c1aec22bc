"""What the headers of fetched batches tell: how far they reach, which of them were aborted.

Cluster fetches bytes; how they are to be read is said here.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.record.batch import RecordBatch
from tidelog.record.header import CONTROL_BIT
from tidelog.record.kernels import layout
from tidelog.record.kernels.scan import scan_batches
from tidelog.record.offset_order import ANY_OFFSETS, Reach
from tidelog.record.record import ControlType
from tidelog.types import INT64_MAX, Buffer

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

_BATCHES: Final = 4096


def reach(data: Buffer) -> Reach | None:
    """Do what `offset_order.reach_of` does."""
    found: Reach | None = None
    for table in _tables(data):
        before = None if found is None else found.next_offset
        if len(table) > 1:
            before = int(table[-2, layout.LAST_OFFSET]) + 1
        last = table[-1].tolist()
        found = Reach(last[layout.LAST_OFFSET] + 1, last[layout.POSITION], before)
    return found


def aborted_spans(
    data: Buffer, aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Producer id, first and last offset of each aborted transaction, as far as `data` shows it.

    A broker names transactions by their first offset; where each ends its marker says. One whose
    marker is not in there goes on behind it.

    Args:
        data: Whole batches, the last one perhaps cut.
        aborted: Producer id and first offset of each.

    Raises:
        CorruptData: A marker can't be read.
    """
    markers = list(_abort_markers(data))
    for producer_id, first in aborted:
        ends = (offset for owner, offset in markers if owner == producer_id and offset >= first)
        yield producer_id, first, next(ends, INT64_MAX)


def _abort_markers(data: Buffer) -> Iterator[tuple[int, int]]:
    """Producer id and offset of each marker that ends an aborted transaction, in order."""
    for table in _tables(data):
        for row in table[table[:, layout.ATTRIBUTES] & CONTROL_BIT != 0]:
            batch = RecordBatch(data, int(row[layout.POSITION]))
            if batch.control_type() is ControlType.ABORT:
                yield int(row[layout.PRODUCER_ID]), int(row[layout.LAST_OFFSET])


def _tables(data: Buffer) -> "Iterator[Longs]":
    """Batch tables of all whole batches, up to the first that is cut, damaged or out of order."""
    log = np.frombuffer(data, np.uint8)
    log.flags.writeable = False
    at, status, between = 0, layout.FULL, ANY_OFFSETS
    while status == layout.FULL:
        table = np.empty((_BATCHES, layout.BATCH_FIELDS), np.int64)
        count, at, status = scan_batches(log, at, log.size, table, *between)
        if count:
            between = int(table[count - 1, layout.LAST_OFFSET]) + 1, INT64_MAX
            yield table[:count]
