"""Decodes log bytes to Arrow record batches, and reduces them to the last record of each key.

`batch_table` chooses batches, `tidelog.record.kernels` processes the records by the rules of
`tidelog.record.record`, and this module builds Arrow record batches from the result. If all batches
of a group are uncompressed and have magic 2, their bodies are decoded in place. Otherwise
`batch_table` first writes all bodies of the group to scratch buffers as uncompressed magic-2
bodies, so that the same kernel decodes them.

Only requested columns are computed; `column_builders` has the table of columns.

This module imports numpy, pyarrow and numba. Only one thread at a time may use an object of this
module.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    InvalidRequest,
    MissingDependency,
    TidelogError,
)
from tidelog.record.columns.batch_table import (
    EVERYTHING,
    DecodeStats,
    Group,
    Selection,
    bad_sum,
    groups,
    is_plain,
    join_bodies,
)
from tidelog.record.columns.column_builders import COLUMN_TYPES, Chunk, build
from tidelog.record.columns.page_reuse import NO_BINARY, NO_LONGS, new_array, new_binary, new_views
from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.kernels import last_records, layout
from tidelog.record.kernels import records as progress_at
from tidelog.record.kernels.checksums import shifts
from tidelog.record.kernels.layout import REASONS
from tidelog.record.kernels.records import (
    COPIED,
    LEFT_OUT,
    VIEWED,
    Binary,
    Columns,
    Filter,
    count_matches,
    decode_batches,
)
from tidelog.record.kernels.times import flag_overwritten_create_times
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import INT64_MAX, Buffer

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Longs


# A chunk has room for at most this number of bytes of keys, and for at most this number of bytes of
# values. If a single record needs more, the room is doubled until the record fits.
_CAPACITY_BYTES: Final = 8 << 20


class Decoder:
    """Decodes groups of batches to record batches. Only one thread at a time may use it."""

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
        self._drop_batch = selection.drop_batch
        self._stats = stats
        # This array is reused for each chunk, because no Arrow array refers to its memory.
        self._headers_at = np.empty(0, np.int64)
        self._filter = filter_of(
            selection, keys=_mode(schema, "key"), values=_mode(schema, "value")
        )

    def decode(self, log: "Bytes", group: Group, *, check_crc: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group's batches.

        Raises:
            CorruptBatch: A batch does not decompress, or a checksum is wrong.
            CorruptRecord: A record breaks a rule of the format; the rows before the record were
                yielded.
            UnsupportedCompression: The codec is undefined.
        """
        table = group.table
        if not group.is_checked:
            yield from self._decode_group(log, table, shifts(), is_joined=False)
        elif is_plain(table).all():
            yield from self._decode_group(log, table, NO_LONGS, is_joined=False)
        else:
            bodies = join_bodies(log, table, check_crc=check_crc, drop_batch=self._drop_batch)
            for data, rows in bodies:
                yield from self._decode_group(data, rows, NO_LONGS, is_joined=True)

    def _decode_group(
        self, data: "Bytes", table: "Longs", sums: "Longs", *, is_joined: bool
    ) -> Iterator[pa.RecordBatch]:
        if "createTimestamp" in self._columns:
            flag_overwritten_create_times(data, table)
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
        if status != layout.DONE:
            raise corrupt(status, at, table[slot], is_joined=is_joined)

    def _allocate(self, table: "Longs", first: int, capacity: int) -> Columns:
        """Allocate columns for the batches from `first` on."""
        rest = table[first:]
        remaining = int(rest[-1, layout.BODY_END] - rest[0, layout.BODY_START])
        rows = int(np.minimum(np.maximum(rest[:, layout.RECORD_COUNT], 0).sum(), self._rows_limit))
        size = min(remaining, capacity)
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
            headers_at=self._header_positions(rows),
            rows_end=np.empty(len(table), np.int64),
            key=_new_column(self._filter.keys, rows, size),
            value=_new_column(self._filter.values, rows, size),
        )

    def _header_positions(self, rows: int) -> "Longs":
        if "headers" not in self._columns:
            return NO_LONGS
        if len(self._headers_at) < rows:
            self._headers_at = np.empty(rows, np.int64)
        return self._headers_at[:rows]

    def _record_batch(
        self, data: "Bytes", table: "Longs", out: Columns, first: int, progress: "Longs"
    ) -> pa.RecordBatch:
        """Return the columns that the kernel has filled as an Arrow record batch."""
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
    """Count the selected rows of a table's batches in `stats`.

    Raises the errors of `Decoder.decode`.
    """
    row_filter = filter_of(selection)
    is_joined = not is_plain(table).all()
    drop = selection.drop_batch
    bodies = join_bodies(log, table, check_crc=check_crc, drop_batch=drop)
    for data, batches in bodies if is_joined else ((log, table),):
        matches, without_time, status, at = count_matches(data, batches, row_filter)
        stats.rows += matches
        stats.without_time += without_time
        if status != layout.DONE:
            raise corrupt(status, at, _batch_at(batches, at), is_joined=is_joined)


