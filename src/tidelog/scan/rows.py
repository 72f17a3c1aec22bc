"""Rows of a scan: decoded columns with topic, partition and append times.

A new column is declared in `record/columns/column_builders.py`. Imports numpy.
"""

import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.arguments import reads_arguments
from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.column_builders import COLUMN_TYPES
from tidelog.record.columns.decode import ROWS, view_types
from tidelog.scan.split import Piece, Split
from tidelog.storage.clocks.append_time_columns import offsets_and_times, sound_rows
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.types import UNKNOWN_MS, TimestampType

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs as MemoryLongs

    Column = pa.Array[pa.Scalar[pa.DataType]]


# The default columns: the Kafka connector's columns in its order, and `appendTimestamp`.
COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "appendTimestamp",
)

_TYPES: Final[dict[str, pa.DataType]] = {
    **COLUMN_TYPES,
    "topic": pa.string(),
    "partition": pa.int32(),
}

ALL_COLUMNS: Final = (*COLUMNS, *(name for name in COLUMN_TYPES if name not in COLUMNS))
_APPEND_TIME: Final = "appendTimestamp"


@reads_arguments()
def schema(columns: Sequence[str] = COLUMNS, *, views: bool = False) -> pa.Schema:
    """Return the schema of a scan with these columns; with `views`, keys and values are views.

    Raises:
        InvalidRequest: A column doesn't exist, or is listed twice.
    """
    if unknown := [name for name in columns if name not in _TYPES]:
        raise InvalidRequest(f"no column {unknown[0]!r}; the columns are {', '.join(ALL_COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise InvalidRequest(f"a column is listed twice: {', '.join(columns)}")
    types = _TYPES | view_types() if views else _TYPES
    return pa.schema([pa.field(name, types[name]) for name in columns])


class RowMaker:
    """Makes the rows of one split from the decoder's batches.

    Attributes:
        decoded: Columns that the decoder must return. The offset is always among them, because the
            reader needs it to track its progress.
    """

    def __init__(self, split: Split, columns: Sequence[str], *, views: bool = False) -> None:
        self._schema = schema(columns, views=views)
        self._columns = tuple(columns)
        decoded_names = [name for name in columns if name in COLUMN_TYPES]
        needed = ["offset"]
        if _APPEND_TIME in columns:
            needed += ["timestamp", "timestampType"]
        self.decoded = (*decoded_names, *(name for name in needed if name not in decoded_names))
        self._constants: dict[str, str | int] = {
            "topic": split.topic,
            "partition": split.partition,
        }

    @property
    def needs_append_times(self) -> bool:
        """Whether append times are among the columns."""
        return _APPEND_TIME in self._columns

    def last_offset(self, batch: pa.RecordBatch) -> int:
        """Return the offset of the batch's last row."""
        offset: int = batch.column("offset")[batch.num_rows - 1].as_py()
        return offset

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the requested columns, in their order."""
        arrays = [self._array(name, batch) for name in self._columns]
        if not arrays:
            return batch.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, batch: pa.RecordBatch) -> "Column":
        if name in self._constants:
            return self._constant(name, batch.num_rows)
        if name == _APPEND_TIME:
            return stamped_append_times(batch)
        return batch.column(name)

    def _constant(self, name: str, rows: int) -> "Column":
        """Return the same value `rows` times: a slice of an array that all splits share."""
        return _repeated(self._constants[name], -(-rows // ROWS) * ROWS).slice(0, rows)


@lru_cache(maxsize=4)
def _repeated(value: str | int, capacity: int) -> "Column":
    if isinstance(value, str):
        return pa.repeat(pa.scalar(value, pa.string()), capacity)
    return pa.array(np.full(capacity, value, np.int32))


def stamped_append_times(batch: pa.RecordBatch) -> "Column":
    """Return append times; an unknown time is replaced by the record's LogAppendTime timestamp.

    It stays null if the record has a CreateTime timestamp.
    """
    append_times = batch.column(_APPEND_TIME)
    if not append_times.null_count:
        return append_times
    kind = batch.column("timestampType")
    is_stamped = pc.equal(kind, pa.scalar(int(TimestampType.LOG_APPEND_TIME), pa.int32()))
    stamp = pc.if_else(is_stamped, batch.column("timestamp"), pa.scalar(None, append_times.type))
    return pc.coalesce(append_times, stamp)


@dataclass(frozen=True, slots=True)
class AppendRuns:
    """Append times of a piece, as runs of offsets with the same time.

    Attributes:
        arrays: Two arrays: each run's first offset, and each run's time in ms (-1 if unknown).
    """

    arrays: "tuple[MemoryLongs, MemoryLongs]"

    @classmethod
    def decode(cls, data: bytes, piece: Piece, topic_id: str) -> Self:
        """Decode the append times of the piece's offsets, up to `Piece.times_end`."""
        owner = uuid.UUID(hex=topic_id) if topic_id else uuid.UUID(int=0)
        rows = sound_rows(data, piece.base_offset, owner)
        if rows is None:
            # The plan has set `times_end` to the end of the file's trusted rows, so rows that are
            # missing at the end of the file are not needed.
            times, _ = AppendTimes.decode(data, piece.base_offset, owner, open_end=True)
            rows = offsets_and_times(times)
        end = max(min(piece.end_offset, piece.times_end), piece.start_offset)
        first = max(int(np.searchsorted(rows[0], piece.start_offset, side="right")) - 1, 0)
        last = max(int(np.searchsorted(rows[0], end)), first)
        starts, append_ms = (column[first:last] for column in rows)
        return cls((np.append(starts, end), np.append(append_ms, UNKNOWN_MS)))
