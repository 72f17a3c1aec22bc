"""Runs the decoding kernel over groups of batches and makes Arrow record batches of what it fills.

Bodies that lie plainly in the log are decoded where they are. Where one of a group is compressed or
of magic 0 or 1, all are put side by side first (`bodies`): one kernel decodes everything.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptRecord
from tidelog.record.columns.arrays import (
    NO_BINARY,
    NO_LONGS,
    Chunk,
    build,
    new_array,
    new_binary,
    new_views,
)
from tidelog.record.columns.bodies import is_plain, join_bodies
from tidelog.record.columns.source import DecodeStats, Group, Selection, bad_sum
from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels import decode as progress_at
from tidelog.record.kernels import layout
from tidelog.record.kernels.checksums import shifts
from tidelog.record.kernels.counts import count_matches
from tidelog.record.kernels.decode import (
    COPIED,
    LEFT_OUT,
    VIEWED,
    Binary,
    Columns,
    Filter,
    decode_batches,
)
from tidelog.record.kernels.reasons import REASONS
from tidelog.record.kernels.times import mark_lost_creates

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Longs

# Room for the values of a chunk where one batch is larger; doubled where one record needs more.
_CAPACITY_BYTES: Final = 8 << 20


class Decoder:
    """What stays the same from group to group. Not for two threads at once."""

    def __init__(
        self,
        schema: pa.Schema,
        rows_limit: int,
        selection: Selection,
        append_times: tuple["Longs", "Longs"] | None,
        stats: DecodeStats,
    ) -> None:
        self._schema = schema
        self._columns = tuple(schema.names)
        self._rows_limit = rows_limit
        self._append_times = append_times
        self._stats = stats
        self._headers_at = np.empty(0, np.int64)  # used again, since no batch keeps them
        self._filter = filter_of(
            selection, keys=_mode(schema, "key"), values=_mode(schema, "value")
        )

    def decode(self, log: "Bytes", group: Group, *, check_crc: bool) -> Iterator[pa.RecordBatch]:
        """The rows of a group's batches.

        Raises:
            CorruptBatch: A batch does not decompress, or a checksum is wrong.
            CorruptRecord: A record breaks a rule; the rows before it were handed out.
            UnsupportedCompression: A codec that nobody defined.
        """
        table = group.table
        if not group.is_checked:
            yield from self._decode_group(log, table, shifts(), is_joined=False)
        elif is_plain(table).all():
            yield from self._decode_group(log, table, NO_LONGS, is_joined=False)
        else:
            for data, rows in join_bodies(log, table, check_crc=check_crc):
                yield from self._decode_group(data, rows, NO_LONGS, is_joined=True)

    def _decode_group(
        self, data: "Bytes", table: "Longs", sums: "Longs", *, is_joined: bool
    ) -> Iterator[pa.RecordBatch]:
        if "createTimestamp" in self._columns:
            mark_lost_creates(data, table)
        progress = np.zeros(progress_at.PROGRESS_FIELDS, np.int64)
        progress[progress_at.AT] = progress_at.UNOPENED
        capacity = _CAPACITY_BYTES
        status, at = layout.FULL, 0
        while status == layout.FULL:
            first = int(progress[progress_at.BATCH])
            progress[progress_at.ROWS :] = 0
            out = self._allocate(table, first, capacity)
            status, at = decode_batches(data, table, self._filter, out, progress, sums)
            self._stats.without_time += int(progress[progress_at.WITHOUT_TIME])
            rows = int(progress[progress_at.ROWS])
            if rows:
                yield self._record_batch(data, table, out, first, progress)
            elif status == layout.FULL:
                capacity *= 2
        slot = int(progress[progress_at.BATCH])
        if sums.size:
            self._stats.add(table[:slot], slot)
        if status == layout.BAD_SUM:
            raise bad_sum(table[slot], at)
        if status != layout.DONE:
            raise corrupt(status, at, table[slot], is_joined=is_joined)

    def _allocate(self, table: "Longs", first: int, capacity: int) -> Columns:
        """Empty columns for the batches from `first` on."""
        rest = table[first:]
        left = int(rest[-1, layout.BODY_END] - rest[0, layout.BODY_START])
        rows = int(np.minimum(np.maximum(rest[:, layout.RECORD_COUNT], 0).sum(), self._rows_limit))
        size = min(left, capacity)
        has_creates = "createTimestamp" in self._columns
        creates = new_array(np.int64, rows) if has_creates else NO_LONGS
        timestamps = NO_LONGS
        if "timestamp" in self._columns:
            has_other_times = (rest[:, layout.ATTRIBUTES] & TIMESTAMP_TYPE_BIT).any()
            is_own = has_other_times or not has_creates
            timestamps = new_array(np.int64, rows) if is_own else creates
        return Columns(
            offsets=new_array(np.int64, rows),
            timestamps=timestamps,
            creates=creates,
            headers_at=self._header_places(rows),
            rows_end=np.empty(len(table), np.int64),
            key=_new_column(self._filter.keys, rows, size),
            value=_new_column(self._filter.values, rows, size),
        )

    def _header_places(self, rows: int) -> "Longs":
        if "headers" not in self._columns:
            return NO_LONGS
        if len(self._headers_at) < rows:
            self._headers_at = np.empty(rows, np.int64)
        return self._headers_at[:rows]

    def _record_batch(
        self, data: "Bytes", table: "Longs", out: Columns, first: int, progress: "Longs"
    ) -> pa.RecordBatch:
        """The kernel's columns as Arrow arrays."""
        rows = int(progress[progress_at.ROWS])
        last = min(int(progress[progress_at.BATCH]), len(table) - 1)
        batches = table[first : last + 1]
        chunk = Chunk(
            data=data,
            start=int(table[0, layout.BODY_START]),
            end=int(batches[-1, layout.BODY_END]),
            rows=rows,
            table=batches,
            rows_end=out.rows_end[first : last + 1],
            filled=out,
            progress=progress.tolist(),
            append_times=self._append_times,
        )
        self._stats.rows += rows
        arrays = [build(name, chunk) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def count_rows(
    log: "Bytes", table: "Longs", selection: Selection, stats: DecodeStats, *, check_crc: bool
) -> None:
    """Count the rows of a table's batches that a selection takes; errors as `Decoder.decode`."""
    wanted = filter_of(selection)
    is_joined = not is_plain(table).all()
    parts = join_bodies(log, table, check_crc=check_crc) if is_joined else ((log, table),)
    for data, batches in parts:
        taken, without_time, status, at = count_matches(data, batches, wanted)
        stats.rows += taken
        stats.without_time += without_time
        if status != layout.DONE:
            raise corrupt(status, at, _batch_at(batches, at), is_joined=is_joined)


def filter_of(selection: Selection, *, keys: int = LEFT_OUT, values: int = LEFT_OUT) -> Filter:
    """The selection as kernels take it."""
    time_start, time_end = selection.record_time or (0, 0)
    return Filter(
        offset_start=selection.offset_start,
        offset_end=selection.offset_end,
        by_time=int(selection.record_time is not None),
        time_start=time_start,
        time_end=time_end,
        keys=keys,
        values=values,
    )


def _mode(schema: pa.Schema, column: str) -> int:
    """What the kernel makes of keys, or of values."""
    if column not in schema.names:
        return LEFT_OUT
    return VIEWED if pa.types.is_binary_view(schema.field(column).type) else COPIED


def _new_column(mode: int, rows: int, capacity: int) -> Binary:
    if mode == LEFT_OUT:
        return NO_BINARY
    return new_views(rows) if mode == VIEWED else new_binary(rows, capacity)


def _batch_at(table: "Longs", at: int) -> "Longs":
    """The batch in whose body a place lies."""
    slot = int(np.searchsorted(table[:, layout.BODY_START], at, side="right")) - 1
    found: Longs = table[max(slot, 0)]
    return found


def corrupt(status: int, at: int, batch: "Longs", *, is_joined: bool) -> CorruptRecord:
    """The error with its place in the log."""
    reason, offset = REASONS[status], int(batch[layout.BASE_OFFSET])
    if not is_joined:
        return CorruptRecord(reason, at=at, offset=offset)
    place = at - int(batch[layout.BODY_START])
    reason = f"{reason} (byte {place} of the decompressed records)"
    return CorruptRecord(reason, at=int(batch[layout.POSITION]), offset=offset)
