"""From bytes to batch tables: the walk, the checksums, and which batches need no opening.

Checksums come first: what is left out is left out because of a header whose CRC was right.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.errors import CorruptBatch
from tidelog.record.coding import crc32c_spans
from tidelog.record.header import ATTRIBUTES_AT, CONTROL_BIT, MAGIC_2, TIMESTAMP_TYPE_BIT
from tidelog.record.kernels import layout
from tidelog.record.kernels.reasons import REASONS
from tidelog.record.kernels.scan import scan_batches
from tidelog.types import INT64_MAX, NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs

    Mask = npt.NDArray[np.bool_]

# Headers to walk over at a time: many, since their table is small against the bytes that they head.
SCAN_BATCHES: Final = 4096
# Bytes to sum and decode at a time: what was read for the checksum is then still in a cache. Every
# group costs about 0.1 ms in Python, so that small ones are dearer than a cache missed.
GROUP_BYTES: Final = 4 << 20

DropBatch = Callable[["Longs"], "Mask"]


@dataclass(slots=True, kw_only=True)
class DecodeStats:
    """What a decode has met so far; complete when its iterator is through.

    Attributes:
        batches: Batches walked over.
        batches_opened: Those whose records were looked at.
        rows: Rows handed out.
        without_time: Records inside the offset range that have no time, met under a time range.
            Batches in which nothing can match are not opened: their records don't count.
        end_at: Place behind the last batch walked over. Short of the buffer's end where that cuts
            a batch.
        next_offset: Offset behind that batch; -1 where none was walked over.
    """

    batches: int = 0
    batches_opened: int = 0
    rows: int = 0
    without_time: int = 0
    end_at: int = 0
    next_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which records to take; see `decode`."""

    offset_start: int = 0
    offset_end: int = INT64_MAX
    record_time: tuple[int, int] | None = None
    opens_all: bool = False
    include_control: bool = False
    drop_batch: DropBatch | None = None


def groups(
    log: "Bytes", selection: Selection, stats: DecodeStats, *, check_crc: bool, rows: int
) -> Iterator["Longs"]:
    """Tables of the batches to open, in order; see `kernels.layout` for their columns.

    A group comes from about `GROUP_BYTES` and no more than `rows` records, but at least one batch.

    Raises:
        CorruptBatch: A frame or a checksum is wrong; the batches before it were handed out.
    """
    at, end, status = 0, log.size, layout.FULL
    while status == layout.FULL:
        table = np.empty((SCAN_BATCHES, layout.BATCH_FIELDS), np.int64)
        count, at, status = scan_batches(log, at, end, table)
        for group in _cut(table[:count], rows):
            error = _first_bad_sum(log, group) if check_crc else None
            sound = group if error is None else group[group[:, layout.POSITION] < (error.at or 0)]
            mask = _select(sound, selection)
            wanted = sound if mask.all() else sound[mask]
            stats.batches += len(sound)
            stats.batches_opened += len(wanted)
            if len(sound):
                stats.end_at = int(sound[-1, layout.POSITION] + sound[-1, layout.SIZE])
                stats.next_offset = int(sound[-1, layout.LAST_OFFSET]) + 1
            if len(wanted):
                yield wanted
            if error is not None:
                raise error
    if status not in (layout.DONE, layout.PARTIAL):
        raise CorruptBatch(REASONS[status], at=at)


def _cut(table: "Longs", rows: int) -> Iterator["Longs"]:
    """Cut a table into groups; a batch that is larger than a group is one of its own."""
    sizes = np.cumsum(table[:, layout.SIZE])
    counts = np.cumsum(np.maximum(table[:, layout.RECORD_COUNT], 1))
    start = size = count = 0
    while start < len(table):
        by_size = np.searchsorted(sizes, size + GROUP_BYTES, side="right")
        by_count = np.searchsorted(counts, count + rows, side="right")
        end = max(int(min(by_size, by_count)), start + 1)
        yield table[start:end]
        start, size, count = end, sizes[end - 1], counts[end - 1]


def _first_bad_sum(log: "Bytes", table: "Longs") -> CorruptBatch | None:
    """The first magic-2 batch whose CRC is wrong; legacy ones check theirs when they are opened."""
    is_current = table[:, layout.MAGIC] == MAGIC_2
    rows = table if is_current.all() else table[is_current]
    starts = (rows[:, layout.POSITION] + ATTRIBUTES_AT).tolist()
    ends = rows[:, layout.BODY_END].tolist()
    sums = crc32c_spans(log.data, starts, ends)
    expected = rows[:, layout.CRC].tolist()
    if sums == expected:
        return None
    slot = next(at for at, computed in enumerate(sums) if computed != expected[at])
    reason = f"CRC-32C is {sums[slot]:#010x}, the header says {expected[slot]:#010x}"
    at, offset = rows[slot, layout.POSITION], rows[slot, layout.BASE_OFFSET]
    return CorruptBatch(reason, at=int(at), offset=int(offset))


def _select(table: "Longs", selection: Selection) -> "Mask":
    """Which batches may hold rows that were asked for; of a legacy one only the frame is known."""
    wanted = table[:, layout.LAST_OFFSET] >= selection.offset_start
    wanted &= table[:, layout.BASE_OFFSET] < selection.offset_end
    if not selection.include_control:
        wanted &= table[:, layout.ATTRIBUTES] & CONTROL_BIT == 0
    if selection.record_time is not None and not selection.opens_all:
        wanted &= _may_match(table, *selection.record_time)
    if selection.drop_batch is not None:
        wanted &= ~selection.drop_batch(table)
    return wanted


def _may_match(table: "Longs", start_ms: int, end_ms: int) -> "Mask":
    """Whether a batch can hold a time in [start_ms, end_ms), or may hold records without one."""
    largest = table[:, layout.MAX_TIMESTAMP]
    is_stamped = table[:, layout.ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    is_open = end_ms == INT64_MAX
    in_range = (largest >= start_ms) & (~is_stamped | (largest < end_ms) | is_open)
    found: Mask = in_range | (largest == NO_TIMESTAMP)
    return found
