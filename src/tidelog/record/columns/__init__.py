"""Log bytes to Arrow record batches by column: no Python object per record, nulls kept.

Owns the choice of batches and the shape of the result; the work on records is in
`tidelog.record.kernels`, whose rules are those of the plain path (`tidelog.record.views`).

Columns (only those asked for are computed; all may be null but the first three):

| column | type | null where |
|---|---|---|
| offset | int64 | never |
| timestamp | timestamp(ms, UTC) | the record has no time |
| timestampType | int32: 0 CreateTime, 1 LogAppendTime, -1 magic 0 | never |
| createTimestamp | timestamp(ms, UTC) | the producer gave none, or it was overwritten |
| appendTimestamp | timestamp(ms, UTC) | not known |
| key, value | binary | null in the record |
| headers | list<struct<key: string, value: binary>> | never; empty where there are none |
| producerId, producerEpoch, sequence | int64, int16, int32 | no idempotent producer |
| leaderEpoch | int32 | unknown |
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidelog.errors import InvalidRequest, MissingDependency, TidelogError
from tidelog.record.columns.arrays import COLUMN_TYPES, HEADERS, TIME
from tidelog.record.columns.decoder import Decoder, count_rows
from tidelog.record.columns.folding import Fold, fold_group
from tidelog.record.columns.source import DecodeStats, DropBatch, Selection, groups
from tidelog.record.offset_order import ANY_OFFSETS
from tidelog.types import INT64_MAX, Buffer

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

__all__ = [
    "ALL_COLUMNS",
    "COLUMN_TYPES",
    "HEADERS",
    "ROWS",
    "TIME",
    "DecodeStats",
    "DropBatch",
    "Fold",
    "decode",
    "fold",
    "schema",
    "tally",
    "view_types",
]

ALL_COLUMNS: Final = tuple(COLUMN_TYPES)
# What Spark takes at a time.
ROWS: Final = 10_000
# Nothing is made of what is only counted, so a group is bounded by its bytes alone.
_TALLY_ROWS: Final = 1 << 30


def schema(columns: Sequence[str] = ALL_COLUMNS, *, views: bool = False) -> pa.Schema:
    """The schema of what `decode` yields for these columns; keys and values may be views.

    Raises:
        InvalidRequest: A column that does not exist, or one twice.
    """
    if unknown := [name for name in columns if name not in COLUMN_TYPES]:
        raise InvalidRequest(f"no column {unknown[0]!r}; there are: {', '.join(ALL_COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise InvalidRequest(f"a column is named twice: {', '.join(columns)}")
    types = COLUMN_TYPES | view_types() if views else COLUMN_TYPES
    return pa.schema([pa.field(name, types[name]) for name in columns])


def view_types() -> dict[str, pa.DataType]:
    """The columns that may be had as views of the log's bytes, and their types then.

    Raises:
        MissingDependency: This pyarrow has no views.
    """
    if not hasattr(pa, "binary_view"):
        raise MissingDependency(f"views need pyarrow 16 or later, this is {pa.__version__}")
    return {"key": pa.binary_view(), "value": pa.binary_view()}


def decode(  # noqa: PLR0913 - one keyword for each way to choose rows
    buffer: Buffer,
    *,
    columns: Sequence[str] = ALL_COLUMNS,
    offset_start: int = 0,
    offset_end: int = INT64_MAX,
    record_time: tuple[int, int] | None = None,
    opens_all: bool = False,
    append_times: "tuple[Longs, Longs] | None" = None,
    include_control: bool = False,
    drop_batch: DropBatch | None = None,
    opens_from: int | None = None,
    between: tuple[int, int] = ANY_OFFSETS,
    check_crc: bool = True,
    rows: int = ROWS,
    views: bool = False,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a run of batches, in order, as Arrow record batches of at most `rows` rows.

    Args:
        buffer: Batches of any magic and codec, back to back; one that is cut at the end is left
            out. Held while the iterator lives, and with `views` by what it yields.
        columns: Names out of `ALL_COLUMNS`, in the order wanted.
        offset_start: First offset to take, inclusive.
        offset_end: Where offsets end, exclusive.
        record_time: Take only records whose timestamp in ms lies in [a, b), where b of INT64_MAX
            is no end; those without a time lie in no range and are counted in `stats`.
        opens_all: Open batches whose header rules the times out, too: to count records without one.
        append_times: First offset (ascending) and append time in ms (-1 unknown) of each run of
            offsets, int64 arrays, for the column `appendTimestamp`; None where nothing is known.
        include_control: Whether to take the records of control batches too.
        drop_batch: Given a table of batches (`kernels.layout`), says which to leave out.
        opens_from: Open each batch that ends at or behind this offset, in place of `offset_start`.
        between: Smallest offset that the first batch may have, and the offset that none reaches.
        check_crc: False where the caller has checked every batch of the buffer.
        rows: Limit of rows in one record batch, at least 1.
        views: Hand out keys and values as `binary_view`: views of the buffer, not copies.
        stats: Filled on the way, for callers that want the figures.

    Raises:
        CorruptBatch, CorruptRecord: A frame, an offset, a checksum, a compressed stream or a record
            is wrong; everything before it was yielded. `at` counts from the buffer's first byte.
        UnsupportedCompression: A codec that nobody defined.
        InvalidRequest: At the first step: an unknown column, or no rows asked for.
    """
    kind = schema(columns, views=views)
    if not 1 <= rows <= INT64_MAX:
        raise InvalidRequest(f"rows={rows}: 1 to {INT64_MAX}")
    selection = Selection(
        offset_start=offset_start,
        offset_end=offset_end,
        record_time=record_time,
        opens_all=opens_all,
        include_control=include_control,
        drop_batch=drop_batch,
        opens_from=opens_from,
        between=between,
    )
    stats = DecodeStats() if stats is None else stats
    decoder = Decoder(kind, rows, selection, append_times, stats)
    log = np.frombuffer(buffer, np.uint8)
    log.flags.writeable = False  # one type of array for the kernels, whatever the caller has
    found = groups(log, selection, stats, check_crc=check_crc, rows=rows, leaves_sums=True)
    parts = (batch for group in found for batch in decoder.decode(log, group, check_crc=check_crc))
    yield from _merge_small(parts, rows)