def filter_of(selection: Selection, *, keys: int = LEFT_OUT, values: int = LEFT_OUT) -> Filter:
    """Return the selection as the `Filter` of the kernels."""
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
    """Return the kernel's mode for the keys or the values: LEFT_OUT, COPIED or VIEWED."""
    if column not in schema.names:
        return LEFT_OUT
    return VIEWED if pa.types.is_binary_view(schema.field(column).type) else COPIED


def _new_column(mode: int, rows: int, capacity: int) -> Binary:
    if mode == LEFT_OUT:
        return NO_BINARY
    return new_views(rows) if mode == VIEWED else new_binary(rows, capacity)


def _batch_at(table: "Longs", at: int) -> "Longs":
    """Return the row of the table for the batch whose body contains the byte at `at`."""
    slot = int(np.searchsorted(table[:, layout.BODY_START], at, side="right")) - 1
    batch: Longs = table[max(slot, 0)]
    return batch


def corrupt(
    status: int, at: int, batch: "Longs", *, is_joined: bool
) -> CorruptBatch | CorruptRecord:
    """Return the error for a kernel's status, with the position of the damage in the log.

    With BAD_SUM, `at` is the checksum of the batch's bytes.
    """
    if status == layout.BAD_SUM:
        return bad_sum(batch, at)
    reason, offset = REASONS[status], int(batch[layout.BASE_OFFSET])
    if not is_joined:
        return CorruptRecord(reason, at=at, offset=offset)
    position = at - int(batch[layout.BODY_START])
    reason = f"{reason} (byte {position} of the decompressed records)"
    return CorruptRecord(reason, at=int(batch[layout.POSITION]), offset=offset)


