"""Rows as Spark wants them: its types, its names, its exact Arrow schema.

Spark compares names, order, types and nullability of the first record batch with its own schema
and trusts the rest, so every batch here has just that. Times become microseconds; what does not
fit into 64 bits then (a time some 292,000 years away) is an error that names the record.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.errors import InvalidRequest, InvalidTimestamp, SerdeError

if TYPE_CHECKING:
    Column = pa.Array[pa.Scalar[pa.DataType]]

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
    "appendTimestamp": TimestampType(),
    "createTimestamp": TimestampType(),
    "producerId": LongType(),
    "producerEpoch": ShortType(),
    "sequence": IntegerType(),
    "leaderEpoch": IntegerType(),
}


# What key and value are, by the name of their serializer.
SERDE_TYPES: Final[dict[str, DataType]] = {
    "bytes": BinaryType(),
    "string": StringType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "double": DoubleType(),
    "uuid": StringType(),
    "json": StringType(),
}
Serdes = Mapping[str, str]
NO_SERDES: Final[Serdes] = {}


def row_type(columns: Sequence[str], serdes: Serdes = NO_SERDES) -> StructType:
    """The type of a row of these columns.

    Args:
        columns: Their names.
        serdes: Names of serializers of the columns `key` and `value`; bytes where there is none.

    Raises:
        InvalidRequest: A column that does not exist, or one twice.
    """
    if unknown := [name for name in columns if name not in TYPES]:
        raise InvalidRequest(f"no column {unknown[0]!r}; there are: {', '.join(TYPES)}")
    if len(set(columns)) != len(columns):
        raise InvalidRequest(f"a column is named twice: {', '.join(columns)}")
    types = TYPES | {name: SERDE_TYPES[serde] for name, serde in serdes.items()}
    return StructType([StructField(name, types[name]) for name in columns])


def check_row_type(asked: StructType, serdes: Serdes = NO_SERDES) -> tuple[str, ...]:
    """The columns of a schema that a user has given; raises InvalidRequest where one differs."""
    columns = tuple(asked.fieldNames())
    for ours, theirs in zip(row_type(columns, serdes), asked, strict=True):
        if ours.dataType != theirs.dataType:
            raise InvalidRequest(
                f"column {ours.name} is {ours.dataType.simpleString()},"
                f" not {theirs.dataType.simpleString()}"
            )
    return columns


class SparkRows:
    """Turns record batches of a scan into record batches for Spark."""

    def __init__(self, columns: Sequence[str], serdes: Serdes = NO_SERDES) -> None:
        self._schema = to_arrow_schema(row_type(columns, serdes), timezone="UTC")
        kinds = [field.type for field in self._schema]
        self._converters = [
            _serde_converter(name, serdes[name]) if name in serdes else _converter(name, kind)
            for name, kind in zip(columns, kinds, strict=True)
        ]

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows in Spark's types.

        Raises:
            InvalidTimestamp: A time that Spark can't hold.
            SerdeError: A key or value that is not of its serializer.
        """
        arrays = [
            convert(column) for convert, column in zip(self._converters, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _converter(name: str, kind: pa.DataType) -> "Callable[[Column], Column]":
    if name == "headers":
        return lambda column: _headers(column, kind)
    if pa.types.is_timestamp(kind):
        return lambda column: _times(name, column, kind)
    return _same


def _serde_converter(name: str, serde: str) -> "Callable[[Column], Column]":
    from tidelog.record.columns.serdes import decode_column

    def convert(column: "Column") -> "Column":
        try:
            return decode_column(column, serde)
        except SerdeError as error:
            raise SerdeError(
                f"column {name}: {error}; without {name}As it is read as bytes"
            ) from error

    return convert


def _same(column: "Column") -> "Column":
    return column


def _times(name: str, column: "Column", kind: pa.DataType) -> "Column":
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidTimestamp(
            f"column {name}: a record's time does not fit into Spark's timestamps ({error});"
            " leave the column out by the option columns"
        ) from error


def _headers(column: "Column", kind: pa.DataType) -> "Column":
    """Spark's list of structs over the same buffers; null without headers, as the connector has it.

    The child's nullability differs from ours, and Spark compares it.
    """
    assert isinstance(column, pa.ListArray)
    assert isinstance(kind, pa.ListType)
    pairs = column.values
    assert isinstance(pairs, pa.StructArray)
    ends = np.asarray(column.offsets)
    children = pa.StructArray.from_arrays(
        [pairs.field(0), pairs.field(1)], fields=list(kind.value_type)
    )
    has_headers = np.diff(ends) > 0
    bitmap = pa.py_buffer(np.packbits(has_headers, bitorder="little").tobytes())
    missing = len(column) - int(has_headers.sum())
    offsets = pa.py_buffer(ends.tobytes())
    return pa.Array.from_buffers(kind, len(column), [bitmap, offsets], missing, children=[children])