def tally(  # noqa: PLR0913 - as `decode`
    buffer: Buffer,
    stats: DecodeStats,
    *,
    offset_start: int = 0,
    offset_end: int = INT64_MAX,
    record_time: tuple[int, int] | None = None,
    opens_all: bool = False,
    drop_batch: DropBatch | None = None,
    opens_from: int | None = None,
    between: tuple[int, int] = ANY_OFFSETS,
    check_crc: bool = True,
) -> None:
    """Count the records that `decode` would hand out, in `stats.rows`.

    Arguments are those of `decode`. Keys, values and headers are not looked at: of a batch whose
    checksum is right and whose records are not, `decode` may find what this does not.

    Raises:
        CorruptBatch, CorruptRecord, UnsupportedCompression: As `decode`; all before it is counted.
    """
    selection = Selection(
        offset_start=offset_start,
        offset_end=offset_end,
        record_time=record_time,
        opens_all=opens_all,
        drop_batch=drop_batch,
        opens_from=opens_from,
        between=between,
    )
    log = np.frombuffer(buffer, np.uint8)
    log.flags.writeable = False
    for group in groups(log, selection, stats, check_crc=check_crc, rows=_TALLY_ROWS):
        count_rows(log, group.table, selection, stats, check_crc=check_crc)


def fold(  # noqa: PLR0913 - as `decode`
    buffer: Buffer,
    into: Fold,
    stats: DecodeStats,
    *,
    offset_start: int = 0,
    offset_end: int = INT64_MAX,
    record_time: tuple[int, int] | None = None,
    opens_all: bool = False,
    drop_batch: DropBatch | None = None,
    opens_from: int | None = None,
    between: tuple[int, int] = ANY_OFFSETS,
    check_crc: bool = True,
) -> None:
    """Have the records that `decode` would hand out taken by kernel, where they lie.

    Arguments are those of `decode`. Nothing of `buffer` is held afterwards.

    Raises:
        CorruptBatch, CorruptRecord, UnsupportedCompression: As `decode`; all before it was taken.
    """
    selection = Selection(
        offset_start=offset_start,
        offset_end=offset_end,
        record_time=record_time,
        opens_all=opens_all,
        drop_batch=drop_batch,
        opens_from=opens_from,
        between=between,
    )
    log = np.frombuffer(buffer, np.uint8)
    log.flags.writeable = False
    for group in groups(
        log, selection, stats, check_crc=check_crc, rows=_TALLY_ROWS, leaves_sums=True
    ):
        fold_group(log, group, selection, into, stats, check_crc=check_crc)


def _merge_small(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, with small batches put together: a narrow filter leaves crumbs of each chunk.

    Half-full ones pass as they are, so that at most half of the rows are ever copied.
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