class Fold(Protocol):
    """Consumer of records, for `fold`."""

    @property
    def end_offset(self) -> int:
        """Offset after the last record that was processed, 0 if no record was processed."""
        ...

    def fold(
        self, data: "Bytes", table: "Longs", rows: "Filter", sums: "Longs", progress: "Longs"
    ) -> tuple[int, int]:
        """Process the records of batches, in order, up to the first damaged record.

        Arguments and result are those of `kernels.key_rows.fold_batches`, with two differences:
        there is no argument `into`, and the status is never FULL.
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
    """Pass the records of a group to the kernel of `into`.

    Raises the errors of `Decoder.decode`. The records before the damage were processed.
    """
    row_filter = filter_of(selection)
    if not group.is_checked:
        _fold(log, group.table, row_filter, shifts(), into, stats)
    elif is_plain(group.table).all():
        _fold(log, group.table, row_filter, NO_LONGS, into, stats)
    else:
        drop = selection.drop_batch
        for data, rows in join_bodies(log, group.table, check_crc=check_crc, drop_batch=drop):
            _fold(data, rows, row_filter, NO_LONGS, into, stats, is_joined=True)


def _fold(  # noqa: PLR0913 - see `fold_group`
    data: "Bytes",
    table: "Longs",
    row_filter: "Filter",
    sums: "Longs",
    into: Fold,
    stats: DecodeStats,
    *,
    is_joined: bool = False,
) -> None:
    flag_overwritten_create_times(data, table)
    progress = np.zeros(progress_at.PROGRESS_FIELDS, np.int64)
    progress[progress_at.AT] = progress_at.UNOPENED
    status, at = into.fold(data, table, row_filter, sums, progress)
    assert status != layout.FULL
    stats.rows += int(progress[progress_at.ROWS])
    stats.without_time += int(progress[progress_at.WITHOUT_TIME])
    slot = int(progress[progress_at.BATCH])
    if sums.size:
        stats.add(table[:slot], slot)
    if status != layout.DONE:
        raise corrupt(status, at, table[slot], is_joined=is_joined)


ALL_COLUMNS: Final = tuple(COLUMN_TYPES)

# Spark's default number of rows in an Arrow batch.
ROWS: Final = 10_000

# Maximum number of records in a group for `tally` and `fold`. These functions allocate no memory
# for each record, so the number can be so large that only the number of bytes limits a group.
_TALLY_ROWS: Final = 1 << 30


def schema(columns: Sequence[str] = ALL_COLUMNS, *, views: bool = False) -> pa.Schema:
    """Return the schema of `decode` for these columns; with `views`, keys and values are views.

    Raises:
        InvalidRequest: A column is unknown, or listed twice.
    """
    if unknown := [name for name in columns if name not in COLUMN_TYPES]:
        raise InvalidRequest(f"no column {unknown[0]!r}; the columns are {', '.join(ALL_COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise InvalidRequest(f"a column is listed twice: {', '.join(columns)}")
    types = COLUMN_TYPES | view_types() if views else COLUMN_TYPES
    return pa.schema([pa.field(name, types[name]) for name in columns])


def view_types() -> dict[str, pa.DataType]:
    """Return the columns that can be views of the log's bytes, with their types.

    Raises:
        MissingDependency: This pyarrow has no views.
    """
    if not hasattr(pa, "binary_view"):
        raise MissingDependency(f"views need pyarrow 16 or later, this is {pa.__version__}")
    return {"key": pa.binary_view(), "value": pa.binary_view()}


def decode(  # noqa: PLR0913 - one keyword for each property of the result
    buffer: Buffer,
    selection: Selection = EVERYTHING,
    *,
    columns: Sequence[str] = ALL_COLUMNS,
    append_times: "tuple[Longs, Longs] | None" = None,
    check_crc: bool = True,
    rows: int = ROWS,
    views: bool = False,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode consecutive batches, in order, to Arrow record batches of at most `rows` rows.

    Args:
        buffer: Consecutive batches of any magic and codec; an incomplete batch at the end is left
            out. The iterator keeps a reference to the buffer. With `views`, the results keep a
            reference too.
        selection: Which records to return.
        columns: Names from `ALL_COLUMNS`, in the requested order.
        append_times: Two int64 arrays for the column `appendTimestamp`: first offset (ascending)
            and append time in ms (-1 if unknown) of each run of offsets with equal append time.
            None if no append time is known.
        check_crc: False if the caller has checked the checksum of every batch in the buffer.
        rows: Maximum number of rows in one record batch, at least 1.
        views: Whether to return keys and values as `binary_view`, which refers to the buffer,
            instead of copies.
        stats: Statistics to update during the iteration.

    Raises:
        CorruptBatch, CorruptRecord: A frame, an offset, a checksum, a compressed stream or a record
            is wrong; everything before it was yielded. The error's `at` counts from the buffer's
            first byte.
        UnsupportedCompression: The codec is undefined.
        InvalidRequest: Raised when the first batch is requested: a column is unknown or listed
            twice, or `rows` is out of range.
        MissingDependency: Raised when the first batch is requested: `views` is True, and this
            pyarrow has no views.
    """
    kind = schema(columns, views=views)
    if not 1 <= rows <= INT64_MAX:
        raise InvalidRequest(f"rows must be 1 to {INT64_MAX}, got {rows}")
    stats = DecodeStats() if stats is None else stats
    decoder = Decoder(kind, rows, selection, append_times, stats)
    log = _frozen_bytes(buffer)
    batch_groups = groups(log, selection, stats, check_crc=check_crc, rows=rows, leaves_sums=True)
    parts = (
        batch for group in batch_groups for batch in decoder.decode(log, group, check_crc=check_crc)
    )
    yield from _merge_small(parts, rows)


def _frozen_bytes(buffer: Buffer) -> "Bytes":
    """Return the buffer's bytes as an array of the type that kernels take."""
    log = np.frombuffer(buffer, np.uint8)
    log.flags.writeable = False
    return log


def tally(
    buffer: Buffer,
    stats: DecodeStats,
    selection: Selection = EVERYTHING,
    *,
    check_crc: bool = True,
) -> None:
    """Count the records that `decode` would return, in `stats.rows`.

    Arguments are those of `decode`. Keys, values and headers are not examined. So an invalid record
    in a batch with a right checksum may be counted, although `decode` raises an error for it.

    Raises:
        CorruptBatch, CorruptRecord, UnsupportedCompression: See `decode`; the records before the
            damage were counted.
    """
    log = _frozen_bytes(buffer)
    for group in groups(log, selection, stats, check_crc=check_crc, rows=_TALLY_ROWS):
        count_rows(log, group.table, selection, stats, check_crc=check_crc)


