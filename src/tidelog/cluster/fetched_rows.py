"""Rows from batches that a leader sent: decoded by column, filtered exactly, no object per record.

Equal to what `consumed_rows` makes of librdkafka's records, where that has the column.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidelog.cluster.partition_fetch import Fetched, PartitionFetch
from tidelog.errors import CorruptBatch, CorruptData
from tidelog.record.columns import ROWS, DecodeStats, decode
from tidelog.scan import Piece, ScanStats, Split
from tidelog.scan.fetched import aborted_spans
from tidelog.scan.filters import AbortedBatches, piece_filter
from tidelog.scan.rows import RowMaker
from tidelog.scan.split import AbortedSpan
from tidelog.types import ClockName

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

_APPEND_TIME: Final = "appendTimestamp"


def fetched(
    split: Split,
    columns: Sequence[str],
    fetch: PartitionFetch,
    stats: ScanStats,
    *,
    rows: int = ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of a split without pieces, as a scan has them.

    Args:
        split: What to read; its times are those of `split.clock`.
        columns: Names out of `tidelog.scan.ALL_COLUMNS`.
        fetch: The partition's leader; the caller closes it.
        stats: Counted up: bytes and rows, and records without a time.
        rows: Limit of rows in a record batch.

    Raises:
        OffsetOutOfRange: An offset is not in the log any more; everything before was yielded.
        UnknownTopic, ClusterFailure: As `PartitionFetch.parts`.
        CorruptData: A batch is damaged; everything before it was yielded.
    """
    maker = RowMaker(split, columns)
    # Times are those of `split.clock`: by append times the offsets are the range already, and only
    # the records among them that have none are left out.
    needs_time = split.clock is ClockName.APPEND and split.time_range is not None
    if needs_time:
        split = replace(split, time_range=None)
        maker = RowMaker(split, [*columns, *{_APPEND_TIME}.difference(columns)])
    if maker.needs_append_times:
        fetch.want_append_times()
    for part in fetch.parts(split.start_offset, split.end_offset):
        stats.log_bytes += len(part.data)
        for batch in _decoded(split, part, fetch, maker, stats, rows):
            made = maker.rows(batch)
            if needs_time:
                made = _with_times(made, stats).select(list(columns))
            stats.rows += made.num_rows
            yield made


def _with_times(batch: pa.RecordBatch, stats: ScanStats) -> pa.RecordBatch:
    """The rows whose append time is known; the others are counted."""
    times = batch.column(_APPEND_TIME)
    if not times.null_count:
        return batch
    stats.without_time += times.null_count
    return batch.filter(times.is_valid())


def _decoded(
    split: Split,
    part: Fetched,
    fetch: PartitionFetch,
    maker: RowMaker,
    stats: ScanStats,
    rows: int,
) -> Iterator[pa.RecordBatch]:
    """The decoder's columns of what one answer brought."""
    spans = [AbortedSpan(*span) for span in aborted_spans(part.data, part.aborted)]
    rest = replace(split, start_offset=part.offset)
    drop, unstamped = piece_filter(rest, _piece(rest), AbortedBatches(spans))
    found = DecodeStats()
    try:
        yield from decode(
            part.data,
            columns=maker.decoded,
            offset_start=part.offset,
            offset_end=split.end_offset,
            record_time=split.time_range if split.clock is ClockName.RECORD else None,
            append_times=_append_runs(part) if maker.needs_append_times else None,
            drop_batch=drop,
            between=part.between,
            rows=rows,
            stats=found,
        )
    except CorruptData as error:
        raise error.located(fetch.place, error.at or 0) from error
    if found.next_offset < part.next_offset:
        reason = f"ends at {found.next_offset}"
        raise CorruptBatch(reason, at=0, offset=part.offset).located(fetch.place, 0)
    stats.batches += found.batches
    stats.batches_opened += found.batches_opened
    stats.without_time += found.without_time
    if unstamped is not None:
        stats.without_time += unstamped.without_time


def _append_runs(part: Fetched) -> "tuple[Longs, Longs] | None":
    """First offsets and append times of the runs that the broker named, None where it named none.

    Nothing is believed of a broker that names them out of order.
    """
    rows = np.array(part.append_times, np.int64)
    if not len(rows) or len(rows) % 2:
        return None
    firsts, times = rows[0::2].copy(), rows[1::2].copy()
    return (firsts, times) if bool((np.diff(firsts) > 0).all()) else None


def _piece(split: Split) -> Piece:
    """What a filter wants to know: on the append clock only stamped batches can match."""
    return Piece(
        path="",
        identity="",
        is_closed=False,
        base_offset=split.start_offset,
        start_position=0,
        end_position=0,
        start_offset=split.start_offset,
        end_offset=split.end_offset,
        is_unknown=split.clock is ClockName.APPEND and split.time_range is not None,
    )
