"""Arrow columns as the Python objects that the client library takes, a column at a time."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tidelog.errors import InvalidRequest, InvalidTimestamp
from tidelog.record.columns.encoder import create_times, header_parts
from tidelog.tables import as_table, choose_rows

if TYPE_CHECKING:
    from tidelog.cluster.appends import Row

    Column = pa.Array[pa.Scalar[pa.DataType]]

Headers: TypeAlias = list[tuple[str, str | bytes | None]]
_COLUMNS: Final = frozenset({"key", "value", "timestamp", "headers"})


def binaries(column: "Column") -> list[bytes | None]:
    """The values of a column of bytes or text, None for null."""
    if pa.types.is_null(column.type):
        return [None] * len(column)
    column = column.cast(pa.binary())
    _, ends, data = column.buffers()
    assert ends is not None
    offsets = np.frombuffer(memoryview(ends), np.int32)[column.offset :][: len(column) + 1]
    start = int(offsets[0])
    # One copy of all bytes, then slices of it: a tenth of the time of a scalar for each row.
    raw = b"" if data is None else bytes(memoryview(data)[start : int(offsets[-1])])
    places = (offsets - start).tolist()
    found: list[bytes | None] = [raw[a:b] for a, b in itertools.pairwise(places)]
    if column.null_count:
        for row in np.flatnonzero(np.asarray(column.is_null())).tolist():
            found[row] = None
    return found


def times(column: "Column", now_ms: int) -> list[int]:
    """Create times in ms, rounded down; `now_ms` for null.

    Raises:
        InvalidTimestamp: A time of 0 ms, which the client library takes for "now", or one that
            no way in takes.
        InvalidRequest: The column holds neither timestamps nor integers.
    """
    found = create_times(column, len(column), now_ms)
    if (found == 0).any():
        raise InvalidTimestamp(
            "a row whose timestamp is 1970-01-01T00:00:00Z (0 ms): the client library would send"
            " the present time in its place; leave such rows out, or move them by a millisecond"
        )
    filled: list[int] = found.tolist()
    return filled


def headers(column: "Column") -> list[Headers | None]:
    """The headers of each row, None where it has none.

    Raises:
        InvalidRequest, InvalidRecord: As `header_parts`.
    """
    parts = header_parts(column)
    if parts is None:
        return [None] * len(column)
    counts, names, values = parts
    texts = [name.decode() for name in binaries(names) if name is not None]
    found: Headers = list(zip(texts, binaries(values), strict=True))
    places = np.cumsum(np.concatenate(([0], counts))).tolist()
    return [found[a:b] or None for a, b in itertools.pairwise(places)]


def table_rows(
    table: pa.Table | pa.RecordBatch, *, partition_count: int, keyless: int, now_ms: int
) -> Iterator["Row"]:
    """The rows of a table as a producer sends them.

    Args:
        table: Columns `key`, `value`, `timestamp`, `headers`, `partition`, all optional.
        partition_count: How many the topic has.
        keyless: The partition of rows without a key.
        now_ms: The time of rows that have none.

    Raises:
        InvalidRequest: Another column, or a partition that is not there.
        InvalidTimestamp, InvalidRecord: As `times` and `headers`.
    """
    partitions, rows = choose_rows(as_table(table), partition_count, keyless)
    unknown = set(rows.column_names) - _COLUMNS
    if unknown:
        raise InvalidRequest(
            f"no column {min(unknown)!r}; there are: {', '.join(sorted(_COLUMNS))}"
        )
    at = 0
    for batch in rows.to_batches():
        none = [None] * batch.num_rows
        names = batch.schema.names
        yield from zip(
            partitions[at : at + batch.num_rows].tolist(),
            binaries(batch.column("key")) if "key" in names else none,
            binaries(batch.column("value")) if "value" in names else none,
            times(batch.column("timestamp"), now_ms)
            if "timestamp" in names
            else [now_ms] * len(none),
            headers(batch.column("headers")) if "headers" in names else none,
            strict=True,
        )
        at += batch.num_rows
