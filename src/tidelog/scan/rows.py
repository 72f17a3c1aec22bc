"""Rows as a scan hands them out: decoded columns, with topic and partition beside them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.arguments import reads_arguments
from tidelog.errors import InvalidRequest
from tidelog.record.columns import COLUMN_TYPES, ROWS, view_types
from tidelog.scan.split import Split
from tidelog.types import TimestampType

if TYPE_CHECKING:
    Column = pa.Array[pa.Scalar[pa.DataType]]

# The Kafka connector's columns, in its order.
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
    """The schema of what a scan yields for these columns; keys and values may be views.

    Raises:
        InvalidRequest: A column that does not exist, or one twice.
    """
    if unknown := [name for name in columns if name not in _TYPES]:
        raise InvalidRequest(f"no column {unknown[0]!r}; there are: {', '.join(ALL_COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise InvalidRequest(f"a column is named twice: {', '.join(columns)}")
    types = _TYPES | view_types() if views else _TYPES
    return pa.schema([pa.field(name, types[name]) for name in columns])


class RowMaker:
    """Makes the rows of one split from what the decoder yields.

    Attributes:
        decoded: Columns to ask the decoder for. The offset is always among them: by it the
            reader knows how far it got.
    """

    def __init__(self, split: Split, columns: Sequence[str], *, views: bool = False) -> None:
        self._schema = schema(columns, views=views)
        self._columns = tuple(columns)
        wanted = [name for name in columns if name in COLUMN_TYPES]
        needed = ["offset"]
        if _APPEND_TIME in columns:
            needed += ["timestamp", "timestampType"]
        self.decoded = (*wanted, *(name for name in needed if name not in wanted))
        self._constants: dict[str, str | int] = {
            "topic": split.topic,
            "partition": split.partition,
        }

    @property
    def needs_append_times(self) -> bool:
        """Whether append times are asked for."""
        return _APPEND_TIME in self._columns

    def last_offset(self, batch: pa.RecordBatch) -> int:
        """Offset of the batch's last row."""
        offset: int = batch.column("offset")[batch.num_rows - 1].as_py()
        return offset

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns asked for, in their order."""
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
        """The same value `rows` times: a slice of an array that all splits share."""
        return _repeated(self._constants[name], -(-rows // ROWS) * ROWS).slice(0, rows)


@lru_cache(maxsize=4)
def _repeated(value: str | int, capacity: int) -> "Column":
    if isinstance(value, str):
        return pa.repeat(pa.scalar(value, pa.string()), capacity)
    return pa.array(np.full(capacity, value, np.int32))


def stamped_append_times(batch: pa.RecordBatch) -> "Column":
    """Append times; where none is known, what a LogAppendTime batch says itself."""
    known = batch.column(_APPEND_TIME)
    if not known.null_count:
        return known
    kind = batch.column("timestampType")
    is_stamped = pc.equal(kind, pa.scalar(int(TimestampType.LOG_APPEND_TIME), pa.int32()))
    stamp = pc.if_else(is_stamped, batch.column("timestamp"), pa.scalar(None, known.type))
    return pc.coalesce(known, stamp)
