"""Converts columns of keys and values between binary and typed arrays, by the serializer's name.

The conversions are those of `tidelog.record.serde`. Encoded numbers are big-endian. UUIDs and JSON
values are decoded to text.
"""

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidelog.errors import SerdeError
from tidelog.record.serde import SERDE_NAMES, serde

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Ints

    Column = pa.Array[pa.Scalar[pa.DataType]]

_MESSAGE_BYTES_MAX: Final = 24
_FORMS: Final = {"int32": ">i4", "int64": ">i8", "double": ">f8"}
# Encodings whose values the deserializer checks one by one.
_TEXTS: Final = ("uuid", "json")
COLUMN_KINDS: Final[dict[str, pa.DataType]] = {
    "bytes": pa.binary(),
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    **dict.fromkeys(_TEXTS, pa.string()),
}
assert set(COLUMN_KINDS) == set(SERDE_NAMES)


def decode_column(column: "Column", encoding: str) -> "Column":
    """Decode the values of a binary column; nulls stay null.

    Args:
        column: Keys or values.
        encoding: A name from `SERDE_NAMES`.

    Returns:
        An array whose type is `COLUMN_KINDS[encoding]`.

    Raises:
        SerdeError: A value is not valid in the encoding; the error shows the value.
    """
    if encoding == "bytes":
        return column
    if encoding in _FORMS:
        return _decode_numbers(column, encoding)
    if encoding in _TEXTS:
        _check_values(column, encoding)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        _check_values(column, encoding)
        raise


def _decode_numbers(column: "Column", encoding: str) -> "Column":
    kind, form = COLUMN_KINDS[encoding], np.dtype(_FORMS[encoding])
    ends, data = _value_buffers(column)
    is_null = np.asarray(column.is_null())
    starts = ends[:-1][~is_null]
    if (np.diff(ends)[~is_null] != form.itemsize).any():
        _check_values(column, encoding)
    numbers = np.zeros(len(column), form)
    # One array operation collects the bytes of all rows' numbers.
    numbers[~is_null] = data[starts[:, None] + np.arange(form.itemsize)].view(form)[:, 0]
    return pa.array(numbers.astype(form.newbyteorder("=")), kind, mask=is_null)


def _value_buffers(column: "Column") -> "tuple[Ints, Bytes]":
    """Return the start of each value and the end of the last value, and the bytes of all values."""
    _, ends, data = column.buffers()
    assert ends is not None
    bounds = np.frombuffer(memoryview(ends), np.int32)[column.offset :][: len(column) + 1]
    return bounds, np.frombuffer(memoryview(data or b""), np.uint8)


def wrong_values(column: "Column", encoding: str) -> "Iterator[tuple[int, SerdeError]]":
    """Yield the row's index and the error of each value that is invalid in the encoding."""
    read = serde(encoding).deserialize
    for row, cell in enumerate(column):
        value: bytes | None = cell.as_py()
        try:
            read(value)
        except SerdeError as error:
            assert value is not None
            more = "..." if len(value) > _MESSAGE_BYTES_MAX else ""
            yield row, SerdeError(f"{error} ({value[:_MESSAGE_BYTES_MAX].hex(' ')}{more})")


def _check_values(column: "Column", encoding: str) -> None:
    """Raise SerdeError for the first value that is invalid in the encoding."""
    for _, error in wrong_values(column, encoding):
        raise error


def encode_column(column: "Column", encoding: str) -> "Column":
    """Encode a typed column as binary, as the serializer does; nulls stay null.

    Raises:
        SerdeError: A value can't be encoded, or the column's type does not fit the encoding.
    """
    if encoding in _FORMS:
        return _encode_numbers(column, encoding)
    if encoding == "bytes":
        return _cast(column, pa.binary(), encoding)
    texts = _cast(column, pa.string(), encoding).cast(pa.binary())
    if encoding in _TEXTS:
        _check_values(texts, encoding)
    return texts


def encode_fields(batch: pa.RecordBatch, serdes: "Mapping[str, str]") -> pa.RecordBatch:
    """Return the batch with the columns of `serdes` encoded as binary.

    Args:
        batch: The batch. It may lack some of the columns that `serdes` names.
        serdes: Name of the serializer by name of the column.

    Raises:
        SerdeError: A value can't be encoded, or a column's type does not fit its serializer; the
            error names the column.
    """
    for name, encoding in serdes.items():
        at = batch.schema.get_field_index(name)
        if at < 0:
            continue
        try:
            column = encode_column(batch.column(at), encoding)
        except SerdeError as error:
            raise SerdeError(f"column {name}: {error}") from error
        batch = batch.set_column(at, name, column)
    return batch


def _cast(column: "Column", kind: pa.DataType, encoding: str) -> "Column":
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SerdeError(f"{encoding} can't write a column of {column.type}: {error}") from error


def _encode_numbers(column: "Column", encoding: str) -> "Column":
    if pa.types.is_boolean(column.type):
        raise SerdeError(f"{encoding} can't write a column of {column.type}")
    form = np.dtype(_FORMS[encoding])
    converted = _cast(column, COLUMN_KINDS[encoding], encoding)
    is_null = np.asarray(converted.is_null())
    numbers: npt.NDArray[np.generic] = np.zeros(len(column), form)
    # Rows that are null keep 0. Only the other rows are converted, because numpy can't cast a null.
    numbers[~is_null] = np.asarray(converted.drop_null()).astype(form)
    if encoding == "double":
        # Java's serializer writes every NaN with the bits of this NaN.
        numbers[np.isnan(numbers.astype(np.float64))] = np.float64("nan")
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little").tobytes())
    data = pa.py_buffer(numbers.tobytes())
    sizes = pa.binary(form.itemsize)
    fixed = pa.Array.from_buffers(sizes, len(column), [valid, data], int(is_null.sum()))
    return fixed.cast(pa.binary())