def fold(
    buffer: Buffer,
    into: Fold,
    stats: DecodeStats,
    selection: Selection = EVERYTHING,
    *,
    check_crc: bool = True,
) -> None:
    """Pass the records that `decode` would return to `into.fold`, without copying them.

    Arguments are those of `decode`. No reference to `buffer` is kept.

    Raises:
        CorruptBatch, CorruptRecord, UnsupportedCompression: See `decode`; the records before the
            damage were processed.
    """
    log = _frozen_bytes(buffer)
    for group in groups(
        log, selection, stats, check_crc=check_crc, rows=_TALLY_ROWS, leaves_sums=True
    ):
        fold_group(log, group, selection, into, stats, check_crc=check_crc)


def _merge_small(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows, with small record batches merged.

    Small record batches occur if a filter selects few records of each chunk.

    Batches that are at least half full are not copied.
    """
    small: list[pa.RecordBatch] = []
    count = 0
    try:
        for batch in batches:
            if count + batch.num_rows > rows or batch.num_rows * 2 >= rows:
                yield from _joined(small)
                small, count = [], 0
            if batch.num_rows * 2 >= rows:
                yield batch
            else:
                small.append(batch)
                count += batch.num_rows
    except TidelogError:
        yield from _joined(small)
        raise
    yield from _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return pa.Table.from_batches(batches).combine_chunks().to_batches()


# Tuple of four values: the key; the value of the key's last record; the offset of this record; the
# offset of the key's last record with a null value, -1 if there is no such record.
LatestRecord: TypeAlias = tuple[bytes, bytes | None, int, int]

# Maximum number of records that `LatestFinder.find` accepts; data with more records is left to
# plain Python code. The number limits the memory for rows, which is 64 bytes for each record. Data
# of 16 MiB usually has fewer records.
RECORDS_MAX: Final = 1 << 19

SECRET_BYTES: Final = 16


class LatestFinder:
    """Finds the last record of each key in a sequence of batches; reusable for more sequences."""

    def __init__(self, secret: bytes) -> None:
        """Create a finder.

        `secret` is the 16-byte seed of the key hash. Producers must not know it.
        """
        assert len(secret) == SECRET_BYTES
        self._seeds = np.frombuffer(secret, "<i8").astype(np.int64)

    def find(self, data: bytes, table: "Longs") -> list[LatestRecord] | None:
        """Return the last record of each key, in the order of the keys' first records.

        Args:
            data: The batches with their headers.
            table: The rows of the batches, from `scan_batches`. All batches must be uncompressed
                and have magic 2.

        Returns:
            The last records; None if plain Python code must process the data, because the data is
            damaged, a record has no key, or there are more than `RECORDS_MAX` records.
        """
        count = _record_count(table)
        if count is None:
            return None
        out = last_records.LatestRows(
            slots=np.full(1 << (2 * count + 1).bit_length(), -1, np.int32),
            rows=np.empty((count, last_records.ROW_FIELDS), np.int64),
            facts=np.zeros(last_records.FACT_FIELDS, np.int64),
        )
        array = np.frombuffer(data, np.uint8)
        status = last_records.find_latest(array, table, shifts(), self._seeds, out)
        if status != layout.DONE or out.facts[last_records.UNKEYED]:
            return None
        used = out.rows[: int(out.facts[last_records.ROWS]), : last_records.HASH]
        return [
            (
                data[key_at:key_end],
                data[value_at:value_end] if value_end >= value_at else None,
                offset,
                dead_offset,
            )
            for key_at, key_end, value_at, value_end, offset, dead_offset in used.tolist()
        ]


def _record_count(table: "Longs") -> int | None:
    """Return the sum of the record counts in the batches' headers.

    Return None if a count is impossible, or the sum exceeds `RECORDS_MAX`.
    """
    counts = table[:, layout.RECORD_COUNT]
    room = table[:, layout.BODY_END] - table[:, layout.BODY_START]
    if ((counts < 0) | (counts * RECORD_SIZE_MIN > room)).any():
        return None
    count = int(counts.sum())
    return count if count <= RECORDS_MAX else None
